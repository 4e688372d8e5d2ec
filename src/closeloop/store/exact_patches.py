"""The exact patches of attempts and tries: read to apply them again, never to show them.

A row is there only where the form that is shown differs from what the agent left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, select, update

from closeloop.records.change import Change
from closeloop.records.orchestration import SubtaskExecution
from closeloop.records.record import Record
from closeloop.store import fact_rows
from closeloop.store.plan_tables import executions
from closeloop.store.private_tables import private_bodies
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.schema import attempt_bodies
from closeloop.text.redaction import redact_change, redact_patch, redact_path

BATCH_ROWS = 200


class ExactPatch(Record):
    """What a try of a sub-agent changed, byte for byte."""

    patch: str
    files: tuple[str, ...] = ()


def exact_change_row(attempt: str, change: Change | None) -> dict[str, Any]:
    """The row with the exact change of an attempt."""
    return {"owner": f"attempt/{attempt}", "body": pack_record(change or Change())}


def load_exact_change(connection: Connection, attempt: str) -> bytes | None:
    """The exact change of an attempt; None where the one that is shown is exact."""
    return _load_body(connection, f"attempt/{attempt}")


def split_execution(execution: SubtaskExecution) -> tuple[SubtaskExecution, dict[str, Any] | None]:
    """The try as it may be shown, and the row with its exact patch where that differs."""
    patch, files = redact_patch(execution.patch), tuple(map(redact_path, execution.files))
    shown = replace(execution, patch=patch, files=files)
    if shown == execution:
        return execution, None
    exact = ExactPatch(patch=execution.patch, files=execution.files)
    return shown, {"owner": _try_owner(execution), "body": pack_record(exact)}


def load_exact_patch(connection: Connection, execution: SubtaskExecution) -> ExactPatch | None:
    """The exact patch of a try; None where the one that is shown is exact."""
    body = _load_body(connection, _try_owner(execution))
    return None if body is None else unpack_record(body, ExactPatch)


def insert_exact_patches(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Keep exact patches; those that are known stay as they are."""
    fact_rows.insert_new_rows(connection, private_bodies, rows)


def split_stored_changes(connection: Connection) -> None:
    """Move what older releases stored unredacted; the caller lets facts be changed."""
    table = attempt_bodies.c
    for name, body in _iterate_bodies(connection, table.attempt, table.change):
        change = unpack_record(body, Change)
        shown = redact_change(change)
        if shown != change:
            insert_exact_patches(connection, [exact_change_row(name, change)])
            change_update = update(attempt_bodies).where(table.attempt == name)
            connection.execute(change_update.values(change=pack_record(shown)))
    for number, body in _iterate_bodies(connection, executions.c.number, executions.c.body):
        shown_try, exact = split_execution(unpack_record(body, SubtaskExecution))
        if exact is not None:
            insert_exact_patches(connection, [exact])
            execution_update = update(executions).where(executions.c.number == number)
            connection.execute(execution_update.values(body=pack_record(shown_try)))


def _iterate_bodies(connection: Connection, key: Any, body: Any) -> Iterator[tuple[Any, bytes]]:
    """Keys with their bodies, some at a time: each query goes on after the last key."""
    query = select(key, body).where(body.is_not(None)).order_by(key).limit(BATCH_ROWS)
    rows = connection.execute(query).all()
    while rows:
        yield from ((row[0], row[1]) for row in rows)
        rows = connection.execute(query.where(key > rows[-1][0])).all()


def _load_body(connection: Connection, owner: str) -> bytes | None:
    query = select(private_bodies.c.body).where(private_bodies.c.owner == owner)
    return connection.execute(query).scalar()


def _try_owner(execution: SubtaskExecution) -> str:
    return f"try/{execution.plan}/{execution.task}/{execution.number}"
