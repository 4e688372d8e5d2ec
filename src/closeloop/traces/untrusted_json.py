"""Untrusted JSON values: each converted to its expected type, or None."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from closeloop.records.attempt import Usage
from closeloop.text.untrusted import MAX_NOTE_CHARS, clean_unicode, truncate_middle

MAX_VALUE_DEPTH = 40
_decode_strictly = msgspec.json.Decoder().decode
_MAX_COUNT = 1 << 53
_MAX_LABEL_CHARS = 4096
_MAX_TIME_MILLIS = 253_402_300_800_000
_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,2})?")
_LENIENT_MARKERS = re.compile(r"\\u[dD]|NaN|Infinity")
"""Signs that a text is only rejected because msgspec is strict."""
_MAX_INT_DIGITS = 4300
"""Maximum digits of one number in Python."""
_MAX_NANOSECONDS = 2**63
_EPOCH = datetime.fromtimestamp(0, UTC)
_DIGITS = re.compile("[0-9]{1,19}")


def as_mapping(value: object) -> dict[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str | None:
    """Return a non-empty text."""
    return value if isinstance(value, str) and value else None


def as_label(value: object) -> str | None:
    """Return a short text that can be stored: an id, a name, a path."""
    return clean_unicode(value[:_MAX_LABEL_CHARS]) if isinstance(value, str) and value else None


def as_count(value: object) -> int | None:
    """Return a count, which some formats write as text."""
    if type(value) is int:
        return value if 0 <= value < _MAX_COUNT else None
    number = as_amount(value)
    return int(number) if number is not None and number.is_integer() else None


def as_amount(value: object) -> float | None:
    """Return an amount or duration, which some formats write as text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if type(value) is int or type(value) is float:
        return float(value) if 0 <= value < _MAX_COUNT else None
    return None


def as_exit_code(value: object) -> int | None:
    """Return an exit code."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(1 << 31) <= value < 1 << 32 else None


def time_from_millis(value: object) -> datetime | None:
    """Convert milliseconds since 1970."""
    if type(value) is int and 0 < value < _MAX_TIME_MILLIS:
        return datetime.fromtimestamp(value / 1000, UTC)
    number = as_amount(value)
    return time_from_seconds(number / 1000) if number else None


def time_from_seconds(value: object) -> datetime | None:
    """Convert seconds since 1970."""
    number = as_amount(value)
    if not number:
        return None
    try:
        return datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def time_from_text(value: object) -> datetime | None:
    """Parse a time; without a zone it is in UTC."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from one time to a later one."""
    if start is None or end is None or end < start:
        return None
    return (end - start).total_seconds()


def storable_value(value: Any, skipped: dict[str, int], depth: int = 0) -> Any:
    """Return a value that can be stored: clean texts, valid numbers, bounded nesting."""
    if isinstance(value, str):
        return truncate_middle(value, skipped)
    if isinstance(value, dict):
        if depth == MAX_VALUE_DEPTH:
            return "…"
        return {
            truncate_middle(str(key), skipped): truncate_middle(item, skipped)
            if isinstance(item, str)
            else storable_value(item, skipped, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return (
            "…"
            if depth == MAX_VALUE_DEPTH
            else [storable_value(item, skipped, depth + 1) for item in value]
        )
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def storable_arguments(value: object, skipped: dict[str, int]) -> dict[str, Any] | None:
    """Return a tool's arguments; None if they are not an object."""
    return storable_value(value, skipped) if isinstance(value, dict) else None


def json_excerpt(value: object) -> str:
    """Return a record as JSON text, truncated for a note."""
    try:
        text = msgspec.json.encode(value).decode(errors="replace")
    except (msgspec.EncodeError, TypeError, ValueError, RecursionError, OverflowError):
        text = str(storable_value(value, {}))
    return truncate_middle(text, max_chars=MAX_NOTE_CHARS)


def decode_json(content: bytes | str) -> Any:
    """Decode JSON leniently: lone surrogates and invalid bytes become the replacement character,
    numbers that are none become None."""
    try:
        return _decode_strictly(content)
    except (UnicodeError, msgspec.ValidationError):
        pass  # a scalar in place of an object
    except msgspec.DecodeError:
        json_text = content if isinstance(content, str) else content.decode("latin-1")
        if not _LENIENT_MARKERS.search(json_text):
            raise
    json_text = content if isinstance(content, str) else content.decode(errors="replace")
    try:
        return _decode_strictly(clean_unicode(_without_odd_numbers(json_text)))
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from error


def _without_odd_numbers(text: str) -> str:
    """Return JSON in which constants and numbers that msgspec refuses are null."""
    import json

    value = json.loads(
        text, parse_constant=_parse_constant, parse_float=_parse_float, parse_int=_parse_int
    )
    return json.dumps(value, ensure_ascii=False)


def _parse_constant(_: str) -> None:
    """Python's constants for infinity and not-a-number."""


def _parse_float(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _parse_int(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else None


def try_decode_json(value: object) -> Any:
    """Decode the JSON of a text or bytes; None if it is not JSON."""
    if not isinstance(value, str | bytes):
        return None
    try:
        return decode_json(value)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def clean_text(value: Any) -> str | None:
    """Return a non-empty text."""
    return clean_unicode(value) if isinstance(value, str) and value else None


def time_from_nanos(nanoseconds: Any) -> datetime | None:
    """Convert nanoseconds since 1970; 0 means unknown."""
    is_text = isinstance(nanoseconds, str) and _DIGITS.fullmatch(nanoseconds)
    number = int(nanoseconds) if is_text else nanoseconds
    if type(number) is not int or not 0 < number < _MAX_NANOSECONDS:
        return None
    try:
        return _EPOCH + timedelta(microseconds=number // 1000)
    except OverflowError:
        return None


def unfold_json(value: Any) -> Any:
    """Decode a text that is JSON of an object or array; anything else is unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value_inside = try_decode_json(value)
        return value if value_inside is None else value_inside
    return value


def text_or_json(value: Any) -> str:
    """Return a text unchanged, anything else as JSON."""
    if isinstance(value, str):
        return clean_unicode(value)
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.EncodeError, UnicodeEncodeError, OverflowError, RecursionError, TypeError):
        return clean_unicode(str(value))


# Usage and content of messages, in the shapes that providers and agents use.


def uncached_input_tokens(total: int | None, read: int | None, write: int | None) -> int | None:
    """Return input without cache reads and writes, if the count includes them."""
    if total is None:
        return None
    # Some clients count cache reads, but not cache writes.
    within = (cached for cached in ((read or 0) + (write or 0), read or 0) if cached <= total)
    return total - next(within, 0)


def make_usage(
    input_tokens: int | None,
    output_tokens: int | None,
    *,
    read: int | None = None,
    write: int | None = None,
    reasoning: int | None = None,
    cost: float | None = None,
) -> Usage:
    """Return the usage of a recording: input without cache reads (`read`) and writes."""
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=reasoning,
        cost=cost,
        cost_from=None if cost is None else "reported",
    )


def usage_from_openai(value: object, cost: object = None) -> Usage:
    """Return the usage of a chat completion or response; only zeros is unknown."""
    fields = as_mapping(value)
    input_tokens = _first_count(fields, "prompt_tokens", "input_tokens")
    output = _first_count(fields, "completion_tokens", "output_tokens")
    input_details = as_mapping(
        fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    )
    output_details = as_mapping(
        fields.get("completion_tokens_details") or fields.get("output_tokens_details")
    )
    read = _first_count(fields, "cache_read_input_tokens", "cache_read_tokens")
    read = read or _first_count(input_details, "cached_tokens") or read
    write = _first_count(fields, "cache_creation_input_tokens", "cache_write_tokens")
    paid = as_amount(cost) or as_amount(fields.get("cost")) or None
    if not any((input_tokens, output, read, write)):
        return make_usage(None, None, cost=paid)
    reasoning = _first_count(output_details, "reasoning_tokens")
    return make_usage(
        uncached_input_tokens(input_tokens, read, write),
        output,
        read=read,
        write=write,
        reasoning=reasoning or _first_count(fields, "reasoning_tokens"),
        cost=paid,
    )


def _first_count(fields: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        if name in fields and (number := as_count(fields[name])) is not None:
            return number
    return None


def content_text(
    content: object, name_part: Callable[[dict[str, Any]], str | None] | None = None
) -> str:
    """Return the text of a content or list of parts; `name_part` names those without text."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in as_list(content):
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str) and isinstance(part, dict) and name_part is not None:
            text = name_part(part)
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)


def with_total_cost(usage: Usage, cost: object) -> Usage:
    """Return the turns' sum with the cost that a recording states for all."""
    paid = as_amount(cost) or None
    if paid is None:
        return usage
    return msgspec.structs.replace(usage, cost=paid, cost_from="reported")
