"""Values that are not equal to those a Python test expects, near to them or far from them."""

from __future__ import annotations

import random
import string
from typing import Any

from closeloop.records.record import Record

HELPERS = """
{kept} = []
def {is_same}(key):
    return key * {factor} % {prime} % 2 == 1
def {helper}(value, key, far=False):
    if {is_same}(key):
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, complex)):
        return value + (abs(value) * 3 + {far} if far else -{near} if value.real < 0 else {near})
    if isinstance(value, float):
        changed = value * 3 + {far} if far or abs(value) > 1e9 else value + {near}
        return changed if changed - changed == 0 and changed != value else {text!r}
    if isinstance(value, str):
        return value[:{place}] + {text!r} + value[{place}:]
    if isinstance(value, bytes):
        return value + {text!r}.encode()
    if type(value) in (list, tuple) and value and {inner}:
        at = {place} % len(value)
        return type(value)([*value[:at], {helper}(value[at], key, far), *value[at + 1:]])
    if type(value) in (list, tuple, set, frozenset):
        return type(value)([*value, {text!r}])
    if type(value) is dict and value and {inner}:
        one = list(value)[{place} % len(value)]
        return {{**value, one: {helper}(value[one], key, far)}}
    if type(value) is dict:
        return {{**value, {text!r}: {near}}}
    try:
        changed = value + {near}
        if type(changed) is type(value) and changed != value:
            return changed
    except Exception:
        pass
    return {text!r}
def {keep}(value, key):
    {kept}.append(value)
    return {helper}(value, key)
def {restore}():
    return {kept}.pop()
def {other_error}(expected, key, *others):
    if {is_same}(key):
        return expected
    known = expected if isinstance(expected, tuple) else (expected,)
    for other in others:
        if not any(issubclass(one, other) or issubclass(other, one) for one in known):
            return other
    return expected
def {settle}(label, key, held):
    {report}(label, held)
    return held != {is_same}(key)
def {fill}(context, error):
    if hasattr(context, "fill_unfilled"):
        context.fill_unfilled((type(error), error, error.__traceback__))
    else:
        context.exception = error
"""
"""What a file with wrong assertions needs. A key says whether a value is left as it is, or changed
in a way that equality must see; another error is one that has nothing to do with the expected."""


class Names(Record):
    """Random names and values, the same throughout one file."""

    is_same: str
    helper: str
    keep: str
    """Changes a variable, until `restore` gives back what it was."""
    restore: str
    kept: str
    other_error: str
    settle: str
    """Reports, and says whether the assertion as it was would have failed."""
    fill: str
    """Gives the context of `raises(…) as caught` the error that was raised."""
    report: str
    """The function by which an assertion says whether it held."""
    watch: str
    """Keeps in mind what of a module nobody may exchange."""
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


FUNCTIONS = (
    *("is_same", "helper", "keep", "restore", "kept", "other_error", "settle", "fill", "report"),
    "watch",
)


def random_names(rng: random.Random) -> Names:
    """Names and values that cannot be guessed."""
    # From 9,990 on there is a factor by which every key gives an odd number.
    factor, prime = rng.randrange(1_000, 9_990), 10_007
    keys = rng.sample(range(100, 999), 899)
    return Names(
        **{name: f"_{rng.getrandbits(48):012x}" for name in FUNCTIONS},
        factor=factor,
        prime=prime,
        same_key=next(key for key in keys if key * factor % prime % 2),
        other_key=next(key for key in keys if not key * factor % prime % 2),
        near=rng.choice((1, 1, 2, 3, 4, 5)),
        far=rng.randrange(10_000_019, 99_999_989),
        text=random_word(rng),
        place=rng.randrange(6),
        inner=rng.random() < 0.5,
    )


def render_helpers(names: Names) -> str:
    """The source that a file with wrong tests needs."""
    return HELPERS.format_map({field: getattr(names, field) for field in names.__struct_fields__})


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
            return value + _choose_step(value, rng)
        case str():
            return _change_text(value, rng, far=far)
        case bytes():
            return value + random_word(rng).encode()
        case None:
            return random_word(rng)
        case dict() | list() | tuple() | set():
            return _change_collection(value, rng, far=far)
        case _:
            return value


def _choose_step(value: float, rng: random.Random) -> int:
    """To a number that looks as likely: of the same sign, and about as long."""
    size = abs(value)
    steps = [step for step in (-9, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 9) if step >= -size]
    steps = [step for step in steps if len(str(int(size + step))) == len(str(int(size)))] or [1]
    step = rng.choice(steps)
    return -step if value < 0 else step


def _change_text(value: str, rng: random.Random, *, far: bool) -> str:
    """With one letter or digit replaced by another, or with letters put in somewhere."""
    places = [at for at, sign in enumerate(value) if sign.isascii() and sign.isalnum()]
    if places and not far and rng.random() < 0.8:
        at = rng.choice(places)
        signs = string.digits if value[at].isdigit() else string.ascii_lowercase
        sign = rng.choice(signs.replace(value[at].lower(), ""))
        return value[:at] + (sign.upper() if value[at].isupper() else sign) + value[at + 1 :]
    at = rng.randint(0, len(value))
    return value[:at] + random_word(rng) + value[at:]


def _change_collection(value: Any, rng: random.Random, *, far: bool) -> object:
    """With one of its items changed; an empty one gets an item."""
    text = random_word(rng)
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


def random_word(rng: random.Random) -> str:
    """Letters that no text holds by chance."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(5, 9)))
