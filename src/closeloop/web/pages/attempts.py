"""Attempts: a list to narrow down, or a grid of tasks and variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from closeloop.model.attempt import AttemptRow
from closeloop.model.listing import Choices, Filter, Marks
from closeloop.model.record import Record
from closeloop.tasks.seal import hide_row, is_alias
from closeloop.web.cursors import cursor_after, read_cursor
from closeloop.web.desk import Desk
from closeloop.web.page import Page

MOST_DOTS = 1000


class AttemptsAsked(Filter):
    """Which attempts, and how they are shown."""

    show: Literal["list", "grid"] = "list"
    after: str | None = None
    """The cursor of a page of the list."""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class AttemptLine(Record):
    """One line of the list."""

    row: AttemptRow
    marks: Marks


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
    choices: Choices
    rules: tuple[str, ...]
    """Names of rules that a finding may be of."""
    lines: tuple[AttemptLine, ...] = ()
    next: str | None = None
    """The cursor of the next page."""
    grid: AttemptGrid | None = None


def attempts(desk: Desk, asked: AttemptsAsked) -> AttemptsView:
    """A page of them, or the grid."""
    sealed = desk.store.held_out.sealed()
    choices = _choices(desk, sealed)
    rules = tuple(one.detector.rule.name for one in desk.book.chosen)
    limit = MOST_DOTS if asked.show == "grid" else asked.limit + 1
    after = None if asked.show == "grid" else read_cursor(asked.after)
    wanted = Filter(**{name: getattr(asked, name) for name in Filter.__struct_fields__})
    rows = [hide_row(row, sealed) for row in desk.store.listing.page(wanted, limit, after)]
    if wanted.task is not None:
        # Whoever asks for a sealed task by its name is told nothing of it.
        rows = [row for row in rows if not is_alias(row.task)]
    if asked.show == "grid":
        return AttemptsView(asked=asked, choices=choices, rules=rules, grid=grid_of(desk, rows))
    shown = rows[: asked.limit]
    return AttemptsView(
        asked=asked,
        choices=choices,
        rules=rules,
        lines=lines_of(desk, shown),
        next=cursor_after(shown[-1]) if len(rows) > asked.limit else None,
    )


def lines_of(desk: Desk, rows: Sequence[AttemptRow]) -> tuple[AttemptLine, ...]:
    """Attempts as a list shows them, with what was found in each."""
    marks = desk.marks(rows)
    return tuple(AttemptLine(row=row, marks=marks.get(row.id, Marks())) for row in rows)


def _choices(desk: Desk, sealed: frozenset[str]) -> Choices:
    """All that attempts can be narrowed to takes a while to find where there are many."""
    found = desk.counting.of_store(
        "choices", desk.mark(), lambda: desk.store.listing.choices(sealed)
    )
    return found.value or Choices()


def grid_of(desk: Desk, rows: list[AttemptRow], order: Sequence[str] = ()) -> AttemptGrid:
    """Attempts at tasks, a dot each; variants in the given order, then by name."""
    marks = desk.marks([row for row in rows if row.task])
    cells: dict[str, dict[str, list[Dot]]] = {}
    for row in rows:
        if row.task is not None:
            told = marks.get(row.id, Marks())
            result = row.outcome or "unscored"
            dot = Dot(
                id=row.id,
                number=row.number,
                result=result,
                findings=told.findings,
                outdated=told.outdated,
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
        cut=len(rows) == MOST_DOTS,
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
