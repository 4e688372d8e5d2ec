"""How wide a change may be: limits suggested from what failed and from what was completed.

A limit on files or modules stops every change that touches more. Two are told for each: the widest
that would have stopped nine of ten failures, and the narrowest that would have kept nine of ten
completed changes; and of both, what else they would have stopped.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from closeloop.metrics.attempt_values import completion_values, is_failed, touched_values
from closeloop.records.estimate import ScopeLimit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

AIMED_SHARE = 0.9
MIN_CHANGES = 5
"""Of fewer failures, or fewer completed changes, a limit would be chance."""
LIMITED_MEASURES = ("files", "modules")


def suggest_scope_limits(columns: Mapping[str, Any]) -> tuple[ScopeLimit, ...]:
    """All that there are enough changes for; none where no limit would have helped."""
    import numpy as np

    failed, completed = is_failed(columns), completion_values(columns) == 1
    limits: list[ScopeLimit] = []
    for measure in LIMITED_MEASURES:
        touched = touched_values(measure, columns)
        known = np.isfinite(touched)
        sizes = (np.sort(touched[known & mask]) for mask in (failed, completed & ~failed))
        limits += _find_limits(measure, *sizes)
    return tuple(limits)


def _find_limits(measure: str, failures: Array, completions: Array) -> Iterator[ScopeLimit]:
    if len(failures) >= MIN_CHANGES:
        # So many of the smallest failures may pass.
        spared = len(failures) - ceil(AIMED_SHARE * len(failures))
        yield from _describe_limit(
            measure, "stops failures", int(failures[spared]) - 1, failures, completions
        )
    if len(completions) >= MIN_CHANGES and len(failures):
        kept = ceil(AIMED_SHARE * len(completions))
        yield from _describe_limit(
            measure, "keeps completions", int(completions[kept - 1]), failures, completions
        )


def _describe_limit(
    measure: str, aim: Any, most: int, failures: Array, completions: Array
) -> Iterator[ScopeLimit]:
    """What a limit would have stopped; one that stops all or no failure is none."""
    stopped = int((failures > most).sum())
    if most >= 1 and stopped:
        yield ScopeLimit(
            measure=measure,
            aim=aim,
            most=most,
            failures_stopped=stopped,
            failures=len(failures),
            completions_stopped=int((completions > most).sum()),
            completions=len(completions),
        )


def describe_scope_limit(limit: ScopeLimit) -> str:
    """`check.max_files = 3 would have stopped 18 of 20 failures, and 2 of 31 completed changes`."""
    return (
        f"check.max_{limit.measure} = {limit.most} would have stopped {limit.failures_stopped} of"
        f" {limit.failures} failures, and {limit.completions_stopped} of {limit.completions}"
        " completed changes"
    )
