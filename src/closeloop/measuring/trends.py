"""How metrics went over time, where they turned, and what became worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from closeloop.measuring.definitions import METRICS
from closeloop.measuring.items import WEEK, Items, Timeline, version_firsts
from closeloop.measuring.metrics import OF_REPEATS, definitions
from closeloop.measuring.work import Work
from closeloop.model.errors import BadInput
from closeloop.model.estimate import Change, Estimate
from closeloop.model.trend import Course, Regression, Shift, Stretch, Trends, Turn, VersionMark
from closeloop.stats.differences import newcombe
from closeloop.stats.many import benjamini_hochberg
from closeloop.stats.trend import changes, mean_of, windows

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

WATCHED = (
    "pass rate", "task completion rate", "regression introduction rate", "review loop count",
    "first-review merge rate", "CI pass rate on first push", "review comments", "feedback",
    "recovery", "convergence", "without findings", "scope creep", "hallucinated API", "cost",
)  # fmt: skip
NOISE = 0.05
"""A turn is told as a regression when its adjusted p is smaller."""


def trends_of(
    work: Work,
    by: Sequence[str] = (),
    only: Sequence[str] = (),
    *,
    weeks: int = 4,
    baseline: datetime | None = None,
) -> Trends:
    """Of all attempts, or of each group of them. Unless it is given, the baseline ends halfway."""
    wanted = definitions(only or WATCHED)
    if not_followed := next((one.name for one in wanted if one.kind in OF_REPEATS), None):
        raise BadInput(f"{not_followed} is of repeats, not of a time: follow 'pass rate'.")
    marks = tuple(version_marks(work))
    timeline = Timeline(work, by)
    courses = [
        _course(metric.name, dict(zip(by, group, strict=True)), items, weeks, baseline, marks)
        for metric in wanted
        for group, items in timeline.items(METRICS[metric.name][1](work.columns))
    ]
    return Trends(
        weeks=weeks,
        courses=tuple(courses),
        marks=marks,
        regressions=tuple(_regressions(courses)),
        notes=(
            "Observational: times differ in more than what was changed.",
            *work.notes,
        ),
    )


def version_marks(work: Work) -> Iterator[VersionMark]:
    """When each variant, model and prompt version was first seen, but for those of the start."""
    first: dict[str, float] = {}
    told = {key: _told(variant) for key, variant in work.variants.items()}
    for (variant, agent, model), started in version_firsts(work):
        for what in told.get(variant or "") or (
            f"{agent or 'an agent'} with {model or 'a model'}",
        ):
            first[what] = min(started, first.get(what, started))
    begun = min(first.values(), default=0.0)
    for what, at in sorted(first.items(), key=lambda pair: (pair[1], pair[0])):
        if at > begun:
            yield VersionMark(at=_moment(at), what=what)


def _told(variant: Any) -> tuple[str, ...]:
    named = f"variant {variant.name} {variant.digest[:8]}"
    return (named, f"prompt {variant.prompt[:12]}") if variant.prompt else (named,)


def _course(
    metric: str,
    group: dict[str, str],
    items: Items,
    weeks: int,
    baseline: datetime | None,
    marks: Sequence[VersionMark],
) -> Course:
    at, values = items.at, items.values
    first, last = float(at[0]), float(at[-1])
    count = int((last - first) // WEEK) + 1
    ends = [last - WEEK * back for back in reversed(range(count))]
    cut = baseline.timestamp() if baseline else (first + last) / 2
    return Course(
        metric=metric,
        group=group,
        stretches=tuple(
            Stretch(until=_moment(one.end), estimate=one.estimate, faint=one.faint)
            for one in windows(at, values, WEEK * weeks, ends)
        ),
        week=shift_of(
            values[(at > last - 2 * WEEK) & (at <= last - WEEK)], values[at > last - WEEK]
        ),
        since=shift_of(values[at < cut], values[at >= cut]),
        turns=tuple(_turns(items, changes(items.level()), marks)),
    )


def shift_of(before: Sequence[float] | Array, after: Sequence[float] | Array) -> Shift | None:
    """From one mean to another; None where either is not known."""
    then, now = mean_of(before), mean_of(after)
    if then is None or now is None:
        return None
    low, high = newcombe(then, now)
    return Shift(before=then, after=now, low=low, high=high)


def _turns(items: Items, found: Sequence[Change], marks: Sequence[VersionMark]) -> Iterator[Turn]:
    """Each with the means of what lies between it and its neighbours."""
    edges = [0, *(one.at for one in found), len(items.at)]
    means = [mean_of(items.values[i:j]) for i, j in pairwise(edges)]
    for place, one in enumerate(found):
        before, after = means[place], means[place + 1]
        at = _moment(float(items.at[one.at]))
        near = [mark.what for mark in marks if abs(at - mark.at) <= timedelta(days=7)]
        yield Turn(
            at=at,
            before=before or one.before,
            after=after or one.after,
            p=one.p,
            near=tuple(near[:5]),
        )


def _regressions(courses: Sequence[Course]) -> list[Regression]:
    """Turns for the worse, most evident first; several turns are looked at, so p is adjusted."""
    every = [(course, turn) for course in courses for turn in course.turns]
    adjusted = benjamini_hochberg({str(place): turn.p for place, (_, turn) in enumerate(every)})
    found = [
        Regression(
            metric=course.metric, group=course.group, turn=turn, adjusted=adjusted[str(place)]
        )
        for place, (course, turn) in enumerate(every)
        if _is_worse(course.metric, turn.before, turn.after) and adjusted[str(place)] < NOISE
    ]
    return sorted(found, key=lambda one: (one.adjusted, one.turn.p, one.metric, str(one.group)))


def _is_worse(metric: str, before: Estimate, after: Estimate) -> bool:
    better = METRICS[metric][0].better
    return better is not None and (after.value < before.value) == (better == "more")


def fresh(
    found: Trends, told: Mapping[str, object], *, now: datetime, weeks: int = 4, sure: float = 0.01
) -> list[Regression]:
    """What is worth an alert: sure, recent, and not told before."""
    since = now - timedelta(weeks=weeks)
    return [
        one
        for one in found.regressions
        if one.adjusted < sure and one.turn.at >= since and one.key not in told
    ]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
