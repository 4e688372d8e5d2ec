"""Read what webhooks brought: every arrival becomes facts, then it may go."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.review import Fact
from closeloop.reviewing.lives import keep
from closeloop.reviews.authorship import Agents
from closeloop.reviews.gitlab import read_gitlab
from closeloop.reviews.pulls_webhooks import read_github
from closeloop.store import Store
from closeloop.store.pulls import Unread

READERS: dict[str, Callable[[str, bytes, datetime], list[Fact]]] = {
    "github": read_github,
    "gitlab": read_gitlab,
}
AT_ONCE = 50
_log = logging.getLogger(__name__)


def read_arrivals(store: Store, agents: Agents) -> int:
    """Read some of what waits; how many those were. What is not finished is read again."""
    waiting = store.pulls.unread(AT_ONCE)
    try:
        keep([fact for one in waiting for fact in facts_of(one)], store, agents)
    except MachineFailed:
        raise
    except Exception:
        for one in waiting:
            _keep_alone(one, store, agents)
    store.pulls.has_read([one.number for one in waiting])
    return len(waiting)


def _keep_alone(one: Unread, store: Store, agents: Agents) -> None:
    """Leave out what cannot be taken in, and not what came with it."""
    try:
        keep(facts_of(one), store, agents)
    except MachineFailed:
        raise
    except Exception:
        _log.exception("A delivery of %s (%s) is left out", one.source, one.event)


def facts_of(one: Unread) -> list[Fact]:
    """What an arrival tells; nothing where it is not what its event promises."""
    try:
        return READERS[one.source](one.event, one.body, one.at)
    except (BadInput, KeyError):
        return []
