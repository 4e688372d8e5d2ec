"""Sessions and attempts: a list to search, filter and sort, with a preview; and a grid."""

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
from closeloop.reviews.agent_prompts import find_prompt_id
from closeloop.text.search_text import SearchSnippet, parse_search
from closeloop.web.page import Page, PageContext
from closeloop.web.pages.metrics import ScoreName, list_score_names, load_score_cells
from closeloop.web.pages.outcome import (
    AttemptHead,
    list_results,
    load_attempt_head,
    unsilenced_rule_findings,
)

# Cursors: where the next page of a list begins, as text for a URL.


def cursor_after_row(row: AttemptRow, sort: AttemptSort, findings: int) -> str:
    """Return the cursor of the page after this row."""
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
"""Matching attempts up to which the exact number is counted."""


class AttemptsQuery(AttemptFilter):
    """Which attempts to show, and how."""

    show: Literal["list", "grid"] = "list"
    sort: AttemptSort = "newest"
    after: str | None = None
    """Cursor of a page of the list."""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    score: tuple[ScoreName, ...] = ()
    """Scores that get a column in the list."""
    open: str | None = None
    """Attempt that is shown beside the list."""


class AttemptLine(Record):
    """One row of the list."""

    row: AttemptRow
    result: str
    """Pass, fail, unscored or session; the result by people if no check decides."""
    marks: AttemptMarks
    scores: tuple[ScoreCell, ...] = ()
    """One cell for each requested score, in that order."""
    snippet: SearchSnippet | None = None
    """Where the searched text occurs."""
    finding: str | None = None
    """What the rule found that the list is narrowed to."""


class Dot(Record):
    """One repeat of a task by a variant."""

    id: str
    number: int
    result: Literal["pass", "fail", "unscored", "session"]
    findings: int
    outdated: bool = False
    """Whether the findings come from an earlier version of the rules."""


class GridRow(Record):
    """One task, with the results of its repeats by variant."""

    task: str
    cells: tuple[tuple[Dot, ...], ...]


class AttemptGrid(Record):
    variants: tuple[str, ...]
    rows: tuple[GridRow, ...]
    cut: bool
    """Whether it has only the newest attempts."""
    by_people: bool = False
    """Whether results come from people instead of checks."""


class AttemptPreviewQuery(Record):
    attempt: str


class AttemptPreview(Record):
    """A summary of an attempt, shown before it is opened."""

    head: AttemptHead
    findings: tuple[Finding, ...]
    ending: AttemptEnding | None


class AttemptsView(Record):
    """Attempts in the requested order."""

    asked: AttemptsQuery
    choices: FilterChoices
    rules: tuple[str, ...]
    """Names of rules to filter by."""
    scores: tuple[str, ...] = ()
    """Names of scores that the list can show."""
    lines: tuple[AttemptLine, ...] = ()
    count: int | None = None
    """Number of matching attempts; MAX_COUNT + 1 if there are more than are counted."""
    total: int | None = None
    """Number of attempts in all; None until counted."""
    cost: float | None = None
    """Cost of the counted attempts in US dollars; None if no cost is known."""
    unpriced: int = 0
    """Number of counted attempts without a known cost."""
    opened: AttemptPreview | None = None
    next: str | None = None
    """Cursor of the next page."""
    grid: AttemptGrid | None = None


def attempts(page_context: PageContext, query: AttemptsQuery) -> AttemptsView:
    """Return a page of attempts, or the grid."""
    sealed = page_context.store.held_out.list_sealed_digests()
    choices = _filter_choices(page_context, sealed)
    rules = tuple(entry.detector.rule.name for entry in page_context.rulebook.chosen)
    limit = MAX_DOTS if query.show == "grid" else query.limit + 1
    after = None if query.show == "grid" else parse_cursor(query.after)
    if query.prompt is not None:
        prompt = find_prompt_id(page_context.store, query.prompt)
        query = msgspec.structs.replace(query, prompt=prompt)
    attempt_filter = AttemptFilter(
        **{name: getattr(query, name) for name in AttemptFilter.__struct_fields__}
    )
    rows = page_context.store.listing.list_page(
        attempt_filter, limit, after, without=sealed, sort=query.sort
    )
    if not rows and query.rule is not None and query.rule not in rules:
        raise unknown_name_error("rule", query.rule, rules, "closeloop measure --rules")
    if not rows and query.arm is not None and query.arm not in choices.arms:
        raise unknown_name_error("arm", query.arm, choices.arms)
    if query.show == "grid":
        return AttemptsView(
            asked=query, choices=choices, rules=rules, grid=build_attempt_grid(page_context, rows)
        )
    lines = attempt_lines(page_context, rows[: query.limit], tuple(dict.fromkeys(query.score)))
    if query.q:
        lines = _with_snippets(page_context, lines, query.q)
    elif query.rule:
        lines = _with_findings(page_context, lines, query.rule)
    total = page_context.metric_cache.compute_from_store(
        "total",
        page_context.store_mark(),
        lambda: page_context.store.listing.total_matches(AttemptFilter(), without=sealed),
    )
    is_narrowed = attempt_filter != AttemptFilter()
    matches = (
        page_context.store.listing.total_matches(attempt_filter, MAX_COUNT + 1, without=sealed)
        if is_narrowed
        else total.value
    )
    last = lines[-1] if len(rows) > query.limit else None
    return AttemptsView(
        asked=query,
        choices=choices,
        rules=rules,
        scores=list_score_names(page_context),
        lines=lines,
        count=matches.attempts if is_narrowed and matches else None,
        total=total.value.attempts if total.value else None,
        cost=matches.cost if matches else None,
        unpriced=matches.attempts - matches.priced if matches else 0,
        opened=None
        if query.open is None
        else preview(page_context, AttemptPreviewQuery(attempt=query.open)),
        next=cursor_after_row(last.row, query.sort, last.marks.findings) if last else None,
    )


def preview(page_context: PageContext, query: AttemptPreviewQuery) -> AttemptPreview:
    """Return the preview of a row of the list; nothing is measured for it."""
    head, _ = load_attempt_head(page_context, query.attempt)
    measurement = page_context.load_measurement(head.row, make=False)
    return AttemptPreview(
        head=head,
        findings=unsilenced_rule_findings(measurement),
        ending=measurement.ending if measurement else None,
    )


def _with_snippets(
    page_context: PageContext, lines: Sequence[AttemptLine], text: str
) -> tuple[AttemptLine, ...]:
    snippets = page_context.store.search.find_snippets(
        [line.row.id for line in lines], parse_search(text)
    )
    return tuple(msgspec.structs.replace(line, snippet=snippets.get(line.row.id)) for line in lines)


def _with_findings(
    page_context: PageContext, lines: Sequence[AttemptLine], rule: str
) -> tuple[AttemptLine, ...]:
    """Return the lines with the first finding of a rule, as it was measured last."""
    ids = [line.row.id for line in lines]
    messages = page_context.store.listing.find_rule_messages(ids, rule)
    return tuple(msgspec.structs.replace(line, finding=messages.get(line.row.id)) for line in lines)


def attempt_lines(
    page_context: PageContext, rows: Sequence[AttemptRow], scores: Sequence[str] = ()
) -> tuple[AttemptLine, ...]:
    """Return attempts as rows of a list, with their findings and scores."""
    marks = page_context.load_attempt_marks(rows)
    cells = load_score_cells(page_context, [row.id for row in rows], scores)
    results = list_results(page_context.store, rows)
    return tuple(
        AttemptLine(
            row=row,
            result=results[row.id],
            marks=marks.get(row.id, AttemptMarks()),
            scores=cells.get(row.id, ()),
        )
        for row in rows
    )


def _filter_choices(page_context: PageContext, sealed: frozenset[str]) -> FilterChoices:
    """Return the filters' choices, cached: with many attempts they take a while to find."""
    cached_choices = page_context.metric_cache.compute_from_store(
        "choices",
        page_context.store_mark(),
        lambda: page_context.store.listing.list_choices(sealed),
    )
    return cached_choices.value or FilterChoices()


def build_attempt_grid(
    page_context: PageContext,
    rows: list[AttemptRow],
    order: Sequence[str] = (),
    merges: Mapping[str, float] | None = None,
) -> AttemptGrid:
    """Build a grid with a dot per attempt at a task; variants in the given order, then by name.

    If no check decides an attempt's result, people do: `merges` has the share who would merge it.
    """
    marks = page_context.load_attempt_marks([row for row in rows if row.task])
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
