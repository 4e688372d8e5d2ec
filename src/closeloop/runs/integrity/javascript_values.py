"""Other values in the place of literals of JavaScript, and of values that only a run shows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from closeloop.runs.integrity.source_edits import Edit, node_text

if TYPE_CHECKING:
    from tree_sitter import Node

SHOWN_CHARACTERS = 40

# What cannot be told apart from the value itself is a symbol of its own: equal to nothing else.
_HELPER = """
;function {name}(value) {{
  if (typeof value === 'number' && !Number.isFinite(value)) return {n};
  if (typeof value === 'number') return value * 2 + (value < 0 ? -{n} : {n});
  if (typeof value === 'bigint') return value + BigInt({n});
  if (typeof value === 'string') return value + '{word}';
  if (typeof value === 'boolean') return !value;
  if (Array.isArray(value)) return [...value, '{word}'];
  if (value instanceof Error) return new Error(value.message + '{word}');
  if (value != null && Object.getPrototypeOf(value) === Object.prototype)
    return {{ ...value, {word}: '{word}' }};
  return Symbol('{word}');
}}
"""


def random_word(rng: random.Random) -> str:
    """A word that is nowhere, and a name in any language."""
    return f"{rng.choice('abcdefghijklmnopqrstuvwxyz')}{rng.getrandbits(44):011x}"


def helper_source(name: str, rng: random.Random) -> str:
    """A function that returns another value of the same type."""
    return _HELPER.format(name=name, word=random_word(rng), n=rng.randrange(3, 90))


def change_value(node: Node, rng: random.Random) -> tuple[Edit, str] | None:
    """Another literal of the same type, and what was changed; None where it is no literal."""
    text = node_text(node)
    word = random_word(rng)
    match node.type:
        case "number" | "unary_expression":
            other = _other_number(node, rng)
            return None if other is None else _replaced(node, other)
        case "true":
            return _replaced(node, "false")
        case "false":
            return _replaced(node, "true")
        case "null" | "undefined":
            return _replaced(node, f"'{word}'")
        case "string":
            return _replaced(node, f"{text[:-1]}{word}{text[-1]}")
        case "template_string":
            if any(child.type == "template_substitution" for child in node.named_children):
                return None
            return _replaced(node, f"{text[:-1]}{word}`")
        case "array" | "object":
            return _change_part(node, word, rng)
        case _:
            return None


def _change_part(node: Node, word: str, rng: random.Random) -> tuple[Edit, str] | None:
    parts = [child for child in node.named_children if child.type != "comment"]
    if not parts:
        text = f"['{word}']" if node.type == "array" else f"{{ {word}: '{word}' }}"
        return _replaced(node, text)
    rng.shuffle(parts)
    for part in parts:
        value = part.child_by_field_name("value") if part.type == "pair" else part
        if value is not None and (change := change_value(value, rng)) is not None:
            return change
    return None


def _other_number(node: Node, rng: random.Random) -> str | None:
    """Farther from zero, so that no rounding brings it back."""
    text = node_text(node).replace(" ", "")
    if node.type == "unary_expression":
        operand = node.child_by_field_name("argument")
        if operand is None or operand.type != "number" or not text.startswith("-"):
            return None
    offset = rng.randrange(3, 90)
    whole = text.removeprefix("-")
    if whole.isdecimal() and len(whole) < 16 and (whole == "0" or whole[0] != "0"):
        return f"{'-' if text != whole else ''}{int(whole) * 2 + offset}"
    if whole.endswith("n"):
        return f"({text} * 2n {'-' if text != whole else '+'} {offset}n)"
    return f"({text} * 2 {'-' if text != whole else '+'} {offset})"


def _replaced(node: Node, text: str) -> tuple[Edit, str]:
    how = f"{text[:SHOWN_CHARACTERS]} for {node_text(node)[:SHOWN_CHARACTERS]}"
    return Edit(start=node.start_byte, end=node.end_byte, text=text), how
