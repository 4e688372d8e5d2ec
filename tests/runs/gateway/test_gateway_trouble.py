"""Budgets, and providers that fail in every way they can."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from gateway_client import (
    FORMATS,
    KEY,
    PARSED,
    Talk,
    client,
    opened,
    shut,
    text_of,
    until,
    upstream,
)

from closeloop.gateway import Gateway
from closeloop.gateway.attempt_proxy import MAX_BREAKS, AttemptProxy
from closeloop.providers.script_server import serve_script
from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from patience import PATIENCE

GOOD = {
    "role": "assistant",
    "content": [{"type": "text", "text": "Hello."}],
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"role":"assistant",'
    b'"content":[],"model":"m-1","usage":{"input_tokens":30,"output_tokens":1}}}\n\n'
)


def raw(content: bytes, *, close: bool = True) -> Any:
    """Bytes on the wire, then the end of the connection."""

    def send(handler: Any) -> None:
        handler.wfile.write(content)
        handler.wfile.flush()
        if close:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)

    return send


def chunked(*chunks: bytes) -> bytes:
    """The beginning of a stream that never ends well."""
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)


def limited(status: int, **headers: str) -> Any:
    return lambda handler: handler.send(status, b'{"error": {"message": "later"}}', **headers)


def asked_once(
    tmp_path: Path, settings: ModelSettings, speaks: str = "anthropic", *, stream: bool = False
) -> tuple[httpx.Response, AttemptProxy, Fault | OutOfBudget | None]:
    """One request; its answer, the door, and why that is shut, if it is."""

    async def go() -> Any:
        async with opened(tmp_path, settings) as door, client(door) as http:
            talk = Talk(speaks, stream=stream)
            talk.user("Hello")
            return await talk.ask(http), door, await shut(door)

    return anyio.run(go)  # type: ignore[no-any-return]


def message(response: httpx.Response) -> str:
    error: dict[str, Any] = response.json()["error"]
    return str(error["message"])


# Budgets


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(turns=2), "2 of 2 turns are used."),
        (Limits(tokens=10), "18 of 10 tokens are used."),
        (Limits(money=0.0015), "$0.00 of $0.00 are spent."),
    ],
)
@pytest.mark.parametrize("speaks", FORMATS)
def test_a_used_up_budget_is_told_in_the_agents_format_and_not_retried(
    speaks: str, limits: Limits, said: str, tmp_path: Path
) -> None:
    async def go() -> None:
        settings = ModelSettings(
            provider="scripted", model="careful.yaml", input_price=100.0, output_price=100.0
        )
        async with opened(tmp_path, settings, limits) as door, client(door) as http:
            talk = Talk(speaks)
            talk.user("x" * 17)
            for _ in range(2):
                assert text_of(speaks, await talk.turn(http)) == "Hello."
            refused = await talk.ask(http)
            assert refused.status_code == 400
            assert refused.headers["x-should-retry"] == "false"
            assert message(refused) == said
            reason = await door.closed()
            assert isinstance(reason, OutOfBudget)
            assert str(reason) == said
        assert [one.cause for one in door.exchanges] == [None, None, said]
        assert door.exchanges[2].status == 400

    anyio.run(go)


def test_a_money_limit_without_a_price_stops_before_more_is_spent(
    provider: Any, tmp_path: Path
) -> None:
    provider.says(GOOD)

    async def go() -> None:
        settings, limits = upstream("anthropic", provider.address), Limits(money=1.0)
        async with opened(tmp_path, settings, limits) as door, client(door) as http:
            talk = Talk("anthropic")
            talk.user("Hello")
            await talk.turn(http)
            reason = await door.closed()
            assert isinstance(reason, BadInput)
            assert "needs the price of 'big-model'" in str(reason)
            assert (await talk.ask(http)).status_code == 400
        assert len(provider.asked) == 1

    anyio.run(go)


def test_prices_make_the_cost_of_what_passed_through(provider: Any, tmp_path: Path) -> None:
    provider.says(GOOD)
    settings = upstream("anthropic", provider.address, input_price=1e6, output_price=2e6)
    _, door, _ = asked_once(tmp_path, settings)
    assert (door.usage.cost, door.usage.cost_from) == (7.0, "prices")


# Trouble that passes


@pytest.mark.parametrize("stream", [False, True])
def test_passing_trouble_is_not_heard_by_the_agent(
    stream: bool, provider: Any, tmp_path: Path
) -> None:
    overloaded = chunked(b'event: error\ndata: {"type":"error","error":{"message":"busy"}}\n\n')
    ending = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    good = raw(chunked(START, ending) + b"0\r\n\r\n") if stream else GOOD
    provider.says(
        raw(overloaded) if stream else raw(b""),
        limited(429, retry_after="0.01"),
        limited(529, retry_after_ms="1"),
        limited(500, retry_after="0"),
        good,
    )
    settings = upstream("anthropic", provider.address)
    response, door, reason = asked_once(tmp_path, settings, stream=stream)
    assert response.status_code == 200
    assert reason is None
    (exchange,) = door.exchanges
    assert exchange.retries == 4
    assert exchange.cause is None
    assert exchange.seconds >= exchange.first_byte_seconds > 0  # type: ignore[operator]
    assert len(provider.asked) == 5


def test_a_lasting_limit_ends_the_attempt_as_the_providers_fault(
    provider: Any, tmp_path: Path
) -> None:
    provider.says(limited(503, retry_after="0"))
    settings = upstream("anthropic", provider.address, retries=2)
    response, door, reason = asked_once(tmp_path, settings, stream=True)
    assert response.status_code == 400
    assert isinstance(reason, MachineFailed)
    assert "answered 503 Service Unavailable (later) 3 times" in str(reason)
    assert message(response) == str(reason) == door.exchanges[0].cause


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b"{}", "was rejected by"),
        (403, b"{}", "was rejected by"),
        (400, b'{"error": {"details": [{"reason": "API_KEY_INVALID"}]}}', "was rejected by"),
        (402, b"{}", "no credit left"),
        (429, b'{"error": {"code": "insufficient_quota"}}', "no credit left"),
        (400, b'{"error": {"message": "Your credit balance is too low"}}', "no credit left"),
        (404, b"{}", "has no model named 'big-model'"),
    ],
)
@pytest.mark.parametrize("speaks", ["anthropic", "openai"])
def test_what_the_user_must_mend_stops_everything_at_once(
    speaks: str, status: int, body: bytes, said: str, provider: Any, tmp_path: Path
) -> None:
    provider.says(lambda handler: handler.send(status, body))
    response, _, reason = asked_once(tmp_path, upstream("anthropic", provider.address), speaks)
    assert isinstance(reason, BadInput)
    assert said in str(reason)
    assert response.status_code == 400
    assert len(provider.asked) == 1


@pytest.mark.parametrize("speaks", ["anthropic", "openai"])
def test_a_request_the_provider_refuses_is_the_agents_to_mend(
    speaks: str, provider: Any, tmp_path: Path
) -> None:
    wrong = {"type": "error", "error": {"message": f"prompt is too long {KEY}", "k": KEY}}
    provider.says((400, wrong))
    response, door, reason = asked_once(tmp_path, upstream("anthropic", provider.address), speaks)
    assert reason is None
    assert response.status_code == 400
    assert "prompt is too long" in message(response)
    assert KEY not in response.text
    assert "exceeds the context window of big-model" in str(door.exchanges[0].cause)
    if speaks == "anthropic":
        assert response.json()["type"] == "error"


# Answers that break off


@pytest.mark.parametrize("speaks", FORMATS)
def test_a_stream_that_breaks_off_is_told_from_an_agents_failure(
    speaks: str, provider: Any, tmp_path: Path
) -> None:
    provider.says(raw(chunked(START)))
    name = "openai" if speaks == "responses" else speaks
    settings = upstream(name, provider.address)

    async def go() -> None:
        async with opened(tmp_path, settings) as door, client(door) as http:
            for number in range(1, MAX_BREAKS + 1):
                talk = Talk(speaks, stream=True)
                talk.user("Hello")
                response = await talk.ask(http)
                assert response.content.startswith(START)
                assert "during a reply" in response.text.removeprefix(START.decode())
                if number < MAX_BREAKS:
                    assert await shut(door) is None
            with anyio.fail_after(PATIENCE):
                assert isinstance(await door.closed(), MachineFailed)
        assert all("during a reply" in str(one.cause) for one in door.exchanges)
        assert [one.retries for one in door.exchanges] == [0] * MAX_BREAKS
        if speaks == "anthropic":
            assert door.usage.input_tokens == 30 * MAX_BREAKS

    anyio.run(go)


def test_an_answer_after_a_broken_one_makes_it_good(provider: Any, tmp_path: Path) -> None:
    steps = [raw(chunked(START)), GOOD] * MAX_BREAKS
    provider.says(*steps)

    async def go() -> None:
        settings = upstream("anthropic", provider.address)
        async with opened(tmp_path, settings) as door, client(door) as http:
            for _ in steps:
                talk = Talk("anthropic")
                talk.user("Hello")
                await talk.ask(http)
            assert await shut(door) is None

    anyio.run(go)


@pytest.mark.parametrize(
    "content", [b"", b"<html>Sign in</html>", b"certainly", b"\xff\xfe", b"[" * 50_000, b"[]"]
)
def test_garbage_reaches_the_agent_as_it_is_and_counts_nothing(
    content: bytes, provider: Any, tmp_path: Path
) -> None:
    provider.says(lambda handler: handler.send(200, content, content_type="text/strange"))
    response, door, reason = asked_once(tmp_path, upstream("anthropic", provider.address))
    assert response.content == content
    assert response.headers["content-type"] == "text/strange"
    assert reason is None
    assert door.usage.output_tokens is None


def test_garbage_that_must_be_translated_is_the_providers_fault(
    provider: Any, tmp_path: Path
) -> None:
    provider.says(lambda handler: handler.send(200, b"<html>Sign in</html>"))
    response, _, reason = asked_once(tmp_path, upstream("anthropic", provider.address), "openai")
    assert isinstance(reason, MachineFailed)
    assert "replied with a web page" in message(response)


def test_an_endless_answer_is_cut_off(provider: Any, tmp_path: Path) -> None:
    def flood(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(64):
            handler.wfile.write(b" " * (1 << 20))

    provider.says(flood)
    response, door, _ = asked_once(tmp_path, upstream("anthropic", provider.address))
    assert len(response.content) < 10 << 20
    assert "more than 8 MB" in str(door.exchanges[0].cause)


def test_a_provider_that_hangs_is_left_in_time(provider: Any, tmp_path: Path) -> None:
    provider.says(lambda handler: handler.connection.recv(1))
    settings = upstream("anthropic", provider.address, timeout=0.1, retries=0)
    _, _, reason = asked_once(tmp_path, settings)
    assert "did not answer in 0.1 s" in str(reason)


# Agents that leave


def test_an_agent_that_hangs_up_is_not_answered_any_more(provider: Any, tmp_path: Path) -> None:
    gone = []

    def slow(handler: Any) -> None:
        handler.wfile.write(chunked(START))
        handler.wfile.flush()
        handler.connection.settimeout(PATIENCE)
        gone.append(handler.connection.recv(1))

    provider.says(slow)

    async def go() -> None:
        settings = upstream("anthropic", provider.address)
        async with opened(tmp_path, settings) as door:
            async with client(door) as http:
                talk = Talk("anthropic", stream=True)
                talk.user("Hello")
                path, payload = "/v1/messages", talk.payload()
                async with http.stream("POST", path, json=payload) as response:
                    async for _ in response.aiter_raw():
                        break
            await until(lambda: gone)
        (exchange,) = door.exchanges
        assert exchange.cause == "The agent closed the connection before the reply was complete."
        assert exchange.response == START
        assert door.usage.input_tokens == 30

    anyio.run(go)
    assert gone == [b""]


def test_what_is_under_way_when_the_attempt_ends_is_recorded_and_nothing_later(
    provider: Any, tmp_path: Path
) -> None:
    provider.says(lambda handler: handler.connection.recv(1))

    async def ask(http: httpx.AsyncClient, heard: list[httpx.Response]) -> None:
        talk = Talk("anthropic")
        talk.user("Hello")
        heard.append(await talk.ask(http))

    async def go() -> None:
        settings = upstream("anthropic", provider.address)
        heard: list[httpx.Response] = []
        async with anyio.create_task_group() as group:
            async with opened(tmp_path, settings) as door:
                # Both stay open after the door is closed.
                caged, free = client(door, caged=True), client(door)
                for http in [await one.__aenter__() for one in (caged, free)]:
                    group.start_soon(ask, http, heard)
                await until(lambda: len(provider.asked) == 2)
                assert door.busy
            assert not door.busy
            assert len(door.exchanges) == 2
            await until(lambda: len(heard) == 2)
            for one in (caged, free):
                await one.__aexit__(None, None, None)
        assert [message(one) for one in heard] == ["The attempt has ended."] * 2

    anyio.run(go)


def test_a_hundred_doors_are_open_at_once_and_none_pays_for_another(tmp_path: Path) -> None:
    async def one(gateway: Gateway, address: str, number: int, used: dict[int, Any]) -> None:
        settings = upstream("anthropic", address)
        async with (
            gateway.open_proxy("mine", settings, Limits()) as door,
            client(door, caged=True) as http,
        ):
            for _ in range(number % 3 + 1):
                talk = Talk(FORMATS[number % 4], stream=number % 2 == 0)
                talk.user("x" * (number + 1))
                await talk.turn(http)
        used[number] = (len(door.exchanges), door.usage.input_tokens, door.socket, door.address)

    async def go() -> None:
        used: dict[int, Any] = {}
        async with (
            serve_script(PARSED) as address,
            Gateway({"ANTHROPIC_API_KEY": KEY}, tmp_path) as gateway,
            anyio.create_task_group() as group,
        ):
            for number in range(100):
                group.start_soon(one, gateway, address, number, used)
        assert len({row[2] for row in used.values()} | {row[3] for row in used.values()}) == 200
        for number, (count, tokens, _, _) in used.items():
            turns = number % 3 + 1
            assert (count, tokens) == (turns, turns * ((number + 1 + len("Be brief.")) // 4 + 1))

    anyio.run(go)
