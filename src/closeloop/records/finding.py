"""Findings of rules, and measures of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from closeloop.records.attempt import Usage
from closeloop.records.estimate import Rate
from closeloop.records.record import Record

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first."""
FailureMode = Literal[
    "context blindness", "instruction drift", "silent regression", "scope creep", "hallucinated API"
]
ModeSource = Literal["rule", "grade", "check", "judge", "person", "code", "delivery"]
"""Source of a failure mode: a rule on traces, the tests, a check of the change, a judge, a person,
a team's own program, or the fate of the change after its merge."""


class Rule(Record):
    """What a detector looks for, named after the bad pattern."""

    name: str
    version: int
    about: str
    """The bad pattern in one sentence."""
    severity: Severity
    mode: FailureMode | None = None
    """The failure mode that a finding indicates."""
    gates: bool = False
    """Whether it is meant to fail a build. A rule on traces gates once enough of its findings on
    real sessions were read and right; the others advise."""
    thresholds: dict[str, float] = {}
    """Its numeric thresholds with their defaults; `closeloop.toml` can override them."""


class Finding(Record):
    """Something that a rule, a check, a judge or a person found."""

    rule: str
    version: int
    severity: Severity
    message: str
    events: tuple[int, ...] = ()
    """Numbers of the events that show it, most important first."""
    places: tuple[str, ...] = ()
    """Places in files that show it, as `path:line`."""
    lane: str | None = None
    mode: FailureMode | None = None
    confidence: float = 1.0
    source: Literal["rule", "check", "judge", "person"] = "rule"
    silenced: str | None = None
    """Why somebody silenced it; a silenced finding is not counted."""


class Unmeasured(Record):
    """What could not be measured on this trace, and why. It is left out of every rate."""

    rule: str
    """The rule or the measure."""
    reason: str


def make_finding(
    rule: Rule,
    message: str,
    events: Sequence[int],
    *,
    lane: str | None = None,
    confidence: float = 1.0,
) -> Finding:
    """Build a finding of a rule."""
    return Finding(
        rule=rule.name,
        version=rule.version,
        severity=rule.severity,
        mode=rule.mode,
        message=message,
        events=tuple(events),
        lane=lane,
        confidence=confidence,
    )


# The measurement of one trace: findings, measures by lane, the process score.

EndingCategory = Literal[
    "environment failure",
    "timeout",
    "missing verification",
    "instruction non-compliance",
    "reasoning error",
    "clean",
    "unknown",
]


class Measures(Record):
    """Measures of one lane or a whole trace. None: could not be measured, or did not occur."""

    lane: str | None = None
    """None for the whole trace."""
    events: int = 0
    calls: int = 0
    edits: int = 0
    checks: int = 0
    iterations: int = 0
    converged: bool | None = None
    """Whether all checks passed in the end and stayed so; None if nothing failed or it is unknown.
    """
    converged_after: int | None = None
    """Number of iterations until then."""
    standstill: int = 0
    """The longest run of iterations with unchanged failures."""
    feedback: Rate | None = None
    """Share of failing checks whose output was used before the next check."""
    brief: Rate | None = None
    """Share of the facts the child needs that the brief contains."""
    brief_parts: Rate | None = None
    """Parts of a good brief: context, scope, only this work, how to report, what supersedes."""
    understood: Rate | None = None
    """Share of handoffs whose child worked on the brief's targets at once."""
    returned: Rate | None = None
    """Share of the facts in the child's report that the parent used."""
    planted: Rate | None = None
    """Share of planted facts in each brief: exact, and used in place of `brief`."""
    recovery: Rate | None = None
    """Share of surprising states after which the agent read again, asked or reported."""
    context_losses: int | None = None
    """Number of violated constraints, repeated corrections, and unchanged files read repeatedly."""
    verified: bool | None = None
    """Whether a check ran after the last edit; None without an edit."""
    tampering: int | None = None
    """Number of findings of weakened tests, suppressed errors and answers from history."""
    drift: tuple[float, ...] = ()
    """Similarity of each window of actions to the goal, from 0 to 1."""
    drift_slope: float | None = None
    """Change of that similarity from the first window to the last."""
    context_tokens: int | None = None
    """The largest context of one turn, with what it added; None if no turn reports it."""
    usage: Usage = Usage()
    seconds: float | None = None


class ProcessScore(Record):
    """Whether the agent closes the loop: four rates, shown beside the outcome and never mixed with
    it."""

    handoff: Rate | None = None
    feedback: Rate | None = None
    recovery: Rate | None = None
    convergence: Rate | None = None
    """Share of failure episodes that ended in success."""


class HandoffFacts(Record):
    """The facts behind a handoff's score."""

    event: int
    """Number of the handoff's event."""
    child: str | None
    """The lane that received the work, if recorded."""
    arrived: tuple[str, ...] = ()
    """Facts that the child needs and the brief contains."""
    lost: tuple[str, ...] = ()
    """Facts that the child needs and the brief omits."""
    understood: bool | None = None
    """Whether the child worked on the brief's targets at once; None if unknown."""
    used: tuple[str, ...] = ()
    """Facts of the child's report that the parent used."""
    unused: tuple[str, ...] = ()
    """Facts of the report that it did not use, and work of the child that it repeated."""


class ModeTag(Record):
    """A failure mode of an attempt, according to one source."""

    mode: FailureMode
    reason: str
    events: tuple[int, ...] = ()
    source: ModeSource = "rule"


class AttemptEnding(Record):
    """The outcome category of an attempt: the first that applies."""

    category: EndingCategory
    reason: str
    events: tuple[int, ...] = ()


class Measurement(Record):
    """The measures of one trace, and the findings of all rules."""

    rules: str
    """Digest of the rules, their versions and thresholds. When it changes, measure again."""
    findings: tuple[Finding, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    whole: Measures = Measures()
    lanes: tuple[Measures, ...] = ()
    score: ProcessScore = ProcessScore()
    modes: tuple[ModeTag, ...] = ()
    examined: tuple[tuple[FailureMode, ModeSource], ...] = ()
    """The failure modes that were examined, with the source."""
    modules: int | None = None
    """Packages or top-level folders that the change touches; None if no change is recorded."""
    opened_precision: float | None = None
    opened_recall: float | None = None
    """Share of the reference's changed files that the agent opened."""
    ending: AttemptEnding | None = None
    features: dict[str, float] = {}
    """Features that triage uses; unknown ones are absent."""

    def __repr__(self) -> str:
        counts = f"{self.whole.iterations} iterations, {len(self.findings)} findings"
        return f"<Measurement {self.whole.events} events: {counts}>"
