"""Names that exist without the repository: of languages, standard libraries and packages."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

import zstandard

from closeloop.changes.syntax import extract_words
from closeloop.records.inspection import (
    Language,
)

MAX_PACKAGE_FILES = 3000
MAX_PACKAGE_BYTES = 40_000_000
"""So much of a package is read; of a larger one nothing is said."""
_ENVIRONMENTS = (".venv", "venv", "env", ".env")
_LIBRARIES: dict[Language, str] = {
    "python": "python",
    "javascript": "javascript",
    "typescript": "javascript",
    "tsx": "javascript",
    "go": "go",
    "java": "java",
    "rust": "rust",
}
_SOURCE_ENDINGS: dict[str, tuple[str, ...]] = {"python": (".py", ".pyi"), "javascript": (".d.ts",)}
_PYTHON_NAME = re.compile(rb"[a-z_]\w*$", re.IGNORECASE)


@cache
def load_standard_library(language: Language) -> Mapping[str, frozenset[str]]:
    """By module, the names of a language's standard library, of all its versions."""
    packed = (files(__package__) / "standard" / f"{_LIBRARIES[language]}.zst").read_bytes()
    text = zstandard.ZstdDecompressor().decompress(packed).decode()
    lines = (line.split(" ") for line in text.splitlines())
    return {line[0]: frozenset(line[1:]) for line in lines}


@cache
def list_standard_names(language: Language) -> frozenset[str]:
    """All of them at once."""
    return frozenset[str]().union(*load_standard_library(language).values())


def find_virtualenv(root: Path) -> Path | None:
    """The virtual environment of a Python project."""
    for name in _ENVIRONMENTS:
        if (root / name / "pyvenv.cfg").is_file():
            return root / name
    return None


class InstalledPackages:
    """Packages that lie beside the project, each read when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[tuple[str, str], frozenset[str] | None] = {}

    def package_names(self, language: Language, package: str) -> frozenset[str] | None:
        """Every word of a package; None where it is not installed or too large."""
        family = _LIBRARIES[language]
        key = family, package
        if key not in self._names:
            places = (
                list(self._package_paths(family, package))
                if _PYTHON_NAME.match(package.encode())
                or (family == "javascript" and ".." not in package)
                else []
            )
            self._names[key] = (
                _read_package_words(places, _SOURCE_ENDINGS.get(family, ())) if places else None
            )
        return self._names[key]

    def _package_paths(self, family: str, package: str) -> Iterator[Path]:
        if family == "python" and (virtualenv := find_virtualenv(self.root)):
            for library in (
                *virtualenv.glob("lib/python3*/site-packages"),
                virtualenv / "Lib/site-packages",
            ):
                for name in (package, f"{package}.py", f"{package}.pyi", f"{package}-stubs"):
                    if (library / name).exists():
                        yield library / name
        elif family == "javascript":
            typed = "@types/" + package.removeprefix("@").replace("/", "__")
            for name in (package, typed):
                if (self.root / "node_modules" / name).is_dir():
                    yield self.root / "node_modules" / name


def _read_package_words(places: list[Path], endings: tuple[str, ...]) -> frozenset[str] | None:
    package_words: set[bytes] = set()
    file_count = size = 0
    for place in places:
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.name.endswith(endings) and path.is_file():
                file_count, size = file_count + 1, size + path.stat().st_size
                if file_count > MAX_PACKAGE_FILES or size > MAX_PACKAGE_BYTES:
                    return None
                package_words |= extract_words(path.read_bytes())
    return (
        frozenset(word.decode("utf-8", "replace") for word in package_words)
        if package_words
        else None
    )


# Names that a language has of itself, without any import.


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
