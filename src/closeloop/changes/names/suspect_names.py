"""Suspicious names on added lines, similar names, and names that exist."""

from __future__ import annotations

import builtins
import collections.abc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from itertools import permutations
from pathlib import Path
from string import ascii_letters, digits
from typing import Literal

import zstandard

from closeloop.changes.risk.dependencies import find_environments
from closeloop.changes.syntax import extract_words
from closeloop.records.change import Inspection, Language, SourceImport, SourceModule, SourceName
from closeloop.records.record import Record

UseKind = Literal["import", "call", "attribute", "keyword", "name", "option"]
_TEST_INPUT = re.compile(
    r"(?:.*/)?(?:test-?data|_*(?:fixtures?|snapshots?|goldens?)_*"
    r"|_*(?:tests?|specs?)_*/(?:.*/)?(?:data|cases|inputs?|outputs?|expected|resources|samples))/.*",
    re.IGNORECASE,
)
_TEST_FILE = re.compile(r"/(?:test_|conftest)[^/]*$|[._-](?:test|spec)\.\w+$")
_MAJOR_VERSION = re.compile(r"v\d+")


class NameUse(Record):
    """A name that an added line uses."""

    path: str
    line: int
    language: Language
    text: str
    kind: UseKind
    receiver: str | None = None
    """As written; empty if the receiver is too long to report."""
    target: SourceImport | None = None
    """For an imported name, the module it is imported from."""


class Suspect(Record):
    """A name that seems not to exist."""

    use: NameUse
    near: str | None = None
    """The name that was probably meant."""
    where: str | None = None
    """The module or class in which it was looked up."""
    certain: bool = False
    """Whether the name that was meant exists in the place searched, or this name is missing there
    and exists nowhere else."""
    reason: str | None = None
    """The type checker's message."""


def is_test_input(path: str) -> bool:
    """Return whether a source is only input of tests, so its names need not exist."""
    return _TEST_INPUT.fullmatch(path) is not None and _TEST_FILE.search(path) is None


def find_name_uses(inspection: Inspection) -> Iterator[NameUse]:
    """Yield every name that added lines use, once per line."""
    for file in inspection.files:
        module = inspection.modules.get(("after", file.path))
        added = inspection.added.get(file.path, frozenset())
        if module is None or not added or is_test_input(file.path):
            continue
        lines = (inspection.sides.read("after", file.path) or b"").split(b"\n")
        for name in dict.fromkeys(module.names):
            if name.line in added and name.kind != "definition":
                looked_up = name.receiver is None and _is_member(name, lines)
                yield NameUse(
                    path=file.path,
                    line=name.line,
                    language=module.language,
                    text=name.text,
                    kind=name.kind,
                    receiver="" if looked_up else name.receiver,
                )
        for source_import in module.imports:
            if (
                source_import.line in added
                and source_import.name
                and source_import.name not in ("*", "default")
            ):
                yield NameUse(
                    path=file.path,
                    line=source_import.line,
                    language=module.language,
                    text=source_import.name,
                    kind="import",
                    target=SourceImport(module=source_import.module, line=source_import.line),
                )


def _is_member(name: SourceName, lines: list[bytes]) -> bool:
    """Return whether the name follows a receiver that it is looked up on."""
    line = lines[name.line - 1] if name.line <= len(lines) else b""
    before = lines[name.line - 2].rstrip() if 1 < name.line <= len(lines) else b""
    word = re.escape(name.text.encode())
    if before.endswith((b".", b"::")) and re.match(rb"\s*" + word, line):
        return True
    return re.search(rb"(?<![\w.$:])" + word + rb"(?![\w$])", line) is None


def import_bindings(target: SourceImport, language: Language) -> tuple[str, ...]:
    """Return the names that an import binds; several if only the package itself knows which."""
    if target.alias or target.name:
        return (target.alias or target.name or "",)
    if language == "python":
        return (target.module.split(".")[0],)
    if language == "go":
        # `gopkg.in/yaml.v3`, `example.org/go-cmp/v2`: a package's name is like its last part.
        parts = [part for part in target.module.split("/") if not _MAJOR_VERSION.fullmatch(part)]
        return (*parts[-1:], *re.split(r"[-.]", parts[-1])) if parts else ()
    return ()


def module_bindings(module: SourceModule, *, imports: bool = True) -> Iterator[str]:
    """Yield every name that a file defines, anywhere in it, or imports."""
    yield from (name.text for name in module.names if name.kind == "definition")
    yield from (function.name for function in module.functions)
    yield from (type_.name for type_ in module.types)
    if imports:
        for source_import in module.imports:
            yield from import_bindings(source_import, module.language)


# Near misses: the name that was probably meant.

MIN_NAME_CHARS = 4
"""Minimum length: shorter names are one edit away from too many others."""
MIN_DISTANT_NAME_CHARS = 5
"""Minimum length for names defined anywhere: shorter ones are one letter from some other."""
MAX_NAME_CHARS = 100
"""Maximum length: longer names are no typos, and take too long to search."""
MIN_LIKENESS = 0.75
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAME_LETTERS = ascii_letters + digits + "_"


def find_slips(
    name: str, exists: Callable[[str], bool], shortest: int = MIN_NAME_CHARS
) -> list[str]:
    """Return existing names that may have been meant: one edit, other case, other word order."""
    if not shortest <= len(name) <= MAX_NAME_CHARS:
        return []
    variants = (variant for variant in _list_variants(name) if variant != name and exists(variant))
    return list(dict.fromkeys(variants))


def is_other_word(name: str, other: str) -> bool:
    """Return whether they differ on purpose: `Var` and `VarP`, `v1` and `v2`, `Get` and `Set`."""
    if name.startswith("_") != other.startswith("_"):
        return True
    if name.replace("_", "").lower() == other.replace("_", "").lower():
        return name.isupper() != other.isupper() or name[1:] == other[1:]
    if name[:1] != other[:1] and sorted(name) != sorted(other):
        # Typos rarely affect the first letter: `echo` and `secho`, `lpush` and `rpush`.
        return True
    if len(name) == len(other):
        differences = [pair for pair in zip(name, other, strict=True) if pair[0] != pair[1]]
        letters = {letter.lower() for letter in differences[0]}
        verbs = name[1:3].lower() == "et" and letters == {"g", "s"}
        tells = verbs or len(name) < MIN_NAME_CHARS or any(letter.isdigit() for letter in letters)
        return len(differences) == 1 and tells
    short, long = sorted((name, other), key=len)
    return long.startswith(short) and (long[len(short)].isupper() or long[-1].isdigit())


def is_misspelt(name: str, other: str) -> bool:
    """Return whether no letter replaces another: `set_xlabel` is not `set_ylabel`."""
    return len(name) != len(other) or sorted(name.lower()) == sorted(other.lower())


def is_likely_meant(name: str, other: str) -> bool:
    """Return whether a name from anywhere is similar enough to have been meant."""
    return len(name) >= MIN_DISTANT_NAME_CHARS or sorted(name) == sorted(other)


def find_nearest_name(name: str, others: Set[str]) -> str | None:
    """Return the most similar of a few names, preferably one edit away; None if none is."""
    for slip in find_slips(name, others.__contains__, 3):
        return slip
    if len(name) > MAX_NAME_CHARS:
        return None
    best, best_likeness = None, MIN_LIKENESS
    name_words = set(split_name_words(name))
    for other in others:
        if other == name or (other.startswith("_") and not name.startswith("_")):
            continue
        likeness = _name_likeness(name, name_words, other)
        if likeness > best_likeness or (best and likeness == best_likeness and other < best):
            best, best_likeness = other, likeness
    return best


def _name_likeness(name: str, name_words: set[str], other: str) -> float:
    other_words = set(split_name_words(other))
    if name_words == other_words:
        return 1.0
    if abs(len(name) - len(other)) > max(len(name), len(other)) // 2:
        return 0.0
    letters = SequenceMatcher(None, name.lower(), other.lower(), autojunk=False).ratio()
    shared = len(name_words & other_words)
    # All words but one agree: `parse_day` and `parse_date`.
    is_close = (
        shared >= max(len(name_words), len(other_words)) - 1
        and min(len(name_words), len(other_words)) > 1
    )
    return max(letters, 0.76 + letters / 10) if is_close else letters


def _list_variants(name: str) -> Iterator[str]:
    """Yield similar spellings, likeliest first."""
    yield from _reorder_words(name)
    indexes = range(len(name))
    yield from (
        name[:index] + name[index + 1] + name[index] + name[index + 2 :] for index in indexes[:-1]
    )
    yield from (name[:index] + name[index + 1 :] for index in indexes)
    yield from (
        name[:index] + letter + name[index:]
        for index in (*indexes, len(name))
        for letter in _NAME_LETTERS
    )
    yield from (
        name[:index] + letter + name[index + 1 :] for index in indexes for letter in _NAME_LETTERS
    )


def _reorder_words(name: str) -> Iterator[str]:
    """Yield the same words in another case or order."""
    words = split_name_words(name)
    if not 1 < len(words) <= 4:
        return
    start = name[: len(name) - len(name.lstrip("_"))]
    for order in permutations(words):
        snake = "_".join(order)
        pascal = "".join(word.capitalize() for word in order)
        for variant in (snake, snake.upper(), pascal, pascal[:1].lower() + pascal[1:]):
            if start + variant != name:
                yield start + variant


def split_name_words(name: str) -> list[str]:
    return [word.lower() for word in _NAME_WORD.findall(name)]


# Names from outside the repository: of languages, standard libraries and packages.

MAX_PACKAGE_FILES = 3000
MAX_PACKAGE_BYTES = 40_000_000
"""Maximum bytes read of a package; a larger one is not examined."""
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
    """Return the names of a language's standard library by module, over all its versions."""
    packed = (files(__package__) / "standard" / f"{_LIBRARIES[language]}.zst").read_bytes()
    text = zstandard.ZstdDecompressor().decompress(packed).decode()
    lines = (line.split(" ") for line in text.splitlines())
    return {line[0]: frozenset(line[1:]) for line in lines}


@cache
def list_standard_names(language: Language) -> frozenset[str]:
    """Return all names of a language's standard library."""
    return frozenset[str]().union(*load_standard_library(language).values())


class InstalledPackages:
    """Packages installed for the project, each read on first use."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.environment = next(find_environments(folders), None)
        self._names: dict[tuple[str, str], frozenset[str] | None] = {}

    def package_names(self, language: Language, package: str) -> frozenset[str] | None:
        """Return every word of a package; None if it is not installed or too large."""
        family = _LIBRARIES[language]
        key = family, package
        if key not in self._names:
            package_paths = (
                list(self._package_paths(family, package))
                if _PYTHON_NAME.match(package.encode())
                or (family == "javascript" and ".." not in package)
                else []
            )
            self._names[key] = (
                _read_package_words(package_paths, _SOURCE_ENDINGS.get(family, ()))
                if package_paths
                else None
            )
        return self._names[key]

    def _package_paths(self, family: str, package: str) -> Iterator[Path]:
        if family == "python" and self.environment:
            for library in (
                *self.environment.glob("lib/python3*/site-packages"),
                self.environment / "Lib/site-packages",
            ):
                for name in (package, f"{package}.py", f"{package}.pyi", f"{package}-stubs"):
                    if (library / name).exists():
                        yield library / name
        elif family == "javascript":
            typed = "@types/" + package.removeprefix("@").replace("/", "__")
            for folder in self.folders:
                for name in (package, typed):
                    if (folder / "node_modules" / name).is_dir():
                        yield folder / "node_modules" / name


def _read_package_words(
    package_paths: list[Path], endings: tuple[str, ...]
) -> frozenset[str] | None:
    package_words: set[bytes] = set()
    file_count = size = 0
    for package_path in package_paths:
        for path in [package_path] if package_path.is_file() else package_path.rglob("*"):
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


# Built-in names of a language.


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
"""Built-in names by language family; Java's are in its standard library."""
AMBIENT_NAMES = _split_words(
    "describe context suite specify it test before after beforeEach afterEach beforeAll afterAll"
    " setup teardown suiteSetup suiteTeardown xdescribe fdescribe xit fit xtest expect assert"
    " should sinon jest vi jasmine spyOn cy Cypress QUnit browser chrome page jQuery angular Vue"
    " Deno Bun"
)
"""Names that script hosts define: test runners, pages, browser extensions."""
PYTHON_2_NAMES = _split_words(
    "apply basestring buffer cmp coerce execfile file intern long raw_input reduce reload unichr"
    " unicode xrange __builtin__ BaseHTTPServer ConfigParser Cookie HTMLParser Queue"
    " SimpleHTTPServer SocketServer StringIO Tkinter UserDict UserList commands cPickle cStringIO"
    " cookielib copy_reg dummy_thread httplib md5 robotparser sets sha thread urllib2 urlparse"
    " xmlrpclib __cmp__ __getslice__ __nonzero__ __unicode__ func_code func_defaults func_name"
    " getcwdu has_key ifilter ifilterfalse imap im_class im_func im_self iteritems iterkeys"
    " itervalues izip izip_longest letters lowercase maketrans maxint next uppercase urlencode"
    " urlopen quote quote_plus unquote unquote_plus viewitems viewkeys viewvalues"
)
"""Built-in names, modules and members that only Python 2 has."""
BUILD_SPECIFIC_NAMES = {
    "sys": _split_words(
        "pypy_version_info pypy_translation_info gettotalrefcount real_prefix frozen"
    ),
    "collections": frozenset(collections.abc.__all__),
}
"""Names that only some builds or older versions of Python have, by module."""
