"""Keep what an attempt made: in the store, and unfinished work as a branch too."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from closeloop.attempts.attempt_events import ended_events
from closeloop.attempts.unsaved_results import save_finished_attempt
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.patch_redaction import redact_new_secrets
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.sandbox.workspaces.change_branches import branch_name, has_branches, make_branch
from closeloop.store import Store
from closeloop.tasks.sealed_tasks import require_unsealed


class AttemptBranch(Record):
    """A branch of the user's repository."""

    repo: str
    name: str
    attempt: str


async def save_attempt_result(
    made: AttemptResult, task: Task, store: Store, job: str, aside: Path
) -> AttemptResult | None:
    """Whole or not at all, in one transaction; None when another process was first.

    Where the database takes nothing, it is put aside.
    """
    unfinished = made.attempt.exit != "finished" and task.split != "held-out"
    if unfinished and made.change is not None and made.change.patch:
        try:
            branch = await to_thread.run_sync(make_attempt_branch, made, task)
        except BadInput:
            branch = None  # the store has the change; a branch is a convenience
        if branch is not None:
            attempt = msgspec.structs.replace(made.attempt, branch=branch.name)
            made = msgspec.structs.replace(made, attempt=attempt)
    made = msgspec.structs.replace(made, events=ended_events(made, task))
    with anyio.CancelScope(shield=True):
        saved = await to_thread.run_sync(save_finished_attempt, made, job, store, aside)
    return made if saved else None


def make_attempt_branch(made: AttemptResult, task: Task) -> AttemptBranch | None:
    """The attempt's change on top of the task's base; None where the repository is not here.

    Secrets that the change would bring into the repository are redacted.
    """
    attempt, change = made.attempt, made.change
    if task.repo is None or task.base is None or not has_branches(task.repo):
        return None
    name = branch_name(task.id, attempt.id)
    exit_reason = attempt.exit + (f": {attempt.cause}" if attempt.cause else "")
    message = f"Attempt {attempt.id} at {task.id}\n\n{exit_reason}\n"
    patch = redact_new_secrets(change.patch) if change is not None else ""
    make_branch(task.repo, task.base, patch, name, message, at=attempt.ended)
    return AttemptBranch(repo=task.repo, name=name, attempt=attempt.id)


def branch_stored_attempt(store: Store, name: str) -> AttemptBranch:
    """A branch for any kept attempt, by its id or the beginning of it."""
    attempt = store.load_attempt(name)
    task = store.load_task(attempt.task_digest) if attempt.task_digest else None
    require_unsealed(task)
    change = store.load_exact_change(attempt.id)
    if task is None or change is None or not change.patch:
        raise BadInput(f"Attempt {attempt.id} left no change to make a branch of.")
    branch = make_attempt_branch(AttemptResult(attempt=attempt, change=change), task)
    if branch is None:
        raise BadInput(f"The repository {task.repo} is not on this machine: clone it first.")
    return branch
