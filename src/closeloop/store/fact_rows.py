"""Append facts and find the newest; jobs, blobs, exchanges and measurements as rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, overload

from msgspec.structs import replace

from closeloop.records.attempt import Grade, TestRun
from closeloop.records.errors import BadInput, TraceNotStored
from closeloop.records.estimate import Rate
from closeloop.records.finding import Measurement
from closeloop.records.record import Record
from closeloop.records.task import PromptVersion
from closeloop.records.trace import Exchange
from closeloop.store import attempt_rows, schema
from closeloop.store.attempt_rows import (
    column_integer,
    column_number,
    join_modes,
    short_column_text,
)
from closeloop.store.engine import Answer, Connection
from closeloop.store.record_bodies import (
    Blob,
    compress_content,
    decompress_body,
    is_same_body,
    pack_record,
    unpack_record,
)
from closeloop.store.schema import (
    attempt_bodies,
    attempt_prompts,
    attempts,
    blobs,
    grades,
    jobs,
    measurements,
    prompts,
)
from closeloop.store.sql_expressions import Float, bindparam, func, literal_column, or_
from closeloop.store.sql_statements import Select, Table, delete, insert, select, update

# Jobs: which process works on what, and until when. The only rows that change.
#
# A lease lasts some seconds, and is renewed by a heartbeat. Times are the database's own, so that
# machines with differing clocks agree.
#
# The owner of a lease: a process of a machine, distinct from a later one with the same number.


def current_owner() -> str:
    """Return a name unique to this process, among all machines and all times."""
    return f"{_machine_name()}:{os.getpid()}:{_process_start(os.getpid())}"


def is_owner_dead(owner: str) -> bool:
    """Whether a process of this machine no longer runs; any other owner may be alive."""
    machine, _, process = owner.partition(":")
    pid, _, start = process.partition(":")
    return machine == _machine_name() and pid.isdigit() and _process_start(int(pid)) != start


def _machine_name() -> str:
    """Return host and PID namespace: each container of a host numbers its own processes."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return f"{os.uname().nodename}/{namespace}"


def _process_start(pid: int) -> str | None:
    """Return when a process started, in kernel ticks; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        # Without /proc (macOS) it is only known whether a process exists.
        return "?" if not Path("/proc/self").exists() and _is_running(pid) else None
    # The second field is the program's name in parentheses and may hold anything.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state == "Z" else fields[18]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


DATABASE_NOW: dict[str, Any] = {
    "sqlite": literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float),
    "postgresql": literal_column("extract(epoch FROM clock_timestamp())::double precision", Float),
}
CLAIMED_STATE: Any = literal_column("'claimed'")
"""A literal, so that the index of claimed jobs is used."""


def claim_job(connection: Connection, key: str, owner: str, seconds: float) -> bool:
    """Claim a job that is free, has an expired lease, or is the owner's already."""
    parameters = {"key": key, "owner": owner, "seconds": seconds}
    return connection.execute(_claim_statement(connection.dialect), parameters).rowcount == 1


def find_job_owner(connection: Connection, key: str) -> str | None:
    """Return who has claimed a job and not finished it; None if nobody."""
    query = select(jobs.c.owner).where(jobs.c.key == key, jobs.c.state == "claimed")
    owner: str | None = connection.execute(query).scalar()
    return owner


def list_claimed_jobs(connection: Connection) -> list[str]:
    """List the keys of jobs being worked on; dead owners do not count."""
    leased = jobs.c.leased_until > DATABASE_NOW[connection.dialect]
    query = select(jobs.c.key, jobs.c.owner).where(jobs.c.state == CLAIMED_STATE, leased)
    return [key for key, owner in connection.execute(query) if not is_owner_dead(owner)]


def finish_job(connection: Connection, key: str) -> bool:
    """Finish a job; False if it was finished before."""
    return connection.execute(_finish_statement(), {"key": key}).rowcount == 1


def renew_leases(connection: Connection, owner: str, seconds: float) -> int:
    """Renew an owner's leases; return how many it still has."""
    lease_end = DATABASE_NOW[connection.dialect] + seconds
    statement = update(jobs).where(_is_claimed_by(owner)).values(leased_until=lease_end)
    return connection.execute(statement).rowcount


def release_jobs(connection: Connection, owner: str, key: str | None) -> int:
    """Release one job of an owner, or all; return how many were released."""
    statement = delete(jobs).where(_is_claimed_by(owner))
    if key is not None:
        statement = statement.where(jobs.c.key == key)
    return connection.execute(statement).rowcount


def _is_claimed_by(owner: str) -> Any:
    return (jobs.c.owner == owner) & (jobs.c.state == CLAIMED_STATE)


@cache
def _claim_statement(dialect: str) -> Any:
    now = DATABASE_NOW[dialect]
    insertion = insert(jobs).values(
        key=bindparam("key"),
        owner=bindparam("owner"),
        leased_until=now + bindparam("seconds", type_=Float),
        state="claimed",
    )
    is_claimable = or_(jobs.c.leased_until <= now, jobs.c.owner == insertion.excluded.owner)
    return insertion.on_conflict_do_update(
        index_elements=["key"],
        set_={"owner": insertion.excluded.owner, "leased_until": insertion.excluded.leased_until},
        where=(jobs.c.state == "claimed") & is_claimable,
    )


@cache
def _finish_statement() -> Any:
    insertion = insert(jobs).values(key=bindparam("key"), state="finished")
    return insertion.on_conflict_do_update(
        index_elements=["key"], set_={"state": "finished"}, where=jobs.c.state == "claimed"
    )


RowValues = dict[str, Any]
Each = TypeVar("Each")
LAST_CHARACTER = "\U0010ffff"
"""Sorts after all other characters."""
MAX_QUERY_VALUES = 500
"""Databases limit the number of values in one query."""


def split_values(values: Sequence[Each]) -> Iterator[Sequence[Each]]:
    """Split values into parts that fit in one query."""
    return (
        values[start : start + MAX_QUERY_VALUES]
        for start in range(0, len(values), MAX_QUERY_VALUES)
    )


def select_newest(table: Table, *keys: str, **same: Any) -> Select:
    """Select the current bodies: the latest of each key, in the order of their numbers.

    `same` are columns that never change, and the values they must have.
    """
    conditions = [table.c[name] == value for name, value in same.items() if value is not None]
    last_numbers = select(func.max(table.c.number)).where(*conditions)
    last_numbers = last_numbers.group_by(*(table.c[key] for key in keys))
    return select(table.c.body).where(table.c.number.in_(last_numbers)).order_by(table.c.number)


def append_fact(
    connection: Connection, table: Table, keys: Collection[str], columns: RowValues
) -> None:
    """Add a row that becomes current, unless the current one is equal."""
    conditions = (table.c[key] == columns[key] for key in keys)
    query = select(table).where(*conditions).order_by(table.c.number.desc()).limit(1)
    current_row = connection.execute(query).mappings().first()
    if current_row is None or any(current_row[name] != value for name, value in columns.items()):
        connection.execute(insert(table), columns)


def append_by_names(
    connection: Connection, table: Table, names: Sequence[str], columns: RowValues
) -> None:
    """Append the fact under each of its names; repeating it makes it current again."""
    for name in names:
        append_fact(connection, table, (name,), columns)


def append_facts(
    connection: Connection, table: Table, keys: Collection[str], rows: Sequence[RowValues]
) -> None:
    for columns in rows:
        append_fact(connection, table, keys, columns)


def insert_new_rows(connection: Connection, table: Table, rows: Sequence[RowValues]) -> None:
    """Insert rows; existing ones stay unchanged."""
    if rows:
        connection.execute(insert_or_ignore(table), list(rows))


def add_attempt_prompts(
    connection: Connection, attempt_prompt_pairs: Sequence[tuple[str, PromptVersion]]
) -> None:
    """Record which system prompt attempts ran with; a prompt is saved as first seen."""
    if not attempt_prompt_pairs:
        return
    new_prompts: dict[str, PromptVersion] = {}
    for _, prompt in attempt_prompt_pairs:
        if prompt.id not in new_prompts and _is_new_prompt(connection, prompt.id):
            new_prompts[prompt.id] = prompt
    insert_new_rows(
        connection,
        prompts,
        [{"id": key, "body": pack_record(prompt)} for key, prompt in new_prompts.items()],
    )
    rows = [
        {"attempt": attempt, "prompt": prompt.id, "source": prompt.source}
        for attempt, prompt in attempt_prompt_pairs
    ]
    insert_new_rows(connection, attempt_prompts, rows)


def _is_new_prompt(connection: Connection, prompt: str) -> bool:
    return connection.execute(_select_prompt(), {"id": prompt}).first() is None


@cache
def _select_prompt() -> Select:
    return select(prompts.c.id).where(prompts.c.id == bindparam("id")).limit(1)


def save_blobs(connection: Connection, *content: Blob | None) -> None:
    """Save content under its digest, once however many records refer to it."""
    # In the same order everywhere, so that two processes cannot deadlock.
    distinct_blobs = sorted({blob for blob in content if blob})
    insert_new_rows(
        connection, blobs, [{"digest": digest, "body": body} for digest, body in distinct_blobs]
    )


def load_test_run(connection: Connection, digest: str | None) -> TestRun | None:
    """Load the test run stored under a digest; None without a digest."""
    if digest is None:
        return None
    body = connection.execute(select(blobs.c.body).where(blobs.c.digest == digest)).scalar_one()
    return unpack_record(body, TestRun)


def attempt_exists(connection: Connection, attempt: str) -> bool:
    """Whether an attempt is stored."""
    query = select(attempts.c.id).where(attempts.c.id == attempt)
    return connection.execute(query).first() is not None


def load_bodies(connection: Connection, start: str, *columns: str) -> Sequence[Any]:
    """Load some bodies of an attempt, by its id or a prefix of it.

    Raises TraceNotStored for a row that another program wrote without them.
    """
    query = _select_bodies(columns)
    row: Sequence[Any] | None = connection.execute(query, {"id": start}).first()
    if row is None:
        attempt = resolve_attempt_id(connection, start)
        row = connection.execute(query, {"id": attempt}).first()
        if row is None:
            raise TraceNotStored(
                f"The trace of attempt {attempt} is not in the store: import its session again."
            )
    return row


@cache
def _select_bodies(columns: tuple[str, ...]) -> Select:
    selected = [attempt_bodies.c[name] for name in columns]
    return select(*selected).where(attempt_bodies.c.attempt == bindparam("id"))


def resolve_attempt_id(connection: Connection, start: str) -> str:
    """Return the id that equals, or is the only one to begin with, what a person typed."""
    ids = (
        connection.execute(_select_ids_between(), {"start": start, "end": start + LAST_CHARACTER})
        .scalars()
        .all()
    )
    if not ids:
        raise BadInput(f"No attempt begins with {start!r}: `closeloop list attempts` lists them.")
    if len(ids) > 1 and ids[0] != start:
        suffix = " and more" if len(ids) > 5 else ""
        raise BadInput(
            f"{start!r} is a prefix of several attempts, {', '.join(ids[:5])}{suffix}: "
            "give more characters."
        )
    return str(ids[0])


@cache
def _select_ids_between() -> Select:
    name = attempts.c.id
    between = select(name).where(name >= bindparam("start"), name < bindparam("end"))
    return between.order_by(name).limit(6)


def insert_attempt(connection: Connection, columns: RowValues, bodies: RowValues) -> bool:
    """Insert an attempt; False if it is stored already, BadInput if with other content."""
    added = connection.execute(insert_or_ignore(attempts), columns)
    if added.rowcount == 1:
        connection.execute(insert_statement(attempt_bodies), bodies)
        return True
    if not has_same_content(connection, bodies):
        raise BadInput(
            f"Attempt {columns['id']} is already stored with other content, and "
            "attempts are never overwritten: save it as a new attempt."
        )
    return False


def has_same_content(connection: Connection, bodies: RowValues) -> bool:
    """Whether an attempt is stored with exactly this content."""
    query = select(attempt_bodies).where(attempt_bodies.c.attempt == bodies["attempt"])
    stored = connection.execute(query).mappings().first()
    return stored is not None and all(
        is_same_body(stored[name], bodies[name]) for name in ("body", "change", "trace")
    )


def stored_grade_columns(grade: Grade, before: Blob | None) -> RowValues:
    """Return a row of `grades`; the run before the change is stored apart, as grades share it."""
    return {
        **attempt_rows.grade_columns(grade),
        **attempt_rows.grade_score_columns(grade),
        "attempt": grade.attempt,
        "before": before and before[0],
        "body": pack_record(replace(grade, before=None)),
    }


def load_grade(connection: Connection, start: str, grading: str | None) -> Grade | None:
    """Load the grade of an attempt that counts, for this grading or for any."""
    parameters = {"id": resolve_attempt_id(connection, start), "grading": grading}
    row = connection.execute(_select_grade(any_grading=grading is None), parameters).first()
    if row is None:
        return None
    return replace(unpack_record(row.body, Grade), before=load_test_run(connection, row.before))


@cache
def _select_grade(*, any_grading: bool) -> Select:
    table = grades
    query = select(table.c.body, table.c.before).where(table.c.attempt == bindparam("id"))
    if not any_grading:
        query = query.where(table.c.grading == bindparam("grading"))
    return query.order_by(table.c.version.desc(), table.c.number.desc()).limit(1)


class PackedFacts(Record, array_like=True):
    """The bodies of what is measured of an attempt, as they are stored."""

    attempt: bytes
    trace: bytes | None
    change: bytes | None
    task: bytes | None = None
    grade: bytes | None = None
    before: bytes | None = None
    """The test run before the change, which many grades share."""


def load_packed_facts(connection: Connection, ids: Sequence[str]) -> list[PackedFacts | None]:
    """Load what is measured of attempts, in the order of their ids.

    None for a row that another program wrote without its trace.
    """
    bodies: dict[str, Any] = {}
    digests: dict[str, str] = {}
    grade_rows: dict[str, Any] = {}
    table = attempt_bodies.c
    for part in split_values(ids):
        query = select(table.attempt, table.body, table.trace, table.change)
        bodies |= {
            row.attempt: row for row in connection.execute(query.where(table.attempt.in_(part)))
        }
        query = select(attempts.c.id, attempts.c.task_digest).where(attempts.c.id.in_(part))
        digests |= {name: digest for name, digest in connection.execute(query) if digest}
        query = select(grades.c.attempt, grades.c.body, grades.c.before)
        query = query.where(grades.c.attempt.in_(part)).order_by(grades.c.version, grades.c.number)
        grade_rows |= {row.attempt: row for row in connection.execute(query)}
    tasks = _load_keyed_bodies(connection, schema.tasks, [*{*digests.values()}])
    runs = {row.before for row in grade_rows.values() if row.before}
    runs_before = _load_keyed_bodies(connection, blobs, [*runs])
    return [
        PackedFacts(
            attempt=bodies[name].body,
            trace=bodies[name].trace,
            change=bodies[name].change,
            task=tasks.get(digests.get(name, "")),
            grade=grade_rows[name].body if name in grade_rows else None,
            before=runs_before.get(grade_rows[name].before) if name in grade_rows else None,
        )
        if name in bodies
        else None
        for name in ids
    ]


def _load_keyed_bodies(
    connection: Connection, table: Table, digests: Sequence[str]
) -> dict[str, bytes]:
    """By digest, the body that was saved last."""
    bodies: dict[str, bytes] = {}
    for part in split_values(digests):
        query = select(table.c.digest, table.c.body).where(table.c.digest.in_(part))
        if any(column.name == "number" for column in table.columns):
            query = query.order_by(table.c.number)
        bodies |= dict(connection.execute(query))
    return bodies


def insert_grade(connection: Connection, columns: RowValues, *, first: bool) -> None:
    """Add a grade; `first` skips the comparison with earlier ones."""
    if first:
        connection.execute(insert_statement(grades), columns)
    else:
        append_fact(connection, grades, ("attempt",), columns)


@cache
def insert_statement(table: Table) -> Any:
    """Return the same statement object each time, so that its SQL is rendered once."""
    return insert(table)


@cache
def insert_or_ignore(table: Table) -> Any:
    """Return an insert whose row count says whether the row was new."""
    return insert(table).on_conflict_do_nothing()


# The base of every section of an open store.

Kept = TypeVar("Kept", bound=Record)


class TransactionRunner(Protocol):
    """Runs a function in a transaction, and returns its result."""

    def __call__(self, work: Callable[[Connection], Answer], /) -> Answer: ...


class StoreSection:
    """A part of the store; reads and writes in the store's transactions."""

    def __init__(self, read: TransactionRunner, write: TransactionRunner) -> None:
        self._read = read
        self._write = write

    def _load_records(self, query: Select, kind: type[Kept]) -> list[Kept]:
        """Decode the bodies that a query selects."""
        bodies = self._read(lambda connection: connection.execute(query).scalars().all())
        return [unpack_record(body, kind) for body in bodies]

    def _load_record(self, query: Select, kind: type[Kept]) -> Kept | None:
        """Decode the first body that a query selects; None if there is none."""
        body = self._read(lambda connection: connection.execute(query).scalar())
        return None if body is None else unpack_record(body, kind)


# Exchanges between attempts and their models, and the rules' results on attempts.


_DIGEST_BYTES = hashlib.sha256().digest_size
MAX_SHARED_BYTES = 16 << 10
"""Largest size in bytes of a piece that attempts may share, such as a system prompt or tools."""


class PackedExchanges(Record):
    """Exchanges of one attempt as rows; each piece is stored once."""

    rows: tuple[dict[str, Any], ...]
    blobs: dict[str, bytes]


def exchanges_to_rows(attempt: str, exchanges: Iterable[Exchange]) -> PackedExchanges:
    """Convert exchanges to rows ready to insert."""
    blobs: dict[str, bytes] = {}
    digests: dict[bytes, bytes] = {}

    def add_piece(piece: bytes) -> bytes:
        digest = digests.get(piece)
        if digest is None:
            pack = _pack_shared_piece if len(piece) <= MAX_SHARED_BYTES else _pack_piece
            digest, body = pack(piece)
            digests[piece], blobs[digest.hex()] = digest, body
        return digest

    rows = tuple(
        {
            **_exchange_columns(exchange),
            "attempt": attempt,
            "request": b"".join(map(add_piece, pieces)),
            "response": add_piece(exchange.response).hex(),
            "body": pack_record(replace(exchange, request=b"", response=b"")),
        }
        for exchange, pieces in _split_requests(exchanges)
    )
    return PackedExchanges(rows=rows, blobs=blobs)


class SplitExchanges(Protocol):
    """Exchanges whose requests are already split, such as those that the gateway recorded."""

    def iterate_split(self) -> Iterator[tuple[Exchange, Sequence[bytes]]]: ...


def _split_requests(exchanges: Iterable[Exchange]) -> Iterator[tuple[Exchange, Sequence[bytes]]]:
    """Return each exchange with the pieces of its request; a gateway's ledger has them ready."""
    # Not a run-time protocol check: it would inspect every attribute for each attempt.
    if hasattr(exchanges, "iterate_split"):
        return cast("SplitExchanges", exchanges).iterate_split()
    from closeloop.providers.provider_streams import RequestSplitter

    splitter = RequestSplitter()
    return ((exchange, splitter.split(exchange.request)) for exchange in exchanges)


def _pack_piece(piece: bytes) -> tuple[bytes, bytes]:
    return hashlib.sha256(piece).digest(), compress_content(piece)


_pack_shared_piece = lru_cache(maxsize=128)(_pack_piece)


class LazyExchanges(Sequence[Exchange]):
    """Packed exchanges; each is decoded when it is read."""

    def __init__(self, exchanges: PackedExchanges) -> None:
        self._made = exchanges

    def __len__(self) -> int:
        return len(self._made.rows)

    @overload
    def __getitem__(self, index: int) -> Exchange: ...
    @overload
    def __getitem__(self, index: slice) -> list[Exchange]: ...
    def __getitem__(self, index: int | slice) -> Exchange | list[Exchange]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return _join_exchange(self._made.rows[index], self._made.blobs)


def _join_exchange(row: Mapping[Any, Any], content: Mapping[str, bytes]) -> Exchange:
    request = b"".join(
        decompress_body(content[digest]) for digest in _split_digests(row["request"])
    )
    response = decompress_body(content[row["response"]])
    return replace(unpack_record(row["body"], Exchange), request=request, response=response)


def _exchange_columns(exchange: Exchange) -> dict[str, Any]:
    usage = exchange.usage
    return {
        "number": exchange.number,
        "at": exchange.at,
        "path": short_column_text(exchange.path),
        "status": exchange.status,
        "seconds": exchange.seconds,
        "first_byte_seconds": exchange.first_byte_seconds,
        "retries": exchange.retries,
        "model": short_column_text(exchange.model),
        "input_tokens": column_integer(usage.input_tokens),
        "output_tokens": column_integer(usage.output_tokens),
        "cache_read_tokens": column_integer(usage.cache_read_tokens),
        "cache_write_tokens": column_integer(usage.cache_write_tokens),
        "cost": column_number(usage.cost),
        "cause": short_column_text(exchange.cause),
    }


def insert_exchanges(connection: Connection, exchanges: PackedExchanges) -> None:
    """Save exchanges; existing ones stay unchanged."""
    save_blobs(connection, *exchanges.blobs.items())
    insert_new_rows(connection, schema.exchanges, exchanges.rows)


def load_exchanges(connection: Connection, attempt: str) -> Iterator[Exchange]:
    """Load the exchanges of an attempt in order; each is decoded when it is read."""
    table = schema.exchanges.c
    query = select(table.body, table.request, table.response).where(table.attempt == attempt)
    rows = connection.execute(query.order_by(table.number)).mappings().all()
    digests = {
        digest for row in rows for digest in (*_split_digests(row["request"]), row["response"])
    }
    content = _load_keyed_bodies(connection, schema.blobs, sorted(digests))
    return (_join_exchange(row, content) for row in rows)


def _split_digests(request: bytes) -> list[str]:
    return [
        request[offset : offset + _DIGEST_BYTES].hex()
        for offset in range(0, len(request), _DIGEST_BYTES)
    ]


# The rules' results on attempts: found by attempt and by what they were computed from.


def measurement_columns(attempt: str, basis: str, measurement: Measurement) -> dict[str, Any]:
    """Return a row of `measurements`: columns for lists and sums, and the body."""
    counted_rules = [finding.rule for finding in measurement.findings if finding.silenced is None]
    score = measurement.score
    return {
        "attempt": attempt,
        "basis": basis,
        "findings": len(counted_rules),
        "found": " ".join(sorted(set(counted_rules))),
        "category": measurement.ending.category if measurement.ending else None,
        "modes": join_modes((tag.mode, tag.source) for tag in measurement.modes),
        "examined": join_modes(measurement.examined),
        "modules": measurement.modules,
        "opened_precision": column_number(measurement.opened_precision),
        "opened_recall": column_number(measurement.opened_recall),
        "context_tokens": column_integer(measurement.whole.context_tokens),
        "drift_slope": column_number(measurement.whole.drift_slope),
        "iterations": measurement.whole.iterations,
        "converged_after": measurement.whole.converged_after,
        **_rate_columns("handoff", score.handoff),
        **_rate_columns("feedback", score.feedback),
        **_rate_columns("recovery", score.recovery),
        **_rate_columns("convergence", score.convergence),
        "body": pack_record(measurement),
    }


def _rate_columns(name: str, rate: Rate | None) -> dict[str, float | None]:
    return {f"{name}_hits": rate.hits if rate else None, f"{name}_of": rate.of if rate else None}


def insert_measurements(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows of `measurements`; existing ones stay unchanged."""
    insert_new_rows(connection, measurements, rows)


def last(connection: Connection, attempt: str) -> Measurement | None:
    """Return an attempt's latest measurement, on any basis; None if there is none."""
    table = measurements.c
    query = select(table.body).where(table.attempt == attempt).order_by(table.number.desc())
    body = connection.execute(query.limit(1)).scalar()
    return None if body is None else unpack_record(body, Measurement)


def list_measured(connection: Connection, basis_by_attempt: Mapping[str, str]) -> set[str]:
    """Which attempts have a measurement on the basis that is wanted of them."""
    measured, table = set(), measurements.c
    for part in split_values(list(basis_by_attempt)):
        query = select(table.attempt, table.basis).where(table.attempt.in_(part))
        measured |= {
            name for name, basis in connection.execute(query) if basis_by_attempt[name] == basis
        }
    return measured


def load_measurements(
    connection: Connection, basis_by_attempt: Mapping[str, str]
) -> dict[str, Measurement]:
    """Load, by attempt, the measurement made on the given basis."""
    by_attempt, table = {}, measurements.c
    for part in split_values(list(basis_by_attempt)):
        query = select(table.attempt, table.basis, table.body).where(table.attempt.in_(part))
        for row in connection.execute(query):
            if basis_by_attempt[row.attempt] == row.basis:
                by_attempt[row.attempt] = unpack_record(row.body, Measurement)
    return by_attempt
