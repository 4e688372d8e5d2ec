"""One request to a provider over HTTP: sent again when that may help, refused in plain words."""

from __future__ import annotations

import email.utils
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import anyio
import httpx
import msgspec

from closeloop.model.errors import BadInput, Fault, MachineFailed, OutOfBudget
from closeloop.model.record import Record

BODY_LIMIT = 8 << 20
"""Bytes of an answer; the longest reply a model can give is a tenth of it."""
LONGEST_WAIT = 60.0
CONNECT_SECONDS = 20.0
_AGAIN = {408, 409, 429}
_TOO_LONG = re.compile(
    r"context.{0,3}(length|window|limit|size)|maximum context|reduce the length"
    r"|(prompt|input|request).{0,12} too (long|large)",
    re.IGNORECASE,
)

Pause = Callable[[float], Awaitable[None]]


class Endpoint(Record):
    """Where requests go, and the names that messages about them need."""

    url: str
    model: str
    key_from: str
    """Where the key lies, or would: a variable or a file."""
    local: bool = False
    timeout: float = 600.0
    retries: int = 4


class Rejected(MachineFailed):
    """The server understood us and said no: another way of asking may do."""

    def __init__(self, message: str, complaint: str) -> None:
        super().__init__(message)
        self.complaint = complaint


class _Lost(Exception):
    """No whole answer came, which may go better next time."""


class _Answer(Record):
    status: int
    headers: Mapping[str, str]
    body: bytes


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
        self._endpoint = endpoint
        self._pause = pause
        self._key = key
        self._client = httpx.AsyncClient(
            headers={**headers, "content-type": "application/json"},
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=50),
            # A proxy for the world outside would not find a server on this machine.
            trust_env=not endpoint.local,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def post(self, payload: dict[str, Any]) -> Any:
        """The answer's JSON; every other end is a fault that says what to do."""
        # Half a character, cut off by some limit, must not spoil the whole request.
        body = json.dumps(payload, ensure_ascii=False).encode(errors="replace")
        tries = self._endpoint.retries + 1
        for number in range(tries):
            advice: Mapping[str, str] = {}
            try:
                answer = await self._exchange(body)
            except _Lost as lost:
                trouble = str(lost)
            else:
                if answer.status < 300:
                    return self._parsed(answer)
                if answer.status not in _AGAIN and answer.status < 500:
                    raise self._refusal(answer)
                advice = answer.headers
                trouble = f"answered {_status(answer.status)}{self._complaint(answer.body)}"
            if number + 1 < tries:
                await self._pause(delay(number, advice, datetime.now(UTC)))
        often = f" {tries} times" if tries > 1 else ""
        raise MachineFailed(f"{self.server} {trouble}{often}: try again later, or with fewer jobs.")

    async def _exchange(self, body: bytes) -> _Answer:
        url, seconds = self._endpoint.url, self._endpoint.timeout
        try:
            with anyio.fail_after(seconds):
                async with self._client.stream("POST", url, content=body) as response:
                    received = bytearray()
                    async for chunk in response.aiter_bytes():
                        received += chunk
                        if len(received) > BODY_LIMIT:
                            break
            if len(received) <= BODY_LIMIT:
                return _Answer(
                    status=response.status_code, headers=response.headers, body=bytes(received)
                )
        except httpx.ConnectTimeout:
            raise _Lost(f"could not be reached in {CONNECT_SECONDS:g} s") from None
        except (TimeoutError, httpx.TimeoutException):
            raise _Lost(f"did not answer in {seconds:g} s") from None
        except httpx.ConnectError as error:
            raise _Lost(f"could not be reached ({self._clean(str(error))})") from None
        except httpx.TransportError:
            raise _Lost("closed the connection before its answer was whole") from None
        except httpx.DecodingError:
            raise MachineFailed(f"{self.server} sent a damaged answer: check base_url.") from None
        raise MachineFailed(
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
            what = f"an error{self._complaint(answer.body)}"
        else:
            what = "something that is not JSON"
        raise MachineFailed(f"{self.server} answered with {what}: check base_url, or try again.")

    def _refusal(self, answer: _Answer) -> Fault | OutOfBudget:
        endpoint, complaint = self._endpoint, self._complaint(answer.body)
        if answer.status in (401, 403):
            if not self._key:
                return BadInput(f"{self.server} wants a key: set {endpoint.key_from}.")
            return BadInput(
                f"The key in {endpoint.key_from} was refused by {self.server}: check it."
            )
        if answer.status == 402:
            return BadInput(f"The account at {self.server} has no money left: top it up.")
        if answer.status == 404:
            return BadInput(
                f"{self.server} has no model named {endpoint.model!r}: check model and base_url."
            )
        if answer.status == 413 or _TOO_LONG.search(complaint):
            return OutOfBudget(
                f"The conversation is longer than {endpoint.model} can take{complaint}."
            )
        said = f"{self.server} refused the request with {_status(answer.status)}{complaint}"
        return Rejected(f"{said}: check the settings of {endpoint.model!r}.", complaint)

    def _complaint(self, body: bytes) -> str:
        """What the server says is wrong, as ` (…)`, or nothing."""
        try:
            content = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            return ""
        for name in ("error", "message", "detail"):
            if isinstance(content, dict) and content.get(name):
                content = content[name]
        if not isinstance(content, str):
            content = json.dumps(content)
        return f" ({self._clean(content)})" if content.strip() else ""

    def _clean(self, text: str) -> str:
        text = " ".join((text.replace(self._key, "…") if self._key else text).split())
        return (text if len(text) <= 300 else text[:299] + "…").rstrip(".:")


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


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
