"""out-of-scope-change, wide-change: files that were not requested, and changes above a limit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.quality.changed_file import split_git_lines
from closeloop.records.change import ChangeSide, FileChange, Inspection, SourceFunction, SourceType
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.record import Record
from closeloop.text.wording import count_with_noun, matches_globs, package_folder

# Compare a request and a changed file by their words alone.


MAX_CHANGED_LINES = 2_000
"""Maximum changed lines read of a file."""
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
"""Requests that concern the whole repository, whichever files that takes."""
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
_COMMON_MODULES = ("__init__", "__about__", "__meta__", "__version__", "_version", "version")
"""Modules that any change may touch: exports, and the number of the next version."""


class RequestWords(Record):
    """The paths, symbols and words of a request."""

    paths: frozenset[str] = frozenset()
    """Words that look like a path or a file name."""
    symbols: frozenset[str] = frozenset()
    """Words written as code: in quotes, with a bracket, with an underscore or in CamelCase."""
    spoken: frozenset[str] = frozenset()
    """All its words."""
    is_general: bool = False
    """Whether it requests something that concerns every file."""


class FileWords(Record):
    """The words of a file's change."""

    path: str
    identifiers: frozenset[str] = frozenset()
    """Names on the changed lines, and of the functions and classes around them."""
    words: frozenset[str] = frozenset()
    """Parts of those names and of the file's own name, stemmed."""
    stem_words: frozenset[str] = frozenset()
    """Parts of the file's own name."""


def read_request(text: str) -> RequestWords:
    """Parse a request; its trailers are ignored."""
    text = _TRAILER.sub("", text)
    title = next((line for line in text.split("\n") if line.strip()), "")
    symbols = {
        name.rsplit(".", 1)[-1]
        for symbol in _SYMBOL.findall(text)
        for name in symbol
        if len(name.rsplit(".", 1)[-1]) > 2
    }
    return RequestWords(
        paths=frozenset(_PATH.findall(text)),
        symbols=frozenset(symbols),
        spoken=frozenset(_IDENTIFIER.findall(text)),
        is_general=_EVERY_FILE.search(title) is not None,
    )


def split_words(identifiers: Iterable[str]) -> frozenset[str]:
    """Return the words that names consist of, without meaningless ones."""
    parts = {part.lower() for name in identifiers for part in _WORD_PART.findall(name)}
    return frozenset(
        _ENDING.sub("", part) if len(part) > 5 else part.removesuffix("s")
        for part in parts
        if len(part) > 2
        and part not in _COMMON_WORDS
        and part.removesuffix("s") not in _COMMON_WORDS
    )


def read_file_words(inspection: Inspection, file: FileChange) -> FileWords:
    """Return the words of a file's changed lines, of their surroundings, and of its name."""
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
        changed_lines = set(numbers)
        definitions: list[SourceFunction | SourceType] = []
        if module:
            definitions += [*module.functions, *module.types]
        for definition in definitions:
            if not changed_lines.isdisjoint(range(definition.first_line, definition.last_line + 1)):
                identifiers.update(definition.qualified.split("."))
    stem_words = split_words([PurePosixPath(file.path).stem])
    return FileWords(
        path=file.path,
        identifiers=frozenset(identifiers),
        words=split_words(identifiers) | stem_words,
        stem_words=stem_words,
    )


rules = (
    Rule(
        name="out-of-scope-change",
        version=2,
        about="A file outside the requested scope is changed without an explanation.",
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
"""Maximum files that define a name; one defined in more is too common."""
MIN_LINKING_FILES, MAX_FILES_SHARE = 3, 0.05
"""A name in more files than this, and in a greater share of all files, links nothing."""
MAX_WORD_SHARE = 0.4
"""A word in a larger share of the files does not distinguish them."""
MIN_SHARED_WORDS = 2
"""Minimum words of the request on a file's changed lines to count as meant."""
MANY_WORDS = 20
"""For every this many words of a request, a related file needs one more."""
MIN_MISREAD_FILES = 3
"""If this many files are unrelated, and more than are related, the request was misread."""
_NOTES_FOLDER = re.compile(
    r"(?:^|/)(?:change(?:s|log)?(?:\.d|_notes)?|news(?:fragments?)?|releasenotes|\.changeset)/",
    re.I,
)
_JUDGED_KINDS = ("source", "ci", "schema", "migration", "manifest")
"""Kinds of files that must have been requested; the others follow from any change."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Report what exceeds the limits, and what lies outside the scope."""
    return [*_find_wide_change(inspection), *_find_outside_files(inspection)]


def _find_wide_change(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each limit that the hand-written files exceed."""
    paths = [file.path for file in inspection.files]
    settings, rule = inspection.settings, rules[1]
    counts = {"file": len(paths), "module": len({package_folder(path) for path in paths})}
    limits = {"file": settings.max_files, "module": settings.max_modules} if settings else {}
    for noun, limit in limits.items():
        if limit is not None and counts[noun] > limit:
            yield Finding(
                rule=rule.name,
                version=rule.version,
                severity=rule.severity,
                mode=rule.mode,
                message=f"The change touches {count_with_noun(counts[noun], noun)}; the limit "
                f"is {limit}: split the change, or raise the limit.",
                places=(f"{paths[0]}:1",),
                source="check",
            )


def _find_outside_files(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Report files outside the declared scope for certain; else outside what the request names."""
    task = inspection.task
    if task is not None and task.scope:
        outside = [
            file for file in inspection.change.files if not matches_globs(file.path, task.scope)
        ]
        return [_scope_finding(file, inspection, declared=task.scope) for file in outside]
    if not inspection.request:
        return []  # without a request, nothing is out of scope
    request = read_request(inspection.request[:MAX_REQUEST_CHARS])
    outside_files = _find_unrelated_files(inspection, request)
    if isinstance(outside_files, str):
        return [Unmeasured(rule=rules[0].name, reason=outside_files)]
    return [_scope_finding(file, inspection, declared=()) for file in outside_files]


def _find_unrelated_files(inspection: Inspection, request: RequestWords) -> list[FileChange] | str:
    """Return changed files without a link to what the request names, or why that is unknown."""
    if request.is_general:
        return "the request may concern any file"
    files = {file.path: file for file in inspection.files}
    words_by_path = {path: read_file_words(inspection, file) for path, file in files.items()}
    named_paths, distinctive = (
        _files_named(inspection, request),
        _telling_words(inspection, request),
    )
    related = {
        path
        for path, words in words_by_path.items()
        if path in named_paths or _is_meant(words, request.symbols, distinctive)
    }
    if not related:
        return "the request names nothing that the change concerns"
    open_paths = {path for path in files if path not in related}
    # A long request has many words, one of which occurs in any file by chance.
    least = 1 + len(distinctive) // MANY_WORDS
    related |= {
        path for path in open_paths if len(distinctive & words_by_path[path].words) >= least
    }
    related |= _follow_shared_names(inspection, words_by_path, related)
    judged = {path: file for path, file in files.items() if not _accompanies_change(path)}
    if related.isdisjoint(judged):
        return "the request names nothing that the change concerns"
    outside = [file for path, file in judged.items() if path not in related]
    if len(outside) >= MIN_MISREAD_FILES and len(outside) > len(related):
        return "the request names too little of what the change concerns"
    return outside


def _files_named(inspection: Inspection, request: RequestWords) -> set[str]:
    """Return files that the request names, and those that define what it names."""
    named_paths = {
        path
        for path in inspection.sides.tree("after")
        if path in request.paths
        or any(path.endswith("/" + word) for word in request.paths if word.endswith(path[-4:]))
    }
    for symbol in request.symbols:
        defining_paths = {path for path, _ in inspection.index.defined(symbol)}
        if len(defining_paths) <= MAX_DEFINING_FILES:
            named_paths |= defining_paths
    return named_paths


def _telling_words(inspection: Inspection, request: RequestWords) -> frozenset[str]:
    """Return the words of the request that distinguish files: nearly all files have the others."""
    counts = inspection.index.count_files({*request.spoken, *map(str.lower, request.spoken)})
    max_files = max(MAX_DEFINING_FILES, MAX_WORD_SHARE * len(inspection.index.paths()))
    return split_words(
        word
        for word in request.spoken
        if max(counts.get(word, 0), counts.get(word.lower(), 0)) <= max_files
    )


def _is_meant(file_words: FileWords, symbols: frozenset[str], distinctive: frozenset[str]) -> bool:
    """Return whether the request means this file: by code in it, its name, or several words."""
    if symbols & file_words.identifiers:
        return True
    if file_words.stem_words and file_words.stem_words <= distinctive:
        return True
    return len(distinctive & file_words.words) >= MIN_SHARED_WORDS


def _follow_shared_names(
    inspection: Inspection, words_by_path: Mapping[str, FileWords], related: Iterable[str]
) -> set[str]:
    """Return files whose changed lines share a rare name with those of related files."""
    reached_paths = set(related)
    open_paths = words_by_path.keys() - reached_paths
    known_names = {name for path in reached_paths for name in words_by_path[path].identifiers}
    shared = {name for path in open_paths for name in words_by_path[path].identifiers}
    counts = inspection.index.count_files(known_names | shared) if open_paths else {}
    max_files = max(MIN_LINKING_FILES, MAX_FILES_SHARE * len(inspection.index.paths()))
    rare = {name for name in known_names | shared if counts.get(name, 0) <= max_files}
    while True:
        known_names = {
            name for path in reached_paths for name in words_by_path[path].identifiers & rare
        }
        linked = {
            path
            for path in open_paths - reached_paths
            if words_by_path[path].identifiers & known_names
        }
        if not linked:
            return reached_paths
        reached_paths |= linked


def _accompanies_change(path: str) -> bool:
    """Return whether such a file accompanies any change: tests, documents, notes and the like."""
    is_judged = classify_file(path) in _JUDGED_KINDS and not _NOTES_FOLDER.search(path)
    return not is_judged or PurePosixPath(path).stem in _COMMON_MODULES


def _scope_finding(file: FileChange, inspection: Inspection, *, declared: Sequence[str]) -> Finding:
    rule = rules[0]
    line = min(inspection.added.get(file.path, frozenset()), default=1)
    if declared:
        scope = ", ".join(declared[:3]) + (", …" if len(declared) > 3 else "")
        message = f"{file.path} is outside the task's scope ({scope})."
    else:
        message = f"{file.path} is unrelated to the request: is this intended?"
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
