"""Tell the next agent what reviewers taught and what others lacked, and remember having told it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from closeloop.records.protocols import Encoder
from closeloop.records.record import Record
from closeloop.records.repository_names import repository_name
from closeloop.records.settings import MemorySettings
from closeloop.records.team_rules import AgentContext, ContextRecord, InsightTheme
from closeloop.reviews.context_text import assign_memory_arm, build_context, rank_rules, rank_themes
from closeloop.reviews.insight_themes import group_themes, split_points
from closeloop.reviews.rule_index import RuleIndex
from closeloop.reviews.text_vectors import vectors_for_texts
from closeloop.store import Store

MIN_THEME_SIZE = 2
"""What one agent lacked may be its own fault; two make a theme."""


class UpcomingWork(Record):
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


def give_context(
    shelf: RuleIndex,
    work: UpcomingWork,
    settings: MemorySettings,
    now: datetime,
    tokens: int | None = None,
) -> AgentContext:
    """What the agent is told. Work with a key may fall to the control arm, and is logged once."""
    given_context, offer = prepare_context(shelf, work, settings, now, tokens)
    if offer is not None:
        shelf.store.memory.save_offer(offer)
    return given_context


def prepare_context(
    shelf: RuleIndex,
    work: UpcomingWork,
    settings: MemorySettings,
    now: datetime,
    tokens: int | None = None,
) -> tuple[AgentContext, ContextRecord | None]:
    """What the agent is told, and what is to be remembered of that, where the work has a key."""
    lot = work.lot or work.key
    arm = assign_memory_arm(lot, settings.seed, settings.control) if lot and work.key else "memory"
    names = (work.repo, *work.names)
    rules = {rule.id: rule for name in names for rule in shelf.list_rules(name)}
    likeness = {
        key: like for name in names for key, like in shelf.likeness_by_rule(work.text, name).items()
    }
    hints = rank_rules(rules.values(), likeness, work.scope)
    known = list_themes(shelf.store, shelf.encoder, names)
    themes = [one for one in known if one.count >= MIN_THEME_SIZE]
    budget = settings.tokens if tokens is None else tokens
    given_context = build_context(work.repo, hints, rank_themes(themes), budget, arm)
    if not work.key:
        return given_context, None
    offer = ContextRecord(
        key=work.key,
        repo=work.repo,
        arm=arm,
        rules=tuple(hint.rule for hint in given_context.hints if hint.rule),
        insights=sum(hint.rule is None for hint in given_context.hints),
        tokens=given_context.tokens,
        at=now,
    )
    return given_context, offer


def list_themes(store: Store, encoder: Encoder, names: Collection[str] = ()) -> list[InsightTheme]:
    """What agents lacked, grouped and counted, of the repository of these names or of each.

    What they lacked at held-out tasks would tell of the tasks, and is left out.
    """
    hidden = hidden_attempts(store)
    points = split_points(
        insight
        for insight in store.course.list_insights()
        if insight.attempt not in hidden
        and (not names or {insight.repo, repository_name(insight.repo or "")} & {*names})
    )
    vectors = vectors_for_texts((point.text for point in points), encoder, store)
    return group_themes(points, vectors, encoder.alike)


def hidden_attempts(store: Store) -> set[str]:
    """Attempts at held-out tasks, of which nothing is told."""
    sealed = store.held_out.list_sealed_digests()
    return {row.id for row in store.list_attempts(task_digests=sealed)} if sealed else set()
