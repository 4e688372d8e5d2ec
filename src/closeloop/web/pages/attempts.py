"""Attempts and experiments: lists to narrow down, how far each is, what failed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from closeloop.attempts.experiment_status import estimate_seconds_left, read_experiment_status
from closeloop.metrics.attempt_measuring import find_experiment, list_experiment_attempts
from closeloop.records.attempt import (
    AttemptFilter,
    AttemptMarks,
    AttemptRow,
    FilterChoices,
    PageCursor,
)
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import ExperimentStatus
from closeloop.records.record import Record
from closeloop.records.task import Experiment
from closeloop.tasks.sealed_tasks import hide_attempt, is_alias
from closeloop.web.page import NoQuery, Page, find_or_404
from closeloop.web.page_context import PageContext
from closeloop.web.pages.scores import (
    ScoreCell,
    ScoreName,
    list_score_names,
    load_score_cells,
)

# Cursors: where the next page of a list begins, as text that an address can hold.


def cursor_after_row(row: AttemptRow) -> str:
    """The page after this line."""
    body = msgspec.json.encode(PageCursor(started=row.started, id=row.id))
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def parse_cursor(text: str | None) -> PageCursor | None:
    if text is None:
        return None
    try:
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(body, type=PageCursor)
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise BadInput("That page of the list is not there: begin at its first.") from error


MAX_DOTS = 1000


class AttemptsAsked(AttemptFilter):
    """Which attempts, and how they are shown."""

    show: Literal["list", "grid"] = "list"
    after: str | None = None
    """The cursor of a page of the list."""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    score: tuple[ScoreName, ...] = ()
    """Scores that the list has a column for."""


class AttemptLine(Record):
    """One line of the list."""

    row: AttemptRow
    marks: AttemptMarks
    scores: tuple[ScoreCell, ...] = ()
    """Of each score that is asked for, in that order."""


class Dot(Record):
    """One repeat of a task by a variant."""

    id: str
    number: int
    result: Literal["pass", "fail", "unscored", "session"]
    findings: int
    outdated: bool = False
    """Whether the findings are those of earlier rules."""


class GridRow(Record):
    """One task, and by variant what its repeats came to."""

    task: str
    cells: tuple[tuple[Dot, ...], ...]


class AttemptGrid(Record):
    variants: tuple[str, ...]
    rows: tuple[GridRow, ...]
    cut: bool
    """Whether only the newest attempts are in it."""


class AttemptsView(Record):
    """Attempts, the newest first."""

    asked: AttemptsAsked
    choices: FilterChoices
    rules: tuple[str, ...]
    """Names of rules that a finding may be of."""
    scores: tuple[str, ...] = ()
    """Names of those that the list may show."""
    lines: tuple[AttemptLine, ...] = ()
    next: str | None = None
    """The cursor of the next page."""
    grid: AttemptGrid | None = None


def attempts(desk: PageContext, asked: AttemptsAsked) -> AttemptsView:
    """A page of them, or the grid."""
    sealed = desk.store.held_out.list_sealed_digests()
    choices = _filter_choices(desk, sealed)
    rules = tuple(one.detector.rule.name for one in desk.rulebook.chosen)
    limit = MAX_DOTS if asked.show == "grid" else asked.limit + 1
    after = None if asked.show == "grid" else parse_cursor(asked.after)
    attempt_filter = AttemptFilter(
        **{name: getattr(asked, name) for name in AttemptFilter.__struct_fields__}
    )
    rows = [
        hide_attempt(row, sealed)
        for row in desk.store.listing.list_page(attempt_filter, limit, after)
    ]
    if attempt_filter.task is not None:
        # Whoever asks for a sealed task by its name is told nothing of it.
        rows = [row for row in rows if not is_alias(row.task)]
    if asked.show == "grid":
        return AttemptsView(
            asked=asked, choices=choices, rules=rules, grid=build_attempt_grid(desk, rows)
        )
    shown_rows = rows[: asked.limit]
    return AttemptsView(
        asked=asked,
        choices=choices,
        rules=rules,
        scores=list_score_names(desk),
        lines=attempt_lines(desk, shown_rows, tuple(dict.fromkeys(asked.score))),
        next=cursor_after_row(shown_rows[-1]) if len(rows) > asked.limit else None,
    )


def attempt_lines(
    desk: PageContext, rows: Sequence[AttemptRow], scores: Sequence[str] = ()
) -> tuple[AttemptLine, ...]:
    """Attempts as a list shows them, with what was found in each and how it scores."""
    marks = desk.load_attempt_marks(rows)
    cells = load_score_cells(desk, [row.id for row in rows], scores)
    return tuple(
        AttemptLine(row=row, marks=marks.get(row.id, AttemptMarks()), scores=cells.get(row.id, ()))
        for row in rows
    )


def _filter_choices(desk: PageContext, sealed: frozenset[str]) -> FilterChoices:
    """All that attempts can be narrowed to takes a while to find where there are many."""
    cached_choices = desk.metric_cache.compute_from_store(
        "choices", desk.store_mark(), lambda: desk.store.listing.list_choices(sealed)
    )
    return cached_choices.value or FilterChoices()


def build_attempt_grid(
    desk: PageContext, rows: list[AttemptRow], order: Sequence[str] = ()
) -> AttemptGrid:
    """Attempts at tasks, a dot each; variants in the given order, then by name."""
    marks = desk.load_attempt_marks([row for row in rows if row.task])
    cells: dict[str, dict[str, list[Dot]]] = {}
    for row in rows:
        if row.task is not None:
            row_marks = marks.get(row.id, AttemptMarks())
            result = row.outcome or "unscored"
            dot = Dot(
                id=row.id,
                number=row.number,
                result=result,
                findings=row_marks.findings,
                outdated=row_marks.outdated,
            )
            cells.setdefault(row.task, {}).setdefault(row.variant_name or "?", []).append(dot)
    names = {name for by_variant in cells.values() for name in by_variant}
    variants = [*(name for name in order if name in names), *sorted(names.difference(order))]
    return AttemptGrid(
        variants=tuple(variants),
        rows=tuple(
            GridRow(
                task=task,
                cells=tuple(
                    tuple(sorted(cells[task].get(name, ()), key=lambda dot: dot.number))
                    for name in variants
                ),
            )
            for task in sorted(cells)
        ),
        cut=len(rows) == MAX_DOTS,
    )


PAGES = (
    Page(
        path="/attempts",
        show=attempts,
        template="attempts.html",
        about="Attempts, and how they ended.",
        section="Attempts",
        key="a",
    ),
)


# Experiments: how far each one is, what it costs, and what failed.

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


EXPERIMENT_PAGES = (
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
