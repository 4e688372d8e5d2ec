"""Texts as recordings hold them, made safe to store: valid Unicode, and not without end."""

from __future__ import annotations

MAX_TEXT_CHARS = 1 << 20
MAX_NOTE_CHARS = 2000
SHORTENED = "text shortened"
SHORT_TEXT_CHARS = 200
MAX_SESSION_CHARS = 48 << 20
"""Characters that are kept of one session; the rest of what is long is shortened more."""


class SkipCounts(dict[str, int]):
    """What was left out, and how often; and how much room is left for what is kept."""

    room = MAX_SESSION_CHARS


def clean_unicode(text: str) -> str:
    """Without NULs and lone halves of surrogate pairs, which databases and UTF-8 refuse."""
    return join_surrogates(text.replace("\0", "\ufffd") if "\0" in text else text)


def join_surrogates(text: str) -> str:
    """Without lone halves of surrogate pairs."""
    if text.isascii():
        return text
    try:
        text.encode("utf-16-le")
    except UnicodeEncodeError:
        # Two halves that belong together become the character they mean.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def truncate_middle(
    text: str, skipped: dict[str, int] | None = None, most: int = MAX_TEXT_CHARS
) -> str:
    """Clean, and with the middle left out (and counted) where it is longer than `most`."""
    size = len(text)
    if size > SHORT_TEXT_CHARS and isinstance(skipped, SkipCounts):
        most = most if skipped.room > 0 else min(most, MAX_NOTE_CHARS)
        skipped.room -= size if size < most else most
    if size <= most:
        # Almost every text, and there are very many.
        return text if text.isascii() and "\0" not in text else clean_unicode(text)
    left_out = size - most
    head = most // 2
    text = f"{text[:head]}\n[{left_out} characters left out]\n{text[head + left_out :]}"
    if skipped is not None:
        skipped[SHORTENED] = skipped.get(SHORTENED, 0) + 1
    return clean_unicode(text)
