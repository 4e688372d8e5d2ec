"""Scores: everything that tests, rules, judges, people and code say of an attempt, in one form."""

from __future__ import annotations

from typing import Literal

from closeloop.records.estimate import BetterDirection
from closeloop.records.record import Record, Time

ScoreKind = Literal["rate", "ordinal", "count", "amount", "label"]
"""A rate lies between 0 and 1, an ordinal on a scale, an amount is above zero and has a unit, a
label is one of some words."""
ScoreSource = Literal["tests", "rule", "judge", "person", "code"]
SCORE_SOURCES: tuple[ScoreSource, ...] = ("tests", "rule", "person", "code", "judge")
"""Those whose word is taken before that of the next."""


class ScoreSettings(Record, forbid_unknown_fields=True):
    """What a score means, as `[scores.NAME]` declares it."""

    kind: ScoreKind = "rate"
    unit: str = ""
    low: float | None = None
    high: float | None = None
    """The range; a rate's is 0 to 1, a count's and an amount's begin at 0."""
    better: BetterDirection = None
    """`more` or `less`; without it the score is shown and never decides."""
    labels: tuple[str, ...] = ()
    """The words that a label may be; none named is any."""
    says: str = ""
    """The definition, in a sentence."""


class ScoreDefinition(ScoreSettings):
    """The definition of a score."""

    name: str
    source: ScoreSource | None = None
    """Who gives it; None where several do."""


class Score(Record):
    """A named value of one attempt from one source."""

    attempt: str
    name: str
    value: float | None = None
    label: str | None = None
    """The label, for scores of that kind. With value and label None, the source abstained."""
    source: ScoreSource
    version: str = ""
    """Of what computed it: the judge's version, the digest of the code."""
    by: str = ""
    """The person, or the scorer's name. A later score of the same one replaces the earlier."""
    at: Time
    note: str = ""


class ScoreSummary(Record):
    """What is known under one name, from one source."""

    definition: ScoreDefinition
    source: ScoreSource
    attempts: int
    """With a score."""
    coverage: float | None = None
    """Of all attempts that count."""
    last: Time | None = None
    """When the last one was given; None of what is computed."""


# Triage: which sessions to look at first, with the reasons; and what the estimate comes from.


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
    """One feature or finding of a session that moved its estimate."""

    feature: str
    """Or the rule of the finding."""
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
