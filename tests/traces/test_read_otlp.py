"""OpenTelemetry's spans are read, whatever names their emitter used and however they came."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.trace import Command, Handoff, Message, Note, Session, ToolUse
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import otlp

FIXTURES = Path(__file__).parent / "fixtures" / "otlp"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "otel_genai"
NANO = 10**9


def read(path: Path) -> Session:
    assert otlp.recognises(FileSource(path))
    [session] = list(otlp.read(FileSource(path)))
    return session


def span(number: int, parent: int | None, start: int, **attributes: Any) -> dict[str, Any]:
    """A span of two seconds; names with `__` for dots, values as JSON has them."""
    plain = {name.replace("__", "."): value for name, value in attributes.items()}
    kinds = {str: "stringValue", int: "intValue", bool: "boolValue", float: "doubleValue"}
    values = [
        {"key": name, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
        for name, value in plain.items()
    ]
    told = {
        "traceId": "a" * 32,
        "spanId": f"{number:016x}",
        "name": f"span {number}",
        "startTimeUnixNano": str((1000 + start) * NANO),
        "endTimeUnixNano": str((1002 + start) * NANO),
        "attributes": values,
    }
    return told if parent is None else {**told, "parentSpanId": f"{parent:016x}"}


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": list(spans)}]}]}


def made(tmp_path: Path, *spans: dict[str, Any]) -> Session:
    path = tmp_path / "made.json"
    path.write_text(json.dumps(export(*spans)))
    return read(path)


def words(session: Session) -> list[tuple[str, str]]:
    return [(one.role, one.text) for one in session.trace.events if isinstance(one, Message)]


@pytest.mark.parametrize("name", ["trace.json", "spans.jsonl", "trace.pb"])
def test_a_recorded_run_is_read_with_its_sub_agent_from_every_encoding(name: str) -> None:
    session = read(FIXTURES / name)
    request, failed, handoff, prompt, brief, counted, said, claim = session.trace.events
    child = session.trace.lanes[1].id
    assert (session.agent, session.model, session.system) == ("lead", "scripted", "You lead.")
    assert [(lane.agent, len(lane.turns)) for lane in session.trace.lanes] == [
        ("lead", 3), ("counter", 2),
    ]  # fmt: skip
    assert isinstance(request, Message)
    assert (request.text, request.intent) == ("How long is the report?", "request")
    assert isinstance(failed, Command)
    assert (failed.command, failed.exit_code, failed.turn) == ("cat missing.txt", 1, 1)
    assert isinstance(handoff, Handoff)
    assert (handoff.call, handoff.child) == ("call_2", child)
    assert (handoff.brief, handoff.report) == (
        "Count the lines of the report.", "There are 2 lines.",
    )  # fmt: skip
    assert isinstance(prompt, Note)
    assert (prompt.about, prompt.text) == ("system prompt", "You count.")
    assert {event.lane for event in (prompt, brief, counted, said)} == {child}
    assert isinstance(counted, Command)
    assert (counted.output, counted.exit_code) == ("exit code 0\n2\n", 0)
    assert isinstance(claim, Message)
    assert (claim.intent, claim.turn) == ("claim", 3)
    assert (session.usage.input_tokens, session.usage.output_tokens) == (310, 75)


def test_the_order_in_which_spans_come_and_spans_sent_twice_change_nothing(tmp_path: Path) -> None:
    lines = (FIXTURES / "spans.jsonl").read_text().splitlines()
    random.Random(7).shuffle(lines)
    path = tmp_path / "late.jsonl"
    path.write_text("\n".join([*lines, *lines[:3], "not json", '{"resourceLogs": []}', ""]))
    source = FileSource(path)
    [session] = otlp.read(source)
    assert session.trace.events == read(FIXTURES / "spans.jsonl").trace.events
    assert source.skipped == {"a line that is not JSON": 1, "a line of another kind": 1} | {
        name: count
        for name, count in source.skipped.items()
        if name == "a span of something else than an agent"
    }


def test_an_agent_that_is_named_by_an_id_only_is_unknown(tmp_path: Path) -> None:
    name = "99981f6a-abd1-4d09-9fba-00e2ab172193"
    about = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    assert made(tmp_path, span(1, None, 0, **about)).agent == "unknown agent"
    about["gen_ai.agent.name"] = "weather-agent"
    assert made(tmp_path, span(1, None, 0, **about)).agent == "weather-agent"


def test_exports_with_their_sizes_before_them_are_read(tmp_path: Path) -> None:
    content = (FIXTURES / "trace.pb").read_bytes()
    path = tmp_path / "collected.pb"
    path.write_bytes((len(content).to_bytes(4, "big") + content) * 2)
    assert read(path).trace.events == read(FIXTURES / "trace.pb").trace.events


def test_a_torn_export_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "torn.pb"
    path.write_bytes((FIXTURES / "trace.pb").read_bytes()[:-100])
    source = FileSource(path)
    assert list(otlp.read(source)) == []
    assert source.skipped == {"an export that cannot be read to its end": 1}


def test_ids_in_base64_are_the_same_ids(tmp_path: Path) -> None:
    document = json.loads((FIXTURES / "trace.json").read_text())
    for one in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in one:
                one[key] = base64.b64encode(bytes.fromhex(one[key])).decode()
    path = tmp_path / "base64.json"
    path.write_text(json.dumps(document))
    assert read(path) == read(FIXTURES / "trace.json")


def test_older_names_of_the_conventions_are_known(tmp_path: Path) -> None:
    session = made(
        tmp_path,
        span(
            1, None, 0, gen_ai__system="openai", llm__request__type="chat",
            gen_ai__request__model="m-0", gen_ai__prompt__0__role="system",
            gen_ai__prompt__0__content="Be brief.", gen_ai__prompt__1__role="user",
            gen_ai__prompt__1__content="List.", gen_ai__completion__0__role="assistant",
            gen_ai__completion__0__tool_calls__0__id="c1",
            gen_ai__completion__0__tool_calls__0__name="bash",
            gen_ai__completion__0__tool_calls__0__arguments='{"command": "ls"}',
            gen_ai__usage__prompt_tokens=30, gen_ai__usage__completion_tokens=4,
            gen_ai__usage__cache_read_input_tokens=20,
        ),
        span(
            2, None, 4, llm__request__type="chat", gen_ai__prompt__0__role="user",
            gen_ai__prompt__0__content="List.", gen_ai__prompt__1__role="tool",
            gen_ai__prompt__1__tool_call_id="c1", gen_ai__prompt__1__content="a.txt",
            gen_ai__completion__0__content="There is a.txt.",
        ),
    )  # fmt: skip
    assert words(session) == [("user", "List."), ("agent", "There is a.txt.")]
    [command] = [event for event in session.trace.events if isinstance(event, Command)]
    assert (command.command, command.output, command.exit_code) == ("ls", "a.txt", None)
    assert (session.usage.input_tokens, session.usage.cache_read_tokens) == (10, 20)
    assert session.system == "Be brief."


def test_events_of_spans_are_known_as_messages(tmp_path: Path) -> None:
    one = span(1, None, 0, gen_ai__operation__name="chat")
    one["events"] = [
        {"name": "gen_ai.user.message",
         "attributes": [{"key": "content", "value": {"stringValue": "Hi."}}]},
        {"name": "gen_ai.choice",
         "attributes": [{"key": "message", "value": {"stringValue": '{"content": "Hello."}'}}]},
    ]  # fmt: skip
    assert words(made(tmp_path, one)) == [("user", "Hi."), ("agent", "Hello.")]


def test_the_names_of_openinference_are_known(tmp_path: Path) -> None:
    message = "llm__input_messages__0__message__"
    reply = "llm__output_messages__0__message__"
    tool = f"{reply}tool_calls__0__tool_call__"
    session = made(
        tmp_path,
        span(1, None, 0, openinference__span__kind="AGENT", input__value="Look."),
        span(
            2, 1, 1, openinference__span__kind="LLM", llm__model_name="m-2",
            llm__token_count__prompt=12, llm__token_count__completion=3,
            llm__token_count__prompt_details__cache_read=2,
            **{f"{message}role": "user", f"{message}contents__0__message_content__type": "text",
               f"{message}contents__0__message_content__text": "Look.",
               f"{reply}role": "assistant", f"{tool}id": "c9", f"{tool}function__name": "search",
               f"{tool}function__arguments": '{"query": "x"}'},
        ),
        span(
            3, 1, 5, openinference__span__kind="TOOL", tool__name="search",
            input__value='{"query": "x"}', output__value="nothing",
        ),
        span(4, 1, 9, http__method="GET"),
    )  # fmt: skip
    assert words(session) == [("user", "Look.")]
    [tool_use] = [event for event in session.trace.events if isinstance(event, ToolUse)]
    assert (tool_use.name, tool_use.output, tool_use.call) == ("search", "nothing", "c9")
    assert (session.usage.input_tokens, session.usage.cache_read_tokens) == (10, 2)
    assert session.trace.skipped == {"a span of something else than an agent": 1}


def test_a_reply_told_by_two_spans_around_each_other_is_counted_once(tmp_path: Path) -> None:
    used = {"gen_ai__usage__input_tokens": 10, "gen_ai__usage__output_tokens": 2}
    session = made(
        tmp_path,
        span(1, None, 0, gen_ai__operation__name="chat", **used),
        span(2, 1, 0, gen_ai__operation__name="chat", **used),
    )
    assert session.usage.input_tokens == 10
    assert len(session.trace.lanes[0].turns) == 1


def test_replies_with_one_id_but_other_counts_are_several(tmp_path: Path) -> None:
    shared = {"gen_ai__operation__name": "chat", "gen_ai__response__id": "run-1"}
    session = made(
        tmp_path,
        span(1, None, 0, gen_ai__usage__input_tokens=10, **shared),
        span(2, None, 3, gen_ai__usage__input_tokens=20, **shared),
        span(3, None, 6, gen_ai__usage__input_tokens=20, **shared),
    )
    assert [turn.usage.input_tokens for turn in session.trace.lanes[0].turns] == [10, 20]


def test_what_the_user_says_twice_is_there_twice_and_what_is_told_again_is_not(
    tmp_path: Path,
) -> None:
    def chat(number: int, texts: list[str], answer: str) -> dict[str, Any]:
        roles = ("user", "assistant")
        said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        return span(
            number, None, number, gen_ai__operation__name="chat",
            gen_ai__input__messages=json.dumps(said), gen_ai__output__messages=answer,
        )  # fmt: skip

    session = made(
        tmp_path,
        chat(1, ["go on"], "one"),
        chat(2, ["go on", "one", "go on"], "two"),
        chat(3, ["go on", "one", "go on", "two", "stop"], "three"),
    )
    assert [text for _, text in words(session)] == [
        "go on", "one", "go on", "two", "stop", "three",
    ]  # fmt: skip


def test_a_tool_that_failed_says_so_and_one_of_which_nobody_says_it_does_not(
    tmp_path: Path,
) -> None:
    tools = [span(n, None, n, gen_ai__tool__name=f"t{n}") for n in (1, 2, 3)]
    tools[0]["status"] = {"code": 2, "message": "boom"}
    tools[1]["status"] = {"code": "STATUS_CODE_OK"}
    found = made(tmp_path, *tools).trace.events
    assert [(event.ok, event.output) for event in found if isinstance(event, ToolUse)] == [
        (False, "boom"), (True, None), (None, None),
    ]  # fmt: skip


def test_an_agent_inside_an_agent_without_a_tool_between_is_a_handoff(tmp_path: Path) -> None:
    agent = {"gen_ai__operation__name": "invoke_agent"}
    session = made(
        tmp_path,
        span(1, None, 0, gen_ai__agent__name="lead", **agent),
        span(2, 1, 1, gen_ai__agent__name="lead", **agent),
        span(3, 2, 2, gen_ai__agent__name="helper", input__value="Help.", output__value="Helped.",
             **agent),
    )  # fmt: skip
    [handoff] = [event for event in session.trace.events if isinstance(event, Handoff)]
    assert (handoff.brief, handoff.report, handoff.lane) == ("Help.", "Helped.", "root")
    assert [lane.agent for lane in session.trace.lanes] == ["lead", "helper"]


def test_traces_of_one_conversation_are_one_session_and_others_are_not_sessions(
    tmp_path: Path,
) -> None:
    shared = {"gen_ai__operation__name": "chat", "gen_ai__conversation__id": "talk"}
    one, two = span(1, None, 0, **shared), span(2, None, 5, **shared)
    two["traceId"] = "b" * 32
    other = span(3, None, 0, http__method="GET")
    other["traceId"] = "c" * 32
    path = tmp_path / "three.json"
    path.write_text(json.dumps(export(two, other, one)))
    source = FileSource(path)
    [session] = otlp.read(source)
    assert session.id == "talk"
    assert len(session.trace.lanes[0].turns) == 2
    assert source.skipped == {"a trace without an agent's spans": 1}


def test_spans_around_each_other_end_nowhere_but_are_read(tmp_path: Path) -> None:
    chat = {"gen_ai__operation__name": "chat", "gen_ai__output__messages": "Hi."}
    agent = {"gen_ai__operation__name": "invoke_agent", "gen_ai__agent__name": "a"}
    session = made(tmp_path, span(1, 2, 0, **agent), span(2, 1, 1, **agent), span(3, 1, 2, **chat))
    assert words(session) == [("agent", "Hi.")]


@pytest.mark.parametrize(
    "content", [b"\n\n\nhello", b"\n\x05hello", b"\x00\x00\x00\x05\nhallo", b""]
)
def test_other_bytes_are_not_taken_for_protobuf(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert not otlp.recognises(FileSource(path))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_the_shared_trace_is_read_and_its_schema_is_not() -> None:
    path = SHARED / "agentv_nested_subagent.json"
    assert [one.name for one in installed_readers() if one.recognises(FileSource(path))] == ["otlp"]
    session = read(path)
    assert [lane.agent for lane in session.trace.lanes] == ["codex", "config-inspector"]
    [handoff] = [event for event in session.trace.events if isinstance(event, Handoff)]
    assert handoff.child == session.trace.lanes[1].id
    for schema in (SHARED / "schema").iterdir():
        assert not any(one.recognises(FileSource(schema)) for one in installed_readers())


def _with_events(told: dict[str, Any], *events: tuple[str, dict[str, str]]) -> dict[str, Any]:
    listed = [
        {
            "name": name,
            "attributes": [{"key": k, "value": {"stringValue": v}} for k, v in given.items()],
        }
        for name, given in events
    ]
    return {**told, "events": listed}


def test_an_event_of_a_tools_span_is_its_result(tmp_path: Path) -> None:
    tool = span(2, 1, 1, gen_ai__operation__name="execute_tool", gen_ai__tool__name="look",
                gen_ai__tool__call__arguments='{"at": "x"}')  # fmt: skip
    message = ("gen_ai.tool.message", {"role": "tool", "content": "seen", "id": "c"})
    session = made(
        tmp_path,
        span(1, None, 0, gen_ai__operation__name="invoke_agent"),
        _with_events(tool, message),
    )
    [event] = session.trace.events
    assert isinstance(event, ToolUse)
    assert (event.arguments, event.output) == ({"at": "x"}, "seen")


def test_strands_says_with_a_tools_message_what_the_tool_is_given(tmp_path: Path) -> None:
    tool = span(2, 1, 1, gen_ai__operation__name="execute_tool", gen_ai__tool__name="look")
    message = ("gen_ai.tool.message", {"role": "tool", "content": '{"at": "x"}', "id": "c"})
    choice = ("gen_ai.choice", {"message": '[{"text": "seen"}]', "id": "c"})
    session = made(
        tmp_path,
        span(1, None, 0, gen_ai__operation__name="invoke_agent"),
        _with_events(tool, message, choice),
    )
    [event] = session.trace.events
    assert isinstance(event, ToolUse)
    assert (event.arguments, event.output) == ({"at": "x"}, "seen")


SDK = {
    "name": "execute_tool bash",
    "context": {"trace_id": "0x" + "b" * 32, "span_id": "0x" + "1" * 16},
    "parent_id": None,
    "start_time": "2026-03-01T20:47:18.711501Z",
    "end_time": "2026-03-01T20:47:20.711501Z",
    "status": {"status_code": "ERROR", "description": "it failed"},
    "attributes": {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "bash",
        "gen_ai.tool.call.arguments": '{"command": "make"}',
    },
    "resource": {"attributes": {"service.name": "maker"}},
}


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([SDK]),
        json.dumps({"spans": [SDK]}),
        json.dumps(SDK) + "\n" + json.dumps(SDK) + "\n",
        json.dumps(SDK, indent=4) + "\n" + json.dumps(SDK, indent=4) + "\n",
    ],
    ids=["a list", "an object", "a line each", "printed"],
)
def test_spans_as_a_program_prints_them_are_read(content: str, tmp_path: Path) -> None:
    path = tmp_path / "spans"
    path.write_text(content)
    assert [one.name for one in installed_readers() if one.recognises(FileSource(path))] == ["otlp"]
    session = read(path)
    (command,) = session.trace.events
    assert isinstance(command, Command)
    assert (command.command, command.output, command.seconds) == ("make", "it failed", 2.0)
    assert session.agent == "maker"


def test_a_printed_span_without_an_end_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "spans"
    path.write_text(json.dumps(SDK, indent=4) + "\n" + json.dumps(SDK, indent=4)[:300])
    source = FileSource(path)
    assert len(list(otlp.read(source))) == 1
    assert source.skipped["a span that does not end"] == 1


def test_a_call_that_is_named_later_is_told_once(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
    history = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "additional_kwargs": {"tool_calls": [call]}},
        {"role": "tool", "tool_call_id": "c", "content": '[{"url": "u"}]'},
        {"role": "tool", "content": {"type": "function", "function": {"parameters": {}}}},
    ]
    used = {"gen_ai__tool__name": "look", "gen_ai__tool__call__arguments": '{"at":1}'}
    session = made(
        tmp_path,
        span(1, None, 0, gen_ai__operation__name="execute_tool", **used),
        span(
            2, None, 5, gen_ai__operation__name="chat", gen_ai__input__messages=json.dumps(history)
        ),
    )
    tool = next(event for event in session.trace.events if isinstance(event, ToolUse))
    assert len(session.trace.events) == 2
    assert (tool.call, tool.output) == ("c", '[{"url": "u"}]')


def test_a_message_in_a_tools_name_is_its_result(tmp_path: Path) -> None:
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    history = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "look", "content": "It is sunny."},
    ]
    told = {"gen_ai__input__messages": json.dumps(history)}
    session = made(tmp_path, span(1, None, 0, gen_ai__operation__name="chat", **told))
    (tool,) = session.trace.events
    assert isinstance(tool, ToolUse)
    assert tool.output == "It is sunny."


def test_a_handoff_has_its_brief_and_its_return_from_the_lane_it_opened(tmp_path: Path) -> None:
    asked = json.dumps([{"role": "user", "content": "Weather?"}])
    said = json.dumps([{"role": "assistant", "content": "Sunny."}])
    session = made(
        tmp_path,
        span(1, None, 0, gen_ai__operation__name="invoke_agent", gen_ai__agent__name="outer"),
        span(2, 1, 1, gen_ai__operation__name="invoke_agent", gen_ai__agent__name="inner"),
        span(3, 2, 2, gen_ai__operation__name="chat", gen_ai__input__messages=asked,
             gen_ai__output__messages=said),
    )  # fmt: skip
    handoff = session.trace.events[0]
    assert isinstance(handoff, Handoff)
    assert (handoff.brief, handoff.report) == ("Weather?", "Sunny.")


def test_a_call_that_the_history_names_otherwise_is_told_once(tmp_path: Path) -> None:
    def call(name: str) -> dict[str, Any]:
        part = {"type": "tool_call", "id": name, "name": "look", "arguments": {"at": 1}}
        return {"role": "assistant", "parts": [part]}

    result = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "a", "response": "x"}]}
    chat = {"gen_ai__operation__name": "chat"}
    spoken = {"gen_ai__output__messages": json.dumps([call("a")])}
    history = {"gen_ai__input__messages": json.dumps([call("item-1"), result])}
    again = {"gen_ai__input__messages": json.dumps([call("item-1"), result, call("item-2")])}
    session = made(
        tmp_path,
        span(1, None, 0, **chat, **spoken),
        span(2, None, 5, **chat, **history),
        span(3, None, 9, **chat, **again),
    )
    found = [(one.call, one.output) for one in session.trace.events if isinstance(one, ToolUse)]
    assert found == [("a", "x"), ("item-2", None)]


def test_spans_whose_ids_are_numbers_and_whose_calls_have_none_are_read(tmp_path: Path) -> None:
    def plain(number: int, name: str, **given: Any) -> dict[str, Any]:
        context = {"trace_id": 7, "span_id": number}
        return {"name": name, "context": context, "parent": {"span_id": 9}, "attributes": given}

    asked = '[{"tool.name": "bash", "tool.args": {"command": "ls"}}]'
    spans = [
        plain(1, "call_llm", **{"gen_ai.operation.name": "call_llm", "gen_ai.output": asked}),
        plain(2, "x", **{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "bash",
                         "gen_ai.tool.args": '{"command": "ls"}', "gen_ai.output": "a.py"}),
        plain(9, "x", **{"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "any"}),
    ]  # fmt: skip
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"spans": spans}))
    session = read(path)
    (command,) = session.trace.events
    assert isinstance(command, Command)
    assert (command.command, command.output, session.agent) == ("ls", "a.py", "any")


@pytest.mark.parametrize("converted", [False, True])
def test_actions_that_are_code_have_their_results(converted: bool, tmp_path: Path) -> None:
    """As smolagents tells them to its model, with its own roles or those of the provider."""
    calls, results = ("assistant", "user") if converted else ("tool-call", "tool-response")
    code = "print(1 + 1)"
    call = {"id": "call_1", "type": "function"} | {
        "function": {"name": "python_interpreter", "arguments": code}
    }
    dialogue = [
        ("user", "New task:\nAdd."),
        ("assistant", f"Thought: I add.\nCode:\n```py\n{code}\n```<end_code>"),
        (calls, f"Calling tools:\n{[call]}"),
        (results, "Call id: call_1\nObservation:\nExecution logs:\n2"),
        (calls, f"Calling tools:\n{[call | {'id': 'call_2'}]}"),
        (results, "Observation:\nExecution logs:\n2"),
    ]
    given: dict[str, Any] = {}
    for number, (role, text) in enumerate(dialogue):
        prefix = f"llm__input_messages__{number}__message__"
        given |= {
            f"{prefix}role": role,
            f"{prefix}contents__0__message_content__type": "text",
            f"{prefix}contents__0__message_content__text": text,
        }
    answer = {
        "llm__output_messages__0__message__role": "assistant",
        "llm__output_messages__0__message__content": "It is 2.",
    }
    agent = span(1, None, 0, openinference__span__kind="AGENT")
    first = span(2, 1, 1, openinference__span__kind="LLM", **given, **answer)
    again = span(3, 1, 4, openinference__span__kind="LLM", **given, **answer)
    session = made(tmp_path, agent, first, again)
    tools = [event for event in session.trace.events if isinstance(event, ToolUse)]
    assert [(one.name, one.arguments, one.output) for one in tools] == [
        ("python_interpreter", {"input": code}, "Execution logs:\n2")
    ] * 2
    assert not [event for event in session.trace.events if isinstance(event, Note)]
    assert [text for role, text in words(session) if role == "user"] == ["New task:\nAdd."]


def test_arguments_that_only_the_tools_span_has_are_the_calls(tmp_path: Path) -> None:
    said = json.dumps(
        [{"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "bash"}]}]
    )
    agent = span(1, None, 0, gen_ai__operation__name="invoke_agent")
    reply = span(2, 1, 1, gen_ai__operation__name="chat", gen_ai__output__messages=said)
    given = {"gen_ai__tool__call__arguments": json.dumps({"command": "ls"})}
    tool = span(3, 1, 4, gen_ai__operation__name="execute_tool", gen_ai__tool__name="bash",
                gen_ai__tool__call__id="c", gen_ai__tool__call__result="a.py", **given)  # fmt: skip
    (ran,) = [one for one in made(tmp_path, agent, reply, tool).trace.events if one.call]
    assert isinstance(ran, Command)
    assert (ran.command, ran.output) == ("ls", "a.py")
