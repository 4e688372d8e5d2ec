"""Split the files of a change: tests as the runner collects them, source, and the rest."""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from closeloop.records.record import Record
from closeloop.records.task import TestRunner
from closeloop.tasks.other_projects import ManifestFolder, nested_table

_CODE_FILE = (
    r".*\.(?:pyi?|pyx|[cm]?[jt]sx?|vue|svelte|go|rs|java|kt|scala|groovy|rb|php|cs|swift|dart|exs?"
    r"|[ch](?:pp|c|xx)?|mm?|lua|sh|sql)$"
)
_GENERATED_PATH = re.compile(
    r"(?:^|/)(?:_?vendor|vendored|third[_-]?party|node_modules|dist|generated|__generated__)/"
    r"|(?:\.min\.\w+|_pb2(?:_grpc)?\.pyi?|\.pb(?:\.\w+)?\.go|[._](?:generated|gen)\.\w+|\.d\.ts)$"
    r"|(?:^|/)(?:zz_generated[^/]*|bindata\.go)$"
)
_DOCUMENT_PATH = re.compile(
    r"(?:^|/)(?:docs?|\.github|\.changeset|\.circleci)/"
    r"|\.(?:md|rst|adoc|markdown)$"
    r"|(?:^|/)(?:CHANGE\w*|HISTORY|NEWS|AUTHORS|CONTRIBUTORS|README|LICENSE)(?:\.\w+)?$"
    r"|(?:^|/)\.(?:gitignore|gitattributes|pre-commit-config\.yaml|travis\.yml|mailmap)$"
)
_CHANGELOG_PATH = re.compile(
    rf"^(?!{_CODE_FILE})(?:.*/)?(?:(?:changelog\.d|changes|news|newsfragments|releasenotes/notes)/[^/]+"
    r"|(?:CHANGE\w*|(?:version[-_]?)?HISTORY|NEWS|whats[-_]?new|release[-_]?notes)(?:\.\w+)?)$",
    re.IGNORECASE,
)
_LOCK_FILES = (
    "uv.lock",
    "poetry.lock",
    "pdm.lock",
    "package-lock.json",
    "yarn.lock",
    "pnpm-lock.yaml",
)
_CODE_ENDINGS = (".py", ".js", ".ts", ".mjs", ".cjs", ".jsx", ".tsx", ".go", ".rs", ".java", ".kt")
_TEST_ROOTS = frozenset({"test", "tests"})
_SCRIPT_TEST_ROOTS = frozenset({"__tests__", "__snapshots__", "__fixtures__", "__mocks__"})
_SCRIPT_TESTS = (
    *("*.test.js", "*.test.jsx", "*.test.ts", "*.test.tsx", "*.test.mjs", "*.test.cjs"),
    *("*.test.mts", "*.test.cts", "*.spec.js", "*.spec.jsx", "*.spec.ts", "*.spec.tsx"),
    *("*.spec.mjs", "*.spec.cjs", "*.spec.mts"),
)
_SCRIPT_SUFFIXES = ("js", "mjs", "cjs", "ts", "mts", "cts")
_NODE_TESTS = tuple(
    f"{stem}.{ending}"
    for stem in ("*.test", "*-test", "*_test", "test-*", "test", "*/test/*")
    for ending in _SCRIPT_SUFFIXES
)
"""Node's default patterns, if none are configured."""
_REGEX_FOLDERS = ("test", "tests", "spec", "specs")
_OTHER_INCLUDES = re.compile(
    r"\b(?:coverage|typecheck|benchmark|optimizeDeps)\s*:\s*\{(?:[^{}]|\{[^{}]*\})*\}"
)
"""Parts of vitest's configuration that list other files than tests."""
MAX_GLOB_CHARS = 200


class CollectionRules(Record):
    """Which files a runner collects as tests."""

    names: tuple[str, ...] = ()
    """Globs over the file's name; those with a `/`, over its path starting with `/`."""
    places: tuple[str, ...] = ()
    """Folders it searches; empty means everywhere."""
    roots: frozenset[str] = _TEST_ROOTS
    """Names of folders that belong to the tests, if they contain a test."""
    support: tuple[str, ...] = ()
    """Globs over names of files that belong to the tests in any folder."""
    files: tuple[str, ...] = ()
    """Files that the test command names."""


class ChangeParts(Record):
    """The files of a change, by purpose."""

    tests: tuple[str, ...] = ()
    """Files that the runner collects."""
    support: tuple[str, ...] = ()
    """Files that accompany tests: fixtures, data, test configuration."""
    source: tuple[str, ...] = ()
    changelog: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    """Documents and lock files: not part of a task."""


def find_collection_rules(folder: ManifestFolder, runner: TestRunner | None) -> CollectionRules:
    """Return what a runner collects in a project, by its own configuration."""
    match runner:
        case "pytest":
            return _pytest_rules(folder)
        case "unittest":
            return CollectionRules(names=("test*.py",))
        case "go":
            return CollectionRules(names=("*_test.go",), roots=frozenset({"testdata"}))
        case "cargo":
            return CollectionRules(names=("*.rs",), places=("tests", "*/tests", "*/*/tests"))
        case "mocha":
            names = tuple(f"*.{ending}" for ending in (*_SCRIPT_SUFFIXES, "jsx", "tsx"))
            return CollectionRules(
                names=names, places=_script_folders(folder, "mocha") or ("test",)
            )
        case "node":
            folders = _script_folders(folder, "--test")
            names = tuple(f"*.{ending}" for ending in _SCRIPT_SUFFIXES) if folders else _NODE_TESTS
            return CollectionRules(
                names=names, places=folders, roots=_TEST_ROOTS | _SCRIPT_TEST_ROOTS
            )
        case "junit":
            folders = ("src/test", "*/src/test", "*/*/src/test")
            return CollectionRules(names=("*.java", "*.kt", "*.groovy", "*.scala"), places=folders)
        case _:
            declared = tuple(_declared_script_tests(folder, runner))
            names = declared or _SCRIPT_TESTS
            names = names if runner else (*_SCRIPT_TESTS, "test_*.py", "*_test.py", "*_test.go")
            support = ("*.snap", *(() if runner else ("conftest.py",)))
            return CollectionRules(
                names=names, roots=_TEST_ROOTS | _SCRIPT_TEST_ROOTS, support=support
            )


def split_change_paths(
    paths: Iterable[str], known: Iterable[str], rules: CollectionRules
) -> ChangeParts:
    """Split changed paths by kind; `known` are all files of the commit, which show its folders."""
    return split_paths(paths, find_test_roots(known, rules), rules)


def split_paths(paths: Iterable[str], roots: frozenset[str], rules: CollectionRules) -> ChangeParts:
    """Split changed paths by kind, given the test folders."""
    paths_by_kind: dict[str, list[str]] = {name: [] for name in ChangeParts.__struct_fields__}
    for path in paths:
        paths_by_kind[_path_kind(path, roots, rules)].append(path)
    return ChangeParts(**{name: tuple(paths) for name, paths in paths_by_kind.items()})


def is_collected_test(path: str, rules: CollectionRules) -> bool:
    """Return whether the runner would collect this file."""
    if path in rules.files:
        return True
    name = PurePosixPath(path).name
    in_places = not rules.places or any(
        fnmatch.fnmatchcase(path, f"{folder}/*") for folder in rules.places
    )
    return in_places and any(
        fnmatch.fnmatchcase(f"/{path}" if "/" in glob else name, glob) for glob in rules.names
    )


def is_written_code(path: str) -> bool:
    """Return whether people write code in this file: not data, settings, or generated code."""
    return re.match(_CODE_FILE, path) is not None and not _GENERATED_PATH.search(path)


def find_test_roots(commit_files: Iterable[str], rules: CollectionRules) -> frozenset[str]:
    """Return test folders: those so named that contain a test, and those configured.

    A runner may be configured to search the package itself: then its folder is none.
    """
    configured_folders = {folder for folder in rules.places if "*" not in folder and folder != "."}
    counts = Counter[tuple[str, bool]]()
    roots = set[str]()
    for path in commit_files:
        parents = PurePosixPath(path).parents
        is_test = is_collected_test(path, rules)
        if is_test:
            roots.update(str(folder) for folder in parents if folder.name in rules.roots)
        if path.endswith(_CODE_ENDINGS):
            counts.update(
                (str(folder), is_test) for folder in parents if str(folder) in configured_folders
            )
    roots |= {
        folder for folder in configured_folders if counts[folder, True] >= counts[folder, False]
    }
    return frozenset(roots)


def _path_kind(path: str, roots: frozenset[str], rules: CollectionRules) -> str:
    name = PurePosixPath(path).name
    if is_collected_test(path, rules):
        return "tests"
    folders = {str(folder) for folder in PurePosixPath(path).parents}
    if folders & roots or any(
        folder.rpartition("/")[2] in _SCRIPT_TEST_ROOTS for folder in folders
    ):
        return "support"
    if any(fnmatch.fnmatchcase(name, glob) for glob in rules.support) or "/testdata/" in f"/{path}":
        return "support"
    if _CHANGELOG_PATH.search(path):
        return "changelog"
    if _DOCUMENT_PATH.search(path) or name in _LOCK_FILES:
        return "rest"
    return "source"


def _script_folders(folder: ManifestFolder, runner: str) -> tuple[str, ...]:
    """Return the folders that the test script names."""
    script = str(nested_table(folder.read_json("package.json"), "scripts").get("test", ""))
    call = next((part for part in script.split("&&") if runner in part), "")
    named_paths = (
        re.sub(r"^\./|/?(?:\*.*)?$", "", word) for word in re.findall(r"[^\s'\"]+", call)
    )
    folders = {str(parent) for name in folder.files for parent in PurePosixPath(name).parents}
    return tuple(dict.fromkeys(name for name in named_paths if name in folders and name != "."))


def _declared_script_tests(folder: ManifestFolder, runner: TestRunner | None) -> Iterator[str]:
    """Yield globs of the files that vitest's `include`, or jest's `testMatch` or `testRegex`,
    name."""
    if runner == "vitest":
        config = folder.read_text(folder.find_first("vitest.config.*", "vite.config.*") or "")
        config = _OTHER_INCLUDES.sub("", config)
        yield from _expand_globs(_read_list(config.partition("test:")[2], "include"))
    elif runner == "jest":
        config = folder.read_text(folder.find_first("jest.config.*") or "")
        table = nested_table(folder.read_json("package.json"), "jest")
        config += json.dumps(table) if table else ""
        yield from _expand_globs(_read_list(config, "testMatch"))
        for root in _read_list(config, "roots") or _REGEX_FOLDERS:
            for pattern in _read_list(config, "testRegex"):
                yield from _globs_for_regex(root.replace("<rootDir>/", "").strip("./"), pattern)


def _read_list(config: str, option: str) -> list[str]:
    """Return the strings given to an option of a script's configuration, one or a list."""
    quoted = r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`"
    option_pattern = rf"\b{option}[\"']?\s*:\s*(\[(?:\s*(?:{quoted})\s*,?)*\s*\]|{quoted})"
    match = re.search(option_pattern, config)
    texts = re.findall(quoted, match[1]) if match else []
    return [text[1:-1].replace("\\\\", "\\") for text in texts]


def _expand_globs(globs: Iterable[str]) -> Iterator[str]:
    """Yield globs for paths starting with `/`; one without a test in its name is left out."""
    for glob in globs:
        if glob.startswith("!") or not re.search(r"test|spec", glob, re.IGNORECASE):
            continue
        path = re.sub(r"^(?:<rootDir>/|\./)+", "", glob)
        optional = re.sub(r"\?\(([^()]*)\)", r"{,\1}", path)
        choices = re.sub(r"[@+]\(([^()]*)\)", r"{\1}", optional)
        for plain in _expand_braces(choices.replace("|", ",")):
            rooted = re.sub(r"^/\*\*/", "*/", f"/{plain}")
            yield re.sub(r"/\*\*/", "/*/", re.sub(r"/\*\*/(?=\*)", "/", rooted))


def _expand_braces(glob: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", glob)
    if match is None or len(glob) > MAX_GLOB_CHARS:
        return [glob]
    head, tail = glob[: match.start()], glob[match.end() :]
    return [
        plain
        for alternative in match[1].split(",")
        for plain in _expand_braces(f"{head}{alternative}{tail}")
    ]


def _globs_for_regex(folder: str, pattern: str) -> Iterator[str]:
    """Yield a glob per ending for which a regular expression accepts any file of the folder."""
    for ending in (*_SCRIPT_SUFFIXES, "jsx", "tsx"):
        try:
            if re.search(pattern, f"/project/{folder}/sample.{ending}"):
                yield f"/{folder}/*.{ending}"
        except re.error:
            return


def _pytest_rules(folder: ManifestFolder) -> CollectionRules:
    """Read `python_files` and `testpaths` from pytest's configuration."""
    names: tuple[str, ...] = ()
    test_paths: tuple[str, ...] = ()
    for options in read_pytest_options(folder):
        names = names or split_option_words(options.get("python_files"))
        test_paths = test_paths or split_option_words(options.get("testpaths"))
    test_paths = tuple(path.strip("/").removeprefix("./") for path in test_paths)
    files = tuple(path for path in test_paths if path.endswith(".py"))
    return CollectionRules(
        names=(
            *(names or ("test_*.py", "*_test.py")),
            *(PurePosixPath(file).name for file in files),
        ),
        places=() if files else tuple(path for path in test_paths if path not in ("", ".")),
        support=("conftest.py",),
    )


def read_pytest_options(folder: ManifestFolder) -> Iterator[dict[str, Any]]:
    """Yield the tables that may contain pytest's options."""
    yield nested_table(folder.pyproject, "tool", "pytest", "ini_options") or nested_table(
        folder.pyproject, "tool", "pytest"
    )
    yield folder.read_section("pytest.ini", "pytest")
    yield folder.read_section(".pytest.ini", "pytest")
    yield folder.read_section("tox.ini", "pytest")
    yield folder.read_section("setup.cfg", "tool:pytest")


def split_option_words(value: object) -> tuple[str, ...]:
    """Return the words of an option, which may be a string or a list."""
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
