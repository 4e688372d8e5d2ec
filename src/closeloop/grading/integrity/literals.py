"""Change a literal to another of the same type, as Go and Rust write them."""

from __future__ import annotations

import random
import re

_NUMBER_SUFFIX = re.compile(r"_?(?:[iu](?:8|16|32|64|128|size)|f32|f64)$")
_RADIX = re.compile(r"0[xXbBoO]")


def change_literal(text: str, rng: random.Random) -> str | None:
    """Return a literal that differs in value; None for one that is not understood."""
    if text in ("true", "false"):
        return "false" if text == "true" else "true"
    if text[0].isdigit():
        return _change_number(text, rng)
    if text.endswith("'"):
        return _change_character(text, rng)
    return _change_string(text, rng)


def _change_number(text: str, rng: random.Random) -> str | None:
    suffix = "" if _RADIX.match(text) else _matched_suffix(text)
    digits = text[: len(text) - len(suffix)].replace("_", "")
    if _RADIX.match(digits) or digits.isdigit():
        return _change_integer(digits, suffix, rng)
    try:
        value = float(digits)
    except ValueError:
        return None
    return f"{_change_float(value)!r}{suffix}"


def _change_float(value: float) -> float:
    """Whole numbers stay whole, as Go takes them for integers too."""
    if value.is_integer() and value < 1 << 24:
        return value - 1 if value else 1.0
    return value / 2


def _matched_suffix(text: str) -> str:
    match = _NUMBER_SUFFIX.search(text)
    return match[0] if match else ""


def _change_integer(digits: str, suffix: str, rng: random.Random) -> str | None:
    """A smaller number fits wherever the number did; 0 becomes 1."""
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return None  # octal in Go, decimal in Rust
    try:
        value = int(digits, 0)
    except ValueError:
        return None
    return f"{max(value - rng.randint(1, 9), 0) if value else 1}{suffix}"


def _change_character(text: str, rng: random.Random) -> str:
    prefix = "b" if text.startswith("b") else ""
    other = rng.choice([letter for letter in "abcdefghijklmnop" if f"'{letter}'" not in text])
    return f"{prefix}'{other}'"


def _change_string(text: str, rng: random.Random) -> str | None:
    """Append letters; a byte string keeps its length, which is part of its type in Rust."""
    quote = "`" if text.endswith("`") else '"'
    end = text.rfind(quote)
    if end <= text.find(quote):
        return None
    letters = "".join(rng.choices("abcdefghijklmnop", k=6))
    if not text.startswith("b"):
        return f"{text[:end]}{letters}{text[end:]}"
    last = re.search(r'(?<!\\)[a-z](?="#*$)', text)
    if last is None:
        return None
    other = "x" if last[0] != "x" else "y"
    return f"{text[: last.start()]}{other}{text[last.end() :]}"
