"""Messages for a provider's errors, which say what to do and never contain the key."""

from __future__ import annotations

import json
import re
from http import HTTPStatus

import msgspec

from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget
from closeloop.records.record import Record
from closeloop.text.wording import truncate_words

_TOO_LONG = re.compile(
    r"context.{0,3}(length|window|limit|size)|maximum context|reduce the length"
    r"|(prompt|input|request).{0,12} too (long|large)",
    re.IGNORECASE,
)
_OUT_OF_MONEY = re.compile(rb"insufficient_quota|credit balance is too low")
"""A limit that waiting does not lift."""
_BAD_KEY = b"API_KEY_INVALID"


MIN_SECRET_CHARS = 16
"""Anything shorter is a placeholder for servers without keys, and may occur in any answer."""


def find_secret_key(key: str | None) -> str:
    """Return the key if it is a secret."""
    return key if key and len(key) >= MIN_SECRET_CHARS else ""


class ModelEndpoint(Record):
    """The address of requests, and the names that messages need."""

    url: str
    model: str
    key_from: str
    """Location of the key: a variable, a file or a keyring."""
    local: bool = False
    timeout: float = 600.0
    retries: int = 4


class RequestRejected(MachineFailed):
    """The server rejected the request; another form may be accepted."""

    def __init__(self, message: str, complaint: str, status: int, body: bytes) -> None:
        super().__init__(message)
        self.complaint = complaint
        self.status = status
        self.body = body


class ModelMissing(BadInput):
    """The server lacks this model or format."""


class ConversationTooLong(OutOfBudget):
    """The conversation exceeds the model's context; an agent may shorten it and continue."""

    def __init__(self, message: str, status: int, body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class RefusalMessages:
    """The messages for one endpoint."""

    def __init__(self, endpoint: ModelEndpoint, server: str, key: str | None) -> None:
        self._endpoint = endpoint
        self._server = server
        self._key = key

    def is_out_of_money(self, body: bytes) -> bool:
        """Whether the account has no credit left, whatever the status."""
        return _OUT_OF_MONEY.search(body) is not None

    def build_fault(self, status: int, body: bytes) -> Fault | OutOfBudget:
        """Build the fault of an answer that a retry would not change."""
        endpoint, complaint = self._endpoint, self.read_complaint(body)
        if status in (401, 403) or (status == 400 and _BAD_KEY in body):
            if not self._key:
                return BadInput(f"{self._server} requires a key: set {endpoint.key_from}.")
            return BadInput(
                f"The key in {endpoint.key_from} was rejected by {self._server}: check it."
            )
        if status == 402 or self.is_out_of_money(body):
            return BadInput(f"The account at {self._server} has no credit left: add credit.")
        if status == 404:
            return ModelMissing(
                f"{self._server} has no model named {endpoint.model!r}: check model and base_url."
            )
        if status == 413 or _TOO_LONG.search(complaint):
            message = f"The conversation exceeds the context window of {endpoint.model}{complaint}."
            return ConversationTooLong(message, status, self._without_key(body))
        message = f"{self._server} rejected the request with {describe_status(status)}{complaint}"
        message = f"{message}: check the settings of {endpoint.model!r}."
        return RequestRejected(message, complaint, status, self._without_key(body))

    def read_complaint(self, body: bytes) -> str:
        """Return the server's message as ` (…)`, or an empty text."""
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
        return f" ({self.clean_message(content)})" if content.strip() else ""

    def clean_message(self, text: str) -> str:
        text = text.replace(self._key, "…") if self._key else text
        return truncate_words(text, 300).rstrip(".:")

    def _without_key(self, body: bytes) -> bytes:
        secret = find_secret_key(self._key).encode()
        return body.replace(secret, "…".encode()) if secret else body


def describe_status(status: int) -> str:
    """Describe a status in the standard's words."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
