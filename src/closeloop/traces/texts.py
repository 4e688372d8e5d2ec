"""Texts as recordings hold them, made safe to store: valid Unicode, and not without end."""

from __future__ import annotations

from typing import Any

import msgspec

TEXT_CHARACTERS = 1 << 20
NOTE_CHARACTERS = 2000
SHORTENED = "text shortened"


def clean(text: str) -> str:
    """Without NULs and lone halves of surrogate pairs, which databases and UTF-8 refuse."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # By way of UTF-16, two halves that belong together become the character they mean.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def shortened(text: str, skipped: dict[str, int] | None = None, most: int = TEXT_CHARACTERS) -> str:
    """Clean, and with the middle left out (and counted) where it is longer than `most`."""
    if len(text) > most:
        left_out = len(text) - most
        head = most // 2
        text = f"{text[:head]}\n[{left_out} characters left out]\n{text[head + left_out :]}"
        if skipped is not None:
            skipped[SHORTENED] = skipped.get(SHORTENED, 0) + 1
    return clean(text)


def tidy(value: Any, skipped: dict[str, int] | None = None, depth: int = 40) -> Any:
    """A JSON value with every text in it shortened and clean, and no deeper than can be stored."""
    if isinstance(value, str):
        return shortened(value, skipped)
    if isinstance(value, dict | list) and depth == 0:
        return "[too deep]"
    if isinstance(value, dict):
        return {clean(key): tidy(item, skipped, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [tidy(item, skipped, depth - 1) for item in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    return value


def raw(value: Any) -> str:
    """A record as JSON text, for a note on what nobody knows."""
    try:
        text = msgspec.json.encode(value).decode()
    except (ValueError, TypeError, RecursionError):
        text = repr(type(value))
    return shortened(text, most=NOTE_CHARACTERS)
