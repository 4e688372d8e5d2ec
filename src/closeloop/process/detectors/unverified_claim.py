"""unverified-claim: success is claimed of code that was changed after it was last checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from closeloop.process.agent_claims import (
    NO_END,
    ClosingMessage,
    SuccessClaim,
    list_closings,
    parse_claim,
)
from closeloop.process.edit_contents import list_code_changes
from closeloop.process.measures.verification import (
    CheckBacking,
    could_not_run,
    find_backing,
    find_trial_between,
    is_static_check,
    list_trace_checks,
    list_trials_after,
)
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
    TraceStep,
)
from closeloop.records.trace import (
    Command,
)

rule = Rule(
    name="unverified-claim",
    version=3,
    about="The agent claims success, and no check ran on the code as it left it.",
    severity="error",
    gates=True,
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Claims that no check after the last change backs."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    checks = list_trace_checks(reading)
    findings = [
        finding
        for lane in reading.lanes.values()
        for finding in _findings_in_lane(reading, lane, checks)
    ]
    return sorted(findings, key=lambda finding: finding.events)


def _findings_in_lane(
    reading: TraceReading, lane: LaneReading, checks: Sequence[TraceStep]
) -> Iterator[Finding]:
    changes = list_code_changes(lane)
    for closing in list_closings(lane) if changes else ():
        if closing.until != NO_END and "pass" not in closing.message.text:
            # In the midst of a conversation "Done." says only that it is the user's turn.
            continue
        backing = find_backing(changes, checks, closing.until)
        if backing is None or backing.last.number < closing.since:
            # Nothing was changed since the user spoke.
            continue
        if any(
            not could_not_run(step) and not is_static_check(step) for step in backing.latest_checks
        ):
            continue
        claim = parse_claim(closing.message)
        if claim is not None and not _has_backing(reading, lane, closing, claim, backing):
            stale = next(backing.latest_checks, backing.stale)
            stale = stale or find_trial_between(reading, lane, backing)
            if stale is not None or claim.passing:
                yield _build_finding(lane, closing, claim, backing.last, stale)


def _has_backing(
    reading: TraceReading,
    lane: LaneReading,
    closing: ClosingMessage,
    claim: SuccessClaim,
    backing: CheckBacking,
) -> bool:
    trials = list_trials_after(reading, lane, backing.last, closing.until)
    if claim.passing and "test" in claim.quote.lower():
        return any(map(_is_test_run, trials))
    if closing.until != NO_END and not claim.passing:
        return True
    ran = any(not could_not_run(step) for step in backing.latest_checks)
    return ran or next(trials, None) is not None


def _is_test_run(trial: TraceStep) -> bool:
    """A test runner of the project's own, which is not known as a check."""
    return not isinstance(trial.event, Command) or "test" in trial.event.command


def _build_finding(
    lane: LaneReading,
    closing: ClosingMessage,
    claim: SuccessClaim,
    last: TraceStep,
    stale: TraceStep | None,
) -> Finding:
    if stale is None:
        why = "nothing was run"
    elif stale.number < last.number:
        why = f"{last.written[0]} was changed after the last check"
    elif could_not_run(stale):
        why = "the check after the last change could not run"
    else:
        why = "no tests ran after the last change"
    return make_finding(
        rule,
        f"“{claim.quote}” was claimed, but {why}.",
        [closing.message.number, last.number, *([stale.number] if stale else [])],
        lane=lane.lane.id,
        confidence=0.9,
    )
