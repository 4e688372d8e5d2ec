"""Text that nobody vouches for, made safe to look at."""

from __future__ import annotations

# What an agent wrote may hold codes that move the cursor, retitle the window or reorder text.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
_REORDERING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_VISIBLE = _CONTROLS | _REORDERING | {0x0D: "", **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}


def visible(text: str) -> str:
    """The text with everything a terminal would obey made plain to see."""
    return text.translate(_VISIBLE)
