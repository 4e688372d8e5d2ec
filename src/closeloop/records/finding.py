"""A finding of a rule, and what was measured of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from closeloop.records.attempt import Usage
from closeloop.records.estimate import Rate
from closeloop.records.record import Record

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""The worst first."""
FailureMode = Literal[
    "context blindness",
    "instruction drift",
    "silent regression",
    "scope creep",
    "hallucinated API",
]
ModeSource = Literal["rule", "grade", "check", "judge", "person", "code", "delivery"]
"""What said so: a rule of traces, the tests, a check of the change, a judge, a person, a team's own
program, or what became of the change after it was merged."""


class Rule(Record):
    """What a detector looks for. Its name is the bad pattern."""

    name: str
    version: int
    about: str
    """The bad pattern in one sentence."""
    severity: Severity
    mode: FailureMode | None = None
    """The failure mode that a finding is evidence of."""
    gates: bool = False
    """Whether it is meant to fail a build. A rule of traces does so once enough of its findings
    on real sessions were read and right; the others advise."""
    thresholds: dict[str, float] = {}
    """The numbers that it decides by, with their defaults; `closeloop.toml` may set others."""


class Finding(Record):
    """Something that a rule, a check, a judge or a person found."""

    rule: str
    version: int
    severity: Severity
    message: str
    events: tuple[int, ...] = ()
    """Numbers of the events that show it, the most telling first."""
    places: tuple[str, ...] = ()
    """Places in files that show it, as `path:line`."""
    lane: str | None = None
    mode: FailureMode | None = None
    confidence: float = 1.0
    source: Literal["rule", "check", "judge", "person"] = "rule"
    silenced: str | None = None
    """Why it is not to be counted, where somebody said so."""


class Unmeasured(Record):
    """What could not be said of this trace, and why. It is left out of every rate."""

    rule: str
    """The rule, or the measure."""
    reason: str


def make_finding(
    rule: Rule,
    message: str,
    events: Sequence[int],
    *,
    lane: str | None = None,
    confidence: float = 1.0,
) -> Finding:
    """A finding of that rule."""
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


# What was measured of one trace: findings, measures by lane, the process score.

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
    """Of one lane, or of the whole trace. None is: could not be measured, or never came up."""

    lane: str | None = None
    """None is the whole trace."""
    events: int = 0
    calls: int = 0
    edits: int = 0
    checks: int = 0
    iterations: int = 0
    converged: bool | None = None
    """Whether all passed in the end, for good; None where nothing failed or none can tell."""
    converged_after: int | None = None
    """Iterations until then."""
    standstill: int = 0
    """The longest row of iterations whose failures stayed the same."""
    feedback: Rate | None = None
    """Failing checks whose output was acted on before the next check."""
    brief: Rate | None = None
    """Facts that the child needs, present in the brief."""
    brief_parts: Rate | None = None
    """Parts of a good brief: context, scope, only this work, how to report, what supersedes."""
    understood: Rate | None = None
    """Handoffs whose child aimed at the brief's targets at once."""
    returned: Rate | None = None
    """Facts in the child's report that the parent used."""
    planted: Rate | None = None
    """Planted facts found in each brief: exact, and then used in place of `brief`."""
    recovery: Rate | None = None
    """Surprising states met by re-reading, asking or flagging."""
    context_losses: int | None = None
    """Constraints violated, corrections repeated, unchanged files read again and again."""
    verified: bool | None = None
    """A check ran after the last edit; None without an edit."""
    tampering: int | None = None
    """Findings of weakened tests, suppressed errors and answers from history."""
    drift: tuple[float, ...] = ()
    """Likeness of each window of actions to the goal, 0 to 1."""
    drift_slope: float | None = None
    """Change of that likeness from the first window to the last."""
    context_tokens: int | None = None
    """The most that one turn had before it, with what it added; None where no turn tells."""
    usage: Usage = Usage()
    seconds: float | None = None


class ProcessScore(Record):
    """Can the agent close the loop: four rates, beside the outcome and never mixed into it."""

    handoff: Rate | None = None
    feedback: Rate | None = None
    recovery: Rate | None = None
    convergence: Rate | None = None
    """Of the episodes of failure, those that ended in success."""


class HandoffFacts(Record):
    """The facts behind a handoff's score, one by one."""

    event: int
    """The number of the handoff's event."""
    child: str | None
    """The lane that the work was handed to, where it is recorded."""
    arrived: tuple[str, ...] = ()
    """Facts that the child needs and the brief has."""
    lost: tuple[str, ...] = ()
    """Facts that the child needs and the brief leaves out."""
    understood: bool | None = None
    """Whether the child aimed at the brief's targets at once; None where that cannot be told."""
    used: tuple[str, ...] = ()
    """Facts of the child's report that the parent used."""
    unused: tuple[str, ...] = ()
    """Facts of the report that it did not use, and work of the child that it did again."""


class ModeTag(Record):
    """A failure mode that an attempt shows, by what one source says."""

    mode: FailureMode
    reason: str
    events: tuple[int, ...] = ()
    source: ModeSource = "rule"


class AttemptEnding(Record):
    """Which outcome category an attempt falls into: the first that applies."""

    category: EndingCategory
    reason: str
    events: tuple[int, ...] = ()


class Measurement(Record):
    """The measures of one trace, and the findings of all rules."""

    rules: str
    """Digest of the rules, their versions and thresholds; when it changes, measure again."""
    findings: tuple[Finding, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    whole: Measures = Measures()
    lanes: tuple[Measures, ...] = ()
    score: ProcessScore = ProcessScore()
    modes: tuple[ModeTag, ...] = ()
    examined: tuple[tuple[FailureMode, ModeSource], ...] = ()
    """Which failure modes were looked for, and by what."""
    modules: int | None = None
    """Packages or top folders that the change touches; None without one on record."""
    opened_precision: float | None = None
    opened_recall: float | None = None
    """Of the files that the agent opened, against those that the reference changes."""
    ending: AttemptEnding | None = None
    features: dict[str, float] = {}
    """Features that triage uses; unknown ones are absent."""
