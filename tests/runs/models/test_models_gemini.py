from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx

from closeloop.providers.script_server import serve_script
from closeloop.providers.scripted_model import parse_script
from patience import PATIENCE

SCRIPT = parse_script(
    b"""
name: careful
dialogues:
  - prompt: bug
    turns:
      - say: I look.
        do: [{read_file: a.py}, {run: {command: "ls \xc3\xa9"}}]
      - when: no such file
        say: It is gone.
      - say: I found it.
""",
    "careful.yaml",
)
WHOLE = "/v1beta/models/gemini-2.5-pro:generateContent"
STREAM = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
TOOLS = [
    {
        "functionDeclarations": [
            {"name": "read_file", "parametersJsonSchema": {"required": ["file_path"]}},
            {"name": "run", "parameters": {"type": "OBJECT"}},
        ]
    }
]
ASKED = {"role": "user", "parts": [{"text": "Setting: Linux."}, {"text": "Fix the bug"}]}
CALLS = [
    {"functionCall": {"id": "call-1-0", "name": "read_file", "args": {"file_path": "a.py"}}},
    {"functionCall": {"id": "call-1-1", "name": "run", "args": {"command": "ls é"}}},
]


def served(use: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def go() -> None:
        async with (
            serve_script(SCRIPT) as address,
            httpx.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE) as client,
        ):
            await use(client)

    anyio.run(go)


def said(answer: dict[str, Any]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = answer["candidates"][0]["content"]["parts"]
    return parts


def test_a_reply_holds_its_words_and_its_calls() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        reply = await client.post(WHOLE, json={"contents": [ASKED], "tools": TOOLS})
        answer = reply.json()
        assert reply.status_code == 200
        assert said(answer) == [{"text": "I look."}, *CALLS]
        assert answer["candidates"][0]["finishReason"] == "STOP"
        usage = answer["usageMetadata"]
        assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"]
        assert usage["promptTokenCount"] > 0

    served(use)


def test_the_stream_brings_the_same_part_by_part() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        reply = await client.post(STREAM, json={"contents": [ASKED], "tools": TOOLS})
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.text.split("\n\n") if line]
        answers = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert [part for answer in answers for part in said(answer)] == [
            {"text": "I look."},
            *CALLS,
        ]
        ends = [answer["candidates"][0].get("finishReason") for answer in answers]
        assert ends == [None, None, "STOP"]
        assert ["usageMetadata" in answer for answer in answers] == [False, False, True]

    served(use)


def test_results_are_heard_as_output_as_error_and_as_an_object() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for response, last in (
            ({"output": "x = 1"}, "I found it."),
            ({"error": "no such file"}, "It is gone."),
            ({"lines": ["no such file"]}, "It is gone."),
        ):
            result = {"id": "call-1-0", "name": "read_file", "response": response}
            contents = [
                ASKED,
                {"role": "model", "parts": [{"text": "Hm.", "thought": True}, *CALLS]},
                {"role": "user", "parts": [{"functionResponse": result}]},
            ]
            system = {"parts": [{"text": "Be brief."}]}
            payload = {"contents": contents, "systemInstruction": system, "tools": TOOLS}
            answer = (await client.post(WHOLE, json=payload)).json()
            assert said(answer) == [{"text": last}]

    served(use)


def test_what_cannot_be_answered_is_refused_in_the_same_format() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        payloads: list[Any] = [{}, {"contents": 7}, {"contents": [{"parts": [{"text": "Hello"}]}]}]
        for path in (WHOLE, STREAM):
            for payload in payloads:
                reply = await client.post(path, json=payload)
                assert reply.status_code == 400
                assert reply.json()["error"]["status"] == "INVALID_ARGUMENT"

    served(use)
