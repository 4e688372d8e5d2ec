"""Names that a language has of itself, without any import."""

from __future__ import annotations

import builtins


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGE_NAMES: dict[str, frozenset[str]] = {
    "python": frozenset(dir(builtins))
    | _split_words("__file__ __path__ __class__ __builtins__ __annotations__ self cls"),
    "scripts": _split_words(
        "any arguments as asserts async await bigint boolean const declare exports global infer"
        " globalThis keyof module never null number object readonly require satisfies string super"
        " symbol JSX React this undefined unique unknown void __dirname __filename"
    ),
    "go": _split_words(
        "append cap clear close complex copy delete imag len make max min new panic print println"
        " real recover any bool byte comparable complex64 complex128 error float32 float64 int int8"
        " int16 int32 int64 rune string uint uint8 uint16 uint32 uint64 uintptr true false nil iota"
        " init main"
    ),
    "rust": _split_words(
        "Some None Ok Err Option Result String Vec Box Drop Clone Copy Send Sync Sized Iterator"
        " Into From Default Debug Fn FnMut FnOnce ToString ToOwned AsRef AsMut Eq PartialEq Ord"
        " PartialOrd Self self super crate str char bool usize isize f32 f64"
        " u8 u16 u32 u64 u128 i8 i16 i32 i64 i128"
    ),
}
"""By family of languages; Java's stand in its standard library."""
AMBIENT_NAMES = _split_words(
    "describe context suite specify it test before after beforeEach afterEach beforeAll afterAll"
    " setup teardown suiteSetup suiteTeardown xdescribe fdescribe xit fit xtest expect assert"
    " should sinon jest vi jasmine spyOn cy Cypress QUnit browser chrome page jQuery angular Vue"
    " Deno Bun"
)
"""What those that run scripts put there: test runners, pages, extensions of browsers."""
BUILD_SPECIFIC_NAMES = {
    "sys": _split_words(
        "pypy_version_info pypy_translation_info gettotalrefcount real_prefix frozen"
    ),
}
"""What only some builds of Python have, by module."""
