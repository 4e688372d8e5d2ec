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
    peers = [
        _file_traits(neighbour)
        for path in neighbours[:MAX_NEIGHBOURS]
        if (neighbour := inspection.index.module(path)) and neighbour.functions
    ]
    missing = _missing_traits(_file_traits(module), peers)
    if missing:
        traits = " and ".join(missing[:MAX_TRAITS])
        yield make_check_finding(
            rules[0],
            f"Nearly all {len(peers)} files in this folder {traits}: is the difference intended?",
            f"{file.path}:1",
            confidence=0.6,
        )


def _file_traits(module: SourceModule) -> set[str]:
    """Return what a file imports, and which functions it calls by a plain name."""
    imported = {
        f"import `{source_import.name}` from `{source_import.module}`"
        if source_import.name
        else f"import `{source_import.module}`"
        for source_import in module.imports
        if source_import.name != "*"
    }
    imported_names = {
        source_import.alias or source_import.name
        for source_import in module.imports
        if source_import.name
    }
    called = {
        f"call `{name.text}`"
        for name in module.names
        if name.kind == "call" and name.receiver is None and name.text in imported_names
    }
    # A called name is imported too: one report is enough.
    called_names = {text.split("`")[1] for text in called}
    return called | {trait for trait in imported if trait.split("`")[1] not in called_names}


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
        if len(group) <= NEIGHBOURS or not any(
            function.first_line in file.added for function in group
        ):
            continue
        old_traits = [
            _function_traits(function, calls) for function in group if function.qualified in old
        ]
        for function in group:
            if function.qualified in old or function.first_line not in file.added:
                continue
            missing = _missing_traits(_function_traits(function, calls), old_traits)
            if missing:
                yield make_check_finding(
                    rules[0],
                    f"Nearly all {len(old_traits)} functions beside `{function.name}` "
                    f"{missing[0]}: is the difference intended?",
                    f"{file.path}:{function.first_line}",
                    confidence=0.6,
                )


def _function_traits(function: SourceFunction, calls: Mapping[int, Sequence[str]]) -> set[str]:
    lines = range(function.first_line, function.last_line + 1)
    called = {f"call `{name}`" for line in lines for name in calls.get(line, ())}
    decorators = {
        decorator.partition("(")[0] for decorator in function.decorators
    } - _MARKER_DECORATORS
    return called | {f"bear `@{decorator}`" for decorator in decorators}


def _missing_traits(own_traits: set[str], other_traits: Sequence[Iterable[str]]) -> list[str]:
    if len(other_traits) < NEIGHBOURS:
        return []
    counts: Mapping[str, int] = Counter(trait for traits in other_traits for trait in traits)
    return sorted(
        trait
        for trait, count in counts.items()
        if count >= SHARE * len(other_traits) and trait not in own_traits
    )
