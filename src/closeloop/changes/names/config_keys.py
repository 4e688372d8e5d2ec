"""Keys and options of other tools' settings, where the repository wrote them otherwise before.

Nobody knows what every tool takes. But a key that stands nowhere, one slip from one that stood in
the same table, was meant to be that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import PurePosixPath

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.names.near_names import find_slips, is_other_word
from closeloop.changes.names.suspect_names import NameUse, Suspect
from closeloop.changes.syntax import extract_words
from closeloop.records.inspection import Inspection

MAX_FILES = 200
MAX_LINE_CHARS = 2000
_TABLE_FILES = re.compile(r"(.*/)?[^/]*\.(toml|cfg|ini)")
_SCRIPT_FILES = re.compile(r"(.*/)?((GNU)?[Mm]akefile|[^/]*\.(sh|bash|mk|ya?ml|toml|cfg|ini))")
_TABLE = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_KEY = re.compile(r"\s*[\"']?([A-Za-z][\w-]{3,80})[\"']?\s*[=:]")
_OPTION = re.compile(r"(?<![\w-])--([a-zA-Z][\w-]{3,80})")
_WORD = re.compile(r"(?<![\w-])[\w.]+(?:-[\w.]+)*")
_WORD_PART = re.compile(rb"[A-Za-z][\w-]*")


def find_unknown_settings(inspection: Inspection) -> Iterator[Suspect]:
    """On added lines."""
    past = _OldSettings(inspection)
    for file in inspection.files:
        added = inspection.added.get(file.path, frozenset())
        if not added or not _SCRIPT_FILES.fullmatch(file.path):
            continue
        for number, table, line in _table_lines(inspection.sides.read("after", file.path) or b""):
            if number not in added:
                continue
            if _TABLE_FILES.fullmatch(file.path) and (key := _KEY.match(line)):
                keys = past.keys_by_table.get((PurePosixPath(file.path).name, table), {})
                yield from past.find_misspelling(file.path, number, key[1], keys)
            for option in _OPTION.findall(line):
                beside = frozenset(_WORD.findall(line))
                yield from past.find_misspelling(
                    file.path, number, option, past.option_contexts, beside
                )


def _table_lines(content: bytes) -> Iterator[tuple[int, str, str]]:
    """Each line with its number and the table that it is in."""
    table = ""
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        if heading := _TABLE.match(line[:MAX_LINE_CHARS]):
            table = heading[1]
        yield number, table, line[:MAX_LINE_CHARS]


class _OldSettings:
    """What settings said before the change."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection

    def find_misspelling(
        self,
        path: str,
        line: int,
        name: str,
        known: Mapping[str, frozenset[str]],
        beside: frozenset[str] = frozenset(),
    ) -> Iterator[Suspect]:
        """Options count only where something else of the line, the command, is the same."""
        if name.encode() in self.words_before or self.inspection.index.known(
            name.replace("-", "_")
        ):
            return
        for near in find_slips(name, known.__contains__):
            if not is_other_word(name, near) and (not known[near] or known[near] & beside):
                use = NameUse(path=path, line=line, language="python", text=name, kind="option")
                yield Suspect(use=use, near=near)
                return

    @cached_property
    def texts_before(self) -> Mapping[str, bytes]:
        sides = self.inspection.sides
        wanted = (
            path
            for path in sides.tree("before")
            if _SCRIPT_FILES.fullmatch(path)
            and classify_file(path) in ("config", "ci", "manifest", "source")
        )
        return {
            path: sides.read("before", path) or b""
            for path, _ in zip(wanted, range(MAX_FILES), strict=False)
        }

    @cached_property
    def words_before(self) -> frozenset[bytes]:
        known_words: set[bytes] = set()
        for text in self.texts_before.values():
            known_words.update(_WORD_PART.findall(text), extract_words(text))
        return frozenset(known_words)

    @cached_property
    def keys_by_table(self) -> Mapping[tuple[str, str], Mapping[str, frozenset[str]]]:
        """By file name and table."""
        keys: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
        for path, text in self.texts_before.items():
            if _TABLE_FILES.fullmatch(path):
                for _, table, line in _table_lines(text):
                    if key := _KEY.match(line):
                        place = PurePosixPath(path).name, table
                        keys.setdefault(place, {})[key[1]] = frozenset()
        return keys

    @cached_property
    def option_contexts(self) -> Mapping[str, frozenset[str]]:
        """Each with the other words of its lines."""
        contexts: dict[str, frozenset[str]] = {}
        for text in self.texts_before.values():
            for _, _, line in _table_lines(text):
                for option in _OPTION.findall(line):
                    others = frozenset(_WORD.findall(line)) - {option}
                    contexts[option] = contexts.get(option, frozenset()) | others
        return contexts
