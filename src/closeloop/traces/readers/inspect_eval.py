"""Logs of Inspect: `.eval` archives, also of runs that crashed, and logs written as JSON.

Every sample is a session. What scorers and the set-up of the sandbox did is not the agent's work
and is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces import single
from closeloop.traces.builder import Builder
from closeloop.traces.inspect_logs.archive import is_archive, is_log, samples_of
from closeloop.traces.inspect_logs.sample import Sample

name = "inspect-eval"
version = 2
parts, owner = single.parts, single.owner


def recognises(source: Source) -> bool:
    if is_archive(source):
        return True
    head = source.head
    return b'"eval"' in head and b'"task"' in head and is_log(source.document)


def read(source: Source) -> Iterator[Session]:
    for header, sample in samples_of(source):
        yield Sample(sample, Builder(name, version), source.skipped).session(header)
