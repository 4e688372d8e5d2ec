"""Triggers that refuse to change a fact, and the one way to lift them inside a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

_VERBS = ("update", "delete")


def protection_statements(table: str, dialect: str) -> list[str]:
    """Statements that make the database refuse to change a fact, whoever asks."""
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} are facts: they are added, never changed'); END"
            for verb in _VERBS
        ]
    return [
        "CREATE OR REPLACE FUNCTION closeloop_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN RAISE EXCEPTION USING MESSAGE = "
        "TG_TABLE_NAME || ' are facts: they are added, never changed'; END $$",
        f"CREATE TRIGGER {table}_are_facts BEFORE UPDATE OR DELETE ON {table} "
        "FOR EACH ROW EXECUTE FUNCTION closeloop_refuse()",
    ]


@contextmanager
def allow_changes(connection: Connection, tables: Sequence[str]) -> Iterator[None]:
    """Lift the triggers of some tables; nobody else sees the tables without them.

    Both engines undo it with the transaction, so that a kill leaves the triggers in place.
    """
    sqlite = connection.dialect.name == "sqlite"
    for table in tables:
        if sqlite:
            for verb in _VERBS:
                connection.exec_driver_sql(f"DROP TRIGGER {table}_no_{verb}")
        else:
            connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER {table}_are_facts")
    yield
    for table in tables:
        if sqlite:
            for statement in protection_statements(table, "sqlite"):
                connection.exec_driver_sql(statement)
        else:
            connection.exec_driver_sql(f"ALTER TABLE {table} ENABLE TRIGGER {table}_are_facts")
