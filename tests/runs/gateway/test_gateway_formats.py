from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from gateway_client import (
    FORMATS,
    KEY,
    PARSED,
    Talk,
    calls_of,
    client,
    opened,
    path_of,
    text_of,
    tokens_of,
    upstream,
)

from closeloop.providers.script_server import serve_script
from closeloop.records.attempt import sum_usage
from closeloop.records.settings import ModelSettings
from closeloop.records.trace import ChatMessage, ModelRequest
from patience import ROUNDS

UPSTREAMS = ("scripted", "openai", "anthropic", "gemini")


async def converse(http: httpx.AsyncClient, talk: Talk) -> list[tuple[int, int]]:
    """Two turns, and what the answers say they used."""
    talk.user("Fix the bug")
    first = await talk.turn(http)
    assert text_of(talk.speaks, first) == "I look."
    assert [(name, given) for _, name, given in calls_of(talk.speaks, first)] == [
        ("read", {"path": "a.py"}),
        ("run", {"command": "ls é"}),
    ]
    talk.results(first, "no such file")
    second = await talk.turn(http)
    assert text_of(talk.speaks, second) == "It is gone."
    assert calls_of(talk.speaks, second) == []
    return [tokens_of(talk.speaks, answer) for answer in (first, second)]


@pytest.mark.parametrize("provider_name", UPSTREAMS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("speaks", FORMATS)
def test_every_agent_talks_to_every_provider_and_every_token_is_counted(
    speaks: str, stream: bool, provider_name: str, tmp_path: Path
) -> None:
    async def go() -> None:
        async with serve_script(PARSED) as address:
            settings = None if provider_name == "scripted" else upstream(provider_name, address)
            async with opened(tmp_path, settings) as door, client(door, caged=stream) as http:
                used = await converse(http, Talk(speaks, stream=stream))
        # What the script counts, whatever lies between it and the agent.
        assert used == [(6, 11), (13, 3)]
        counted = [(one.usage.input_tokens, one.usage.output_tokens) for one in door.exchanges]
        assert counted == used
        assert door.usage == sum_usage(each.usage for each in door.exchanges)
        assert [(one.number, one.status, one.cause) for one in door.exchanges] == [
            (1, 200, None),
            (2, 200, None),
        ]

    anyio.run(go)


def test_an_agent_of_ours_goes_through_the_same_door(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as door:
            asked = ModelRequest(messages=(ChatMessage(role="user", text="Hi"),))
            reply = await door.reply(asked)
        (exchange,) = door.exchanges
        assert reply.text == "Hello."
        assert door.usage == reply.usage == exchange.usage
        assert msgspec.json.decode(exchange.request, type=ModelRequest) == asked

    anyio.run(go)


@pytest.mark.parametrize(
    ("speaks", "provider_name"), [(one, "openai" if one == "responses" else one) for one in FORMATS]
)
def test_only_the_models_name_and_the_key_are_changed_on_the_way(
    speaks: str, provider_name: str, provider: Any, tmp_path: Path
) -> None:
    provider.says({"choices": [], "strange": 1})

    async def go() -> None:
        settings = upstream(provider_name, provider.address)
        async with opened(tmp_path, settings) as door, client(door) as http:
            talk = Talk(speaks)
            talk.user("Hello")
            payload = {**talk.payload(), "unheard_of": {"b": [1.50, 10**30], "a": "\ud83d\ude00"}}
            headers = {
                "authorization": "Bearer the-agents-own",
                "x-api-key": "the-agents-own",
                "x-goog-api-key": "the-agents-own",
                "cookie": "the-agents-own",
                "anthropic-beta": "a-beta",
            }
            path = path_of(speaks, stream=False)
            body = json.dumps(payload).encode()
            response = await http.post(path, content=body, headers=headers)
        assert response.json() == {"choices": [], "strange": 1}
        named = {} if speaks == "gemini" else {"model": "big-model"}
        assert provider.asked == [{**json.loads(body), **named}]
        heard = provider.headers[0]
        assert "the-agents-own" not in str(heard)
        assert KEY in str(heard)
        assert heard["anthropic-beta"] == "a-beta"
        wanted = {
            "openai": "/v1/chat/completions",
            "responses": "/v1/responses",
            "anthropic": "/v1/messages?beta=true",
            "gemini": "/v1beta/models/big-model:generateContent",
        }
        assert provider.paths == [wanted[speaks]]

    anyio.run(go)


def test_a_stream_tells_its_usage_to_us_and_not_to_who_did_not_ask(tmp_path: Path) -> None:
    async def go() -> None:
        async with serve_script(PARSED) as address:
            settings = upstream("openai", address)
            async with opened(tmp_path, settings) as door, client(door) as http:
                talk = Talk("openai", stream=True)
                talk.user("Fix the bug")
                payload = talk.payload()
                del payload["stream_options"]
                told = await http.post("/v1/chat/completions", json=payload)
                straight = await http.post(f"{address}/v1/chat/completions", json=payload)
        assert '"usage"' not in told.text
        assert told.content == straight.content.replace(b"small-model", b"big-model")
        assert door.usage.output_tokens == 11

    anyio.run(go)


def test_a_server_that_knows_no_responses_is_asked_in_its_own_way(
    provider: Any, tmp_path: Path
) -> None:
    message = {"role": "assistant", "content": "Hello."}
    answer = {"choices": [{"message": message}], "usage": {"completion_tokens": 2}}
    provider.says((404, {"error": "no such path"}), answer)

    async def go() -> None:
        settings = upstream("openai", provider.address)
        async with opened(tmp_path, settings) as door, client(door) as http:
            for _ in range(2):
                talk = Talk("responses", stream=True)
                talk.user("Hello")
                assert text_of("responses", await talk.turn(http)) == "Hello."
        assert [one.usage.output_tokens for one in door.exchanges] == [2, 2]

    anyio.run(go)
    assert provider.paths == ["/v1/responses", "/v1/chat/completions", "/v1/chat/completions"]


def test_what_a_provider_wants_back_is_given_back_though_the_agent_cannot(
    provider: Any, tmp_path: Path
) -> None:
    call = {"functionCall": {"name": "read", "args": {"path": "a"}}, "thoughtSignature": "c2ln"}
    thought = {"text": "Hm.", "thought": True}
    content = {"role": "model", "parts": [thought, call]}
    provider.says({"candidates": [{"content": content, "finishReason": "STOP"}]})

    async def go() -> None:
        settings = upstream("gemini", provider.address)
        async with opened(tmp_path, settings) as door, client(door) as http:
            talk = Talk("anthropic")
            talk.user("Fix the bug")
            first = await talk.turn(http)
            talk.results(first, "x = 1")
            await talk.turn(http)

    anyio.run(go)
    assert provider.asked[1]["contents"][1]["parts"] == [thought, call]


def test_counting_tokens_is_no_turn_and_costs_nothing(provider: Any, tmp_path: Path) -> None:
    provider.says({"input_tokens": 77}, (404, {}))

    async def go() -> None:
        settings = upstream("anthropic", provider.address)
        payload = {"model": "x", "messages": [{"role": "user", "content": "Hi"}]}
        async with opened(tmp_path, settings) as door, client(door) as http:
            by_provider = await http.post("/v1/messages/count_tokens?beta=true", json=payload)
            guessed = await http.post("/v1/messages/count_tokens", json=payload)
            gemini = await http.post("/v1beta/models/x:countTokens", json={"contents": []})
        assert by_provider.json() == {"input_tokens": 77}
        assert 5 < guessed.json()["input_tokens"] < 50
        assert gemini.json()["totalTokens"] > 0
        assert door.usage.input_tokens is None
        assert len(door.exchanges) == 3

    anyio.run(go)
    assert provider.paths[0] == "/v1/messages/count_tokens?beta=true"


def test_whoever_knocks_hears_that_somebody_is_there(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as door, client(door, caged=True) as http:
            assert (await http.head("/")).status_code == 200
            for path in ("/v1/models", "/models", "/v1beta/models"):
                listed = (await http.get(path)).json()
                assert [one["id"] for one in listed["data"]] == ["careful"]
                assert listed["models"][0]["name"] == "models/careful"
            assert (await http.get("/v1/chat/completions")).status_code == 405
            assert (await http.get("/metrics")).status_code == 404
        assert len(door.exchanges) == 0

    anyio.run(go)


def test_a_slow_answer_shows_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeloop.gateway.live_source.PING_SECONDS", 0.05)
    slow = b"dialogues: [{turns: [{say: At last., delay: 0.3}]}]"

    async def go() -> None:
        (tmp_path / "slow.yaml").write_bytes(slow)
        settings = ModelSettings(provider="scripted", model="slow.yaml")
        async with opened(tmp_path, settings) as door, client(door) as http:
            for speaks in FORMATS:
                talk = Talk(speaks, stream=True)
                talk.user("Hi")
                assert text_of(speaks, await talk.turn(http)) == "At last."
                pings = 0
                for _ in range(1 if speaks == "gemini" else ROUNDS):
                    said = (await talk.ask(http)).text
                    pings = said.count("event: ping") + said.count(": waiting\n\n")
                    if pings:
                        break
                assert (pings > 0) == (speaks != "gemini")

    anyio.run(go)
