"""Which outcome category an attempt falls into: the first that applies, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from closeloop.records.finding import Finding
from closeloop.records.measurement import AttemptEnding, EndingCategory
from closeloop.records.trace_steps import TraceReading

UNCHECKED_RULES = ("missing-verification", "unverified-claim")
NONCOMPLIANCE_RULES = (
    "lost-constraint",
    "out-of-scope-edit",
    "weakened-test",
    "answer-from-history",
    "bait-taken",
    "repeated-correction",
)
_MACHINE_ERRORS = (
    "No space left on device",
    "Temporary failure in name resolution",
    "Could not resolve host",
    "Cannot connect to the Docker daemon",
)


def classify_ending(reading: TraceReading, findings: Iterable[Finding]) -> AttemptEnding | None:
    """The first category that applies; None where nothing is known of the attempt at all."""
    if reading.attempt is None and not reading.trace.events:
        return None
    counted = [finding for finding in findings if finding.silenced is None]
    for classify in _ENDING_ORDER:
        ending = classify(reading, counted)
        if ending is not None:
            return ending
    return AttemptEnding(category="clean", reason="Nothing went wrong that the rules can see.")


def _environment_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    attempt, grade = reading.attempt, reading.grade
    if attempt is not None and attempt.exit == "machine":
        return _make_ending("environment failure", attempt.cause or "The machine failed the agent.")
    if grade is not None and grade.outcome.result == "unscored":
        return _make_ending("environment failure", grade.outcome.cause or "It could not be graded.")
    for lane in reading.lanes.values():
        step = lane.checks[-1] if lane.checks else None
        output = getattr(step.event, "output", None) if step and step.failed else None
        sign = next((sign for sign in _MACHINE_ERRORS if output and sign in output), None)
        if step is not None and sign is not None:
            return _make_ending(
                "environment failure", f"The last check said: {sign}.", [step.number]
            )
    return None


def _timeout_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    attempt = reading.attempt
    if attempt is not None and attempt.exit in ("out_of_time", "idle"):
        return _make_ending(
            "timeout", attempt.cause or f"It ended {attempt.exit.replace('_', ' ')}."
        )
    return None


def _unverified_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    return _ending_from_rules(findings, UNCHECKED_RULES, "missing verification")


def _noncompliance_ending(
    reading: TraceReading, findings: Sequence[Finding]
) -> AttemptEnding | None:
    grade = reading.grade
    if grade is not None and grade.out_of_scope:
        return _make_ending(
            "instruction non-compliance",
            f"It changed {grade.out_of_scope[0]}, which is out of scope.",
        )
    return _ending_from_rules(findings, NONCOMPLIANCE_RULES, "instruction non-compliance")


def _reasoning_ending(reading: TraceReading, findings: Sequence[Finding]) -> AttemptEnding | None:
    attempt, grade = reading.attempt, reading.grade
    error = next((finding for finding in findings if finding.severity == "error"), None)
    if error is not None:
        return _make_ending("reasoning error", error.message, error.events)
    if grade is not None and grade.outcome.result == "fail":
        reasons = grade.outcome.reasons
        return _make_ending("reasoning error", reasons[0] if reasons else "The work did not pass.")
    if attempt is not None and attempt.exit in ("gave_up", "out_of_budget", "crashed"):
        return _make_ending("reasoning error", attempt.cause or f"Its exit was {attempt.exit!r}.")
    return None


_ENDING_ORDER: tuple[Callable[[TraceReading, Sequence[Finding]], AttemptEnding | None], ...] = (
    _environment_ending,
    _timeout_ending,
    _unverified_ending,
    _noncompliance_ending,
    _reasoning_ending,
)


def _ending_from_rules(
    findings: Sequence[Finding], rules: Sequence[str], category: EndingCategory
) -> AttemptEnding | None:
    first = next((finding for finding in findings if finding.rule in rules), None)
    return _make_ending(category, first.message, first.events) if first else None


def _make_ending(
    category: EndingCategory, reason: str, events: Sequence[int] = ()
) -> AttemptEnding:
    return AttemptEnding(category=category, reason=reason, events=tuple(events))
