"""Values as exports write them: times as text, JSON inside text; beside `untrusted_json`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from closeloop.text.untrusted import clean_unicode
from closeloop.traces.untrusted_json import try_decode_json

_MAX_NANOSECONDS = 2**63
_EPOCH = datetime.fromtimestamp(0, UTC)
_DIGITS = re.compile("[0-9]{1,19}")


def clean_text(value: Any) -> str | None:
    """A text with something in it."""
    return clean_unicode(value) if isinstance(value, str) and value else None


def time_from_nanos(nanoseconds: Any) -> datetime | None:
    """A time counted in nanoseconds since 1970; 0 is how formats say that it is not known."""
    written = isinstance(nanoseconds, str) and _DIGITS.fullmatch(nanoseconds)
    counted = int(nanoseconds) if written else nanoseconds
    if type(counted) is not int or not 0 < counted < _MAX_NANOSECONDS:
        return None
    try:
        return _EPOCH + timedelta(microseconds=counted // 1000)
    except OverflowError:
        return None


def unfold_json(value: Any) -> Any:
    """What a text says where it is JSON of an object or an array; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value_inside = try_decode_json(value)
        return value if value_inside is None else value_inside
    return value


def text_or_json(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    if isinstance(value, str):
        return clean_unicode(value)
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.EncodeError, UnicodeEncodeError, OverflowError, RecursionError, TypeError):
        return clean_unicode(str(value))


def uncached_input_tokens(asked: int | None, read: int | None, write: int | None) -> int | None:
    """Input without what a cache gave or took, as far as the count had it in it."""
    if asked is None:
        return None
    # Some clients count what the cache gave, and not what it took.
    within = (cached for cached in ((read or 0) + (write or 0), read or 0) if cached <= asked)
    return asked - next(within, 0)
