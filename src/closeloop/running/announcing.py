"""What happens to attempts, as events."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from closeloop.model.event import Details, Event
from closeloop.model.plan import Made, Slot
from closeloop.model.task import Task
from closeloop.tasks.seal import alias

LIMITS = ("out_of_time", "idle", "out_of_budget")


def started(slot: Slot, retry: int) -> Event:
    """A try began."""
    return _of(slot, "attempt.started", retry=retry)


def held(slot: Slot, why: str) -> Event:
    """A try was not begun, as a limit would not have it."""
    return _of(slot, "guardrail.held", why=why)


def ended(made: Made, task: Task) -> tuple[Event, ...]:
    """What became of a try, and which limit stopped it."""
    attempt = made.attempt
    told: Details = {
        "exit": attempt.exit,
        "outcome": made.grade.outcome.result if made.grade else None,
        "cost": attempt.usage.cost,
    }
    whole = Event(
        kind="attempt.ended",
        at=attempt.ended or datetime.now(UTC),
        task=name_of(task),
        attempt=attempt.id,
        details=told,
    )
    if attempt.exit not in LIMITS:
        return (whole,)
    why: Details = {"limit": attempt.exit, "why": attempt.cause}
    return replace(whole, kind="guardrail.stopped", details=why), whole


def _of(slot: Slot, kind: str, **details: str | int) -> Event:
    who: Details = {"variant": slot.variant.name, "number": slot.number}
    return Event(
        kind=kind, at=datetime.now(UTC), task=name_of(slot.task), details={**who, **details}
    )


def name_of(task: Task) -> str:
    """Of a held-out one, what people may see."""
    return alias(task.digest) if task.split == "held-out" else task.id
