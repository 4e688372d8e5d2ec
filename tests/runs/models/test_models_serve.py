from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from closeloop.providers import open_model
from closeloop.providers.script_server import MAX_REQUEST_BYTES, serve_script
from closeloop.providers.scripted_model import ScriptedModel, parse_script
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest, ToolSpec
from patience import PATIENCE

SCRIPT = parse_script(
    b"""
name: careful
dialogues:
  - prompt: bug
    turns:
      - say: I look.
        do: [{read: a.py}, {run: {command: "ls \xc3\xa9"}}]
      - when: no such file
        say: It is gone.
      - say: I found it.
""",
    "careful.yaml",
)
TOOLS = tuple(
    ToolSpec(name=name, description="", parameters={"type": "object", "required": [first]})
    for name, first in (("read", "path"), ("run", "command"))
)
Use = Callable[[httpx.AsyncClient], Awaitable[None]]


def served(use: Use) -> None:
    """Run something against the server."""

    async def go() -> None:
        async with (
            serve_script(SCRIPT) as address,
            httpx.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE) as client,
        ):
            await use(client)

    anyio.run(go)


async def converse(model: Any, outcome: str) -> list[ModelReply]:
    first = ModelRequest(
        system="Be brief.", messages=(ChatMessage(role="user", text="Fix the bug"),), tools=TOOLS
    )
    one = await model.reply(first)
    messages = (
        *first.messages,
        ChatMessage(role="assistant", text=one.text, calls=one.calls),
        *(ChatMessage(role="tool", call=call.id, text=outcome, failed=True) for call in one.calls),
    )
    return [one, await model.reply(ModelRequest(messages=messages, tools=TOOLS))]


@pytest.mark.parametrize(("provider_name", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_our_own_clients_hear_the_same_as_in_process(
    provider_name: Any, path: str, tmp_path: Path
) -> None:
    async def go() -> None:
        async with serve_script(SCRIPT) as address:
            settings = ModelSettings(provider=provider_name, model="m", base_url=address + path)
            model = open_model("mine", settings, Limits(), environ={}, folder=tmp_path)
            for outcome, last in (("no such file", "It is gone."), ("x = 1", "I found it.")):
                far = await converse(model, outcome)
                near = await converse(ScriptedModel(SCRIPT), outcome)
                assert far[1].text == last
                for one, other in zip(far, near, strict=True):
                    assert (one.text, one.stop) == (other.text, other.stop)
                    assert [(c.name, c.arguments) for c in one.calls] == [
                        (c.name, c.arguments) for c in other.calls
                    ]
                    assert one.usage.output_tokens == other.usage.output_tokens
            with pytest.raises(MachineFailed, match=r"careful\.yaml: no dialogue matches 'Hello'"):
                await model.reply(ModelRequest(messages=(ChatMessage(role="user", text="Hello"),)))
            await model.close()

    anyio.run(go)


def streamed(text: str) -> list[tuple[str | None, Any]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if fields and fields["data"] != "[DONE]":
            found.append((fields.get("event"), json.loads(fields["data"])))
    return found


def openai_payload(**more: Any) -> dict[str, Any]:
    function = {"name": "read", "parameters": {"required": ["path"]}}
    return {
        "model": "gpt-9",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Fix the bug"}]},
        ],
        "tools": [{"type": "function", "function": function}],
        **more,
    }


def test_chat_completions_stream_the_same_reply() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        path = "/v1/chat/completions"
        whole = (await client.post(path, json=openai_payload())).json()
        options = {"include_usage": True}
        response = await client.post(path, json=openai_payload(stream=True, stream_options=options))
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.text.endswith("data: [DONE]\n\n")
        chunks = [data for _, data in streamed(response.text)]
        message = whole["choices"][0]["message"]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert [call.pop("index") for call in calls] == [0, 1]
        assert calls == message["tool_calls"]
        assert json.loads(calls[1]["function"]["arguments"]) == {"command": "ls é"}
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
        assert chunks[-1]["usage"] == whole["usage"]
        assert {chunk["model"] for chunk in chunks} == {"gpt-9"}

    served(use)


def test_messages_stream_the_same_reply() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        payload = {
            "model": "claude",
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [{"role": "user", "content": "Fix the bug"}],
            "tools": [{"name": "read", "input_schema": {"required": ["path"]}}],
        }
        path = "/v1/messages?beta=true"
        whole = (await client.post(path, json=payload)).json()
        response = await client.post(path, json={**payload, "stream": True})
        events = streamed(response.text)
        assert all(name == data["type"] for name, data in events)
        assert [name for name, _ in events] == [
            "message_start",
            *["content_block_start", "content_block_delta", "content_block_stop"] * 3,
            "message_delta",
            "message_stop",
        ]
        blocks = []
        for _, data in events:
            if data["type"] == "content_block_start":
                blocks.append(data["content_block"])
            elif data["type"] == "content_block_delta":
                delta = data["delta"]
                if delta["type"] == "text_delta":
                    blocks[-1]["text"] += delta["text"]
                else:
                    blocks[-1]["input"] = json.loads(delta["partial_json"])
        assert blocks == whole["content"]
        assert events[-2][1]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"
        assert events[-2][1]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]

    served(use)


def test_tool_results_and_text_after_them_are_both_heard() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        result = {"type": "tool_result", "tool_use_id": "t"}
        for content in ("no such file", [{"type": "text", "text": "no such file"}]):
            after = [{"type": "text", "text": "Hm."}, {**result, "content": content}]
            messages = [
                {"role": "user", "content": "bug"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "x"}]},
                {"role": "user", "content": after},
            ]
            reply = await client.post("/v1/messages", json={"messages": messages})
            assert reply.json()["content"][0]["text"] == "It is gone."

    served(use)


def test_models_are_listed_and_the_root_is_alive() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        assert (await client.head("/")).status_code == 200
        listed = (await client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["careful"]
        assert (await client.get("/v1/messages")).status_code == 405

    served(use)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_bad_request_is_answered_in_the_formats_own_way(path: str) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for bad in (b"", b"[]", b"{", b"{}", b'{"messages": 1}', b"\xff", b"[" * 9000):
            response = await client.post(path, content=bad)
            assert response.status_code == 400
            assert response.json()["error"]["message"]
        huge = await client.post(path, content=b" " * (MAX_REQUEST_BYTES + 1))
        assert "MB" in huge.json()["error"]["message"]

    served(use)


def test_many_conversations_run_at_once() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        codes = []

        async def one() -> None:
            response = await client.post("/v1/chat/completions", json=openai_payload())
            codes.append(response.status_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(one)
        assert codes == [200] * 50

    served(use)


def test_a_taken_port_is_named_and_a_free_one_is_kept_to_this_machine() -> None:
    async def go() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(BadInput, match=f"port {port}"):
                async with serve_script(SCRIPT, port):
                    pass
        async with serve_script(SCRIPT) as address:
            assert address.startswith("http://127.0.0.1:")
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(address)

    anyio.run(go)


def test_an_error_inside_the_block_ends_the_server_and_comes_out() -> None:
    async def go() -> None:
        async with serve_script(SCRIPT):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        anyio.run(go)


HALF = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"


def test_a_client_that_leaves_in_the_middle_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def use(http: httpx.AsyncClient) -> None:
        for _ in range(3):
            stream = await anyio.connect_tcp("127.0.0.1", http.base_url.port or 0)
            await stream.send(HALF)
            assert (await http.get("/")).status_code == 200
            await stream.aclose()
            assert (await http.get("/")).status_code == 200

    served(use)
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeloop.providers.script_server.BODY_SECONDS", 0.2)

    async def use(http: httpx.AsyncClient) -> None:
        async with await anyio.connect_tcp("127.0.0.1", http.base_url.port or 0) as stream:
            await stream.send(HALF)
            with anyio.fail_after(PATIENCE):
                assert (await stream.receive()).startswith(b"HTTP/1.1 400")

    served(use)
