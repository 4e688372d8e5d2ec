"""Tell agents in their system prompts what reviewers taught, and keep the prompts so made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from closeloop.git import try_text
from closeloop.model.addresses import repository_name
from closeloop.model.memory import Offer
from closeloop.model.record import Record
from closeloop.model.settings import MemorySettings, Settings
from closeloop.reviewing.encoding import open_encoder
from closeloop.reviewing.hydrating import Work, told_of
from closeloop.reviewing.shelf import Shelf
from closeloop.runs.variants import Crew, prompt_version, with_context
from closeloop.store import Store


class Briefing(Record):
    """What agents are told from: the rules as they were when the work began."""

    shelf: Shelf
    settings: MemorySettings


def open_briefing(
    store: Store, settings: Settings, root: Path, environ: Mapping[str, str]
) -> Briefing | None:
    """None where agents are told nothing, as `memory.hydrate` is not set."""
    if not settings.memory.hydrate:
        return None
    shelf = Shelf(store, open_encoder(settings, root, environ))
    return Briefing(shelf=shelf, settings=settings.memory)


def brief(briefing: Briefing | None, crew: Crew, work: Work) -> str:
    """What an agent's system prompt says beside its own; it is remembered, with the prompt."""
    if briefing is None:
        return ""
    context, offer = told_of(briefing.shelf, work, briefing.settings, datetime.now(UTC))
    store = briefing.shelf.store
    if offer is not None:
        system = with_context(crew, context.text)
        prompt = prompt_version(crew.agent, system, crew.written.settings)
        store.save_prompt(prompt)
        store.memory.offer(replace(offer, prompt=prompt.id))
    return context.text


def sum_up(store: Store, repo: str, start: str, key: str) -> None:
    """Of work in several pieces, all that was told under keys that begin so, under one key."""
    told = [one for one in store.memory.offers(repo) if one.key.startswith(start)]
    if told:
        store.memory.offer(
            Offer(
                key=key,
                repo=repo,
                arm=told[0].arm,
                rules=tuple(sorted({rule for one in told for rule in one.rules})),
                insights=max(one.insights for one in told),
                tokens=sum(one.tokens for one in told),
                at=told[0].at,
            )
        )


@cache
def called(repo: str) -> str:
    """`owner/name` of where a clone came from, else the path or address itself."""
    here = Path(repo).is_dir()
    return repository_name((here and try_text(repo, "remote", "get-url", "origin").strip()) or repo)
