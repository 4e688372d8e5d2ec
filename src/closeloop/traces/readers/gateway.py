"""Exchanges with a model, one a line, as closeloop's gateway records them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Exchange, Session
from closeloop.traces import single_file
from closeloop.traces.exchange_session import READER, UNREADABLE, VERSION, session_from_exchanges
from closeloop.traces.untrusted_json import as_mapping

name = READER
version = VERSION
LAYOUT_VERSION = 1
"""Of the lines that are written, whatever is read from them."""
parts, owner = single_file.no_parts, single_file.no_owner
_EXCHANGE_KEY = "closeloop_exchange"


def recognises(source: RecordingSource) -> bool:
    return _EXCHANGE_KEY.encode() in source.head and any(
        _EXCHANGE_KEY in as_mapping(one) for one in source.lines[:1]
    )


def read(source: RecordingSource) -> Iterator[Session]:
    yield session_from_exchanges(list(_iter_exchanges(source)), source.skipped)


def encode_exchange_line(exchange: Exchange) -> bytes:
    """An exchange as a line of such a file."""
    fields = msgspec.to_builtins(exchange, builtin_types=(bytes,))
    fields |= {key: _body_to_json(fields[key]) for key in ("request", "response")}
    return msgspec.json.encode({_EXCHANGE_KEY: LAYOUT_VERSION, **fields}) + b"\n"


def _body_to_json(body: bytes) -> Any:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _iter_exchanges(source: RecordingSource) -> Iterator[Exchange]:
    for record in source.records():
        try:
            bodies = {
                key: _body_from_json(as_mapping(record).get(key)) for key in ("request", "response")
            }
            yield msgspec.convert({**as_mapping(record), **bodies}, Exchange)
        except (msgspec.ValidationError, ValueError):
            source.skipped[UNREADABLE] = source.skipped.get(UNREADABLE, 0) + 1


def _body_from_json(value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(str(value.get("base64")), validate=True)
    return value.encode("utf-8", "replace") if isinstance(value, str) else b""
