"""Tell the next agent what reviewers taught and what others lacked, and remember having told it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from closeloop.model.addresses import repository_name
from closeloop.model.memory import Context, Offer, Theme
from closeloop.model.protocols import Encoder
from closeloop.model.record import Record
from closeloop.model.settings import MemorySettings
from closeloop.reviewing.encoding import vectors_of
from closeloop.reviewing.shelf import Shelf
from closeloop.reviews.hydration import arm_of, context, lacked, ranked
from closeloop.reviews.themes import grouped, points_of
from closeloop.store import Store

TWICE = 2
"""What one agent lacked may be its own fault; two make a theme."""


class Work(Record):
    """A piece of work that is about to begin."""

    repo: str
    text: str = ""
    """What is asked for."""
    scope: tuple[str, ...] = ()
    key: str | None = None
    """Under which it is remembered what was told: a task, a branch or an attempt."""
    lot: str | None = None
    """By which its arm is drawn: the key, where nothing else is given."""
    names: tuple[str, ...] = ()
    """What else the repository is called, such as its path on this machine."""


def hydrate(
    shelf: Shelf, work: Work, settings: MemorySettings, now: datetime, tokens: int | None = None
) -> Context:
    """What the agent is told. Work with a key may fall to the control arm, and is logged once."""
    found, offer = told_of(shelf, work, settings, now, tokens)
    if offer is not None:
        shelf.store.memory.offer(offer)
    return found


def told_of(
    shelf: Shelf, work: Work, settings: MemorySettings, now: datetime, tokens: int | None = None
) -> tuple[Context, Offer | None]:
    """What the agent is told, and what is to be remembered of that, where the work has a key."""
    lot = work.lot or work.key
    arm = arm_of(lot, settings.seed, settings.control) if lot and work.key else "memory"
    names = (work.repo, *work.names)
    rules = {rule.id: rule for name in names for rule in shelf.rules(name)}
    likeness = {
        key: like for name in names for key, like in shelf.likeness(work.text, name).items()
    }
    hints = ranked(rules.values(), likeness, work.scope)
    known = themes_of(shelf.store, shelf.encoder, names)
    themes = [one for one in known if one.count >= TWICE]
    budget = settings.tokens if tokens is None else tokens
    found = context(work.repo, hints, lacked(themes), budget, arm)
    if not work.key:
        return found, None
    offer = Offer(
        key=work.key,
        repo=work.repo,
        arm=arm,
        rules=tuple(hint.rule for hint in found.hints if hint.rule),
        insights=sum(hint.rule is None for hint in found.hints),
        tokens=found.tokens,
        at=now,
    )
    return found, offer


def themes_of(store: Store, encoder: Encoder, names: Collection[str] = ()) -> list[Theme]:
    """What agents lacked, grouped and counted, of the repository of these names or of each.

    What they lacked at held-out tasks would tell of the tasks, and is left out.
    """
    hidden = hidden_attempts(store)
    points = points_of(
        insight
        for insight in store.course.insights()
        if insight.attempt not in hidden
        and (not names or {insight.repo, repository_name(insight.repo or "")} & {*names})
    )
    vectors = vectors_of((point.text for point in points), encoder, store)
    return grouped(points, vectors, encoder.alike)


def hidden_attempts(store: Store) -> set[str]:
    """Attempts at held-out tasks, of which nothing is told."""
    sealed = store.held_out.sealed()
    return {row.id for row in store.attempts(task_digests=sealed)} if sealed else set()
