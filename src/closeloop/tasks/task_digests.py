"""What makes two tasks the same: for the agent that works on them, and for the grader."""

from __future__ import annotations

import msgspec

from closeloop.records.record import content_digest
from closeloop.records.task import Task


def with_digests(task: Task) -> Task:
    """The task with its two identities, the same on every machine.

    A commit id stands for all the content of its repository, wherever that was cloned to, so the
    repository's path is part of neither. The base counts for grading too: a proof is kept under
    the grading digest alone, and what tests say at one commit they need not say at another.
    """
    start = (task.base, task.setup)
    # The order of answers decides which one is given: they count as pairs.
    task_digest = content_digest("task 1", task.prompt, *start, tuple(task.answers.items()))
    grading_digest = content_digest(
        "grading 1",
        *start,
        task.acceptance,
        task.protected,
        task.reference,
        task.scope,
        task.facts,
        task.ambiguous,
    )
    return msgspec.structs.replace(task, digest=task_digest, grading=grading_digest)
