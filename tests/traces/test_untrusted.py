"""Values nobody vouches for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.traces import untrusted

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(anything)
def test_whatever_comes_is_made_fit_to_be_stored(value: Any) -> None:
    kept = untrusted.safe(value, {})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept)) == kept
    assert isinstance(untrusted.raw(value), str)


@given(anything)
def test_whatever_comes_is_a_time_a_count_and_an_amount_or_nothing(value: Any) -> None:
    for ask in (untrusted.millis, untrusted.seconds, untrusted.moment):
        at = ask(value)
        assert at is None or at.tzinfo is UTC
    for ask in (untrusted.count, untrusted.amount):
        number = ask(value)
        assert number is None or number >= 0


@pytest.mark.parametrize("value", [b'{"a": "x\\ud83d"}', '{"a": "x\\ud83d"}'])
def test_half_a_surrogate_pair_does_not_cost_the_rest(value: str | bytes) -> None:
    assert untrusted.decoded(value) == {"a": "x\ud83d"}
    assert untrusted.decoded("{") is None


def test_times_are_in_utc() -> None:
    expected = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert untrusted.millis(1_700_000_000_000) == expected
    assert untrusted.seconds(1_700_000_000) == expected
    assert untrusted.moment("2023-11-14T23:13:20+01:00") == expected
    assert untrusted.moment("2023-11-14 22:13:20") == expected
    assert untrusted.millis(0) is None
