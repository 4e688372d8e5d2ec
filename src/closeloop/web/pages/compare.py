"""Compare any two groups of attempts: which is better, how certain that is, where they differ."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from math import isfinite
from statistics import fmean
from typing import Annotated, Literal
from urllib.parse import urlencode

from msgspec import Meta
from msgspec.structs import replace

from closeloop.metrics.attempt_groups import (
    DIMENSIONS,
    AttemptPair,
    AttemptSelection,
    compare_two_attempts,
    covering_span,
    narrow_period,
    select_attempts,
    selection_mask,
)
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.held_out_runs import report_held_out
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.score_columns import attach_scores, find_metric, find_source, select_metrics
from closeloop.metrics.variant_comparison import compare_variants, default_scores
from closeloop.records.attempt import TimeRange
from closeloop.records.errors import BadInput
from closeloop.records.estimate import CompareReport, Metric, TaskPair, VariantComparison
from closeloop.records.experiment_plan import HeldOutReport
from closeloop.records.finding import Finding
from closeloop.records.record import Record
from closeloop.records.score import ScoreSource, ScoreSummary
from closeloop.records.task import Variant
from closeloop.text.wording import short_repository_name
from closeloop.web.event_views import EventView, FigureLine, build_figure_lines
from closeloop.web.page import Page, PageContext, RefusedChoice, find_or_404
from closeloop.web.pages.attempt import AttemptPageQuery, attempt
from closeloop.web.pages.metrics import ScoreName, load_score_summaries, require_few_scores
from closeloop.web.pages.outcome import AttemptHead

MAX_NAMES = 6
MAX_TASKS = 60
MAX_MARKED_REPEATS = 5
MAX_CHOICES = 40
"""Names suggested for each kind; any other may be typed."""
PERIOD_DAYS = (7, 30)
SIDE_METRICS = (
    "cost", "time", "turns", "tokens out", "without findings", "convergence", "feedback",
)  # fmt: skip

ComparedName = Annotated[str, Meta(max_length=1000)]


class CompareQuery(TimeRange):
    variants: tuple[ComparedName, ...] = ()
    """Variants to compare with the first one: by name, digest, or `agent:X`, `model:X`, `repo:X`,
    `prompt:ID`, `experiment:ID`, `DAY..DAY`; several joined by commas must all match."""
    attempt: tuple[ComparedName, ...] = ()
    """Ids of two attempts to compare instead."""
    margin: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    score: tuple[ScoreName, ...] = ()
    """The first one decides, the others are exploratory.

    By default `resolved`; `would-merge` if no task has a check; or the score that sessions are
    compared by.
    """


class NameGroup(Record):
    """Names of one kind that can be compared."""

    kind: str
    names: tuple[tuple[str, str], ...]
    """Pairs of URL value and label."""


class Repeat(Record):
    """One attempt at a task."""

    id: str
    result: Literal["pass", "fail", "unscored", "between"]
    """By the deciding score: the better end, the worse end, unknown, or between them."""
    value: float | None = None
    """Value of that score."""
    rules: tuple[str, ...] = ()
    """Rules with findings in it; only for the first repeats."""


class ComparedTask(Record):
    """One task, with the attempts of both variants."""

    task: str
    first: tuple[Repeat, ...]
    second: tuple[Repeat, ...]
    first_mean: float
    second_mean: float
    """Mean of the scored repeats."""
    differs: bool
    pair: tuple[str, str] | None
    """Ids of the two attempts that differ most, to view side by side."""


class PairView(Record):
    versus: VariantComparison
    tasks: tuple[ComparedTask, ...]
    """Tasks, largest difference first."""
    more: int
    """Number of tasks that are not shown."""


class ComparedScore(Record):
    """The deciding score and its source."""

    metric: Metric
    source: ScoreSource


class SideFigures(Record):
    """Metrics of one side, over all its attempts."""

    name: str
    lines: tuple[FigureLine, ...]
    """One line for each metric, in the same order for every side."""


class AttemptColumn(Record):
    """One of two attempts: its result and its first events."""

    head: AttemptHead
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    events: tuple[EventView, ...]
    fragments: tuple[int, ...]


class TwoAttempts(Record):
    """Two attempts side by side, and the diff of their diffs."""

    pair: AttemptPair
    columns: tuple[AttemptColumn, AttemptColumn]


class CompareView(Record):
    """A comparison of the first variant with the others, of two attempts, or the choice of what to
    compare."""

    asked: CompareQuery
    choices: tuple[NameGroup, ...]
    """Names to choose from, newest first."""
    two: TwoAttempts | None = None
    report: CompareReport | None = None
    pairs: tuple[PairView, ...] = ()
    links: dict[str, str | None] = {}
    """By side, the URL of the list of its attempts; None if no list shows them."""
    decides: ComparedScore | None = None
    explored: tuple[Metric, ...] = ()
    """The other requested scores."""
    scores: tuple[ScoreSummary, ...] = ()
    """Scores that can be requested."""
    figures: tuple[SideFigures, ...] = ()
    """Metrics of each side by itself, for sides that share no task."""
    held_out: HeldOutReport | None = None
    """Results of runs on held-out tasks; they are in no other number."""
    reason: str | None = None
    """Why the comparison is not possible."""
    command: str | None = None
    """Equivalent command in the terminal."""
    fresh: bool = True


def compare(page_context: PageContext, query: CompareQuery) -> CompareView:
    require_few_scores(query.score)
    variants_by_digest = page_context.store.numbers.load_variants()
    summaries = load_score_summaries(page_context)
    today = datetime.now(UTC).date()
    labels = page_context.metric_cache.compute_from_work(
        f"compare names {today}", lambda work: _list_work_groups(work, today)
    )
    choice = CompareView(
        asked=query,
        choices=(*_list_name_groups(page_context, variants_by_digest), *(labels.value or ())),
        scores=summaries.value or (),
        fresh=summaries.fresh and labels.fresh,
    )
    if query.attempt:
        two = _compare_attempts(page_context, query.attempt)
        names = [f"attempt:{row.id}" for row in (two.pair.first, two.pair.second)]
        return replace(choice, two=two, command=_compare_command(names))
    if query.variants:
        try:
            return _compare_view(page_context, choice, variants_by_digest)
        except BadInput as fault:
            raise RefusedChoice(str(fault), replace(choice, reason=str(fault))) from fault
    variants = _default_variants(page_context, variants_by_digest)
    try:
        return _compare_view(
            page_context,
            replace(choice, asked=replace(query, variants=variants)),
            variants_by_digest,
        )
    except BadInput as fault:
        # The default has nothing to compare yet: offer others.
        return replace(choice, reason=str(fault) if len(variants) > 1 else None)


def _list_name_groups(
    page_context: PageContext, variants_by_digest: Mapping[str, Variant]
) -> Iterator[NameGroup]:
    """List variants and experiments, without those that have no name."""
    variants = dict.fromkeys(variant.name for variant in reversed([*variants_by_digest.values()]))
    if variants:
        yield NameGroup(kind="Variants", names=_same_names(variants))
    experiments = page_context.store.list_experiments()[:MAX_CHOICES]
    if experiments:
        names = tuple(
            (f"experiment:{experiment.id}", experiment.name or experiment.id)
            for experiment in experiments
        )
        yield NameGroup(kind="Experiments", names=names)


def _same_names(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in [*names][:MAX_CHOICES])


def _list_work_groups(work: AttemptTable, today: date) -> tuple[NameGroup, ...]:
    """List times, agents, models, repositories and prompts that have attempts."""
    times = tuple(_list_times(work, today))
    groups = [NameGroup(kind="Times", names=times)] if times else []
    return (*groups, *_list_label_groups(work))


def _list_times(work: AttemptTable, today: date) -> Iterator[tuple[str, str]]:
    """List the last days and as many days before them, where both have attempts."""
    seconds = work.columns["started"] / 1e6
    midnight = datetime.combine(today, time(), UTC).timestamp()
    for days in PERIOD_DAYS:
        start, before = today - timedelta(days=days), today - timedelta(days=2 * days)
        age = (midnight - seconds) / 86400
        if (age <= days).any() and ((age > days) & (age <= 2 * days)).any():
            yield f"{start}..", f"the last {days} days"
            yield f"{before}..{start}", f"the {days} days before"


def _list_label_groups(work: AttemptTable) -> tuple[NameGroup, ...]:
    """List agents, models, repositories and prompts, those with the most attempts first."""
    import numpy as np

    groups = []
    fields = (
        ("agent", "Agents"),
        ("model", "Models"),
        ("repo", "Repositories"),
        ("prompt", "Prompts"),
    )
    for field, kind in fields:
        column = DIMENSIONS[field](work)
        counts: Counter[str] = Counter()
        for label, count in zip(
            column.labels, np.bincount(column.codes, minlength=len(column.labels)), strict=True
        ):
            if label and count:
                counts[label] += int(count)
        names = tuple(
            (f"{field}:{label}", f"{_short_label(field, label)} ({count:,})")
            for label, count in counts.most_common(MAX_CHOICES)
            if "," not in label
        )
        groups += [NameGroup(kind=kind, names=names)] if names else []
    return tuple(groups)


def _short_label(field: str, label: str) -> str:
    """Return the last part of a repository's address, and other labels unchanged."""
    return ((short_repository_name(label) if field == "repo" else None) or label)[:60]


def _compare_view(
    page_context: PageContext, choice: CompareView, variants_by_digest: Mapping[str, Variant]
) -> CompareView:
    query = choice.asked
    if len(set(query.variants)) < 2:
        return choice
    if len(query.variants) > MAX_NAMES:
        raise BadInput(f"Choose at most {MAX_NAMES} to compare.")
    choices = [
        narrow_period(
            select_attempts(name, variants_by_digest, page_context.store), query.since, query.until
        )
        for name in dict.fromkeys(query.variants)
    ]
    key = f"compare {query.margin} {query.variants} {query.score} {query.since} {query.until}"
    cached_comparison = page_context.metric_cache.compute_from_work(
        key, lambda work: _compute_comparison(page_context, work, choices, choice)
    )
    return replace(
        cached_comparison.value or choice,
        choices=choice.choices,
        scores=choice.scores,
        links={choice.name: _list_address(choice) for choice in choices},
        fresh=choice.fresh and cached_comparison.fresh,
    )


def _list_address(selection: AttemptSelection) -> str | None:
    """Return the URL of the list of a side's attempts."""
    parameters = dict(selection.labels)
    for part in selection.name.split(","):
        field, colon, value = part.strip().partition(":")
        if field in ("prompt", "attempt") and colon:
            return None
        if field == "experiment" and colon:
            parameters["experiment"] = value
    if selection.variants is not None:
        parameters["variant"] = selection.name
    for name, moment in (("since", selection.since), ("until", selection.until)):
        if moment is not None:
            parameters[name] = moment.isoformat()
    return f"/attempts?{urlencode(parameters)}"


def _compute_comparison(
    page_context: PageContext,
    work: AttemptTable,
    choices: Sequence[AttemptSelection],
    choice: CompareView,
) -> CompareView:
    """Compute the comparison as `closeloop compare` does."""
    span = covering_span(choices)
    digests = {digest for selection in choices for digest in selection.variants or ()}
    if span.variants is not None:
        work = page_context.load_controls(work, digests)
    names = tuple(dict.fromkeys(choice.asked.score)) or default_scores(work, choices)
    work = attach_scores(work, page_context.store, page_context.score_catalogue, names, span)
    report = compare_variants(work, choices, margin=choice.asked.margin, scores=names)
    metric, _ = find_metric(work, names[0])
    explored = select_metrics(work, names[1:]) if names[1:] else []
    digests = {digest for side in report.sides for digest in side.variants}
    return replace(
        choice,
        report=report,
        pairs=tuple(_pair_view(page_context, work, choices, pair, metric) for pair in report.pairs),
        decides=ComparedScore(metric=metric, source=find_source(metric)),
        explored=tuple(
            explored_metric for explored_metric in explored if explored_metric.score != metric.score
        ),
        figures=_side_figures(work, choices)
        if any(pair.observational for pair in report.pairs)
        else (),
        held_out=report_held_out(page_context.store, variants=digests),
        command=_compare_command([side.name for side in report.sides], names),
    )


def _side_figures(
    work: AttemptTable, choices: Sequence[AttemptSelection]
) -> tuple[SideFigures, ...]:
    figures = []
    for choice in choices:
        row_indices = selection_mask(work, choice).nonzero()[0].tolist()
        side = work.select_rows({work.attempts[index] for index in row_indices})
        report = compute_metrics(side, (), SIDE_METRICS)
        figures.append(SideFigures(name=choice.name, lines=build_figure_lines(report)))
    return tuple(figures)


def _compare_command(names: Sequence[str], scores: Sequence[str] = ()) -> str:
    score_flags = [part for score in scores for part in ("--score", score)]
    return shlex.join(["closeloop", "compare", *names, *score_flags])


def _default_variants(
    page_context: PageContext, variants_by_digest: Mapping[str, Variant]
) -> tuple[str, ...]:
    """Return the variants of the newest experiment that has several, or the newest two."""
    for experiment in page_context.store.list_experiments():
        names = dict.fromkeys(
            variants_by_digest[variant].name
            for variant in experiment.variants
            if variant in variants_by_digest
        )
        if len(names) > 1:
            return tuple(names)[:MAX_NAMES]
    return tuple(dict.fromkeys(variant.name for variant in variants_by_digest.values()))[-2:]


def _pair_view(
    page_context: PageContext,
    work: AttemptTable,
    choices: Sequence[AttemptSelection],
    versus: VariantComparison,
    metric: Metric,
) -> PairView:
    sides = {choice.name: choice for choice in choices}
    shown_tasks = versus.tasks[:MAX_TASKS]
    first, second = (
        _add_rule_marks(
            page_context,
            _repeats_by_task(work, sides[name], metric),
            [shown_task.task for shown_task in shown_tasks],
        )
        for name in (versus.first, versus.second)
    )
    return PairView(
        versus=versus,
        tasks=tuple(
            _task_line(shown_task, first[shown_task.task], second[shown_task.task])
            for shown_task in shown_tasks
        ),
        more=max(0, len(versus.tasks) - MAX_TASKS),
    )


def _task_line(
    pair: TaskPair, first: tuple[Repeat, ...], second: tuple[Repeat, ...]
) -> ComparedTask:
    means = fmean(pair.first), fmean(pair.second)
    return ComparedTask(
        task=pair.task,
        first=first,
        second=second,
        first_mean=means[0],
        second_mean=means[1],
        differs=means[0] != means[1],
        pair=most_different(first, second),
    )


def most_different(first: Sequence[Repeat], second: Sequence[Repeat]) -> tuple[str, str] | None:
    """Return the pair of attempts whose values differ most; the first pair of equals."""
    scored = [
        (abs(one.value - other.value), one.id, other.id)
        for one in first
        for other in second
        if one.value is not None and other.value is not None
    ]
    if scored:
        _, one_id, other_id = max(scored, key=lambda scored_pair: scored_pair[0])
        return one_id, other_id
    return (first[0].id, second[0].id) if first and second else None


def _add_rule_marks(
    page_context: PageContext, repeats: Mapping[str, tuple[Repeat, ...]], tasks: Sequence[str]
) -> dict[str, tuple[Repeat, ...]]:
    """Return the repeats of some tasks, with the findings of the first of each."""
    repeats_of_tasks = {task: repeats.get(task, ()) for task in tasks}
    marked_ids = [
        repeat.id
        for repeats_of_task in repeats_of_tasks.values()
        for repeat in repeats_of_task[:MAX_MARKED_REPEATS]
    ]
    marks = page_context.store.listing.load_marks(marked_ids)
    return {
        task: tuple(
            replace(repeat, rules=marks[repeat.id].rules) if repeat.id in marks else repeat
            for repeat in task_repeats
        )
        for task, task_repeats in repeats_of_tasks.items()
    }


def _repeats_by_task(
    work: AttemptTable, choice: AttemptSelection, metric: Metric
) -> dict[str, tuple[Repeat, ...]]:
    """Return by task the attempts that count, ordered by number."""
    columns = work.columns
    row_indices = selection_mask(work, choice).nonzero()[0].tolist()
    rows = sorted(
        (task, number, work.attempts[index], value)
        for index, task, number, value in zip(
            row_indices,
            columns["task"][row_indices].tolist(),
            columns["number"][row_indices].tolist(),
            find_metric(work, metric.name)[1](columns)[row_indices].tolist(),
            strict=True,
        )
        if task is not None
    )
    task_repeats: dict[str, list[Repeat]] = {}
    for task, _, name, value in rows:
        task_repeats.setdefault(task, []).append(_build_repeat(name, value, metric))
    return {task: tuple(repeats) for task, repeats in task_repeats.items()}


def _build_repeat(attempt: str, value: float, metric: Metric) -> Repeat:
    if not isfinite(value):
        return Repeat(id=attempt, result="unscored")
    if metric.kind != "rate" or value not in (0.0, 1.0):
        return Repeat(id=attempt, result="between", value=value)
    good = value == (0.0 if metric.better == "less" else 1.0)
    return Repeat(id=attempt, result="pass" if good else "fail", value=value)


def _compare_attempts(page_context: PageContext, names: Sequence[str]) -> TwoAttempts:
    if len(names) != 2:
        raise BadInput("Select exactly two attempts to compare them side by side.")
    pair = find_or_404(
        compare_two_attempts,
        page_context.store,
        page_context.rulebook,
        page_context.score_catalogue,
        names,
        again=None,
    )
    first, second = (_attempt_column(page_context, row.id) for row in (pair.first, pair.second))
    return TwoAttempts(pair=pair, columns=(first, second))


def _attempt_column(page_context: PageContext, name: str) -> AttemptColumn:
    view = attempt(page_context, AttemptPageQuery(attempt=name))
    return AttemptColumn(
        head=view.head,
        reasons=view.reasons,
        findings=view.findings,
        events=view.events,
        fragments=view.fragments,
    )


PAGES = (
    Page(
        path="/compare",
        show=compare,
        template="compare.html",
        about="A comparison of two sides: which is better, with what confidence, and where "
        "they differ.",
        section="Compare",
        key="c",
    ),
)
