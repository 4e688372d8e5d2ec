"""What the parts of closeloop made, kept: open it, save records, find them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from msgspec.structs import replace
from sqlalchemy import Connection, Engine, Table, select

from closeloop.model.attempt import Attempt, AttemptRow, Grade, Proof
from closeloop.model.baseline import Baseline
from closeloop.model.change import Change
from closeloop.model.errors import BadInput, ReadOnlyStore
from closeloop.model.exchange import Exchange
from closeloop.model.measurement import Measurement
from closeloop.model.patch_redaction import redact_change
from closeloop.model.plan import Made
from closeloop.model.record import Record
from closeloop.model.session import Session
from closeloop.model.task import Task
from closeloop.model.trace import Trace
from closeloop.model.variant import Experiment, PromptVersion, Variant
from closeloop.store import exchanges as talk
from closeloop.store import facts, jobs, measured, private, schema, sessions
from closeloop.store.access import Access
from closeloop.store.bodies import pack, pack_shared, unpack
from closeloop.store.counts import Counts
from closeloop.store.course import Course, add_insights
from closeloop.store.engine import faults
from closeloop.store.evaluations import Judged
from closeloop.store.events import Events, add_events
from closeloop.store.heldout import HeldOut
from closeloop.store.listing import Listing
from closeloop.store.memory import Memory
from closeloop.store.numbers import Numbers
from closeloop.store.plans import Plans
from closeloop.store.prompts import Prompts
from closeloop.store.pulls import Pulls
from closeloop.store.purges import Purges
from closeloop.store.purging import erase_old_bytes
from closeloop.store.reconnecting import Reconnection
from closeloop.store.reports import Reports
from closeloop.store.reviews import Reviews
from closeloop.store.rows import Wanted, attempt_columns, list_rows
from closeloop.store.sessions import Imported, Packed, Sent
from closeloop.store.trials import Trials

Answer = TypeVar("Answer")
Kept = TypeVar("Kept", bound=Record)


class Store:
    """An open store. Safe to use from several threads; every save is whole or not at all."""

    def __init__(
        self, reader: Engine, writer: Engine | None, where: str, reconnection: Reconnection
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._where = where
        self._reconnection = reconnection
        self.access = Access(self._read, self._write)
        """Who may come in over HTTP."""
        self.counts = Counts(self._read, self._write)
        """How many there are."""
        self.course = Course(self._read, self._write)
        """How experiments go."""
        self.events = Events(self._read, self._write)
        """What happened, one after the other."""
        self.held_out = HeldOut(self._read, self._write)
        """What is held out, and who looked."""
        self.judged = Judged(self._read, self._write)
        """What judges and people said of outputs."""
        self.listing = Listing(self._read, self._write)
        """Attempts, page by page."""
        self.memory = Memory(self._read, self._write)
        """What reviewers taught."""
        self.numbers = Numbers(self._read, self._write)
        """What metrics are made of."""
        self.plans = Plans(self._read, self._write)
        """Plans that sub-agents carry out."""
        self.prompts = Prompts(self._read, self._write)
        """Prompts, and what ran under them."""
        self.pulls = Pulls(self._read, self._write)
        """What people did with changes."""
        self.purges = Purges(
            self._read, self._write, partial(erase_old_bytes, reader, writer or reader)
        )
        """Secrets that were taken out."""
        self.reports = Reports(self._read, self._write)
        """What checks said of changes."""
        self.reviews = Reviews(self._read, self._write)
        """What people answered in the queue."""
        self.trials = Trials(self._read, self._write)
        """Variants that share the work in production."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database; what was saved is safe without it."""
        self._reader.dispose()
        if self._writer is not None:
            self._writer.dispose()

    @contextmanager
    def closed_by_fault(self) -> Iterator[None]:
        """Close it when the block fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @property
    def is_read_only(self) -> bool:
        return self._writer is None

    def _read(self, work: Callable[[Connection], Answer]) -> Answer:
        with faults(self._where):
            return self._reconnection.run_transaction(self._reader, work, writes=False)

    def _write(self, work: Callable[[Connection], Answer]) -> Answer:
        if self._writer is None:
            raise ReadOnlyStore(f"{self._where} can only be read: make it writable to do this.")
        with faults(self._where):
            return self._reconnection.run_transaction(self._writer, work, writes=True)

    # Tasks, prompts, variants, experiments

    def save_task(self, task: Task) -> None:
        columns = {
            "digest": task.digest,
            "grading": task.grading,
            "id": task.id,
            "split": task.split,
            "body": pack(task),
        }
        self._write(lambda on: facts.append_named(on, schema.tasks, ("digest", "id"), columns))

    def task(self, digest: str) -> Task | None:
        return self._newest(schema.tasks, "digest", digest, Task)

    def save_prompt(self, prompt: PromptVersion) -> None:
        columns = {"id": prompt.id, "body": pack(prompt)}
        self._write(lambda on: facts.append(on, schema.prompts, ("id",), columns))

    def prompt(self, prompt: str) -> PromptVersion | None:
        return self._newest(schema.prompts, "id", prompt, PromptVersion)

    def save_variant(self, variant: Variant) -> None:
        columns = {
            "digest": variant.digest,
            "name": variant.name,
            "agent": variant.agent,
            "model": variant.model,
            "body": pack(variant),
        }
        self._write(lambda on: facts.append_named(on, schema.variants, ("digest", "name"), columns))

    def variant(self, digest: str) -> Variant | None:
        return self._newest(schema.variants, "digest", digest, Variant)

    def save_experiment(self, experiment: Experiment) -> None:
        columns = {"id": experiment.id, "body": pack(experiment)}
        self._write(lambda on: facts.append(on, schema.experiments, ("id",), columns))

    def experiment(self, experiment: str) -> Experiment | None:
        return self._newest(schema.experiments, "id", experiment, Experiment)

    def experiments(self) -> list[Experiment]:
        """All of them, newest first."""
        table = schema.experiments
        query = select(table.c.id, table.c.body).order_by(table.c.number.desc())
        newest: dict[str, bytes] = {}
        for name, body in self._read(lambda on: on.execute(query).all()):
            newest.setdefault(name, body)
        return [unpack(body, Experiment) for body in newest.values()]

    def _newest(self, table: Table, key: str, value: str, kind: type[Kept]) -> Kept | None:
        query = select(table.c.body).where(table.c[key] == value)
        query = query.order_by(table.c.number.desc()).limit(1)
        body = self._read(lambda on: on.execute(query).scalar())
        return None if body is None else unpack(body, kind)

    # Proofs

    def save_proof(self, proof: Proof) -> None:
        """Add what is known of a task by its controls; it counts from now on."""
        before, reference = pack_shared(proof.before), pack_shared(proof.reference)
        columns = {
            "grading": proof.grading,
            "task": proof.task,
            "state": proof.state,
            "before": before and before[0],
            "reference": reference and reference[0],
            "body": pack(replace(proof, before=None, reference=None)),
        }

        def work(on: Connection) -> None:
            facts.share(on, before, reference)
            facts.append(on, schema.proofs, ("grading",), columns)

        self._write(work)

    def proof(self, grading: str) -> Proof | None:
        table = schema.proofs
        query = select(table.c.body, table.c.before, table.c.reference)
        query = query.where(table.c.grading == grading).order_by(table.c.number.desc()).limit(1)

        def work(on: Connection) -> Proof | None:
            row = on.execute(query).first()
            if row is None:
                return None
            before, reference = facts.shared(on, row.before), facts.shared(on, row.reference)
            return replace(unpack(row.body, Proof), before=before, reference=reference)

        return self._read(work)

    # Attempts and grades

    def keep(self, made: Made, job: str | None = None) -> bool:
        """Save an attempt with all that belongs to it, and finish its job.

        Saving the same again does nothing. False, and nothing saved, when another attempt
        finished the job first.
        """
        trace, change, grade = made.trace, made.change, made.grade
        columns = attempt_columns(made.attempt, trace, change)
        shown = change and redact_change(change)
        bodies = {
            "attempt": made.attempt.id,
            "body": pack(made.attempt),
            "change": shown and pack(shown),
            "trace": trace and pack(trace),
        }
        exact = private.attempt_row(made.attempt.id, change) if change != shown else None
        before = pack_shared(grade.before) if grade else None
        graded = facts.grade_columns(grade, before) if grade else None
        asked = talk.packed(made.attempt.id, made.exchanges)

        def work(on: Connection) -> bool:
            if job is not None and not jobs.finish(on, job) and not facts.knows(on, bodies):
                return False
            first = facts.add_attempt(on, columns, bodies)
            if exact is not None and first:
                private.add(on, [exact])
            if graded is not None:
                facts.share(on, before)
                facts.add_grade(on, graded, first=first)
            add_insights(on, made.insights)
            talk.add(on, asked)
            add_events(on, made.events if first else ())
            return True

        return self._write(work)

    def save_grade(self, grade: Grade) -> None:
        """Add a grade. The newest of the grader's highest version counts."""
        before = pack_shared(grade.before)
        columns = facts.grade_columns(grade, before)

        def work(on: Connection) -> None:
            if not facts.has(on, grade.attempt):
                raise BadInput(f"No attempt {grade.attempt!r} to grade: save it first.")
            facts.share(on, before)
            facts.add_grade(on, columns, first=False)

        self._write(work)

    def attempts(self, **wanted: Unpack[Wanted]) -> list[AttemptRow]:
        """Attempts, latest start first, each with the grade that counts."""
        return self._read(lambda on: list_rows(on, wanted))

    def attempt(self, attempt: str) -> Attempt:
        """The attempt with this id, or with the only id that begins so."""
        (body,) = self._bodies(attempt, "body")
        return unpack(body, Attempt)

    def trace(self, attempt: str) -> Trace | None:
        (body,) = self._bodies(attempt, "trace")
        return None if body is None else unpack(body, Trace)

    def change(self, attempt: str) -> Change | None:
        """What an attempt changed, without secrets: the form that may be shown."""
        (body,) = self._bodies(attempt, "change")
        return None if body is None else unpack(body, Change)

    def exact_change(self, attempt: str) -> Change | None:
        """What an attempt changed, byte for byte: to apply it again, never to show it."""
        body = self._read(lambda on: private.attempt_body(on, facts.full_id(on, attempt)))
        return self.change(attempt) if body is None else unpack(body, Change)

    def recorded(self, attempt: str) -> tuple[Attempt, Trace | None, Change | None]:
        """An attempt with its trace and its change, by one look."""
        body, trace, change = self._bodies(attempt, "body", "trace", "change")
        return (
            unpack(body, Attempt),
            None if trace is None else unpack(trace, Trace),
            None if change is None else unpack(change, Change),
        )

    def exchanges(self, attempt: str) -> Iterator[Exchange]:
        """What went between an attempt and its model, in order."""
        return self._read(lambda on: talk.kept(on, facts.full_id(on, attempt)))

    def _bodies(self, attempt: str, *columns: str) -> Sequence[Any]:
        return self._read(lambda on: facts.bodies_of(on, attempt, *columns))

    def grade(self, attempt: str, grading: str | None = None) -> Grade | None:
        """The grade that counts, for this grading or for any."""
        return self._read(lambda on: facts.grade_of(on, attempt, grading))

    # What the rules say

    def save_measurements(self, made: Sequence[tuple[str, str, Measurement]]) -> None:
        """Add measurements, each with its attempt and with what it was made from.

        They can be made again: a store that can only be read holds them in memory.
        """
        rows = [measured.columns(*one) for one in made]
        if self.is_read_only:
            self.numbers.hold_measurements(rows)
        else:
            self._write(lambda on: measured.add(on, rows))

    def measurements(self, wanted: Mapping[str, str]) -> dict[str, Measurement]:
        """By attempt, the measurements that were made on the basis that is wanted of each."""
        return self._read(lambda on: measured.known(on, wanted))

    def last_measurement(self, attempt: str) -> Measurement | None:
        """The measurement of an attempt that was made last, on whatever basis."""
        return self._read(lambda on: measured.last(on, attempt))

    def save_baseline(self, baseline: Baseline) -> None:
        """Add a baseline; it replaces, from now on, an older one of that name."""
        columns = {"name": baseline.name, "body": pack(baseline)}
        self._write(lambda on: facts.append(on, schema.baselines, ("name",), columns))

    def baseline(self, name: str) -> Baseline | None:
        return self._newest(schema.baselines, "name", name, Baseline)

    # Recorded sessions

    def keep_sessions(self, new: Sequence[Packed], files: Sequence[Imported]) -> list[str]:
        """Save what was read of some files, and that they were; the ids that were new."""
        return self._write(lambda on: sessions.keep(on, new, files))

    def imported(self, paths: Sequence[str]) -> dict[str, Imported]:
        """What is known of files that were looked at."""
        return self._read(lambda on: sessions.imported(on, paths))

    def session(self, attempt: str) -> Session | None:
        """What the agent's files say besides the trace, which is left empty."""
        body = self._read(lambda on: sessions.body_of(on, attempt))
        return None if body is None else unpack(body, Session)

    def add_spans(self, new: Sequence[Sent]) -> int:
        """Save spans; how many were not known."""
        return self._write(lambda on: sessions.add_spans(on, new))

    def spans(self, trace: str) -> list[bytes]:
        """What was sent of a trace and the conversation it is part of, in the order it came."""
        return self._read(lambda on: sessions.spans_with(on, trace))

    def span_counts(self, trace: str | None = None) -> dict[str, int]:
        """How many spans were sent of each trace, or of one."""
        return self._read(lambda on: sessions.span_counts(on, trace))

    # Jobs

    def claim(
        self, key: str, owner: str, seconds: float, dead: Callable[[str], bool] | None = None
    ) -> bool:
        """Take a job for some seconds. False while somebody else has it, unless the caller knows
        that one to be dead, and for ever once it is finished."""
        if self._write(lambda on: jobs.claim(on, key, owner, seconds)):
            return True
        holder = self._read(lambda on: jobs.holder(on, key)) if dead else None
        if dead is None or holder is None or not dead(holder):
            return False
        return self._write(lambda on: jobs.take_over(on, key, holder, owner, seconds))

    def heartbeat(self, owner: str, seconds: float) -> int:
        """Renew all leases of an owner; how many it still has."""
        return self._write(lambda on: jobs.heartbeat(on, owner, seconds))

    def release(self, owner: str, key: str | None = None) -> int:
        """Give an unfinished job back, or all of an owner; how many those were."""
        return self._write(lambda on: jobs.release(on, owner, key))
