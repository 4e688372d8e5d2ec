"""tangled-function: so many paths, so deep inside each other, that nobody follows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from closeloop.changes.quality.changed import (
    GROWTH,
    Changed,
    Past,
    changed,
    earlier,
    finding,
    is_tested,
    past,
)
from closeloop.model.finding import Finding, Rule, Unmeasured
from closeloop.model.inspection import Function, Inspection

rules = (
    Rule(
        name="tangled-function",
        version=1,
        about="A function has more paths through it than can be followed, and more than before.",
        severity="warning",
        thresholds={"complexity": 15, "growth": GROWTH},
    ),
)


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """By both measures: a flat list of cases has many paths, and is followed with ease."""
    limit, before = inspection.settings.complexity, past(inspection)
    return [one for file in changed(inspection, "source") for one in _tangled(file, before, limit)]


def _tangled(file: Changed, functions: Past, limit: int) -> Iterator[Finding]:
    for function in file.after.functions if file.after else ():
        if min(function.complexity, function.cognitive) <= limit or is_tested(function):
            continue
        lines = file.added.intersection(range(function.first_line, function.last_line + 1))
        if not lines:
            continue
        before = earlier(functions, file, function)
        if before is None or _is_worse(function, before, limit):
            was = f", {before.complexity} before," if before else ""
            yield finding(
                rules[0],
                f"`{function.qualified}` has {function.complexity} paths{was} nested to a weight of"
                f" {function.cognitive} (limit {limit}): take a part out of it.",
                f"{file.path}:{function.first_line if before is None else min(lines)}",
            )


def _is_worse(function: Function, before: Function, limit: int) -> bool:
    if min(before.complexity, before.cognitive) > limit:
        return function.complexity > before.complexity * (1 + GROWTH)
    return function.complexity > before.complexity or function.cognitive > before.cognitive
