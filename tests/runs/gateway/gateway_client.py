"""Agents of the tests: each speaks one format over HTTP, and holds its conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx

from closeloop.gateway import Gateway
from closeloop.gateway.attempt_proxy import AttemptProxy
from closeloop.providers.provider_streams import read_provider_reply
from closeloop.providers.scripted_model import parse_script
from closeloop.records.errors import Fault, OutOfBudget
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from patience import PATIENCE

SCRIPT = b"""
name: careful
dialogues:
  - prompt: bug
    turns:
      - say: I look.
        do: [{read: a.py}, {run: {command: "ls \xc3\xa9"}}]
      - when: no such file
        say: It is gone.
      - say: I found it.
  - turns:
      - say: Hello.
        repeat: true
"""
PARSED = parse_script(SCRIPT, "careful.yaml")
FORMATS = ("openai", "responses", "anthropic", "gemini")
KEY = "sk-test-Zx81qLmN0pR7tUvW3yB5"
ENVIRON = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "GEMINI_API_KEY": KEY}


@asynccontextmanager
async def opened(
    folder: Path,
    settings: ModelSettings | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> AsyncIterator[AttemptProxy]:
    """A door to a model, the scripted one when none is named."""
    (folder / "careful.yaml").write_bytes(SCRIPT)
    settings = settings or ModelSettings(provider="scripted", model="careful.yaml")
    async with (
        Gateway(ENVIRON, folder, **options) as gateway,
        gateway.open_proxy("mine", settings, limits or Limits()) as door,
    ):
        yield door


async def until(happened: Callable[[], object]) -> None:
    """Wait for something that another thread or task does."""
    with anyio.fail_after(PATIENCE):
        while not happened():  # noqa: ASYNC110
            await anyio.sleep(0.005)


async def shut(door: AttemptProxy) -> OutOfBudget | Fault | None:
    """Why a door is shut; None when it stays open for a moment."""
    reasons: list[OutOfBudget | Fault] = []

    async def note() -> None:
        reasons.append(await door.closed())

    async with anyio.create_task_group() as group:
        group.start_soon(note)
        # Several waits: a machine that stands still in one of them loses nothing.
        for _ in range(10):
            if not reasons:
                await anyio.sleep(0.005)
        group.cancel_scope.cancel()
    return reasons[0] if reasons else None


def upstream(provider: Any, address: str, **more: Any) -> ModelSettings:
    """Settings of a model on this machine."""
    base = f"{address}/v1" if provider == "openai" else address
    return ModelSettings(provider=provider, model="big-model", base_url=base, **more)


@asynccontextmanager
async def client(door: AttemptProxy, *, caged: bool = False) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP to a door, by its socket or by its address."""
    transport = httpx.AsyncHTTPTransport(uds=door.socket) if caged else None
    base = "http://gateway" if caged else door.address
    async with httpx.AsyncClient(
        base_url=base, transport=transport, trust_env=False, timeout=PATIENCE
    ) as http:
        yield http


def path_of(speaks: str, stream: bool) -> str:
    if speaks == "gemini":
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"/v1beta/models/gemini-flash-lite:{method}"
    return {
        "openai": "/v1/chat/completions",
        "responses": "/v1/responses",
        "anthropic": "/v1/messages?beta=true",
    }[speaks]


class Talk:
    """A conversation in one format."""

    def __init__(self, speaks: str, *, stream: bool = False) -> None:
        self.speaks = speaks
        self.stream = stream
        self.said: list[dict[str, Any]] = []

    def user(self, text: str) -> None:
        match self.speaks:
            case "gemini":
                self.said.append({"role": "user", "parts": [{"text": text}]})
            case "responses":
                part = {"type": "input_text", "text": text}
                self.said.append({"type": "message", "role": "user", "content": [part]})
            case _:
                self.said.append({"role": "user", "content": text})

    def results(self, answer: dict[str, Any], output: str) -> None:
        """The answer, and the same result for each of its calls."""
        calls = calls_of(self.speaks, answer)
        match self.speaks:
            case "openai":
                self.said.append(answer["choices"][0]["message"])
                for call, _, _ in calls:
                    self.said.append({"role": "tool", "tool_call_id": call, "content": output})
            case "responses":
                self.said += answer["output"]
                for call, _, _ in calls:
                    result = {"type": "function_call_output", "call_id": call, "output": output}
                    self.said.append(result)
            case "anthropic":
                self.said.append({"role": "assistant", "content": answer["content"]})
                blocks = [
                    {"type": "tool_result", "tool_use_id": call, "content": output}
                    for call, _, _ in calls
                ]
                self.said.append({"role": "user", "content": blocks})
            case "gemini":
                self.said.append(answer["candidates"][0]["content"])
                parts = [
                    {"functionResponse": {"id": call, "name": name, "response": {"output": output}}}
                    for call, name, _ in calls
                ]
                self.said.append({"role": "user", "parts": parts})

    def payload(self) -> dict[str, Any]:
        tools = [("read", "path"), ("run", "command")]
        schemas = [(name, {"type": "object", "required": [first]}) for name, first in tools]
        match self.speaks:
            case "gemini":
                declared = [{"name": n, "parametersJsonSchema": s} for n, s in schemas]
                return {
                    "contents": self.said,
                    "systemInstruction": {"parts": [{"text": "Be brief."}]},
                    "tools": [{"functionDeclarations": declared}],
                }
            case "anthropic":
                return {
                    "model": "small-model",
                    "max_tokens": 1000,
                    "system": "Be brief.",
                    "messages": self.said,
                    "tools": [{"name": n, "input_schema": s} for n, s in schemas],
                    "stream": self.stream,
                }
            case "responses":
                return {
                    "model": "small-model",
                    "instructions": "Be brief.",
                    "input": self.said,
                    "tools": [{"type": "function", "name": n, "parameters": s} for n, s in schemas],
                    "stream": self.stream,
                }
        functions = [{"name": n, "parameters": s} for n, s in schemas]
        return {
            "model": "small-model",
            "messages": [{"role": "system", "content": "Be brief."}, *self.said],
            "tools": [{"type": "function", "function": function} for function in functions],
            "stream": self.stream,
            **({"stream_options": {"include_usage": True}} if self.stream else {}),
        }

    async def ask(self, http: httpx.AsyncClient, **headers: str) -> httpx.Response:
        return await self.send(http, self.payload(), **headers)

    async def send(
        self, http: httpx.AsyncClient, payload: dict[str, Any], **headers: str
    ) -> httpx.Response:
        return await http.post(
            path_of(self.speaks, self.stream),
            json=payload,
            headers={"authorization": "Bearer the-agents-own", "x-api-key": "x", **headers},
        )

    async def turn(self, http: httpx.AsyncClient) -> dict[str, Any]:
        """The answer as it would be without streaming."""
        response = await self.ask(http)
        assert response.status_code == 200, response.text
        streams = response.headers["content-type"].startswith("text/event-stream")
        assert streams == self.stream
        whole = read_provider_reply(response.content)
        assert whole.complete
        assert whole.answer is not None
        return whole.answer


def text_of(speaks: str, answer: dict[str, Any]) -> str:
    match speaks:
        case "openai":
            return answer["choices"][0]["message"].get("content") or ""
        case "anthropic":
            parts = answer["content"]
        case "gemini":
            parts = answer["candidates"][0]["content"]["parts"]
        case _:
            items = [item for item in answer["output"] if item["type"] == "message"]
            parts = [part for item in items for part in item["content"]]
    return "".join(part.get("text", "") for part in parts)


def calls_of(speaks: str, answer: dict[str, Any]) -> list[tuple[str, str, Any]]:
    match speaks:
        case "openai":
            calls = answer["choices"][0]["message"].get("tool_calls") or []
            return [
                (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
                for c in calls
            ]
        case "responses":
            items = [item for item in answer["output"] if item["type"] == "function_call"]
            return [(i["call_id"], i["name"], json.loads(i["arguments"])) for i in items]
        case "anthropic":
            blocks = [block for block in answer["content"] if block["type"] == "tool_use"]
            return [(b["id"], b["name"], b["input"]) for b in blocks]
    parts = answer["candidates"][0]["content"]["parts"]
    found = [part["functionCall"] for part in parts if "functionCall" in part]
    return [(call["id"], call["name"], call["args"]) for call in found]


def tokens_of(speaks: str, answer: dict[str, Any]) -> tuple[int, int]:
    if speaks == "gemini":
        usage = answer["usageMetadata"]
        return usage["promptTokenCount"], usage["candidatesTokenCount"]
    usage = answer["usage"]
    if speaks == "openai":
        return usage["prompt_tokens"], usage["completion_tokens"]
    return usage["input_tokens"], usage["output_tokens"]
