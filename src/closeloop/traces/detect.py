"""Which reader a file is for, by what it contains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from closeloop import plugins
from closeloop.model.protocols import Reader, Source

START_BYTES = 12
MOST_STARTS = 1000

_likely: dict[bytes, list[Reader]] = {}
"""Readers, the last to recognise a file that began with the same bytes first."""


@cache
def readers() -> Sequence[Reader]:
    """Every reader that is installed, in a fixed order."""
    return plugins.every("readers")


def reader_of(source: Source) -> Reader | None:
    """The one reader that recognises a file. Formats exclude each other: a test sees to that."""
    if len(_likely) > MOST_STARTS:
        _likely.clear()
    likely = _likely.setdefault(source.head[:START_BYTES], list(readers()))
    for place, reader in enumerate(likely):
        if reader.recognises(source):
            likely.insert(0, likely.pop(place))
            return reader
    return None
