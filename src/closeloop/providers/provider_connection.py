"""HTTP requests to a provider: retried if that may help, with clear error messages."""

from __future__ import annotations

import email.utils
import importlib.util
import json
import random
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
import httpx
import msgspec

from closeloop.providers.model_prices import add_cost, find_model_prices
from closeloop.providers.wire_format import (
    ANSWER_TOOL,
    Dialect,
    ModelEndpoint,
    ProviderFormat,
    RefusalMessages,
    RequestRejected,
    RetryListener,
    adapt_dialect,
    describe_status,
    ignore_retry,
)
from closeloop.records.errors import MachineFailed
from closeloop.records.record import Record
from closeloop.records.settings import ModelSettings
from closeloop.records.trace import ModelReply, ModelRequest

__all__ = [
    "IncomingAnswer",
    "ModelEndpoint",
    "ProviderConnection",
    "RequestRejected",
    "retry_delay",
]


MAX_BODY_BYTES = 8 << 20
"""Bytes of an answer; the longest possible reply of a model is a tenth of it."""
MAX_WAIT_SECONDS = 60.0
CONNECT_SECONDS = 20.0
_RETRY_STATUSES = {408, 409, 429}
_ERROR_EVENT = re.compile(rb"\s{0,8}(event: ?error\b|data: ?\{\"(error|type\": ?\"error)\")")
"""A stream that begins with an error is not an answer."""

MAX_KEEP_ALIVE_BYTES = 512
_KEEP_ALIVE = re.compile(
    rb"(?:\s|:[^\r\n]*|event: ?ping|data: ?\{\"type\": ?\"ping\"\})*", re.IGNORECASE
)
"""Comments and pings of an event stream, which are not part of an answer."""

SleepFunction = Callable[[float], Awaitable[None]]
Got = TypeVar("Got")


class _AnswerLost(Exception):
    """No whole answer arrived; a retry may succeed."""

    def __init__(self, message: str, answer: _HttpAnswer | None = None) -> None:
        super().__init__(message)
        self.status = answer.status if answer else None
        self.advice = answer.headers if answer else {}


class _HttpAnswer(Record):
    status: int
    headers: Mapping[str, str]
    body: bytes


class IncomingAnswer:
    """An answer whose first bytes have arrived; the rest is read on demand."""

    def __init__(self, wire: ProviderConnection, response: httpx.Response) -> None:
        self.status = response.status_code
        self.content_type = response.headers.get("content-type", "application/json")
        self._wire = wire
        self._response = response
        self._chunks = response.aiter_bytes()
        self._first = b""

    async def read_first_bytes(self) -> bytes:
        """Return the first bytes."""
        self._first = await anext(self._chunks, b"")
        return self._first

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield all of it; MachineFailed if it breaks off."""
        received = len(self._first)
        yield self._first
        heard_at = anyio.current_time()
        try:
            while True:
                with self._wire.limit_wait(anyio.current_time() - heard_at):
                    chunk = await anext(self._chunks, b"")
                if not chunk:
                    return
                received += len(chunk)
                if received > MAX_BODY_BYTES:
                    raise self._wire.oversized_answer()
                yield chunk
                if not is_keep_alive(chunk):
                    heard_at = anyio.current_time()
        except _AnswerLost as lost:
            server = self._wire.server
            raise MachineFailed(f"{server} {lost} during a reply: try again later.") from None

    async def close(self) -> None:
        await self._response.aclose()


class ProviderConnection:
    """A pool of connections to one endpoint. Its messages never contain the key."""

    def __init__(
        self,
        endpoint: ModelEndpoint,
        headers: dict[str, str],
        key: str | None,
        pause: SleepFunction = anyio.sleep,
    ) -> None:
        self.server = httpx.URL(endpoint.url).netloc.decode()
        self.key = key
        self._endpoint = endpoint
        self._pause = pause
        self._say = RefusalMessages(endpoint, self.server, key)
        if importlib.util.find_spec("sniffio") is None:
            # httpcore reads it several times per request, each time through the whole path.
            sys.modules["sniffio"] = None  # type: ignore[assignment]
        self._client = httpx.AsyncClient(
            headers={**headers, "content-type": "application/json"},
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=50),
            # A proxy for external hosts would not reach a server on this machine.
            trust_env=not endpoint.local,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def post_json(
        self, payload: dict[str, Any], retried: RetryListener = ignore_retry
    ) -> Any:
        """Return the answer's JSON; every other outcome is a fault that says what to do."""
        # A truncated character must not break the whole request.
        body = json.dumps(payload, ensure_ascii=False).encode(errors="replace")
        answer = await self._with_retries(lambda: self._fetch_answer(body), retried)
        return self._parse_answer(answer)

    async def begin_answer(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        retried: RetryListener = ignore_retry,
    ) -> IncomingAnswer:
        """Return a successful answer, or one that rejects the request as invalid."""
        return await self._with_retries(lambda: self._start_answer(url, body, headers), retried)

    async def _with_retries(
        self, send: Callable[[], Awaitable[Got]], retried: RetryListener
    ) -> Got:
        tries = self._endpoint.retries + 1
        for number in range(tries):
            try:
                return await send()
            except _AnswerLost as lost:
                failure = lost
            if number + 1 < tries:
                seconds = retry_delay(number, failure.advice, datetime.now(UTC))
                retried(seconds, failure.status)
                await self._pause(seconds)
        times_note = f" {tries} times" if tries > 1 else ""
        raise MachineFailed(
            f"{self.server} {failure}{times_note}: try again later, or with fewer jobs."
        )

    async def _fetch_answer(self, body: bytes) -> _HttpAnswer:
        with self.limit_wait():
            async with self._client.stream("POST", self._endpoint.url, content=body) as response:
                answer = await self._read_answer(response)
        self._raise_for_retry(answer)
        if answer.status >= 300:
            raise self._say.build_fault(answer.status, answer.body)
        return answer

    async def _start_answer(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> IncomingAnswer:
        request = self._client.build_request("POST", url, content=body, headers=headers)
        with self.limit_wait():
            response = await self._client.send(request, stream=True)
            try:
                return await self._accept_answer(response)
            except BaseException:
                await response.aclose()
                raise

    async def _accept_answer(self, response: httpx.Response) -> IncomingAnswer:
        if response.status_code >= 300:
            answer = await self._read_answer(response)
            self._raise_for_retry(answer)
            raise self._say.build_fault(answer.status, answer.body)
        incoming = IncomingAnswer(self, response)
        first = await incoming.read_first_bytes()
        if _ERROR_EVENT.match(first):
            raise _AnswerLost(f"replied with an error{self._say.read_complaint(first)}")
        return incoming

    async def _read_answer(self, response: httpx.Response) -> _HttpAnswer:
        received = bytearray()
        async for chunk in response.aiter_bytes():
            received += chunk
            if len(received) > MAX_BODY_BYTES:
                raise self.oversized_answer()
        return _HttpAnswer(
            status=response.status_code, headers=response.headers, body=bytes(received)
        )

    def _raise_for_retry(self, answer: _HttpAnswer) -> None:
        """Raise _AnswerLost for an answer that should be requested again."""
        if answer.status in _RETRY_STATUSES or answer.status >= 500:
            if self._say.is_out_of_money(answer.body):
                raise self._say.build_fault(402, answer.body)
            message = (
                f"answered {describe_status(answer.status)}{self._say.read_complaint(answer.body)}"
            )
            raise _AnswerLost(message, answer)

    @contextmanager
    def limit_wait(self, waited: float = 0.0) -> Iterator[None]:
        """Limit the time of an answer, and describe errors meanwhile."""
        seconds = self._endpoint.timeout
        try:
            with anyio.fail_after(max(0.0, seconds - waited)):
                yield
        except httpx.ConnectTimeout:
            raise _AnswerLost(f"could not be reached in {CONNECT_SECONDS:g} s") from None
        except (TimeoutError, httpx.TimeoutException):
            raise _AnswerLost(f"did not answer in {seconds:g} s") from None
        except httpx.ConnectError as error:
            raise _AnswerLost(
                f"could not be reached ({self._say.clean_message(str(error))})"
            ) from None
        except httpx.TransportError:
            raise _AnswerLost("closed the connection before the reply was complete") from None
        except httpx.DecodingError:
            raise MachineFailed(f"{self.server} sent a damaged reply: check base_url.") from None

    def oversized_answer(self) -> MachineFailed:
        return MachineFailed(
            f"{self.server} sent a reply of more than {MAX_BODY_BYTES >> 20} MB: check base_url."
        )

    def _parse_answer(self, answer: _HttpAnswer) -> Any:
        try:
            content = msgspec.json.decode(answer.body)
        except (ValueError, RecursionError):
            content = None
        if isinstance(content, dict) and not content.get("error"):
            return content
        if not answer.body.strip():
            description = "nothing"
        elif answer.body.lstrip()[:1] == b"<":
            description = "a web page"
        elif isinstance(content, dict):
            description = f"an error{self._say.read_complaint(answer.body)}"
        else:
            description = "something that is not JSON"
        raise MachineFailed(
            f"{self.server} replied with {description}: check base_url, or try again."
        )


def is_keep_alive(chunk: bytes) -> bool:
    """Whether a part of a stream is only a keep-alive."""
    return len(chunk) < MAX_KEEP_ALIVE_BYTES and _KEEP_ALIVE.fullmatch(chunk) is not None


def retry_delay(number: int, advice: Mapping[str, str], now: datetime) -> float:
    """Return the seconds to wait after try `number`: the server's advice, else doubled each
    time."""
    advised_seconds = _advised_delay(advice, now)
    if advised_seconds is not None:
        return min(max(advised_seconds, 0.0), MAX_WAIT_SECONDS)
    jitter = random.uniform(0.5, 1.0)  # noqa: S311 (not a secret: it spreads the load)
    return min(2.0**number, MAX_WAIT_SECONDS) * jitter


def _advised_delay(advice: Mapping[str, str], now: datetime) -> float | None:
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = advice.get(name, "").strip()
        if re.fullmatch(r"\d{1,9}(\.\d{0,9})?", text):
            return float(text) / unit
    try:
        when = email.utils.parsedate_to_datetime(advice.get("retry-after", ""))
    except ValueError:
        return None
    return (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds()


# A model behind HTTP, whichever format its server speaks.


class RemoteModel:
    """A model shared by many attempts; remembers what its server accepts."""

    def __init__(
        self,
        settings: ModelSettings,
        provider_format: ProviderFormat,
        wire: ProviderConnection,
        base: str,
        dialect: Dialect,
    ) -> None:
        self.name = settings.model
        self.provider = settings.provider
        self.prices = find_model_prices(settings)
        self.wire = wire
        self.base = base
        self._format = provider_format
        self._dialect = dialect

    async def close(self) -> None:
        await self.wire.close()

    async def reply(
        self, request: ModelRequest, retried: RetryListener = ignore_retry
    ) -> ModelReply:
        """Answer one turn, requested in a way that the server is known to accept."""
        answer, dialect = await self._ask_adapting(request, retried)
        try:
            reply = self._format.decode(answer)
        except MachineFailed as fault:
            raise MachineFailed(f"{self.wire.server} sent an invalid reply. {fault}") from None
        if request.schema is not None and dialect.rung == "tool":
            reply = _tool_call_as_text(reply)
        return msgspec.structs.replace(
            reply,
            calls=tuple(
                call
                if call.id
                else msgspec.structs.replace(call, id=f"call-{len(request.messages)}-{index}")
                for index, call in enumerate(reply.calls)
            ),
            usage=add_cost(reply.usage, self.prices),
        )

    async def _ask_adapting(
        self, request: ModelRequest, retried: RetryListener
    ) -> tuple[Any, Dialect]:
        dialect: Dialect | None = self._dialect
        tried_dialects: list[Dialect] = []
        first_rejection: RequestRejected | None = None
        while dialect is not None and dialect not in tried_dialects:
            tried_dialects.append(dialect)
            try:
                payload = self._format.encode(request, self.name, dialect)
                answer = await self.wire.post_json(payload, retried)
            except RequestRejected as rejection:
                first_rejection = first_rejection or rejection
                dialect = adapt_dialect(dialect, request, self._format.rungs, rejection.complaint)
            else:
                if first_rejection is not None:
                    self._dialect = dialect
                return answer, dialect
        assert first_rejection is not None
        raise first_rejection


def _tool_call_as_text(reply: ModelReply) -> ModelReply:
    """Return the forced tool's arguments as the reply's text."""
    for call in reply.calls:
        if call.name == ANSWER_TOOL:
            text = call.malformed or msgspec.json.encode(call.arguments).decode()
            stop: Any = "end" if reply.stop == "tools" else reply.stop
            return msgspec.structs.replace(reply, text=text, calls=(), stop=stop, echo=None)
    return reply


def join_format_url(base: str, path: str) -> str:
    """Return the URL of a format's path, whether or not the base contains the version."""
    parts = urlsplit(base)
    base_path = parts.path.rstrip("/")
    version = re.match(r"/v1(beta)?(?=/)", path)
    if version and base_path.endswith(version[0]):
        path = path.removeprefix(version[0])
    return parts._replace(path=base_path + path).geturl()
