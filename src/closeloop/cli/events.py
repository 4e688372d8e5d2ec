"""`closeloop events`: the log of what happened, as it is or as it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeloop.model.event import Event

LOOK_SECONDS = 0.5


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
    from closeloop.cli.config import load
    from closeloop.cli.console import warn
    from closeloop.model.errors import BadInput
    from closeloop.model.wildcards import matching

    if limit < 0 or (after is not None and after < 0):
        raise BadInput("--limit and --after must not be negative.")
    found = load(Path.cwd())
    # Whoever follows waits in the store that others will write to.
    opening = flow.open_named_store if follow else flow.open_kept_store
    with opening(found.settings, found.root) as store:
        if not follow and not store.events.last():
            warn("Nothing happened yet: `closeloop run` and `closeloop import` make a beginning.")
        place = max(store.events.last() - limit, 0) if after is None else after
        left = limit
        while True:
            some = store.events.after(place)
            place = some[-1].number or place if some else place
            wanted = [one for one in some if not kinds or matching(one.kind, kinds)]
            tell(wanted if follow else wanted[:left], json=json)
            left -= len(wanted)
            if not some and not follow:
                return
            if not follow and left <= 0:
                return
            if not some:
                time.sleep(LOOK_SECONDS)


def tell(events: Sequence[Event], *, json: bool) -> None:
    import msgspec

    from closeloop.cli.console import say, whole

    for event in events:
        say(msgspec.json.encode(whole(event)).decode() if json else line_of(event))


def line_of(event: Event) -> str:
    """`17  2026-01-05 09:00  pull.merged  ann/tally#7  rounds=1`"""
    about = event.repo or event.task or event.attempt or ""
    number = f"#{event.pull}" if event.pull is not None else ""
    told = " ".join(f"{name}={value}" for name, value in event.details.items() if value is not None)
    at = event.at.strftime("%Y-%m-%d %H:%M:%S")
    return f"{event.number:>6}  {at}  {event.kind:24}  {about}{number}  {told}".rstrip()
