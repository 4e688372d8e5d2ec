"""Values that are not equal to those a Python test expects, near to them or far from them."""

from __future__ import annotations

import random
import string
from typing import Any

from closeloop.records.record import Record

HELPER = """
def {name}(value, key, far=False):
    if key * {factor} % {prime} % 2:
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, complex)):
        return value + (abs(value) * 3 + {far} if far else {near})
    if isinstance(value, float):
        changed = value * 3 + {far} if far or abs(value) > 1e9 else value + {near}
        return changed if changed - changed == 0 and changed != value else object()
    if isinstance(value, str):
        return value[:{place}] + {text!r} + value[{place}:]
    if isinstance(value, bytes):
        return value + {text!r}.encode()
    if type(value) in (list, tuple) and value and {inner}:
        at = {place} % len(value)
        return type(value)([*value[:at], {name}(value[at], key, far), *value[at + 1:]])
    if type(value) in (list, tuple, set, frozenset):
        return type(value)([*value, {text!r}])
    if type(value) is dict and value and {inner}:
        one = list(value)[{place} % len(value)]
        return {{**value, one: {name}(value[one], key, far)}}
    if type(value) is dict:
        return {{**value, {text!r}: {near}}}
    return object()
"""
"""What changes a value that is known only when the test runs, in a way that equality must see, or
leaves it as it is: its key says which."""


class Names(Record):
    """Random names and values, the same throughout one file."""

    helper: str
    factor: int
    prime: int
    same_key: int
    """A key that leaves values as they are."""
    other_key: int
    """A key that changes values."""
    near: int
    far: int
    text: str
    place: int
    """Where in a text or a collection something is changed."""
    inner: bool
    """Whether an item of a collection is changed, rather than one added."""
    report: str
    """The function by which an assertion says whether it held."""


def random_names(rng: random.Random) -> Names:
    """Names and values that cannot be guessed."""
    factor, prime = rng.randrange(1_000, 9_999), 10_007
    keys = rng.sample(range(100, 999), 60)
    return Names(
        factor=factor,
        prime=prime,
        same_key=next(key for key in keys if key * factor % prime % 2),
        other_key=next(key for key in keys if not key * factor % prime % 2),
        helper=f"_{rng.getrandbits(48):012x}",
        report=f"_{rng.getrandbits(48):012x}",
        near=rng.choice((-3, -2, -1, 1, 2, 3, 7, 10, 100)),
        far=rng.randrange(10_000_019, 99_999_989),
        text=_random_word(rng),
        place=rng.randrange(6),
        inner=rng.random() < 0.5,
    )


def render_helper(names: Names) -> str:
    """The source that a file with wrong tests needs."""
    values = {field: getattr(names, field) for field in names.__struct_fields__}
    return HELPER.format(name=values.pop("helper"), **values)


def change_python_literal(value: object, rng: random.Random, *, far: bool = False) -> object:
    """Another value of the same type, not equal to the first; the value itself where none is.

    `far`: so far from it that no tolerance makes them equal, and that no text holds it by chance.
    """
    match value:
        case bool():
            return not value
        case int() | float() if far:
            return value + 3 * abs(value) + rng.randrange(10_000_019, 99_999_989)
        case int() | float() if abs(value) > 1e9:
            return value * (3 if isinstance(value, float) else 1) + rng.randrange(1_003, 9_973)
        case int() | float():
            return value + rng.choice((-10, -2, -1, 1, 2, 5, 10, rng.randrange(1_003, 9_973)))
        case str():
            return _change_text(value, rng, far=far)
        case bytes():
            return value + _random_word(rng).encode()
        case None:
            return _random_word(rng)
        case dict() | list() | tuple() | set():
            return _change_collection(value, rng, far=far)
        case _:
            return value


def _change_text(value: str, rng: random.Random, *, far: bool) -> str:
    """With one letter or digit replaced by another, or with letters put in somewhere."""
    places = [at for at, sign in enumerate(value) if sign.isascii() and sign.isalnum()]
    if places and not far and rng.random() < 0.5:
        at = rng.choice(places)
        signs = string.digits if value[at].isdigit() else string.ascii_lowercase
        sign = rng.choice(signs.replace(value[at].lower(), ""))
        return value[:at] + (sign.upper() if value[at].isupper() else sign) + value[at + 1 :]
    at = rng.randint(0, len(value))
    return value[:at] + _random_word(rng) + value[at:]


def _change_collection(value: Any, rng: random.Random, *, far: bool) -> object:
    """With one of its items changed; an empty one gets an item."""
    text = _random_word(rng)
    if isinstance(value, dict):
        key = rng.choice(list(value)) if value else text
        return {**value, key: change_python_literal(value.get(key), rng, far=far)}
    if isinstance(value, set):
        return {*value, text}
    at = rng.randrange(len(value)) if value else 0
    items = [
        change_python_literal(item, rng, far=far) if index == at else item
        for index, item in enumerate(value)
    ]
    return type(value)(items or [text])


def _random_word(rng: random.Random) -> str:
    """Letters that no text holds by chance."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(5, 9)))
