"""Values as exports write them: numbers as text, JSON inside text; beside `untrusted`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from closeloop.traces.texts import clean

_decode = msgspec.json.Decoder().decode
_LARGEST = 2**63


def text(value: Any) -> str | None:
    """A text with something in it."""
    return clean(value) if isinstance(value, str) and value else None


def count(value: Any) -> int | None:
    """A number of things, which some formats write as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST:
        return value
    return None


def number(value: Any) -> float | None:
    """An amount, such as of money or seconds; never less than nothing."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST:
        return float(value)
    return None


def instant(nanoseconds: Any) -> datetime | None:
    """A time counted in nanoseconds since 1970; 0 is how formats say that it is not known."""
    counted = count(nanoseconds)
    if not counted:
        return None
    try:
        seconds, rest = divmod(counted, 10**9)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    except (ValueError, OverflowError, OSError):
        return None


def decoded(value: Any) -> Any:
    """What a text says where it is JSON of an object or an array; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return _decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return value
    return value


def written(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    if isinstance(value, str):
        return clean(value)
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.EncodeError, UnicodeEncodeError, OverflowError, RecursionError, TypeError):
        return clean(str(value))


def lenient(content: bytes) -> Any:
    """JSON as Python writes it: with NaN and infinities, which become None. ValueError if not."""
    try:
        return _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return cleaned(json.loads(content, parse_constant=lambda _: None))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def cleaned(value: Any) -> Any:
    """A JSON value all of whose texts are valid."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [cleaned(one) for one in value]
    if isinstance(value, dict):
        return {clean(name): cleaned(one) for name, one in value.items()}
    return value
