"""Triage: which sessions to look at first, and why; and how likely one of them succeeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from closeloop.metrics.triage import (
    SessionEstimates,
    TriageQuery,
    estimate_sessions,
    find_session_triage,
    list_last_tries,
    report_triage,
)
from closeloop.metrics.triage_model import MIN_GRADED_SESSIONS, load_triage_prior
from closeloop.records.attempt import AttemptMarks, AttemptRow, TimeRange
from closeloop.records.record import Record
from closeloop.records.triage import AgentGrades, SessionTriage, TriageQuality
from closeloop.web.page import Page
from closeloop.web.page_context import CachedValue, PageContext
from closeloop.web.pages.outcome import AttemptAsked, load_attempt_head

MAX_ESTIMATED_SESSIONS = 20_000
"""The newest: what is usual for an agent does not take more."""


class TriageAsked(TimeRange):
    agent: str | None = None
    model: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 25


class TriageLine(Record):
    """One session to look at."""

    session: SessionTriage
    row: AttemptRow
    marks: AttemptMarks


class TriageView(Record):
    """The sessions that likely failed, first those to look at first."""

    asked: TriageAsked
    lines: tuple[TriageLine, ...]
    total: int
    """Sessions whose success nobody knows, of which those are the first."""
    agents: tuple[AgentGrades, ...]
    models: tuple[str, ...]
    quality: TriageQuality | None
    prior_auc: float | None
    """Of the estimate on public runs that it was not fitted on."""
    enough: int
    """So many graded sessions of an agent are needed to state a chance."""
    notes: tuple[str, ...]
    fresh: bool
    counted: bool
    """False until the sessions were estimated the first time."""


class LikelyView(Record):
    """How likely one session succeeded, with the reasons."""

    attempt: str
    session: SessionTriage | None
    """None while it is estimated, and of what has no trace."""
    of: int
    """Sessions that it is placed among."""
    known: str | None
    """What is known instead of likely: its grade."""
    fresh: bool


def load_session_estimates(desk: PageContext) -> CachedValue[SessionEstimates]:
    """Every session with a trace, estimated; made beside the requests, and kept."""

    def estimate() -> SessionEstimates:
        tries = sorted(list_last_tries(desk.store), key=_start_key, reverse=True)
        newest = tries[:MAX_ESTIMATED_SESSIONS]
        return estimate_sessions(desk.store, desk.rulebook, load_triage_prior(), tries=newest)

    return desk.metric_cache.compute_from_store("triage", desk.store_mark(), estimate)


def _start_key(row: AttemptRow) -> float:
    return row.started.timestamp() if row.started else 0.0


def triage(desk: PageContext, asked: TriageAsked) -> TriageView:
    cached = load_session_estimates(desk)
    estimates = cached.value
    if estimates is None:
        return TriageView(
            asked=asked, lines=(), total=0, agents=(), models=(), quality=None, prior_auc=None,
            enough=MIN_GRADED_SESSIONS, notes=(), fresh=False, counted=False,
        )  # fmt: skip
    query = TriageQuery(
        since=asked.since,
        until=asked.until,
        agent=asked.agent,
        model=asked.model,
        limit=asked.limit,
    )
    report = report_triage(estimates, query, desk.store.held_out.list_sealed_digests())
    return TriageView(
        asked=asked,
        lines=_triage_lines(desk, estimates, report.sessions),
        total=report.total,
        agents=report.agents,
        models=tuple(sorted({row.model for row in estimates.rows if row.model})),
        quality=report.quality,
        prior_auc=report.prior.get("auc, held"),
        enough=MIN_GRADED_SESSIONS,
        notes=report.notes,
        fresh=cached.fresh,
        counted=True,
    )


def _triage_lines(
    desk: PageContext, estimates: SessionEstimates, sessions: Sequence[SessionTriage]
) -> tuple[TriageLine, ...]:
    wanted = {one.attempt for one in sessions}
    rows = {row.id: row for row in estimates.rows if row.id in wanted}
    marks = desk.load_attempt_marks([*rows.values()])
    return tuple(
        TriageLine(
            session=one,
            row=rows[one.attempt],
            marks=marks.get(one.attempt, AttemptMarks()),
        )
        for one in sessions
    )


def likely(desk: PageContext, asked: AttemptAsked) -> LikelyView:
    """How likely an attempt succeeded; what is graded is known, and still estimated."""
    head, _ = load_attempt_head(desk, asked.attempt)
    cached = load_session_estimates(desk)
    estimates = cached.value
    return LikelyView(
        attempt=head.row.id,
        session=find_session_triage(estimates, head.row.id) if estimates else None,
        of=len(estimates.rows) if estimates else 0,
        known=head.row.outcome if head.row.outcome in ("pass", "fail") else None,
        fresh=cached.fresh,
    )


PAGES = (
    Page(
        path="/triage",
        show=triage,
        template="triage.html",
        about="Which sessions to look at first, and why.",
        section="Triage",
        key="w",
    ),
    Page(
        path="/attempts/{attempt}/likely",
        show=likely,
        template="likely.html",
        about="How likely an attempt succeeded, with the reasons.",
        section="Sessions",
        part=True,
    ),
)
