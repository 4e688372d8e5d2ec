"""Scores: which there are, and what each says of the attempts on a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.score_columns import (
    ScoreCell,
    ScoreRow,
    attach_scores,
    list_score_cells,
    list_score_rows,
    summarise_scores,
)
from closeloop.metrics.score_definitions import derived_definitions
from closeloop.records.errors import BadInput
from closeloop.records.record import Record, Time
from closeloop.records.score import Score, ScoreDefinition, ScoreSource, ScoreSummary
from closeloop.store.metrics_section import AttemptSpan
from closeloop.web.page import NoQuery, Page
from closeloop.web.page_context import CachedValue, PageContext
from closeloop.web.pages.outcome import AttemptAsked, AttemptHead, load_attempt_head

MAX_SCORES = 6
"""Scores that are asked for at once."""
ScoreName = Annotated[str, Meta(max_length=200)]


class ScoresView(Record):
    """Every score that is known of some attempt."""

    scores: tuple[ScoreSummary, ...]
    fresh: bool


class ScoreLine(Record):
    """One score of one attempt."""

    definition: ScoreDefinition
    source: ScoreSource
    value: float | None = None
    label: str | None = None
    by: str = ""
    at: Time | None = None
    """None of what is computed."""
    note: str = ""


class AttemptScoresView(Record):
    """All that tests, rules, judges, people and code say of an attempt."""

    head: AttemptHead
    given: tuple[ScoreLine, ...]
    computed: tuple[ScoreLine, ...]
    """From grades, rules, deliveries and the attempt itself."""


def scores(desk: PageContext, asked: NoQuery) -> ScoresView:
    cached_summaries = load_score_summaries(desk)
    return ScoresView(scores=cached_summaries.value or (), fresh=cached_summaries.fresh)


def load_score_summaries(desk: PageContext) -> CachedValue[tuple[ScoreSummary, ...]]:
    """As `closeloop scores` lists them; None until they were counted the first time."""
    return desk.metric_cache.compute_from_work(
        "scores", lambda work: tuple(summarise_scores(work, desk.store, desk.score_catalogue))
    )


def list_score_names(desk: PageContext) -> tuple[str, ...]:
    """What a list can show: scores that somebody gave, and all that are computed."""
    given = [
        name for name in desk.store.scores.list_sources() if name in desk.score_catalogue.given
    ]
    return tuple(dict.fromkeys((*given, *derived_definitions())))


def attempt_scores(desk: PageContext, asked: AttemptAsked) -> AttemptScoresView:
    head, _ = load_attempt_head(desk, asked.attempt)
    name = head.row.id
    rows = [*list_score_rows(_load_attempts(desk, [name]), desk.store)]
    return AttemptScoresView(
        head=head,
        given=_score_lines(desk, [row for row in rows if row.at is not None]),
        computed=_score_lines(desk, [row for row in rows if row.at is None]),
    )


def list_given_scores(desk: PageContext, attempt: str) -> tuple[ScoreLine, ...]:
    """What people, judges and code said of an attempt."""
    return _score_lines(desk, desk.store.scores.list_scores(attempt))


def _score_lines(desk: PageContext, rows: Sequence[Score | ScoreRow]) -> tuple[ScoreLine, ...]:
    """Who had no say is left out."""
    given, computed = desk.score_catalogue.given, derived_definitions()
    return tuple(
        ScoreLine(
            definition=(given if one.at else computed).get(one.name)
            or ScoreDefinition(name=one.name),
            source=one.source,
            value=one.value,
            label=one.label,
            by=one.by,
            at=one.at,
            note=one.note,
        )
        for one in rows
        if one.value is not None or one.label is not None
    )


def _load_attempts(desk: PageContext, attempts: Sequence[str]) -> AttemptTable:
    """A few attempts, as they were measured last: no trace is read."""
    span = AttemptSpan(attempts=tuple(attempts))
    return load_attempt_table(desk.store, desk.rulebook, span, again=None)


def load_score_cells(
    desk: PageContext, attempts: Sequence[str], names: Sequence[str]
) -> dict[str, tuple[ScoreCell, ...]]:
    """By attempt, a cell for each of the scores; BadInput where one is not known."""
    require_few_scores(names)
    if not names:
        return {}
    span = AttemptSpan(attempts=tuple(attempts))
    work = attach_scores(
        _load_attempts(desk, attempts), desk.store, desk.score_catalogue, names, span
    )
    return list_score_cells(work, names)


def require_few_scores(names: Sequence[str]) -> None:
    if len(set(names)) > MAX_SCORES:
        raise BadInput(f"So many scores are hard to read: choose up to {MAX_SCORES}.")


PAGES = (
    Page(
        path="/scores",
        show=scores,
        template="scores.html",
        about="Every score: what it means, who gives it, and of how many attempts it is known.",
        section="Compare",
    ),
)
ATTEMPT_PAGES = (
    Page(
        path="/attempts/{attempt}/scores",
        show=attempt_scores,
        template="attempt_scores.html",
        about="All that tests, rules, judges, people and code say of an attempt.",
        section="Sessions",
    ),
)
