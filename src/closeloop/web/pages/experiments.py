"""Experiments: how far each one is, what it costs, and what failed."""

from __future__ import annotations

from closeloop.attempts.experiment_status import estimate_seconds_left, read_experiment_status
from closeloop.metrics.attempt_measuring import find_experiment, list_experiment_attempts
from closeloop.records.attempt import AttemptRow
from closeloop.records.experiment_plan import ExperimentStatus
from closeloop.records.record import Record
from closeloop.records.variant import Experiment
from closeloop.tasks.sealed_tasks import hide_attempt
from closeloop.web.page import NoQuery, Page, find_or_404
from closeloop.web.page_context import PageContext
from closeloop.web.pages.attempts import AttemptGrid, build_attempt_grid

MAX_EXPERIMENTS = 50
MAX_FAILED_ATTEMPTS = 100


class ExperimentsView(Record):
    courses: tuple[ExperimentStatus, ...]
    """The newest first."""
    fresh: bool


class ExperimentAsked(Record):
    experiment: str
    """The id, or the beginning of it."""


class Ends(Record):
    """How the attempts that count have ended so far."""

    passed: int
    failed: int
    unscored: int


class ExperimentNow(Record):
    """How one experiment stands, and what came of it so far."""

    course: ExperimentStatus
    seconds_left: float | None
    """At the pace it has; None where that is not known, or where nothing runs."""
    ends: Ends
    failed: tuple[AttemptRow, ...]
    """Attempts that failed or have no score, the latest first."""
    more: int
    """Of those, that are not told."""
    grid: AttemptGrid


class ExperimentView(Record):
    experiment: Experiment
    now: ExperimentNow | None
    """None until it was looked at the first time."""
    fresh: bool


def experiments(desk: PageContext, asked: NoQuery) -> ExperimentsView:
    courses, fresh = current_experiment_statuses(desk)
    return ExperimentsView(courses=courses, fresh=fresh)


def current_experiment_statuses(desk: PageContext) -> tuple[tuple[ExperimentStatus, ...], bool]:
    """How the newest experiments stand, and whether that is so now."""
    in_hand = sorted(desk.store.course.list_claimed_jobs())

    def load_statuses() -> tuple[ExperimentStatus, ...]:
        newest = desk.store.list_experiments()[:MAX_EXPERIMENTS]
        return tuple(read_experiment_status(desk.store, one, in_hand) for one in newest)

    cached_statuses = desk.metric_cache.compute_from_store(
        "experiments", f"{desk.store_mark()} {in_hand}", load_statuses
    )
    return cached_statuses.value or (), cached_statuses.fresh


def experiment(desk: PageContext, asked: ExperimentAsked) -> ExperimentView:
    chosen_experiment = find_or_404(find_experiment, desk.store, asked.experiment)
    in_hand = sorted(desk.store.course.list_claimed_jobs())
    cached_experiment = desk.metric_cache.compute_from_store(
        f"experiment {chosen_experiment.id}",
        f"{desk.store_mark()} {in_hand}",
        lambda: _current_experiment(desk, chosen_experiment, in_hand),
    )
    return ExperimentView(
        experiment=chosen_experiment, now=cached_experiment.value, fresh=cached_experiment.fresh
    )


def _current_experiment(desk: PageContext, chosen: Experiment, in_hand: list[str]) -> ExperimentNow:
    course = read_experiment_status(desk.store, chosen, in_hand)
    sealed = desk.store.held_out.list_sealed_digests()
    rows = [hide_attempt(row, sealed) for row in list_experiment_attempts(desk.store, chosen)]
    failed_rows = [row for row in rows if row.outcome != "pass"]
    failed_rows.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    passed, failed = (sum(row.outcome == word for row in rows) for word in ("pass", "fail"))
    return ExperimentNow(
        course=course,
        seconds_left=estimate_seconds_left(desk.store, course),
        ends=Ends(passed=passed, failed=failed, unscored=len(rows) - passed - failed),
        failed=tuple(failed_rows[:MAX_FAILED_ATTEMPTS]),
        more=max(0, len(failed_rows) - MAX_FAILED_ATTEMPTS),
        grid=build_attempt_grid(desk, rows, tuple(dict.fromkeys(course.variants))),
    )


PAGES = (
    Page(
        path="/experiments",
        show=experiments,
        template="experiments.html",
        about="Experiments, and how far each one is.",
        section="Experiments",
        key="e",
    ),
    Page(
        path="/experiments/{experiment}",
        show=experiment,
        template="experiment.html",
        about="One experiment: how far it is, what it costs, what failed.",
        section="Experiments",
    ),
)
