"""How long what the user forbade or demanded holds."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.model.steps import LaneReading
from closeloop.model.trace import Message
from closeloop.process.constraints import MOST, Constraint, Kind, stated
from closeloop.process.once import once
from closeloop.process.words import TEXT


@once
def constraints(lane: LaneReading) -> Sequence[Constraint]:
    """What the user's messages state, each with where it ends."""
    said = lane.users
    held: list[Constraint] = []
    for place, message in enumerate(said):
        for one in stated(message.text):
            if len(held) < MOST:
                end = _end(one, said[place + 1 : place + 1 + MOST])
                held.append(_placed(one, message.number, end))
    return held


def of_brief(brief: str, number: int) -> Sequence[Constraint]:
    """What a brief states holds for the whole of the child's work."""
    return [_placed(one, number, None) for one in stated(brief)]


def _placed(one: Constraint, number: int, until: int | None) -> Constraint:
    return Constraint(
        kind=one.kind,
        words=one.words,
        objects=one.objects,
        passing=one.passing,
        number=number,
        until=until,
    )


def _end(one: Constraint, later: Sequence[Message]) -> int | None:
    """Where the user speaks of the object again, other than to forbid it once more."""
    words = _LIFTS.get(one.kind, ()) or tuple(
        name.rstrip("*/").rpartition("/")[2].lower().removeprefix("the ").rstrip("s")
        for name in one.objects
    )
    for message in later:
        again = any(other.kind == one.kind for other in stated(message.text))
        if again:
            continue
        if one.passing or (one.kind == "only" and message.intent not in ("answer", "interrupt")):
            return message.number
        told = message.text[:TEXT].lower()
        if any(word in told for word in words if word):
            return message.number
    return None


_LIFTS: dict[Kind, tuple[str, ...]] = {
    "dependencies": ("install", "dependenc", "package", "librar"),
    "no new files": ("create", "new file", "write"),
    "signature": ("signature", "parameter", "argument"),
    "tabs": ("tabs", "spaces", "indent"),
    "spaces": ("tabs", "spaces", "indent"),
}
