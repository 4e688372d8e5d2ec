"""The files that an agent left about its work, brought out of its cage."""

from __future__ import annotations

import functools
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from closeloop.model.protocols import Recording
from closeloop.runs.sandbox.cage import Cage

MOST_BYTES = 64 << 20
SECONDS = 20.0
_HEAD = struct.Struct(">IQ")


async def gather(cage: Cage, patterns: Sequence[str]) -> tuple[Recording, ...]:
    """Ordinary files below the home folder that the patterns mean, as many as there is room for.

    They are read from inside, where a path leads nowhere that the agent could not go itself.
    """
    if not patterns:
        return ()
    wanted = {"root": cage.home, "patterns": list(patterns), "bytes": MOST_BYTES}
    argv = [*_gatherer(), json.dumps(wanted)]
    ended = await cage.execute(argv, seconds=SECONDS, keep=MOST_BYTES)
    return tuple(_unpacked(ended.output.content))


def _unpacked(content: bytes) -> Iterator[Recording]:
    """Whatever came, up to where it does not make sense any more."""
    place = 0
    while len(content) - place >= _HEAD.size:
        name, size = _HEAD.unpack_from(content, place)
        start = place + _HEAD.size
        place = start + name + size
        if place > len(content):
            return
        path = content[start : start + name].decode(errors="replace")
        yield Recording(path=path, content=content[start + name : place])


@functools.cache
def _gatherer() -> tuple[str, ...]:
    source = Path(__file__).with_name("gatherer.py").read_text(encoding="utf-8")
    return (sys.executable, "-I", "-S", "-c", source)
