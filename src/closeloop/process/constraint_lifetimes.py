"""How long what the user forbade or demanded holds."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.process.reading_cache import cache_on_reading
from closeloop.process.text_words import MAX_TEXT_CHARS
from closeloop.process.user_constraints import (
    MAX_CONSTRAINTS,
    ConstraintKind,
    UserConstraint,
    parse_constraints,
)
from closeloop.records.trace import Message
from closeloop.records.trace_steps import LaneReading


@cache_on_reading
def list_constraints(lane: LaneReading) -> Sequence[UserConstraint]:
    """What the user's messages state, each with where it ends."""
    messages = lane.users
    placed_constraints: list[UserConstraint] = []
    for place, message in enumerate(messages):
        for one in parse_constraints(message.text):
            if len(placed_constraints) < MAX_CONSTRAINTS:
                end = _find_constraint_end(one, messages[place + 1 : place + 1 + MAX_CONSTRAINTS])
                placed_constraints.append(_place_constraint(one, message.number, end))
    return placed_constraints


def constraints_from_brief(brief: str, number: int) -> Sequence[UserConstraint]:
    """What a brief states holds for the whole of the child's work."""
    return [_place_constraint(one, number, None) for one in parse_constraints(brief)]


def _place_constraint(one: UserConstraint, number: int, until: int | None) -> UserConstraint:
    return UserConstraint(
        kind=one.kind,
        words=one.words,
        objects=one.objects,
        passing=one.passing,
        number=number,
        until=until,
    )


def _find_constraint_end(one: UserConstraint, later: Sequence[Message]) -> int | None:
    """Where the user speaks of the object again, other than to forbid it once more."""
    words = _LIFTING_WORDS.get(one.kind, ()) or tuple(
        name.rstrip("*/").rpartition("/")[2].lower().removeprefix("the ").rstrip("s")
        for name in one.objects
    )
    for message in later:
        is_repeated = any(other.kind == one.kind for other in parse_constraints(message.text))
        if is_repeated:
            continue
        if one.passing or (one.kind == "only" and message.intent not in ("answer", "interrupt")):
            return message.number
        lowercase_text = message.text[:MAX_TEXT_CHARS].lower()
        if any(word in lowercase_text for word in words if word):
            return message.number
    return None


_LIFTING_WORDS: dict[ConstraintKind, tuple[str, ...]] = {
    "dependencies": ("install", "dependenc", "package", "librar"),
    "no new files": ("create", "new file", "write"),
    "signature": ("signature", "parameter", "argument"),
    "tabs": ("tabs", "spaces", "indent"),
    "spaces": ("tabs", "spaces", "indent"),
}
