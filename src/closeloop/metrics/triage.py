"""Triage: which of the stored sessions to look at first, and why."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

from closeloop.metrics.attempt_measuring import measure_attempts
from closeloop.metrics.triage_model import (
    MIN_GRADED_SESSIONS,
    REFERENCE_SESSIONS,
    TriageModel,
    auc_within,
    cross_validated_scores,
    fit_chances,
    fit_team_model,
    left_out_calibration_error,
    load_triage_prior,
    relative_positions,
    rows_by_label,
    score_sessions,
)
from closeloop.metrics.triage_reasons import MIN_EFFECT, describe_reason
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import AttemptRow
from closeloop.records.errors import unknown_name_error
from closeloop.records.record import Record
from closeloop.records.triage import (
    AgentGrades,
    SessionTriage,
    TriagePrior,
    TriageQuality,
    TriageReason,
    TriageReport,
)
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

ProgressDisplay = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Given how many sessions there are: what is told of each that was measured."""
MAX_REASONS = 3
MIN_GRADED_FOR_QUALITY = 20


class TriageQuery(Record):
    """Which sessions are wanted."""

    since: datetime | None = None
    until: datetime | None = None
    agent: str | None = None
    model: str | None = None
    limit: int = 20


def triage_sessions(
    store: Store,
    book: Rulebook,
    query: TriageQuery,
    show_progress: ProgressDisplay = lambda total: nullcontext(lambda done: None),
    tries: Sequence[AttemptRow] | None = None,
) -> TriageReport:
    """Sessions whose success is not known, those first that likely failed, with the reasons.

    All sessions of the store, or those in `tries`, say what is usual for an agent; those that were
    graded, merged or turned down say what success looks like here.
    """
    rows = list_last_tries(store) if tries is None else keep_last_tries(tries)
    with show_progress(len(rows)) as tell:
        estimates = estimate_sessions(store, book, load_triage_prior(), tell, rows)
    return report_triage(estimates, query, store.held_out.list_sealed_digests())


def report_triage(
    estimates: SessionEstimates, query: TriageQuery, sealed: frozenset[str]
) -> TriageReport:
    """The same, of sessions that are estimated."""
    _check_query(query, estimates.rows)
    wanted, notes = _select_sessions(estimates, query, sealed)
    wanted.sort(key=lambda place: (estimates.scores[place], estimates.rows[place].id))
    shown = wanted[: query.limit]
    peers = rows_by_label(estimates.groups) if shown else {}
    return TriageReport(
        sessions=tuple(
            _session_triage(estimates, peers, place, rank) for rank, place in enumerate(shown, 1)
        ),
        total=len(wanted),
        agents=tuple(_agent_grades(estimates)),
        quality=estimates.quality,
        prior=estimates.prior.figures,
        notes=tuple(notes),
    )


def find_session_triage(estimates: SessionEstimates, attempt: str) -> SessionTriage | None:
    """One session with its place among all that are estimated, from the likeliest failure on."""
    import numpy as np

    place = next((at for at, row in enumerate(estimates.rows) if row.id == attempt), None)
    if place is None:
        return None
    rank = int((estimates.scores < estimates.scores[place]).sum()) + 1
    group = estimates.groups[place]
    own = np.flatnonzero([one == group for one in estimates.groups])
    return _session_triage(estimates, {group: own}, place, rank)


class SessionEstimates(Record):
    """Every session with a trace, and what is estimated of it, place by place."""

    rows: Sequence[AttemptRow]
    features: Sequence[Mapping[str, float]]
    hits: Any
    """1 for a success, 0 for a failure, NaN where it is not known."""
    positions: Any
    scores: Any
    """Log odds: calibrated where chances are stated."""
    chances: Any
    """NaN where too few sessions of the agent are graded."""
    model: TriageModel
    prior: TriagePrior
    quality: TriageQuality | None

    @property
    def groups(self) -> list[tuple[str | None, str | None]]:
        return [(row.agent, row.model) for row in self.rows]


def estimate_sessions(
    store: Store,
    book: Rulebook,
    prior: TriagePrior,
    tell: Callable[[int], None] = lambda done: None,
    tries: Sequence[AttemptRow] | None = None,
) -> SessionEstimates:
    """Fit what the team's grades say to the prior, and score every session of the store."""
    import numpy as np

    tries = list_last_tries(store) if tries is None else tries
    measured = [
        one for one in measure_attempts(store, tries, book, tell) if one.measurement.features
    ]
    rows = [one.row for one in measured]
    features = [one.measurement.features for one in measured]
    hits = load_successes(store, rows)
    groups = [(row.agent, row.model) for row in rows]
    agents = [row.agent for row in rows]
    positions = relative_positions(features, groups, prior)
    model = fit_team_model(positions, groups, hits, prior)
    scores = score_sessions(model, positions, groups)
    left_out = cross_validated_scores(positions, groups, hits, prior)
    chances = fit_chances(scores, left_out, agents, hits)
    stated = ~np.isnan(chances)
    kept = np.clip(chances[stated], 1e-6, 1 - 1e-6)
    scores[stated] = np.log(kept / (1 - kept))
    graded = int((~np.isnan(hits)).sum())
    quality = TriageQuality(
        graded=graded,
        auc=auc_within(left_out, hits, groups)[0],
        calibration_error=left_out_calibration_error(left_out, agents, hits),
    )
    return SessionEstimates(
        rows=rows,
        features=features,
        hits=hits,
        positions=positions,
        scores=scores,
        chances=chances,
        model=model,
        prior=prior,
        quality=quality if graded >= MIN_GRADED_FOR_QUALITY else None,
    )


def list_last_tries(store: Store) -> list[AttemptRow]:
    """Every attempt with a trace that was not begun again, and is no replay."""
    return keep_last_tries(store.list_attempts())


def keep_last_tries(tries: Sequence[AttemptRow]) -> list[AttemptRow]:
    """Of some attempts, those with a trace that were not begun again, and are no replays."""
    rows = [row for row in tries if row.replay_of is None]
    retried = {row.parent for row in rows}
    return [row for row in rows if row.events and row.id not in retried]


def load_successes(store: Store, rows: Sequence[AttemptRow]) -> Array:
    """By grade, else by what people did with the work: 1, 0, or NaN where nobody knows.

    Work that was turned down, reverted or merged only after people had corrected it is none.
    """
    import numpy as np

    delivered = store.numbers.load_delivery_columns(AttemptSpan())
    places = {attempt: place for place, attempt in enumerate(delivered.attempts)}
    merged, corrected, regressed, passed = (
        delivered.held[name] for name in ("merged", "corrected", "regressed", "passed")
    )
    hits = np.full(len(rows), np.nan)
    for number, row in enumerate(rows):
        place = places.get(row.id)
        if row.outcome in ("pass", "fail"):
            hits[number] = row.outcome == "pass"
        if place is None:
            continue
        if merged[place] == 0 or corrected[place] == 1 or regressed[place] == 1:
            hits[number] = 0
        elif merged[place] == 1 and row.outcome != "fail" and passed[place] != 0:
            hits[number] = 1
    return hits


def _check_query(query: TriageQuery, rows: Sequence[AttemptRow]) -> None:
    for kind, name in (("agent", query.agent), ("model", query.model)):
        known = {getattr(row, kind) for row in rows} - {None}
        if name is not None and rows and name not in known:
            raise unknown_name_error(kind, name, known)


def _select_sessions(
    estimates: SessionEstimates, query: TriageQuery, sealed: frozenset[str]
) -> tuple[list[int], list[str]]:
    """Places of the sessions that are asked for and whose success is not known."""
    import numpy as np

    places, undated = [], 0
    for place in np.flatnonzero(np.isnan(estimates.hits)).tolist():
        row = estimates.rows[place]
        if row.task_digest in sealed or query.agent not in (None, row.agent):
            continue
        if query.model not in (None, row.model):
            continue
        is_bounded = query.since is not None or query.until is not None
        if is_bounded and row.started is None:
            undated += 1
            continue
        if row.started is not None and not _is_within(row.started, query):
            continue
        places.append(place)
    notes = []
    if undated:
        left_out = count_with_noun(
            undated, "session without a time is", "sessions without a time are"
        )
        notes.append(f"{left_out} left out: `--since all` takes them in.")
    return places, notes


def _is_within(started: datetime, query: TriageQuery) -> bool:
    since, until = query.since, query.until
    return (since is None or started >= since) and (until is None or started < until)


def _session_triage(
    estimates: SessionEstimates, peers: Mapping[Hashable, Array], place: int, rank: int
) -> SessionTriage:
    """`peers`: which rows are of each agent and model."""
    row, chance = estimates.rows[place], float(estimates.chances[place])
    return SessionTriage(
        attempt=row.id,
        title=row.title or row.task,
        agent=row.agent,
        model=row.model,
        repo=row.repo,
        started=row.started,
        place=rank,
        score=float(estimates.scores[place]),
        chance=None if chance != chance else chance,  # noqa: PLR0124 - NaN is not stated
        reasons=tuple(_list_reasons(estimates, peers[row.agent, row.model].tolist(), place)),
    )


def _list_reasons(
    estimates: SessionEstimates, rows: Sequence[int], place: int
) -> Iterator[TriageReason]:
    """What moved the estimate most, either way, beside the agent's own sessions."""
    import numpy as np

    names = list(estimates.prior.features)
    effects = estimates.positions[place] * estimates.model.weights
    for column in np.argsort(-np.abs(effects), kind="stable")[:MAX_REASONS].tolist():
        if abs(effects[column]) < MIN_EFFECT:
            return
        name = names[column]
        own = [estimates.features[row][name] for row in rows if name in estimates.features[row]]
        is_own = len(own) >= REFERENCE_SESSIONS
        yield describe_reason(
            name,
            estimates.features[place][name],
            float(np.median(own if is_own else estimates.prior.features[name].quantiles)),
            float(effects[column]),
            is_own=is_own,
        )


def _agent_grades(estimates: SessionEstimates) -> Iterator[AgentGrades]:
    import numpy as np

    for agent, rows in rows_by_label([row.agent for row in estimates.rows]).items():
        known = estimates.hits[rows][~np.isnan(estimates.hits[rows])]
        yield AgentGrades(
            agent=str(agent) if agent is not None else None,
            sessions=len(rows),
            graded=len(known),
            succeeded=int(known.sum()),
            states_chances=len(known) >= MIN_GRADED_SESSIONS,
        )
