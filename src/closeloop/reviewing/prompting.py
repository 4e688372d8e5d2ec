"""Prompts as the store has them: a log, with what ran under each."""

from __future__ import annotations

from closeloop.model.errors import BadInput, unknown
from closeloop.model.memory import Offer
from closeloop.model.prompts import PromptUse
from closeloop.model.variant import PromptVersion
from closeloop.store import Store

SHORT = 12


def log(store: Store) -> list[PromptUse]:
    """Every prompt, the newest first."""
    by_prompt: dict[str, list[str]] = {}
    names = {}
    for variant in store.prompts.variants():
        names[variant.digest] = variant.name
        if variant.prompt:
            by_prompt.setdefault(variant.prompt, []).append(variant.digest)
    work, sealed = store.prompts.work(), store.held_out.sealed()
    told: dict[str, list[Offer]] = {}
    for offer in store.memory.offers():
        if offer.prompt:
            told.setdefault(offer.prompt, []).append(offer)
    named = [(row.prompt, f"{row.repo}#{row.pull}") for row in store.pulls.rows() if row.prompt]
    found = []
    for prompt in reversed(store.prompts.all()):
        digests = by_prompt.get(prompt.id, [])
        rows = [row for row in work if row.variant in digests]
        open_rows = [row for row in rows if row.digest not in sealed]
        offers = told.get(prompt.id, [])
        began = [row.first for row in rows if row.first] + [offer.at for offer in offers]
        ended = [row.last for row in rows if row.last] + [offer.at for offer in offers]
        found.append(
            PromptUse(
                id=prompt.id,
                variants=tuple(dict.fromkeys(names[one] for one in digests)),
                attempts=sum(row.attempts for row in rows) + len(offers),
                tasks=tuple(sorted({row.task for row in open_rows if row.task})),
                pulls=tuple(pull for said, pull in named if _names(said, prompt.id)),
                first=min(began, default=None),
                last=max(ended, default=None),
                opening=next(iter(prompt.text.strip().splitlines()), ""),
            )
        )
    return found


def find(store: Store, start: str) -> PromptVersion:
    """The prompt with this id, or with the only id that begins so."""
    every = store.prompts.all()
    found = [one for one in every if one.id.startswith(start)]
    if not start or not found:
        raise unknown("prompt", start, [one.id[:SHORT] for one in every])
    if len(found) > 1:
        raise BadInput(f"{start!r} begins several prompts: type more of it.")
    return found[0]


def _names(said: str, prompt: str) -> bool:
    """Whether a trailer names a prompt: in full, or by eight of its signs or more."""
    return len(said) >= 8 and prompt.startswith(said)
