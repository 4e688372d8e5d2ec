"""A trace as JSON lines: one event a line."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from closeloop.records.trace import Trace
from closeloop.traces.export.tool_call_export import ExportSource


def export_jsonl(of: ExportSource, trace: Trace) -> Iterator[bytes]:
    """Lines, each with the id of what the event belongs to."""
    for event in trace.events:
        yield msgspec.json.encode({"attempt": of.id, **msgspec.to_builtins(event)}) + b"\n"
