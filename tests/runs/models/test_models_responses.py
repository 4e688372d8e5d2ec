from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx
import pytest

from closeloop.providers import responses
from closeloop.providers.script_server import serve_script
from closeloop.providers.scripted_model import parse_script
from patience import PATIENCE

SCRIPT = parse_script(
    b"""
name: careful
dialogues:
  - prompt: "Fix the bug"
    turns:
      - say: I look.
        do: [{read: a.py}, {apply_patch: "*** Begin Patch"}, {team.ask: {"to": "ann"}}]
      - when: no such file
        say: It is gone.
      - say: I found it.
  - prompt: REVIEW
    turns: [{say: It is right.}]
""",
    "careful.yaml",
)
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "read", "parameters": {"required": ["path"]}},
    {"type": "custom", "name": "apply_patch", "description": "Free text."},
    {"type": "namespace", "name": "team", "tools": [{"type": "function", "name": "ask"}]},
    {"type": "web_search"},
]
PATH = "/v1/responses"
Use = Callable[[httpx.AsyncClient], Awaitable[None]]


def served(use: Use) -> None:
    async def go() -> None:
        async with (
            serve_script(SCRIPT) as address,
            httpx.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE) as client,
        ):
            await use(client)

    anyio.run(go)


def user(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


def payload(*more: dict[str, Any], **options: Any) -> dict[str, Any]:
    said = [user("<environment_context/>"), user("Fix the bug"), *more]
    return {"model": "gpt-9", "instructions": "Be brief.", "tools": TOOLS, "input": said, **options}


def streamed(text: str) -> list[dict[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if fields:
            data = json.loads(fields["data"])
            assert data["type"] == fields["event"]
            found.append(data)
    return found


def test_a_reply_has_a_message_and_calls_of_each_kind() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        reply = (await client.post(PATH, json=payload())).json()
        message, read, patch, ask = reply["output"]
        assert (reply["object"], reply["status"]) == ("response", "completed")
        assert message["content"][0]["text"] == "I look."
        assert (read["type"], json.loads(read["arguments"])) == ("function_call", {"path": "a.py"})
        assert (patch["type"], patch["input"]) == ("custom_tool_call", "*** Begin Patch")
        assert (ask["namespace"], ask["name"]) == ("team", "ask")
        assert len({item["call_id"] for item in (read, patch, ask)}) == 3
        usage = reply["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0

    served(use)


def test_the_stream_tells_the_same_reply_piece_by_piece() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        whole = (await client.post(PATH, json=payload())).json()
        response = await client.post(PATH, json=payload(stream=True))
        assert response.headers["content-type"].startswith("text/event-stream")
        events = streamed(response.text)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[0]["type"] == "response.created"
        assert events[0]["response"]["output"] == []
        assert events[-1] == {
            "type": "response.completed",
            "sequence_number": len(events) - 1,
            "response": whole,
        }
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        assert done == whole["output"]
        begun = [e["item"] for e in events if e["type"] == "response.output_item.added"]
        assert {item["status"] for item in begun} == {"in_progress"}
        deltas = [e["delta"] for e in events if e["type"].endswith(".delta")]
        assert deltas == ["I look.", '{"path":"a.py"}', "*** Begin Patch", '{"to":"ann"}']

    served(use)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("no such file", "It is gone."),
        ([{"type": "input_text", "text": "no such file"}], "It is gone."),
        ("x = 1", "I found it."),
    ],
)
def test_the_next_turn_follows_from_what_came_back(output: Any, said: str) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        first = (await client.post(PATH, json=payload())).json()["output"]
        results = [
            {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": output}
            for item in first[1:]
        ]
        reasoning = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
        second = await client.post(PATH, json=payload(reasoning, *first, *results))
        assert [item["content"][0]["text"] for item in second.json()["output"]] == [said]

    served(use)


def test_what_an_agent_hands_to_another_is_heard_as_its_request() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        hidden = {"type": "encrypted_content", "encrypted_content": "REVIEW it."}
        shown = {"type": "input_text", "text": "Payload:"}
        letter = {"type": "agent_message", "author": "/root", "content": [shown, hidden]}
        tools = {"type": "additional_tools", "role": "developer", "tools": TOOLS}
        reply = await client.post(PATH, json={"input": [tools, user("<context/>"), letter]})
        assert reply.json()["output"][0]["content"][0]["text"] == "It is right."

    served(use)


def test_requests_are_read_as_a_conversation() -> None:
    call = {"type": "function_call", "name": "ask", "namespace": "team", "call_id": "c"}
    asked = responses.read_responses_request(
        {
            "input": [
                {"role": "developer", "content": "Be careful."},
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
                {**call, "arguments": "not JSON"},
                {"type": "function_call_output", "call_id": "c", "output": "ann"},
            ],
            "instructions": "Be brief.",
            "tools": TOOLS,
        }
    )
    assert asked.system == "Be brief.\n\nBe careful."
    assert [(m.role, m.text) for m in asked.messages] == [
        ("user", "Hello"),
        ("assistant", "Hm."),
        ("tool", "ann"),
    ]
    assert [(c.name, c.arguments) for c in asked.messages[1].calls] == [("team.ask", {})]
    assert [tool.name for tool in asked.tools] == ["read", "apply_patch", "team.ask"]
    assert responses.read_responses_request({"input": "Hello"}).messages[0].text == "Hello"


def test_a_bad_request_is_answered_in_the_formats_own_way() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for bad in (b"", b"[]", b"{", b"{}", b'{"input": 1}', b'{"input": [{"type": 1}]}'):
            response = await client.post(PATH, content=bad)
            assert response.status_code == 400
            assert response.json()["error"]["message"]
        unknown = await client.post(PATH, json={"input": "Hello"})
        assert "no dialogue matches 'Hello'" in unknown.json()["error"]["message"]

    served(use)
