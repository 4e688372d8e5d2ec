"""How OpenHands' files begin: one document, or a line for each instance that may be very long."""

from __future__ import annotations

from typing import Any

from closeloop.records.protocols import RecordingSource


def read_first_value(source: RecordingSource) -> Any:
    """The document, or the first line of a file with one JSON value a line."""
    if source.lines:
        # A whole document is given only where it is not one of many lines.
        return source.lines[0] if len(source.lines) > 1 else source.document or source.lines[0]
    if b"\n" in source.head:
        return source.document
    before = dict(source.skipped)
    first = next(source.records(), None)
    source.skipped.clear()
    source.skipped.update(before)
    return first
