"""Saves the result of an attempt: in the store, and unfinished work as a branch too."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import anyio
import msgspec
from anyio import to_thread
from msgspec.structs import replace

from closeloop.records.attempt import AttemptRow
from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.evaluation import Evaluations, JudgeVersion
from closeloop.records.experiment_plan import AttemptResult, ScheduledAttempt
from closeloop.records.orchestration import (
    DeliveryBranch,
    DeliveryOrder,
    SubtaskAssessment,
    SubtaskResult,
)
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.records.trace import EventDetails, LogEvent, Purge
from closeloop.sandbox.workspaces.workspace_patches import (
    branch_name,
    has_branches,
    make_branch,
    restore_branch,
)
from closeloop.store import Store
from closeloop.store.event_section import delivery_step_key
from closeloop.store.plan_section import pack_exchanges, unpack_exchanges
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.tasks.task_sets import HIDDEN_TEXT, require_unsealed, task_alias
from closeloop.text.redaction import (
    redact_json,
    redact_new_secrets,
    redact_patch,
    redact_text,
    redact_value,
)

# The events of attempts.

LIMIT_EXITS = ("out_of_time", "idle", "out_of_budget")


def started_event(slot: ScheduledAttempt, retry: int) -> LogEvent:
    """Build the event of a started try."""
    return _slot_event(slot, "attempt.started", retry=retry)


def blocked_event(slot: ScheduledAttempt, reason: str) -> LogEvent:
    """Build the event of a try that a limit prevented."""
    return _slot_event(slot, "guardrail.blocked", why=reason)


def ended_events(result: AttemptResult, task: Task) -> tuple[LogEvent, ...]:
    """Build the events of a finished try, and of the limit that stopped it.

    The result of a held-out task goes to its ledger, never to the log that everybody reads.
    """
    attempt, sealed = result.attempt, task.split == "held-out"
    end_details: EventDetails = {
        "exit": attempt.exit,
        "outcome": result.grade.outcome.result if result.grade and not sealed else None,
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
    cause = HIDDEN_TEXT if sealed and attempt.cause else attempt.cause
    limit_details: EventDetails = {"limit": attempt.exit, "why": cause}
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
    """Return the task's name, or the public name of a held-out one."""
    return task_alias(task.digest) if task.split == "held-out" else task.id


# Save results: related records together; what the database does not accept goes into a file.

UNSAVED_SUFFIX = ".unsaved"
ATTEMPTS_FOLDER = Path(".closeloop/attempts")
"""Where attempts of experiments are put, relative to the root."""


class FinishedAttempt(Record):
    """An attempt of an experiment, with the job that it finishes."""

    made: AttemptResult
    exchanges: bytes | None = None
    """Packed, and stored separately."""
    job: str


class JudgedTry(Record):
    """A verdict with its judges."""

    assessment: SubtaskAssessment
    judges: tuple[JudgeVersion, ...] = ()


class UnsavedBatch(Record):
    """Results that are saved together."""

    tried: tuple[SubtaskResult, ...] = ()
    judged: tuple[JudgedTry, ...] = ()
    finished: tuple[FinishedAttempt, ...] = ()


class ResultSaver:
    """Saves tries and verdicts of one plan; each is stored when `save_result` returns."""

    def __init__(self, store: Store, folder: Path, plan: str) -> None:
        self._store = store
        self._folder = folder
        self._plan = plan
        self._waiting: list[SubtaskResult | JudgedTry] = []
        self._turn = anyio.Lock()
        self._refused: Fault | None = None
        """The fault of the database."""
        self._broken: Fault | None = None

    async def save_result(self, result: SubtaskResult | JudgedTry) -> None:
        """Save a result; the first to get the turn saves all that wait, so that a kill loses
        none."""
        with anyio.CancelScope(shield=True):
            self._waiting.append(result)
            async with self._turn:
                if any(waiting is result for waiting in self._waiting):
                    batch, self._waiting = self._waiting, []
                    await to_thread.run_sync(self._save_waiting, batch)
            if self._broken is not None:
                raise self._broken

    def _save_waiting(self, waiting: Sequence[SubtaskResult | JudgedTry]) -> None:
        batch = UnsavedBatch(
            tried=tuple(result for result in waiting if isinstance(result, SubtaskResult)),
            judged=tuple(result for result in waiting if isinstance(result, JudgedTry)),
        )
        if self._refused is None:
            try:
                save_batch(batch, self._store)
            except Fault as fault:
                self._refused = fault
            else:
                return
        resume_command = f"closeloop orchestrate --resume {self._plan}"
        self._broken = set_batch_aside(
            batch, self._refused, self._folder, self._plan, resume_command
        )


def save_finished_attempt(
    result: AttemptResult, job: str, store: Store, folder: Path
) -> AttemptRow | None:
    """Save an attempt, or set it aside; None if another process was first."""
    try:
        return store.save_attempt(result, job)
    except Fault as fault:
        finished = FinishedAttempt(
            made=replace(result, exchanges=()), exchanges=pack_exchanges(result.exchanges), job=job
        )
        batch, name = UnsavedBatch(finished=(finished,)), result.attempt.id
        raise set_batch_aside(batch, fault, folder, name, "closeloop run") from fault


class ResultsRefused(MachineFailed):
    """The database refused finished results; the message says where they are."""


def pick_fault_to_report(faults: Sequence[Fault]) -> Fault:
    """Return the fault that says where finished work is, else the last one."""
    refused = [fault for fault in faults if isinstance(fault, ResultsRefused)]
    return (refused or faults)[-1]


def set_batch_aside(
    batch: UnsavedBatch, fault: Fault, folder: Path, name: str, resume_command: str
) -> ResultsRefused:
    """Set aside what the database refused, and build the fault that says so."""
    reason = str(fault).rstrip(".")
    try:
        write_batch_file(batch, folder, name)
    except OSError as error:
        return ResultsRefused(
            f"{reason}, and {folder} cannot be written ({error.strerror}): free some "
            f"space, then run `{resume_command}` to repeat the last tries."
        )
    return ResultsRefused(
        f"{reason}; finished attempts are saved in {folder}: continue with `{resume_command}`."
    )


def write_batch_file(batch: UnsavedBatch, folder: Path, name: str) -> None:
    """Write a file atomically, so that it survives a crash."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{token_hex(4)}"
    try:
        # It contains exact patches, so only its owner may read it.
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as stream:
            stream.write(pack_record(batch))
            stream.flush()
            os.fsync(stream.fileno())
        file.rename(file.with_suffix(UNSAVED_SUFFIX))
    except OSError:
        file.unlink(missing_ok=True)  # a partial file is useless
        raise


def save_batch(batch: UnsavedBatch, store: Store) -> None:
    """Save verdicts and their tries in two transactions, and attempts in one."""
    for finished in batch.finished:
        exchanges = unpack_exchanges(finished.exchanges) if finished.exchanges else ()
        store.save_attempt(replace(finished.made, exchanges=exchanges), finished.job)
    judges = {judge.id: judge for judged_try in batch.judged for judge in judged_try.judges}
    evaluations = [judged.assessment.evaluation for judged in batch.judged]
    if judges:
        store.judged.save_evaluations(
            Evaluations(
                judges=tuple(judges.values()),
                evaluations=tuple(
                    evaluation for evaluation in evaluations if evaluation is not None
                ),
                passed=None,
                summary="",
            )
        )
    if batch.tried or batch.judged:
        store.plans.save(batch.tried, [judged.assessment for judged in batch.judged])


def recover_batches(store: Store, folder: Path, name: str = "*") -> int:
    """Save results from files that no database accepted before; return how many."""
    files = sorted(folder.glob(f"{name}-*{UNSAVED_SUFFIX}"))
    for file in files:
        try:
            batch = unpack_record(file.read_bytes(), UnsavedBatch)
        except FileNotFoundError:
            continue  # another process was faster
        except OSError as error:
            raise MachineFailed(
                f"{file} cannot be read ({error.strerror}): make it readable, or "
                "delete it to run its attempts again."
            ) from error
        except MachineFailed as fault:
            raise MachineFailed(
                f"{file} cannot be read: upgrade closeloop if a newer version wrote "
                "it, else delete it to run its attempts again."
            ) from fault
        try:
            save_batch(batch, store)
        except BadInput as fault:
            reason = str(fault).rstrip(".")
            raise BadInput(f"{reason}; or delete {file} to run its attempts again.") from fault
        file.unlink(missing_ok=True)
    return len(files)


class AttemptBranch(Record):
    """A branch of the user's repository."""

    repo: str
    name: str
    attempt: str


async def save_attempt_result(
    result: AttemptResult, task: Task, store: Store, job: str, unsaved_folder: Path
) -> AttemptRow | None:
    """Save an attempt in one transaction; None if another process was first.

    If the database refuses it, it is set aside.
    """
    unfinished = result.attempt.exit != "finished" and task.split != "held-out"
    if unfinished and result.change is not None and result.change.patch:
        try:
            branch = await to_thread.run_sync(make_attempt_branch, result, task)
        except BadInput:
            branch = None  # the store has the change; a branch is a convenience
        if branch is not None:
            attempt = msgspec.structs.replace(result.attempt, branch=branch.name)
            result = msgspec.structs.replace(result, attempt=attempt)
    result = msgspec.structs.replace(result, events=ended_events(result, task))
    with anyio.CancelScope(shield=True):
        row = await to_thread.run_sync(save_finished_attempt, result, job, store, unsaved_folder)
    return row  # noqa: RET504 - mypy holds that a scope may swallow the end of its block


def make_attempt_branch(result: AttemptResult, task: Task) -> AttemptBranch | None:
    """Commit the attempt's change on the task's base; None if the repository is not here.

    Secrets that the change would add to the repository are redacted.
    """
    attempt, change = result.attempt, result.change
    if task.repo is None or task.base is None or not has_branches(task.repo):
        return None
    name = branch_name(task.id, attempt.id)
    exit_reason = attempt.exit + (f": {attempt.cause}" if attempt.cause else "")
    message = f"Attempt {attempt.id} at {task.id}\n\n{exit_reason}\n"
    patch = redact_new_secrets(change.patch) if change is not None else ""
    make_branch(task.repo, task.base, patch, name, message, committed_at=attempt.ended)
    return AttemptBranch(repo=task.repo, name=name, attempt=attempt.id)


def _restore_delivered_branch(store: Store, attempt: str) -> AttemptBranch | None:
    """Return the branch that `closeloop deliver` made; recreate it if it is gone."""
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
    """Make a branch for a stored attempt, by its id or the beginning of it."""
    attempt = store.load_attempt(name)
    if (delivered_branch := _restore_delivered_branch(store, attempt.id)) is not None:
        return delivered_branch
    task = store.load_task(attempt.task_digest) if attempt.task_digest else None
    require_unsealed(task)
    change = store.load_exact_change(attempt.id)
    if task is None or change is None or not change.patch:
        raise BadInput(f"Attempt {attempt.id} has no change to create a branch from.")
    branch = make_attempt_branch(AttemptResult(attempt=attempt, change=change), task)
    if branch is None:
        raise BadInput(f"The repository {task.repo} is not on this machine: clone it first.")
    return branch


# Remove a leaked secret from a store, and leave a tombstone that says so.


MIN_SECRET_CHARACTERS = 8
PURGED_MARK = "[purged]"
UNREDACTED_TABLES = ("tasks",)
"""The input of grading is the user's own: known forms in it are mostly made-up keys of tests."""
MAX_FILE_BYTES = 64 << 20


class PurgeResult(Record):
    """What a purge found, and whether it was done."""

    kind: str
    records: int
    places: dict[str, int]
    """Records by table."""
    done: bool
    purge: Purge | None = None
    """The tombstone; None if nothing was removed."""
    left: dict[str, int] = {}
    """Records with known forms that are left unchanged, by table."""
    files: tuple[str, ...] = ()
    """Files beside the store that contain the secret."""


def purge_secret(store: Store, secret: str, *, purged_by: str, apply: bool) -> PurgeResult:
    """Replace a secret in everything that is stored; only count it unless `apply` is set."""
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise BadInput(
            f"A secret of {len(secret)} characters would match ordinary text: give one "
            f"of at least {MIN_SECRET_CHARACTERS}."
        )
    removal = _SecretRemoval(secret)
    if not apply:
        return _dry_result("secret", store.purges.count_records(removal.rewrite_value))
    purge = store.purges.rewrite_records(
        removal.rewrite_value, _make_tombstone_builder("secret", purged_by, removal.salted_digest)
    )
    return _applied_result("secret", purge)


def purge_known_forms(store: Store, *, purged_by: str, apply: bool) -> PurgeResult:
    """Apply today's redaction to everything that is stored, except tasks."""
    redaction = _FormRedaction()
    counts_by_table = store.purges.count_records(redaction.rewrite_value)
    unredacted_counts = {
        name: counts_by_table.pop(name) for name in UNREDACTED_TABLES if name in counts_by_table
    }
    result = _dry_result("known", counts_by_table)
    if apply:
        redaction = _FormRedaction()
        tombstone = _make_tombstone_builder("known", purged_by, redaction.salted_digest)
        purge = store.purges.rewrite_records(redaction.rewrite_value, tombstone, UNREDACTED_TABLES)
        result = _applied_result("known", purge)
    return replace(result, left=unredacted_counts)


def files_with_secret(secret: str, folder: Path) -> Iterator[str]:
    """Yield files of a folder that contain a secret literally; databases are left to
    `purge_secret`."""
    secret_bytes = secret.encode()
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        try:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
                continue
            if secret_bytes in path.read_bytes():
                yield str(path)
        except OSError:
            continue  # removed, or not readable


def _dry_result(kind: str, counts_by_table: dict[str, int]) -> PurgeResult:
    return PurgeResult(
        kind=kind, records=sum(counts_by_table.values()), places=counts_by_table, done=False
    )


def _applied_result(kind: str, purge: Purge | None) -> PurgeResult:
    counts_by_table = purge.places if purge else {}
    records = sum(counts_by_table.values())
    return PurgeResult(kind=kind, records=records, places=counts_by_table, done=True, purge=purge)


def _make_tombstone_builder(
    kind: str, purged_by: str, digest: Callable[[], str]
) -> Callable[[dict[str, int]], Purge]:
    def build_tombstone(counts_by_table: dict[str, int]) -> Purge:
        records = sum(counts_by_table.values())
        purged_at = datetime.now(UTC)
        return Purge(
            at=purged_at,
            who=purged_by,
            kind=kind,
            records=records,
            places=counts_by_table,
            digest=digest(),
        )

    return build_tombstone


class _SecretRemoval:
    """Replaces a secret, also as encoded in JSON, URLs and base64."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        escaped = msgspec.json.encode(secret)[1:-1].decode()
        spellings = [
            secret,
            escaped,
            msgspec.json.encode(escaped)[1:-1].decode(),
            quote(secret, ""),
        ]
        spellings.append(base64.b64encode(secret.encode("utf-8", "replace")).decode().rstrip("="))
        self._ways = sorted(dict.fromkeys(spellings), key=len, reverse=True)

    def salted_digest(self) -> str:
        """Return a salted digest that is slow to guess; it only confirms the secret to who has
        it."""
        salt = os.urandom(16)
        content = self._secret.encode("utf-8", "replace")
        digest = hashlib.scrypt(content, salt=salt, n=2**14, r=8, p=1, dklen=32)
        return f"scrypt:{salt.hex()}:{digest.hex()}"

    def rewrite_value(self, value: Any) -> Any:
        """Return a text, bytes or a decoded record without the secret."""
        match value:
            case str():
                for spelling in self._ways:
                    value = value.replace(spelling, PURGED_MARK)
                return value
            case bytes():
                for secret_form in self._ways:
                    value = value.replace(secret_form.encode(), PURGED_MARK.encode())
                return value
            case dict():
                return {
                    self.rewrite_value(key): self.rewrite_value(item) for key, item in value.items()
                }
            case list():
                return [self.rewrite_value(item) for item in value]
        return value


class _FormRedaction:
    """Redacts all known forms, and remembers a digest of the records that had them."""

    def __init__(self) -> None:
        self._salt = os.urandom(16)
        self._removed = hashlib.blake2b(key=self._salt, digest_size=32)

    def salted_digest(self) -> str:
        """Return a salted digest of the original records."""
        return f"blake2b:{self._salt.hex()}:{self._removed.hexdigest()}"

    def rewrite_value(self, value: Any) -> Any:
        """Return a text, bytes or a decoded record without secrets of known forms."""
        match value:
            case str():
                redacted: Any = redact_text(value, {})
            case bytes():
                redacted = redact_json(value)
            case _:
                redacted = redact_value(_redact_patches(value))
        if redacted != value:
            self._removed.update(msgspec.msgpack.encode(value))
        return redacted


def _redact_patches(value: Any) -> Any:
    """Redact patches line by line, so that they remain valid."""
    match value:
        case dict():
            return {
                key: redact_patch(item)
                if key == "patch" and isinstance(item, str)
                else _redact_patches(item)
                for key, item in value.items()
            }
        case list():
            return [_redact_patches(item) for item in value]
    return value
