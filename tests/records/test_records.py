"""Every record is plain data: it survives JSON and msgpack and cannot be changed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Annotated

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import closeloop.records
from closeloop.records.errors import (
    BadInput,
    Fault,
    MachineFailed,
    PluginFailed,
    unknown_name_error,
)
from closeloop.records.record import Record, content_digest
from closeloop.text.untrusted import read_record
from example_counts import scale_examples
from record_strategies import holds_live_objects, records

for module in pkgutil.iter_modules(closeloop.records.__path__, "closeloop.records."):
    importlib.import_module(module.name)


def every_record(kind: type[Record] = Record) -> list[type[Record]]:
    found = []
    for child in kind.__subclasses__():
        if child.__module__.startswith("closeloop.records."):
            found += [child, *every_record(child)]
    return found


RECORDS = sorted(every_record(), key=lambda kind: kind.__name__)
# How a trace or a change is read lives in memory only: it is made again each time.
READ = ("closeloop.records.change",)
PLAIN = [kind for kind in RECORDS if not holds_live_objects(kind) and kind.__module__ not in READ]


def test_only_an_assignment_holds_what_cannot_be_written_down() -> None:
    kept = {kind.__name__ for kind in RECORDS if kind.__module__ not in READ}
    assert kept - {kind.__name__ for kind in PLAIN} == {"Assignment"}
    assert {"Attempt", "Grade", "Task", "Trace", "Variant"} < {kind.__name__ for kind in PLAIN}


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
@settings(max_examples=scale_examples(12), deadline=None)
@given(data=st.data())
def test_every_record_survives_json_and_msgpack(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(kind))
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(record), type=kind) == record


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_every_record_is_frozen_and_takes_keywords_only(kind: type[Record]) -> None:
    assert kind.__struct_config__.frozen
    parameters = inspect.signature(kind).parameters.values()
    assert parameters
    assert {each.kind for each in parameters} == {inspect.Parameter.KEYWORD_ONLY}


@settings(max_examples=scale_examples(25))
@given(st.dictionaries(st.text(), st.integers(0, 9)))
def test_a_digest_ignores_the_order_of_keys_and_nothing_else(content: dict[str, int]) -> None:
    turned = dict(reversed(content.items()))
    assert content_digest("a", content) == content_digest("a", turned)
    assert content_digest("a", content) != content_digest("b", content)
    assert content_digest("a", content) != content_digest("a", content | {"": 10})
    assert content_digest("ab", "c") != content_digest("a", "bc")


def test_an_unknown_name_is_answered_with_the_nearest_and_all_known() -> None:
    fault = unknown_name_error("agent", "claud", ["codex", "claude"])
    assert isinstance(fault, BadInput)
    assert str(fault) == "No agent named 'claud'. Did you mean 'claude'? Known: claude, codex."
    assert (
        str(unknown_name_error("agent", "zzz", iter(["codex"])))
        == "No agent named 'zzz'. Known: codex."
    )
    none = (
        "No agent named 'codex'. This project has none: add one, or change to the project that "
        "has it."
    )
    assert str(unknown_name_error("agent", "codex", [])) == none


def test_of_very_many_names_only_the_nearest_are_told() -> None:
    many = [f"name-{number}" for number in range(99)] * 2 + ["would-merge"]
    fault = unknown_name_error("score", "would-merg", many, "closeloop score list")
    assert str(fault) == (
        "No score named 'would-merg'. Did you mean 'would-merge'?"
        " `closeloop score list` lists them."
    )
    few = unknown_name_error("score", "x", ["b", "a", "a"], "closeloop score list")
    assert str(few) == "No score named 'x'. Known: a, b."


def test_every_fault_has_its_own_exit_code() -> None:
    codes = {kind: kind.exit_code for kind in Fault.__subclasses__()}
    assert codes == {BadInput: 2, PluginFailed: 3, MachineFailed: 4}


class TimedResult(Record):
    name: str
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"name": "a", "seconds": -3}, "results.json: 'seconds' must be a number >= 0.0."),
        ({"name": "a", "seconds": "x"}, "results.json: 'seconds' must be a number."),
        ({"name": 1}, "results.json: 'name' must be text."),
        ([], "results.json must be a section with fields."),
    ],
)
def test_a_value_that_is_not_of_its_kind_is_named(value: object, sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_record(value, TimedResult, "results.json")
    assert str(refused.value) == sentence
