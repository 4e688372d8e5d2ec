"""Text that nobody vouches for, made safe to look at."""

from __future__ import annotations

import re

# What an agent wrote may hold codes that move the cursor, retitle the window or reorder text.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
_REORDERING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_VISIBLE = _CONTROLS | _REORDERING | {0x0D: "", **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}
_OBEYED_CLASS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
"""The same as a class, which is compiled when it is first needed."""


def make_visible(text: str) -> str:
    """The text with everything a terminal would obey made plain to see."""
    if text.isascii():
        return text.translate(_VISIBLE)
    # Of other text, translate would look at every character by itself.
    return re.sub(_OBEYED_CLASS, lambda found: _VISIBLE[ord(found[0])], text)


def visible_line(text: str) -> str:
    """The same, without line breaks: nothing in it passes for a line of its own."""
    return " ".join(make_visible(text).split())


def first_visible_line(text: str) -> str:
    """The first line with anything on it, as much of it as a list shows."""
    return next((line.strip()[:200] for line in text[:4000].splitlines() if line.strip()), "")
