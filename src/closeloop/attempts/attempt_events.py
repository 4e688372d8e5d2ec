"""What happens to attempts, as events."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from closeloop.records.event_log import EventDetails, LogEvent
from closeloop.records.experiment_plan import AttemptResult, ScheduledAttempt
from closeloop.records.task import Task
from closeloop.tasks.sealed_tasks import task_alias

LIMIT_EXITS = ("out_of_time", "idle", "out_of_budget")


def started_event(slot: ScheduledAttempt, retry: int) -> LogEvent:
    """A try began."""
    return _slot_event(slot, "attempt.started", retry=retry)


def blocked_event(slot: ScheduledAttempt, why: str) -> LogEvent:
    """A try was not begun, as a limit would not have it."""
    return _slot_event(slot, "guardrail.held", why=why)


def ended_events(made: AttemptResult, task: Task) -> tuple[LogEvent, ...]:
    """What became of a try, and which limit stopped it."""
    attempt = made.attempt
    end_details: EventDetails = {
        "exit": attempt.exit,
        "outcome": made.grade.outcome.result if made.grade else None,
        "cost": attempt.usage.cost,
    }
    end_event = LogEvent(
        kind="attempt.ended",
        at=attempt.ended or datetime.now(UTC),
        task=visible_task_name(task),
        attempt=attempt.id,
        details=end_details,
    )
    if attempt.exit not in LIMIT_EXITS:
        return (end_event,)
    limit_details: EventDetails = {"limit": attempt.exit, "why": attempt.cause}
    return replace(end_event, kind="guardrail.stopped", details=limit_details), end_event


def _slot_event(slot: ScheduledAttempt, kind: str, **details: str | int) -> LogEvent:
    slot_details: EventDetails = {"variant": slot.variant.name, "number": slot.number}
    return LogEvent(
        kind=kind,
        at=datetime.now(UTC),
        task=visible_task_name(slot.task),
        details={**slot_details, **details},
    )


def visible_task_name(task: Task) -> str:
    """Of a held-out one, what people may see."""
    return task_alias(task.digest) if task.split == "held-out" else task.id
