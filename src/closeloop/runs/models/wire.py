"""Requests to a provider over HTTP: sent again when that may help, refused in plain words."""

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

import anyio
import httpx
import msgspec

from closeloop.model.errors import MachineFailed
from closeloop.model.record import Record
from closeloop.runs.models.dialect import Retried, nobody
from closeloop.runs.models.refusals import Endpoint, Refusals, Rejected, phrase

__all__ = ["Endpoint", "Incoming", "Rejected", "Wire", "delay"]

BODY_LIMIT = 8 << 20
"""Bytes of an answer; the longest reply a model can give is a tenth of it."""
LONGEST_WAIT = 60.0
CONNECT_SECONDS = 20.0
_AGAIN = {408, 409, 429}
_ERROR_FIRST = re.compile(rb"\s{0,8}(event: ?error\b|data: ?\{\"(error|type\": ?\"error)\")")
"""A stream that begins with an error is no answer yet."""

KEEP_ALIVE_BYTES = 512
_KEEP_ALIVE = re.compile(
    rb"(?:\s|:[^\r\n]*|event: ?ping|data: ?\{\"type\": ?\"ping\"\})*", re.IGNORECASE
)
"""Comments and pings of an event stream, which are no part of an answer."""

Pause = Callable[[float], Awaitable[None]]
Got = TypeVar("Got")


class _Lost(Exception):
    """No whole answer came, which may go better next time."""

    def __init__(self, trouble: str, answer: _Answer | None = None) -> None:
        super().__init__(trouble)
        self.status = answer.status if answer else None
        self.advice = answer.headers if answer else {}


class _Answer(Record):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Incoming:
    """An answer that has begun: its first bytes are here, the rest comes as it is read."""

    def __init__(self, wire: Wire, response: httpx.Response) -> None:
        self.status = response.status_code
        self.content_type = response.headers.get("content-type", "application/json")
        self._wire = wire
        self._response = response
        self._chunks = response.aiter_bytes()
        self._first = b""

    async def begin(self) -> bytes:
        """The first bytes."""
        self._first = await anext(self._chunks, b"")
        return self._first

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """All of it; MachineFailed when it breaks off."""
        received = len(self._first)
        yield self._first
        heard_at = anyio.current_time()
        try:
            while True:
                with self._wire.patience(anyio.current_time() - heard_at):
                    chunk = await anext(self._chunks, b"")
                if not chunk:
                    return
                received += len(chunk)
                if received > BODY_LIMIT:
                    raise self._wire.endless()
                yield chunk
                if not is_keep_alive(chunk):
                    heard_at = anyio.current_time()
        except _Lost as lost:
            server = self._wire.server
            raise MachineFailed(f"{server} {lost} in the middle of it: try again later.") from None

    async def close(self) -> None:
        await self._response.aclose()


class Wire:
    """A pool of connections to one endpoint. Whatever it says, it does not say the key."""

    def __init__(
        self,
        endpoint: Endpoint,
        headers: dict[str, str],
        key: str | None,
        pause: Pause = anyio.sleep,
    ) -> None:
        self.server = httpx.URL(endpoint.url).netloc.decode()
        self.key = key
        self._endpoint = endpoint
        self._pause = pause
        self._say = Refusals(endpoint, self.server, key)
        if importlib.util.find_spec("sniffio") is None:
            # httpcore asks for it several times a request, each time through the whole path.
            sys.modules["sniffio"] = None  # type: ignore[assignment]
        self._client = httpx.AsyncClient(
            headers={**headers, "content-type": "application/json"},
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=50),
            # A proxy for the world outside would not find a server on this machine.
            trust_env=not endpoint.local,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def post(self, payload: dict[str, Any], retried: Retried = nobody) -> Any:
        """The answer's JSON; every other end is a fault that says what to do."""
        # Half a character, cut off by some limit, must not spoil the whole request.
        body = json.dumps(payload, ensure_ascii=False).encode(errors="replace")
        answer = await self._tried(lambda: self._whole(body), retried)
        return self._parsed(answer)

    async def begin(
        self, url: str, body: bytes, headers: Mapping[str, str], retried: Retried = nobody
    ) -> Incoming:
        """An answer that is good, or that only says what is wrong with the request."""
        return await self._tried(lambda: self._begun(url, body, headers), retried)

    async def _tried(self, once: Callable[[], Awaitable[Got]], retried: Retried) -> Got:
        tries = self._endpoint.retries + 1
        for number in range(tries):
            try:
                return await once()
            except _Lost as lost:
                trouble = lost
            if number + 1 < tries:
                seconds = delay(number, trouble.advice, datetime.now(UTC))
                retried(seconds, trouble.status)
                await self._pause(seconds)
        often = f" {tries} times" if tries > 1 else ""
        raise MachineFailed(f"{self.server} {trouble}{often}: try again later, or with fewer jobs.")

    async def _whole(self, body: bytes) -> _Answer:
        with self.patience():
            async with self._client.stream("POST", self._endpoint.url, content=body) as response:
                answer = await self._read(response)
        self._demand_good(answer)
        if answer.status >= 300:
            raise self._say.refusal(answer.status, answer.body)
        return answer

    async def _begun(self, url: str, body: bytes, headers: Mapping[str, str]) -> Incoming:
        request = self._client.build_request("POST", url, content=body, headers=headers)
        with self.patience():
            response = await self._client.send(request, stream=True)
            try:
                return await self._accepted(response)
            except BaseException:
                await response.aclose()
                raise

    async def _accepted(self, response: httpx.Response) -> Incoming:
        if response.status_code >= 300:
            answer = await self._read(response)
            self._demand_good(answer)
            raise self._say.refusal(answer.status, answer.body)
        incoming = Incoming(self, response)
        first = await incoming.begin()
        if _ERROR_FIRST.match(first):
            raise _Lost(f"answered with an error{self._say.complaint(first)}")
        return incoming

    async def _read(self, response: httpx.Response) -> _Answer:
        received = bytearray()
        async for chunk in response.aiter_bytes():
            received += chunk
            if len(received) > BODY_LIMIT:
                raise self.endless()
        return _Answer(status=response.status_code, headers=response.headers, body=bytes(received))

    def _demand_good(self, answer: _Answer) -> None:
        """_Lost for an answer after which one should ask again."""
        if answer.status in _AGAIN or answer.status >= 500:
            if self._say.is_broke(answer.body):
                raise self._say.refusal(402, answer.body)
            said = f"answered {phrase(answer.status)}{self._say.complaint(answer.body)}"
            raise _Lost(said, answer)

    @contextmanager
    def patience(self, waited: float = 0.0) -> Iterator[None]:
        """For as long as an answer may take; what goes wrong meanwhile is put in words."""
        seconds = self._endpoint.timeout
        try:
            with anyio.fail_after(max(0.0, seconds - waited)):
                yield
        except httpx.ConnectTimeout:
            raise _Lost(f"could not be reached in {CONNECT_SECONDS:g} s") from None
        except (TimeoutError, httpx.TimeoutException):
            raise _Lost(f"did not answer in {seconds:g} s") from None
        except httpx.ConnectError as error:
            raise _Lost(f"could not be reached ({self._say.clean(str(error))})") from None
        except httpx.TransportError:
            raise _Lost("closed the connection before its answer was whole") from None
        except httpx.DecodingError:
            raise MachineFailed(f"{self.server} sent a damaged answer: check base_url.") from None

    def endless(self) -> MachineFailed:
        return MachineFailed(
            f"{self.server} sent an answer of more than {BODY_LIMIT >> 20} MB: check base_url."
        )

    def _parsed(self, answer: _Answer) -> Any:
        try:
            content = msgspec.json.decode(answer.body)
        except (ValueError, RecursionError):
            content = None
        if isinstance(content, dict) and not content.get("error"):
            return content
        if not answer.body.strip():
            what = "nothing"
        elif answer.body.lstrip()[:1] == b"<":
            what = "a web page"
        elif isinstance(content, dict):
            what = f"an error{self._say.complaint(answer.body)}"
        else:
            what = "something that is not JSON"
        raise MachineFailed(f"{self.server} answered with {what}: check base_url, or try again.")


def is_keep_alive(chunk: bytes) -> bool:
    """Whether a part of a stream only shows that the connection is there."""
    return len(chunk) < KEEP_ALIVE_BYTES and _KEEP_ALIVE.fullmatch(chunk) is not None


def delay(number: int, advice: Mapping[str, str], now: datetime) -> float:
    """Seconds to wait after try `number`: what the server advises, else twice as long each time."""
    asked = _advised(advice, now)
    if asked is not None:
        return min(max(asked, 0.0), LONGEST_WAIT)
    jitter = random.uniform(0.5, 1.0)  # noqa: S311 (not a secret: it spreads the load)
    return min(2.0**number, LONGEST_WAIT) * jitter


def _advised(advice: Mapping[str, str], now: datetime) -> float | None:
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = advice.get(name, "").strip()
        if re.fullmatch(r"\d{1,9}(\.\d{0,9})?", text):
            return float(text) / unit
    try:
        when = email.utils.parsedate_to_datetime(advice.get("retry-after", ""))
    except ValueError:
        return None
    return (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds()
