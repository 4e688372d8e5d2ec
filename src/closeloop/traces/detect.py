"""Which reader a file is for, by what it contains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from closeloop import plugins
from closeloop.model.protocols import Reader, Source


@cache
def readers() -> Sequence[Reader]:
    """Every reader that is installed, in a fixed order."""
    return plugins.every("readers")


def reader_of(source: Source) -> Reader | None:
    """The one reader that recognises a file. Formats exclude each other: a test sees to that."""
    return next((reader for reader in readers() if reader.recognises(source)), None)
