"""A wire format, and what one server understands of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from closeloop.records.chat import ModelReply, ModelRequest
from closeloop.records.record import Record

SchemaRung = Literal["schema", "tool", "object", "prompt"]
"""Ways to get JSON, surest first: a strict schema, a forced tool, a JSON object, a plea."""

RetryListener = Callable[[float, int | None], None]
"""Told before a request is sent again: how long that is waited for, and the status that came."""

ANSWER_TOOL = "answer"
"""The name of the schema, and of the tool that is forced where schemas are not known."""


class Dialect(Record):
    """What a server has been found to accept."""

    rung: SchemaRung = "schema"
    reply_limit: Literal["max_completion_tokens", "max_tokens"] = "max_tokens"
    temperature: bool = True
    """Some models think at a temperature of their own and refuse another one."""


class ProviderFormat(Record):
    """A provider's way to put requests and replies: three pure functions and an address."""

    address: str
    """Where the provider itself is."""
    path: str
    key_env: str
    headers: Callable[[str | None], dict[str, str]]
    rungs: tuple[SchemaRung, ...]
    encode: Callable[[ModelRequest, str, Dialect], dict[str, Any]]
    decode: Callable[[Any], ModelReply]


def ignore_retry(seconds: float, status: int | None) -> None:
    """Nobody wants to know."""


def adapt_dialect(
    dialect: Dialect, request: ModelRequest, rungs: tuple[SchemaRung, ...], complaint: str
) -> Dialect | None:
    """What to try after a server refused a request; None when there is nothing left to change."""
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
    """The system prompt with the schema in words, for servers that know no other way."""
    schema = msgspec.json.encode(request.schema).decode()
    instruction = f"Reply with nothing but one JSON value of this JSON schema:\n{schema}"
    return f"{request.system}\n\n{instruction}" if request.system else instruction


def parse_call_arguments(given: Any) -> tuple[dict[str, Any], str | None]:
    """A call's arguments, and what came instead when that is no object that can be kept."""
    try:
        value = msgspec.json.decode(given) if isinstance(given, str) and given else given or {}
        # Numbers beyond 64 bits and bottomless nesting would be found by the store, too late.
        msgspec.msgpack.encode(value)
    except (ValueError, OverflowError, RecursionError):
        value = None
    return (value, None) if isinstance(value, dict) else ({}, str(given)[:10_000])


def read_token_count(value: Any) -> int | None:
    """A number of tokens, or None for anything that cannot be one."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None
