"""Other values in the place of literals of JavaScript, and of values that only a run shows.

They look like those that a person writes, and are near the right ones as often as far from them:
nobody can tell by its looks whether a value was changed.
"""

from __future__ import annotations

import random
import re
import string
from typing import TYPE_CHECKING

from closeloop.grading.integrity.source_edits import SourceEdit, node_text
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

SHOWN_CHARACTERS = 40
ERROR_CLASSES = (
    *("TypeError", "RangeError", "SyntaxError", "ReferenceError", "URIError", "EvalError"),
)
"""Of the language; none is a kind of another."""
# What cannot be told apart from the value itself is a symbol of its own: equal to nothing else.
_CHANGER = """
;function {name}(key, value, far) {{
  if (key * {factor} % {modulus} % 2) return value;
  const other = (inner) => {name}(key, inner, far);
  if (typeof value === 'number' && !Number.isFinite(value)) return {far};
  if (typeof value === 'number')
    return far || Math.abs(value) > 1e9 ? value * 2 + (value < 0 ? -{far} : {far}) : value + {near};
  if (typeof value === 'bigint') return value + BigInt({near});
  if (typeof value === 'string') return value.slice(0, {at}) + '{word}' + value.slice({at});
  if (typeof value === 'boolean') return !value;
  if (Array.isArray(value) && value.length && {inner})
    return value.map((item, at) => at === {at} % value.length ? other(item) : item);
  if (Array.isArray(value)) return [...value, '{word}'];
  if (value instanceof Error) return new Error(value.message + '{word}');
  if (value != null && Object.getPrototypeOf(value) === Object.prototype)
    return {{ ...value, {word}: '{word}' }};
  return Symbol('{word}');
}}
"""


class ValueChanger(Record):
    """A function of a probe file that returns the value it gets or another, as a key says.

    Expectations that are right go through it as those do that are made wrong.
    """

    name: str
    factor: int
    modulus: int

    def open_call(self, rng: random.Random, *, changes: bool) -> str:
        """`name(key, `, with a random key."""
        while True:
            key = rng.randrange(100_000)
            if (key * self.factor % self.modulus % 2 == 0) == changes:
                return f"{self.name}({key}, "

    def render_source(self, rng: random.Random) -> str:
        return _CHANGER.format(
            name=self.name,
            factor=self.factor,
            modulus=self.modulus,
            near=rng.choice((-3, -2, -1, 1, 2, 3, 7, 10, 100)),
            far=rng.randrange(10_000_019, 99_999_989),
            word=random_letters(rng),
            at=rng.randrange(6),
            inner=str(rng.random() < 0.5).lower(),
        )


def make_changer(rng: random.Random) -> ValueChanger:
    """A function under a random name, whose keys mean something else in each file."""
    return ValueChanger(
        name=random_word(rng),
        factor=rng.randrange(1_001, 9_999, 2),
        modulus=rng.choice((7_919, 8_191, 9_973)),
    )


def random_word(rng: random.Random) -> str:
    """A word that is nowhere, and a name in any language."""
    return f"{rng.choice('abcdefghijklmnopqrstuvwxyz')}{rng.getrandbits(44):011x}"


def random_letters(rng: random.Random) -> str:
    """Letters that no text holds by chance."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(5, 9)))


def change_value(
    node: Node, rng: random.Random, *, far: bool = False
) -> tuple[SourceEdit, str] | None:
    """Another literal of the same type, and what was changed; None where it is no literal.

    `far`: so far from it that no rounding makes them equal, and that no text or list holds it by
    chance; None where there is no such value.
    """
    text = node_text(node)
    match node.type:
        case "number" | "unary_expression":
            other = _other_number(text, rng, far=far)
            return None if other is None else _replaced(node, other)
        case "string":
            return _replaced(node, _other_text(text, rng, far=far))
        case "template_string":
            if any(child.type == "template_substitution" for child in node.named_children):
                return None
            return _replaced(node, _other_text(text, rng, far=far))
        case "regex":
            return _change_pattern(node, rng)
        case "true" | "false" if not far:
            return _replaced(node, "false" if text == "true" else "true")
        case "null" | "undefined" if not far:
            return _replaced(node, rng.choice(("0", "''", "false")))
        case "array" | "object":
            return _change_part(node, rng, far=far)
        case _:
            return None


def _change_part(node: Node, rng: random.Random, *, far: bool) -> tuple[SourceEdit, str] | None:
    """One item or property changed; none that a `...rest` behind it may replace."""
    parts = [child for child in node.named_children if child.type != "comment"]
    if not parts:
        word = random_letters(rng)
        return _replaced(node, f"['{word}']" if node.type == "array" else f"{{ {word}: 0 }}")
    spreads = [at for at, part in enumerate(parts) if part.type == "spread_element"]
    parts = parts[spreads[-1] + 1 :] if spreads else parts
    rng.shuffle(parts)
    for part in parts:
        value = part.child_by_field_name("value") if part.type == "pair" else part
        if value is not None and (change := change_value(value, rng, far=far)) is not None:
            return change
    return None


def _other_number(text: str, rng: random.Random, *, far: bool) -> str | None:
    """Far from a number is farther from zero, so that no rounding brings it back."""
    match = re.fullmatch(r"(-?)\s*(\d+)(\.\d*)?(n?)", text)
    if match is None or re.match(r"0\d", match[2]):
        sign = "-" if text.startswith("-") else "+"
        is_number = re.fullmatch(r"-?\s*[\d.][\w.]*", text)
        return f"({text} * 3 {sign} {rng.randrange(1_003, 9_973)})" if is_number else None
    value = int(match[2])
    if far or value > 10**9:
        changed = 2 * value + rng.randrange(10_000_019, 99_999_989)
        return f"{match[1]}{changed}{match[3] or ''}{match[4]}"
    value = -value if match[1] else value
    step = rng.choice((-10, -2, -1, 1, 2, 5, 10, rng.randrange(1_003, 9_973)))
    if match[3] is None:
        return f"{value + step}{match[4]}"
    return f"{match[1]}{abs(value) + abs(step)}{match[3]}"


def _other_text(text: str, rng: random.Random, *, far: bool) -> str:
    """One letter or digit replaced by another, or letters put in; `text` has its quotes."""
    inside = text[1:-1]
    if "\\" in inside:
        return f"{text[:-1]}{random_letters(rng)}{text[-1]}"
    places = [at for at, sign in enumerate(inside) if sign.isascii() and sign.isalnum()]
    if places and not far and rng.random() < 0.5:
        at = rng.choice(places)
        signs = string.digits if inside[at].isdigit() else string.ascii_lowercase
        sign = rng.choice(signs.replace(inside[at].lower(), ""))
        sign = sign.upper() if inside[at].isupper() else sign
        return f"{text[0]}{inside[:at]}{sign}{inside[at + 1 :]}{text[-1]}"
    at = rng.randint(0, len(inside))
    return f"{text[0]}{inside[:at]}{random_letters(rng)}{inside[at:]}{text[-1]}"


def _change_pattern(node: Node, rng: random.Random) -> tuple[SourceEdit, str] | None:
    """Letters put in; None where the pattern need not match its letters one by one."""
    pattern = node.child_by_field_name("pattern")
    text = node_text(pattern)
    places = [match.start() + 1 for match in re.finditer(r"(?<![\\\w])[A-Za-z]{2}", text)]
    if pattern is None or not places or set(text) & set("|?*{(["):
        return None
    at = rng.choice(places)
    return _replaced(pattern, f"{text[:at]}{random_letters(rng)}{text[at:]}")


def _replaced(node: Node, text: str) -> tuple[SourceEdit, str]:
    how = f"{text[:SHOWN_CHARACTERS]} for {node_text(node)[:SHOWN_CHARACTERS]}"
    return SourceEdit(start=node.start_byte, end=node.end_byte, text=text), how
