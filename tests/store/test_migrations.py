"""New and old databases take one path to the schema that queries use."""

from __future__ import annotations

import pytest
import sqlalchemy
from sqlalchemy import Engine, create_engine, inspect, text

from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.store import migrations, open_store, schema
from closeloop.store.sql_expressions import ColumnType


def engine_of(url: str) -> Engine:
    if url.startswith("postgresql:"):
        return create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    return create_engine(f"sqlite:///{url}")


def affinity_of(kind: ColumnType) -> object:
    """What the toolkit that looks at the database calls such a column."""
    names = (one.__name__ for one in type(kind).__mro__)
    return next(
        getattr(sqlalchemy, name) for name in names if hasattr(sqlalchemy, name)
    )()._type_affinity


def test_a_migrated_database_has_the_columns_that_queries_use(bare_store_url: str) -> None:
    open_store(bare_store_url).close()
    found = inspect(engine_of(bare_store_url))
    made_names = {name for name in found.get_table_names() if not name.startswith("search_words")}
    assert made_names == set(schema.metadata.tables)
    for name, table in schema.metadata.tables.items():
        made = {
            column["name"]: (column["type"]._type_affinity, column["nullable"])
            for column in found.get_columns(name)
        }
        if name == "attempts":  # SQLite has it in every table, and does not list it
            made.pop("rowid", None)
        used = {
            column.name: (affinity_of(column.type), column.nullable) for column in table.columns
        }
        # SQLite's own numbered keys are never null, though it does not say so.
        if "number" in made and table.c.number.primary_key:
            made["number"] = (made["number"][0], False)
        assert made == used, name
        assert found.get_pk_constraint(name)["constrained_columns"] == [
            column.name for column in table.primary_key
        ]


def test_everything_is_a_fact_but_work_in_hand_and_what_is_made_of_facts() -> None:
    facts = [name for step in migrations.MIGRATIONS for name in step.facts]
    others = ["column_segments", "inbox", "jobs", "places", "pulls", "search_documents"]
    assert sorted([*facts, *others]) == sorted(schema.metadata.tables)


def test_opening_again_changes_nothing(bare_store_url: str) -> None:
    attempt = Attempt(id="one", origin="experiment", exit="finished")
    for _ in range(3):
        with open_store(bare_store_url) as store:
            store.save_attempt(AttemptResult(attempt=attempt))
            assert store.load_attempt("one") == attempt
    with engine_of(bare_store_url).connect() as connection:
        rows = connection.execute(text("SELECT number FROM closeloop_migrations")).all()
    newest = migrations.newest_schema()
    assert rows == [(number,) for number in range(migrations.BASELINE_NUMBER, newest + 1)]


NEXT_STEP = migrations.Migration(
    statements=(
        "CREATE TABLE notes (number {number}, text {text}, body {bytes})",
        "INSERT INTO notes (text) SELECT id FROM attempts",
    ),
    facts=("notes",),
)
"""A migration as the next release may bring it."""
BROKEN_STEP = migrations.Migration(
    statements=("CREATE TABLE broken (number {number})", "SELECT * FROM nowhere")
)


def test_an_old_database_is_brought_up_to_date_and_keeps_its_facts(
    bare_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(id="one", origin="experiment", exit="finished")
    with open_store(bare_store_url) as store:
        store.save_attempt(AttemptResult(attempt=attempt))
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, NEXT_STEP))
        with open_store(bare_store_url) as store:
            assert store.load_attempt("one") == attempt
        with engine_of(bare_store_url).connect() as connection:
            assert connection.execute(text("SELECT text FROM notes")).all() == [("one",)]
    ours = migrations.newest_schema()
    newer = rf"newer closeloop \(schema {ours + 1}, this one supports {ours}\): upgrade"
    with pytest.raises(BadInput, match=newer):
        open_store(bare_store_url)


def test_a_database_of_a_schema_that_was_never_released_is_refused_with_what_to_do(
    bare_store_url: str,
) -> None:
    with engine_of(bare_store_url).begin() as connection:
        connection.execute(text("CREATE TABLE closeloop_migrations (number BIGINT)"))
        connection.execute(text("INSERT INTO closeloop_migrations VALUES (14)"))
    with pytest.raises(BadInput, match=r"unreleased closeloop \(schema 14, .* move it away"):
        open_store(bare_store_url)
    assert inspect(engine_of(bare_store_url)).get_table_names() == ["closeloop_migrations"]


def test_a_migration_that_fails_leaves_no_trace(
    bare_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, BROKEN_STEP))
        with pytest.raises(Exception, match="nowhere"):
            open_store(bare_store_url)
    assert inspect(engine_of(bare_store_url)).get_table_names() == []
    open_store(bare_store_url).close()
