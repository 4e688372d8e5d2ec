"""A request cut into pieces that the next request of the conversation has again.

An agent sends all that was said each time. Cut where values end, what was there before is the
same piece as before, so that n turns need the room of one conversation and not of n.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

MIN_PIECE_BYTES = 2048
"""A piece has as many, unless the value it is part of ends."""

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def split_into_pieces(body: bytes) -> list[bytes]:
    """What gives the body, byte for byte, when it is joined."""
    try:
        values = list(_fields_decoder.decode(body).values())
    except (ValueError, RecursionError):
        return [body] if body else []
    cuts: list[int] = []
    place = 0
    for value in values:
        for item in _array_items(bytes(value)):
            # Wherever a search leads, a cut only decides what can be shared.
            offset = body.find(item, place)
            place = place if offset < 0 else offset + len(item)
            if place - (cuts[-1] if cuts else 0) >= MIN_PIECE_BYTES:
                cuts.append(place)
        if place - (cuts[-1] if cuts else 0) >= MIN_PIECE_BYTES // 8:
            cuts.append(place)
    edges = [0, *cuts, len(body)]
    return [body[one:other] for one, other in pairwise(edges) if one < other]


def _array_items(value: bytes) -> list[bytes]:
    if not value.startswith(b"["):
        return [value]
    try:
        return [bytes(item) for item in _items_decoder.decode(value)]
    except (ValueError, RecursionError):
        return [value]
