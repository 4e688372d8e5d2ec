from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from closeloop.providers.gemini import decode_gemini, encode_gemini
from closeloop.providers.model_opening import open_model
from closeloop.providers.wire_format import Dialect
from closeloop.records.attempt import Usage
from closeloop.records.errors import MachineFailed
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

TOOL = ToolSpec(name="run", description="Runs.", parameters={"type": "object"})
CALL = ModelToolCall(id="call-1-0", name="run", arguments={"command": "ls"})


def test_a_conversation_is_turns_of_user_and_model() -> None:
    request = ModelRequest(
        system="Be brief.",
        messages=(
            ChatMessage(role="user", text="Look"),
            ChatMessage(role="assistant", text="I look.", calls=(CALL,)),
            ChatMessage(role="tool", call="call-1-0", text="no", failed=True),
            ChatMessage(role="user", text="And?"),
        ),
        tools=(TOOL,),
        temperature=0.5,
        max_tokens=100,
    )
    assert encode_gemini(request, "m", Dialect()) == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Look"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "I look."},
                    {"functionCall": {"name": "run", "args": {"command": "ls"}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "run", "response": {"error": "no"}}},
                    {"text": "And?"},
                ],
            },
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "run",
                        "description": "Runs.",
                        "parametersJsonSchema": {"type": "object"},
                    }
                ]
            }
        ],
        "generationConfig": {"temperature": 0.5, "maxOutputTokens": 100},
    }


def test_a_schema_is_asked_for_in_the_ways_the_server_may_know() -> None:
    request = ModelRequest(messages=(ChatMessage(role="user", text="?"),), schema={"a": 1})
    schema = encode_gemini(request, "m", Dialect())["generationConfig"]
    assert schema == {"responseMimeType": "application/json", "responseJsonSchema": {"a": 1}}
    plain = encode_gemini(request, "m", Dialect(rung="prompt"))
    assert "generationConfig" not in plain
    assert '{"a":1}' in plain["systemInstruction"]["parts"][0]["text"]


def answer(*parts: Any, finish: str = "STOP", **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts)}, "finishReason": finish}], **more}


def test_an_answer_is_words_calls_and_what_was_used() -> None:
    signed = {"functionCall": {"name": "run", "args": {"a": 1}}, "thoughtSignature": "s"}
    parts = ({"text": "Hm.", "thought": True}, {"text": "He"}, {"text": "llo"}, signed)
    counts = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 3,
    }
    reply = decode_gemini(answer(*parts, usageMetadata=counts, modelVersion="m-2"))
    assert (reply.text, reply.stop, reply.model) == ("Hello", "tools", "m-2")
    assert reply.calls == (ModelToolCall(id="", name="run", arguments={"a": 1}),)
    assert reply.echo == list(parts)
    assert reply.usage == Usage(
        input_tokens=45, output_tokens=10, cache_read_tokens=60, reasoning_tokens=3
    )


@pytest.mark.parametrize(
    ("given", "stop"),
    [
        (answer({"text": "x"}), "end"),
        (answer({"text": "x"}, finish="MAX_TOKENS"), "length"),
        (answer(finish="SAFETY"), "refused"),
        ({"promptFeedback": {"blockReason": "OTHER"}}, "refused"),
        ({"candidates": [{"finishReason": "STOP"}]}, "end"),
    ],
)
def test_an_answer_says_why_it_ended(given: dict[str, Any], stop: str) -> None:
    assert decode_gemini(given).stop == stop


@pytest.mark.parametrize(
    "given", [{}, [], None, {"candidates": 7}, {"candidates": [{"content": 1}]}]
)
def test_another_shape_is_the_servers_fault(given: Any) -> None:
    with pytest.raises(MachineFailed):
        decode_gemini(given)


def test_a_call_without_a_name_is_the_servers_fault() -> None:
    with pytest.raises(MachineFailed, match="without a name"):
        decode_gemini(answer({"functionCall": {}}))


def test_the_model_and_the_key_go_where_gemini_wants_them(provider: Any, tmp_path: Path) -> None:
    provider.says(answer({"functionCall": {"name": "run"}}))

    async def go(base: str) -> ModelReply:
        settings = ModelSettings(provider="gemini", model="big", base_url=base)
        environ = {"GEMINI_API_KEY": "secret"}
        model = open_model("mine", settings, Limits(), environ=environ, folder=tmp_path)
        try:
            return await model.reply(ModelRequest(messages=(ChatMessage(role="user", text="?"),)))
        finally:
            await model.close()

    for base in (provider.address, f"{provider.address}/v1beta/"):
        reply = anyio.run(go, base)
        assert reply.calls[0].id == "call-1-0"
    assert provider.paths == ["/v1beta/models/big:generateContent"] * 2
    assert provider.headers[0]["x-goog-api-key"] == "secret"
