"""Read what webhooks brought: every arrival becomes facts, then it may go."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.pull_request import Fact
from closeloop.reviews.authorship import AgentSignsByName
from closeloop.reviews.github_webhooks import read_github_event
from closeloop.reviews.gitlab_pulls import read_gitlab_event
from closeloop.reviews.pull_updates import save_facts
from closeloop.store import Store
from closeloop.store.pull_section import UnreadArrival

WEBHOOK_READERS: dict[str, Callable[[str, bytes, datetime], list[Fact]]] = {
    "github": read_github_event,
    "gitlab": read_gitlab_event,
}
ARRIVALS_PER_BATCH = 50
_log = logging.getLogger(__name__)


def read_arrivals(store: Store, agents: AgentSignsByName) -> int:
    """Read some of what waits; how many those were. What is not finished is read again."""
    waiting = store.pulls.list_unread(ARRIVALS_PER_BATCH)
    try:
        save_facts([fact for one in waiting for fact in facts_from_arrival(one)], store, agents)
    except MachineFailed:
        raise
    except Exception:
        for one in waiting:
            _save_arrival(one, store, agents)
    store.pulls.delete_arrivals([one.number for one in waiting])
    return len(waiting)


def _save_arrival(one: UnreadArrival, store: Store, agents: AgentSignsByName) -> None:
    """Leave out what cannot be taken in, and not what came with it."""
    try:
        save_facts(facts_from_arrival(one), store, agents)
    except MachineFailed:
        raise
    except Exception:
        _log.exception("A delivery of %s (%s) is left out", one.source, one.event)


def facts_from_arrival(one: UnreadArrival) -> list[Fact]:
    """What an arrival tells; nothing where it is not what its event promises."""
    try:
        return WEBHOOK_READERS[one.source](one.event, one.body, one.at)
    except (BadInput, KeyError):
        return []
