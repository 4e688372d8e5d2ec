"""Prompts as the store has them: a log, with what ran under each."""

from __future__ import annotations

from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.prompt_uses import PromptUse
from closeloop.records.team_rules import ContextRecord
from closeloop.records.variant import PromptVersion
from closeloop.reviews.prompt_diff import SHORT_ID_CHARS
from closeloop.store import Store
from closeloop.store.prompt_section import VariantTaskAttempts

MIN_PROMPT_ID_CHARS = 8
"""Of a prompt's id, the signs by which a trailer has to name it at least."""


def list_prompt_uses(store: Store) -> list[PromptUse]:
    """Every prompt, the newest first; without the names of tasks that are held out."""
    by_prompt: dict[str, list[str]] = {}
    names = {}
    for variant in store.numbers.load_variants().values():
        names[variant.digest] = variant.name
        if variant.prompt:
            by_prompt.setdefault(variant.prompt, []).append(variant.digest)
    sealed = store.held_out.list_sealed_digests()
    hidden = {task.id for key, task in store.numbers.load_tasks().items() if key in sealed}
    work: dict[str, list[VariantTaskAttempts]] = {}
    for row in store.prompts.list_variant_attempts():
        work.setdefault(row.variant, []).append(row)
    contexts_by_prompt: dict[str, list[ContextRecord]] = {}
    for offer in store.memory.list_offers():
        if offer.prompt:
            contexts_by_prompt.setdefault(offer.prompt, []).append(offer)
    pulls_by_prefix: dict[str, list[tuple[str, str]]] = {}
    for pull in store.pulls.list_pulls():
        if pull.prompt and len(pull.prompt) >= MIN_PROMPT_ID_CHARS:
            name = f"{pull.repo}#{pull.pull}"
            pulls_by_prefix.setdefault(pull.prompt[:MIN_PROMPT_ID_CHARS], []).append(
                (pull.prompt, name)
            )
    uses = []
    for prompt in reversed(store.prompts.list_prompts()):
        digests = by_prompt.get(prompt.id, [])
        rows = [row for digest in digests for row in work.get(digest, ())]
        tried = {row.task for row in rows if row.task and row.digest not in sealed}
        offers = contexts_by_prompt.get(prompt.id, [])
        began = [row.first for row in rows if row.first] + [offer.at for offer in offers]
        ended = [row.last for row in rows if row.last] + [offer.at for offer in offers]
        uses.append(
            PromptUse(
                id=prompt.id,
                variants=tuple(dict.fromkeys(names[one] for one in digests)),
                attempts=sum(row.attempts for row in rows) + len(offers),
                tasks=tuple(sorted(tried - hidden)),
                pulls=tuple(
                    name
                    for said, name in pulls_by_prefix.get(prompt.id[:MIN_PROMPT_ID_CHARS], ())
                    if prompt.id.startswith(said)
                ),
                first=min(began, default=None),
                last=max(ended, default=None),
                opening=next(iter(prompt.text.strip().splitlines()), ""),
            )
        )
    return uses


def find_prompt(store: Store, start: str) -> PromptVersion:
    """The prompt with this id, or with the only id that begins so."""
    every = store.prompts.list_prompts()
    matching_prompts = [one for one in every if one.id.startswith(start)]
    if not start or not matching_prompts:
        raise unknown_name_error("prompt", start, [one.id[:SHORT_ID_CHARS] for one in every])
    if len(matching_prompts) > 1:
        raise BadInput(f"{start!r} begins several prompts: type more of it.")
    return matching_prompts[0]
