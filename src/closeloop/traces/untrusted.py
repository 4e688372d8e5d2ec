"""Values of JSON nobody vouches for: each as what it should be, or None."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from closeloop.traces.texts import NOTE_CHARACTERS, clean, shortened

DEPTH = 40
_strict = msgspec.json.Decoder().decode
_LARGEST = 1 << 53
_LABEL = 4096
_LATEST = 253_402_300_800_000
_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,2})?")
_LENIENT = re.compile(r"\\u[dD]|NaN|Infinity")
"""Signs that a text may only be no JSON because msgspec is strict."""
_LONGEST = 4300
"""Digits that Python takes for one number."""


def mapping(value: object) -> dict[str, Any]:
    """An object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """A list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def text(value: object) -> str | None:
    """A text that says something."""
    return value if isinstance(value, str) and value else None


def label(value: object) -> str | None:
    """A short text that can be stored: an id, a name, a path."""
    return clean(value[:_LABEL]) if isinstance(value, str) and value else None


def count(value: object) -> int | None:
    """A number of things, which some formats write as text."""
    if type(value) is int:
        return value if 0 <= value < _LARGEST else None
    number = amount(value)
    return int(number) if number is not None and number.is_integer() else None


def amount(value: object) -> float | None:
    """A sum of money or a duration, which some formats write as text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if type(value) is int or type(value) is float:
        return float(value) if 0 <= value < _LARGEST else None
    return None


def exit_code(value: object) -> int | None:
    """What a process ended with."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(1 << 31) <= value < 1 << 32 else None


def millis(value: object) -> datetime | None:
    """A time given as milliseconds since 1970."""
    if type(value) is int and 0 < value < _LATEST:
        return datetime.fromtimestamp(value / 1000, UTC)
    number = amount(value)
    return seconds(number / 1000) if number else None


def seconds(value: object) -> datetime | None:
    """A time given as seconds since 1970."""
    number = amount(value)
    if not number:
        return None
    try:
        return datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def moment(value: object) -> datetime | None:
    """A time in words; one without a zone is in UTC."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def between(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds from one time to a later one."""
    if start is None or end is None or end < start:
        return None
    return (end - start).total_seconds()


def safe(value: Any, skipped: dict[str, int], depth: int = 0) -> Any:
    """A value that can be stored: clean texts, numbers that fit, not nested without end."""
    if isinstance(value, str):
        return shortened(value, skipped)
    if isinstance(value, dict):
        if depth == DEPTH:
            return "…"
        return {
            shortened(str(key), skipped): shortened(one, skipped)
            if isinstance(one, str)
            else safe(one, skipped, depth + 1)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return "…" if depth == DEPTH else [safe(item, skipped, depth + 1) for item in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def arguments(value: object, skipped: dict[str, int]) -> dict[str, Any] | None:
    """What a tool was called with; None where that is no object."""
    return safe(value, skipped) if isinstance(value, dict) else None


def raw(value: object) -> str:
    """A record as JSON text, as much of it as a note holds."""
    try:
        told = msgspec.json.encode(value).decode(errors="replace")
    except (msgspec.EncodeError, TypeError, ValueError, RecursionError, OverflowError):
        told = str(safe(value, {}))
    return shortened(told, most=NOTE_CHARACTERS)


def decode(content: bytes | str) -> Any:
    """A JSON value whose texts and numbers are such: for a lone half of a surrogate pair and for
    bytes that are no text stands the replacement character, for what is no number None."""
    try:
        return _strict(content)
    except (UnicodeError, msgspec.ValidationError):
        pass  # what is wrong is a text or a number
    except msgspec.DecodeError:
        told = content if isinstance(content, str) else content.decode("latin-1")
        if not _LENIENT.search(told):
            raise
    told = content if isinstance(content, str) else content.decode(errors="replace")
    try:
        return _strict(clean(json.dumps(_lenient(told), ensure_ascii=False)))
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from error


def _lenient(told: str) -> Any:
    return json.loads(told, parse_constant=_no_number, parse_float=_real, parse_int=_whole)


def _no_number(_: str) -> None:
    """What Python writes for one that is infinite, or none."""


def _real(written: str) -> float | None:
    number = float(written)
    return number if math.isfinite(number) else None


def _whole(written: str) -> int | None:
    return int(written) if len(written) <= _LONGEST else None


def decoded(value: object) -> Any:
    """The JSON a text or bytes hold; None where they hold none."""
    if not isinstance(value, str | bytes):
        return None
    try:
        return decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
