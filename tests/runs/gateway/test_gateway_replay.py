"""A recorded attempt, played again without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from gateway_client import ENVIRON, FORMATS, Talk, client, opened, shut, text_of, upstream

from closeloop.gateway import Gateway
from closeloop.gateway.replay_source import remove_volatile
from closeloop.providers.provider_streams import read_provider_reply
from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from closeloop.records.trace import ChatMessage, Exchange, ModelRequest
from closeloop.store import open_store

RECORDED = ModelSettings(provider="recorded", model="a1")


async def converse(
    http: httpx.AsyncClient, talk: Talk, output: str = "no such file"
) -> list[bytes]:
    """Two turns; the answers as they came."""
    talk.user("Fix the bug of 2026-11-14 in /tmp/run-8f2k/src, session 0b9f6d1c")
    first = await talk.ask(http)
    whole = read_provider_reply(first.content).answer
    assert whole is not None
    talk.results(whole, output)
    second = await talk.ask(http)
    return [first.content, second.content]


def recorded(folder: Path, speaks: str, *, stream: bool) -> tuple[list[bytes], list[Exchange]]:
    async def go() -> tuple[list[bytes], list[Exchange]]:
        async with opened(folder) as door, client(door) as http:
            answers = await converse(http, Talk(speaks, stream=stream))
        return answers, list(door.exchanges)

    return anyio.run(go)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("speaks", FORMATS)
def test_the_same_agent_hears_the_same_byte_for_byte(
    speaks: str, stream: bool, tmp_path: Path
) -> None:
    answers, exchanges = recorded(tmp_path, speaks, stream=stream)
    with open_store(str(tmp_path / "store.db")) as store:
        attempt = Attempt(id="a1", origin="experiment", exit="finished")
        store.save_attempt(AttemptResult(attempt=attempt, exchanges=exchanges))

        async def go() -> None:
            async with (
                opened(tmp_path, RECORDED, recorded=store.load_exchanges) as door,
                client(door, caged=True) as http,
            ):
                assert await converse(http, Talk(speaks, stream=stream)) == answers
            assert [one.note for one in door.exchanges] == [None, None]
            for now, then in zip(door.exchanges, exchanges, strict=True):
                assert (now.response, now.status) == (then.response, then.status)
                assert now.content_type == then.content_type
                assert now.usage.output_tokens == then.usage.output_tokens
            assert door.usage.cost == 0.0

        anyio.run(go)


def replay(tmp_path: Path, exchanges: list[Exchange], use: Any) -> Any:
    """Do something with a door to a recording."""

    async def go() -> Any:
        async with (
            opened(tmp_path, RECORDED, recorded=lambda _: exchanges) as door,
            client(door) as http,
        ):
            await use(http)
            return door, await shut(door)

    return anyio.run(go)


def test_what_differs_from_run_to_run_makes_no_other_request(tmp_path: Path) -> None:
    answers, exchanges = recorded(tmp_path, "anthropic", stream=False)

    async def use(http: httpx.AsyncClient) -> None:
        talk = Talk("anthropic")
        talk.user("Fix the bug of 2027-01-02 in /tmp/run-xx91/src/a, session 77aa6d1f")
        assert (await talk.ask(http)).content == answers[0]

    door, reason = replay(tmp_path, exchanges, use)
    assert door.exchanges[0].note is None
    assert reason is None


def test_an_upgraded_agent_gets_the_next_answer_and_the_difference_is_told(tmp_path: Path) -> None:
    answers, exchanges = recorded(tmp_path, "anthropic", stream=False)

    async def use(http: httpx.AsyncClient) -> None:
        talk = Talk("anthropic")
        heard = await converse(http, talk, output="x = 1, which is new")
        assert heard == answers

    door, reason = replay(tmp_path, exchanges, use)
    assert door.exchanges[0].note is None
    note = str(door.exchanges[1].note)
    assert note.startswith("Message 3 differs from recorded request 2: ")
    assert "x = 1" in note
    assert "no such fi" in note
    assert reason is None


def test_a_new_system_prompt_and_new_tools_are_told_as_such(tmp_path: Path) -> None:
    answers, exchanges = recorded(tmp_path, "anthropic", stream=False)

    async def use(http: httpx.AsyncClient) -> None:
        talk = Talk("anthropic")
        talk.user("Fix the bug of 2026-11-14 in /tmp/run-8f2k/src, session 0b9f6d1c")
        payload = {**talk.payload(), "system": "Be very brief."}
        assert (await http.post("/v1/messages", json=payload)).content == answers[0]
        payload = talk.payload()
        payload["tools"] = payload["tools"][:1]
        assert (await http.post("/v1/messages", json=payload)).content == answers[1]

    door, _ = replay(tmp_path, exchanges, use)
    assert "The system prompt differs" in str(door.exchanges[0].note)
    assert "The tools differ from recorded request 2: run." in str(door.exchanges[1].note)


def test_an_agent_that_now_streams_or_speaks_otherwise_hears_the_same_words(tmp_path: Path) -> None:
    _, exchanges = recorded(tmp_path, "openai", stream=False)
    for speaks, stream in (("openai", True), ("anthropic", False), ("gemini", True)):
        talk = Talk(speaks, stream=stream)

        async def use(http: httpx.AsyncClient, talk: Talk = talk) -> None:
            talk.user("Fix the bug of 2026-11-14 in /tmp/run-8f2k/src, session 0b9f6d1c")
            answer = await talk.turn(http)
            assert text_of(talk.speaks, answer) == "I look."
            talk.results(answer, "no such file")
            assert text_of(talk.speaks, await talk.turn(http)) == "It is gone."

        door, _ = replay(tmp_path, exchanges, use)
        assert [one.note for one in door.exchanges] == [None, None]


def test_an_agent_that_asks_more_than_was_recorded_ends_as_machine_trouble(tmp_path: Path) -> None:
    _, exchanges = recorded(tmp_path, "anthropic", stream=False)

    async def use(http: httpx.AsyncClient) -> None:
        talk = Talk("anthropic")
        await converse(http, talk)
        talk.user("And now?")
        response = await talk.ask(http)
        assert response.status_code == 400
        assert "no more replies" in response.json()["error"]["message"]

    _, reason = replay(tmp_path, exchanges, use)
    assert isinstance(reason, MachineFailed)
    assert "The recording a1 has no more replies" in str(reason)


def test_conversations_do_not_take_each_others_answers(tmp_path: Path) -> None:
    async def record() -> list[Exchange]:
        async with opened(tmp_path) as door, client(door) as http:
            main, side = Talk("anthropic"), Talk("anthropic")
            main.user("Fix the bug")
            side.user("Give it a title")
            first = await main.turn(http)
            await side.turn(http)
            main.results(first, "no such file")
            await main.turn(http)
        return list(door.exchanges)

    exchanges = anyio.run(record)

    async def use(http: httpx.AsyncClient) -> None:
        main, side = Talk("anthropic"), Talk("anthropic")
        main.user("Fix the bug")
        side.user("Give it a better title")
        first = await main.turn(http)
        main.results(first, "another result")
        assert text_of("anthropic", await main.turn(http)) == "It is gone."
        assert text_of("anthropic", await side.turn(http)) == "Hello."

    door, _ = replay(tmp_path, exchanges, use)
    assert [one.note is None for one in door.exchanges] == [True, False, False]


def test_an_agent_of_ours_is_played_again_too(tmp_path: Path) -> None:
    asked = ModelRequest(messages=(ChatMessage(role="user", text="Hi"),))

    async def go() -> None:
        async with opened(tmp_path) as door:
            reply = await door.reply(asked)
        async with opened(tmp_path, RECORDED, recorded=lambda _: door.exchanges) as again:
            assert (await again.reply(asked)).text == reply.text
            with pytest.raises(MachineFailed, match="no more replies"):
                await again.reply(asked)

    anyio.run(go)


def test_answers_that_were_no_answers_are_not_played(provider: Any, tmp_path: Path) -> None:
    good = {"content": [{"type": "text", "text": "Hi."}], "role": "assistant"}
    provider.says((400, {"error": {"message": "no"}}), good)

    async def go() -> list[Exchange]:
        settings = upstream("anthropic", provider.address)
        async with opened(tmp_path, settings) as door, client(door) as http:
            talk = Talk("anthropic")
            talk.user("Hello")
            await talk.ask(http)
            await talk.ask(http)
        return list(door.exchanges)

    exchanges = anyio.run(go)
    assert [one.status for one in exchanges] == [400, 200]

    async def use(http: httpx.AsyncClient) -> None:
        talk = Talk("anthropic")
        talk.user("Hello")
        assert text_of("anthropic", await talk.turn(http)) == "Hi."

    replay(tmp_path, exchanges, use)


def test_an_attempt_of_which_nothing_was_recorded_cannot_be_played(tmp_path: Path) -> None:
    async def go() -> None:
        async with Gateway(ENVIRON, tmp_path, recorded=lambda _: ()) as gateway:
            with pytest.raises(BadInput, match="No model requests of attempt 'a1'"):
                gateway.prepare_model("recorded:a1", RECORDED, Limits())

    anyio.run(go)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("on 2026-11-15T10:00:01.5Z", "on 2025-01-02"),
        ("Today is Sunday, November 15, 2026", "Today is Monday, March 2, 2027"),
        ("/tmp/closeloop-abc/1 is it", "/var/folders/xy/T/0 is it"),
        ("in 0.03s", "in 12.5 seconds"),
        ("commit 0b9f6d1c2 by", "commit ffff0000aaaa1 by"),
        ("id 8d3f2c4e-1111-4222-8333-944455556666.", "id 00000000-1111-4222-8333-944455556660."),
        ("call_abc123 made", "toolu_01XYZ made"),
        ("at 10:33:46 AM", "at 9:01"),
    ],
)
def test_what_differs_from_run_to_run_is_left_out(one: str, other: str) -> None:
    assert remove_volatile(one) == remove_volatile(other) != one


@pytest.mark.parametrize(
    "text", ["exit code 1", "3 failed", "line 42 of a.py", "deadbeef", "May I?"]
)
def test_what_an_agent_did_is_not_left_out(text: str) -> None:
    assert remove_volatile(text) == text


def test_hostile_texts_are_looked_through_quickly() -> None:
    for text in ("0" * 100_000, "a-" * 50_000, "Jan " * 30_000, "/tmp/" * 30_000, "1:" * 50_000):
        remove_volatile(text)


@pytest.mark.parametrize("speaks", FORMATS)
def test_a_recording_is_called_what_the_agent_calls_its_model(speaks: str, tmp_path: Path) -> None:
    _, exchanges = recorded(tmp_path, speaks, stream=False)

    async def named() -> str:
        async with opened(tmp_path, RECORDED, recorded=lambda _: exchanges) as door:
            return door.name

    name = "gemini-flash-lite" if speaks == "gemini" else "small-model"
    assert anyio.run(named) == name
