"""Columns of many rows say what lists of the same rows would."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from closeloop.store.packed_columns import (
    AttemptColumns,
    PackedColumns,
    RowPlacer,
    align_columns,
    collect_columns,
    make_text_column,
)

words = st.lists(st.none() | st.sampled_from(["", "a", "b", "ü"]), max_size=20)


@given(words, st.data())
def test_texts_come_back_as_they_were(rows: list[str | None], data: st.DataObject) -> None:
    held = make_text_column(rows)
    assert held.tolist() == rows
    assert held.known().tolist() == [row is not None for row in rows]
    assert held.are(["a", ""]).tolist() == [row in ("a", "") for row in rows]
    other = data.draw(st.lists(st.none() | st.just("x"), min_size=len(rows), max_size=len(rows)))
    wanted = [two if one is None else one for one, two in zip(rows, other, strict=True)]
    assert held.otherwise(make_text_column(other)).tolist() == wanted
    longer = held.translated(lambda text: text and text * 2)
    assert longer.tolist() == [row and row * 2 for row in rows]


def test_a_text_counts_as_what_is_said_of_it_and_none_as_not_known() -> None:
    counted = make_text_column(["a", None, "b", "a"]).each({"a": 1.0, "b": 0.0}.get)
    assert [None if np.isnan(one) else one for one in counted] == [1, None, 0, 1]


@given(st.lists(st.tuples(st.none() | st.text(max_size=2), st.none() | st.integers(-9, 9))))
def test_rows_that_come_in_parts_are_one(rows: list[tuple[str | None, int | None]]) -> None:
    named = [(f"n{place}", *row) for place, row in enumerate(rows)]
    parts = iter([part for part in (named[:3], named[3:]) if part])
    found = collect_columns(parts, {"word": True, "number": False})
    assert found.attempts == [row[0] for row in named]
    assert found.columns["word"].tolist() == [row[1] for row in named]
    numbers = [None if np.isnan(one) else one for one in found.columns["number"]]
    assert numbers == [row[2] for row in named]


def test_what_is_known_of_some_is_joined_to_all_and_the_last_counts() -> None:
    part = AttemptColumns(
        attempts=["b", "x", "a", "a"],
        columns=PackedColumns(
            {
                "word": make_text_column(["two", "lost", "old", "new"]),
                "number": np.array([2.0, 9, 0, 1]),
            }
        ),
    )
    found = align_columns(part, np.array([1, -1, 0, 0]), 3)
    assert found["word"].tolist() == ["new", "two", None]
    assert found["number"][:2].tolist() == [1, 2]
    assert np.isnan(found["number"][2])


@given(
    st.lists(st.none() | st.integers(-(2**40), 2**40) | st.sampled_from([0.5, -128, 127, 1e300]))
)
def test_packed_numbers_are_exact(rows: list[float | None]) -> None:
    numbers = np.array([np.nan if row is None else row for row in rows], np.float64)
    assert np.array_equal(PackedColumns({"n": numbers})["n"], numbers, equal_nan=True)


@given(st.lists(st.text(max_size=70), unique=True), st.lists(st.text(max_size=2)))
def test_attempts_are_found_by_their_ids(names: list[str], others: list[str]) -> None:
    wanted = [*others, *reversed(names)]
    rows = [names.index(name) if name in names else -1 for name in wanted]
    assert RowPlacer(names).find_ids(wanted).tolist() == rows
