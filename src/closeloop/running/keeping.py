"""Keep what an attempt made: in the store, and unfinished work as a branch too."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from closeloop.model.errors import BadInput
from closeloop.model.patch_redaction import redact_new_secrets
from closeloop.model.plan import Made
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.running.announcing import ended
from closeloop.running.safekeeping import keep_finished
from closeloop.runs.workspaces.branches import branch_name, has_branches, make_branch
from closeloop.store import Store
from closeloop.tasks.seal import demand_open


class Branch(Record):
    """A branch of the user's repository."""

    repo: str
    name: str
    attempt: str


async def keep(made: Made, task: Task, store: Store, job: str, aside: Path) -> Made | None:
    """Whole or not at all, in one transaction; None when another process was first.

    Where the database takes nothing, it is put aside.
    """
    unfinished = made.attempt.exit != "finished" and task.split != "held-out"
    if unfinished and made.change is not None and made.change.patch:
        try:
            branch = await to_thread.run_sync(branch_of, made, task)
        except BadInput:
            branch = None  # the store has the change; a branch is a convenience
        if branch is not None:
            attempt = msgspec.structs.replace(made.attempt, branch=branch.name)
            made = msgspec.structs.replace(made, attempt=attempt)
    made = msgspec.structs.replace(made, events=ended(made, task))
    with anyio.CancelScope(shield=True):
        saved = await to_thread.run_sync(keep_finished, made, job, store, aside)
    return made if saved else None


def branch_of(made: Made, task: Task) -> Branch | None:
    """The attempt's change on top of the task's base; None where the repository is not here.

    Secrets that the change would bring into the repository are redacted.
    """
    attempt, change = made.attempt, made.change
    if task.repo is None or task.base is None or not has_branches(task.repo):
        return None
    name = branch_name(task.id, attempt.id)
    ended = attempt.exit + (f": {attempt.cause}" if attempt.cause else "")
    message = f"Attempt {attempt.id} at {task.id}\n\n{ended}\n"
    patch = redact_new_secrets(change.patch) if change is not None else ""
    make_branch(task.repo, task.base, patch, name, message, at=attempt.ended)
    return Branch(repo=task.repo, name=name, attempt=attempt.id)


def branch_for(store: Store, name: str) -> Branch:
    """A branch for any kept attempt, by its id or the beginning of it."""
    attempt = store.attempt(name)
    task = store.task(attempt.task_digest) if attempt.task_digest else None
    demand_open(task)
    change = store.exact_change(attempt.id)
    if task is None or change is None or not change.patch:
        raise BadInput(f"Attempt {attempt.id} left no change to make a branch of.")
    made = branch_of(Made(attempt=attempt, change=change), task)
    if made is None:
        raise BadInput(f"The repository {task.repo} is not on this machine: clone it first.")
    return made
