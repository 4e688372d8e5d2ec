"""Langfuse's exports are read as the spans they were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.trace import Command, Handoff, Message, Session, ToolUse
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import langfuse

TRACE = Path(__file__).parent / "fixtures" / "langfuse" / "trace.json"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "otel_genai"


def read(path: Path) -> Session:
    assert langfuse.recognises(FileSource(path))
    [session] = list(langfuse.read(FileSource(path)))
    return session


def written(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_a_trace_is_read_with_its_calls_its_tokens_and_its_words() -> None:
    session = read(TRACE)
    request, command, claim = session.trace.events
    assert isinstance(request, Message)
    assert (request.text, request.intent) == ("What is 12.5 % of 80?", "request")
    assert isinstance(command, Command)
    assert (command.command, command.exit_code, command.exit_from) == (
        "python calc.py",
        1,
        "parsed",
    )
    assert (command.turn, command.call, command.seconds) == (1, "call_1", 0.8)
    assert isinstance(claim, Message)
    assert (claim.turn, claim.intent) == (2, "claim")
    assert (session.agent, session.model, session.system) == ("billing", "m-1", "Compute.")
    assert session.user == "u-1"


def test_kinds_of_tokens_stand_beside_each_other_and_a_provided_cost_goes_first() -> None:
    first, second = read(TRACE).trace.lanes[0].turns
    assert (first.usage.input_tokens, first.usage.cache_read_tokens) == (20, 100)
    assert (first.usage.cost, second.usage.cost) == (0.002, 0.1)
    assert second.usage.input_tokens == 150


def test_a_trace_as_the_api_gives_it_and_observations_alone_tell_the_same(tmp_path: Path) -> None:
    document = json.loads(TRACE.read_text())
    whole = {**document["trace"], "observations": document["observations"]}
    assert read(written(tmp_path / "api.json", whole)) == read(TRACE)
    alone = read(written(tmp_path / "list.json", document["observations"]))
    assert alone.trace.events == read(TRACE).trace.events
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in document["observations"]))
    assert read(lines).trace.events == read(TRACE).trace.events


def test_other_json_is_not_taken_for_a_trace(tmp_path: Path) -> None:
    for other in ({"observations": []}, {"observations": [1, 2]}, {"trace": {"id": "x"}}, []):
        assert not langfuse.recognises(FileSource(written(tmp_path / "other.json", other)))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_every_shared_recording_is_read_once_with_all_its_tools() -> None:
    for path in sorted((SHARED / "langfuse_framework_traces").iterdir()):
        assert [one.name for one in installed_readers() if one.recognises(FileSource(path))] == [
            "langfuse"
        ]
        observations = json.loads(path.read_text())["observations"]
        session = read(path)
        used = [
            event
            for event in session.trace.events
            if isinstance(event, ToolUse | Handoff) and event.seconds is not None
        ]
        tools = [
            one
            for one in observations
            if one["type"] == "TOOL" or "gen_ai.tool.call.id" in json.dumps(one["metadata"])
        ]
        assert len(used) == len(tools)
        assert all(getattr(event, "output", "") is not None for event in used)
        inner = [
            one
            for one in observations
            if one["type"] == "GENERATION"
            and not any(
                other["parentObservationId"] == one["id"] and other["type"] == "GENERATION"
                for other in observations
            )
        ]
        assert sum(len(lane.turns) for lane in session.trace.lanes) == len(inner)
        spent = [one["usageDetails"].get("output") for one in inner]
        assert session.usage.output_tokens == sum(count for count in spent if count)
        texts = [event.text for event in session.trace.events if isinstance(event, Message)]
        assert len(texts) == len(set(texts)), "nothing that is told again is taken again"


def test_thinking_that_is_counted_beside_the_output_is_part_of_it(tmp_path: Path) -> None:
    observation = {
        "id": "o", "traceId": "t", "type": "GENERATION", "startTime": "2025-10-30T08:45:43Z",
        "input": [{"role": "user", "content": "Hi"}], "output": "Hello", "model": "m",
        "usageDetails": {"input": 179, "output": 35, "output_reasoning": 64, "total": 278},
    }  # fmt: skip
    trace = {"id": "t", "name": "Greeter", "observations": [observation]}
    session = read(written(tmp_path / "trace.json", trace))
    assert (session.usage.output_tokens, session.usage.reasoning_tokens) == (99, 64)
    assert session.agent == "Greeter"
