"""odd-one-out: something new lacks what nearly all others of its kind have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from closeloop.changes.quality.changed_file import (
    ChangedFile,
    group_sources_by_folder,
    is_example_file,
    list_changed_files,
    list_neighbours,
    make_check_finding,
)
from closeloop.records.change import Inspection, SourceFunction, SourceModule
from closeloop.records.finding import Finding, Rule, Unmeasured

rules = (
    Rule(
        name="odd-one-out",
        version=1,
        about="A new file or function lacks an import, a call or a decorator that nearly "
        "all its siblings have.",
        severity="info",
        thresholds={"share": 0.9, "neighbours": 5},
    ),
)

SHARE, NEIGHBOURS = 0.9, 5
"""Minimum share of a minimum number of neighbours that makes a convention."""
MAX_NEIGHBOURS = 40
MAX_TRAITS = 3
_MARKER_DECORATORS = frozenset(
    {"Override", "override", "typing.override", "overload", "typing.overload"}
)
"""Decorators that say what a function is, not a local convention."""
_ENTRY_STEMS = frozenset(
    {"__init__", "__main__", "index", "mod", "lib", "main", "conftest", "setup"}
)
"""Files that are unlike any other in their folder."""


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Compare new files with those of their folder, new functions with those beside them."""
    new = {file.path for file in inspection.files if file.status == "added"}
    files = {
        folder: [path for path in paths if path not in new]
        for folder, paths in (group_sources_by_folder(inspection).items() if new else ())
    }
    findings: list[Finding] = []
    for file in list_changed_files(inspection, "source"):
        if file.after is None or is_example_file(file.path):
            continue
        if file.path in new:
            findings += _check_file(file, file.after, files, inspection)
        else:
            findings += _check_functions(file, file.after)
    return findings


def _check_file(
    file: ChangedFile,
    module: SourceModule,
    files: Mapping[str, Sequence[str]],
    inspection: Inspection,
) -> Iterator[Finding]:
    if PurePosixPath(file.path).stem in _ENTRY_STEMS or not module.functions:
        return
    neighbours = [
        path
        for path in list_neighbours(file.path, files)
        if PurePosixPath(path).stem not in _ENTRY_STEMS
    ]
    if len(neighbours) < NEIGHBOURS:
        return
    others = [
        _file_traits(other)
        for path in neighbours[:MAX_NEIGHBOURS]
        if (other := inspection.index.module(path)) and other.functions
    ]
    lacking = _missing_traits(_file_traits(module), others)
    if lacking:
        traits = " and ".join(lacking[:MAX_TRAITS])
        yield make_check_finding(
            rules[0],
            f"Nearly all {len(others)} files in this folder {traits}: is the difference intended?",
            f"{file.path}:1",
            confidence=0.6,
        )


def _file_traits(module: SourceModule) -> set[str]:
    """Return what a file imports, and which functions it calls by a plain name."""
    imported = {
        f"import `{one.name}` from `{one.module}`" if one.name else f"import `{one.module}`"
        for one in module.imports
        if one.name != "*"
    }
    brought = {one.alias or one.name for one in module.imports if one.name}
    called = {
        f"call `{name.text}`"
        for name in module.names
        if name.kind == "call" and name.receiver is None and name.text in brought
    }
    # What is called is imported too: once is enough.
    both = {text.split("`")[1] for text in called}
    return called | {one for one in imported if one.split("`")[1] not in both}


def _check_functions(file: ChangedFile, module: SourceModule) -> Iterator[Finding]:
    """Yield new functions that lack their neighbours' decorator or call."""
    old = {function.qualified for function in file.before.functions} if file.before else set()
    groups: dict[str, list[SourceFunction]] = {}
    calls: dict[int, list[str]] = {}
    for name in module.names:
        if name.kind == "call" and name.receiver is None:
            calls.setdefault(name.line, []).append(name.text)
    for function in module.functions:
        if function.public:
            groups.setdefault(function.qualified.rpartition(".")[0], []).append(function)
    for group in groups.values():
        if len(group) <= NEIGHBOURS or not any(one.first_line in file.added for one in group):
            continue
        known = [_function_traits(one, calls) for one in group if one.qualified in old]
        for function in group:
            if function.qualified in old or function.first_line not in file.added:
                continue
            lacking = _missing_traits(_function_traits(function, calls), known)
            if lacking:
                yield make_check_finding(
                    rules[0],
                    f"Nearly all {len(known)} functions beside `{function.name}` "
                    f"{lacking[0]}: is the difference intended?",
                    f"{file.path}:{function.first_line}",
                    confidence=0.6,
                )


def _function_traits(function: SourceFunction, calls: Mapping[int, Sequence[str]]) -> set[str]:
    inside = range(function.first_line, function.last_line + 1)
    called = {f"call `{name}`" for line in inside for name in calls.get(line, ())}
    worn = {decorator.partition("(")[0] for decorator in function.decorators} - _MARKER_DECORATORS
    return called | {f"bear `@{one}`" for one in worn}


def _missing_traits(own: set[str], others: Sequence[Iterable[str]]) -> list[str]:
    if len(others) < NEIGHBOURS:
        return []
    counts: Mapping[str, int] = Counter(trait for traits in others for trait in traits)
    return sorted(
        trait
        for trait, count in counts.items()
        if count >= SHARE * len(others) and trait not in own
    )
