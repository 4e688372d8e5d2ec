"""out-of-scope-change, wide-change: files that nobody asked for, and more than a limit allows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.request_words import (
    FileWords,
    RequestWords,
    read_file_words,
    read_request,
    split_words,
)
from closeloop.records.change import (
    FileChange,
)
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.inspection import (
    Inspection,
)
from closeloop.text.wording import count_with_noun, matches_globs, package_folder

rules = (
    Rule(
        name="out-of-scope-change",
        version=2,
        about="A file is changed that lies outside what was asked for, and nobody says why.",
        severity="error",
        mode="scope creep",
        gates=True,
    ),
    Rule(
        name="wide-change",
        version=1,
        about="The change touches more files or modules than `check` in closeloop.toml allows.",
        severity="error",
        mode="scope creep",
        gates=True,
    ),
)

MAX_REQUEST_CHARS = 20_000
MAX_DEFINING_FILES = 5
"""What more files define is nobody's name."""
MIN_LINKING_FILES, MAX_FILES_SHARE = 3, 0.05
"""A name that more files have than these, and a greater share of all files, links nothing."""
MAX_WORD_SHARE = 0.4
"""A word that more of the files have tells none of them."""
MIN_SHARED_WORDS = 2
"""So many words of the request on a file's changed lines say that it is meant."""
MANY_WORDS = 20
"""Of each so many words that a request has, a related file has one more."""
MIN_MISREAD_FILES = 3
"""So many files, and more than are related: then the request was not understood."""
_NOTES_FOLDER = re.compile(
    r"(?:^|/)(?:change(?:s|log)?(?:\.d|_notes)?|news(?:fragments?)?|releasenotes|\.changeset)/",
    re.I,
)
_JUDGED_KINDS = ("source", "ci", "schema", "migration", "manifest")
"""Kinds of files that somebody must have asked for; the others follow from any change."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """What is wider than the limits, and what lies outside the scope."""
    return [*_find_wide_change(inspection), *_find_outside_files(inspection)]


def _find_wide_change(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each limit that the files which people write go beyond."""
    paths = [file.path for file in inspection.files]
    settings, rule = inspection.settings, rules[1]
    touched = {"file": len(paths), "module": len({package_folder(path) for path in paths})}
    limits = {"file": settings.max_files, "module": settings.max_modules} if settings else {}
    for noun, most in limits.items():
        if most is not None and touched[noun] > most:
            yield Finding(
                rule=rule.name,
                version=rule.version,
                severity=rule.severity,
                mode=rule.mode,
                message=f"The change touches {count_with_noun(touched[noun], noun)}, and at most"
                f" {most} may be touched: split it, or raise the limit.",
                places=(f"{paths[0]}:1",),
                source="check",
            )


def _find_outside_files(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Outside the task's declared scope for certain; else outside what the request points at."""
    task = inspection.task
    if task is not None and task.scope:
        outside = [
            file for file in inspection.change.files if not matches_globs(file.path, task.scope)
        ]
        return [_scope_finding(file, inspection, declared=task.scope) for file in outside]
    if not inspection.request:
        return []  # nobody said what was asked for, so nothing is outside of it
    request = read_request(inspection.request[:MAX_REQUEST_CHARS])
    outside_files = _find_unrelated_files(inspection, request)
    if isinstance(outside_files, str):
        return [Unmeasured(rule=rules[0].name, reason=outside_files)]
    return [_scope_finding(file, inspection, declared=()) for file in outside_files]


def _find_unrelated_files(inspection: Inspection, request: RequestWords) -> list[FileChange] | str:
    """Changed files that nothing links to what the request names; or why that cannot be told."""
    if request.is_general:
        return "the request is about any file"
    files = {file.path: file for file in inspection.files}
    about = {path: read_file_words(inspection, file) for path, file in files.items()}
    named, telling = _files_named(inspection, request), _telling_words(inspection, request)
    related = {
        path
        for path, words in about.items()
        if path in named or _is_meant(words, request.symbols, telling)
    }
    if not related:
        return "the request names nothing that the change is about"
    open_paths = {path for path in files if path not in related}
    # A long request has many words, and one of them stands anywhere by chance.
    least = 1 + len(telling) // MANY_WORDS
    related |= {path for path in open_paths if len(telling & about[path].words) >= least}
    related |= _follow_shared_names(inspection, about, related)
    judged = {path: file for path, file in files.items() if not _accompanies_change(path)}
    if related.isdisjoint(judged):
        return "the request names nothing that the change is about"
    outside = [file for path, file in judged.items() if path not in related]
    if len(outside) >= MIN_MISREAD_FILES and len(outside) > len(related):
        return "the request names too little of what the change is about"
    return outside


def _files_named(inspection: Inspection, request: RequestWords) -> set[str]:
    """Files that the request names, and those that define what it names."""
    named = {
        path
        for path in inspection.sides.tree("after")
        if path in request.paths
        or any(path.endswith("/" + word) for word in request.paths if word.endswith(path[-4:]))
    }
    for symbol in request.symbols:
        places = {path for path, _ in inspection.index.defined(symbol)}
        if len(places) <= MAX_DEFINING_FILES:
            named |= places
    return named


def _telling_words(inspection: Inspection, request: RequestWords) -> frozenset[str]:
    """The words of the request that tell files apart: nearly all files have the others."""
    counts = inspection.index.count_files({*request.spoken, *map(str.lower, request.spoken)})
    most = max(MAX_DEFINING_FILES, MAX_WORD_SHARE * len(inspection.index.paths()))
    return split_words(
        word
        for word in request.spoken
        if max(counts.get(word, 0), counts.get(word.lower(), 0)) <= most
    )


def _is_meant(words: FileWords, symbols: frozenset[str], telling: frozenset[str]) -> bool:
    """Whether the request speaks of this file: by code in it, by its name, or in several words."""
    if symbols & words.identifiers:
        return True
    if words.stem_words and words.stem_words <= telling:
        return True
    return len(telling & words.words) >= MIN_SHARED_WORDS


def _follow_shared_names(
    inspection: Inspection, about: Mapping[str, FileWords], related: Iterable[str]
) -> set[str]:
    """Files whose changed lines share a name with those of related ones that few files have."""
    reached = set(related)
    open_paths = about.keys() - reached
    known = {name for path in reached for name in about[path].identifiers}
    shared = {name for path in open_paths for name in about[path].identifiers}
    counts = inspection.index.count_files(known | shared) if open_paths else {}
    most = max(MIN_LINKING_FILES, MAX_FILES_SHARE * len(inspection.index.paths()))
    rare = {name for name in known | shared if counts.get(name, 0) <= most}
    while True:
        known = {name for path in reached for name in about[path].identifiers & rare}
        linked = {path for path in open_paths - reached if about[path].identifiers & known}
        if not linked:
            return reached
        reached |= linked


def _accompanies_change(path: str) -> bool:
    """Whether such a file goes with any change: tests, documents, notes and the like."""
    is_judged = classify_file(path) in _JUDGED_KINDS and not _NOTES_FOLDER.search(path)
    return not is_judged or PurePosixPath(path).stem == "__init__"


def _scope_finding(file: FileChange, inspection: Inspection, *, declared: Sequence[str]) -> Finding:
    rule = rules[0]
    line = min(inspection.added.get(file.path, frozenset()), default=1)
    if declared:
        scope = ", ".join(declared[:3]) + (", …" if len(declared) > 3 else "")
        message = f"{file.path} lies outside the task's scope ({scope})."
    else:
        message = f"{file.path} has nothing to do with what the request names: is it meant?"
    return Finding(
        rule=rule.name,
        version=rule.version,
        severity=rule.severity if declared else "info",
        mode=rule.mode,
        message=message,
        places=(f"{file.path}:{line}",),
        confidence=1.0 if declared else 0.5,
        source="check",
    )
