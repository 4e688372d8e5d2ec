"""The files that an agent left about its work, brought out of its cage."""

from __future__ import annotations

import functools
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from closeloop.records.protocols import Recording
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox

MAX_RECORDING_BYTES = 64 << 20
GATHER_SECONDS = 20.0
_FILE_HEADER = struct.Struct(">IQ")


async def gather_recordings(
    cage: WorkspaceSandbox, patterns: Sequence[str]
) -> tuple[Recording, ...]:
    """Ordinary files below the home folder that the patterns mean, as many as there is room for.

    They are read from inside, where a path leads nowhere that the agent could not go itself.
    """
    if not patterns:
        return ()
    specification = {"root": cage.home, "patterns": list(patterns), "bytes": MAX_RECORDING_BYTES}
    argv = [*_gatherer_command(), json.dumps(specification)]
    ended = await cage.execute_command(argv, seconds=GATHER_SECONDS, keep=MAX_RECORDING_BYTES)
    return tuple(_unpack_recordings(ended.output.content))


def _unpack_recordings(content: bytes) -> Iterator[Recording]:
    """Whatever came, up to where it does not make sense any more."""
    offset = 0
    while len(content) - offset >= _FILE_HEADER.size:
        name, size = _FILE_HEADER.unpack_from(content, offset)
        start = offset + _FILE_HEADER.size
        offset = start + name + size
        if offset > len(content):
            return
        path = content[start : start + name].decode(errors="replace")
        yield Recording(path=path, content=content[start + name : offset])


@functools.cache
def _gatherer_command() -> tuple[str, ...]:
    source = Path(__file__).with_name("gatherer.py").read_text(encoding="utf-8")
    return (sys.executable, "-I", "-S", "-c", source)
