"""Experiments: how far each one is, what it costs, and what failed."""

from __future__ import annotations

from closeloop.measuring.attempts import attempts_of, experiment_of
from closeloop.model.attempt import AttemptRow
from closeloop.model.plan import Course
from closeloop.model.record import Record
from closeloop.model.variant import Experiment
from closeloop.running.courses import course_of, seconds_left
from closeloop.tasks.seal import hide_row
from closeloop.web.desk import Desk
from closeloop.web.page import Nothing, Page, found
from closeloop.web.pages.attempts import AttemptGrid, grid_of

MOST_EXPERIMENTS = 50
MOST_FAILED = 100


class ExperimentsView(Record):
    courses: tuple[Course, ...]
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

    course: Course
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


def experiments(desk: Desk, asked: Nothing) -> ExperimentsView:
    courses, fresh = courses_now(desk)
    return ExperimentsView(courses=courses, fresh=fresh)


def courses_now(desk: Desk) -> tuple[tuple[Course, ...], bool]:
    """How the newest experiments stand, and whether that is so now."""
    in_hand = sorted(desk.store.course.in_hand())

    def made() -> tuple[Course, ...]:
        newest = desk.store.experiments()[:MOST_EXPERIMENTS]
        return tuple(course_of(desk.store, one, in_hand) for one in newest)

    counted = desk.counting.of_store("experiments", f"{desk.mark()} {in_hand}", made)
    return counted.value or (), counted.fresh


def experiment(desk: Desk, asked: ExperimentAsked) -> ExperimentView:
    chosen = found(experiment_of, desk.store, asked.experiment)
    in_hand = sorted(desk.store.course.in_hand())
    counted = desk.counting.of_store(
        f"experiment {chosen.id}",
        f"{desk.mark()} {in_hand}",
        lambda: _now(desk, chosen, in_hand),
    )
    return ExperimentView(experiment=chosen, now=counted.value, fresh=counted.fresh)


def _now(desk: Desk, chosen: Experiment, in_hand: list[str]) -> ExperimentNow:
    course = course_of(desk.store, chosen, in_hand)
    sealed = desk.store.held_out.sealed()
    rows = [hide_row(row, sealed) for row in attempts_of(desk.store, chosen)]
    bad = [row for row in rows if row.outcome != "pass"]
    bad.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    passed, failed = (sum(row.outcome == word for row in rows) for word in ("pass", "fail"))
    return ExperimentNow(
        course=course,
        seconds_left=seconds_left(desk.store, course),
        ends=Ends(passed=passed, failed=failed, unscored=len(rows) - passed - failed),
        failed=tuple(bad[:MOST_FAILED]),
        more=max(0, len(bad) - MOST_FAILED),
        grid=grid_of(desk, rows, tuple(dict.fromkeys(course.variants))),
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
