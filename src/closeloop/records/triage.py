"""Triage: which sessions to look at first, with the reasons; and what the estimate comes from."""

from __future__ import annotations

from closeloop.records.record import Record, Time


class PriorFeature(Record):
    """What public runs say of one feature of a session."""

    weight: float
    """Log odds of success for a session at the top of its agent's sessions in this feature, as
    against one in the middle."""
    quantiles: tuple[float, ...]
    """Of the public runs, from the least to the most, in equal steps."""


class TriagePrior(Record):
    """What is known of features and success before a team has graded anything."""

    fitted: str
    """The day."""
    source: str
    """Which runs it was fitted on."""
    sessions: int
    successes: int
    features: dict[str, PriorFeature]
    figures: dict[str, float]
    """How good it is: by name, on runs that were not fitted on."""


class TriageReason(Record):
    """One feature of a session that moved its estimate."""

    feature: str
    value: float
    usual: float
    """The median of the agent's sessions; of public runs where there are fewer than twelve."""
    effect: float
    """In log odds: below zero it speaks for failure."""
    text: str


class SessionTriage(Record):
    """A session with its place in the order of looking: the first is likeliest to have failed."""

    attempt: str
    title: str | None
    """The first line of what was asked for."""
    agent: str | None
    model: str | None
    repo: str | None = None
    started: Time | None
    place: int
    """From 1, among the sessions that were asked for."""
    score: float
    """Log odds of success up to a constant: it orders, and means nothing by itself."""
    chance: float | None
    """Likely to have succeeded; None until enough of the agent's sessions are graded."""
    reasons: tuple[TriageReason, ...]


class AgentGrades(Record):
    """What is known of one agent's success."""

    agent: str | None
    sessions: int
    graded: int
    succeeded: int
    states_chances: bool


class TriageQuality(Record):
    """How good the estimate is on the team's own graded sessions, each left out when estimated."""

    graded: int
    auc: float | None
    """Within agent and model; None where no agent has both successes and failures."""
    calibration_error: float | None
    """Of stated chances; None where none are stated."""


class TriageReport(Record):
    """The answer to: which sessions should I look at first, and why?"""

    sessions: tuple[SessionTriage, ...]
    total: int
    """Sessions whose success is not known, of which those are the first."""
    agents: tuple[AgentGrades, ...]
    quality: TriageQuality | None
    """None where too few sessions are graded to say."""
    prior: dict[str, float]
    """The figures of the prior that ships with closeloop, on public runs."""
    notes: tuple[str, ...] = ()
