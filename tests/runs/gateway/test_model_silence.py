"""When a model counts as silent at the end of an attempt, and when it was only slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from gateway_client import Talk, client, opened, until, upstream

from closeloop.gateway.attempt_proxy import RequestWait, describe_silence
from closeloop.providers.provider_connection import is_keep_alive

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"role":"assistant",'
    b'"content":[],"model":"m-1","usage":{"input_tokens":30,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
)
LIMIT = 1800.0


def answered(began: float, ended: float) -> RequestWait:
    return RequestWait(began=began, ended=ended, answered=True)


def vain(began: float, ended: float, **more: Any) -> RequestWait:
    return RequestWait(began=began, ended=ended, answered=False, **more)


@pytest.mark.parametrize(
    ("waits", "silent"),
    [
        pytest.param([], False, id="an agent that never asked"),
        pytest.param([vain(5, 1800)], True, id="no answer at all"),
        pytest.param([vain(5, 1800, is_talking=True)], True, id="an answer without an end"),
        pytest.param([vain(5, 6)], False, id="asked once, hung up, and did other things"),
        pytest.param([answered(0, 5), vain(900, 1800)], True, id="answers, then none"),
        pytest.param([answered(0, 5)], False, id="answers, then commands of its own"),
        pytest.param([answered(0, 5), vain(1700, 1800)], False, id="silent, but not for long"),
        pytest.param(
            [answered(0, 5), vain(1500, 1800)], False, id="commands for most of the time since"
        ),
        pytest.param(
            [answered(0, 400), answered(400, 800), vain(801, 1800)],
            False,
            id="slow, and answering: a thousand seconds are not three times four hundred",
        ),
        pytest.param(
            [answered(0, 400), answered(400, 800), vain(801, 1800, refusal="429")],
            True,
            id="turned away, however slow the answers were",
        ),
        pytest.param(
            [answered(0, 5), vain(900, 1800, is_talking=True)], False, id="an answer under way"
        ),
        pytest.param(
            [answered(0, 5), *(vain(n, n + 60) for n in range(10, 1790, 70))],
            True,
            id="a client that hangs up and asks again",
        ),
        pytest.param(
            [vain(5, 1800), answered(1700, 1790)], False, id="one of two at once is answered"
        ),
        pytest.param(
            [answered(0, 5), vain(900, 1800), vain(901, 1800)],
            True,
            id="two at once, none answered",
        ),
    ],
)
def test_a_model_is_silent_when_most_of_the_last_stretch_was_waited_in_vain(
    waits: list[RequestWait], silent: bool
) -> None:
    assert (describe_silence(waits, 0.0, LIMIT, LIMIT) is not None) is silent


def test_the_reason_says_how_long_and_what_the_provider_said() -> None:
    waits = [answered(0, 5), vain(10, 60, refusal="429 Too Many Requests")]
    assert describe_silence(waits, 0.0, 60.0, 60.0) == (
        "The model stopped answering, after 1 answer: 50 of 60 seconds were spent waiting for it, "
        "whose last error was 429 Too Many Requests. Try again later."
    )


@pytest.mark.parametrize(
    ("chunk", "keeps_alive"),
    [
        (PING, True),
        (PING + PING, True),
        (b": OPENROUTER PROCESSING\n\n", True),
        (b":\r\n\r\n", True),
        (b'data: {"type":"ping"}\n\n', True),
        (START, False),
        (PING + START, False),
        (b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n', False),
        (b": x\n" * 1000, False),
    ],
)
def test_pings_and_comments_are_no_part_of_an_answer(chunk: bytes, keeps_alive: bool) -> None:
    assert is_keep_alive(chunk) is keeps_alive


def pinging(handler: Any) -> None:
    """A stream that begins, and then only shows that the connection is there."""
    handler.wfile.write(STREAM)
    for chunk in (START, *[PING] * 100_000):
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        handler.wfile.flush()


def test_a_stream_of_pings_is_given_up_after_the_timeout(provider: Any, tmp_path: Path) -> None:
    provider.says(pinging)

    async def go() -> None:
        settings = upstream("anthropic", provider.address, timeout=0.3, retries=0)
        async with opened(tmp_path, settings) as door, client(door) as http:
            talk = Talk("anthropic", stream=True)
            talk.user("Hello")
            response = await talk.ask(http)
            assert b"did not answer in 0.3 s during a reply" in response.content
        assert door.describe_break() == door.exchanges[0].cause

    anyio.run(go)


def test_an_agent_that_does_not_read_its_answer_waits_for_nobody(
    provider: Any, tmp_path: Path
) -> None:
    text = {"type": "content_block_delta", "index": 0, "delta": {"text": "x" * 50_000}}
    chunk = b"event: content_block_delta\ndata: %s\n\n" % msgspec.json.encode(text)
    sent: list[int] = []

    def floods(handler: Any) -> None:
        handler.wfile.write(STREAM)
        for part in (START, *[chunk] * 150):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            sent.append(len(part))

    provider.says(floods)

    async def go() -> None:
        async with opened(tmp_path, upstream("anthropic", provider.address)) as door:
            began = anyio.current_time()
            async with client(door) as http:
                talk = Talk("anthropic", stream=True)
                talk.user("Hello")
                address = f"{door.address}/v1/messages"
                async with http.stream("POST", address, json=talk.payload()) as response:
                    assert response.status_code == 200
                    await until(lambda: len(sent) > 5)
                    await anyio.sleep(0.5)  # the agent's own time, in which it reads nothing
                    ended = anyio.current_time()
        assert len(door.exchanges) == 1
        assert door.describe_silence(began, ended, ended - began) is None

    anyio.run(go)
