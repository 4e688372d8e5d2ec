"""The change that a session hands in: the final state, whatever the steps before it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal

from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.shell.edit_recovery import split_patch
from closeloop.records.change import Change
from closeloop.records.inspection import TraceReading
from closeloop.records.trace import AnyEvent, Command, Edit, Note

_MAX_LAST_EVENTS = 6
"""A patch is handed in at the end."""
_PATCH_START = "diff --git "


@cache_on_reading
def list_submitted_edits(reading: TraceReading) -> Sequence[Edit] | None:
    """What the submitted diff does to each file, numbered as what handed it in; None without one.

    A diff is the attempt's change, a recorded submission, or a last `git diff` of everything.
    """
    patch, number = _find_patch(reading)
    if patch is None:
        return None if reading.change is None else _edits_from_files(reading.change, number)
    return [
        Edit(
            number=number,
            lane=next(iter(reading.lanes), ""),
            path=told.path,
            action=told.action,
            after=told.after,
            patch=told.patch,
        )
        for told in split_patch(patch)
    ]


def _edits_from_files(change: Change, number: int) -> list[Edit]:
    """Of a change whose text is not kept, only which files it touches."""
    actions: Mapping[str, Literal["create", "delete"]] = {"added": "create", "deleted": "delete"}
    return [
        Edit(number=number, lane="", path=file.path, action=actions.get(file.status, "change"))
        for file in change.files
    ]


def _find_patch(reading: TraceReading) -> tuple[str | None, int]:
    events = reading.trace.events
    last_action = next(
        (event.number for event in reversed(events) if isinstance(event, Command)), 0
    )
    if reading.change is not None and reading.change.patch:
        return reading.change.patch, last_action
    if reading.change is not None:
        return None, last_action
    for event in islice(reversed(events), _MAX_LAST_EVENTS):
        text = _submitted_text(event)
        if text is not None and _PATCH_START in text[:200]:
            return text, last_action or event.number
    return None, 0


def _submitted_text(event: AnyEvent) -> str | None:
    if isinstance(event, Note):
        return event.text if event.about == "submission" else None
    if (
        isinstance(event, Command)
        and event.output
        and event.command.rstrip().endswith(
            ("git diff --cached", "git diff", "git diff --staged", "git diff HEAD")
        )
    ):
        return event.output
    return None
