"""What a request speaks of, and what a changed file is about: by their words alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from closeloop.changes.quality.changed_file import split_git_lines
from closeloop.records.change import FileChange
from closeloop.records.inspection import ChangeSide, Inspection, SourceFunction, SourceType
from closeloop.records.record import Record

MAX_CHANGED_LINES = 2_000
"""So many changed lines of a file are read."""
_IDENTIFIER = re.compile(r"[^\W\d]\w{2,}")
_WORD_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PATH = re.compile(r"[\w.@-]+(?:/[\w.@-]+)+|[\w-]+\.[A-Za-z]{1,5}\b")
_SYMBOL = re.compile(
    r"`+([A-Za-z_][\w.]*)(?:\([^`]*\))?`+"
    r"|\b([A-Za-z_][\w.]*)\(|(\w+(?:_\w+)+|[A-Z][a-z]+[A-Z]\w*|[a-z]+[A-Z]\w*)"
)
_TRAILER = re.compile(r"^(?:[A-Z][\w-]+-by|Change-Id|Refs?|Signed-off)\b.*$", re.MULTILINE)
_ENDING = re.compile(r"(?:ations?|ings?|ions?|ies|ed|es|er|ly|s|e|y)$")
_EVERY_FILE = re.compile(
    r"\b(?:ruff|flake8|pylint|mypy|pyright|ty|black|isort|eslint|prettier|gofmt|clippy|pyupgrade"
    r"|lint\w*|typo\w*|spelling|typing|type[ -]hints?|annotat\w+|docstrings?|reformat\w*|formatt\w+"
    r"|copyright|licen[cs]e headers?|f-?strings?|moderni[sz]\w+|release|prepare|bump|version"
    r"|drop\w* (?:support|python)|python ?[23](?:\.\d+)?|merge|revert|clean ?up|cleanup|everywhere"
    r"|codebase|all files)\b",
    re.IGNORECASE,
)
"""What is asked of a whole repository, whichever files that takes."""
_COMMON_WORD_LIST = (
    "about above add added adding after again all allow also and any are arg args argument avoid "
    "back bad base because been before behaviour behavior being better both bug but call called "
    "calls can case cases change changed changes check class close closes code command config "
    "correct could current data default def did does doc docs document documentation dont each "
    "else ensure error errors even every example except exception false feat feature few file "
    "files first fix fixed fixes fixing for from func function functions get give handle handling "
    "has have help here how implement import important improve improved improvement include "
    "instead int into issue its just keep key kind last less let like line lines list main make "
    "makes method methods minor missing mode module more most move moved multiple must name names "
    "need needed new none nor not note now number object off old one only option options other "
    "our out over own package param parameter parameters parse pass path paths point possible "
    "prevent process properly provide pull python raise raised raises read refactor remove "
    "removed removes removing rename replace request result return returned returns right run "
    "running same see self set sets should show simple simplify since some still str string "
    "support supports sure take test tested testing tests than that the their them then there "
    "these they this those through time too tools true try two type types under unused update "
    "updated updates upgrade use used user uses using util utils value values variable version "
    "very via want was way well were what when where whether which while who why will with "
    "without work working works would write wrong you your https http com org github www refs "
    "core src lib api init index common helper helpers"
)
_COMMON_WORDS = frozenset(_COMMON_WORD_LIST.split())


class RequestWords(Record):
    """What a request names, and what it speaks of."""

    paths: frozenset[str] = frozenset()
    """What looks like a path or the name of a file."""
    symbols: frozenset[str] = frozenset()
    """What is written as code: in quotes, with a bracket, with an underscore or in CamelCase."""
    spoken: frozenset[str] = frozenset()
    """All words that it has."""
    is_general: bool = False
    """Whether it asks for something that concerns every file."""


class FileWords(Record):
    """What the change of one file is about."""

    path: str
    identifiers: frozenset[str] = frozenset()
    """Names on the changed lines, and those of the functions and classes around them."""
    words: frozenset[str] = frozenset()
    """Their parts, and those of the file's own name, without their endings."""
    stem_words: frozenset[str] = frozenset()
    """Parts of the file's own name."""


def read_request(text: str) -> RequestWords:
    """What a request names; what its trailers say is nobody's wish."""
    text = _TRAILER.sub("", text)
    title = next((line for line in text.split("\n") if line.strip()), "")
    symbols = {
        name.rsplit(".", 1)[-1]
        for found in _SYMBOL.findall(text)
        for name in found
        if len(name.rsplit(".", 1)[-1]) > 2
    }
    return RequestWords(
        paths=frozenset(_PATH.findall(text)),
        symbols=frozenset(symbols),
        spoken=frozenset(_IDENTIFIER.findall(text)),
        is_general=_EVERY_FILE.search(title) is not None,
    )


def split_words(identifiers: Iterable[str]) -> frozenset[str]:
    """The words that names consist of, those that say nothing left out."""
    parts = {part.lower() for name in identifiers for part in _WORD_PART.findall(name)}
    return frozenset(
        _ENDING.sub("", part) if len(part) > 5 else part.removesuffix("s")
        for part in parts
        if len(part) > 2
        and part not in _COMMON_WORDS
        and part.removesuffix("s") not in _COMMON_WORDS
    )


def read_file_words(inspection: Inspection, file: FileChange) -> FileWords:
    """The words of a file's changed lines, of what stands around them, and of its name."""
    identifiers: set[str] = set()
    sides: tuple[tuple[ChangeSide, str, Mapping[str, frozenset[int]]], ...] = (
        ("before", file.old_path or file.path, inspection.removed),
        ("after", file.path, inspection.added),
    )
    for side, path, changed in sides:
        numbers = sorted(changed.get(path, ()))[:MAX_CHANGED_LINES]
        lines = split_git_lines(inspection.sides.read(side, path)) if numbers else ()
        for number in numbers:
            if number <= len(lines):
                identifiers.update(_IDENTIFIER.findall(lines[number - 1][:2000]))
        module = inspection.modules.get((side, path))
        touched = set(numbers)
        definitions: list[SourceFunction | SourceType] = []
        if module:
            definitions += [*module.functions, *module.types]
        for one in definitions:
            if not touched.isdisjoint(range(one.first_line, one.last_line + 1)):
                identifiers.update(one.qualified.split("."))
    stem_words = split_words([PurePosixPath(file.path).stem])
    return FileWords(
        path=file.path,
        identifiers=frozenset(identifiers),
        words=split_words(identifiers) | stem_words,
        stem_words=stem_words,
    )
