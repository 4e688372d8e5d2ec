"""The store: open it, save records, and load them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from msgspec.structs import replace

from closeloop.records.attempt import Attempt, AttemptRow, Grade, Proof
from closeloop.records.change import Change
from closeloop.records.errors import BadInput, ReadOnlyStore
from closeloop.records.experiment_plan import AttemptResult, Baseline
from closeloop.records.finding import Measurement
from closeloop.records.record import Record
from closeloop.records.settings import Settings, has_store
from closeloop.records.task import Experiment, PromptVersion, Task, Variant
from closeloop.records.trace import Exchange, LogEvent, Session, Trace
from closeloop.store import fact_rows, plan_section, schema, session_rows
from closeloop.store.attempt_rows import (
    AttemptQuery,
    attempt_columns,
    list_attempt_rows,
    row_from_columns,
)
from closeloop.store.engine import (
    DATABASE_WAIT_SECONDS,
    MEMORY,
    Connection,
    Database,
    Reconnection,
    open_engines,
    open_reader,
    restrict_to_owner,
    translate_database_errors,
)
from closeloop.store.evaluation_section import EvaluationSection, ReportSection, ScoreSection
from closeloop.store.event_section import AccessSection, EventSection, StepSection, add_events
from closeloop.store.experiment_section import (
    ExperimentSection,
    HeldOutSection,
    PromptSection,
    TrialSection,
    add_insights,
)
from closeloop.store.listing_section import CountsSection, ListingSection
from closeloop.store.memory_section import MemorySection, ReviewSection
from closeloop.store.metrics_section import MetricsSection
from closeloop.store.migrations import (
    PurgeSection,
    erase_old_bytes,
    migrate_schema,
    require_current_schema,
)
from closeloop.store.plan_section import PlanSection
from closeloop.store.pull_section import PullSection
from closeloop.store.record_bodies import pack_record, pack_with_digest, unpack_record
from closeloop.store.session_rows import (
    ImportedFile,
    PackedSession,
    SearchSection,
    StoredSpan,
    insert_work_texts,
    replace_finding_texts,
)
from closeloop.store.sql_expressions import false
from closeloop.store.sql_statements import Table, delete, select
from closeloop.text.search_text import collect_search_text

Answer = TypeVar("Answer")
Kept = TypeVar("Kept", bound=Record)


class Store:
    """An open store. Thread-safe; every save is atomic."""

    def __init__(
        self, reader: Database, writer: Database | None, name: str, reconnection: Reconnection
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._where = name
        self._reconnection = reconnection
        self.access = AccessSection(self._read, self._write)
        """Access tokens and logins for HTTP."""
        self.counts = CountsSection(self._read, self._write)
        """Counts of attempts and findings."""
        self.experiments = ExperimentSection(self._read, self._write)
        """Progress of experiments."""
        self.events = EventSection(self._read, self._write)
        """The event log."""
        self.held_out = HeldOutSection(self._read, self._write)
        """Held-out tasks and their runs."""
        self.judged = EvaluationSection(self._read, self._write)
        """Evaluations by judges, and labels by people."""
        self.listing = ListingSection(self._read, self._write)
        """Attempts, page by page."""
        self.memory = MemorySection(self._read, self._write)
        """Corrections, team rules and agent context."""
        self.numbers = MetricsSection(self._read, self._write)
        """Columns that metrics are computed from."""
        self.plans = PlanSection(self._read, self._write)
        """Plans that sub-agents carry out."""
        self.prompts = PromptSection(self._read, self._write)
        """Prompts, and the attempts that ran with them."""
        self.pulls = PullSection(self._read, self._write)
        """Pull requests."""
        self.purges = PurgeSection(
            self._read, self._write, partial(erase_old_bytes, reader, writer or reader)
        )
        """Removed secrets."""
        self.reports = ReportSection(self._read, self._write)
        """Reports of change checks."""
        self.reviews = ReviewSection(self._read, self._write)
        """People's answers in the review queue."""
        self.scores = ScoreSection(self._read, self._write)
        """Scores of attempts, by name."""
        self.search = SearchSection(self._read, self._write)
        """Full-text search of attempts."""
        self.steps = StepSection(self._read, self._write)
        """Results of work in steps, such as deliveries."""
        self.trials = TrialSection(self._read, self._write)
        """Trials: variants that share the work in production."""

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
        """Close the connections; everything saved is safe."""
        self._reader.dispose()
        if self._writer is not None:
            self._writer.dispose()

    @contextmanager
    def close_on_failure(self) -> Iterator[None]:
        """Close the store if the block fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @property
    def is_read_only(self) -> bool:
        return self._writer is None

    def _read(self, work: Callable[[Connection], Answer], /) -> Answer:
        with translate_database_errors(self._where):
            return self._reconnection.run_transaction(self._reader, work, writes=False)

    def _write(self, work: Callable[[Connection], Answer]) -> Answer:
        if self._writer is None:
            raise ReadOnlyStore(f"{self._where} is read-only: make it writable.")
        with translate_database_errors(self._where):
            return self._reconnection.run_transaction(self._writer, work, writes=True)

    # Tasks, prompts, variants, experiments

    def save_task(self, task: Task) -> None:
        columns = {
            "digest": task.digest,
            "grading": task.grading,
            "id": task.id,
            "split": task.split,
            "body": pack_record(task),
        }
        self._write(
            lambda connection: fact_rows.append_by_names(
                connection, schema.tasks, ("digest", "id"), columns
            )
        )

    def load_task(self, digest: str) -> Task | None:
        return self._load_newest(schema.tasks, "digest", digest, Task)

    def save_prompt(self, prompt: PromptVersion) -> None:
        columns = {"id": prompt.id, "body": pack_record(prompt)}
        self._write(
            lambda connection: fact_rows.append_fact(connection, schema.prompts, ("id",), columns)
        )

    def load_prompt(self, prompt: str) -> PromptVersion | None:
        return self._load_newest(schema.prompts, "id", prompt, PromptVersion)

    def save_variant(self, variant: Variant) -> None:
        columns = {
            "digest": variant.digest,
            "name": variant.name,
            "agent": variant.agent,
            "model": variant.model,
            "body": pack_record(variant),
        }
        self._write(
            lambda connection: fact_rows.append_by_names(
                connection, schema.variants, ("digest", "name"), columns
            )
        )

    def load_variant(self, digest: str) -> Variant | None:
        return self._load_newest(schema.variants, "digest", digest, Variant)

    def save_experiment(self, experiment: Experiment) -> None:
        columns = {"id": experiment.id, "body": pack_record(experiment)}
        self._write(
            lambda connection: fact_rows.append_fact(
                connection, schema.experiments, ("id",), columns
            )
        )

    def load_experiment(self, experiment: str) -> Experiment | None:
        return self._load_newest(schema.experiments, "id", experiment, Experiment)

    def list_experiments(self) -> list[Experiment]:
        """List all experiments, newest first."""
        table = schema.experiments
        query = select(table.c.id, table.c.body).order_by(table.c.number.desc())
        newest: dict[str, bytes] = {}
        for name, body in self._read(lambda connection: connection.execute(query).all()):
            newest.setdefault(name, body)
        return [unpack_record(body, Experiment) for body in newest.values()]

    def _load_newest(self, table: Table, key: str, value: str, kind: type[Kept]) -> Kept | None:
        query = select(table.c.body).where(table.c[key] == value)
        query = query.order_by(table.c.number.desc()).limit(1)
        body = self._read(lambda connection: connection.execute(query).scalar())
        return None if body is None else unpack_record(body, kind)

    # Proofs

    def save_proof(self, proof: Proof) -> None:
        """Save the proof of a task by its controls; it becomes the current one."""
        before, reference = pack_with_digest(proof.before), pack_with_digest(proof.reference)
        columns = {
            "grading": proof.grading,
            "task": proof.task,
            "state": proof.state,
            "before": before and before[0],
            "reference": reference and reference[0],
            "body": pack_record(replace(proof, before=None, reference=None)),
        }

        def work(connection: Connection) -> None:
            fact_rows.save_blobs(connection, before, reference)
            fact_rows.append_fact(connection, schema.proofs, ("grading",), columns)

        self._write(work)

    def load_proof(self, grading: str) -> Proof | None:
        table = schema.proofs
        query = select(table.c.body, table.c.before, table.c.reference)
        query = query.where(table.c.grading == grading).order_by(table.c.number.desc()).limit(1)

        def work(connection: Connection) -> Proof | None:
            row = connection.execute(query).first()
            if row is None:
                return None
            before, reference = (
                fact_rows.load_test_run(connection, row.before),
                fact_rows.load_test_run(connection, row.reference),
            )
            return replace(unpack_record(row.body, Proof), before=before, reference=reference)

        return self._read(work)

    # Attempts and grades

    def save_attempt(self, result: AttemptResult, job: str | None = None) -> AttemptRow | None:
        """Save an attempt with everything that belongs to it, and finish its job; return its row.

        The row lacks the variant's name. Saving the same again does nothing. Returns None and saves
        nothing if another attempt finished the job first.
        """
        from closeloop.text.redaction import redact_change

        trace, change, grade = result.trace, result.change, result.grade
        columns = attempt_columns(result.attempt, trace, change)
        redacted_change = change and redact_change(change)
        bodies = {
            "attempt": result.attempt.id,
            "body": pack_record(result.attempt),
            "change": redacted_change and pack_record(redacted_change),
            "trace": trace and pack_record(trace),
        }
        exact_row = (
            plan_section.exact_change_row(result.attempt.id, change)
            if change != redacted_change
            else None
        )
        before = pack_with_digest(grade.before) if grade else None
        grade_row = fact_rows.stored_grade_columns(grade, before) if grade else None
        search_text = collect_search_text(result.attempt, trace, columns["title"])
        packed_exchanges = fact_rows.exchanges_to_rows(result.attempt.id, result.exchanges)

        def work(connection: Connection) -> bool:
            if (
                job is not None
                and not fact_rows.finish_job(connection, job)
                and not fact_rows.has_same_content(connection, bodies)
            ):
                return False
            first = fact_rows.insert_attempt(connection, columns, bodies)
            if first:
                insert_work_texts(connection, {result.attempt.id: search_text})
            if exact_row is not None and first:
                plan_section.insert_exact_patches(connection, [exact_row])
            if grade_row is not None:
                fact_rows.save_blobs(connection, before)
                fact_rows.insert_grade(connection, grade_row, first=first)
            add_insights(connection, result.insights)
            if result.prompt is not None:
                fact_rows.add_attempt_prompts(connection, [(result.attempt.id, result.prompt)])
            fact_rows.insert_exchanges(connection, packed_exchanges)
            add_events(connection, result.events if first else ())
            return True

        return row_from_columns(columns, grade_row) if self._write(work) else None

    def save_grade(self, grade: Grade) -> None:
        """Add a grade. The newest of the grader's highest version counts."""
        before = pack_with_digest(grade.before)
        columns = fact_rows.stored_grade_columns(grade, before)

        def work(connection: Connection) -> None:
            if not fact_rows.attempt_exists(connection, grade.attempt):
                raise BadInput(f"No attempt {grade.attempt!r} to grade: save it first.")
            fact_rows.save_blobs(connection, before)
            fact_rows.insert_grade(connection, columns, first=False)

        self._write(work)

    def list_attempts(self, **wanted: Unpack[AttemptQuery]) -> list[AttemptRow]:
        """List attempts, latest start first, each with the grade that counts."""
        return self._read(lambda connection: list_attempt_rows(connection, wanted))

    def find_attempt_id(self, start: str) -> str:
        """Return the id with this prefix; raise BadInput if there is none or several."""
        return self._read(lambda connection: fact_rows.resolve_attempt_id(connection, start))

    def load_attempt(self, attempt: str) -> Attempt:
        """Load the attempt with this id, or with the only id that has this prefix."""
        (body,) = self._load_bodies(attempt, "body")
        return unpack_record(body, Attempt)

    def load_trace(self, attempt: str) -> Trace | None:
        (body,) = self._load_bodies(attempt, "trace")
        return None if body is None else unpack_record(body, Trace)

    def load_change(self, attempt: str) -> Change | None:
        """Load an attempt's change without secrets, as it may be displayed."""
        (body,) = self._load_bodies(attempt, "change")
        return None if body is None else unpack_record(body, Change)

    def load_exact_change(self, attempt: str) -> Change | None:
        """Load an attempt's exact change: to apply it again, never to display it."""
        body = self._read(
            lambda connection: plan_section.load_exact_change(
                connection, fact_rows.resolve_attempt_id(connection, attempt)
            )
        )
        return self.load_change(attempt) if body is None else unpack_record(body, Change)

    def load_attempt_parts(self, attempt: str) -> tuple[Attempt, Trace | None, Change | None]:
        """Load an attempt with its trace and its change, in one query."""
        body, trace, change = self._load_bodies(attempt, "body", "trace", "change")
        return (
            unpack_record(body, Attempt),
            None if trace is None else unpack_record(trace, Trace),
            None if change is None else unpack_record(change, Change),
        )

    def load_exchanges(self, attempt: str) -> Iterator[Exchange]:
        """Load the exchanges between an attempt and its model, in order."""
        return self._read(
            lambda connection: fact_rows.load_exchanges(
                connection, fact_rows.resolve_attempt_id(connection, attempt)
            )
        )

    def _load_bodies(self, attempt: str, *columns: str) -> Sequence[Any]:
        return self._read(lambda connection: fact_rows.load_bodies(connection, attempt, *columns))

    def load_grade(self, attempt: str, grading: str | None = None) -> Grade | None:
        """Load the grade that counts, for this grading or for any."""
        return self._read(lambda connection: fact_rows.load_grade(connection, attempt, grading))

    # Findings of rules

    def save_measurements(self, measurements: Sequence[tuple[str, str, Measurement]]) -> None:
        """Save measurements, each with its attempt and its basis.

        They can be computed again: a read-only store holds them in memory.
        """
        rows = [fact_rows.measurement_columns(*measurement) for measurement in measurements]
        if self.is_read_only:
            self.numbers.hold_measurements(rows)
        else:
            findings = {attempt: measurement.findings for attempt, _, measurement in measurements}

            def work(connection: Connection) -> None:
                fact_rows.insert_measurements(connection, rows)
                replace_finding_texts(connection, findings)

            self._write(work)

    def load_measurements(self, basis_by_attempt: Mapping[str, str]) -> dict[str, Measurement]:
        """Load measurements by attempt, each on the basis given for it."""
        return self._read(
            lambda connection: fact_rows.load_measurements(connection, basis_by_attempt)
        )

    def list_measured(self, basis_by_attempt: Mapping[str, str]) -> set[str]:
        """The attempts that have a measurement on the basis that is wanted of each."""
        return self._read(lambda connection: fact_rows.list_measured(connection, basis_by_attempt))

    def load_packed_facts(self, ids: Sequence[str]) -> list[fact_rows.PackedFacts | None]:
        """Load what is measured of attempts; None for one whose trace is not stored."""
        return self._read(lambda connection: fact_rows.load_packed_facts(connection, ids))

    def last_measurement(self, attempt: str) -> Measurement | None:
        """Return the latest measurement of an attempt, on any basis; None if there is none."""
        return self._read(lambda connection: fact_rows.last(connection, attempt))

    def save_baseline(self, baseline: Baseline) -> None:
        """Save a baseline; it replaces an earlier one of that name."""
        columns = {"name": baseline.name, "body": pack_record(baseline)}
        self._write(
            lambda connection: fact_rows.append_fact(
                connection, schema.baselines, ("name",), columns
            )
        )

    def load_baseline(self, name: str) -> Baseline | None:
        return self._load_newest(schema.baselines, "name", name, Baseline)

    # Recorded sessions

    def save_sessions(
        self, new_sessions: Sequence[PackedSession], files: Sequence[ImportedFile]
    ) -> list[str]:
        """Save sessions read from files, and the files; return the ids that were new."""
        return self._write(
            lambda connection: session_rows.save_sessions(connection, new_sessions, files)
        )

    def load_imported_files(self, paths: Sequence[str]) -> dict[str, ImportedFile]:
        """Load what is known about imported files, by path."""
        return self._read(lambda connection: session_rows.load_imported_files(connection, paths))

    def load_session(self, attempt: str) -> Session | None:
        """Load an attempt's session; its trace is empty."""
        body = self._read(lambda connection: session_rows.load_session_body(connection, attempt))
        return None if body is None else unpack_record(body, Session)

    def save_spans(self, new_spans: Sequence[StoredSpan]) -> int:
        """Save spans; return how many were new."""
        return self._write(lambda connection: session_rows.insert_spans(connection, new_spans))

    def load_spans(self, trace: str) -> list[bytes]:
        """Load the spans of a trace and its conversation, in the order they arrived."""
        return self._read(lambda connection: session_rows.load_trace_spans(connection, trace))

    def count_spans(self, trace: str | None = None) -> dict[str, int]:
        """Count the spans received for each trace, or for one."""
        return self._read(lambda connection: session_rows.count_spans(connection, trace))

    # Jobs

    def claim_job(
        self,
        key: str,
        owner: str,
        seconds: float,
        dead: Callable[[str], bool] | None = None,
        events: Sequence[LogEvent] = (),
    ) -> bool:
        """Claim a job for some seconds, and add events if it succeeds.

        False while another owner has it, unless `dead` says that the owner is dead, and always
        once it is finished.
        """

        def claim(connection: Connection) -> bool:
            is_ours = fact_rows.claim_job(connection, key, owner, seconds)
            add_events(connection, events if is_ours else ())
            return is_ours

        if self._write(claim):
            return True
        holder = (
            self._read(lambda connection: fact_rows.find_job_owner(connection, key))
            if dead
            else None
        )
        if dead is None or holder is None or not dead(holder):
            return False
        dead_holder = holder

        def take_over(connection: Connection) -> bool:
            fact_rows.release_jobs(connection, dead_holder, key)
            return claim(connection)

        return self._write(take_over)

    def renew_leases(self, owner: str, seconds: float) -> int:
        """Renew all leases of an owner; return how many it still has."""
        return self._write(lambda connection: fact_rows.renew_leases(connection, owner, seconds))

    def release_jobs(self, owner: str, key: str | None = None) -> int:
        """Release an unfinished job, or all of an owner; return how many were released."""
        return self._write(lambda connection: fact_rows.release_jobs(connection, owner, key))


# Open a store for writing, or for reading if it cannot be written.


def open_store(
    url: str, wait_seconds: float = DATABASE_WAIT_SECONDS, *, may_be_read_only: bool = False
) -> Store:
    """Open an existing store, at a path or `postgresql://…`; BadInput if there is none."""
    if "://" not in url and url != MEMORY and not Path(url).expanduser().exists():
        raise missing_store_error(url)
    return make_store(url, wait_seconds, may_be_read_only=may_be_read_only)


def make_store(
    url: str, wait_seconds: float = DATABASE_WAIT_SECONDS, *, may_be_read_only: bool = False
) -> Store:
    """Open the store at a path, at `postgresql://…` or in `:memory:`; create or migrate it first.

    If PostgreSQL goes away later, wait for it up to `wait_seconds`. Raises ReadOnlyStore if it
    cannot be written, unless `may_be_read_only`.
    """
    try:
        return _open_to_write(url, wait_seconds)
    except ReadOnlyStore:
        if not may_be_read_only:
            raise
    reader, store_name = open_reader(url)
    store = Store(reader, None, store_name, Reconnection(store_name, wait_seconds))
    with store.close_on_failure(), translate_database_errors(store_name):
        require_current_schema(reader, store_name)
    return store


def _open_to_write(url: str, wait_seconds: float) -> Store:
    reader, writer, store_name = open_engines(url)
    reconnection = Reconnection(store_name, wait_seconds)
    store = Store(reader, writer, store_name, reconnection)
    with store.close_on_failure(), translate_database_errors(store_name):
        reconnection.await_start(writer)
        if migrate_schema(writer, store_name):
            restrict_to_owner(writer)
        with writer.begin() as connection:
            # SQLite can begin a transaction on a read-only file; only a write, even an empty one,
            # fails.
            connection.execute(delete(schema.jobs).where(false()))
    return store


# The store that a project's settings refer to.


def open_project_store(settings: Settings, root: Path, *, may_be_read_only: bool = False) -> Store:
    """Open the store of the settings: a URL, or a path below the project's root."""
    url = settings.store if "://" in settings.store else str(root / settings.store)
    store = make_store(url, settings.store_wait_seconds, may_be_read_only=may_be_read_only)
    closeloop_folder = root / ".closeloop"
    if (
        not store.is_read_only
        and closeloop_folder.is_dir()
        and not (closeloop_folder / ".gitignore").exists()
    ):
        # Not source code: a .gitignore inside the folder spares an entry in the project's own file.
        (closeloop_folder / ".gitignore").write_text("*\n", encoding="utf-8")
    return store


def open_existing_store(settings: Settings, root: Path) -> Store:
    """Open the store for reading; raise BadInput if there is none, and create nothing."""
    if not has_store(settings, root):
        raise missing_store_error(str(root / settings.store))
    return open_project_store(settings, root, may_be_read_only=True)


def open_store_if_any(settings: Settings, root: Path) -> Store:
    """Open the store for reading; if there is none, return an empty one in memory."""
    if not has_store(settings, root):
        return make_store(MEMORY)
    return open_project_store(settings, root, may_be_read_only=True)


def missing_store_error(url: str) -> BadInput:
    return BadInput(
        f"There is no store at {url}: run `closeloop import`, `closeloop run` or `closeloop demo` "
        "first."
    )
