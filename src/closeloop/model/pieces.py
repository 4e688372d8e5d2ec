"""A request cut into pieces that the next request of the conversation has again.

An agent sends all that was said each time. Cut where values end, what was there before is the
same piece as before, so that n turns need the room of one conversation and not of n.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

LEAST_BYTES = 2048
"""A piece has as many, unless the value it is part of ends."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


def pieces(body: bytes) -> list[bytes]:
    """What gives the body, byte for byte, when it is joined."""
    try:
        values = list(_fields.decode(body).values())
    except (ValueError, RecursionError):
        return [body] if body else []
    cuts: list[int] = []
    place = 0
    for value in values:
        for item in _within(bytes(value)):
            # Wherever a search leads, a cut only decides what can be shared.
            found = body.find(item, place)
            place = place if found < 0 else found + len(item)
            if place - (cuts[-1] if cuts else 0) >= LEAST_BYTES:
                cuts.append(place)
        if place - (cuts[-1] if cuts else 0) >= LEAST_BYTES // 8:
            cuts.append(place)
    edges = [0, *cuts, len(body)]
    return [body[one:other] for one, other in pairwise(edges) if one < other]


def _within(value: bytes) -> list[bytes]:
    if not value.startswith(b"["):
        return [value]
    try:
        return [bytes(item) for item in _items.decode(value)]
    except (ValueError, RecursionError):
        return [value]
