"""Metrics, their course over time, and runs of gates."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from closeloop.metrics.attempt_groups import (
    DIMENSIONS,
    UNKNOWN_LABEL,
    AttemptSelection,
    selection_mask,
)
from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.metric_figures import REPEAT_KINDS, compute_metrics
from closeloop.metrics.metric_trends import (
    WATCHED_METRICS,
    compute_trends,
    list_standing_regressions,
)
from closeloop.metrics.score_columns import (
    ScoreCell,
    ScoreRow,
    attach_scores,
    derived_definitions,
    is_derived,
    list_score_cells,
    list_score_rows,
    select_metrics,
    summarise_scores,
)
from closeloop.metrics.triage import (
    MIN_GRADED_SESSIONS,
    SessionEstimates,
    TriageQuery,
    estimate_sessions,
    find_session_triage,
    list_last_tries,
    load_triage_prior,
    report_triage,
)
from closeloop.metrics.variant_comparison import gate_refusal
from closeloop.records.attempt import AttemptMarks, AttemptRow, TimeRange
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.estimate import Metric, MetricRegression, MetricSeries, VersionMark
from closeloop.records.experiment_plan import GateRun
from closeloop.records.finding import Finding
from closeloop.records.record import Record, Time
from closeloop.records.score import (
    AgentGrades,
    Score,
    ScoreDefinition,
    ScoreSource,
    ScoreSummary,
    SessionTriage,
    TriageQuality,
)
from closeloop.store.metrics_section import AttemptSpan
from closeloop.web.event_views import (
    FigureLine,
    FigureTable,
    TrendPoint,
    build_figure_lines,
    build_figure_table,
    build_trend_points,
)
from closeloop.web.page import CachedValue, NoQuery, Page, PageContext
from closeloop.web.pages.outcome import (
    AttemptHead,
    AttemptIdQuery,
    load_attempt_head,
    unsilenced_rule_findings,
)

# Scores: their list, and their values for the attempts on a page.


MAX_SCORES = 6
"""Scores that can be requested at once."""
ScoreName = Annotated[str, Meta(max_length=200)]


class ScoresView(Record):
    """Every score that some attempt has."""

    scores: tuple[ScoreSummary, ...]
    fresh: bool


class ScoreLine(Record):
    """One score of one attempt."""

    definition: ScoreDefinition
    source: ScoreSource
    value: float | None = None
    label: str | None = None
    by: str = ""
    """The person, the judge's model, or the scorer."""
    at: Time | None = None
    """None for a computed score."""
    note: str = ""


class AttemptScoresView(Record):
    """All scores of an attempt, from tests, rules, judges, people and code."""

    head: AttemptHead
    given: tuple[ScoreLine, ...]
    computed: tuple[ScoreLine, ...]
    """Scores from grades, rules, deliveries and the attempt itself."""
    names: tuple[str, ...] = ()
    """Names of scores that a person can give."""


def scores(page_context: PageContext, query: NoQuery) -> ScoresView:
    cached_summaries = load_score_summaries(page_context)
    return ScoresView(scores=cached_summaries.value or (), fresh=cached_summaries.fresh)


def load_score_summaries(page_context: PageContext) -> CachedValue[tuple[ScoreSummary, ...]]:
    """Load the scores that `closeloop score list` lists; None until computed for the first time."""
    return page_context.metric_cache.compute_from_work(
        "scores",
        lambda work: tuple(
            summarise_scores(work, page_context.store, page_context.score_catalogue)
        ),
    )


def list_score_names(page_context: PageContext) -> tuple[str, ...]:
    """Return the names that a list can show: scores that were given, and all computed ones."""
    given_names = [
        name
        for name in page_context.store.scores.list_sources()
        if name in page_context.score_catalogue.definitions
    ]
    return tuple(dict.fromkeys((*given_names, *derived_definitions())))


def attempt_scores(page_context: PageContext, query: AttemptIdQuery) -> AttemptScoresView:
    head, _ = load_attempt_head(page_context, query.attempt)
    name = head.row.id
    rows = [*list_score_rows(_load_attempts(page_context, [name]), page_context.store)]
    return AttemptScoresView(
        head=head,
        given=_score_lines(page_context, [row for row in rows if row.at is not None]),
        computed=_score_lines(page_context, [row for row in rows if row.at is None]),
        names=tuple(
            name
            for name, definition in page_context.score_catalogue.definitions.items()
            if definition.source in (None, "person")
            and name not in page_context.score_catalogue.scorers
        ),
    )


def list_given_scores(page_context: PageContext, attempt: str) -> tuple[ScoreLine, ...]:
    """Return the scores of an attempt from people, judges and code."""
    return _score_lines(page_context, page_context.store.scores.list_scores(attempt))


def _score_lines(
    page_context: PageContext, rows: Sequence[Score | ScoreRow]
) -> tuple[ScoreLine, ...]:
    """Return lines for scores that have a value or a label."""
    given, computed = page_context.score_catalogue.definitions, derived_definitions()
    models = (
        {judge.id: judge.model for judge in page_context.store.judged.list_judge_versions()}
        if any(row.source == "judge" for row in rows)
        else {}
    )
    return tuple(
        ScoreLine(
            definition=(given if row.at else computed).get(row.name)
            or ScoreDefinition(name=row.name),
            source=row.source,
            value=row.value,
            label=row.label,
            by=models.get(row.by, row.by),
            at=row.at,
            note=row.note,
        )
        for row in rows
        if row.value is not None or row.label is not None
    )


def _load_attempts(page_context: PageContext, attempts: Sequence[str]) -> AttemptTable:
    """Load a few attempts as measured last, without reading a trace."""
    span = AttemptSpan(attempts=tuple(attempts))
    return load_attempt_table(page_context.store, page_context.rulebook, span, remeasure=None)


def load_score_cells(
    page_context: PageContext, attempts: Sequence[str], names: Sequence[str]
) -> dict[str, tuple[ScoreCell, ...]]:
    """Return by attempt a cell for each score; raise BadInput if a score is unknown."""
    require_few_scores(names)
    if not names:
        return {}
    span = AttemptSpan(attempts=tuple(attempts))
    work = attach_scores(
        _load_attempts(page_context, attempts),
        page_context.store,
        page_context.score_catalogue,
        names,
        span,
    )
    return list_score_cells(work, names)


def require_few_scores(names: Sequence[str]) -> None:
    if len(set(names)) > MAX_SCORES:
        raise BadInput(f"Choose at most {MAX_SCORES} scores.")


SCORE_PAGES = (
    Page(
        path="/scores",
        show=scores,
        template="scores.html",
        about="Scores: definition, source, and coverage of attempts.",
        section="Compare",
    ),
)
ATTEMPT_PAGES = (
    Page(
        path="/attempts/{attempt}/scores",
        show=attempt_scores,
        template="attempt_scores.html",
        about="All scores of an attempt: from tests, rules, judges, people and code.",
        section="Sessions",
    ),
)


DEFAULT_METRICS = (
    "pass rate", "task completion rate", "without findings", "feedback", "convergence", "cost",
)  # fmt: skip
MAX_SERIES = 6
"""As many as there are distinguishable colours."""
MAX_GROUPS = 30
MAX_VERSION_MARKS = 12
MAX_GATE_RUNS = 50
GROUPINGS = ("", "agent", "model", "repo", "variant", "prompt", "user")


class MetricsQuery(TimeRange):
    metric: tuple[ScoreName, ...] = ()
    """Metrics or scores; by default the common ones."""
    by: Annotated[str, Meta(max_length=20)] = ""
    """Group by `agent`, `model`, `repo`, `variant`, `prompt` or `user`."""


class TrendChart(Record):
    """One metric over time."""

    metric: Metric
    points: tuple[TrendPoint, ...]
    lines: tuple[FigureLine, ...]
    """Its value in total, or for each group."""
    week: tuple[MetricSeries, ...]
    """The series: its last window, the last week compared with the one before, turning points."""
    several: bool
    """Whether there is more than one window to show."""


class MetricsNumbers(Record):
    attempts: int
    charts: tuple[TrendChart, ...]
    unknown: tuple[str, ...]
    """Metrics without data."""
    table: FigureTable | None
    """A row for each group, if groups are requested."""
    marks: tuple[VersionMark, ...]
    regressions: tuple[MetricRegression, ...]
    weeks: int
    notes: tuple[str, ...]


class MetricsView(Record):
    """Metrics and their course over time."""

    asked: MetricsQuery
    groupings: tuple[str, ...]
    names: tuple[str, ...]
    """Names that can be requested."""
    numbers: MetricsNumbers | None
    """None until computed for the first time."""
    fresh: bool


def metrics(page_context: PageContext, query: MetricsQuery) -> MetricsView:
    require_few_scores(query.metric)
    if query.by not in GROUPINGS:
        raise unknown_name_error(
            "grouping", query.by, [grouping for grouping in GROUPINGS if grouping]
        )
    key = f"metrics {query.metric} {query.by} {query.since} {query.until}"
    cached = page_context.metric_cache.compute_from_work(
        key, lambda work: _compute_numbers(page_context, work, query)
    )
    summaries = load_score_summaries(page_context)
    given_names = [summary.definition.name for summary in summaries.value or ()]
    return MetricsView(
        asked=query,
        groupings=GROUPINGS,
        names=tuple(dict.fromkeys((*DEFAULT_METRICS, *WATCHED_METRICS, *given_names))),
        numbers=cached.value,
        fresh=cached.fresh and summaries.fresh,
    )


def _compute_numbers(
    page_context: PageContext, work: AttemptTable, query: MetricsQuery
) -> MetricsNumbers:
    names = tuple(dict.fromkeys(query.metric)) or DEFAULT_METRICS
    given_names = [name for name in names if not is_derived(name)]
    if given_names:
        work = attach_scores(work, page_context.store, page_context.score_catalogue, given_names)
    if query.since or query.until:
        selection = AttemptSelection(name="", since=query.since, until=query.until)
        mask = selection_mask(work, selection).tolist()
        selected_ids = {name for name, keep in zip(work.attempts, mask, strict=True) if keep}
        work = work.select_rows(selected_ids)
    group_by = (query.by,) if query.by else ()
    metric_names = [
        metric.name
        for metric in select_metrics(work, names)
        if metric.kind not in (*REPEAT_KINDS, "sum")
    ]
    trends = compute_trends(work, group_by, metric_names)
    report = compute_metrics(work, group_by, metric_names)
    lines = build_figure_lines(report)
    charts = [
        _build_chart(metric, trends.courses, lines, work, query.by)
        for metric in report.definitions
        if any(line.metric == metric and line.figure.value is not None for line in lines)
    ]
    charted_names = {chart.metric.name for chart in charts}
    return MetricsNumbers(
        attempts=len(work),
        charts=tuple(charts),
        unknown=tuple(name for name in metric_names if name not in charted_names),
        table=build_figure_table(report, MAX_GROUPS) if group_by else None,
        marks=trends.marks[-MAX_VERSION_MARKS:],
        regressions=tuple(list_standing_regressions(trends)[:MAX_SERIES]),
        weeks=trends.weeks,
        notes=trends.notes,
    )


def _build_chart(
    metric: Metric,
    all_series: Sequence[MetricSeries],
    lines: Sequence[FigureLine],
    work: AttemptTable,
    group_by: str,
) -> TrendChart:
    """Build a chart of the groups with the most attempts, as many as can be distinguished."""
    metric_series = [series for series in all_series if series.metric == metric.name]
    if group_by:
        metric_series = [
            series for series in metric_series if series.group.get(group_by) != UNKNOWN_LABEL
        ]
        sizes = _group_sizes(work, group_by)
        metric_series.sort(key=lambda series: -sizes.get(series.group.get(group_by, ""), 0))
    shown_series = metric_series[:MAX_SERIES]
    return TrendChart(
        metric=metric,
        points=build_trend_points(shown_series),
        lines=tuple(line for line in lines if line.metric == metric) if not group_by else (),
        week=tuple(replace(series, stretches=series.stretches[-1:]) for series in shown_series),
        several=any(len(series.stretches) > 1 for series in shown_series),
    )


def _group_sizes(work: AttemptTable, dimension: str) -> dict[str, int]:
    import numpy as np

    column = DIMENSIONS[dimension](work)
    counts = np.bincount(column.codes, minlength=len(column.labels)).tolist()
    return {label: count for label, count in zip(column.labels, counts, strict=True) if label}


# Runs of gates.


class GateLine(Record):
    """One run of a gate."""

    run: GateRun
    refusal: str | None
    """Why its result does not count, if so."""


class GatesView(Record):
    gates: tuple[GateLine, ...]
    """Latest first."""


def gates(page_context: PageContext, query: NoQuery) -> GatesView:
    runs = page_context.store.experiments.list_gate_reports(MAX_GATE_RUNS)
    return GatesView(
        gates=tuple(GateLine(run=run, refusal=gate_refusal(run.report)) for run in runs)
    )


PAGES = (
    Page(
        path="/metrics",
        show=metrics,
        template="metrics.html",
        about="Metrics and scores over time, with bounds and change points.",
        section="Metrics",
        key="v",
        charts=True,
    ),
    Page(
        path="/gates",
        show=gates,
        template="gates.html",
        about="Gate results: whether agents work worse than the baseline.",
        section="Gate",
        key="b",
    ),
)


# Triage: which sessions to review first and why, and the probability that one succeeded.


SEVERITY_ORDER = ("error", "warning", "info")
MAX_ESTIMATED_SESSIONS = 20_000
"""Number of newest sessions that are estimated; what is usual for an agent needs no more."""


class TriagePageQuery(TimeRange):
    agent: str | None = None
    model: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 25


class TriageLine(Record):
    """One session to review."""

    session: SessionTriage
    row: AttemptRow
    marks: AttemptMarks
    findings: tuple[Finding, ...] = ()
    """Findings of rules, most severe first."""
    merge_share: float | None = None
    """Share of the people asked who would merge it."""


class TriageView(Record):
    """The sessions that probably failed, in the order in which to review them."""

    asked: TriagePageQuery
    lines: tuple[TriageLine, ...]
    total: int
    """Number of sessions with unknown result; the lines are the first of them."""
    agents: tuple[AgentGrades, ...]
    models: tuple[str, ...]
    quality: TriageQuality | None
    prior_auc: float | None
    """AUC of the estimate on public runs that it was not fitted on."""
    enough: int
    """Graded sessions of an agent that are needed to state a probability."""
    notes: tuple[str, ...]
    fresh: bool
    counted: bool
    """False until the sessions were estimated for the first time."""
    command: str | None = None
    """Equivalent command in the terminal; None if the command has no such filter."""


class LikelyView(Record):
    """The estimated probability that a session succeeded, with the reasons."""

    attempt: str
    session: SessionTriage | None
    """None while it is estimated, or if it has no trace."""
    of: int
    """Number of sessions that it is ranked among."""
    known: str | None
    """Its grade, if the result is known."""
    fresh: bool


def load_session_estimates(page_context: PageContext) -> CachedValue[SessionEstimates]:
    """Estimate every session with a trace, in the background and cached."""

    def estimate() -> SessionEstimates:
        tries = sorted(list_last_tries(page_context.store), key=_start_key, reverse=True)
        newest = tries[:MAX_ESTIMATED_SESSIONS]
        return estimate_sessions(
            page_context.store, page_context.rulebook, load_triage_prior(), tries=newest
        )

    return page_context.metric_cache.compute_from_store(
        "triage", page_context.store_mark(), estimate
    )


def _start_key(row: AttemptRow) -> float:
    return row.started.timestamp() if row.started else 0.0


def triage(page_context: PageContext, page_query: TriagePageQuery) -> TriageView:
    cached = load_session_estimates(page_context)
    estimates = cached.value
    if estimates is None:
        return TriageView(
            asked=page_query, lines=(), total=0, agents=(), models=(), quality=None, prior_auc=None,
            enough=MIN_GRADED_SESSIONS, notes=(), fresh=False, counted=False,
        )  # fmt: skip
    query = TriageQuery(
        since=page_query.since,
        until=page_query.until,
        agent=page_query.agent,
        model=page_query.model,
        limit=page_query.limit,
    )
    report = report_triage(estimates, query, page_context.store.held_out.list_sealed_digests())
    return TriageView(
        asked=page_query,
        lines=_triage_lines(page_context, estimates, report.sessions),
        total=report.total,
        agents=report.agents,
        models=tuple(sorted({row.model for row in estimates.rows if row.model})),
        quality=report.quality,
        prior_auc=report.prior.get("auc, held"),
        enough=MIN_GRADED_SESSIONS,
        notes=report.notes,
        fresh=cached.fresh,
        counted=True,
        command=format_triage_command(page_query),
    )


def format_triage_command(query: TriagePageQuery) -> str | None:
    if query.until is not None:
        return None
    since = f"{query.since:%Y-%m-%d}" if query.since else "all"
    arguments = ["closeloop", "triage", "--since", since]
    for name, value in (("--agent", query.agent), ("--model", query.model)):
        arguments += [name, value] if value else []
    return shlex.join([*arguments, "--limit", str(query.limit)])


def _triage_lines(
    page_context: PageContext, estimates: SessionEstimates, sessions: Sequence[SessionTriage]
) -> tuple[TriageLine, ...]:
    attempt_ids = {session.attempt for session in sessions}
    rows = {row.id: row for row in estimates.rows if row.id in attempt_ids}
    marks = page_context.load_attempt_marks([*rows.values()])
    merges = page_context.store.scores.load_merging_shares(AttemptSpan(attempts=tuple(rows)))
    return tuple(
        TriageLine(
            session=session,
            row=rows[session.attempt],
            marks=(row_marks := marks.get(session.attempt, AttemptMarks())),
            findings=_worst_findings(page_context, rows[session.attempt])
            if row_marks.findings
            else (),
            merge_share=merges.get(session.attempt),
        )
        for session in sessions
    )


def _worst_findings(page_context: PageContext, row: AttemptRow) -> tuple[Finding, ...]:
    """Return one finding for each rule, most severe first."""
    findings = unsilenced_rule_findings(page_context.load_measurement(row, make=False))
    by_rule = {finding.rule: finding for finding in reversed(findings)}
    return tuple(
        sorted(by_rule.values(), key=lambda finding: SEVERITY_ORDER.index(finding.severity))
    )


def likely(page_context: PageContext, query: AttemptIdQuery) -> LikelyView:
    """Return the probability that an attempt succeeded; graded ones are estimated too."""
    head, _ = load_attempt_head(page_context, query.attempt)
    cached = load_session_estimates(page_context)
    estimates = cached.value
    known_outcome = head.row.outcome if head.row.outcome in ("pass", "fail") else None
    return LikelyView(
        attempt=head.row.id,
        session=find_session_triage(estimates, head.row.id) if estimates else None,
        of=_count_ranked(estimates, head.row.id) if estimates else 0,
        known=known_outcome,
        fresh=cached.fresh,
    )


def _count_ranked(estimates: SessionEstimates, attempt: str) -> int:
    """Count the sessions it is ranked among: those without a known result, unless it has one."""
    unknown = {
        row.id
        for row, hit in zip(estimates.rows, estimates.hits.tolist(), strict=True)
        if math.isnan(hit)
    }
    return len(unknown) if attempt in unknown else len(estimates.rows)


TRIAGE_PAGES = (
    Page(
        path="/triage",
        show=triage,
        template="triage.html",
        about="Sessions without a known outcome, most likely failures first, with reasons.",
        section="Triage",
        key="w",
    ),
    Page(
        path="/attempts/{attempt}/likely",
        show=likely,
        template="likely.html",
        about="An attempt's estimated chance of success, with reasons.",
        section="Sessions",
        part=True,
    ),
)
