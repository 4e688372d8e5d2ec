"""Keep what an attempt made: in the store, and unfinished work as a branch too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import anyio
import msgspec
from anyio import to_thread
from msgspec.structs import replace

from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.evaluation import Evaluations, JudgeVersion
from closeloop.records.experiment_plan import AttemptResult, ScheduledAttempt
from closeloop.records.orchestration import SubtaskAssessment, SubtaskResult
from closeloop.records.record import Record
from closeloop.records.request_delivery import DeliveryBranch, DeliveryOrder
from closeloop.records.session import EventDetails, LogEvent
from closeloop.records.task import Task
from closeloop.sandbox.workspaces.source_repository import (
    branch_name,
    has_branches,
    make_branch,
    restore_branch,
)
from closeloop.store import Store
from closeloop.store.event_section import delivery_step_key
from closeloop.store.plan_section import pack_exchanges, unpack_exchanges
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.tasks.sealed_tasks import HIDDEN_TEXT, require_unsealed, task_alias
from closeloop.text.redaction import redact_new_secrets

# What happens to attempts, as events.

LIMIT_EXITS = ("out_of_time", "idle", "out_of_budget")


def started_event(slot: ScheduledAttempt, retry: int) -> LogEvent:
    """A try began."""
    return _slot_event(slot, "attempt.started", retry=retry)


def blocked_event(slot: ScheduledAttempt, why: str) -> LogEvent:
    """A try was not begun, as a limit would not have it."""
    return _slot_event(slot, "guardrail.held", why=why)


def ended_events(made: AttemptResult, task: Task) -> tuple[LogEvent, ...]:
    """What became of a try, and which limit stopped it.

    How a held-out task ended is in the ledger's own place, never in the log that all read.
    """
    attempt, sealed = made.attempt, task.split == "held-out"
    end_details: EventDetails = {
        "exit": attempt.exit,
        "outcome": made.grade.outcome.result if made.grade and not sealed else None,
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
    why = HIDDEN_TEXT if sealed and attempt.cause else attempt.cause
    limit_details: EventDetails = {"limit": attempt.exit, "why": why}
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


# Keep what came of work: together what comes together, and in a file what no database takes.

UNSAVED_SUFFIX = ".unsaved"
ATTEMPTS_FOLDER = Path(".closeloop/attempts")
"""Where those of experiments lie, from the root."""


class FinishedAttempt(Record):
    """An attempt of an experiment, with the job that it finishes."""

    made: AttemptResult
    exchanges: bytes | None = None
    """Packed: they are not told with the rest."""
    job: str


class JudgedTry(Record):
    """A verdict, with the judges that gave it."""

    assessment: SubtaskAssessment
    judges: tuple[JudgeVersion, ...] = ()


class UnsavedBatch(Record):
    """What is saved in one go."""

    tried: tuple[SubtaskResult, ...] = ()
    judged: tuple[JudgedTry, ...] = ()
    finished: tuple[FinishedAttempt, ...] = ()


class ResultSaver:
    """Takes tries and verdicts of one plan; each is kept when `keep` returns."""

    def __init__(self, store: Store, folder: Path, plan: str) -> None:
        self._store = store
        self._folder = folder
        self._plan = plan
        self._waiting: list[SubtaskResult | JudgedTry] = []
        self._turn = anyio.Lock()
        self._refused: Fault | None = None
        """By the database."""
        self._broken: Fault | None = None

    async def save_result(self, one: SubtaskResult | JudgedTry) -> None:
        """Whoever gets the turn saves all that wait; a kill loses none that is saved."""
        with anyio.CancelScope(shield=True):
            self._waiting.append(one)
            async with self._turn:
                if any(each is one for each in self._waiting):
                    batch, self._waiting = self._waiting, []
                    await to_thread.run_sync(self._save_waiting, batch)
            if self._broken is not None:
                raise self._broken

    def _save_waiting(self, waiting: Sequence[SubtaskResult | JudgedTry]) -> None:
        batch = UnsavedBatch(
            tried=tuple(one for one in waiting if isinstance(one, SubtaskResult)),
            judged=tuple(one for one in waiting if isinstance(one, JudgedTry)),
        )
        if self._refused is None:
            try:
                save_batch(batch, self._store)
            except Fault as fault:
                self._refused = fault
            else:
                return
        again = f"closeloop orchestrate --resume {self._plan}"
        self._broken = set_batch_aside(batch, self._refused, self._folder, self._plan, again)


def save_finished_attempt(made: AttemptResult, job: str, store: Store, folder: Path) -> bool:
    """Save an attempt, or put it by; False when another process was first."""
    try:
        return store.save_attempt(made, job)
    except Fault as fault:
        finished = FinishedAttempt(
            made=replace(made, exchanges=()), exchanges=pack_exchanges(made.exchanges), job=job
        )
        batch, name = UnsavedBatch(finished=(finished,)), made.attempt.id
        raise set_batch_aside(batch, fault, folder, name, "closeloop run") from fault


class ResultsRefused(MachineFailed):
    """The database refused what is finished: the message says what became of it."""


def pick_fault_to_report(faults: Sequence[Fault]) -> Fault:
    """The last fault, but one that says where finished work lies before any other."""
    refused = [fault for fault in faults if isinstance(fault, ResultsRefused)]
    return (refused or faults)[-1]


def set_batch_aside(
    batch: UnsavedBatch, fault: Fault, folder: Path, name: str, again: str
) -> ResultsRefused:
    """Put by what the database refused: what there is to say of that."""
    reason = str(fault).rstrip(".")
    try:
        write_batch_file(batch, folder, name)
    except OSError as error:
        return ResultsRefused(
            f"{reason}, nor can {folder} be written ({error.strerror}): make room, then `{again}` "
            "does the last tries again."
        )
    return ResultsRefused(
        f"{reason}; what is finished lies safe in {folder}: `{again}` goes on with it."
    )


def write_batch_file(batch: UnsavedBatch, folder: Path, name: str) -> None:
    """In a file, which is whole or not there, even where the machine is lost next."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{token_hex(4)}"
    try:
        # Exact patches lie in it, so that only its owner may read it.
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as opened:
            opened.write(pack_record(batch))
            opened.flush()
            os.fsync(opened.fileno())
        file.rename(file.with_suffix(UNSAVED_SUFFIX))
    except OSError:
        file.unlink(missing_ok=True)  # half a file only takes room
        raise


def save_batch(batch: UnsavedBatch, store: Store) -> None:
    """In two transactions what judges said, and what that makes of the tries; attempts in one."""
    for finished in batch.finished:
        exchanges = unpack_exchanges(finished.exchanges) if finished.exchanges else ()
        store.save_attempt(replace(finished.made, exchanges=exchanges), finished.job)
    judges = {one.id: one for judged in batch.judged for one in judged.judges}
    evaluations = [judged.assessment.evaluation for judged in batch.judged]
    if judges:
        store.judged.save_evaluations(
            Evaluations(
                judges=tuple(judges.values()),
                evaluations=tuple(one for one in evaluations if one is not None),
                passed=None,
                summary="",
            )
        )
    if batch.tried or batch.judged:
        store.plans.save(batch.tried, [judged.assessment for judged in batch.judged])


def recover_batches(store: Store, folder: Path, name: str = "*") -> int:
    """Save what lies in files because no database took it; how many there were."""
    files = sorted(folder.glob(f"{name}-*{UNSAVED_SUFFIX}"))
    for file in files:
        try:
            batch = unpack_record(file.read_bytes(), UnsavedBatch)
        except FileNotFoundError:
            continue  # another process was quicker
        except OSError as error:
            raise MachineFailed(
                f"{file} cannot be read ({error.strerror}): mend that, or delete it, and what it "
                "holds is done again."
            ) from error
        except MachineFailed as fault:
            raise MachineFailed(
                f"{file} cannot be read: upgrade closeloop if a newer one wrote it, else delete "
                "it, and what it held is done again."
            ) from fault
        try:
            save_batch(batch, store)
        except BadInput as fault:
            reason = str(fault).rstrip(".")
            raise BadInput(
                f"{reason}; or delete {file}, and what it holds is done again."
            ) from fault
        file.unlink(missing_ok=True)
    return len(files)


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


def _restore_delivered_branch(store: Store, attempt: str) -> AttemptBranch | None:
    """The branch that `closeloop deliver` made, as it is; made again where it is gone."""
    order = store.steps.load_step(delivery_step_key(attempt, "requested"), DeliveryOrder)
    branch = store.steps.load_step(delivery_step_key(attempt, "branched"), DeliveryBranch)
    repo = order.task.repo if order else None
    if branch is None or repo is None:
        return None
    if not has_branches(repo):
        raise BadInput(f"The repository {repo} is not on this machine: clone it first.")
    restore_branch(repo, branch.name, branch.commit)
    return AttemptBranch(repo=repo, name=branch.name, attempt=attempt)


def branch_stored_attempt(store: Store, name: str) -> AttemptBranch:
    """A branch for any kept attempt, by its id or the beginning of it."""
    attempt = store.load_attempt(name)
    if (delivered := _restore_delivered_branch(store, attempt.id)) is not None:
        return delivered
    task = store.load_task(attempt.task_digest) if attempt.task_digest else None
    require_unsealed(task)
    change = store.load_exact_change(attempt.id)
    if task is None or change is None or not change.patch:
        raise BadInput(f"Attempt {attempt.id} left no change to make a branch of.")
    branch = make_attempt_branch(AttemptResult(attempt=attempt, change=change), task)
    if branch is None:
        raise BadInput(f"The repository {task.repo} is not on this machine: clone it first.")
    return branch
