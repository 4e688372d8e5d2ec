"""Any record, with any content: hypothesis strategies made from the records' own types."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from typing import Any

from hypothesis import strategies as st

from closeloop.records.record import Record

names = st.text("abcdef0123456789-/", min_size=1, max_size=12)
numbers = st.integers(-(2**63), 2**63 - 1)
amounts = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=20)
# Offsets of whole minutes, a day from the calendar's edges: what JSON can say.
zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC) | zones)
anything = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
SIMPLE = {
    bytes: st.binary(max_size=20),
    str: texts,
    int: numbers,
    float: amounts,
    bool: st.booleans(),
    datetime: times,
    type(None): st.none(),
    Any: anything,
}


def records(kind: type[Record], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Records of a kind, with these strategies for some of their fields."""
    return st.builds(kind, **{**_fields(kind), **given})


def holds_live_objects(kind: type[Record]) -> bool:
    """Whether a record holds functions or plug-ins, which no format can keep."""
    hints = typing.get_type_hints(kind).values()
    return any(_is_live(each) for hint in hints for each in (hint, *typing.get_args(hint)))


def _is_live(kind: Any) -> bool:
    return typing.get_origin(kind) is Callable or getattr(kind, "_is_protocol", False)


@cache
def _fields(kind: type[Record]) -> dict[str, st.SearchStrategy[Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: values(hints[name]) for name in kind.__struct_fields__}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, as records use types."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if isinstance(kind, type) and issubclass(kind, Record):
        return st.deferred(lambda: records(kind))
    inner = typing.get_args(kind)
    match typing.get_origin(kind):
        case typing.Annotated:
            least = next(
                (each.ge for each in inner[1:] if getattr(each, "ge", None) is not None), None
            )
            plain = values(inner[0])
            return plain if least is None else plain.map(lambda value: max(least, value))
        case typing.Literal:
            return st.sampled_from(inner)
        case typing.Union | types.UnionType:
            return st.one_of(*map(values, inner))
        case origin if origin is tuple and inner[-1] is Ellipsis:
            return st.lists(values(inner[0]), max_size=3).map(tuple)
        case origin if origin is tuple:
            return st.tuples(*map(values, inner))
        case origin if origin is Sequence:
            return st.lists(values(inner[0]), max_size=3)
        case origin if origin is dict:
            return st.dictionaries(values(inner[0]), values(inner[1]), max_size=3)
    raise TypeError(f"no strategy for {kind}")
