"""Exchanges with a model, one a line, as closeloop's gateway records them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.model.exchange import Exchange
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces import single
from closeloop.traces.exchanges import READER, UNREADABLE, VERSION, session_of
from closeloop.traces.untrusted import mapping

name = READER
version = VERSION
LAYOUT = 1
"""Of the lines that are written, whatever is read from them."""
parts, owner = single.parts, single.owner
_SIGN = "closeloop_exchange"


def recognises(source: Source) -> bool:
    return _SIGN.encode() in source.head and any(_SIGN in mapping(one) for one in source.lines[:1])


def read(source: Source) -> Iterator[Session]:
    yield session_of(list(_exchanges(source)), source.skipped)


def line(exchange: Exchange) -> bytes:
    """An exchange as a line of such a file."""
    told = msgspec.to_builtins(exchange, builtin_types=(bytes,))
    told |= {key: _text(told[key]) for key in ("request", "response")}
    return msgspec.json.encode({_SIGN: LAYOUT, **told}) + b"\n"


def _text(body: bytes) -> Any:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _exchanges(source: Source) -> Iterator[Exchange]:
    for told in source.records():
        try:
            bodies = {key: _bytes(mapping(told).get(key)) for key in ("request", "response")}
            yield msgspec.convert({**mapping(told), **bodies}, Exchange)
        except (msgspec.ValidationError, ValueError):
            source.skipped[UNREADABLE] = source.skipped.get(UNREADABLE, 0) + 1


def _bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(str(value.get("base64")), validate=True)
    return value.encode("utf-8", "replace") if isinstance(value, str) else b""
