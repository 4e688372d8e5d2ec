"""What a provider's refusal means, in words that say what to do and never hold the key."""

from __future__ import annotations

import json
import re
from http import HTTPStatus

import msgspec

from closeloop.model.errors import BadInput, Fault, MachineFailed, OutOfBudget
from closeloop.model.record import Record

_TOO_LONG = re.compile(
    r"context.{0,3}(length|window|limit|size)|maximum context|reduce the length"
    r"|(prompt|input|request).{0,12} too (long|large)",
    re.IGNORECASE,
)
_BROKE = re.compile(rb"insufficient_quota|credit balance is too low")
"""A limit that no waiting lifts."""
_BAD_KEY = b"API_KEY_INVALID"


SECRET_LENGTH = 16
"""What is shorter is a word to please a server that wants none, and may stand in any answer."""


def secret_in(key: str | None) -> str:
    """What must not be told to anybody, if there is such."""
    return key if key and len(key) >= SECRET_LENGTH else ""


class Endpoint(Record):
    """Where requests go, and the names that messages about them need."""

    url: str
    model: str
    key_from: str
    """Where the key lies, or would: a variable, a file or a keyring."""
    local: bool = False
    timeout: float = 600.0
    retries: int = 4


class Rejected(MachineFailed):
    """The server understood us and said no: another way of asking may do."""

    def __init__(self, message: str, complaint: str, status: int, body: bytes) -> None:
        super().__init__(message)
        self.complaint = complaint
        self.status = status
        self.body = body


class Missing(BadInput):
    """The server does not have what was asked for: this model, or this format."""


class TooLong(OutOfBudget):
    """The conversation does not fit into the model; an agent may shorten it and go on."""

    def __init__(self, message: str, status: int, body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class Refusals:
    """The words for one endpoint."""

    def __init__(self, endpoint: Endpoint, server: str, key: str | None) -> None:
        self._endpoint = endpoint
        self._server = server
        self._key = key

    def is_broke(self, body: bytes) -> bool:
        """Whether the account has no money left, whatever the status says."""
        return _BROKE.search(body) is not None

    def refusal(self, status: int, body: bytes) -> Fault | OutOfBudget:
        """The fault of an answer that it is no use to ask for again."""
        endpoint, complaint = self._endpoint, self.complaint(body)
        if status in (401, 403) or (status == 400 and _BAD_KEY in body):
            if not self._key:
                return BadInput(f"{self._server} wants a key: set {endpoint.key_from}.")
            return BadInput(
                f"The key in {endpoint.key_from} was refused by {self._server}: check it."
            )
        if status == 402 or self.is_broke(body):
            return BadInput(f"The account at {self._server} has no money left: top it up.")
        if status == 404:
            return Missing(
                f"{self._server} has no model named {endpoint.model!r}: check model and base_url."
            )
        if status == 413 or _TOO_LONG.search(complaint):
            said = f"The conversation is longer than {endpoint.model} can take{complaint}."
            return TooLong(said, status, self._without_key(body))
        said = f"{self._server} refused the request with {phrase(status)}{complaint}"
        said = f"{said}: check the settings of {endpoint.model!r}."
        return Rejected(said, complaint, status, self._without_key(body))

    def complaint(self, body: bytes) -> str:
        """What the server says is wrong, as ` (…)`, or nothing."""
        start = body.find(b"{") if body.startswith((b"event:", b"data:")) else 0
        try:
            content = msgspec.json.decode(body[start:].split(b"\n\n")[0] if start else body)
        except (ValueError, RecursionError):
            return ""
        for name in ("error", "message", "detail"):
            if isinstance(content, dict) and content.get(name):
                content = content[name]
        if not isinstance(content, str):
            content = json.dumps(content)
        return f" ({self.clean(content)})" if content.strip() else ""

    def clean(self, text: str) -> str:
        text = " ".join((text.replace(self._key, "…") if self._key else text).split())
        return (text if len(text) <= 300 else text[:299] + "…").rstrip(".:")

    def _without_key(self, body: bytes) -> bytes:
        secret = secret_in(self._key).encode()
        return body.replace(secret, "…".encode()) if secret else body


def phrase(status: int) -> str:
    """A status in the words of the standard."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
