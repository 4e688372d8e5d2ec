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
from closeloop.metrics.task_repeats import TaskRepeats, group_task_repeats
from closeloop.records.attempt import (
    AttemptFilter,
    AttemptMarks,
    AttemptRow,
    FilterChoices,
    PageCursor,
)
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import ExperimentStatus
from closeloop.records.held_out import HeldOutRun
from closeloop.records.record import Record
from closeloop.records.task import Experiment
from closeloop.web.page import NoQuery, Page, find_or_404
from closeloop.web.page_context import PageContext

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


class AttemptLine(Record):
    """One line of the list."""

    row: AttemptRow
    marks: AttemptMarks


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
    rows = desk.store.listing.list_page(attempt_filter, limit, after, without=sealed)
    if asked.show == "grid":
        return AttemptsView(
            asked=asked, choices=choices, rules=rules, grid=build_attempt_grid(desk, rows)
        )
    shown_rows = rows[: asked.limit]
    return AttemptsView(
        asked=asked,
        choices=choices,
        rules=rules,
        lines=attempt_lines(desk, shown_rows),
        next=cursor_after_row(shown_rows[-1]) if len(rows) > asked.limit else None,
    )


def attempt_lines(desk: PageContext, rows: Sequence[AttemptRow]) -> tuple[AttemptLine, ...]:
    """Attempts as a list shows them, with what was found in each."""
    marks = desk.load_attempt_marks(rows)
    return tuple(AttemptLine(row=row, marks=marks.get(row.id, AttemptMarks())) for row in rows)


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
MAX_TASK_TABLES = 50
"""Larger experiments are better looked at by `closeloop metrics --by task`."""


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
    for_review: int = 0
    """Of tasks without a check: people and judges score them."""


class VariantEnds(Ends):
    variant: str


class HeldOutResults(Record):
    """What came of held-out tasks, with what the ledger says of the looks at them."""

    looks: tuple[HeldOutRun, ...]
    """Of this experiment, the latest first."""
    variants: tuple[VariantEnds, ...]


class ExperimentNow(Record):
    """How one experiment stands, and what came of its dev tasks so far."""

    course: ExperimentStatus
    seconds_left: float | None
    """At the pace it has; None where that is not known, or where nothing runs."""
    ends: Ends
    failed: tuple[AttemptRow, ...]
    """Attempts that failed or have no score, the latest first."""
    more: int
    """Of those, that are not told."""
    grid: AttemptGrid
    tasks: tuple[TaskRepeats, ...] = ()
    """Each task over its repeats."""
    held_out: HeldOutResults | None = None
    """Where it has held-out tasks."""


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
    all_rows = list_experiment_attempts(desk.store, chosen)
    rows = [row for row in all_rows if row.task_digest not in sealed]
    failed_rows = [row for row in rows if row.outcome == "fail" or row.is_unscored]
    failed_rows.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    return ExperimentNow(
        course=course,
        seconds_left=estimate_seconds_left(desk.store, course),
        ends=Ends(**_count_ends(rows)),
        failed=tuple(failed_rows[:MAX_FAILED_ATTEMPTS]),
        more=max(0, len(failed_rows) - MAX_FAILED_ATTEMPTS),
        grid=build_attempt_grid(desk, rows, tuple(dict.fromkeys(course.variants))),
        tasks=tuple(group_task_repeats(rows, desk.load_attempt_marks(rows)))[:MAX_TASK_TABLES]
        if len(rows) <= MAX_DOTS
        else (),
        held_out=_held_out_results(
            desk, chosen, [row for row in all_rows if row.task_digest in sealed]
        ),
    )


def _count_ends(rows: Sequence[AttemptRow]) -> dict[str, int]:
    passed, failed = (sum(row.outcome == word for row in rows) for word in ("pass", "fail"))
    for_review = sum(row.is_for_review for row in rows)
    return {
        "passed": passed,
        "failed": failed,
        "unscored": len(rows) - passed - failed - for_review,
        "for_review": for_review,
    }


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
