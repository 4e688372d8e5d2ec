"""Variants held against each other: which is better, how sure that is, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptSelection, AttemptTable, select_attempts
from closeloop.metrics.held_out_runs import report_held_out
from closeloop.metrics.score_columns import attach_scores, find_metric, select_metrics
from closeloop.metrics.score_definitions import find_source
from closeloop.metrics.variant_comparison import (
    compare_variants,
    covering_span,
    default_scores,
    selection_mask,
)
from closeloop.records.errors import BadInput
from closeloop.records.estimate import CompareReport, Metric, VariantComparison
from closeloop.records.finding import Finding
from closeloop.records.held_out import HeldOutReport
from closeloop.records.record import Record
from closeloop.records.score import ScoreSource, ScoreSummary
from closeloop.records.task import Variant
from closeloop.web.event_views import EventView
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages.attempt import attempt
from closeloop.web.pages.outcome import AttemptAsked, AttemptHead
from closeloop.web.pages.scores import ScoreName, load_score_summaries, require_few_scores

MAX_NAMES = 6
MAX_TASKS = 60
MAX_MARKED_REPEATS = 5

VariantName = Annotated[str, Meta(max_length=1000)]


class CompareAsked(Record):
    variants: tuple[VariantName, ...] = ()
    """All against the first: by name, digest, or `agent:X`, `model:X`, `prompt:ID`, `DAY..DAY`."""
    margin: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    score: tuple[ScoreName, ...] = ()
    """The first decides, the others are explored beside it. None: `resolved`, or `would-merge`
    where no task has a check."""


class Repeat(Record):
    """One attempt at a task."""

    id: str
    result: Literal["pass", "fail", "unscored", "between"]
    """By the score that decides: the better end, the worse one, not known, or neither end."""
    value: float | None = None
    """Of that score."""
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


class ComparedScore(Record):
    """The score that decides, and who gives it."""

    metric: Metric
    source: ScoreSource


class CompareView(Record):
    """The first against the others, or a choice of what to compare."""

    asked: CompareAsked
    known: tuple[Variant, ...]
    """What there is to choose from, the newest first."""
    report: CompareReport | None = None
    pairs: tuple[PairView, ...] = ()
    decides: ComparedScore | None = None
    explored: tuple[Metric, ...] = ()
    """What else was asked for."""
    scores: tuple[ScoreSummary, ...] = ()
    """Those that may be asked for."""
    held_out: HeldOutReport | None = None
    """What looks at held-out tasks have shown of them; in no other number."""
    reason: str | None = None
    """Why what would be compared unasked cannot be."""
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
    require_few_scores(asked.score)
    known = desk.store.numbers.load_variants()
    newest = tuple(reversed({one.name: one for one in known.values()}.values()))
    summaries = load_score_summaries(desk)
    choice = CompareView(
        asked=asked, known=newest, scores=summaries.value or (), fresh=summaries.fresh
    )
    if asked.variants:
        return _compare_view(desk, choice, known)
    variants = _default_variants(desk, known, newest)
    try:
        return _compare_view(desk, replace(choice, asked=replace(asked, variants=variants)), known)
    except BadInput as fault:
        # They have nothing to compare yet, which nobody asked for: others may be chosen.
        return replace(choice, reason=str(fault) if len(variants) > 1 else None)


def _compare_view(
    desk: PageContext, choice: CompareView, known: Mapping[str, Variant]
) -> CompareView:
    asked = choice.asked
    if len(set(asked.variants)) < 2:
        return choice
    if len(asked.variants) > MAX_NAMES:
        raise BadInput(f"So many are hard to compare: choose up to {MAX_NAMES}.")
    choices = [select_attempts(name, known) for name in dict.fromkeys(asked.variants)]
    key = f"compare {asked.margin} {asked.variants} {asked.score}"
    cached_comparison = desk.metric_cache.compute_from_work(
        key, lambda work: _compute_comparison(desk, work, choices, choice)
    )
    return replace(
        cached_comparison.value or choice,
        known=choice.known,
        scores=choice.scores,
        fresh=choice.fresh and cached_comparison.fresh,
    )


def _compute_comparison(
    desk: PageContext,
    work: AttemptTable,
    choices: Sequence[AttemptSelection],
    choice: CompareView,
) -> CompareView:
    """As `closeloop compare` does it."""
    names = tuple(dict.fromkeys(choice.asked.score)) or default_scores(work, choices)
    span = covering_span(choices)
    work = attach_scores(work, desk.store, desk.score_catalogue, names, span)
    report = compare_variants(work, choices, margin=choice.asked.margin, scores=names)
    metric, _ = find_metric(work, names[0])
    explored = select_metrics(work, names[1:]) if names[1:] else []
    digests = {digest for side in report.sides for digest in side.variants}
    return replace(
        choice,
        report=report,
        pairs=tuple(_pair_view(desk, work, choices, one, metric) for one in report.pairs),
        decides=ComparedScore(metric=metric, source=find_source(metric)),
        explored=tuple(one for one in explored if one.score != metric.score),
        held_out=report_held_out(desk.store, variants=digests),
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
    metric: Metric,
) -> PairView:
    sides = {choice.name: choice for choice in choices}
    shown_tasks = versus.tasks[:MAX_TASKS]
    first, second = (
        _add_rule_marks(
            desk, _repeats_by_task(work, sides[name], metric), [one.task for one in shown_tasks]
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


def _repeats_by_task(
    work: AttemptTable, choice: AttemptSelection, metric: Metric
) -> dict[str, tuple[Repeat, ...]]:
    """By task, the attempts that count, in the order of their numbers."""
    columns = work.columns
    places = selection_mask(work, choice).nonzero()[0].tolist()
    rows = sorted(
        (task, number, work.attempts[place], value)
        for place, task, number, value in zip(
            places,
            columns["task"][places].tolist(),
            columns["number"][places].tolist(),
            find_metric(work, metric.name)[1](columns)[places].tolist(),
            strict=True,
        )
        if task is not None
    )
    task_repeats: dict[str, list[Repeat]] = {}
    for task, _, name, value in rows:
        task_repeats.setdefault(task, []).append(_build_repeat(name, value, metric))
    return {task: tuple(each) for task, each in task_repeats.items()}


def _build_repeat(attempt: str, value: float, metric: Metric) -> Repeat:
    if not isfinite(value):
        return Repeat(id=attempt, result="unscored")
    if metric.kind != "rate" or value not in (0.0, 1.0):
        return Repeat(id=attempt, result="between", value=value)
    good = value == (0.0 if metric.better == "less" else 1.0)
    return Repeat(id=attempt, result="pass" if good else "fail", value=value)


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
