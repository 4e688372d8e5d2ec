"""`closeloop events`: the log of what happened, as it is or as it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeloop.records.event_log import LogEvent

POLL_SECONDS = 0.5


def events(
    *kinds: str,
    follow: bool = False,
    after: int | None = None,
    limit: int = 100,
    json: bool = False,
) -> None:
    """Print the log of events, the oldest first.

    Parameters
    ----------
    kinds
        Only these, such as pull.merged or 'review.*'.
    follow
        Go on with what happens, until stopped.
    after
        Begin after the event of this number; with the last ones when not given.
    limit
        How many at the most; with --follow, how many of the past.
    json
        Print one JSON object a line.
    """
    from closeloop import flow
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_warning
    from closeloop.records.errors import BadInput
    from closeloop.records.wildcards import matches_wildcards

    if limit < 0 or (after is not None and after < 0):
        raise BadInput("--limit and --after must not be negative.")
    project = load_project(Path.cwd())
    # Whoever follows waits in the store that others will write to.
    store_opener = flow.open_project_store if follow else flow.open_existing_store
    with store_opener(project.settings, project.root) as store:
        if not follow and not store.events.last_number():
            print_warning(
                "Nothing happened yet: `closeloop run` and `closeloop import` make a beginning."
            )
        last_number = max(store.events.last_number() - limit, 0) if after is None else after
        remaining = limit
        while True:
            new_events = store.events.list_after(last_number)
            last_number = new_events[-1].number or last_number if new_events else last_number
            matching_events = [
                one for one in new_events if not kinds or matches_wildcards(one.kind, kinds)
            ]
            print_events(matching_events if follow else matching_events[:remaining], json=json)
            remaining -= len(matching_events)
            if not new_events and not follow:
                return
            if not follow and remaining <= 0:
                return
            if not new_events:
                time.sleep(POLL_SECONDS)


def print_events(events: Sequence[LogEvent], *, json: bool) -> None:
    import msgspec

    from closeloop.cli.console import print_line, record_to_map

    for event in events:
        print_line(
            msgspec.json.encode(record_to_map(event)).decode() if json else format_event_line(event)
        )


def format_event_line(event: LogEvent) -> str:
    """`17  2026-01-05 09:00  pull.merged  ann/tally#7  rounds=1`"""
    about = event.repo or event.task or event.attempt or ""
    number = f"#{event.pull}" if event.pull is not None else ""
    details_text = " ".join(
        f"{name}={value}" for name, value in event.details.items() if value is not None
    )
    at = event.at.strftime("%Y-%m-%d %H:%M:%S")
    return f"{event.number:>6}  {at}  {event.kind:24}  {about}{number}  {details_text}".rstrip()
