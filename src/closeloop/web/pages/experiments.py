"""Experiments: progress, cost, scores of variants, and failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from closeloop.attempts.run_resources import (
    count_working_seconds,
    estimate_seconds_left,
    read_experiment_status,
)
from closeloop.metrics.attempt_groups import AttemptSelection
from closeloop.metrics.attempt_measuring import find_experiment, list_experiment_attempts
from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.metric_definitions import count_passes
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
    MEMORY_TRIAL,
    REPORTED_METRICS,
    describe_needed,
    list_assigned,
    list_trials,
    report_on_work,
)
from closeloop.records.attempt import AttemptFilter, AttemptRow
from closeloop.records.errors import BadInput
from closeloop.records.estimate import CompareReport, VariantComparison
from closeloop.records.experiment_plan import ExperimentStatus, HeldOutRun, Trial, TrialReport
from closeloop.records.record import Record
from closeloop.records.score import ScoreSource
from closeloop.records.task import Experiment
from closeloop.store.experiment_section import name_arm
from closeloop.store.metrics_section import AttemptSpan
from closeloop.web.event_views import FigureLine, build_figure_lines
from closeloop.web.page import NoQuery, Page, PageContext, PageNotFound, find_or_404
from closeloop.web.pages.attempts import MAX_DOTS, AttemptGrid, build_attempt_grid
from closeloop.web.pages.metrics import ScoreName, list_score_names, require_few_scores

MAX_EXPERIMENTS = 50
SPENT_METRICS = ("cost", "cost per passed task", "time")
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


class ExperimentQuery(Record):
    experiment: str
    """Id or a prefix of it."""
    score: tuple[ScoreName, ...] = ()
    """Scores shown beside the deciding one."""


class Ends(Record):
    """How many of the attempts that count passed, failed or have no score so far."""

    passed: int
    failed: int
    unscored: int
    passes: dict[str, int] = {}
    """Passes that are `confirmed`, `reported`, `weak`, `by answer` or of `unknown evidence`."""


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
    spent: tuple[FigureLine, ...]
    """Cost and time of each variant."""


class RunningExperiment(Record):
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
    asked: ExperimentQuery
    scores: tuple[str, ...]
    """Names of scores that can be shown."""
    experiment: Experiment
    now: RunningExperiment | None
    """None until computed for the first time."""
    fresh: bool


def experiments(page_context: PageContext, query: NoQuery) -> ExperimentsView:
    statuses, fresh = current_experiment_statuses(page_context)
    compared = [status.experiment for status in statuses if len(status.variants) > 1][:MAX_VERDICTS]
    if not compared:
        return ExperimentsView(courses=statuses, fresh=fresh)
    verdicts = page_context.metric_cache.compute_from_work(
        f"verdicts {[experiment.id for experiment in compared]}",
        lambda work: _list_verdicts(page_context, work, compared),
    )
    return ExperimentsView(
        courses=statuses, verdicts=verdicts.value or {}, fresh=fresh and verdicts.fresh
    )


def _list_verdicts(
    page_context: PageContext, work: AttemptTable, compared: Sequence[Experiment]
) -> dict[str, VariantComparison]:
    """Compare variants as the page of each experiment does."""
    known = {digest for experiment in compared for digest in experiment.variants}
    work = page_context.load_controls(work, known & work.variants.keys())
    if work.columns["unchecked"].any():
        work = attach_scores(work, page_context.store, page_context.score_catalogue, [REVIEW_SCORE])
    columns = [work.columns[name].tolist() for name in ("variant", "task_digest", "number")]
    by_variant: dict[str | None, list[tuple[str, str | None, int]]] = {}
    for name, variant, task, number in zip(work.attempts, *columns, strict=True):
        by_variant.setdefault(variant, []).append((name, task, number))
    verdicts = {}
    for experiment in compared:
        tasks = set(experiment.tasks)
        names = {
            name
            for variant in experiment.variants
            for name, task, number in by_variant.get(variant, ())
            if task in tasks and not number > experiment.repeats
        }
        report = compare_tried_variants(work.select_rows(names), experiment)
        if report is not None and report.pairs:
            clear = [pair for pair in report.pairs if pair.comparison.here_word in CLEAR_WORDS]
            verdicts[experiment.id] = replace((clear or report.pairs)[0], tasks=(), secondary=())
    return verdicts


def current_experiment_statuses(
    page_context: PageContext,
) -> tuple[tuple[ExperimentStatus, ...], bool]:
    """Return the status of the newest experiments, and whether it is current."""
    in_hand = sorted(page_context.store.experiments.list_claimed_jobs())

    def load_statuses() -> tuple[ExperimentStatus, ...]:
        newest = page_context.store.list_experiments()[:MAX_EXPERIMENTS]
        return tuple(
            read_experiment_status(page_context.store, experiment, in_hand) for experiment in newest
        )

    cached_statuses = page_context.metric_cache.compute_from_store(
        "experiments", f"{page_context.store_mark()} {in_hand}", load_statuses
    )
    return cached_statuses.value or (), cached_statuses.fresh


def experiment(page_context: PageContext, query: ExperimentQuery) -> ExperimentView:
    require_few_scores(query.score)
    chosen_experiment = find_or_404(find_experiment, page_context.store, query.experiment)
    names = tuple(dict.fromkeys(query.score))
    in_hand = sorted(page_context.store.experiments.list_claimed_jobs())
    cached_experiment = page_context.metric_cache.compute_from_store(
        f"experiment {chosen_experiment.id} {names}",
        f"{page_context.store_mark()} {in_hand}",
        lambda: _current_experiment(page_context, chosen_experiment, in_hand, names),
    )
    return ExperimentView(
        asked=query,
        scores=list_score_names(page_context),
        experiment=chosen_experiment,
        now=cached_experiment.value,
        fresh=cached_experiment.fresh,
    )


def _current_experiment(
    page_context: PageContext, experiment: Experiment, in_hand: list[str], names: Sequence[str]
) -> RunningExperiment:
    status = read_experiment_status(page_context.store, experiment, in_hand)
    sealed = page_context.store.held_out.list_sealed_digests()
    all_rows = list_experiment_attempts(page_context.store, experiment)
    rows = [row for row in all_rows if row.task_digest not in sealed]
    work = _load_experiment_work(page_context, experiment, rows, names)
    unchecked = {work.attempts[index] for index in work.columns["unchecked"].nonzero()[0].tolist()}
    merges = {
        name: scores[REVIEW_SCORE]
        for name, scores in load_attempt_scores(work, [REVIEW_SCORE])[1].items()
        if name in unchecked
    }
    failed_rows = [row for row in rows if row.outcome != "pass" and row.id not in unchecked]
    failed_rows.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    return RunningExperiment(
        course=status,
        seconds_left=_seconds_left(status, all_rows),
        ends=Ends(**_count_ends([row for row in rows if row.id not in unchecked])),
        failed=tuple(failed_rows[:MAX_FAILED_ATTEMPTS]),
        more=max(0, len(failed_rows) - MAX_FAILED_ATTEMPTS),
        scores=_experiment_scores(work, status, len(unchecked - merges.keys()), names),
        verdict=compare_tried_variants(work, experiment),
        grid=build_attempt_grid(page_context, rows, tuple(dict.fromkeys(status.variants)), merges),
        tasks=tuple(group_task_repeats(rows, page_context.load_attempt_marks(rows), merges))[
            :MAX_TASK_TABLES
        ]
        if len(rows) <= MAX_DOTS
        else (),
        held_out=_held_out_results(
            page_context, experiment, [row for row in all_rows if row.task_digest in sealed]
        ),
    )


def _seconds_left(status: ExperimentStatus, rows: Sequence[AttemptRow]) -> float | None:
    """Estimate from the attempts made for it, as `closeloop run` does."""
    if not status.running:
        return None
    own_rows = [row for row in rows if row.experiment == status.experiment.id]
    return estimate_seconds_left(
        count_working_seconds(own_rows), len(own_rows), status.total - status.done
    )


def compare_tried_variants(work: AttemptTable, experiment: Experiment) -> CompareReport | None:
    """Compare an experiment's first variant with the others; None if not possible."""
    variants = [work.variants[key] for key in experiment.variants if key in work.variants]
    if len(variants) < 2:
        return None
    choices = [
        AttemptSelection(name=variant.name, variants=(variant.digest,)) for variant in variants
    ]
    try:
        return compare_variants(work, choices, scores=default_scores(work, choices))
    except BadInput:
        # It may be a run of held-out tasks, which are not compared here.
        return None


def _load_experiment_work(
    page_context: PageContext,
    experiment: Experiment,
    rows: Sequence[AttemptRow],
    names: Sequence[str],
) -> AttemptTable:
    """Load these attempts with `would-merge` and the requested scores; nothing is measured."""
    span = AttemptSpan(variants=experiment.variants)
    work = load_attempt_table(page_context.store, page_context.rulebook, span, remeasure=None)
    work = work.select_rows({row.id for row in rows})
    return attach_scores(
        work, page_context.store, page_context.score_catalogue, [REVIEW_SCORE, *names], span
    )


def _experiment_scores(
    work: AttemptTable, status: ExperimentStatus, awaiting: int, extra_scores: Sequence[str]
) -> ExperimentScores:
    """Compute the scores as `closeloop metrics --group-by variant` does."""
    names = default_scores(work, [AttemptSelection(name="all")])
    metric, _ = find_metric(work, names[0])
    if metric.name != REVIEW_SCORE and work.columns["unchecked"].any():
        names += (REVIEW_SCORE,)
    names = tuple(dict.fromkeys((*names, *extra_scores)))
    lines = build_figure_lines(compute_metrics(work, ("variant",), names))
    order = {name: index for index, name in enumerate(status.variants)}
    return ExperimentScores(
        decides=metric.score,
        source=find_source(metric),
        lines=tuple(
            sorted(lines, key=lambda line: order.get(line.figure.group["variant"], len(order)))
        ),
        awaiting=awaiting,
        spent=tuple(build_figure_lines(compute_metrics(work, ("variant",), SPENT_METRICS))),
    )


def _count_ends(rows: Sequence[AttemptRow]) -> dict[str, Any]:
    passed, failed = (sum(row.outcome == outcome for row in rows) for outcome in ("pass", "fail"))
    unscored = len(rows) - passed - failed
    return {"passed": passed, "failed": failed, "unscored": unscored, "passes": count_passes(rows)}


def _held_out_results(
    page_context: PageContext, experiment: Experiment, rows: Sequence[AttemptRow]
) -> HeldOutResults | None:
    by_variant: dict[str, list[AttemptRow]] = {}
    for row in rows:
        by_variant.setdefault(row.variant_name or "?", []).append(row)
    if not by_variant:
        return None
    unsealings = page_context.store.held_out.list_unsealings()
    return HeldOutResults(
        looks=tuple(unsealing for unsealing in unsealings if unsealing.experiment == experiment.id),
        variants=tuple(
            VariantEnds(variant=name, **_count_ends(variant_rows))
            for name, variant_rows in by_variant.items()
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


class ArmWork(Record):
    """The work of one arm, as the lists of attempts and of pull requests have it."""

    variant: str
    arm: str
    """What the lists are filtered by."""
    attempts: int
    pulls: int


class TrialLine(Record):
    """One trial in the list."""

    trial: Trial
    assigned: int
    arms: tuple[ArmWork, ...]
    """Empty while they are counted."""
    report: TrialReport | None
    """None while it is computed, or if its score is not available."""


class TrialsView(Record):
    trials: tuple[TrialLine, ...]
    fresh: bool


class TrialQuery(Record):
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
    arms: dict[str, ArmWork]
    """By variant; empty while they are counted."""
    fresh: bool


def trials(page_context: PageContext, query: NoQuery) -> TrialsView:
    store, memory = page_context.store, page_context.settings.memory
    cached = page_context.metric_cache.compute_from_store(
        "trials",
        page_context.store_mark(),
        lambda: [(trial, len(list_assigned(store, trial))) for trial in list_trials(store, memory)],
    )
    lines, fresh = [], cached.fresh
    for trial, count in cached.value or ():
        report, _, is_fresh = _load_report(page_context, trial)
        arms, is_counted = _count_arms(page_context, trial)
        lines.append(TrialLine(trial=trial, assigned=count, arms=arms, report=report))
        fresh = fresh and is_fresh and is_counted
    return TrialsView(trials=tuple(lines), fresh=fresh)


def trial(page_context: PageContext, query: TrialQuery) -> TrialView:
    trials_by_name = {
        trial.name: trial for trial in list_trials(page_context.store, page_context.settings.memory)
    }
    if query.name not in trials_by_name:
        raise PageNotFound(
            f"There is no trial {query.name!r}: start one with `closeloop ab start`."
        )
    chosen_trial = trials_by_name[query.name]
    report, reason, fresh = _load_report(page_context, chosen_trial)
    standings = report.standings if report else ()
    arms, is_counted = _count_arms(page_context, chosen_trial)
    return TrialView(
        trial=chosen_trial,
        report=report,
        reason=reason,
        metrics=tuple(dict.fromkeys((chosen_trial.metric, *REPORTED_METRICS))),
        needed={standing.variant: describe_needed(standing.comparison) for standing in standings},
        arms={arm.variant: arm for arm in arms},
        fresh=fresh and is_counted,
    )


def _count_arms(page_context: PageContext, trial: Trial) -> tuple[tuple[ArmWork, ...], bool]:
    """Return the work of each arm, and whether their numbers are current."""

    def count_work() -> tuple[ArmWork, ...]:
        store = page_context.store
        of_pulls = [row.attempt for row in store.pulls.list_pulls(agent=True) if row.attempt]
        sealed = store.held_out.list_sealed_digests()
        names = {
            variant: variant if trial.name == MEMORY_TRIAL else name_arm(trial.name, variant)
            for variant in trial.shares
        }
        return tuple(
            ArmWork(
                variant=variant,
                arm=arm,
                attempts=store.listing.count_matches(AttemptFilter(arm=arm), without=sealed),
                pulls=len(store.listing.list_matches(AttemptFilter(arm=arm), of_pulls)),
            )
            for variant, arm in names.items()
        )

    cached = page_context.metric_cache.compute_from_store(
        f"arms {trial.name}", page_context.store_mark(), count_work
    )
    return cached.value or (), cached.fresh


def _load_report(
    page_context: PageContext, trial: Trial
) -> tuple[TrialReport | None, str | None, bool]:
    """Return a trial's report, the reason if there is none, and whether it is complete."""

    def make_report(work: AttemptTable) -> tuple[TrialReport | None, str | None]:
        try:
            scored = attach_scores(
                work, page_context.store, page_context.score_catalogue, (trial.metric,)
            )
            return report_on_work(scored, trial, list_assigned(page_context.store, trial)), None
        except BadInput as fault:
            return None, str(fault)

    cached = page_context.metric_cache.compute_from_work(f"trial {trial.name}", make_report)
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
