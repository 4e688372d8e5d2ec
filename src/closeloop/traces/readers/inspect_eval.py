"""Logs of Inspect: `.eval` archives, also of runs that crashed, and logs written as JSON.

Every sample is a session. What scorers and the set-up of the sandbox did is not the agent's work
and is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.traces import single_file
from closeloop.traces.inspect_logs.inspect_session import InspectSessionBuilder
from closeloop.traces.inspect_logs.log_archive import is_inspect_log, is_log_archive, iter_samples
from closeloop.traces.session_builder import SessionBuilder

name = "inspect-eval"
version = 2
parts, owner = single_file.no_parts, single_file.no_owner


def recognises(source: RecordingSource) -> bool:
    if is_log_archive(source):
        return True
    head = source.head
    return b'"eval"' in head and b'"task"' in head and is_inspect_log(source.document)


def read(source: RecordingSource) -> Iterator[Session]:
    for header, sample in iter_samples(source):
        yield InspectSessionBuilder(
            sample, SessionBuilder(name, version, source.skipped, several=True)
        ).build_session(header)
