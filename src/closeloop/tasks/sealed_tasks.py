"""What may be told of held-out tasks: that they are there, and how many attempts passed.

A set that people have read is a set they tune for. So its tasks go by another name, and what an
attempt at one said, changed or broke is left out wherever records are printed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from closeloop.records.attempt import AttemptRow, Proof
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import ExperimentResults
from closeloop.records.finding import Measurement
from closeloop.records.task import Task

ALIAS_PREFIX = "sealed-"
HIDDEN_TEXT = "(sealed)"


def task_alias(digest: str) -> str:
    """What a held-out task is called where people see it."""
    return ALIAS_PREFIX + digest[:8]


def is_alias(name: str) -> bool:
    return name.startswith(ALIAS_PREFIX)


def held_out_digests(tasks: Sequence[Task]) -> frozenset[str]:
    """The digests of those that are held out."""
    return frozenset(task.digest for task in tasks if task.split == "held-out")


def require_unsealed(task: Task | None) -> None:
    """Refuse to show an attempt at a held-out task, or to work with the task itself."""
    if task is not None and task.split == "held-out":
        raise BadInput(
            "That task is held out and stays sealed: `closeloop sets` shows how the set does, "
            "and a task whose `split` is set to dev can be looked at."
        )


def hide_task(task: Task) -> Task:
    """A task that says no more than that it is there; one of dev as it is."""
    if task.split != "held-out":
        return task
    return Task(
        id=task_alias(task.digest),
        prompt=HIDDEN_TEXT,
        split=task.split,
        ambiguous=task.ambiguous,
        digest=task.digest,
        grading=task.grading,
    )


def hide_attempt(row: AttemptRow, sealed: Collection[str]) -> AttemptRow:
    """An attempt without what it tells of a sealed task."""
    if row.task_digest is None or row.task_digest not in sealed:
        return row
    return replace(
        row,
        title=task_alias(row.task_digest),
        detail=row.detail and HIDDEN_TEXT,
        task=task_alias(row.task_digest),
        repo=None,
        cause=row.cause and HIDDEN_TEXT,
        outcome_cause=row.outcome_cause and HIDDEN_TEXT,
        reason=row.reason and HIDDEN_TEXT,
    )


def hide_measurement(measurement: Measurement) -> Measurement:
    """The numbers and which rules spoke, without the evidence."""
    return replace(
        measurement,
        findings=tuple(
            replace(one, message=HIDDEN_TEXT, places=(), lane=None) for one in measurement.findings
        ),
        unmeasured=tuple(replace(one, reason=HIDDEN_TEXT) for one in measurement.unmeasured),
        lanes=(),
        modes=tuple(replace(tag, reason=HIDDEN_TEXT) for tag in measurement.modes),
        ending=measurement.ending and replace(measurement.ending, reason=HIDDEN_TEXT),
    )


def hide_proof(proof: Proof, task: Task) -> Proof:
    """Whether a held-out task is sound, and no more."""
    if task.split != "held-out":
        return proof
    reasons = (HIDDEN_TEXT,) if proof.reasons else ()
    return replace(
        proof, task=task_alias(task.digest), reasons=reasons, before=None, reference=None
    )


def hide_results(results: ExperimentResults) -> ExperimentResults:
    """What came of a plan, as it may be printed."""
    sealed = held_out_digests(results.tasks)
    if not sealed:
        return results
    aliases = {task.id: task_alias(task.digest) for task in results.tasks if task.digest in sealed}
    hidden_attempts = {row.id for row in results.attempts if row.task_digest in sealed}
    return replace(
        results,
        tasks=tuple(hide_task(task) for task in results.tasks),
        attempts=tuple(hide_attempt(row, sealed) for row in results.attempts),
        measurements={
            name: hide_measurement(made) if name in hidden_attempts else made
            for name, made in results.measurements.items()
        },
        insights=tuple(one for one in results.insights if one.attempt not in hidden_attempts),
        skipped={
            aliases.get(name, name): HIDDEN_TEXT if name in aliases else why
            for name, why in results.skipped.items()
        },
    )


def split_results(results: ExperimentResults) -> tuple[ExperimentResults, ExperimentResults]:
    """What came of dev tasks, and what came of held-out ones, which are hidden already."""
    sealed = held_out_digests(results.tasks)
    dev, held_out = (
        replace(
            results,
            tasks=tuple(task for task in results.tasks if (task.digest in sealed) is is_sealed),
            attempts=tuple(
                row for row in results.attempts if (row.task_digest in sealed) is is_sealed
            ),
            skipped={
                name: why for name, why in results.skipped.items() if is_alias(name) is is_sealed
            },
        )
        for is_sealed in (False, True)
    )
    return dev, held_out
