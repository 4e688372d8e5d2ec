"""A dialogue that every request tells again: each thing once, whatever ids its calls have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from closeloop.model.trace import Command, Message
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.contents import settle
from closeloop.traces.dialogue import Dialogue
from closeloop.traces.otel.said import Said, said
from closeloop.traces.results import result_of
from patience import takes

Step = tuple[str, str, str]
steps = st.one_of(
    st.tuples(st.just("user"), st.sampled_from(["go on", "yes"]), st.just("")),
    st.tuples(st.just("agent"), st.sampled_from(["fine", "done"]), st.just("")),
    st.tuples(st.just("call"), st.sampled_from(["pytest", "ls"]), st.sampled_from(["1", "2"])),
)
IDS = {"kept": "c{place}", "new each time": "r{time}c{place}", "none": ""}


def call(name: str | None, command: str) -> Said:
    return Said("agent", "call", "", "bash", name, {"command": command})


def result(name: str | None, output: str) -> Said:
    return Said("tool", "result", output, "bash", name)


def parts(history: Sequence[Step], ids: str, time: int) -> Iterator[Said]:
    for place, (kind, words, output) in enumerate(history):
        name = IDS[ids].format(place=place, time=time) or None
        if kind == "call":
            yield call(name, words)
            yield result(name, output)
        else:
            yield Said("user" if kind == "user" else "agent", "text", words)


@given(
    st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=5),
    st.sampled_from(sorted(IDS)),
    st.booleans(),
)
def test_everything_is_told_once_and_results_are_with_their_calls(
    rounds: list[list[Step]], ids: str, spoken: bool
) -> None:
    builder = Builder("test", 1)
    dialogue = Dialogue(builder, {})
    history: list[Step] = []
    for time, new in enumerate(rounds):
        dialogue.hear(parts(history, ids, time), ROOT, None)
        for step in new:
            name = IDS[ids].format(place=len(history), time="s") or None
            if spoken and step[0] == "call":
                dialogue.speak(call(name, step[1]), ROOT, None, None)
            elif spoken and step[0] == "agent":
                dialogue.speak(Said("agent", "text", step[1]), ROOT, None, None)
            history.append(step)
    dialogue.hear(parts(history, ids, len(rounds)), ROOT, None)
    ran = [(one.command, one.output) for one in builder.events if isinstance(one, Command)]
    assert ran == [(words, output) for kind, words, output in history if kind == "call"]
    told = sorted((one.role, one.text) for one in builder.events if isinstance(one, Message))
    assert told == sorted((kind, words) for kind, words, _ in history if kind != "call")


def test_the_same_call_after_a_shortened_history_is_another_one() -> None:
    builder = Builder("test", 1)
    dialogue = Dialogue(builder, {})
    first = [call("a", "pytest"), result("a", "1 failed")]
    dialogue.hear(first, ROOT, None)
    dialogue.hear([*first, call("b", "ls"), result("b", "x")], ROOT, None)
    dialogue.hear([call("c", "pytest"), result("c", "2 passed")], ROOT, None)
    ran = [(one.command, one.output) for one in builder.events if isinstance(one, Command)]
    assert ran == [("pytest", "1 failed"), ("ls", "x"), ("pytest", "2 passed")]


def test_a_result_without_content_says_nothing() -> None:
    assert [one.text for one in said({"role": "tool", "content": None}, "user")] == [""]


def test_an_object_that_a_command_prints_is_no_exit_code() -> None:
    event = event_of("bash", {"command": "cat result.json"}, Origin(number=1, lane=ROOT))
    printed = '{"exit_code": 1, "name": "lint"}'
    assert result_of(event, printed) == {"output": printed, "exit_code": None, "exit_from": None}
    told = result_of(event, '{"output": "a", "metadata": {"exit_code": 1}}')
    assert told == {"output": "a", "exit_code": 1, "exit_from": "parsed"}


def test_many_calls_that_one_interrupt_ends_take_no_time() -> None:
    said = "[Operation Cancelled] Reason: Operation cancelled by user"

    def work(_: int) -> None:
        builder = Builder("test", 1)
        for number in range(8000):
            origin = Origin(number=builder.number, lane=ROOT, call=f"c{number}")
            event = builder.add(event_of("bash", {"command": "ls"}, origin))
            settle(builder, event, said, False, {"status": "cancelled"})

    assert takes(work, 1) < 1
