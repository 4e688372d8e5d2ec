"""What a request must name: all that its hidden tests use of the work and that the base lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from posixpath import normpath

from closeloop.git import read_git_text
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.tasks.mining import python_names
from closeloop.tasks.mining.change_parts import ChangeParts
from closeloop.tasks.mining.prompt_leaks import (
    find_introduced_names,
    split_patch_lines,
)
from closeloop.tasks.mining.python_names import PythonFiles, PythonMember, PythonUse
from closeloop.tasks.mining.string_literals import remove_strings
from closeloop.tasks.mining.task_prompts import is_label_told
from closeloop.tasks.mining.work_history import PastWork, find_words_at

MAX_FILE_CHARS = 400_000
MAX_WEAK_NAMES = 96
_HUNK_HEADER = re.compile(r"@@ -\d{1,9}(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@")


class RequiredName(Record):
    """A name that the tests use, as the request tells it."""

    label: str
    """With where it belongs: `` `shop.orders.refund` ``, `` `refund` of `src/orders.ts` ``."""
    imported: bool = False
    """The tests cannot even be loaded without it."""

    def is_told(self, prompt: str) -> bool:
        """Whether a request has each of its parts as a word."""
        return is_label_told(self.label, prompt)


class WorkFiles:
    """The files of a piece of work before and after it, read when they are asked for."""

    def __init__(
        self,
        repo: Path,
        work: PastWork,
        parts: ChangeParts,
        base: Sequence[str],
        tip: Sequence[str],
    ) -> None:
        self.repo, self.work, self.parts = repo, work, parts
        self.base_paths, self.tip_paths = frozenset(base), frozenset(tip)
        self._texts: dict[tuple[str, str], str | None] = {}

    def read_base(self, path: str) -> str | None:
        return self._read(self.work.base, path) if path in self.base_paths else None

    def read_tip(self, path: str) -> str | None:
        return self._read(self.work.commit, path) if path in self.tip_paths else None

    def _read(self, commit: str, path: str) -> str | None:
        key = commit, path
        if key not in self._texts:
            try:
                text = read_git_text(self.repo, "cat-file", "blob", f"{commit}:{path}")
            except BadInput:
                text = ""
            self._texts[key] = text if 0 < len(text) <= MAX_FILE_CHARS else None
        return self._texts[key]

    @property
    def test_paths(self) -> tuple[str, ...]:
        """The files that come with the tests and are there after the work."""
        return tuple(
            path for path in (*self.parts.tests, *self.parts.support) if path in self.tip_paths
        )


def find_required_names(files: WorkFiles, source: str, tests: str) -> list[RequiredName]:
    """All that the tests use and the base lacks, what they import first."""
    lines = list_added_lines(tests)
    found = [
        *_find_python_names(files, lines),
        *_find_script_names(files),
        *_find_go_names(files, tests),
        *_find_other_names(files, source, tests),
    ]
    labels: dict[str, RequiredName] = {}
    for name in sorted(found, key=lambda one: not one.imported):
        labels.setdefault(name.label, name)
    return [name for name in labels.values() if not _is_implied(name, labels)]


def find_untold_names(prompt: str, names: Sequence[RequiredName]) -> list[str]:
    """What the tests import that neither the base nor the request has: nobody could load them."""
    return [name.label for name in names if name.imported and not name.is_told(prompt)]


def describe_untold_names(untold: Sequence[str]) -> str:
    """Why nobody could fulfil a request."""
    more = f" and {len(untold) - 3} more" if len(untold) > 3 else ""
    named = ", ".join(untold[:3])
    return f"its tests need {named}{more}, which neither the request nor the base has"


def list_added_lines(patch: str) -> dict[str, frozenset[int]]:
    """The numbers of the lines that a patch adds, by file."""
    added: dict[str, set[int]] = {}
    path, number, inside = "", 0, False
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            inside = False
        elif not inside and line.startswith("+++ "):
            path = line[4:].strip('"').removeprefix("b/")
        elif header := _HUNK_HEADER.match(line):
            number, inside = int(header[1]), True
        elif inside and line[:1] in ("+", " "):
            if line[0] == "+":
                added.setdefault(path, set()).add(number)
            number += 1
    return {name: frozenset(numbers) for name, numbers in added.items()}


def _is_implied(name: RequiredName, labels: dict[str, RequiredName]) -> bool:
    """Whether a longer name tells it already: a module by what is taken from it."""
    bare = name.label.strip("`")
    return any(other != name.label and other.startswith(f"`{bare}.") for other in labels)


# Python: by its syntax.


def _find_python_names(
    files: WorkFiles, lines: dict[str, frozenset[int]]
) -> Iterator[RequiredName]:
    tests = [path for path in files.test_paths if path.endswith(".py")]
    if not tests:
        return
    before = PythonFiles(files.base_paths, files.read_base)
    after = PythonFiles(files.tip_paths, files.read_tip)
    given = frozenset(files.test_paths)
    for test in tests:
        for need in python_names.list_import_needs(test, before, after, given):
            yield RequiredName(label=f"`{need.path}`", imported=need.imported)
    uses = [
        python_names.read_test_use(after.parse_file(path), lines.get(path, frozenset()))
        for path in tests
    ]
    members = {
        path: _list_new_members(path, before, after)
        for path in files.parts.source
        if path in after.paths
    }
    used = frozenset[str]().union(*(use.names for use in uses))
    unbound = {path: used & _list_new_bindings(path, before, after) for path in members}
    weak = {one.name for found in members.values() for one in found}.union(*unbound.values())
    known = find_code_words(files, sorted(weak)[:MAX_WEAK_NAMES])
    for path, found in members.items():
        for name in sorted(unbound[path] - known):
            yield RequiredName(label=f"`{after.module_name(path)}.{name}`")
        for member in sorted(found, key=lambda one: (one.owner, one.name)):
            if any(_uses_member(use, member, known) for use in uses):
                yield _label_member(after.module_name(path), member)


def _list_new_members(path: str, before: PythonFiles, after: PythonFiles) -> set[PythonMember]:
    """What a file defines after the work only, but for what Python itself has names for."""
    new = python_names.list_members(after.parse_file(path))
    old = python_names.list_members(before.parse_file(path)) if path in before.paths else ()
    return {
        one for one in new.difference(old) if not (one.name.startswith("__") and len(one.name) > 4)
    }


def _list_new_bindings(path: str, before: PythonFiles, after: PythonFiles) -> frozenset[str]:
    old = before.list_bindings(path) if path in before.paths else None
    return (after.list_bindings(path) or frozenset()) - (old or frozenset())


def _uses_member(use: PythonUse, member: PythonMember, known: frozenset[str]) -> bool:
    """Whether tests use a member: a keyword by what is called, another where its name is new."""
    owner = member.owner.removesuffix(".__init__").rpartition(".")[2]
    if (owner, member.name) in use.keywords:
        return True
    if member.name in known:
        return False
    return any(word == member.name for _, word in use.keywords) or (
        member.name in use.attributes and not member.is_parameter
    )


def _label_member(module: str, member: PythonMember) -> RequiredName:
    owner = f"{module}.{member.owner.removesuffix('.__init__')}"
    if member.is_parameter:
        return RequiredName(label=f"`{member.name}` of `{owner}`")
    return RequiredName(label=f"`{owner}.{member.name}`")


def find_code_words(files: WorkFiles, words: Sequence[str]) -> frozenset[str]:
    """Those of some words that the base's code has: what documents say is no name yet."""
    return find_words_at(files.repo, files.work.base, words, is_code_path)


def is_code_path(path: str) -> bool:
    """Whether a file is code, by its ending."""
    return PurePosixPath(path).suffix in _CODE_SUFFIXES


# JavaScript and TypeScript: what tests import from files beside them.

_SCRIPT_SUFFIXES = (".js", ".ts", ".mjs", ".cjs", ".mts", ".cts", ".jsx", ".tsx")
_CODE_SUFFIXES = frozenset(
    {*_SCRIPT_SUFFIXES, ".py", ".pyi", ".go", ".rs", ".java", ".kt", ".rb", ".php", ".c", ".h"}
)
_SCRIPT_IMPORT = re.compile(
    r"(?:import|export)\s+(?:type\s+)?(?P<names>[^;'\"`]{0,2000}?)\s*from\s*['\"](?P<path>\.[^'\"\n]*)"
    r"|(?:(?:const|let|var)\s+(?P<bound>[^=;]{1,2000}?)\s*=\s*(?:await\s+)?)?"
    r"(?:require|import)\(\s*['\"](?P<called>\.[^'\"\n]*)['\"]\s*\)(?:\.(?P<member>\w+))?"
)
_BRACED_NAME = re.compile(r"(?:^|[{,])\s*(?:type\s+)?([A-Za-z_$][\w$]*)")
_STAR_EXPORT = re.compile(r"export\s*\*\s*from\s*['\"](\.[^'\"\n]*)")


def _find_script_names(files: WorkFiles) -> Iterator[RequiredName]:
    given = frozenset(files.test_paths)
    for test in files.test_paths:
        if not test.endswith(_SCRIPT_SUFFIXES):
            continue
        for found in _SCRIPT_IMPORT.finditer(files.read_tip(test) or ""):
            target = found["path"] or found["called"]
            path = _resolve_script(test, target, files.tip_paths)
            if path is None or path in given:
                continue
            base_path = _resolve_script(test, target, files.base_paths)
            braced = re.search(r"\{([^}]*)", found["names"] or found["bound"] or "")
            names = _BRACED_NAME.findall(f"{{{braced[1]}") if braced else []
            names += [found["member"]] if found["member"] else []
            missing = [
                name for name in names if base_path is None or _lacks_export(files, path, name)
            ]
            if base_path is None and not missing:
                yield RequiredName(label=f"`{path}`", imported=True)
            for name in missing:
                yield RequiredName(label=f"`{name}` of `{path}`", imported=True)


def _resolve_script(importer: str, target: str, paths: frozenset[str]) -> str | None:
    """The file that a relative import means, with the endings that may be left out."""
    place = normpath(str(PurePosixPath(importer).parent / target)).removeprefix("./")
    stem = re.sub(r"\.[cm]?[jt]sx?$", "", place)
    index = "" if place == "." else f"{place}/"
    possible = (
        place,
        *(f"{place}{ending}" for ending in _SCRIPT_SUFFIXES),
        *(f"{stem}{ending}" for ending in _SCRIPT_SUFFIXES),
        *(f"{index}index{ending}" for ending in _SCRIPT_SUFFIXES),
    )
    return next((path for path in possible if path in paths), None)


def _lacks_export(files: WorkFiles, path: str, name: str) -> bool:
    """Whether a module has a name after the work and its base has not, as far as words tell."""
    before = _read_exports(path, files.base_paths, files.read_base)
    after = _read_exports(path, files.tip_paths, files.read_tip)
    word = re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])")
    return word.search(after) is not None and word.search(before) is None


def _read_exports(
    path: str, paths: frozenset[str], read_text: Callable[[str], str | None], depth: int = 4
) -> str:
    """The text of a module and of those that it passes on whole."""
    text = read_text(path) or ""
    passed_on = (
        _read_exports(found, paths, read_text, depth - 1)
        for target in _STAR_EXPORT.findall(text)
        if depth and (found := _resolve_script(path, target, paths)) is not None
    )
    return "\n".join([text, *passed_on])


# Go: what tests of a package use of its own names.

_GO_DEFINITION = re.compile(
    r"^func(?: \((?:\w+ )?\*?(?P<owner>\w+)(?:\[[^\]]*\])?\))? (?P<function>\w+)"
    r"|^(?:type|var|const) (?P<name>\w+)",
    re.MULTILINE,
)
_GO_BLOCK = re.compile(
    r"^(?:(?:var|const) \(|type (\w+) (?:struct|interface) \{)\n(.*?)^[)}]",
    re.MULTILINE | re.DOTALL,
)


def _find_go_names(files: WorkFiles, tests: str) -> Iterator[RequiredName]:
    if not any(path.endswith("_test.go") for path in files.test_paths):
        return
    used = _list_words(split_patch_lines(tests).added)
    own = {name for path in files.test_paths for _, name in _go_names(files.read_tip(path) or "")}
    for path in files.parts.source:
        if not path.endswith(".go"):
            continue
        text, folder = files.read_tip(path) or "", PurePosixPath(path).parent
        old = {
            name
            for other in files.base_paths
            if other.endswith(".go") and PurePosixPath(other).parent == folder
            for name in _go_names(files.read_base(other) or "")
        }
        package = re.search(r"^package (\w+)", text, re.MULTILINE)
        for owner, name in sorted({*_go_names(text)} - old):
            is_local = owner and name[0].islower() and _declares_go_name(tests, name)
            if name in used and name not in own and package and not is_local:
                label = ".".join(filter(None, (package[1], owner, name)))
                yield RequiredName(label=f"`{label}`", imported=True)


def _declares_go_name(tests: str, name: str) -> bool:
    """Whether tests have a variable, a parameter or a field of a table that is so called."""
    return (
        re.search(rf"\b{name}(?:, \w+)*(?: :?= |\s+[\w\[\]*.]+(?:$|[,)]))", tests, re.M) is not None
    )


def _go_names(text: str) -> Iterator[tuple[str, str]]:
    """Each top-level name of a Go file, behind the type that it belongs to."""
    for found in _GO_DEFINITION.finditer(text):
        yield found["owner"] or "", found["function"] or found["name"]
    for block in _GO_BLOCK.finditer(text):
        for line in block[2].split("\n"):
            if listed := re.match(r"\t(\w+(?:, \w+)*)(?: |\(|$)", line):
                for name in listed[1].split(", "):
                    yield block[1] or "", name


# Other languages, and what scripts use besides: words that work and tests both bring.


def _find_other_names(files: WorkFiles, source: str, tests: str) -> Iterator[RequiredName]:
    # Tests that cannot be parsed, such as those for Python 2, are read by their words too.
    after = PythonFiles(files.tip_paths, files.read_tip)
    parsed = all(after.parse_file(path) for path in files.test_paths if path.endswith(".py"))
    endings = (".py", ".go") if parsed else (".go",)
    source, tests = (_drop_files(patch, endings) for patch in (source, tests))
    new = sorted(find_introduced_names(source, tests))[:MAX_WEAK_NAMES]
    known = find_code_words(files, new)
    for name in new:
        if name not in known:
            path = _find_bringing_file(source, name)
            yield RequiredName(label=f"`{name}` of `{path}`" if path else f"`{name}`")


def _find_bringing_file(patch: str, name: str) -> str | None:
    """The first file of code that a patch brings a name to; declarations of types come last."""
    found = []
    for piece in re.split(r"(?m)^(?=diff --git )", patch):
        header = re.search(r"^\+\+\+ b/(\S+)$", piece, re.MULTILINE)
        added = "\n".join(split_patch_lines(piece).added) if header else ""
        if header and is_code_path(header[1]) and re.search(rf"\b{re.escape(name)}\b", added):
            found.append(header[1])
    return min(found, key=lambda path: path.endswith(".d.ts"), default=None)


def _drop_files(patch: str, endings: tuple[str, ...]) -> str:
    """A patch without the files of some kinds."""
    pieces = re.split(r"(?m)^(?=diff --git )", patch)
    return "".join(
        piece for piece in pieces if not piece.partition("\n")[0].strip('"').endswith(endings)
    )


def _list_words(lines: Sequence[str]) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", remove_strings("\n".join(lines))))
