"""Variants held against each other: which is better, how sure that is, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptSelection, AttemptTable, select_attempts
from closeloop.metrics.held_out_runs import report_held_out
from closeloop.metrics.variant_comparison import compare_variants as held_against
from closeloop.metrics.variant_comparison import selection_mask
from closeloop.records.errors import BadInput
from closeloop.records.estimate import CompareReport, VariantComparison
from closeloop.records.finding import Finding
from closeloop.records.held_out import HeldOutReport
from closeloop.records.record import Record
from closeloop.records.task import Variant
from closeloop.web.event_views import EventView
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages.attempt import attempt
from closeloop.web.pages.outcome import AttemptAsked, AttemptHead

MAX_NAMES = 6
MAX_TASKS = 60
MAX_MARKED_REPEATS = 5

VariantName = Annotated[str, Meta(max_length=1000)]


class CompareAsked(Record):
    variants: tuple[VariantName, ...] = ()
    """All against the first: by name, digest, or `agent:X`, `model:X`, `prompt:ID`, `DAY..DAY`."""
    margin: Annotated[float, Meta(gt=0, lt=1)] = 0.05


class Repeat(Record):
    """One attempt at a task."""

    id: str
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
    versus: VariantComparison
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
    held_out: HeldOutReport | None = None
    """What looks at held-out tasks have shown of them; in no other number."""
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


def compare(desk: PageContext, asked: CompareAsked) -> CompareView:
    known = desk.store.numbers.load_variants()
    newest = tuple(reversed({one.name: one for one in known.values()}.values()))
    if asked.variants:
        return _compare_view(desk, asked, known, newest)
    default_query = replace(asked, variants=_default_variants(desk, known, newest))
    try:
        return _compare_view(desk, default_query, known, newest)
    except BadInput:
        # They have nothing to compare yet, which nobody asked for: others may be chosen.
        return CompareView(asked=asked, known=newest)


def _compare_view(
    desk: PageContext,
    asked: CompareAsked,
    known: Mapping[str, Variant],
    newest: tuple[Variant, ...],
) -> CompareView:
    if len(set(asked.variants)) < 2:
        return CompareView(asked=asked, known=newest)
    if len(asked.variants) > MAX_NAMES:
        raise BadInput(f"So many are hard to compare: choose up to {MAX_NAMES}.")
    choices = [select_attempts(name, known) for name in dict.fromkeys(asked.variants)]

    def compute_comparison(
        work: AttemptTable,
    ) -> tuple[CompareReport, tuple[PairView, ...], HeldOutReport | None]:
        report = held_against(work, choices, margin=asked.margin)
        pairs = tuple(_pair_view(desk, work, choices, one) for one in report.pairs)
        digests = {digest for side in report.sides for digest in side.variants}
        return report, pairs, report_held_out(desk.store, variants=digests)

    key = f"compare {asked.margin} {asked.variants}"
    cached_comparison = desk.metric_cache.compute_from_work(key, compute_comparison)
    report, pairs, held_out = cached_comparison.value or (None, (), None)
    return CompareView(
        asked=asked,
        known=newest,
        report=report,
        pairs=pairs,
        held_out=held_out,
        fresh=cached_comparison.fresh,
    )


def _default_variants(
    desk: PageContext, known: Mapping[str, Variant], newest: Sequence[Variant]
) -> tuple[str, ...]:
    """The variants of the newest experiment that has several, or the newest two."""
    for experiment in desk.store.list_experiments():
        names = dict.fromkeys(known[one].name for one in experiment.variants if one in known)
        if len(names) > 1:
            return tuple(names)[:MAX_NAMES]
    return tuple(one.name for one in reversed(newest[:2]))


def _pair_view(
    desk: PageContext,
    work: AttemptTable,
    choices: Sequence[AttemptSelection],
    versus: VariantComparison,
) -> PairView:
    sides = {choice.name: choice for choice in choices}
    shown_tasks = versus.tasks[:MAX_TASKS]
    first, second = (
        _add_rule_marks(
            desk, _repeats_by_task(work, sides[name]), [one.task for one in shown_tasks]
        )
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
            for one in shown_tasks
        ),
        more=max(0, len(versus.tasks) - MAX_TASKS),
    )


def _add_rule_marks(
    desk: PageContext, repeats: Mapping[str, tuple[Repeat, ...]], tasks: Sequence[str]
) -> dict[str, tuple[Repeat, ...]]:
    """The repeats of some tasks, with what the rules found in the first of each."""
    repeats_of_tasks = {task: repeats.get(task, ()) for task in tasks}
    marked_ids = [one.id for each in repeats_of_tasks.values() for one in each[:MAX_MARKED_REPEATS]]
    marks = desk.store.listing.load_marks(marked_ids)
    return {
        task: tuple(
            replace(one, rules=marks[one.id].rules) if one.id in marks else one for one in each
        )
        for task, each in repeats_of_tasks.items()
    }


def _repeats_by_task(work: AttemptTable, choice: AttemptSelection) -> dict[str, tuple[Repeat, ...]]:
    """By task, the attempts that count, in the order of their numbers."""
    columns = work.columns
    places = selection_mask(work, choice).nonzero()[0].tolist()
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
    task_repeats: dict[str, list[Repeat]] = {}
    for task, _, name, outcome in rows:
        result: Literal["pass", "fail", "unscored"] = (
            outcome if outcome in ("pass", "fail") else "unscored"
        )
        task_repeats.setdefault(task, []).append(Repeat(id=name, result=result))
    return {task: tuple(each) for task, each in task_repeats.items()}


def traces(desk: PageContext, asked: TracesAsked) -> TracesView:
    return TracesView(columns=(_trace_column(desk, asked.first), _trace_column(desk, asked.second)))


def _trace_column(desk: PageContext, name: str) -> TraceColumn:
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
