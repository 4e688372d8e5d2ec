"""Tell the files of a change apart: tests as the runner collects them, source, and the rest."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from closeloop.model.record import Record
from closeloop.model.task import Runner
from closeloop.tasks.projects.folder import Folder, table

_NO_PROGRAM = r"(?!.*\.(?:pyi?|[cm]?[jt]sx?|vue|go|rs|java|kt|scala|rb|php|cs|swift|[ch](?:pp)?)$)"
_DOCUMENTS = re.compile(
    r"(?:^|/)(?:docs?|\.github|\.changeset|\.circleci)/"
    r"|\.(?:md|rst|adoc|markdown)$"
    r"|(?:^|/)(?:CHANGE\w*|HISTORY|NEWS|AUTHORS|CONTRIBUTORS|README|LICENSE)(?:\.\w+)?$"
    r"|(?:^|/)\.(?:gitignore|gitattributes|pre-commit-config\.yaml|travis\.yml|mailmap)$"
)
_CHANGELOG = re.compile(
    rf"^{_NO_PROGRAM}(?:.*/)?(?:(?:changelog\.d|changes|news|newsfragments|releasenotes/notes)/[^/]+"
    r"|(?:CHANGE\w*|(?:version[-_]?)?HISTORY|NEWS|whats[-_]?new|release[-_]?notes)(?:\.\w+)?)$",
    re.IGNORECASE,
)
_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "package-lock.json", "yarn.lock", "pnpm-lock.yaml")
_ROOTS = frozenset({"test", "tests"})
_SCRIPT_ROOTS = frozenset({"__tests__", "__snapshots__", "__fixtures__", "__mocks__"})
_SCRIPT = (
    *("*.test.js", "*.test.jsx", "*.test.ts", "*.test.tsx", "*.test.mjs", "*.test.cjs"),
    *("*.test.mts", "*.test.cts", "*.spec.js", "*.spec.jsx", "*.spec.ts", "*.spec.tsx"),
    *("*.spec.mjs", "*.spec.cjs", "*.spec.mts"),
)
_ENDINGS = ("js", "mjs", "cjs", "ts", "mts", "cts")
_NODE = tuple(
    f"{stem}.{ending}"
    for stem in ("*.test", "*-test", "*_test", "test-*", "test", "*/test/*")
    for ending in _ENDINGS
)
"""Where Node is not told of any."""


class Collects(Record):
    """Which files a runner takes for tests."""

    names: tuple[str, ...] = ()
    """Globs over the file's name; those with a `/`, over its path from the root's `/` on."""
    places: tuple[str, ...] = ()
    """Folders it looks in; none given is everywhere."""
    roots: frozenset[str] = _ROOTS
    """Names of folders that belong to the tests, once there is a test in them."""
    support: tuple[str, ...] = ()
    """Globs over names of files that belong to the tests wherever they are."""


class Parts(Record):
    """The files of a change, by what they are for."""

    tests: tuple[str, ...] = ()
    """Files that the runner collects."""
    support: tuple[str, ...] = ()
    """What goes with them: fixtures, data, configuration of tests."""
    source: tuple[str, ...] = ()
    changelog: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    """Documents and locks: no part of a task."""


def collects(folder: Folder, runner: Runner | None) -> Collects:
    """What a runner collects in a project, by its own configuration."""
    match runner:
        case "pytest":
            return _pytest(folder)
        case "unittest":
            return Collects(names=("test*.py",))
        case "go":
            return Collects(names=("*_test.go",), roots=frozenset({"testdata"}))
        case "cargo":
            return Collects(names=("*.rs",), places=("tests", "*/tests", "*/*/tests"))
        case "mocha":
            names = tuple(f"*.{ending}" for ending in (*_ENDINGS, "jsx", "tsx"))
            return Collects(names=names, places=_places(folder, "mocha") or ("test",))
        case "node":
            places = _places(folder, "--test")
            names = tuple(f"*.{ending}" for ending in _ENDINGS) if places else _NODE
            return Collects(names=names, places=places, roots=_ROOTS | _SCRIPT_ROOTS)
        case "junit":
            places = ("src/test", "*/src/test", "*/*/src/test")
            return Collects(names=("*.java", "*.kt", "*.groovy", "*.scala"), places=places)
        case _:
            names = _SCRIPT if runner else (*_SCRIPT, "test_*.py", "*_test.py", "*_test.go")
            support = ("*.snap", *(() if runner else ("conftest.py",)))
            return Collects(names=names, roots=_ROOTS | _SCRIPT_ROOTS, support=support)


def split(paths: Iterable[str], known: Iterable[str], rules: Collects) -> Parts:
    """The changed paths by kind; `known` are all files of the commit, which show its folders."""
    return parted(paths, test_roots(known, rules), rules)


def parted(paths: Iterable[str], roots: frozenset[str], rules: Collects) -> Parts:
    """The same, where it is known which folders are those of tests."""
    kinds: dict[str, list[str]] = {name: [] for name in Parts.__struct_fields__}
    for path in paths:
        kinds[_kind(path, roots, rules)].append(path)
    return Parts(**{name: tuple(found) for name, found in kinds.items()})


def is_test(path: str, rules: Collects) -> bool:
    """Whether the runner would collect this file."""
    name = PurePosixPath(path).name
    within = not rules.places or any(
        fnmatch.fnmatchcase(path, f"{place}/*") for place in rules.places
    )
    return within and any(
        fnmatch.fnmatchcase(f"/{path}" if "/" in glob else name, glob) for glob in rules.names
    )


def test_roots(known: Iterable[str], rules: Collects) -> frozenset[str]:
    """Folders of tests: those the runner is told of, and those so named that hold a test."""
    found = {place for place in rules.places if "*" not in place and place != "."}
    for path in known:
        if is_test(path, rules):
            above = PurePosixPath(path).parents
            found.update(str(folder) for folder in above if folder.name in rules.roots)
    return frozenset(found)


def _kind(path: str, roots: frozenset[str], rules: Collects) -> str:
    name = PurePosixPath(path).name
    if is_test(path, rules):
        return "tests"
    folders = {str(folder) for folder in PurePosixPath(path).parents}
    if folders & roots or any(folder.rpartition("/")[2] in _SCRIPT_ROOTS for folder in folders):
        return "support"
    if any(fnmatch.fnmatchcase(name, glob) for glob in rules.support) or "/testdata/" in f"/{path}":
        return "support"
    if _CHANGELOG.search(path):
        return "changelog"
    if _DOCUMENTS.search(path) or name in _LOCKS:
        return "rest"
    return "source"


def _places(folder: Folder, runner: str) -> tuple[str, ...]:
    """The folders that its script names."""
    script = str(table(folder.json("package.json"), "scripts").get("test", ""))
    call = next((part for part in script.split("&&") if runner in part), "")
    named = (re.sub(r"^\./|/?(?:\*.*)?$", "", word) for word in re.findall(r"[^\s'\"]+", call))
    above = {str(place) for name in folder.files for place in PurePosixPath(name).parents}
    return tuple(dict.fromkeys(name for name in named if name in above and name != "."))


def _pytest(folder: Folder) -> Collects:
    """`python_files` and `testpaths`, from wherever pytest reads them."""
    written = table(folder.pyproject, "tool", "pytest", "ini_options") or table(
        folder.pyproject, "tool", "pytest"
    )
    names, places = _words(written.get("python_files")), _words(written.get("testpaths"))
    for file, section in (
        ("pytest.ini", "pytest"),
        ("tox.ini", "pytest"),
        ("setup.cfg", "tool:pytest"),
    ):
        options = folder.options(file, section)
        names = names or _words(options.get("python_files"))
        places = places or _words(options.get("testpaths"))
    places = tuple(place.strip("/").removeprefix("./") for place in places)
    files = tuple(place for place in places if place.endswith(".py"))
    return Collects(
        names=(*(names or ("test_*.py", "*_test.py")), *(PurePosixPath(one).name for one in files)),
        places=() if files else tuple(place for place in places if place not in ("", ".")),
        support=("conftest.py",),
    )


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
