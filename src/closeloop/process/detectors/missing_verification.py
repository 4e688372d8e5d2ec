"""missing-verification: code was changed, and nothing was ever run to see whether it works."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.process.asked import asked
from closeloop.process.claims import claim_of, closings
from closeloop.process.edits import code_changes
from closeloop.process.measures.verification import (
    Backing,
    backing_of,
    checks_of,
    trials_after,
    tried_between,
)
from closeloop.process.standing import standing

rule = Rule(
    name="missing-verification",
    version=3,
    about="The agent changed code and never ran a check, nor the code itself, to see if it works.",
    severity="warning",
    gates=True,
)

_ALLOWED = re.compile(
    r"\bno need to (?:run|test|check|verify|execute)"
    r"|\b(?:do not|don't|without) (?:run|test|check|execut|verify)"
)


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """The whole attempt, its sub-agents included: changes of code, and no check since the first."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    if not reading.lanes or (
        reading.attempt and reading.attempt.exit not in ("finished", "gave_up")
    ):
        # Who was stopped may have been about to run something.
        return []
    root = next(iter(reading.lanes.values()))
    backing = backing_of(_kept(reading, root), checks_of(reading))
    if backing is None or backing.checked or backing.stale or _ran(reading, root, backing):
        return []
    if not _could_run(reading):
        reason = "the trace shows no command at all: the agent may have had no way to run one"
        return Unmeasured(rule=rule.name, reason=reason)
    if _says_that_checks_pass(root) or _ALLOWED.search(asked(reading)):
        return []
    return [
        found(
            rule,
            f"{backing.last.written[0]} was changed, and no check ran since the first change.",
            list(dict.fromkeys((backing.last.number, backing.first.number))),
            lane=root.lane.id,
            confidence=0.9,
        )
    ]


def _kept(reading: Reading, root: LaneReading) -> Sequence[Step]:
    """Changes of code that were not taken back."""
    changes = code_changes(root)
    kept = standing(reading).changed if changes else {}
    return [
        step for step in changes if not step.written or any(path in kept for path in step.written)
    ]


def _could_run(reading: Reading) -> bool:
    """It ran some command, or it is one of ours, which can."""
    if reading.attempt is not None and reading.attempt.origin == "experiment":
        return True
    return any(step.doing for lane in reading.lanes.values() for step in lane.steps)


def _says_that_checks_pass(root: LaneReading) -> bool:
    """Then unverified-claim speaks of it."""
    return any((claim := claim_of(end.message)) and claim.passing for end in closings(root))


def _ran(reading: Reading, root: LaneReading, backing: Backing) -> bool:
    trial = next(trials_after(reading, root, backing.last), None)
    return (trial or tried_between(reading, root, backing)) is not None
