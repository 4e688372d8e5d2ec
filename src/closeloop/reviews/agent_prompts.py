"""The prompts of agents: what they are told in them, a log of them, and what differs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from closeloop.git import try_git_text
from closeloop.grading.variants import ResolvedVariant, add_agent_context, prompt_version
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.record import Record
from closeloop.records.settings import MemorySettings, Settings
from closeloop.records.task import PromptVersion, Task
from closeloop.records.team_rules import ContextRecord, PromptProposal, PromptUse
from closeloop.reviews.agent_context import UpcomingWork, prepare_context
from closeloop.reviews.rule_index import RuleIndex
from closeloop.reviews.rule_vectors import open_encoder
from closeloop.store import Store
from closeloop.store.experiment_section import VariantTaskAttempts
from closeloop.text.wording import count_with_noun, repository_name


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


def provide_task_context(
    briefing: ContextProvider | None, task: Task, crew: ResolvedVariant, key: str
) -> str:
    """The same, for an attempt at a task; all who try a task are told, or none is."""
    if briefing is None or task.repo is None:
        return ""
    work = UpcomingWork(
        repo=clone_repository_name(task.repo),
        text=task.prompt,
        scope=task.scope,
        key=key,
        lot=task.id,
        names=(task.repo,),
    )
    return provide_context(briefing, crew, work)


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


# What differs between two prompts, and which runs would tell whether it matters.

SHORT_ID_CHARS = 12
PROPOSED_REPEATS = 3
"""One try of a task says little of a prompt."""


def diff_prompts(old: PromptVersion, new: PromptVersion) -> Iterator[str]:
    """Lines of a unified diff: of the text, then of tools and settings."""
    for name in ("text", "tools", "settings"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield from difflib.unified_diff(
                before.splitlines(),
                after.splitlines(),
                f"{name} of {old.id[:SHORT_ID_CHARS]}",
                f"{name} of {new.id[:SHORT_ID_CHARS]}",
                lineterm="",
            )


def propose_prompt_runs(old: PromptUse, new: PromptUse) -> PromptProposal:
    """The runs that put the new prompt to the tasks which the old one had."""
    untried = tuple(task for task in old.tasks if task not in new.tasks)
    compare = f"closeloop compare prompt:{old.id[:SHORT_ID_CHARS]} prompt:{new.id[:SHORT_ID_CHARS]}"
    if not old.tasks:
        note = "Nothing ran under the old one: run both on the same tasks."
        commands = (*_commands_for_both(old, new), compare)
    elif not untried:
        note, commands = "Both had the same tasks: compare them.", (compare,)
    else:
        note = (
            f"Only the old one was tried on {len(untried)} of"
            f" {count_with_noun(len(old.tasks), 'task')}."
        )
        named = [f"--variant {name}" for name in new.variants[:1]]
        run = " ".join(["closeloop run", *untried, *named, f"--repeats {PROPOSED_REPEATS}"])
        commands = (run, compare)
    return PromptProposal(old=old.id, new=new.id, tasks=untried, note=note, commands=commands)


def _commands_for_both(old: PromptUse, new: PromptUse) -> tuple[str, ...]:
    names = [one.id[:SHORT_ID_CHARS] for one in (old, new)]
    restore = [f"closeloop prompt restore {name} --to {name}.md" for name in names]
    files = " ".join(f"--prompt {name}.md" for name in names)
    return (*restore, f"closeloop run {files} --repeats {PROPOSED_REPEATS}")


# Prompts as the store has them: a log, with what ran under each.

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
