"""Wire formats from both sides: what a server accepts, how it is served, what its errors mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget
from closeloop.records.record import Record
from closeloop.records.trace import ModelReply, ModelRequest
from closeloop.text.wording import truncate_words

SchemaRung = Literal["schema", "tool", "object", "prompt"]
"""Ways to get JSON, most reliable first: a strict schema, a forced tool, a JSON object, a prompt.
"""

RetryListener = Callable[[float, int | None], None]
"""Called before a request is repeated, with the delay in seconds and the received status."""

ANSWER_TOOL = "answer"
"""Name of the schema, and of the tool that is forced if schemas are not supported."""


class Dialect(Record):
    """What a server is known to accept."""

    rung: SchemaRung = "schema"
    reply_limit: Literal["max_completion_tokens", "max_tokens"] = "max_tokens"
    temperature: bool = True
    """Some models reject any temperature but their own."""


class ProviderFormat(Record):
    """A provider's format of requests and replies: three pure functions and an address."""

    address: str
    """Address of the provider."""
    path: str
    key_env: str
    headers: Callable[[str | None], dict[str, str]]
    rungs: tuple[SchemaRung, ...]
    encode: Callable[[ModelRequest, str, Dialect], dict[str, Any]]
    decode: Callable[[Any], ModelReply]


def ignore_retry(seconds: float, status: int | None) -> None:
    """Do nothing."""


def adapt_dialect(
    dialect: Dialect, request: ModelRequest, rungs: tuple[SchemaRung, ...], complaint: str
) -> Dialect | None:
    """Return the dialect to try after a server rejected a request; None if nothing is left to
    change."""
    if request.max_tokens is not None and dialect.reply_limit in complaint:
        if dialect.reply_limit == "max_completion_tokens":
            return msgspec.structs.replace(dialect, reply_limit="max_tokens")
        if "max_completion_tokens" in complaint:
            return msgspec.structs.replace(dialect, reply_limit="max_completion_tokens")
    if request.temperature is not None and dialect.temperature and "temperature" in complaint:
        return msgspec.structs.replace(dialect, temperature=False)
    if request.schema is not None and dialect.rung != rungs[-1]:
        return msgspec.structs.replace(dialect, rung=rungs[rungs.index(dialect.rung) + 1])
    return None


def build_schema_prompt(request: ModelRequest) -> str:
    """Build the system prompt with the schema as text, for servers without another way."""
    schema = msgspec.json.encode(request.schema).decode()
    instruction = f"Reply with nothing but one JSON value of this JSON schema:\n{schema}"
    return f"{request.system}\n\n{instruction}" if request.system else instruction


def parse_call_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    """Return a call's arguments, and the original text if it is not a storable object."""
    try:
        value = (
            msgspec.json.decode(arguments)
            if isinstance(arguments, str) and arguments
            else arguments or {}
        )
        # Numbers beyond 64 bits and deep nesting would otherwise fail in the store, too late.
        msgspec.msgpack.encode(value)
    except (ValueError, OverflowError, RecursionError):
        value = None
    return (value, None) if isinstance(value, dict) else ({}, str(arguments)[:10_000])


def read_token_count(value: Any) -> int | None:
    """Return a number of tokens, or None if it cannot be one."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


# A format from the server's side: how requests are read and replies written.

Shape = TypeVar("Shape")


class MalformedRequest(BadInput):
    """The client's request does not have the expected format."""


class ServedFormat(Record):
    """What a server needs to serve one format."""

    name: Literal["openai", "responses", "anthropic", "gemini"]
    path: str
    read: Callable[[Any], ModelRequest]
    """Raises BadInput if it is not a request of this format."""
    answer: Callable[[ModelReply, Any], dict[str, Any]]
    events: Callable[[ModelReply, Any], Iterator[str]]
    """The same answer as server-sent events, for a payload that requests `stream`."""
    fault: Callable[[str], dict[str, Any]]
    ping: bytes | None = None
    """A keep-alive that a stream may contain before its first event."""
    streams: bool = False
    """Whether this path always streams, whatever the payload requests."""


def convert_payload(payload: Any, shape: type[Shape]) -> Shape:
    """Convert the payload to a typed record; BadInput if it does not fit."""
    try:
        return msgspec.convert(payload, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedRequest(f"The request is wrong: {error}.") from None


def find_reply_schema(value: Any, *path: str) -> dict[str, Any] | None:
    """Return the JSON schema of a reply format, if it has one."""
    for name in (*path, "schema"):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None


def sum_input_tokens(usage: Usage) -> int:
    """Sum all input tokens, cached or not, as most formats count them."""
    cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    return (usage.input_tokens or 0) + cached


def format_sse_event(data: Any, name: str | None = None) -> str:
    """Format one server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {msgspec.json.encode(data).decode()}\n\n"


def join_content_text(content: Any) -> str:
    """Join the text of a content that is a text, None, or a list of parts."""
    if isinstance(content, list):
        return "\n".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return content if isinstance(content, str) else ""


# Errors of a provider: messages say what to do and never contain the key.

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
    from http import HTTPStatus

    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
