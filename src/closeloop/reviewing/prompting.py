"""Prompts as the store has them: a log, with what ran under each."""

from __future__ import annotations

from closeloop.model.errors import BadInput, unknown
from closeloop.model.memory import Offer
from closeloop.model.prompts import PromptUse
from closeloop.model.variant import PromptVersion
from closeloop.reviews.prompts import SHORT
from closeloop.store import Store
from closeloop.store.prompts import Worked

NAMED = 8
"""Of a prompt's id, the signs by which a trailer has to name it at least."""


def log(store: Store) -> list[PromptUse]:
    """Every prompt, the newest first; without the names of tasks that are held out."""
    by_prompt: dict[str, list[str]] = {}
    names = {}
    for variant in store.numbers.variants().values():
        names[variant.digest] = variant.name
        if variant.prompt:
            by_prompt.setdefault(variant.prompt, []).append(variant.digest)
    sealed = store.held_out.sealed()
    hidden = {task.id for key, task in store.numbers.tasks().items() if key in sealed}
    work: dict[str, list[Worked]] = {}
    for row in store.prompts.work():
        work.setdefault(row.variant, []).append(row)
    told: dict[str, list[Offer]] = {}
    for offer in store.memory.offers():
        if offer.prompt:
            told.setdefault(offer.prompt, []).append(offer)
    named: dict[str, list[tuple[str, str]]] = {}
    for pull in store.pulls.rows():
        if pull.prompt and len(pull.prompt) >= NAMED:
            name = f"{pull.repo}#{pull.pull}"
            named.setdefault(pull.prompt[:NAMED], []).append((pull.prompt, name))
    found = []
    for prompt in reversed(store.prompts.all()):
        digests = by_prompt.get(prompt.id, [])
        rows = [row for digest in digests for row in work.get(digest, ())]
        tried = {row.task for row in rows if row.task and row.digest not in sealed}
        offers = told.get(prompt.id, [])
        began = [row.first for row in rows if row.first] + [offer.at for offer in offers]
        ended = [row.last for row in rows if row.last] + [offer.at for offer in offers]
        found.append(
            PromptUse(
                id=prompt.id,
                variants=tuple(dict.fromkeys(names[one] for one in digests)),
                attempts=sum(row.attempts for row in rows) + len(offers),
                tasks=tuple(sorted(tried - hidden)),
                pulls=tuple(
                    name
                    for said, name in named.get(prompt.id[:NAMED], ())
                    if prompt.id.startswith(said)
                ),
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
