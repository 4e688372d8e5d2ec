"""Which outcome category an attempt falls into: the first that applies, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from closeloop.model.finding import Finding
from closeloop.model.measurement import Category, Ending
from closeloop.model.steps import Reading

UNCHECKED = ("missing-verification", "unverified-claim")
DISOBEYED = (
    "lost-constraint",
    "out-of-scope-edit",
    "weakened-test",
    "answer-from-history",
    "bait-taken",
    "repeated-correction",
)
_BROKEN_MACHINE = (
    "No space left on device",
    "Temporary failure in name resolution",
    "Could not resolve host",
    "Cannot connect to the Docker daemon",
)


def ending_of(reading: Reading, findings: Iterable[Finding]) -> Ending | None:
    """The first category that applies; None where nothing is known of the attempt at all."""
    if reading.attempt is None and not reading.trace.events:
        return None
    counted = [finding for finding in findings if finding.silenced is None]
    for look in _ORDER:
        made = look(reading, counted)
        if made is not None:
            return made
    return Ending(category="clean", reason="Nothing went wrong that the rules can see.")


def _environment(reading: Reading, findings: Sequence[Finding]) -> Ending | None:
    attempt, grade = reading.attempt, reading.grade
    if attempt is not None and attempt.exit == "machine":
        return _ending("environment failure", attempt.cause or "The machine failed the agent.")
    if grade is not None and grade.outcome.result == "unscored":
        return _ending("environment failure", grade.outcome.cause or "It could not be graded.")
    for lane in reading.lanes.values():
        step = lane.checks[-1] if lane.checks else None
        output = getattr(step.event, "output", None) if step and step.failed else None
        sign = next((sign for sign in _BROKEN_MACHINE if output and sign in output), None)
        if step is not None and sign is not None:
            return _ending("environment failure", f"The last check said: {sign}.", [step.number])
    return None


def _timeout(reading: Reading, findings: Sequence[Finding]) -> Ending | None:
    attempt = reading.attempt
    if attempt is not None and attempt.exit in ("out_of_time", "idle"):
        return _ending("timeout", attempt.cause or f"It ended {attempt.exit.replace('_', ' ')}.")
    return None


def _unchecked(reading: Reading, findings: Sequence[Finding]) -> Ending | None:
    return _of(findings, UNCHECKED, "missing verification")


def _disobeyed(reading: Reading, findings: Sequence[Finding]) -> Ending | None:
    grade = reading.grade
    if grade is not None and grade.out_of_scope:
        return _ending(
            "instruction non-compliance",
            f"It changed {grade.out_of_scope[0]}, which is out of scope.",
        )
    return _of(findings, DISOBEYED, "instruction non-compliance")


def _mistaken(reading: Reading, findings: Sequence[Finding]) -> Ending | None:
    attempt, grade = reading.attempt, reading.grade
    error = next((finding for finding in findings if finding.severity == "error"), None)
    if error is not None:
        return _ending("reasoning error", error.message, error.events)
    if grade is not None and grade.outcome.result == "fail":
        reasons = grade.outcome.reasons
        return _ending("reasoning error", reasons[0] if reasons else "The work did not pass.")
    if attempt is not None and attempt.exit in ("gave_up", "out_of_budget", "crashed"):
        return _ending("reasoning error", attempt.cause or f"Its exit was {attempt.exit!r}.")
    return None


_ORDER: tuple[Callable[[Reading, Sequence[Finding]], Ending | None], ...] = (
    _environment,
    _timeout,
    _unchecked,
    _disobeyed,
    _mistaken,
)


def _of(findings: Sequence[Finding], rules: Sequence[str], category: Category) -> Ending | None:
    first = next((finding for finding in findings if finding.rule in rules), None)
    return _ending(category, first.message, first.events) if first else None


def _ending(category: Category, reason: str, events: Sequence[int] = ()) -> Ending:
    return Ending(category=category, reason=reason, events=tuple(events))
