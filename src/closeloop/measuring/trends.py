"""How metrics went over time, where they turned, and what became worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import sqrt
from operator import itemgetter
from statistics import fmean
from typing import Any
from zlib import crc32

from closeloop.measuring.definitions import METRICS
from closeloop.measuring.groups import grouped
from closeloop.measuring.metrics import definitions, units_of
from closeloop.measuring.work import Work
from closeloop.model.estimate import Change, Estimate
from closeloop.model.record import Record
from closeloop.model.trend import Course, Regression, Shift, Stretch, Trends, Turn, VersionMark
from closeloop.stats.many import benjamini_hochberg
from closeloop.stats.trend import changes, mean_of, windows

WATCHED = (
    "pass rate", "task completion rate", "regression introduction rate", "review loop count",
    "first-review merge rate", "CI pass rate on first push", "review comments", "feedback",
    "recovery", "convergence", "without findings", "scope creep", "hallucinated API", "cost",
)  # fmt: skip
WEEK = 7 * 86400.0
NOISE = 0.05
"""A turn is told as a regression when its adjusted p is smaller."""

OFTEN = 4
"""Weeks: a task that came in as many shows what is its own."""


class Item(Record):
    """What one task showed in one week; what one session did."""

    at: float
    """In seconds since 1970."""
    value: float
    unit: int
    repeats: int


Items = list[Item]


def trends_of(
    work: Work,
    by: Sequence[str] = (),
    only: Sequence[str] = (),
    *,
    weeks: int = 4,
    baseline: datetime | None = None,
) -> Trends:
    """Of all attempts, or of each group of them. Unless it is given, the baseline ends halfway."""
    marks = tuple(version_marks(work))
    courses = []
    for metric in definitions(only or WATCHED):
        for group, items in _items(work, by, metric.name):
            courses.append(_course(metric.name, group, items, weeks, baseline, marks))
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
    columns = work.columns
    rows = zip(
        columns["started"].tolist(),
        columns["variant"].tolist(),
        columns["agent"].tolist(),
        columns["model"].tolist(),
        strict=True,
    )
    told = {key: _told(variant) for key, variant in work.variants.items()}
    for started, variant, agent, model in rows:
        if started == started:  # noqa: PLR0124 - not where it is not known
            for what in told.get(variant) or (f"{agent or 'an agent'} with {model or 'a model'}",):
                first[what] = min(started, first.get(what, started))
    begun = min(first.values(), default=0.0)
    for what, at in sorted(first.items(), key=lambda pair: (pair[1], pair[0])):
        if at > begun:
            yield VersionMark(at=_moment(at / 1e6), what=what)


def _told(variant: Any) -> tuple[str, ...]:
    named = f"variant {variant.name} {variant.digest[:8]}"
    return (named, f"prompt {variant.prompt[:12]}") if variant.prompt else (named,)


def _items(work: Work, by: Sequence[str], metric: str) -> Iterator[tuple[dict[str, str], Items]]:
    """A task's repeats of one week are one item: repeats are not more tasks."""
    if not len(work):
        return
    groups, places, codes = grouped(work, by)
    values = METRICS[metric][1](work.columns)[places].tolist()
    moments = (work.columns["started"][places] / 1e6).tolist()
    units = units_of(work)[places].tolist()
    gathered: list[dict[Any, list[tuple[float, float]]]] = [{} for _ in groups]
    for code, unit, at, value in zip(codes.tolist(), units, moments, values, strict=True):
        if at == at and value == value:  # noqa: PLR0124
            gathered[code].setdefault((unit, at // WEEK), []).append((at, value))
    for group, held in zip(groups, gathered, strict=True):
        if held:
            yield dict(zip(by, group, strict=True)), _in_order(held)


def _in_order(held: Mapping[Any, Sequence[tuple[float, float]]]) -> Items:
    """By time; but tasks that come every week in the order of a draw, as they may be run sorted."""
    weeks = Counter(unit for unit, _ in held)
    items = []
    for (unit, week), each in held.items():
        begun = week * WEEK if weeks[unit] > 1 else min(at for at, _ in each)
        lot = crc32(f"{unit}/{week}".encode())
        item = Item(at=begun, value=fmean(v for _, v in each), unit=unit, repeats=len(each))
        items.append(((begun, lot), item))
    return [item for _, item in sorted(items, key=itemgetter(0))]


def _level(items: Items) -> list[float]:
    """Values without what is a task's own, those of few repeats drawn nearer as they scatter more.

    Else weeks with harder tasks, or a week that has only begun, would look like a change.
    """
    own: dict[int, list[float]] = {}
    for item in items:
        own.setdefault(item.unit, []).append(item.value)
    means = {unit: fmean(values) for unit, values in own.items() if len(values) >= OFTEN}
    middle, most = fmean(item.value for item in items), max(item.repeats for item in items)
    return [
        middle + (item.value - means[item.unit]) * sqrt(item.repeats / most)
        if item.unit in means
        else item.value
        for item in items
    ]


def _course(
    metric: str,
    group: dict[str, str],
    items: Items,
    weeks: int,
    baseline: datetime | None,
    marks: Sequence[VersionMark],
) -> Course:
    first, last = items[0].at, items[-1].at
    count = int((last - first) // WEEK) + 1
    ends = [last - WEEK * back for back in reversed(range(count))]
    cut = baseline.timestamp() if baseline else (first + last) / 2
    return Course(
        metric=metric,
        group=group,
        stretches=tuple(
            Stretch(until=_moment(one.end), estimate=one.estimate, faint=one.faint)
            for one in windows([(item.at, item.value) for item in items], WEEK * weeks, ends)
        ),
        week=shift_of(
            [item.value for item in items if last - 2 * WEEK < item.at <= last - WEEK],
            [item.value for item in items if item.at > last - WEEK],
        ),
        since=shift_of(
            [item.value for item in items if item.at < cut],
            [item.value for item in items if item.at >= cut],
        ),
        turns=tuple(_turns(items, changes(_level(items)), marks)),
    )


def shift_of(before: Sequence[float], after: Sequence[float]) -> Shift | None:
    """The bounds of a difference from those of its two sides, which are independent."""
    then, now = mean_of(before), mean_of(after)
    if then is None or now is None:
        return None
    value = now.value - then.value
    return Shift(
        before=then,
        after=now,
        low=value - sqrt((now.value - now.low) ** 2 + (then.high - then.value) ** 2),
        high=value + sqrt((now.high - now.value) ** 2 + (then.value - then.low) ** 2),
    )


def _turns(items: Items, found: Sequence[Change], marks: Sequence[VersionMark]) -> Iterator[Turn]:
    """Each with the means of what lies between it and its neighbours."""
    edges = [0, *(one.at for one in found), len(items)]
    means = [mean_of([one.value for one in items[i:j]]) for i, j in pairwise(edges)]
    for place, one in enumerate(found):
        before, after = means[place], means[place + 1]
        at = _moment(items[one.at].at)
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
