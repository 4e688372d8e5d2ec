"""Text that nobody vouches for, as Markdown that shows it and does nothing else.

A pull request may be written by anyone: what it says must not mention people, refer to other
issues, load pictures, open or close elements, or leave its place in a table.
"""

from __future__ import annotations

import re

from closeloop.model.visible import visible

# By their numbers, signs are shown and never obeyed. But hosts look for people, issues and
# addresses in what is shown: a space of no width keeps them from finding any.
_CUT = "\u200b"
_SHOWN = str.maketrans(
    {sign: f"&#{ord(sign)};" for sign in f"&<>\\`*_[]|~!{_CUT}"} | {"$": "<span>$</span>"}
)
_SOUGHT = re.compile(r"""@|[#!~%&$](?=[\w"])|:(?=//)|\bwww(?=\.)|\bgh(?=-\d)""", re.IGNORECASE)
_LISTED = re.compile(r"[-+=#]|\d{1,9}[.)]")


def prose(text: str, limit: int = 500) -> str:
    """One line, in which what stands between backticks is code; a dash for nothing."""
    parts = one_line(text, limit).split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    shown = "".join(
        (code(part, limit) if part else plain("``")) if number % 2 else plain(part)
        for number, part in enumerate(parts)
    )
    listed = _LISTED.match(shown)
    if listed:
        return f"{listed[0][:-1]}\\{shown[listed.end() - 1 :]}"
    return shown or "–"


def code(text: str, limit: int = 300) -> str:
    """A name, a path or a command, also within a table."""
    text = one_line(text, limit)
    if text and not set(text) & set("`|\\"):
        return f"`{text}`"
    return f"<code>{plain(text)}</code>"


def block(text: str, limit: int = 4_000) -> str:
    """Lines of output as they are, their end rather than their beginning."""
    text = visible(text).strip("\n")
    text = text if len(text) <= limit else f"…{text[-limit:]}"
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def one_line(text: str, limit: int) -> str:
    """Its words with single spaces between them, cut where it is too long."""
    text = " ".join(visible(text[: limit * 4]).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def plain(text: str) -> str:
    """Signs and nothing else, also where HTML is read and no Markdown."""
    return _SOUGHT.sub(rf"\g<0>{_CUT}", text).translate(_SHOWN)
