"""unverified-claim: success is claimed of code that was changed after it was last checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.trace import Command
from closeloop.process.claims import END, Claim, Closing, claim_of, closings
from closeloop.process.edits import code_changes
from closeloop.process.measures.verification import (
    Backing,
    backing_of,
    checks_of,
    could_not_run,
    is_static,
    trials_after,
    tried_between,
)

rule = Rule(
    name="unverified-claim",
    version=3,
    about="The agent claims success, and no check ran on the code as it left it.",
    severity="error",
    gates=True,
)


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Claims that no check after the last change backs."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    checks = checks_of(reading)
    findings = [
        finding for lane in reading.lanes.values() for finding in _of_lane(reading, lane, checks)
    ]
    return sorted(findings, key=lambda finding: finding.events)


def _of_lane(reading: Reading, lane: LaneReading, checks: Sequence[Step]) -> Iterator[Finding]:
    changes = code_changes(lane)
    for closing in closings(lane) if changes else ():
        if closing.until != END and "pass" not in closing.message.text:
            # In the midst of a conversation "Done." says only that it is the user's turn.
            continue
        backing = backing_of(changes, checks, closing.until)
        if backing is None or backing.last.number < closing.since:
            # Nothing was changed since the user spoke.
            continue
        if any(not could_not_run(step) and not is_static(step) for step in backing.latest):
            continue
        claim = claim_of(closing.message)
        if claim is not None and not _is_backed(reading, lane, closing, claim, backing):
            stale = next(backing.latest, backing.stale)
            stale = stale or tried_between(reading, lane, backing)
            if stale is not None or claim.passing:
                yield _finding(lane, closing, claim, backing.last, stale)


def _is_backed(
    reading: Reading, lane: LaneReading, closing: Closing, claim: Claim, backing: Backing
) -> bool:
    trials = trials_after(reading, lane, backing.last, closing.until)
    if claim.passing and "test" in claim.quote.lower():
        return any(map(_tests, trials))
    if closing.until != END and not claim.passing:
        return True
    ran = any(not could_not_run(step) for step in backing.latest)
    return ran or next(trials, None) is not None


def _tests(trial: Step) -> bool:
    """A test runner of the project's own, which is not known as a check."""
    return not isinstance(trial.event, Command) or "test" in trial.event.command


def _finding(
    lane: LaneReading, closing: Closing, claim: Claim, last: Step, stale: Step | None
) -> Finding:
    if stale is None:
        why = "nothing was run"
    elif stale.number < last.number:
        why = f"{last.written[0]} was changed after the last check"
    elif could_not_run(stale):
        why = "the check after the last change could not run"
    else:
        why = "no tests ran after the last change"
    return found(
        rule,
        f"“{claim.quote}” was claimed, but {why}.",
        [closing.message.number, last.number, *([stale.number] if stale else [])],
        lane=lane.lane.id,
        confidence=0.9,
    )
