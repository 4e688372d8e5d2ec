"""Which reader a file is for, by what it contains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from closeloop import plugins
from closeloop.records.protocols import Reader, RecordingSource

START_BYTES = 12
MAX_STARTS = 1000

_likely_readers: dict[bytes, list[Reader]] = {}
"""Readers, the last to recognise a file that began with the same bytes first."""


@cache
def installed_readers() -> Sequence[Reader]:
    """Every reader that is installed, in a fixed order."""
    return plugins.load_plugins("readers")


def find_reader(source: RecordingSource) -> Reader | None:
    """The one reader that recognises a file. Formats exclude each other: a test sees to that."""
    if len(_likely_readers) > MAX_STARTS:
        _likely_readers.clear()
    likely = _likely_readers.setdefault(source.head[:START_BYTES], list(installed_readers()))
    for place, reader in enumerate(likely):
        if reader.recognises(source):
            likely.insert(0, likely.pop(place))
            return reader
    return None
