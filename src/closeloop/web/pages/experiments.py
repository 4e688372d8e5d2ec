"""Experiments: progress, cost, scores of variants, and failures."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from closeloop.attempts.run_resources import (
    count_working_seconds,
    estimate_seconds_left,
    read_experiment_status,
)
from closeloop.metrics.attempt_groups import AttemptSelection
from closeloop.metrics.attempt_measuring import find_experiment, list_experiment_attempts
from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.score_columns import (
    attach_scores,
    find_metric,
    find_source,
    load_attempt_scores,
)
from closeloop.metrics.task_log import TaskRepeats, group_task_repeats
from closeloop.metrics.variant_comparison import REVIEW_SCORE, compare_variants, default_scores
from closeloop.metrics.variant_trials import (
    REPORTED_METRICS,
    describe_needed,
    list_assigned,
    list_trials,
    report_on_work,
)
from closeloop.records.attempt import AttemptRow
from closeloop.records.errors import BadInput
from closeloop.records.estimate import CompareReport, VariantComparison
from closeloop.records.experiment_plan import ExperimentStatus, HeldOutRun, Trial, TrialReport
from closeloop.records.record import Record
from closeloop.records.score import ScoreSource
from closeloop.records.task import Experiment
from closeloop.store.metrics_section import AttemptSpan
from closeloop.web.event_views import FigureLine, build_figure_lines
from closeloop.web.page import NoQuery, Page, PageContext, PageNotFound, find_or_404
from closeloop.web.pages.attempts import MAX_DOTS, AttemptGrid, build_attempt_grid
from closeloop.web.pages.metrics import ScoreName, list_score_names, require_few_scores

MAX_EXPERIMENTS = 50
MAX_VERDICTS = 20
CLEAR_WORDS = ("better", "worse")
MAX_FAILED_ATTEMPTS = 100
MAX_TASK_TABLES = 50
"""Tasks up to which a table is shown; for more, `closeloop metrics --group-by task` suits better.
"""


class ExperimentsView(Record):
    courses: tuple[ExperimentStatus, ...]
    """Newest first."""
    verdicts: dict[str, VariantComparison] = {}
    """By experiment, the comparison of the first variant with the one that differs most clearly,
    without tasks and secondary metrics; for the newest experiments with several variants."""
    fresh: bool


class ExperimentAsked(Record):
    experiment: str
    """Id or a prefix of it."""
    score: tuple[ScoreName, ...] = ()
    """Scores shown beside the deciding one."""


class Ends(Record):
    """How many of the attempts that count passed, failed or have no score so far."""

    passed: int
    failed: int
    unscored: int


class VariantEnds(Ends):
    variant: str


class HeldOutResults(Record):
    """Results on held-out tasks, with the ledger of runs on them."""

    looks: tuple[HeldOutRun, ...]
    """Held-out runs of this experiment, latest first."""
    variants: tuple[VariantEnds, ...]


class ExperimentScores(Record):
    """The value of each variant by the deciding score."""

    decides: str
    """`resolved`, or `would-merge` if no task has a check."""
    source: ScoreSource
    lines: tuple[FigureLine, ...]
    """A line for each variant; by both scores if only some tasks have a check; then the requested
    scores."""
    awaiting: int
    """Attempts at tasks without a check that no person has judged as `would-merge` or not."""


class ExperimentNow(Record):
    """The progress of one experiment and its results on dev tasks so far."""

    course: ExperimentStatus
    seconds_left: float | None
    """Estimate from the pace so far; None if unknown or if nothing runs."""
    ends: Ends
    failed: tuple[AttemptRow, ...]
    """Attempts that failed or have no score, latest first."""
    more: int
    """Number of those that are not shown."""
    scores: ExperimentScores
    verdict: CompareReport | None
    """Comparison of its first variant with the others on dev tasks; None if none is possible."""
    grid: AttemptGrid
    tasks: tuple[TaskRepeats, ...] = ()
    """Each task with its repeats."""
    held_out: HeldOutResults | None = None
    """Results on held-out tasks, if it has any."""


class ExperimentView(Record):
    asked: ExperimentAsked
    scores: tuple[str, ...]
    """Names of scores that can be shown."""
    experiment: Experiment
    now: ExperimentNow | None
    """None until computed for the first time."""
    fresh: bool


def experiments(desk: PageContext, asked: NoQuery) -> ExperimentsView:
    courses, fresh = current_experiment_statuses(desk)
    compared = [course.experiment for course in courses if len(course.variants) > 1][:MAX_VERDICTS]
    if not compared:
        return ExperimentsView(courses=courses, fresh=fresh)
    verdicts = desk.metric_cache.compute_from_work(
        f"verdicts {[one.id for one in compared]}",
        lambda work: _list_verdicts(desk, work, compared),
    )
    return ExperimentsView(
        courses=courses, verdicts=verdicts.value or {}, fresh=fresh and verdicts.fresh
    )


def _list_verdicts(
    desk: PageContext, work: AttemptTable, compared: Sequence[Experiment]
) -> dict[str, VariantComparison]:
    """Compare variants as the page of each experiment does."""
    if work.columns["unchecked"].any():
        work = attach_scores(work, desk.store, desk.score_catalogue, [REVIEW_SCORE])
    columns = [work.columns[name].tolist() for name in ("variant", "task_digest", "number")]
    by_variant: dict[str | None, list[tuple[str, str | None, int]]] = {}
    for name, variant, task, number in zip(work.attempts, *columns, strict=True):
        by_variant.setdefault(variant, []).append((name, task, number))
    verdicts = {}
    for one in compared:
        tasks = set(one.tasks)
        names = {
            name
            for variant in one.variants
            for name, task, number in by_variant.get(variant, ())
            if task in tasks and not number > one.repeats
        }
        report = compare_tried_variants(work.select_rows(names), one)
        if report is not None and report.pairs:
            clear = [pair for pair in report.pairs if pair.comparison.here_word in CLEAR_WORDS]
            verdicts[one.id] = replace((clear or report.pairs)[0], tasks=(), secondary=())
    return verdicts


def current_experiment_statuses(desk: PageContext) -> tuple[tuple[ExperimentStatus, ...], bool]:
    """Return the status of the newest experiments, and whether it is current."""
    in_hand = sorted(desk.store.course.list_claimed_jobs())

    def load_statuses() -> tuple[ExperimentStatus, ...]:
        newest = desk.store.list_experiments()[:MAX_EXPERIMENTS]
        return tuple(read_experiment_status(desk.store, one, in_hand) for one in newest)

    cached_statuses = desk.metric_cache.compute_from_store(
        "experiments", f"{desk.store_mark()} {in_hand}", load_statuses
    )
    return cached_statuses.value or (), cached_statuses.fresh


def experiment(desk: PageContext, asked: ExperimentAsked) -> ExperimentView:
    require_few_scores(asked.score)
    chosen_experiment = find_or_404(find_experiment, desk.store, asked.experiment)
    names = tuple(dict.fromkeys(asked.score))
    in_hand = sorted(desk.store.course.list_claimed_jobs())
    cached_experiment = desk.metric_cache.compute_from_store(
        f"experiment {chosen_experiment.id} {names}",
        f"{desk.store_mark()} {in_hand}",
        lambda: _current_experiment(desk, chosen_experiment, in_hand, names),
    )
    return ExperimentView(
        asked=asked,
        scores=list_score_names(desk),
        experiment=chosen_experiment,
        now=cached_experiment.value,
        fresh=cached_experiment.fresh,
    )


def _current_experiment(
    desk: PageContext, chosen: Experiment, in_hand: list[str], names: Sequence[str]
) -> ExperimentNow:
    course = read_experiment_status(desk.store, chosen, in_hand)
    sealed = desk.store.held_out.list_sealed_digests()
    all_rows = list_experiment_attempts(desk.store, chosen)
    rows = [row for row in all_rows if row.task_digest not in sealed]
    work = _load_experiment_work(desk, chosen, rows, names)
    unchecked = {work.attempts[place] for place in work.columns["unchecked"].nonzero()[0].tolist()}
    merges = {
        name: scores[REVIEW_SCORE]
        for name, scores in load_attempt_scores(work, [REVIEW_SCORE])[1].items()
        if name in unchecked
    }
    failed_rows = [row for row in rows if row.outcome != "pass" and row.id not in unchecked]
    failed_rows.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    return ExperimentNow(
        course=course,
        seconds_left=_seconds_left(course, all_rows),
        ends=Ends(**_count_ends([row for row in rows if row.id not in unchecked])),
        failed=tuple(failed_rows[:MAX_FAILED_ATTEMPTS]),
        more=max(0, len(failed_rows) - MAX_FAILED_ATTEMPTS),
        scores=_experiment_scores(work, course, len(unchecked - merges.keys()), names),
        verdict=compare_tried_variants(work, chosen),
        grid=build_attempt_grid(desk, rows, tuple(dict.fromkeys(course.variants)), merges),
        tasks=tuple(group_task_repeats(rows, desk.load_attempt_marks(rows), merges))[
            :MAX_TASK_TABLES
        ]
        if len(rows) <= MAX_DOTS
        else (),
        held_out=_held_out_results(
            desk, chosen, [row for row in all_rows if row.task_digest in sealed]
        ),
    )


def _seconds_left(course: ExperimentStatus, rows: Sequence[AttemptRow]) -> float | None:
    """Estimate from the attempts made for it, as `closeloop run` does."""
    if not course.running:
        return None
    made = [row for row in rows if row.experiment == course.experiment.id]
    return estimate_seconds_left(count_working_seconds(made), len(made), course.total - course.done)


def compare_tried_variants(work: AttemptTable, chosen: Experiment) -> CompareReport | None:
    """Compare an experiment's first variant with the others; None if not possible."""
    known = [work.variants[key] for key in chosen.variants if key in work.variants]
    if len(known) < 2:
        return None
    choices = [AttemptSelection(name=one.name, variants=(one.digest,)) for one in known]
    try:
        return compare_variants(work, choices, scores=default_scores(work, choices))
    except BadInput:
        # It may be a look at held-out tasks, which are not compared here.
        return None


def _load_experiment_work(
    desk: PageContext, chosen: Experiment, rows: Sequence[AttemptRow], names: Sequence[str]
) -> AttemptTable:
    """Load these attempts with `would-merge` and the requested scores; nothing is measured."""
    span = AttemptSpan(variants=chosen.variants)
    work = load_attempt_table(desk.store, desk.rulebook, span, again=None)
    work = work.select_rows({row.id for row in rows})
    return attach_scores(work, desk.store, desk.score_catalogue, [REVIEW_SCORE, *names], span)


def _experiment_scores(
    work: AttemptTable, course: ExperimentStatus, awaiting: int, more: Sequence[str]
) -> ExperimentScores:
    """Compute the scores as `closeloop metrics --group-by variant` does."""
    names = default_scores(work, [AttemptSelection(name="all")])
    metric, _ = find_metric(work, names[0])
    if metric.name != REVIEW_SCORE and work.columns["unchecked"].any():
        names += (REVIEW_SCORE,)
    names = tuple(dict.fromkeys((*names, *more)))
    lines = build_figure_lines(compute_metrics(work, ("variant",), names))
    order = {name: place for place, name in enumerate(course.variants)}
    return ExperimentScores(
        decides=metric.score,
        source=find_source(metric),
        lines=tuple(
            sorted(lines, key=lambda one: order.get(one.figure.group["variant"], len(order)))
        ),
        awaiting=awaiting,
    )


def _count_ends(rows: Sequence[AttemptRow]) -> dict[str, int]:
    passed, failed = (sum(row.outcome == word for row in rows) for word in ("pass", "fail"))
    return {"passed": passed, "failed": failed, "unscored": len(rows) - passed - failed}


def _held_out_results(
    desk: PageContext, chosen: Experiment, rows: Sequence[AttemptRow]
) -> HeldOutResults | None:
    by_variant: dict[str, list[AttemptRow]] = {}
    for row in rows:
        by_variant.setdefault(row.variant_name or "?", []).append(row)
    if not by_variant:
        return None
    looks = desk.store.held_out.list_unsealings()
    return HeldOutResults(
        looks=tuple(look for look in looks if look.experiment == chosen.id),
        variants=tuple(
            VariantEnds(variant=name, **_count_ends(each)) for name, each in by_variant.items()
        ),
    )


PAGES = (
    Page(
        path="/experiments",
        show=experiments,
        template="experiments.html",
        about="Experiments and their progress.",
        section="Experiments",
        key="e",
    ),
    Page(
        path="/experiments/{experiment}",
        show=experiment,
        template="experiment.html",
        about="One experiment: progress, cost and failed attempts.",
        section="Experiments",
    ),
)


# Trials: variants compared by random assignment, and the control arm of the agent context.


class TrialLine(Record):
    """One trial in the list."""

    trial: Trial
    assigned: int
    report: TrialReport | None
    """None while it is computed, or if its score is not available."""


class TrialsView(Record):
    trials: tuple[TrialLine, ...]
    fresh: bool


class TrialAsked(Record):
    name: str


class TrialView(Record):
    trial: Trial
    report: TrialReport | None
    """None while it is computed."""
    reason: str | None
    """Why it cannot be computed."""
    metrics: tuple[str, ...]
    """The deciding rate first, then the other metrics."""
    needed: dict[str, str]
    """By variant, what would make the result more certain."""
    fresh: bool


def trials(desk: PageContext, asked: NoQuery) -> TrialsView:
    lines, fresh = [], True
    for trial in list_trials(desk.store, desk.settings.memory):
        report, _, is_fresh = _load_report(desk, trial)
        count = len(list_assigned(desk.store, trial))
        lines.append(TrialLine(trial=trial, assigned=count, report=report))
        fresh = fresh and is_fresh
    return TrialsView(trials=tuple(lines), fresh=fresh)


def trial(desk: PageContext, asked: TrialAsked) -> TrialView:
    known = {trial.name: trial for trial in list_trials(desk.store, desk.settings.memory)}
    if asked.name not in known:
        raise PageNotFound(
            f"There is no trial {asked.name!r}: start one with `closeloop ab start`."
        )
    chosen = known[asked.name]
    report, reason, fresh = _load_report(desk, chosen)
    standings = report.standings if report else ()
    return TrialView(
        trial=chosen,
        report=report,
        reason=reason,
        metrics=tuple(dict.fromkeys((chosen.metric, *REPORTED_METRICS))),
        needed={standing.variant: describe_needed(standing.comparison) for standing in standings},
        fresh=fresh,
    )


def _load_report(desk: PageContext, trial: Trial) -> tuple[TrialReport | None, str | None, bool]:
    """Return a trial's report, the reason if there is none, and whether it is complete."""

    def make_report(work: AttemptTable) -> tuple[TrialReport | None, str | None]:
        try:
            scored = attach_scores(work, desk.store, desk.score_catalogue, (trial.metric,))
            return report_on_work(scored, trial, list_assigned(desk.store, trial)), None
        except BadInput as fault:
            return None, str(fault)

    cached = desk.metric_cache.compute_from_work(f"trial {trial.name}", make_report)
    report, reason = cached.value or (None, None)
    return report, reason, cached.fresh


TRIAL_PAGES = (
    Page(
        path="/trials",
        show=trials,
        template="trials.html",
        about="A/B tests of variants, and the control group of team rules.",
        section="Trials",
        key="x",
    ),
    Page(
        path="/trials/{name}",
        show=trial,
        template="trial.html",
        about="One A/B test: verdict, interval and outcomes still needed.",
        section="Trials",
    ),
)
