"""What may be told of held-out tasks: that they are there, and how many attempts passed.

A set that people have read is a set they tune for. So its tasks go by another name, and what an
attempt at one said, changed or broke is left out wherever records are printed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from closeloop.model.attempt import AttemptRow, Proof
from closeloop.model.errors import BadInput
from closeloop.model.measurement import Measurement
from closeloop.model.plan import Results
from closeloop.model.task import Task

PREFIX = "sealed-"
HIDDEN = "(sealed)"


def alias(digest: str) -> str:
    """What a held-out task is called where people see it."""
    return PREFIX + digest[:8]


def is_alias(name: str | None) -> bool:
    return name is not None and name.startswith(PREFIX)


def sealed_of(tasks: Sequence[Task]) -> frozenset[str]:
    """The digests of those that are held out."""
    return frozenset(task.digest for task in tasks if task.split == "held-out")


def demand_open(task: Task | None) -> None:
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
        id=alias(task.digest),
        prompt=HIDDEN,
        split=task.split,
        ambiguous=task.ambiguous,
        digest=task.digest,
        grading=task.grading,
    )


def hide_row(row: AttemptRow, sealed: Collection[str]) -> AttemptRow:
    """An attempt without what it tells of a sealed task."""
    if row.task_digest is None or row.task_digest not in sealed:
        return row
    return replace(
        row,
        task=alias(row.task_digest),
        repo=None,
        cause=row.cause and HIDDEN,
        outcome_cause=row.outcome_cause and HIDDEN,
        reason=row.reason and HIDDEN,
    )


def hide_measurement(measurement: Measurement) -> Measurement:
    """The numbers and which rules spoke, without the evidence."""
    return replace(
        measurement,
        findings=tuple(
            replace(one, message=HIDDEN, places=(), lane=None) for one in measurement.findings
        ),
        unmeasured=tuple(replace(one, reason=HIDDEN) for one in measurement.unmeasured),
        lanes=(),
        modes=tuple(replace(tag, reason=HIDDEN) for tag in measurement.modes),
        ending=measurement.ending and replace(measurement.ending, reason=HIDDEN),
    )


def hide_proof(proof: Proof, task: Task) -> Proof:
    """Whether a held-out task is sound, and no more."""
    if task.split != "held-out":
        return proof
    reasons = (HIDDEN,) if proof.reasons else ()
    return replace(proof, task=alias(task.digest), reasons=reasons, before=None, reference=None)


def hide_results(results: Results) -> Results:
    """What came of a plan, as it may be printed."""
    sealed = sealed_of(results.tasks)
    if not sealed:
        return results
    names = {task.id: alias(task.digest) for task in results.tasks if task.digest in sealed}
    hidden = {row.id for row in results.attempts if row.task_digest in sealed}
    return replace(
        results,
        tasks=tuple(hide_task(task) for task in results.tasks),
        attempts=tuple(hide_row(row, sealed) for row in results.attempts),
        measurements={
            name: hide_measurement(made) if name in hidden else made
            for name, made in results.measurements.items()
        },
        insights=tuple(one for one in results.insights if one.attempt not in hidden),
        skipped={
            names.get(name, name): HIDDEN if name in names else why
            for name, why in results.skipped.items()
        },
    )
