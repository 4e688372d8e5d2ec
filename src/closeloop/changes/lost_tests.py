"""Tests that passed before a change and did not run after it: which of them the change removed.

A renamed file's tests are known under their new path, by git's rename information. A test counts
as removed when its file is gone, or when the file was changed and names it no more. A test that
its file still names, or whose file was not touched, was kept from running.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from closeloop.changes.change_sides import ChangeSides
from closeloop.records.change import FileChange
from closeloop.records.record import Record

RAN_STATUSES = ("passed", "failed", "error")
SKIPPED, NOT_RUN = "was skipped", "did not run"
MIN_NAME_CHARS = 3
MAX_LOST = 2_000
"""More than these are not examined one by one."""
_TEST_CASE = re.compile(r"\[.*\]$| \(line \d+\)$", re.DOTALL)
"""What tells the cases of one test apart; a documentation test moves with the lines above it."""
_ID_SEPARATOR = re.compile(r"::| > |\.|/")
_PREFIX_END = re.compile(r"::| > |\.(?=\w+(?:\.|$))")


class LostTests(Record):
    """Tests that passed before and do not run now."""

    kept_from_running: Mapping[str, str] = {}
    """What became of each."""
    removed: tuple[str, ...] = ()


def rename_tests(sides: ChangeSides, before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """New ids by old ones, of tests whose files the change renamed and that run after it."""
    known, new_paths = set(after), _new_paths(sides.change.files)
    renamed = {}
    for name in before if new_paths else ():
        for prefix in _id_prefixes(name) if name not in known else ():
            ids = [path + name[len(prefix) :] for path in new_paths.get(prefix, ())]
            if ids and ids[0] in known:
                renamed[name] = ids[0]
    return renamed


def find_lost_tests(
    sides: ChangeSides, before: Mapping[str, str], after: Mapping[str, str]
) -> LostTests:
    """Of the tests by their status before and after, those that passed and no longer run."""
    running = {name for name, status in after.items() if status in RAN_STATUSES}
    bare_names = {_TEST_CASE.sub("", name) for name in running}
    new_names = {_own_name(name) for name in running - before.keys()}
    changed = _ChangedFiles(sides)
    not_running: dict[str, str] = {}
    removed: list[str] = []
    for name, status in before.items():
        if status != "passed" or name in running:
            continue
        moved = _own_name(name) in new_names
        if name in after:
            not_running[name] = SKIPPED
        elif len(not_running) >= MAX_LOST:
            not_running[name] = NOT_RUN
        elif _has_other_cases(name, bare_names) or changed.removes_test(name, moved):
            removed += [] if moved else [name]
        else:
            not_running[name] = NOT_RUN
    return LostTests(kept_from_running=not_running, removed=tuple(removed))


def _has_other_cases(name: str, bare_names: set[str]) -> bool:
    """Whether a test still runs, with other parameters or without one of its subtests."""
    bare = _TEST_CASE.sub("", name)
    return (bare != name and bare in bare_names) or bare.rpartition("/")[0] in bare_names


class _ChangedFiles:
    """The files that a change touches and their texts, before it and after it."""

    def __init__(self, sides: ChangeSides) -> None:
        self._sides, self._tree = sides, sides.tree("before")
        files = (file for file in sides.change.files if file.status != "added")
        self._files = {file.old_path or file.path: file for file in files}
        self._texts: dict[str, tuple[str, str]] = {}

    def removes_test(self, name: str, moved: bool) -> bool:
        """Whether the change takes away a test's file, or its name from the file.

        Of one that runs elsewhere by the same name, the name of a class around it is enough.
        """
        paths, rest = self._locate_file(name)
        if any(self._files[path].status == "deleted" for path in paths or ()):
            return True
        texts = [self._read_texts(path) for path in (self._files if paths is None else paths)]
        named = False
        for part in _name_texts(rest):
            after = [new for old, new in texts if _mentions_name(old, part)]
            if after and not any(_mentions_name(new, part) for new in after):
                return True
            if after and not moved:
                return False
            named = named or bool(after)
        # An id that is put together when the tests run stands in no file.
        return bool(paths) and not named

    def _locate_file(self, name: str) -> tuple[Sequence[str] | None, str]:
        """The changed file that a test belongs to, if it is one, and the id without it.

        None where the id does not tell its file.
        """
        for prefix in _id_prefixes(name):
            rest = name[len(prefix) :]
            for path in (prefix, f"{prefix.replace('.', '/')}.py"):
                if path in self._tree:
                    return [path] if path in self._files else [], rest
            # The tests may be run in a folder below the root.
            below = [path for path in self._files if path.endswith(f"/{prefix}")]
            if below and "." in prefix:
                return below, rest
        return None, name

    def _read_texts(self, path: str) -> tuple[str, str]:
        if path not in self._texts:
            before = self._sides.read("before", path) or b""
            after = self._sides.read("after", self._files[path].path) or b""
            self._texts[path] = before.decode(errors="replace"), after.decode(errors="replace")
        return self._texts[path]


def _new_paths(files: Iterable[FileChange]) -> dict[str, list[str]]:
    """How ids begin after renames, by how they began: also from a folder below the root."""
    prefixes: dict[str, list[str]] = {}
    for file in files:
        if file.status != "renamed" or file.old_path is None:
            continue
        old, new = file.old_path.split("/"), file.path.split("/")
        shared = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
        for start in range(shared + 1):
            pair = "/".join(old[start:]), "/".join(new[start:])
            for before, after in (pair, (_module_path(pair[0]), _module_path(pair[1]))):
                prefixes.setdefault(before, []).append(after)
    return prefixes


def _module_path(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _id_prefixes(name: str) -> Iterator[str]:
    """The beginnings of a test id that may name its file."""
    bare = _TEST_CASE.sub("", name)
    yield from (bare[: end.start()] for end in _PREFIX_END.finditer(bare))


def _own_name(name: str) -> str:
    return _ID_SEPARATOR.split(_TEST_CASE.sub("", name))[-1]


def _name_texts(name: str) -> Iterator[str]:
    """What a file may write of a test's id: its last part first, then with its first words cut."""
    for part in reversed(_ID_SEPARATOR.split(_TEST_CASE.sub("", name))):
        words = part.split(" ")
        texts = (" ".join(words[start:]) for start in range(len(words)))
        yield from (text for text in texts if len(text) >= MIN_NAME_CHARS)


def _mentions_name(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
