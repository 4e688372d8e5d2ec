"""Sessions and attempts: a list to search, narrow down and sort, one of them beside it; a grid."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from closeloop.metrics.score_columns import ScoreCell
from closeloop.records.attempt import (
    AttemptFilter,
    AttemptMarks,
    AttemptRow,
    AttemptSort,
    FilterChoices,
    PageCursor,
)
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.finding import AttemptEnding, Finding
from closeloop.records.record import Record
from closeloop.text.search_text import SearchSnippet, parse_search
from closeloop.web.page import Page, PageContext
from closeloop.web.pages.metrics import ScoreName, list_score_names, load_score_cells
from closeloop.web.pages.outcome import (
    AttemptHead,
    list_results,
    load_attempt_head,
    unsilenced_rule_findings,
)

# Cursors: where the next page of a list begins, as text that an address can hold.


def cursor_after_row(row: AttemptRow, sort: AttemptSort, findings: int) -> str:
    """The page after this line."""
    values = {"cost": row.cost, "turns": row.turns, "time": row.seconds, "findings": findings}
    cursor = PageCursor(started=row.started, id=row.id, value=values.get(sort))
    body = msgspec.json.encode(cursor)
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def parse_cursor(text: str | None) -> PageCursor | None:
    if text is None:
        return None
    try:
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(body, type=PageCursor)
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise BadInput("This page of the list does not exist: start at the first page.") from error


MAX_DOTS = 1000
MAX_COUNT = 10_000
"""More that are like that are not counted."""


class AttemptsAsked(AttemptFilter):
    """Which attempts, and how they are shown."""

    show: Literal["list", "grid"] = "list"
    sort: AttemptSort = "newest"
    after: str | None = None
    """The cursor of a page of the list."""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    score: tuple[ScoreName, ...] = ()
    """Scores that the list has a column for."""
    open: str | None = None
    """The attempt that is shown beside the list."""


class AttemptLine(Record):
    """One line of the list."""

    row: AttemptRow
    result: str
    """Pass, fail, unscored or session; where nothing is checked, what people say."""
    marks: AttemptMarks
    scores: tuple[ScoreCell, ...] = ()
    """Of each score that is asked for, in that order."""
    snippet: SearchSnippet | None = None
    """Where what was searched for stands."""


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
    by_people: bool = False
    """Whether people say how the attempts did, and no check does."""


class AttemptPreviewAsked(Record):
    attempt: str


class AttemptPreview(Record):
    """What to know of an attempt before it is opened."""

    head: AttemptHead
    findings: tuple[Finding, ...]
    ending: AttemptEnding | None


class AttemptsView(Record):
    """Attempts in the order that was asked for."""

    asked: AttemptsAsked
    choices: FilterChoices
    rules: tuple[str, ...]
    """Names of rules that a finding may be of."""
    scores: tuple[str, ...] = ()
    """Names of those that the list may show."""
    lines: tuple[AttemptLine, ...] = ()
    count: int | None = None
    """How many are like that; one more than are counted, where there are so many."""
    total: int | None = None
    """How many there are in all; None until they are counted."""
    cost: float | None = None
    """What those that are counted cost, in US dollars; None where none is known."""
    unpriced: int = 0
    """Of them, without a known cost."""
    opened: AttemptPreview | None = None
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
    rows = desk.store.listing.list_page(
        attempt_filter, limit, after, without=sealed, sort=asked.sort
    )
    if not rows and asked.rule is not None and asked.rule not in rules:
        raise unknown_name_error("rule", asked.rule, rules, "closeloop measure --rules")
    if asked.show == "grid":
        return AttemptsView(
            asked=asked, choices=choices, rules=rules, grid=build_attempt_grid(desk, rows)
        )
    lines = attempt_lines(desk, rows[: asked.limit], tuple(dict.fromkeys(asked.score)))
    if asked.q:
        lines = _with_snippets(desk, lines, asked.q)
    total = desk.metric_cache.compute_from_store(
        "total",
        desk.store_mark(),
        lambda: desk.store.listing.total_matches(AttemptFilter(), without=sealed),
    )
    is_narrowed = attempt_filter != AttemptFilter()
    matches = (
        desk.store.listing.total_matches(attempt_filter, MAX_COUNT + 1, without=sealed)
        if is_narrowed
        else total.value
    )
    last = lines[-1] if len(rows) > asked.limit else None
    return AttemptsView(
        asked=asked,
        choices=choices,
        rules=rules,
        scores=list_score_names(desk),
        lines=lines,
        count=matches.attempts if is_narrowed and matches else None,
        total=total.value.attempts if total.value else None,
        cost=matches.cost if matches else None,
        unpriced=matches.attempts - matches.priced if matches else 0,
        opened=None
        if asked.open is None
        else preview(desk, AttemptPreviewAsked(attempt=asked.open)),
        next=cursor_after_row(last.row, asked.sort, last.marks.findings) if last else None,
    )


def preview(desk: PageContext, asked: AttemptPreviewAsked) -> AttemptPreview:
    """What stands beside the list when one of its lines is chosen; nothing is measured for it."""
    head, _ = load_attempt_head(desk, asked.attempt)
    measurement = desk.load_measurement(head.row, make=False)
    return AttemptPreview(
        head=head,
        findings=unsilenced_rule_findings(measurement),
        ending=measurement.ending if measurement else None,
    )


def _with_snippets(
    desk: PageContext, lines: Sequence[AttemptLine], text: str
) -> tuple[AttemptLine, ...]:
    snippets = desk.store.search.find_snippets([line.row.id for line in lines], parse_search(text))
    return tuple(msgspec.structs.replace(line, snippet=snippets.get(line.row.id)) for line in lines)


def attempt_lines(
    desk: PageContext, rows: Sequence[AttemptRow], scores: Sequence[str] = ()
) -> tuple[AttemptLine, ...]:
    """Attempts as a list shows them, with what was found in each and how it scores."""
    marks = desk.load_attempt_marks(rows)
    cells = load_score_cells(desk, [row.id for row in rows], scores)
    results = list_results(desk.store, rows)
    return tuple(
        AttemptLine(
            row=row,
            result=results[row.id],
            marks=marks.get(row.id, AttemptMarks()),
            scores=cells.get(row.id, ()),
        )
        for row in rows
    )


def _filter_choices(desk: PageContext, sealed: frozenset[str]) -> FilterChoices:
    """All that attempts can be narrowed to takes a while to find where there are many."""
    cached_choices = desk.metric_cache.compute_from_store(
        "choices", desk.store_mark(), lambda: desk.store.listing.list_choices(sealed)
    )
    return cached_choices.value or FilterChoices()


def build_attempt_grid(
    desk: PageContext,
    rows: list[AttemptRow],
    order: Sequence[str] = (),
    merges: Mapping[str, float] | None = None,
) -> AttemptGrid:
    """Attempts at tasks, a dot each; variants in the given order, then by name.

    Where no check says how an attempt did, people do: `merges` has the share who would merge it.
    """
    marks = desk.load_attempt_marks([row for row in rows if row.task])
    cells: dict[str, dict[str, list[Dot]]] = {}
    for row in rows:
        if row.task is not None:
            row_marks = marks.get(row.id, AttemptMarks())
            result = row.outcome or "unscored"
            if merges and row.id in merges:
                result = "pass" if merges[row.id] > 0.5 else "fail"
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
        by_people=bool(merges) and not any(row.outcome in ("pass", "fail") for row in rows),
    )


PAGES = (
    Page(
        path="/attempts",
        show=attempts,
        template="attempts.html",
        about="Attempts and their outcomes.",
        section="Sessions",
        key="a",
    ),
    Page(
        path="/attempts/{attempt}/preview",
        show=preview,
        template="attempt_preview.html",
        about="A summary of an attempt, shown beside the list.",
        section="Sessions",
        part=True,
    ),
)
