"""A dialogue that every request tells again: each thing once, whatever ids its calls have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from closeloop.records.trace import Command, Message
from closeloop.traces.message_parts import MessagePart, RequestHistory, parse_message_parts
from closeloop.traces.readers.gemini import finish_gemini_call
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from patience import takes

Step = tuple[str, str, str]
steps = st.one_of(
    st.tuples(st.just("user"), st.sampled_from(["go on", "yes"]), st.just("")),
    st.tuples(st.just("agent"), st.sampled_from(["fine", "done"]), st.just("")),
    st.tuples(st.just("call"), st.sampled_from(["pytest", "ls"]), st.sampled_from(["1", "2"])),
)
IDS = {"kept": "c{place}", "new each time": "r{time}c{place}", "none": ""}


def call(name: str | None, command: str) -> MessagePart:
    return MessagePart("agent", "call", "", "bash", name, {"command": command})


def result(name: str | None, output: str) -> MessagePart:
    return MessagePart("tool", "result", output, "bash", name)


def parts(history: Sequence[Step], ids: str, time: int) -> Iterator[MessagePart]:
    for place, (kind, words, output) in enumerate(history):
        name = IDS[ids].format(place=place, time=time) or None
        if kind == "call":
            yield call(name, words)
            yield result(name, output)
        else:
            yield MessagePart("user" if kind == "user" else "agent", "text", words)


@given(
    st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=5),
    st.sampled_from(sorted(IDS)),
    st.booleans(),
)
def test_everything_is_told_once_and_results_are_with_their_calls(
    rounds: list[list[Step]], ids: str, spoken: bool
) -> None:
    builder = SessionBuilder("test", 1)
    dialogue = RequestHistory(builder)
    history: list[Step] = []
    for time, new in enumerate(rounds):
        dialogue.add_request(parts(history, ids, time), ROOT_LANE, None)
        for step in new:
            name = IDS[ids].format(place=len(history), time="s") or None
            if spoken and step[0] == "call":
                dialogue.add_reply_part(call(name, step[1]), ROOT_LANE, None, None)
            elif spoken and step[0] == "agent":
                dialogue.add_reply_part(
                    MessagePart("agent", "text", step[1]), ROOT_LANE, None, None
                )
            history.append(step)
    dialogue.add_request(parts(history, ids, len(rounds)), ROOT_LANE, None)
    ran = [(one.command, one.output) for one in builder.events if isinstance(one, Command)]
    assert ran == [(words, output) for kind, words, output in history if kind == "call"]
    told = sorted((one.role, one.text) for one in builder.events if isinstance(one, Message))
    assert told == sorted((kind, words) for kind, words, _ in history if kind != "call")


def test_the_same_call_after_a_shortened_history_is_another_one() -> None:
    builder = SessionBuilder("test", 1)
    dialogue = RequestHistory(builder)
    first = [call("a", "pytest"), result("a", "1 failed")]
    dialogue.add_request(first, ROOT_LANE, None)
    dialogue.add_request([*first, call("b", "ls"), result("b", "x")], ROOT_LANE, None)
    dialogue.add_request([call("c", "pytest"), result("c", "2 passed")], ROOT_LANE, None)
    ran = [(one.command, one.output) for one in builder.events if isinstance(one, Command)]
    assert ran == [("pytest", "1 failed"), ("ls", "x"), ("pytest", "2 passed")]


def test_a_result_without_content_says_nothing() -> None:
    assert [one.text for one in parse_message_parts({"role": "tool", "content": None}, "user")] == [
        ""
    ]


def test_an_object_that_a_command_prints_is_no_exit_code() -> None:
    event = event_from_call(
        "bash", {"command": "cat result.json"}, CallOrigin(number=1, lane=ROOT_LANE)
    )
    printed = '{"exit_code": 1, "name": "lint"}'
    assert result_fields(event, printed) == {
        "output": printed,
        "exit_code": None,
        "exit_from": None,
    }
    told = result_fields(event, '{"output": "a", "metadata": {"exit_code": 1}}')
    assert told == {"output": "a", "exit_code": 1, "exit_from": "parsed"}


def test_many_calls_that_one_interrupt_ends_take_no_time() -> None:
    said = "[Operation Cancelled] Reason: Operation cancelled by user"

    def work(_: int) -> None:
        builder = SessionBuilder("test", 1)
        for number in range(8000):
            origin = CallOrigin(number=builder.next_number, lane=ROOT_LANE, call=f"c{number}")
            event = builder.add(event_from_call("bash", {"command": "ls"}, origin))
            finish_gemini_call(builder, event, said, False, {"status": "cancelled"})

    assert takes(work, 1) < 1
