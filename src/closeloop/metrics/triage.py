"""Triage: which of the stored sessions to look at first, and why."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import cache
from math import isnan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from closeloop.metrics.attempt_measuring import measure_attempts
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import AttemptRow
from closeloop.records.errors import unknown_name_error
from closeloop.records.finding import Finding
from closeloop.records.record import Record
from closeloop.records.score import (
    AgentGrades,
    SessionTriage,
    TriagePrior,
    TriageQuality,
    TriageReason,
    TriageReport,
)
from closeloop.statistics.special_functions import (
    calibration_error,
    fit_ridge_logistic,
    roc_auc,
    sigmoid,
)
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.text.wording import count_with_noun, format_percent, truncate_at_word

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# The explanation of an estimate: each feature with its value and the usual value.


MIN_EFFECT = 0.05
"""Smallest effect that counts as a reason, in log odds."""

COUNT_NOUNS = {
    "actions": ("action", "actions"),
    "actions_after_write": ("action after the last change", "actions after the last change"),
    "changes": ("change of files", "changes of files"),
    "failed_edits": ("failed edit", "failed edits"),
    "failures_in_a_row": ("failure in a row", "failures in a row"),
    "feedback_unused": (
        "failing check whose output was not used",
        "failing checks whose output was not used",
    ),
    "files_changed": ("file changed", "files changed"),
    "files_read": ("file read", "files read"),
    "folders_changed": ("folder changed", "folders changed"),
    "hesitations": ("word of doubt", "words of doubt"),
    "last_edit_lines": ("line in the last edit", "lines in the last edit"),
    "last_turn_tokens": ("token in the last turn", "tokens in the last turn"),
    "lines_changed": ("line changed", "lines changed"),
    "output_tokens": ("token written", "tokens written"),
    "request_words": ("word in the request", "words in the request"),
    "rereads": ("file read again", "files read again"),
    "rewrites": ("edit of files changed before", "edits of files changed before"),
    "rules_broken": ("rule with findings", "rules with findings"),
    "runs": ("execution of the code", "executions of the code"),
    "runs_after_write": ("execution after the last change", "executions after the last change"),
    "standstill": ("iteration with the same failures", "iterations with the same failures"),
    "tool_text": ("character returned by tools", "characters returned by tools"),
    "turns": ("turn", "turns"),
    "words": ("word in messages", "words in messages"),
    "write_span": ("action from first to last change", "actions from first to last change"),
}
SHARE_WORDS = {
    "failing_last_quarter": "of the last actions failed",
    "failing_share": "of the actions failed",
    "feedback_share": "of the failing checks had their output used",
    "focus": "of the reads were of files that the agent changed",
    "first_write": "of the session was before its first change",
    "last_write": "of the session was before its last change",
    "repeated_actions": "of the actions were repeats",
}
PER_HUNDRED_WORDS = {
    "certainty": "words of certainty in a hundred",
    "hesitation": "words of doubt in a hundred",
}
MIN_PER_HUNDRED = 0.05
"""Fewer are shown as 0.0, which is no reason."""
EITHER_WORDS = {
    "ends_in_action": ("it ends with an action, not a message", "it ends with a message"),
    "ends_in_edit": ("its last action is an edit", "its last action is not an edit"),
    "last_check_passes": ("the last check passes", "the last check fails"),
    "last_run_fails": ("the last execution fails", "the last execution does not fail"),
    "named_by_request": (
        "the request names a code file that the agent changed",
        "the request names no code file that the agent changed",
    ),
    "no_code_change": ("the agent changed no code", "the agent changed code"),
    "verified": ("a check ran after the last change", "no check ran after the last change"),
}


def describe_reason(
    feature: str, value: float, usual: float, effect: float, *, is_own: bool
) -> TriageReason:
    """Describe a reason: `61 actions (usually 22)`.

    `is_own`: `usual` is that of the agent, not of public runs.
    """
    return TriageReason(
        feature=feature,
        value=value,
        usual=usual,
        effect=effect,
        text=_reason_text(feature, value, usual, "usually" if is_own else "median of public runs:"),
    )


def _reason_text(feature: str, value: float, usual: float, usually: str) -> str:
    if feature in EITHER_WORDS:
        return EITHER_WORDS[feature][value < 0.5]
    if feature in SHARE_WORDS:
        return f"{format_percent(value)} {SHARE_WORDS[feature]} ({usually} {format_percent(usual)})"
    if feature in PER_HUNDRED_WORDS:
        return f"{100 * value:.1f} {PER_HUNDRED_WORDS[feature]} ({usually} {100 * usual:.1f})"
    if feature in COUNT_NOUNS:
        return f"{count_with_noun(round(value), *COUNT_NOUNS[feature])} ({usually} {usual:,.0f})"
    return f"{feature.replace('_', ' ')} {value:g} ({usually} {usual:g})"


def _reads_as_usual(feature: str, value: float, usual: float) -> bool:
    """Whether a reason would show the usual value as its own, as in `2 runs (usually 2)`."""
    if feature in EITHER_WORDS:
        return False
    if feature in SHARE_WORDS:
        return format_percent(value) == format_percent(usual)
    if feature in PER_HUNDRED_WORDS:
        return f"{100 * value:.1f}" == f"{100 * usual:.1f}"
    return feature in COUNT_NOUNS and round(value) == round(usual)


# Estimate which sessions succeeded from features: a prior from public runs, and a team's grades.
#
# A feature counts by the session's rank among the same agent's sessions with the same model, from
# -1 (lowest) over 0 (median) to 1. If there are few of those, the public runs are used instead. An
# unknown feature counts as the median.


REFERENCE_SESSIONS = 12
"""Number of the agent's own sessions that the public runs count as."""
MIN_GRADED_SESSIONS = 50
"""Graded sessions of an agent needed to state chances."""
WEIGHT_RIDGE = 60.0
"""Strength with which weights are pulled to the prior."""
GROUP_RIDGE = 2.0
"""Strength with which each agent and model is pulled to the mean of all."""
SLOPE_RIDGE = 10.0
"""Strength with which an agent's slope is pulled to 1, the model's own spread."""
FOLDS = 5


@cache
def load_triage_prior() -> TriagePrior:
    """Load the prior that ships with closeloop; `quality/triage.py --write` fits it."""
    text = Path(__file__).with_name("triage_prior.json").read_bytes()
    return msgspec.json.decode(text, type=TriagePrior)


# Ranks of sessions among the others of their agent.


def relative_positions(
    sessions: Sequence[Mapping[str, float]], groups: Sequence[Hashable], prior: TriagePrior
) -> Array:
    """Return a row per session and a column per feature: from -1 to 1, 0 if unknown."""
    import numpy as np

    values = feature_matrix(sessions, tuple(prior.features))
    positions = np.zeros(values.shape)
    members = list(rows_by_label(groups).values())
    for column, feature in enumerate(prior.features.values()):
        reference = np.asarray(feature.quantiles)
        for rows in members:
            known_rows = rows[~np.isnan(values[rows, column])]
            known_values = values[known_rows, column]
            positions[known_rows, column] = (
                len(known_rows) * place_values(known_values, np.sort(known_values))
                + REFERENCE_SESSIONS * place_values(known_values, reference)
            ) / (len(known_rows) + REFERENCE_SESSIONS)
    return positions


def feature_matrix(sessions: Sequence[Mapping[str, float]], names: Sequence[str]) -> Array:
    """Return a row per session; NaN for unknown features."""
    import numpy as np

    nan = float("nan")
    rows = [[session.get(name, nan) for name in names] for session in sessions]
    return np.array(rows, np.float64).reshape(len(sessions), len(names))


def rows_by_label(labels: Sequence[Hashable]) -> dict[Hashable, Array]:
    """Return the rows of each label."""
    import numpy as np

    rows: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return {label: np.array(row_list, np.intp) for label, row_list in rows.items()}


def place_values(values: Array, ordered: Array) -> Array:
    """Return the places of values among sorted ones, from -1 to 1; ties are at their middle."""
    import numpy as np

    lower = np.searchsorted(ordered, values, "left")
    upper = np.searchsorted(ordered, values, "right")
    positions: Array = (lower + upper) / max(1, len(ordered)) - 1
    return positions


# The contribution of a team's own grades.


class TriageModel(Record):
    """The weights of features, and the constant of each agent and model."""

    weights: Any
    constant: float = 0.0
    constants: dict[Hashable, float] = {}
    """By agent and model, in addition to the common constant; 0 if nothing is graded."""


def fit_team_model(
    positions: Array, groups: Sequence[Hashable], successes: Array, prior: TriagePrior
) -> TriageModel:
    """Fit the weights to graded sessions, starting from the prior's.

    `successes` is 1 for a success, 0 for a failure, and NaN if unknown.
    """
    import numpy as np

    prior_weights = np.array([feature.weight for feature in prior.features.values()])
    graded = np.flatnonzero(~np.isnan(successes)).tolist()
    if not graded:
        return TriageModel(weights=prior_weights)
    names = list(dict.fromkeys(groups[row] for row in graded))
    columns = {name: index for index, name in enumerate(names)}
    shares = np.zeros((len(graded), len(names)))
    shares[np.arange(len(graded)), [columns[groups[row]] for row in graded]] = 1
    rows = np.hstack([positions[graded], np.ones((len(graded), 1)), shares])
    features = positions.shape[1]
    penalty = np.r_[np.full(features, WEIGHT_RIDGE), 1e-2, np.full(len(names), GROUP_RIDGE)]
    towards = np.r_[prior_weights, np.zeros(1 + len(names))]
    fitted = fit_ridge_logistic(rows, successes[graded], penalty, towards)
    constants = {name: float(fitted[features + 1 + index]) for name, index in columns.items()}
    return TriageModel(
        weights=fitted[:features], constant=float(fitted[features]), constants=constants
    )


def score_sessions(model: TriageModel, positions: Array, groups: Sequence[Hashable]) -> Array:
    """Return log odds of success; only up to a constant if nothing is graded."""
    import numpy as np

    constants = np.array([model.constants.get(group, 0.0) for group in groups])
    scores: Array = positions @ model.weights + model.constant + constants
    return scores


def cross_validated_scores(
    positions: Array, groups: Sequence[Hashable], successes: Array, prior: TriagePrior
) -> Array:
    """Return each graded session's score by a model fitted without it; NaN if it is not graded."""
    import numpy as np

    scores = np.full(len(successes), np.nan)
    for left_out in split_folds(successes, groups):
        training = successes.copy()
        training[left_out] = np.nan
        model = fit_team_model(positions, groups, training, prior)
        scores[left_out] = score_sessions(
            model, positions[left_out], [groups[row] for row in left_out]
        )
    return scores


def split_folds(successes: Array, groups: Sequence[Hashable]) -> list[Array]:
    """Split graded rows into folds with similar success rates in each group.

    Otherwise leaving out a success would lower the prediction, and good estimates would look bad.
    """
    import numpy as np

    ordered = [
        row
        for rows in rows_by_label(groups).values()
        for success in (0, 1)
        for row in rows[successes[rows] == success].tolist()
    ]
    return [np.array(ordered[fold::FOLDS], np.intp) for fold in range(FOLDS)]


def calibrate_scores(scores: Array, successes: Array) -> tuple[float, float]:
    """Return constant and slope that turn cross-validated scores into chances."""
    import numpy as np

    rows = np.stack([np.ones(len(scores)), scores], axis=1)
    constant, slope = fit_ridge_logistic(
        rows, successes, np.array([1e-2, SLOPE_RIDGE]), np.array([0.0, 1.0])
    )
    return float(constant), float(max(slope, 0.0))


def fit_chances(
    scores: Array, left_out_scores: Array, agents: Sequence[Hashable], successes: Array
) -> Array:
    """Return the chance of success for sessions of agents with enough grades; else NaN."""
    import numpy as np

    chances = np.full(len(scores), np.nan)
    for rows in rows_by_label(agents).values():
        graded = rows[~np.isnan(successes[rows])]
        if len(graded) >= MIN_GRADED_SESSIONS:
            constant, slope = calibrate_scores(left_out_scores[graded], successes[graded])
            chances[rows] = sigmoid(constant + slope * scores[rows])
    return chances


# The accuracy of the estimate.


def auc_within(
    scores: Array, successes: Array, groups: Sequence[Hashable]
) -> tuple[float | None, dict[Hashable, tuple[float, int]]]:
    """Return the mean AUC within groups, weighted by sessions; and each group's AUC and size."""
    import numpy as np

    area_by_group: dict[Hashable, tuple[float, int]] = {}
    for group, members in rows_by_label(groups).items():
        rows = members[~np.isnan(successes[members])]
        area = roc_auc(scores[rows].tolist(), (successes[rows] == 1).tolist())
        if area is not None:
            area_by_group[group] = area, len(rows)
    total = sum(n for _, n in area_by_group.values())
    mean = sum(area * n for area, n in area_by_group.values()) / total if total else None
    return mean, area_by_group


def left_out_calibration_error(
    left_out_scores: Array, agents: Sequence[Hashable], successes: Array
) -> float | None:
    """Return the calibration error of chances, cross-validated."""
    import numpy as np

    chances: list[float] = []
    outcomes: list[bool] = []
    for rows in rows_by_label(agents).values():
        graded = rows[~np.isnan(successes[rows])]
        if len(graded) < MIN_GRADED_SESSIONS:
            continue
        for fold in split_folds(successes[graded], [0] * len(graded)):
            left_out, training_rows = graded[fold], np.delete(graded, fold)
            constant, slope = calibrate_scores(
                left_out_scores[training_rows], successes[training_rows]
            )
            chances += sigmoid(constant + slope * left_out_scores[left_out]).tolist()
            outcomes += (successes[left_out] == 1).tolist()
    return calibration_error(chances, outcomes)


ProgressDisplay = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Takes the number of sessions; yields a callback for each batch measured."""
MAX_REASONS = 3
NO_FAILURE_REASON = "no sign of failure"
MIN_GRADED_FOR_QUALITY = 20
FAILURE_RULES = (
    "tampered-result", "weakened-test", "false-claim", "refuted-claim",
    "spiral", "unverified-claim",
)  # fmt: skip
"""Rules whose findings count against success.

Those of other rules, even severe ones, do not: sessions that get far enough to change code break
more of them.
"""
FIRST_RULES = frozenset(FAILURE_RULES[:4])
"""Rules about work that is not what the agent claims: a person looks at it first in any case."""
FINDING_EFFECT = -0.5
"""Effect of one or more such findings in log odds: small enough to cost no AUC on public runs."""
MAX_SCORE = 1000.0
"""Upper bound of all scores."""
MAX_FINDING_CHARS = 120


class TriageQuery(Record):
    """Which sessions to triage."""

    since: datetime | None = None
    until: datetime | None = None
    agent: str | None = None
    model: str | None = None
    limit: int = 20


def triage_sessions(
    store: Store,
    rulebook: Rulebook,
    query: TriageQuery,
    show_progress: ProgressDisplay = lambda total: nullcontext(lambda done: None),
    tries: Sequence[AttemptRow] | None = None,
    *,
    jobs: int = 1,
) -> TriageReport:
    """Rank sessions of unknown success, likely failures first, with reasons.

    All sessions of the store, or those in `tries`, define what is usual for an agent; those that
    were graded, merged or rejected define success.
    """
    rows = list_last_tries(store) if tries is None else keep_last_tries(tries)
    with show_progress(len(rows)) as report_progress:
        estimates = estimate_sessions(
            store, rulebook, load_triage_prior(), report_progress, rows, jobs=jobs
        )
    return report_triage(estimates, query, store.held_out.list_sealed_digests())


def report_triage(
    estimates: SessionEstimates, query: TriageQuery, sealed: frozenset[str]
) -> TriageReport:
    """Build the report from estimated sessions."""
    _check_query(query, estimates.rows)
    selected, notes = _select_sessions(estimates, query, sealed)
    if estimates.skipped:
        left_out = count_with_noun(estimates.skipped, "session is", "sessions are")
        notes.append(f"{left_out} excluded, because the trace is not in the store.")
    order = estimates.order
    selected.sort(key=lambda index: (order[index], estimates.rows[index].id))
    shown_rows = selected[: query.limit]
    peers = rows_by_label(estimates.groups) if shown_rows else {}
    return TriageReport(
        sessions=tuple(
            _session_triage(estimates, peers, index, rank)
            for rank, index in enumerate(shown_rows, 1)
        ),
        total=len(selected),
        agents=tuple(_agent_grades(estimates)),
        quality=estimates.quality,
        prior=estimates.prior.figures,
        notes=tuple(notes),
    )


def find_session_triage(estimates: SessionEstimates, attempt: str) -> SessionTriage | None:
    """Return one session with its rank in the order of triage.

    It ranks among sessions of unknown success, as triage lists them, or among all if its own is
    known.
    """
    import numpy as np

    index = next((number for number, row in enumerate(estimates.rows) if row.id == attempt), None)
    if index is None:
        return None
    unknown = np.isnan(estimates.hits)
    peers = unknown if unknown[index] else np.ones_like(unknown)
    order = estimates.order
    rank = int((peers & (order < order[index])).sum()) + 1
    group = estimates.groups[index]
    own_rows = np.flatnonzero([other == group for other in estimates.groups])
    return _session_triage(estimates, {group: own_rows}, index, rank)


class SessionEstimates(Record):
    """Every session with a trace, and its estimates, row by row."""

    rows: Sequence[AttemptRow]
    features: Sequence[Mapping[str, float]]
    hits: Any
    """1 for a success, 0 for a failure, NaN if unknown."""
    positions: Any
    scores: Any
    """Log odds; calibrated if chances are stated."""
    chances: Any
    """NaN if too few sessions of the agent are graded."""
    findings: Sequence[Sequence[Finding]]
    """Findings against success."""
    model: TriageModel
    prior: TriagePrior
    quality: TriageQuality | None
    skipped: int = 0
    """Number of sessions not measured by these rules because their trace is not stored."""

    @property
    def order(self) -> Array:
        """Return scores to sort by; sessions with findings that a person must read come first."""
        import numpy as np

        is_first = [
            any(item.rule in FIRST_RULES for item in session_findings)
            for session_findings in self.findings
        ]
        order: Array = self.scores - MAX_SCORE * np.array(is_first, np.float64)
        return order

    @property
    def groups(self) -> list[tuple[str | None, str | None]]:
        return [(row.agent, row.model) for row in self.rows]


def estimate_sessions(
    store: Store,
    rulebook: Rulebook,
    prior: TriagePrior,
    report_progress: Callable[[int], None] = lambda done: None,
    tries: Sequence[AttemptRow] | None = None,
    *,
    jobs: int = 1,
) -> SessionEstimates:
    """Fit the model to the team's grades, and score every session of the store."""
    import numpy as np

    tries = list_last_tries(store) if tries is None else tries
    results = list(measure_attempts(store, tries, rulebook, report_progress, jobs=jobs))
    all_measured = len(results)
    measured = [result for result in results if result.measurement.features]
    rows = [attempt.row for attempt in measured]
    features = [attempt.measurement.features for attempt in measured]
    findings = [list_findings_against_success(attempt.measurement.findings) for attempt in measured]
    finding_effects = FINDING_EFFECT * np.array([bool(finding) for finding in findings], np.float64)
    successes = load_successes(store, rows)
    groups = [(row.agent, row.model) for row in rows]
    agents = [row.agent for row in rows]
    positions = relative_positions(features, groups, prior)
    model = fit_team_model(positions, groups, successes, prior)
    scores = score_sessions(model, positions, groups) + finding_effects
    left_out = cross_validated_scores(positions, groups, successes, prior) + finding_effects
    chances = fit_chances(scores, left_out, agents, successes)
    has_chance = ~np.isnan(chances)
    clipped = np.clip(chances[has_chance], 1e-6, 1 - 1e-6)
    scores[has_chance] = np.log(clipped / (1 - clipped))
    graded = int((~np.isnan(successes)).sum())
    quality = TriageQuality(
        graded=graded,
        auc=auc_within(left_out, successes, groups)[0],
        calibration_error=left_out_calibration_error(left_out, agents, successes),
    )
    return SessionEstimates(
        rows=rows,
        features=features,
        hits=successes,
        positions=positions,
        scores=scores,
        chances=chances,
        findings=findings,
        model=model,
        prior=prior,
        quality=quality if graded >= MIN_GRADED_FOR_QUALITY else None,
        skipped=sum(row.events is not None for row in tries) - all_measured,
    )


def list_findings_against_success(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the first finding of each rule in `FAILURE_RULES`, in the order of the rules."""
    finding_by_rule = {
        finding.rule: finding
        for finding in reversed(findings)
        if finding.rule in FAILURE_RULES and finding.silenced is None
    }
    return tuple(
        sorted(finding_by_rule.values(), key=lambda finding: FAILURE_RULES.index(finding.rule))
    )


def list_last_tries(store: Store) -> list[AttemptRow]:
    """List attempts with a trace that were not retried; no replays, no controls."""
    return keep_last_tries(store.list_attempts())


def keep_last_tries(tries: Sequence[AttemptRow]) -> list[AttemptRow]:
    """Return the attempts with a trace that were not retried; no replays, no controls."""
    rows = [row for row in tries if row.replay_of is None and not row.is_control]
    retried = {row.parent for row in rows}
    return [row for row in rows if row.events and row.id not in retried]


def load_successes(store: Store, rows: Sequence[AttemptRow]) -> Array:
    """Return success by grade and delivery: 1, 0, or NaN if unknown.

    Work that was rejected, reverted, or corrected by people is a failure.
    """
    import numpy as np

    delivered = store.numbers.load_delivery_columns(AttemptSpan())
    row_by_attempt = {attempt: number for number, attempt in enumerate(delivered.attempts)}
    merged, corrected, regressed, passed = (
        delivered.columns[name] for name in ("merged", "corrected", "regressed", "passed")
    )
    successes = np.full(len(rows), np.nan)
    for number, row in enumerate(rows):
        delivery_row = row_by_attempt.get(row.id)
        if row.outcome in ("pass", "fail"):
            successes[number] = row.outcome == "pass"
        if delivery_row is None:
            continue
        if (
            merged[delivery_row] == 0
            or corrected[delivery_row] == 1
            or regressed[delivery_row] == 1
        ):
            successes[number] = 0
        elif merged[delivery_row] == 1 and row.outcome != "fail" and passed[delivery_row] != 0:
            successes[number] = 1
    return successes


def _check_query(query: TriageQuery, rows: Sequence[AttemptRow]) -> None:
    for kind, name in (("agent", query.agent), ("model", query.model)):
        known_names = {getattr(row, kind) for row in rows} - {None}
        if name is not None and rows and name not in known_names:
            raise unknown_name_error(kind, name, known_names)


def _select_sessions(
    estimates: SessionEstimates, query: TriageQuery, sealed: frozenset[str]
) -> tuple[list[int], list[str]]:
    """Return the rows of the requested sessions of unknown success, with notes."""
    import numpy as np

    selected, undated = [], 0
    for index in np.flatnonzero(np.isnan(estimates.hits)).tolist():
        row = estimates.rows[index]
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
        selected.append(index)
    notes = []
    if undated:
        left_out = count_with_noun(
            undated, "session without a time is", "sessions without a time are"
        )
        notes.append(f"{left_out} excluded: `--since all` includes them.")
    return selected, notes


def _is_within(started: datetime, query: TriageQuery) -> bool:
    since, until = query.since, query.until
    return (since is None or started >= since) and (until is None or started < until)


def _session_triage(
    estimates: SessionEstimates, peers: Mapping[Hashable, Array], index: int, rank: int
) -> SessionTriage:
    """Build one session's triage; `peers` are the rows of each agent and model."""
    row, chance = estimates.rows[index], float(estimates.chances[index])
    return _build_session_triage(
        row,
        rank,
        float(estimates.scores[index]),
        None if isnan(chance) else chance,
        tuple(_list_reasons(estimates, peers[row.agent, row.model].tolist(), index)),
    )


def _build_session_triage(
    row: AttemptRow,
    rank: int,
    score: float,
    chance: float | None,
    reasons: tuple[TriageReason, ...],
) -> SessionTriage:
    return SessionTriage(
        attempt=row.id,
        title=row.title or row.task,
        agent=row.agent,
        model=row.model,
        repo=row.repo,
        started=row.started,
        place=rank,
        score=score,
        chance=chance,
        reasons=reasons,
    )


def _list_reasons(
    estimates: SessionEstimates, rows: Sequence[int], index: int
) -> Iterator[TriageReason]:
    effects = (estimates.positions[index] * estimates.model.weights).tolist()
    peers = [estimates.features[row] for row in rows]
    evidence = estimates.features[index], estimates.findings[index]
    yield from _explain_effects(effects, *evidence, peers, estimates.prior)


def _reads_as_zero(feature: str, features: Mapping[str, float]) -> bool:
    """Whether the reason would say `0.0 words of certainty in a hundred`."""
    return feature in PER_HUNDRED_WORDS and 100 * features.get(feature, 0.0) < MIN_PER_HUNDRED


def _explain_effects(
    effects: Sequence[float],
    features: Mapping[str, float],
    failure_findings: Sequence[Finding],
    peers: Sequence[Mapping[str, float]],
    prior: TriagePrior,
) -> Iterator[TriageReason]:
    """Yield findings against success, then the strongest reasons of the estimate.

    Reasons for failure come first, then at most one against it.
    """
    findings = failure_findings[:MAX_REASONS]
    for finding in findings:
        text = truncate_at_word(f"{finding.rule}: {finding.message}", MAX_FINDING_CHARS)
        yield TriageReason(
            feature=finding.rule, value=1.0, usual=0.0, effect=FINDING_EFFECT, text=text
        )
    names = list(prior.features)
    order = sorted(range(len(effects)), key=effects.__getitem__)
    candidates = [column for column in order if effects[column] < 0 or column == order[-1]]
    candidates = [column for column in candidates if not _reads_as_zero(names[column], features)]
    reasons: list[TriageReason] = []
    for column in sorted(candidates, key=lambda column: -abs(effects[column])):
        if len(reasons) == MAX_REASONS - len(findings) or abs(effects[column]) < MIN_EFFECT:
            break
        name = names[column]
        peer_values = [peer[name] for peer in peers if name in peer]
        is_own = len(peer_values) >= REFERENCE_SESSIONS
        usual = float(median(peer_values if is_own else prior.features[name].quantiles))
        if not _reads_as_usual(name, features[name], usual):
            reason = describe_reason(name, features[name], usual, effects[column], is_own=is_own)
            reasons.append(reason)
    yield from sorted(reasons, key=lambda reason: reason.effect)


def list_likely_failures(
    store: Store,
    rulebook: Rulebook,
    tries: Sequence[AttemptRow],
    limit: int,
    show_progress: ProgressDisplay,
    *,
    jobs: int = 1,
) -> tuple[SessionTriage, ...]:
    """The first sessions that `triage_sessions` lists.

    While nobody knows of a success here the prior alone decides, which needs no numpy: importing
    that takes as long as importing a session.
    """
    rows = keep_last_tries(tries)
    if store.numbers.has_deliveries() or any(row.outcome in ("pass", "fail") for row in rows):
        query = TriageQuery(limit=limit)
        return triage_sessions(store, rulebook, query, show_progress, tries, jobs=jobs).sessions
    prior = load_triage_prior()
    with show_progress(len(rows)) as report_progress:
        measured = [
            attempt
            for attempt in measure_attempts(store, rows, rulebook, report_progress, jobs=jobs)
            if attempt.measurement.features
        ]
    measured_rows = [(attempt.row, attempt.measurement.features) for attempt in measured]
    findings = [list_findings_against_success(attempt.measurement.findings) for attempt in measured]
    peers: dict[tuple[str | None, str | None], list[Mapping[str, float]]] = {}
    for row, features in measured_rows:
        peers.setdefault((row.agent, row.model), []).append(features)
    weigh = {group: _make_weigher(group_peers, prior) for group, group_peers in peers.items()}
    effects = [weigh[row.agent, row.model](features) for row, features in measured_rows]
    scores = [
        sum(session_effects) + (FINDING_EFFECT if session_findings else 0.0)
        for session_effects, session_findings in zip(effects, findings, strict=True)
    ]
    is_first = [
        any(item.rule in FIRST_RULES for item in session_findings) for session_findings in findings
    ]
    sealed = store.held_out.list_sealed_digests()
    order = sorted(
        (index for index, (row, _) in enumerate(measured_rows) if row.task_digest not in sealed),
        key=lambda index: (scores[index] - MAX_SCORE * is_first[index], measured_rows[index][0].id),
    )
    sessions = []
    for rank, session_index in enumerate(order[:limit], 1):
        row, features = measured_rows[session_index]
        own_peers = peers[row.agent, row.model]
        reasons = _explain_effects(
            effects[session_index], features, findings[session_index], own_peers, prior
        )
        sessions.append(
            _build_session_triage(row, rank, scores[session_index], None, tuple(reasons))
        )
    return tuple(sessions)


def _make_weigher(
    peers: Sequence[Mapping[str, float]], prior: TriagePrior
) -> Callable[[Mapping[str, float]], list[float]]:
    """Return what each feature of a session among its peers adds to its log odds by the prior."""
    peer_values = {
        name: sorted(peer[name] for peer in peers if name in peer and not isnan(peer[name]))
        for name in prior.features
    }

    def weigh(features: Mapping[str, float]) -> list[float]:
        effects = []
        for name, feature in prior.features.items():
            value, size = features.get(name), len(peer_values[name])
            if value is None or isnan(value):
                effects.append(0.0)
                continue
            position = size * _place_value(value, peer_values[name])
            position += REFERENCE_SESSIONS * _place_value(value, feature.quantiles)
            effects.append(position / (size + REFERENCE_SESSIONS) * feature.weight)
        return effects

    return weigh


def _place_value(value: float, ordered: Sequence[float]) -> float:
    """Return the place of one value, as `place_values` does for all."""
    return (bisect_left(ordered, value) + bisect_right(ordered, value)) / max(1, len(ordered)) - 1


def _agent_grades(estimates: SessionEstimates) -> Iterator[AgentGrades]:
    import numpy as np

    for agent, rows in rows_by_label([row.agent for row in estimates.rows]).items():
        graded = estimates.hits[rows][~np.isnan(estimates.hits[rows])]
        yield AgentGrades(
            agent=str(agent) if agent is not None else None,
            sessions=len(rows),
            graded=len(graded),
            succeeded=int(graded.sum()),
            states_chances=len(graded) >= MIN_GRADED_SESSIONS,
        )
