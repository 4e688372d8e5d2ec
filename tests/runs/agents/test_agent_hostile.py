"""Models send anything: nothing of it breaks the agent, its trace or its conversation."""

from __future__ import annotations

import resource
from typing import Any

import msgspec
import pytest
from agent_desk import Desk, calls, says
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from closeloop.agents.builtin import TOOL_SPECS
from closeloop.records.trace import ModelToolCall, Note

END = says("Done.")


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (calls("rnu", command="ls"), "No tool named 'rnu'. Did you mean 'run'?"),
        (calls("", command="ls"), "No tool named '_'."),
        (calls("x" * 10_000_000), "No tool named 'xxx"),
        (calls("functions.run \ud83d"), "No tool named 'functions_run__'. Known: ask,"),
        (calls("run"), "'command' is missing.\nrun takes command (string), seconds (number, opt"),
        (calls("run", command=None), "'command' is missing"),
        (calls("run", command=["ls"]), "'command' must be of type string"),
        (calls("run", command={"a": deep(50)}), "'command' must be of type string"),
        (calls("run", command="ls", cwd="/"), "it has no parameter 'cwd'"),
        (calls("run", command="ls", seconds="5"), "'seconds' must be of type number"),
        (calls("run", command="ls", seconds=True), "'seconds' must be of type number"),
        (calls("run", command="ls", seconds=-1), "'seconds' must be more than 0"),
        (calls("run", command="ls", seconds=float("nan")), "'seconds' must be more than 0"),
        (calls("run", command="ls", seconds=10**30), "less than a billion"),
        (calls("run", command="ls\0"), "'command' must not contain a NUL"),
        (calls("read", path="a\0b"), "'path' must not contain a NUL"),
        (calls("read", path="a", first_line=1.5), "'first_line' must be of type integer"),
        (calls("read", path="a", first_line=10**40), "less than a billion"),
        (calls("finish", summary="x", done="yes"), "'done' must be of type boolean"),
        (calls("write", path="a", text="x" * 2_000_000), "bytes of arguments, of 1000000 allowed"),
        (calls("write", path="a", text="\ud83d"), "cannot be written as JSON"),
        (calls("write", path="a", text=deep(100_000)), "cannot be written as JSON"),
        (
            ModelToolCall(id="1", name="run", arguments={}, malformed='{"comm'),
            'JSON object: {"comm.',
        ),
        (ModelToolCall(id="1", name="run", arguments={}, malformed=""), "not a JSON object"),
        (ModelToolCall(id="1", name="run", arguments={}, malformed="\udfff" * 10**6), "left out"),
    ],
    ids=range(25),
)
def test_a_call_that_makes_no_sense_is_told_so_and_noted(
    desk: Desk, call: ModelToolCall, told: str
) -> None:
    work = desk.work(says("", call), END)
    assert work.exit == "finished"
    assert told in desk.told()
    assert desk.failed()
    assert len(desk.told()) < 5_000
    note = work.trace.events[1]
    assert isinstance(note, Note)
    assert note.about == "bad call"
    msgspec.json.encode(desk.model.requests[-1].messages)
    assert len(msgspec.msgpack.encode(work.trace)) < 10_000


def test_null_for_an_optional_parameter_is_as_good_as_none(desk: Desk) -> None:
    desk.work(says("", calls("run", command="echo hi", seconds=None)), END)
    assert desk.told() == "exit code 0\nhi\n"


def test_broken_unicode_and_nul_become_valid_text(desk: Desk) -> None:
    work = desk.work(says("a\ud83d\0b", calls("finish", summary="c\0d")))
    assert work.trace.events[1].text == "a?\0b"
    assert work.summary == "c\ufffdd"
    msgspec.json.encode(work)


def test_binary_output_of_a_command_becomes_valid_text(desk: Desk) -> None:
    work = desk.work(says("", calls("run", command="printf '\\377\\0x'")), END)
    assert work.trace.events[1].output == "\ufffd\0x"


def test_a_huge_text_is_kept_as_head_and_tail(desk: Desk) -> None:
    work = desk.work(says("é" * 20_000_000))
    assert "19000000 characters left out" in work.trace.events[1].text
    assert len(work.trace.events[1].text) < 1_000_100
    assert len(work.summary or "") < 31_000


def test_a_thousand_calls_in_one_reply_are_done_in_order(desk: Desk) -> None:
    many = [calls("write", path=f"f{number}", text="") for number in range(1000)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    work = desk.work(says("", *many), END)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 5
    assert work.exit == "finished"
    assert [event.path for event in work.trace.events[1:-1]] == [f"f{n}" for n in range(1000)]
    results = [message.call for message in desk.model.requests[-1].messages if message.call]
    assert results == [call.id for call in many]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
names = st.sampled_from([spec.name for spec in TOOL_SPECS if spec.name != "run"]) | st.text(
    max_size=5
)
parameters = st.sampled_from(
    sorted({name for spec in TOOL_SPECS for name in spec.parameters["properties"]} | {"other"})
)
any_call = st.builds(
    ModelToolCall,
    id=st.text(max_size=3),
    name=names,
    arguments=st.dictionaries(parameters, json_values, max_size=4),
    malformed=st.none() | st.text(max_size=5),
)
any_reply = st.builds(
    says,
    st.text(st.characters(), max_size=20),
    any_call,
    any_call,
    stop=st.sampled_from(["end", "tools", "length", "refused"]),
)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(any_reply, max_size=4))
def test_whatever_the_model_sends_the_work_is_well_formed(desk: Desk, replies: list[Any]) -> None:
    work = desk.work(*replies, *[END] * 10)
    assert work.exit in ("finished", "gave_up")
    msgspec.json.encode([request.messages for request in desk.model.requests])
