"""What is exported says the same when it is read again."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from atif_rules import breaches
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.attempt import Attempt, Usage
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    Note,
    Read,
    Session,
    Thought,
    ToolUse,
    Trace,
    Turn,
)
from closeloop.traces import otlp_export, trace_export
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import atif as atif_reader
from closeloop.traces.readers import otlp as otlp_reader
from example_counts import scale_examples

START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
FORMATS = {
    "atif": (trace_export.export_atif, atif_reader),
    "otlp json": (otlp_export.export_otlp, otlp_reader),
}


def again(name: str, of: Attempt | Session, trace: Trace) -> Session:
    """The session that comes back when an export is read."""
    write, reader = FORMATS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported"
        path.write_bytes(write(of, trace))
        assert reader.recognises(FileSource(path))
        source = FileSource(path)
        [session] = list(reader.read(source))
        assert source.skipped == {}
        return session


def told(trace: Trace) -> dict[str, list[Any]]:
    """The events of each lane, without their numbers."""
    found: dict[str, list[Any]] = {lane.id: [] for lane in trace.lanes}
    for event in trace.events:
        found[event.lane].append(msgspec.structs.replace(event, number=0))
    return found


def used(trace: Trace) -> dict[str, list[Turn]]:
    return {lane.id: list(lane.turns) for lane in trace.lanes}


# Any trace

_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_maybe = st.none() | _texts
_oks = st.none() | st.booleans()
_counts = st.none() | st.integers(0, 10_000)
_times = st.none() | st.integers(0, 10**10).map(lambda us: START + timedelta(microseconds=us))
_seconds = st.none() | st.floats(0, 1000, allow_nan=False)
_usages = st.builds(
    Usage,
    input_tokens=_counts,
    output_tokens=_counts,
    cache_read_tokens=_counts,
    cache_write_tokens=_counts,
    reasoning_tokens=_counts,
    cost=st.none() | st.floats(0, 10, allow_nan=False),
)
_turns = st.builds(Turn, usage=_usages, model=st.none() | st.just("m"), at=_times, seconds=_seconds)
_exits = st.none() | st.integers(-1, 255)
_arguments = st.none() | st.dictionaries(_texts, _texts | st.integers(-9, 9), max_size=2)
_intents = st.sampled_from([None, "request", "question", "answer", "claim", "correction"])


def _actions(place: dict[str, Any]) -> st.SearchStrategy[AnyEvent]:
    """What an agent does or says; `place` is where it stands."""
    calls = st.none() | st.sampled_from(["a", "b"])
    base: dict[str, Any] = {key: st.just(value) for key, value in place.items()}
    base |= {"at": _times, "seconds": _seconds, "call": calls}
    exits = {"exit_code": _exits, "exit_from": st.sampled_from([None, "stated", "parsed"])}
    edits = {"before": _maybe, "after": _maybe, "patch": _maybe, "ok": _oks, "error": _maybe}
    kinds = st.sampled_from(["create", "change", "delete", "move"])
    lines = st.none() | st.integers(1, 9)
    names = st.sampled_from(["bash", "read", "search", "ask_user", "task", "finish"]) | _texts
    reads = {"text": _maybe, "first_line": lines, "last_line": lines, "ok": _oks, "error": _maybe}
    return st.one_of(
        st.builds(Message, **base, role=st.just("agent"), text=_texts, intent=_intents),
        st.builds(Thought, **base, text=_texts),
        st.builds(Command, **base, command=_texts, directory=_maybe, output=_maybe, **exits),
        st.builds(Edit, **base, path=_texts, action=kinds, **edits),
        st.builds(Read, **base, path=_texts, **reads),
        st.builds(ToolUse, **base, name=names.filter(bool), arguments=_arguments, output=_maybe),
        st.builds(Handoff, **base, brief=_texts, report=_maybe, ok=_oks),
    )


def _words(place: dict[str, Any]) -> st.SearchStrategy[AnyEvent]:
    """What an agent is told."""
    base: dict[str, Any] = {key: st.just(value) for key, value in place.items() if key != "turn"}
    return st.one_of(
        st.builds(Message, **base, at=_times, role=st.just("user"), text=_texts, intent=_intents),
        st.builds(Message, **base, at=_times, role=st.just("system"), text=_texts),
        st.builds(Note, **base, at=_times, text=_texts, about=_maybe),
    )


@st.composite
def _traces(draw: Any) -> Trace:
    names = ["root", "one", "two"][: draw(st.integers(1, 3))]
    lanes = [
        Lane(
            id=name,
            parent=None if name == "root" else draw(st.sampled_from(names[: names.index(name)])),
            agent=draw(st.sampled_from([None, "helper"])),
            turns=tuple(draw(st.lists(_turns, max_size=3))),
        )
        for name in names
    ]
    reached = dict.fromkeys(names, 0)
    events: list[AnyEvent] = []
    for number in range(1, draw(st.integers(0, 8)) + 1):
        lane = draw(st.sampled_from(lanes))
        place: dict[str, Any] = {"number": number, "lane": lane.id}
        if draw(st.booleans()):
            events.append(draw(_words(place)))
            continue
        turns = len(lane.turns)
        reached[lane.id] = min(turns, reached[lane.id] + draw(st.integers(0, 1)))
        turn = draw(st.sampled_from([None, reached[lane.id] or None]))
        events.append(draw(_actions({**place, "turn": turn})))
    free = lanes[1:]
    for place, event in enumerate(events):
        mine = [lane for lane in free if lane.parent == event.lane]
        if isinstance(event, Handoff) and mine:
            free.remove(mine[0])
            events[place] = msgspec.structs.replace(event, child=mine[0].id)
    return Trace(reader="test", reader_version=1, lanes=tuple(lanes), events=tuple(events))


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=scale_examples(40))
@given(trace=_traces(), system=_maybe)
def test_any_trace_comes_back_as_it_was(name: str, trace: Trace, system: str | None) -> None:
    of = Session(id="s1", agent="someone", trace=trace, system=system or None, exit="gave_up")
    session = again(name, of, trace)
    assert told(session.trace) == told(trace)
    assert used(session.trace) == used(trace)
    assert {lane.id: lane.parent for lane in session.trace.lanes} == {
        lane.id: lane.parent for lane in trace.lanes
    }
    assert (session.id, session.agent, session.system) == ("s1", "someone", system or None)
    assert session.exit == "gave_up"


@settings(deadline=None, max_examples=scale_examples(40))
@given(trace=_traces())
def test_whatever_is_exported_keeps_the_rules_of_atif(trace: Trace) -> None:
    of = Attempt(id="a1", origin="experiment", exit="finished")
    assert breaches(json.loads(trace_export.export_atif(of, trace))) == []


# One trace, to look at


def small() -> tuple[Session, Trace]:
    usage = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=90, cost=0.01)
    events: tuple[AnyEvent, ...] = (
        Message(number=1, lane="root", at=START, role="user", text="Fix it.", intent="request"),
        Thought(number=2, lane="root", turn=1, at=START, text="Look first."),
        Command(
            number=3, lane="root", turn=1, at=START, seconds=1.5, call="c1", command="pytest",
            output="1 failed", exit_code=1, exit_from="stated",
        ),
        Handoff(number=4, lane="root", turn=1, call="c2", brief="Count.", child="one", report="2"),
        Message(number=5, lane="one", turn=1, role="agent", text="2"),
        Edit(number=6, lane="root", turn=1, path="a.py", before="x", after="y", ok=True),
        Message(number=7, lane="root", turn=1, role="agent", text="Done.", intent="claim"),
    )  # fmt: skip
    lanes = (
        Lane(id="root", agent="someone", turns=(Turn(usage=usage, model="m-1", at=START),)),
        Lane(id="one", parent="root", agent="counter", turns=(Turn(model="m-2"),)),
    )
    trace = Trace(reader="test", reader_version=1, lanes=lanes, events=events)
    of = Session(id="s1", agent="someone", trace=trace, usage=usage, summary="Done.")
    return of, trace


def test_atif_tells_the_trace_in_words_that_every_reader_of_atif_knows() -> None:
    document = json.loads(trace_export.export_atif(*small()))
    assert breaches(document) == []
    assert document["schema_version"] == "ATIF-v1.8"
    asked, did, said = document["steps"]
    assert (asked["source"], asked["message"]) == ("user", "Fix it.")
    assert did["reasoning_content"] == "Look first."
    assert did["metrics"]["prompt_tokens"] == 100
    assert did["metrics"]["cached_tokens"] == 90
    assert [call["function_name"] for call in did["tool_calls"]] == ["bash", "task", "edit"]
    assert did["observation"]["results"][0] == {"source_call_id": "c1", "content": "1 failed"}
    assert did["observation"]["results"][1]["subagent_trajectory_ref"] == [{"trajectory_id": "one"}]
    assert said["message"] == "Done."
    assert "metrics" not in said
    [child] = document["subagent_trajectories"]
    assert (child["trajectory_id"], child["agent"]["name"]) == ("one", "counter")
    assert document["final_metrics"]["total_cost_usd"] == 0.01


def test_spans_follow_the_conventions_of_opentelemetry() -> None:
    found = list(otlp_export.spans_from_trace(*small()))
    assert [span.name for span in found] == [
        "invoke_agent someone", "chat m-1", "execute_tool bash", "execute_tool task",
        "execute_tool edit", "invoke_agent counter", "chat m-2",
    ]  # fmt: skip
    chat, handoff, child = found[1], found[3], found[5]
    assert chat.attributes["gen_ai.usage.input_tokens"] == 100
    assert child.parent == handoff.id
    parts = json.loads(chat.attributes["gen_ai.output.messages"])[0]["parts"]
    assert [part["type"] for part in parts] == [
        "reasoning", "tool_call", "tool_call", "tool_call", "text",
    ]  # fmt: skip
    document = json.loads(otlp_export.export_otlp(*small()))
    span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert (len(span["traceId"]), len(span["spanId"])) == (32, 16)
    assert span["startTimeUnixNano"] == "1777896000000000000"


def test_attempts_with_one_session_id_are_as_many_when_they_are_read_again(tmp_path: Path) -> None:
    of, trace = small()
    grown = msgspec.structs.replace(trace, events=trace.events[:-1])
    later = msgspec.structs.replace(of, started=START + timedelta(days=1))
    told = [(of, trace), (of, grown), (later, trace)]
    path = tmp_path / "spans.jsonl"
    path.write_bytes(b"\n".join(otlp_export.export_otlp(*one) for one in [*told, told[0]]))
    found = list(otlp_reader.read(FileSource(path)))
    assert [session.id for session in found] == ["s1"] * 3
    assert [len(session.trace.events) for session in found] == [7, 6, 7]


def test_json_lines_hold_one_event_each() -> None:
    of, trace = small()
    lines = [json.loads(line) for line in trace_export.export_jsonl(of, trace)]
    assert [line["kind"] for line in lines] == [
        "message", "thought", "command", "handoff", "message", "edit", "message",
    ]  # fmt: skip
    assert lines[2] == {
        "attempt": "s1", "kind": "command", "number": 3, "lane": "root", "turn": 1,
        "at": "2026-05-04T12:00:00Z", "seconds": 1.5, "call": "c1", "command": "pytest",
        "output": "1 failed", "exit_code": 1, "exit_from": "stated",
    }  # fmt: skip
