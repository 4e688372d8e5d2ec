"""Columns that are packed in the store say what the rows say, whatever happens meanwhile."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.attempts.attempt_saving import purge_secret
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.finding import Measurement
from closeloop.records.pull_request import Delivery
from closeloop.store import Store, metrics_section, open_store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.store.packed_columns import (
    AttemptColumns,
    collect_columns,
    join_rows,
    pack_segment,
    unpack_segment,
)
from closeloop.store.sql_expressions import text

START = datetime(2026, 5, 1, 12, tzinfo=UTC)
ROWS = 4


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_section, "SEGMENT_ROWS", ROWS)


def save(store: Store, number: int, *, user: str | None = None) -> None:
    """An attempt with a grade, a measurement and a delivery."""
    name = f"{number:012x}"
    attempt = Attempt(
        id=name, origin="experiment", exit="finished", user=user,
        started=START + timedelta(hours=number), ended=START + timedelta(hours=number, seconds=9.5),
    )  # fmt: skip
    outcome = Outcome(result="pass" if number % 2 else "fail")
    grade = Grade(attempt=name, grading="g", version=1, outcome=outcome)
    store.save_attempt(AttemptResult(attempt=attempt, grade=grade))
    store.save_measurements([(name, "basis", Measurement(rules="r"))])
    store.pulls.save_delivery(Delivery(attempt=name, at=START, merged=True, comments=number))


def listed(columns: AttemptColumns) -> dict[str, Any]:
    lists: dict[str, Any] = {"attempts": [*columns.attempts]}
    for name, column in columns.columns.items():
        lists[name] = [None if value != value else value for value in column.tolist()]
    return lists


def load(store: Store) -> list[dict[str, Any]]:
    numbers, span = store.numbers, AttemptSpan()
    loaded = numbers.load_attempt_columns(span)
    parts = (loaded, numbers.load_measurement_columns(span), numbers.load_delivery_columns(span))
    return [listed(part) for part in parts]


def load_rows(store: Store) -> list[dict[str, Any]]:
    """The same, without any segment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics_section, "SEGMENT_ROWS", 10**9)
        return load(store)


def count_segments(store: Store) -> dict[str, int]:
    query = "SELECT source, count(*) FROM column_segments GROUP BY source"
    return dict(store._read(lambda connection: [*connection.execute(text(query))]))


ALL = ("attempts", "deliveries", "grades", "measurements")


def test_segments_and_newer_rows_say_what_all_rows_say(store_url: str) -> None:
    with open_store(store_url) as store:
        for number in range(ROWS - 1):
            save(store, number)
        assert load(store) == load_rows(store)
        assert count_segments(store) == {}
        for number in range(ROWS - 1, 2 * ROWS + 1):
            save(store, number, user=f"u{number}")
        assert load(store) == load_rows(store)
        assert count_segments(store) == dict.fromkeys(ALL, 2)
        again = Outcome(result="unscored", cause="sandbox")
        store.save_grade(Grade(attempt=f"{1:012x}", grading="g", version=2, outcome=again))
        store.save_measurements([(f"{0:012x}", "other", Measurement(rules="r"))])
        attempts, measurements, _ = load(store)
        assert attempts["outcome"][:3] == ["fail", "unscored", "fail"]
        assert measurements["basis"][-2:] == ["basis", "other"]
        assert load(store) == load_rows(store)
        assert len(load(store)[0]["attempts"]) == 2 * ROWS + 1


def test_a_purge_leaves_no_packed_copy_of_a_secret(store_url: str) -> None:
    secret = "Winter-is-coming-41"
    with open_store(store_url) as store:
        for number in range(ROWS):
            save(store, number, user=secret)
        assert load(store)[0]["user"] == [secret] * ROWS
        assert count_segments(store) == dict.fromkeys(ALL, 1)
        purge_secret(store, secret, purged_by="ann", apply=True)
        assert count_segments(store) == {}
        assert load(store)[0]["user"] == ["[purged]"] * ROWS


def test_other_columns_make_other_segments(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(store_url) as store:
        for number in range(2 * ROWS):
            save(store, number)
        load(store)
        fields = tuple(name for name in metrics_section.GRADE_FIELDS if name != "asked")
        monkeypatch.setattr(metrics_section, "GRADE_FIELDS", fields)
        loaded = load(store)
        assert "asked" not in loaded[0]
        assert loaded == load_rows(store)
        assert count_segments(store) == dict.fromkeys(ALL, 2), "outdated ones are deleted"


def test_a_store_that_cannot_be_written_is_read_as_it_is(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "closeloop.db")) as store:
        for number in range(ROWS + 1):
            save(store, number)
        load(store)
        for number in range(ROWS + 1, 3 * ROWS):
            save(store, number)
        writer, store._writer = store._writer, None
        assert load(store) == load_rows(store)
        assert count_segments(store) == dict.fromkeys(ALL, 1)
        store._writer = writer


def test_several_threads_pack_each_row_once(store_url: str) -> None:
    with open_store(store_url) as store, open_store(store_url) as other:
        for number in range(6 * ROWS + 1):
            save(store, number)
        threads = [threading.Thread(target=each.numbers.pack_segments) for each in (store, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert count_segments(store) == dict.fromkeys(ALL, 6)
        assert load(store) == load_rows(store)


def test_a_row_with_a_lower_number_that_is_committed_late_counts(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_section, "LOCK_MILLISECONDS", 50)
    with open_store(postgres_url) as store:
        save(store, 0)
        with psycopg.connect(postgres_url) as late:
            late.execute(
                "INSERT INTO grades (attempt, grading, version, outcome, broken, out_of_scope,"
                " body) SELECT attempt, 'late', 2, outcome, 0, 0, body FROM grades"
            )
            for number in range(1, ROWS + 2):
                save(store, number)
            assert load(store)[0]["grading"][0] == "g"
            assert "grades" not in count_segments(store)
            late.commit()
        assert load(store)[0]["grading"][0] == "late"
        assert count_segments(store)["grades"] == 1


values = st.none() | st.sampled_from([0, 1, -127, 2**40, 0.5])
rows = st.lists(
    st.lists(
        st.tuples(
            st.text(st.sampled_from("aü\0"), max_size=70), st.none() | st.text(max_size=2), values
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=4,
)


@given(rows)
def test_rows_are_unpacked_as_they_were_packed(parts: list[list[tuple[Any, ...]]]) -> None:
    kinds = {"word": True, "number": False}
    segments = [pack_segment(collect_columns(iter([part]), kinds)) for part in parts]
    joined = join_rows([unpack_segment(body) for body in segments])
    whole = collect_columns(iter(parts), kinds)
    assert listed(joined) == listed(whole)
    assert joined.attempts.keys.tolist() == whole.attempts.keys.tolist()  # type: ignore[attr-defined]
