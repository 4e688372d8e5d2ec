"""A recording that is one file: what such a reader has in place of parts and owners."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from closeloop.records.protocols import RecordingSource


def no_parts(source: RecordingSource) -> Sequence[Path]:
    """No other file belongs to it."""
    return ()


def no_owner(source: RecordingSource) -> Path | None:
    """It belongs to no other file."""
    return None
