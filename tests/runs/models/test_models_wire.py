from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from closeloop.providers.provider_connection import (
    MAX_BODY_BYTES,
    MAX_WAIT_SECONDS,
    ProviderConnection,
    retry_delay,
)
from closeloop.providers.wire_format import (
    ConversationTooLong,
    ModelEndpoint,
    ModelMissing,
    RequestRejected,
)
from closeloop.records.errors import BadInput, MachineFailed, OutOfBudget
from patience import PATIENCE

KEY = "sk-very-secret-0123456789"
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
GOOD = {"choices": []}


def post(address: str, retries: int = 2, timeout: float = PATIENCE, key: str | None = KEY) -> Any:
    """One request; what was waited for is in `post.waits`."""
    waits: list[float] = []
    post.waits = waits  # type: ignore[attr-defined]

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    async def go() -> Any:
        endpoint = ModelEndpoint(
            url=f"{address}/v1/chat/completions",
            model="gpt-9",
            key_from="OPENAI_API_KEY",
            local=True,
            timeout=timeout,
            retries=retries,
        )
        wire = ProviderConnection(
            endpoint, {"authorization": f"Bearer {key}"} if key else {}, key, pause
        )
        try:
            return await wire.post_json({"model": "gpt-9"})
        finally:
            await wire.close()

    return anyio.run(go)


def fault(address: str, kind: type[Exception], **options: Any) -> str:
    with pytest.raises(kind) as caught:
        post(address, **options)
    assert type(caught.value) in (
        BadInput,
        MachineFailed,
        ModelMissing,
        RequestRejected,
        ConversationTooLong,
    )
    everything = "".join(traceback.format_exception(caught.value))
    assert KEY not in everything + repr(caught.value)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def waits() -> list[float]:
    return post.waits  # type: ignore[attr-defined, no-any-return]


def raw(content: bytes) -> Callable[[Any], None]:
    """Bytes on the wire, then the end of the connection."""

    def send(handler: Any) -> None:
        handler.wfile.write(content)
        handler.wfile.flush()
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    return send


def body(content: bytes, status: int = 200, **headers: str) -> Callable[[Any], None]:
    return lambda handler: handler.send(status, content, **headers)


def test_a_refused_key_names_its_variable_and_never_the_key(provider: Any) -> None:
    for status in (401, 403):
        provider.says((status, {"error": {"message": f"Incorrect key {KEY}"}}))
        message = fault(provider.address, BadInput)
        assert message.startswith("The key in OPENAI_API_KEY was rejected by 127.0.0.1:")
    assert len(provider.asked) == 2


def test_a_server_that_wants_a_key_says_where_to_put_it(provider: Any) -> None:
    provider.says((401, {}))
    assert fault(provider.address, BadInput, key=None).endswith(
        "requires a key: set OPENAI_API_KEY."
    )


def test_an_unknown_model_is_named(provider: Any) -> None:
    provider.says((404, {"error": "no"}))
    assert "has no model named 'gpt-9'" in fault(provider.address, BadInput)
    assert len(provider.asked) == 1


def test_an_empty_account_is_the_users_to_fill(provider: Any) -> None:
    provider.says((402, {}))
    assert "no credit left" in fault(provider.address, BadInput)


def test_a_rate_limit_is_waited_out_for_as_long_as_the_server_says(provider: Any) -> None:
    provider.says(body(b"{}", 429, retry_after="7"), body(b"{}", 429, retry_after_ms="1500"), GOOD)
    assert post(provider.address) == GOOD
    assert waits() == [7.0, 1.5]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_passing_trouble_is_tried_again(provider: Any, status: int) -> None:
    provider.says((status, {}), GOOD)
    assert post(provider.address) == GOOD
    assert len(provider.asked) == 2


def test_lasting_trouble_ends_with_what_happened_and_what_to_do(provider: Any) -> None:
    provider.says((500, {"error": {"message": f"overloaded {KEY}\nsorry"}}))
    message = fault(provider.address, MachineFailed)
    assert "answered 500 Internal Server Error (overloaded … sorry) 3 times: try again" in message
    assert len(provider.asked) == 3
    assert 0.5 <= waits()[0] <= 1.0 <= waits()[1] <= 2.0


def test_a_bad_request_is_not_repeated_and_quotes_the_server(provider: Any) -> None:
    for complaint in (
        {"error": {"message": "bad tool"}},
        {"detail": "bad tool"},
        {"error": "bad tool"},
    ):
        provider.says((400, complaint))
        before = len(provider.asked)
        assert "400 Bad Request (bad tool)" in fault(provider.address, RequestRejected)
        assert len(provider.asked) == before + 1


def test_a_conversation_that_is_too_long_ends_the_attempt_not_the_run(provider: Any) -> None:
    for complaint in (
        "This model's maximum context length is 8192 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Your input exceeds the context window of this model",
        "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000",
        "the request exceeds the available context size",
    ):
        provider.says((400, {"error": {"message": complaint}}))
        assert "exceeds the context window of gpt-9" in fault(provider.address, OutOfBudget)
    provider.says((413, {}))
    fault(provider.address, OutOfBudget)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "replied with nothing"),
        (b"  \n", "replied with nothing"),
        (b"<!doctype html><html>Sign in</html>", "replied with a web page"),
        (b"certainly! here is", "something that is not JSON"),
        (b'{"choices": [', "something that is not JSON"),
        (b'{"choices": "\xff\xfe"}', "something that is not JSON"),
        (b"[" * 100_000, "something that is not JSON"),
        (b"[]", "something that is not JSON"),
        (b'{"error": {"message": "upstream died"}}', "an error (upstream died)"),
    ],
)
def test_garbage_is_a_machine_fault(provider: Any, content: bytes, what: str) -> None:
    provider.says(body(content))
    assert what in fault(provider.address, MachineFailed)


def test_a_connection_closed_early_is_tried_again_and_then_told(provider: Any) -> None:
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"
    for early in (b"", b"HTTP/1.1 200", half):
        provider.says(raw(early))
        before = len(provider.asked)
        assert "closed the connection" in fault(provider.address, MachineFailed)
        assert len(provider.asked) == before + 3
    provider.asked.clear()
    provider.says(raw(half), GOOD)
    assert post(provider.address) == GOOD


def test_a_server_that_hangs_or_dribbles_is_left_in_time(provider: Any) -> None:
    def hang(handler: Any) -> None:
        handler.connection.recv(1)

    def dribble(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.connection.settimeout(0.02)
            try:
                if not handler.connection.recv(1):
                    return
            except TimeoutError:
                pass

    for step in (hang, dribble):
        provider.says(step)
        message = fault(provider.address, MachineFailed, timeout=0.1, retries=1)
        assert "did not answer in 0.1 s 2 times" in message


def test_a_server_that_is_not_there_is_told_so() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert "could not be reached" in fault(address, MachineFailed)


def test_an_endless_answer_is_cut_off(provider: Any) -> None:
    def flood(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(64):
            handler.wfile.write(b" " * (1 << 20))

    provider.says(flood)
    assert f"more than {MAX_BODY_BYTES >> 20} MB" in fault(provider.address, MachineFailed)
    assert len(provider.asked) == 1


def test_a_damaged_encoding_is_a_machine_fault(provider: Any) -> None:
    provider.says(body(b"not gzip", content_encoding="gzip"))
    assert "damaged" in fault(provider.address, MachineFailed)


def test_a_redirect_is_not_followed_with_the_key(provider: Any) -> None:
    provider.says(body(b"", 307, location=f"{provider.address}/elsewhere"))
    fault(provider.address, RequestRejected)
    assert provider.paths == ["/v1/chat/completions"]


def test_half_a_character_does_not_stop_a_request(provider: Any) -> None:
    provider.says(GOOD)

    async def go() -> None:
        endpoint = ModelEndpoint(url=provider.address, model="m", key_from="K", local=True)
        wire = ProviderConnection(endpoint, {}, None)
        await wire.post_json({"text": "cut \ud83d off"})
        await wire.close()

    anyio.run(go)
    assert provider.asked[0]["text"] == "cut ? off"


def test_a_hundred_requests_go_through_one_pool_at_once(provider: Any) -> None:
    provider.says(GOOD)
    answers = []

    async def go() -> None:
        endpoint = ModelEndpoint(
            url=provider.address, model="m", key_from="K", local=True, retries=0
        )
        wire = ProviderConnection(endpoint, {}, None)

        async def one() -> None:
            answers.append(await wire.post_json({}))

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(one)
        await wire.close()

    anyio.run(go)
    assert len(answers) == len(provider.asked) == 100


def test_the_key_is_in_no_log(provider: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    provider.says(GOOD)
    post(provider.address)
    assert provider.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("advice", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "86400"}, MAX_WAIT_SECONDS),
    ],
)
def test_the_servers_advice_is_heeded_within_reason(advice: dict[str, str], seconds: float) -> None:
    assert retry_delay(0, advice, NOW) == seconds


@pytest.mark.parametrize("nonsense", ["soon", "-5", "nan", "inf", "", "Thu, 99 Foo 2026", "1e9"])
def test_nonsense_for_advice_is_ignored(nonsense: str) -> None:
    for number, longest in ((0, 1.0), (3, 8.0), (50, MAX_WAIT_SECONDS)):
        assert longest / 2 <= retry_delay(number, {"retry-after": nonsense}, NOW) <= longest
