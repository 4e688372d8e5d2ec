"""tangled-function: too many paths, nested too deeply to follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from closeloop.changes.quality.changed_file import (
    MIN_GROWTH_SHARE,
    ChangedFile,
    OldFunctions,
    find_old_function,
    index_old_functions,
    is_inline_test,
    list_changed_files,
    make_check_finding,
)
from closeloop.records.change import Inspection, SourceFunction
from closeloop.records.finding import Finding, Rule, Unmeasured

rules = (
    Rule(
        name="tangled-function",
        version=2,
        about="A function has too many paths, and more than before.",
        severity="warning",
        thresholds={"complexity": 10, "growth": MIN_GROWTH_SHARE},
    ),
)


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Require both measures: a flat list of cases has many paths and is easy to follow."""
    limit, before = inspection.settings.complexity, index_old_functions(inspection)
    return [
        tangled_function
        for file in list_changed_files(inspection, "source")
        for tangled_function in _tangled_functions(file, before, limit)
    ]


def _tangled_functions(file: ChangedFile, functions: OldFunctions, limit: int) -> Iterator[Finding]:
    for function in file.after.functions if file.after else ():
        if not _is_tangled(function, limit) or is_inline_test(function):
            continue
        lines = file.added.intersection(range(function.first_line, function.last_line + 1))
        if not lines:
            continue
        before = find_old_function(functions, file, function)
        if before is None or _is_worse(function, before, limit):
            before_note = f", {before.complexity} before," if before else ""
            yield make_check_finding(
                rules[0],
                f"`{function.qualified}` has {function.complexity} paths{before_note} with a "
                f"cognitive complexity of {function.cognitive} (limit {limit}): "
                "extract a part of it.",
                f"{file.path}:{function.first_line if before is None else min(lines)}",
            )


def _is_tangled(function: SourceFunction, limit: int) -> bool:
    """Return whether its paths are nested: in a flat list the weight is below their number."""
    return function.complexity > limit and function.cognitive >= max(function.complexity, limit + 1)


def _is_worse(function: SourceFunction, before: SourceFunction, limit: int) -> bool:
    if _is_tangled(before, limit):
        return function.complexity > before.complexity * (1 + MIN_GROWTH_SHARE)
    return function.complexity > before.complexity or function.cognitive > before.cognitive
