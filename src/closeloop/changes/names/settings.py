"""Keys and options of other tools' settings, where the repository wrote them otherwise before.

Nobody knows what every tool takes. But a key that stands nowhere, one slip from one that stood in
the same table, was meant to be that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import PurePosixPath

from closeloop.changes.kinds import kind_of
from closeloop.changes.names.near import is_other_word, slips
from closeloop.changes.names.suspects import Suspect, Use
from closeloop.changes.syntax import words
from closeloop.model.inspection import Inspection

MOST_FILES = 200
LONGEST_LINE = 2000
_TABLES = re.compile(r"(.*/)?[^/]*\.(toml|cfg|ini)")
_SCRIPTS = re.compile(r"(.*/)?((GNU)?[Mm]akefile|[^/]*\.(sh|bash|mk|ya?ml|toml|cfg|ini))")
_TABLE = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_KEY = re.compile(r"\s*[\"']?([A-Za-z][\w-]{3,80})[\"']?\s*[=:]")
_OPTION = re.compile(r"(?<![\w-])--([a-zA-Z][\w-]{3,80})")
_WORD = re.compile(r"(?<![\w-])[\w.]+(?:-[\w.]+)*")
_PART = re.compile(rb"[A-Za-z][\w-]*")


def unknown_settings(inspection: Inspection) -> Iterator[Suspect]:
    """On added lines."""
    past = _Past(inspection)
    for file in inspection.files:
        added = inspection.added.get(file.path, frozenset())
        if not added or not _SCRIPTS.fullmatch(file.path):
            continue
        for number, table, line in _lines(inspection.sides.read("after", file.path) or b""):
            if number not in added:
                continue
            if _TABLES.fullmatch(file.path) and (key := _KEY.match(line)):
                keys = past.keys.get((PurePosixPath(file.path).name, table), {})
                yield from past.slipped(file.path, number, key[1], keys)
            for option in _OPTION.findall(line):
                beside = frozenset(_WORD.findall(line))
                yield from past.slipped(file.path, number, option, past.options, beside)


def _lines(content: bytes) -> Iterator[tuple[int, str, str]]:
    """Each line with its number and the table that it is in."""
    table = ""
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        if heading := _TABLE.match(line[:LONGEST_LINE]):
            table = heading[1]
        yield number, table, line[:LONGEST_LINE]


class _Past:
    """What settings said before the change."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection

    def slipped(
        self,
        path: str,
        line: int,
        name: str,
        known: Mapping[str, frozenset[str]],
        beside: frozenset[str] = frozenset(),
    ) -> Iterator[Suspect]:
        """Options count only where something else of the line, the command, is the same."""
        if name.encode() in self.words or self.inspection.index.known(name.replace("-", "_")):
            return
        for near in slips(name, known.__contains__):
            if not is_other_word(name, near) and (not known[near] or known[near] & beside):
                use = Use(path=path, line=line, language="python", text=name, kind="option")
                yield Suspect(use=use, near=near)
                return

    @cached_property
    def texts(self) -> Mapping[str, bytes]:
        sides = self.inspection.sides
        wanted = (
            path
            for path in sides.tree("before")
            if _SCRIPTS.fullmatch(path) and kind_of(path) in ("config", "ci", "manifest", "source")
        )
        return {
            path: sides.read("before", path) or b""
            for path, _ in zip(wanted, range(MOST_FILES), strict=False)
        }

    @cached_property
    def words(self) -> frozenset[bytes]:
        found: set[bytes] = set()
        for text in self.texts.values():
            found.update(_PART.findall(text), words(text))
        return frozenset(found)

    @cached_property
    def keys(self) -> Mapping[tuple[str, str], Mapping[str, frozenset[str]]]:
        """By file name and table."""
        found: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
        for path, text in self.texts.items():
            if _TABLES.fullmatch(path):
                for _, table, line in _lines(text):
                    if key := _KEY.match(line):
                        place = PurePosixPath(path).name, table
                        found.setdefault(place, {})[key[1]] = frozenset()
        return found

    @cached_property
    def options(self) -> Mapping[str, frozenset[str]]:
        """Each with the other words of its lines."""
        found: dict[str, frozenset[str]] = {}
        for text in self.texts.values():
            for _, _, line in _lines(text):
                for option in _OPTION.findall(line):
                    others = frozenset(_WORD.findall(line)) - {option}
                    found[option] = found.get(option, frozenset()) | others
        return found
