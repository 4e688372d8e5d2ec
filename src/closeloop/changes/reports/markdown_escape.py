"""Text that nobody vouches for, as Markdown that shows it and does nothing else.

A pull request may be written by anyone: what it says must not mention people, refer to other
issues, load pictures, open or close elements, or leave its place in a table.
"""

from __future__ import annotations

import re

from closeloop.records.visible_text import make_visible

# By their numbers, signs are shown and never obeyed. But hosts look for people, issues and
# addresses in what is shown: a space of no width keeps them from finding any.
_ZERO_WIDTH_SPACE = "\u200b"
_ESCAPES = str.maketrans(
    {sign: f"&#{ord(sign)};" for sign in f"&<>\\`*_[]|~!{_ZERO_WIDTH_SPACE}"}
    | {"$": "<span>$</span>"}
)
_REFERENCE = re.compile(r"""@|[#!~%&$](?=[\w"])|:(?=//)|\bwww(?=\.)|\bgh(?=-\d)""", re.IGNORECASE)
_LIST_MARKER = re.compile(r"[-+=#]|\d{1,9}[.)]")


def escape_prose(text: str, limit: int = 500) -> str:
    """One line, in which what stands between backticks is code; a dash for nothing."""
    parts = truncate_to_line(text, limit).split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    escaped = "".join(
        (escape_code(part, limit) if part else escape_text("``"))
        if number % 2
        else escape_text(part)
        for number, part in enumerate(parts)
    )
    listed = _LIST_MARKER.match(escaped)
    if listed:
        return f"{listed[0][:-1]}\\{escaped[listed.end() - 1 :]}"
    return escaped or "–"


def escape_code(text: str, limit: int = 300) -> str:
    """A name, a path or a command, also within a table."""
    text = truncate_to_line(text, limit)
    if text and not set(text) & set("`|\\"):
        return f"`{text}`"
    return f"<code>{escape_text(text)}</code>"


def fence_output(text: str, limit: int = 4_000) -> str:
    """Lines of output as they are, their end rather than their beginning."""
    text = make_visible(text).strip("\n")
    text = text if len(text) <= limit else f"…{text[-limit:]}"
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def truncate_to_line(text: str, limit: int) -> str:
    """Its words with single spaces between them, cut where it is too long."""
    text = " ".join(make_visible(text[: limit * 4]).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def escape_text(text: str) -> str:
    """Signs and nothing else, also where HTML is read and no Markdown."""
    return _REFERENCE.sub(rf"\g<0>{_ZERO_WIDTH_SPACE}", text).translate(_ESCAPES)
