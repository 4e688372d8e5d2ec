"""Scores: the values that tests, rules, judges, people and code give an attempt, in one form."""

from __future__ import annotations

from typing import Literal

from closeloop.records.estimate import BetterDirection
from closeloop.records.record import Record, Time

ScoreKind = Literal["rate", "ordinal", "count", "amount", "label"]
"""A rate lies between 0 and 1, an ordinal on a scale, an amount is positive and has a unit, a label
is one of some words."""
ScoreSource = Literal["tests", "rule", "judge", "person", "code"]
SCORE_SOURCES: tuple[ScoreSource, ...] = ("tests", "rule", "person", "code", "judge")
"""In order of precedence."""


class ScoreSettings(Record, forbid_unknown_fields=True):
    """The meaning of a score, as declared in `[scores.NAME]`."""

    kind: ScoreKind = "rate"
    unit: str = ""
    low: float | None = None
    high: float | None = None
    """Upper end of the range; a rate's is 0 to 1, a count's and an amount's begin at 0."""
    better: BetterDirection = None
    """`more` or `less`; without it the score is shown and never decides."""
    labels: tuple[str, ...] = ()
    """The allowed labels; empty allows any."""
    says: str = ""
    """The definition as a sentence."""


class ScoreDefinition(ScoreSettings):
    """The definition of a score."""

    name: str
    source: ScoreSource | None = None
    """The source; None if several give it."""


class Score(Record):
    """A named value of one attempt from one source."""

    attempt: str
    name: str
    value: float | None = None
    label: str | None = None
    """The label, for scores of that kind. If value and label are None, the source abstained."""
    source: ScoreSource
    version: str = ""
    """Version of what computed it: the judge's version, the digest of the code."""
    by: str = ""
    """The person or the scorer's name. A later score by the same one replaces the earlier."""
    at: Time
    note: str = ""


class ScoreSummary(Record):
    """Summary of the scores with one name and source."""

    definition: ScoreDefinition
    source: ScoreSource
    attempts: int
    """Number of attempts with a score."""
    coverage: float | None = None
    """Share of all counted attempts."""
    last: Time | None = None
    """Time of the latest; None for computed scores."""


# Triage: which sessions to review first, with the reasons; and the basis of the estimate.


class PriorFeature(Record):
    """What public runs show about one feature of a session."""

    weight: float
    """Log odds of success of a session at the top of its agent's distribution of this feature,
    compared with the middle."""
    quantiles: tuple[float, ...]
    """Quantiles of the public runs, in equal steps."""


class TriagePrior(Record):
    """Relation of features to success, before a team has graded anything."""

    fitted: str
    """Date of the fit."""
    source: str
    """The runs it was fitted on."""
    sessions: int
    successes: int
    features: dict[str, PriorFeature]
    figures: dict[str, float]
    """Quality figures by name, on runs that were not used for the fit."""


class TriageReason(Record):
    """One feature or finding of a session that moved its estimate."""

    feature: str
    """Or the rule of the finding."""
    value: float
    usual: float
    """Median of sessions of the agent and model; of public runs if there are fewer than twelve."""
    effect: float
    """In log odds; negative indicates failure."""
    text: str


class SessionTriage(Record):
    """A session with its triage rank; the first most likely failed."""

    attempt: str
    title: str | None
    """First line of the request."""
    agent: str | None
    model: str | None
    repo: str | None = None
    started: Time | None
    place: int
    """From 1, among the selected sessions."""
    score: float
    """Log odds of success up to a constant; only its order has a meaning."""
    chance: float | None
    """Probability of success; None until enough of the agent's sessions have an outcome."""
    reasons: tuple[TriageReason, ...]


class AgentGrades(Record):
    """Known outcomes of one agent."""

    agent: str | None
    sessions: int
    graded: int
    succeeded: int
    states_chances: bool


class TriageQuality(Record):
    """Quality of the estimate on the team's own graded sessions, by leave-one-out."""

    graded: int
    auc: float | None
    """Within agent and model; None if no agent has both successes and failures."""
    calibration_error: float | None
    """Calibration error of the stated probabilities; None if none are stated."""


class TriageReport(Record):
    """Which sessions to look at first, and why."""

    sessions: tuple[SessionTriage, ...]
    total: int
    """Number of sessions with unknown outcome, of which these are the first."""
    agents: tuple[AgentGrades, ...]
    quality: TriageQuality | None
    """None if too few sessions are graded."""
    prior: dict[str, float]
    """Figures of the built-in prior, on public runs."""
    notes: tuple[str, ...] = ()
