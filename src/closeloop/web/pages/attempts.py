"""Attempts: a list to narrow down, or a grid of tasks and variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from closeloop.records.attempt import AttemptRow
from closeloop.records.attempt_lists import AttemptFilter, AttemptMarks, FilterChoices
from closeloop.records.record import Record
from closeloop.tasks.sealed_tasks import hide_attempt, is_alias
from closeloop.web.list_cursors import cursor_after_row, parse_cursor
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext

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
