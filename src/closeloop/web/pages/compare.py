"""Variants held against each other: which is better, how sure that is, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from closeloop.measuring.choosing import Choice, choose
from closeloop.measuring.compare import compare as held_against
from closeloop.measuring.compare import mask_of
from closeloop.measuring.work import Work
from closeloop.model.errors import BadInput
from closeloop.model.finding import Finding
from closeloop.model.record import Record
from closeloop.model.variant import Variant
from closeloop.model.versus import CompareReport, Versus
from closeloop.tasks.seal import is_alias
from closeloop.web.desk import Desk
from closeloop.web.page import Page
from closeloop.web.pages.attempt import attempt
from closeloop.web.pages.heads import AttemptAsked, AttemptHead
from closeloop.web.views.events import EventView

MOST_NAMES = 6
MOST_TASKS = 60
MOST_MARKED = 5

Name = Annotated[str, Meta(max_length=1000)]


class CompareAsked(Record):
    variants: tuple[Name, ...] = ()
    """All against the first: by name, digest, or `agent:X`, `model:X`, `prompt:ID`, `DAY..DAY`."""
    margin: Annotated[float, Meta(gt=0, lt=1)] = 0.05


class Repeat(Record):
    """One attempt at a task."""

    id: str | None
    """None where the task is sealed."""
    result: Literal["pass", "fail", "unscored"]
    rules: tuple[str, ...] = ()
    """What was found in it; told of the first repeats."""


class TaskLine(Record):
    """One task, with the attempts of both."""

    task: str
    first: tuple[Repeat, ...]
    second: tuple[Repeat, ...]
    differs: bool


class PairView(Record):
    versus: Versus
    tasks: tuple[TaskLine, ...]
    """Those that differ most first."""
    more: int
    """Tasks that are not told."""


class CompareView(Record):
    """The first against the others, or a choice of what to compare."""

    asked: CompareAsked
    known: tuple[Variant, ...]
    """What there is to choose from, the newest first."""
    report: CompareReport | None = None
    pairs: tuple[PairView, ...] = ()
    fresh: bool = True


class TracesAsked(Record):
    first: str
    second: str
    """Attempts by their ids, or the beginnings of them."""


class TraceColumn(Record):
    """One attempt beside another: where it stands, and its first events."""

    head: AttemptHead
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    events: tuple[EventView, ...]
    fragments: tuple[int, ...]


class TracesView(Record):
    """Two attempts side by side."""

    columns: tuple[TraceColumn, TraceColumn]


def compare(desk: Desk, asked: CompareAsked) -> CompareView:
    known = desk.store.numbers.variants()
    newest = tuple(reversed({one.name: one for one in known.values()}.values()))
    if asked.variants:
        return _compared(desk, asked, known, newest)
    usual = replace(asked, variants=_usual(desk, known, newest))
    try:
        return _compared(desk, usual, known, newest)
    except BadInput:
        # They have nothing to compare yet, which nobody asked for: others may be chosen.
        return CompareView(asked=asked, known=newest)


def _compared(
    desk: Desk, asked: CompareAsked, known: Mapping[str, Variant], newest: tuple[Variant, ...]
) -> CompareView:
    if len(set(asked.variants)) < 2:
        return CompareView(asked=asked, known=newest)
    if len(asked.variants) > MOST_NAMES:
        raise BadInput(f"So many are hard to compare: choose up to {MOST_NAMES}.")
    choices = [choose(name, known) for name in dict.fromkeys(asked.variants)]

    def made(work: Work) -> tuple[CompareReport, tuple[PairView, ...]]:
        report = held_against(work, choices, margin=asked.margin)
        return report, tuple(_pair(desk, work, choices, one) for one in report.pairs)

    key = f"compare {asked.margin} {asked.variants}"
    counted = desk.counting.of_work(key, made)
    report, pairs = counted.value or (None, ())
    return CompareView(asked=asked, known=newest, report=report, pairs=pairs, fresh=counted.fresh)


def _usual(desk: Desk, known: Mapping[str, Variant], newest: Sequence[Variant]) -> tuple[str, ...]:
    """The variants of the newest experiment that has several, or the newest two."""
    for experiment in desk.store.experiments():
        names = dict.fromkeys(known[one].name for one in experiment.variants if one in known)
        if len(names) > 1:
            return tuple(names)[:MOST_NAMES]
    return tuple(one.name for one in reversed(newest[:2]))


def _pair(desk: Desk, work: Work, choices: Sequence[Choice], versus: Versus) -> PairView:
    sides = {choice.name: choice for choice in choices}
    shown = versus.tasks[:MOST_TASKS]
    first, second = (
        _marked(desk, _repeats(work, sides[name]), [one.task for one in shown])
        for name in (versus.first, versus.second)
    )
    return PairView(
        versus=versus,
        tasks=tuple(
            TaskLine(
                task=one.task,
                first=first[one.task],
                second=second[one.task],
                differs=fmean(one.first) != fmean(one.second),
            )
            for one in shown
        ),
        more=max(0, len(versus.tasks) - MOST_TASKS),
    )


def _marked(
    desk: Desk, repeats: Mapping[str, tuple[Repeat, ...]], tasks: Sequence[str]
) -> dict[str, tuple[Repeat, ...]]:
    """The repeats of some tasks, with what the rules found in the first of each."""
    of = {task: repeats.get(task, ()) for task in tasks}
    looked = [one.id for each in of.values() for one in each[:MOST_MARKED] if one.id]
    marks = desk.store.listing.marks(looked)
    return {
        task: tuple(
            replace(one, rules=marks[one.id].rules) if one.id in marks else one for one in each
        )
        for task, each in of.items()
    }


def _repeats(work: Work, choice: Choice) -> dict[str, tuple[Repeat, ...]]:
    """By task, the attempts that count, in the order of their numbers."""
    columns = work.columns
    places = mask_of(work, choice).nonzero()[0].tolist()
    rows = sorted(
        (task, number, work.attempts[place], outcome)
        for place, task, number, outcome in zip(
            places,
            columns["task"][places].tolist(),
            columns["number"][places].tolist(),
            columns["outcome"][places].tolist(),
            strict=True,
        )
        if task is not None
    )
    found: dict[str, list[Repeat]] = {}
    for task, _, name, outcome in rows:
        result: Literal["pass", "fail", "unscored"] = (
            outcome if outcome in ("pass", "fail") else "unscored"
        )
        shown = None if is_alias(task) else name
        found.setdefault(task, []).append(Repeat(id=shown, result=result))
    return {task: tuple(each) for task, each in found.items()}


def traces(desk: Desk, asked: TracesAsked) -> TracesView:
    return TracesView(columns=(_column(desk, asked.first), _column(desk, asked.second)))


def _column(desk: Desk, name: str) -> TraceColumn:
    shown = attempt(desk, AttemptAsked(attempt=name))
    return TraceColumn(
        head=shown.head,
        reasons=shown.reasons,
        findings=shown.findings,
        events=shown.events,
        fragments=shown.fragments,
    )


PAGES = (
    Page(
        path="/compare",
        show=compare,
        template="compare.html",
        about="Which variant is better, how sure that is, and where they differ.",
        section="Compare",
        key="c",
    ),
    Page(
        path="/compare/traces",
        show=traces,
        template="compare_traces.html",
        about="Two attempts side by side.",
        section="Compare",
    ),
)
