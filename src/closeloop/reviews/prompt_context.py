"""Tell agents in their system prompts what reviewers taught, and keep the prompts so made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from closeloop.git import try_git_text
from closeloop.grading.variants import ResolvedVariant, add_agent_context, prompt_version
from closeloop.records.record import Record
from closeloop.records.repository_names import repository_name
from closeloop.records.settings import MemorySettings, Settings
from closeloop.records.team_rules import ContextRecord
from closeloop.reviews.agent_context import UpcomingWork, prepare_context
from closeloop.reviews.rule_index import RuleIndex
from closeloop.reviews.text_vectors import open_encoder
from closeloop.store import Store


class ContextProvider(Record):
    """What agents are told from: the rules as they were when the work began."""

    shelf: RuleIndex
    settings: MemorySettings


def open_context_provider(
    store: Store, settings: Settings, root: Path, environ: Mapping[str, str]
) -> ContextProvider | None:
    """None where agents are told nothing, as `memory.hydrate` is not set."""
    if not settings.memory.hydrate:
        return None
    shelf = RuleIndex(store, open_encoder(settings, root, environ))
    return ContextProvider(shelf=shelf, settings=settings.memory)


def provide_context(
    briefing: ContextProvider | None, crew: ResolvedVariant, work: UpcomingWork
) -> str:
    """What an agent's system prompt says beside its own; it is remembered, with the prompt."""
    if briefing is None:
        return ""
    context, offer = prepare_context(briefing.shelf, work, briefing.settings, datetime.now(UTC))
    store = briefing.shelf.store
    if offer is not None:
        system = add_agent_context(crew, context.text)
        prompt = prompt_version(crew.agent, system, crew.written.settings)
        store.save_prompt(prompt)
        store.memory.save_offer(replace(offer, prompt=prompt.id))
    return context.text


def merge_context(store: Store, repo: str, start: str, key: str) -> None:
    """Of work in several pieces, all that was told under keys that begin so, under one key."""
    records = [one for one in store.memory.list_offers(repo) if one.key.startswith(start)]
    if records:
        store.memory.save_offer(
            ContextRecord(
                key=key,
                repo=repo,
                arm=records[0].arm,
                rules=tuple(sorted({rule for one in records for rule in one.rules})),
                insights=max(one.insights for one in records),
                tokens=sum(one.tokens for one in records),
                at=records[0].at,
            )
        )


@cache
def clone_repository_name(repo: str) -> str:
    """`owner/name` of where a clone came from, else the path or address itself."""
    is_folder = Path(repo).is_dir()
    return repository_name(
        (is_folder and try_git_text(repo, "remote", "get-url", "origin").strip()) or repo
    )
