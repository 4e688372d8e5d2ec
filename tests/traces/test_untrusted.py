"""Values nobody vouches for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.traces import untrusted_json

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(anything)
def test_whatever_comes_is_made_fit_to_be_stored(value: Any) -> None:
    kept = untrusted_json.storable_value(value, {})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept)) == kept
    assert isinstance(untrusted_json.json_excerpt(value), str)


@given(anything)
def test_whatever_comes_is_a_time_a_count_and_an_amount_or_nothing(value: Any) -> None:
    for ask in (
        untrusted_json.time_from_millis,
        untrusted_json.time_from_seconds,
        untrusted_json.time_from_text,
    ):
        at = ask(value)
        assert at is None or at.tzinfo is UTC
    for ask in (untrusted_json.as_count, untrusted_json.as_amount):
        number = ask(value)
        assert number is None or number >= 0


def test_values_are_made_safe_to_the_bottom() -> None:
    deep: object = "x"
    for _ in range(500):
        deep = [deep]
    kept = untrusted_json.storable_value(
        {"a\0": ["\ud800", 1 << 80, None, True, 1.5, float("nan")], "d": deep}, {}
    )
    assert kept["a\ufffd"] == ["\ufffd", str(1 << 80), None, True, 1.5, "nan"]
    msgspec.msgpack.encode(kept)


def test_a_record_nobody_knows_is_kept_within_bounds() -> None:
    assert untrusted_json.json_excerpt({"a": 1}) == '{"a":1}'
    assert len(untrusted_json.json_excerpt({"a": "x" * 100_000})) < 2100
    assert "1e" not in untrusted_json.json_excerpt({"a": 1 << 80})


@pytest.mark.parametrize(
    ("value", "counted", "measured"),
    [
        (0, 0, 0.0),
        (7.0, 7, 7.0),
        (7.5, None, 7.5),
        ("12", 12, 12.0),
        ("1.25e-05", None, 1.25e-05),
        (-1, None, None),
        (True, None, None),
        (1 << 53, None, None),
        (float("nan"), None, None),
        (float("inf"), None, None),
        ("1_000", None, None),
        ("-1", None, None),
        ("nan", None, None),
        ("١٢", None, None),
        ("9" * 400, None, None),
        ("", None, None),
        ([], None, None),
    ],
)
def test_a_number_is_none_where_it_cannot_be_one(
    value: object, counted: int | None, measured: float | None
) -> None:
    assert untrusted_json.as_count(value) == counted
    assert untrusted_json.as_amount(value) == measured


def test_json_inside_a_text_is_unfolded_only_where_it_is_an_object_or_a_list() -> None:
    assert untrusted_json.unfold_json(' {"a": [1]}') == {"a": [1]}
    assert untrusted_json.unfold_json("[1") == "[1"
    assert untrusted_json.unfold_json("12") == "12"
    assert untrusted_json.unfold_json("null") == "null"
    assert untrusted_json.unfold_json(5) == 5


def test_nanoseconds_are_a_time_or_nothing() -> None:
    expected = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert untrusted_json.time_from_nanos("1700000000000000000") == expected
    assert untrusted_json.time_from_nanos(1_700_000_000_000_000_000) == expected
    for nothing in (0, "0", "", -1, True, 1.5, 1 << 63, "9" * 19, "9" * 400, "x", None):
        assert untrusted_json.time_from_nanos(nothing) is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (rb'"x\ud83d"', "x\ufffd"),
        (rb'"\ud83d\ude00 \ude00"', "😀 \ufffd"),
        (b'"x\xff"', "x\ufffd"),
        (b'"x\xed\xa0\x80"', "x\ufffd\ufffd\ufffd"),
        (b"NaN", None),
        (b"-Infinity", None),
        (b"1e400", None),
        (b"9" * 5000, None),
    ],
)
def test_what_is_no_text_or_no_number_does_not_cost_the_rest(written: bytes, meant: object) -> None:
    told = b'{"a": [%s, 1.5, %d, "NaN"], "\\udc00": {}}' % (written, 1 << 70)
    value = untrusted_json.try_decode_json(told)
    assert value == {"a": [meant, 1.5, 1 << 70, "NaN"], "\ufffd": {}}
    assert untrusted_json.try_decode_json(told.decode(errors="replace")) == value
    assert untrusted_json.try_decode_json(told[:-1]) is None


def test_times_are_in_utc() -> None:
    expected = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert untrusted_json.time_from_millis(1_700_000_000_000) == expected
    assert untrusted_json.time_from_seconds(1_700_000_000) == expected
    assert untrusted_json.time_from_text("2023-11-14T23:13:20+01:00") == expected
    assert untrusted_json.time_from_text("2023-11-14 22:13:20") == expected
    assert untrusted_json.time_from_millis(0) is None
