"""The prompts of agents: the context added to them, a log of their versions, and diffs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.pull_request import PullRow
from closeloop.records.record import Record
from closeloop.records.settings import MemorySettings, Settings
from closeloop.records.task import PromptRollout, PromptVersion, Task, Variant
from closeloop.records.team_rules import ContextRecord, PromptProposal, PromptUse
from closeloop.store import Store
from closeloop.store.experiment_section import MIN_PROMPT_ID_CHARS
from closeloop.store.metrics_section import AttemptSpan
from closeloop.text.client_markup import build_prompt_version, normalise_system_prompt
from closeloop.text.wording import count_with_noun, repository_name

if TYPE_CHECKING:
    from closeloop.grading.variants import ResolvedVariant
    from closeloop.reviews.agent_context import UpcomingWork
    from closeloop.reviews.rule_index import RuleIndex


class ContextProvider(Record):
    """Provides agents with context from the rules as they were when the work began."""

    rule_index: RuleIndex
    settings: MemorySettings


def open_context_provider(
    store: Store, settings: Settings, root: Path, environ: Mapping[str, str]
) -> ContextProvider | None:
    """Open the context provider; None if `memory.hydrate` is not set."""
    from closeloop.reviews.rule_index import RuleIndex, open_encoder

    if not settings.memory.hydrate:
        return None
    rule_index = RuleIndex(store, open_encoder(settings, root, environ))
    return ContextProvider(rule_index=rule_index, settings=settings.memory)


def provide_context(
    provider: ContextProvider | None, variant: ResolvedVariant, work: UpcomingWork
) -> str:
    """Return the text to add to an agent's system prompt, and save it together with the prompt."""
    from closeloop.grading.variants import add_agent_context, prompt_version
    from closeloop.reviews.agent_context import prepare_context

    if provider is None:
        return ""
    context, record = prepare_context(
        provider.rule_index, work, provider.settings, datetime.now(UTC)
    )
    store = provider.rule_index.store
    if record is not None:
        system = add_agent_context(variant, context.text)
        prompt = prompt_version(variant.agent, system, variant.written.settings)
        store.save_prompt(prompt)
        store.memory.save_context_record(replace(record, prompt=prompt.id))
    return context.text


def provide_task_context(
    provider: ContextProvider | None, task: Task, variant: ResolvedVariant, key: str
) -> str:
    """Return the text for an attempt at a task; all variants of a task are in the same arm."""
    from closeloop.reviews.agent_context import UpcomingWork

    if provider is None or task.repo is None:
        return ""
    work = UpcomingWork(
        repo=clone_repository_name(task.repo),
        text=task.prompt,
        scope=task.scope,
        key=key,
        assignment_key=task.id,
        names=(task.repo,),
    )
    return provide_context(provider, variant, work)


def merge_context(store: Store, repo: str, start: str, key: str) -> None:
    """Save one context record that merges all records whose key begins with `start`."""
    records = [
        record for record in store.memory.list_context_records(repo) if record.key.startswith(start)
    ]
    if records:
        store.memory.save_context_record(
            ContextRecord(
                key=key,
                repo=repo,
                arm=records[0].arm,
                rules=tuple(sorted({rule for record in records for rule in record.rules})),
                insights=max(record.insights for record in records),
                tokens=sum(record.tokens for record in records),
                at=records[0].at,
            )
        )


@cache
def clone_repository_name(repo: str) -> str:
    """Return `owner/name` of a clone's origin, else the path or address itself."""
    from closeloop.git import try_git_text

    is_folder = Path(repo).is_dir()
    return repository_name(
        (is_folder and try_git_text(repo, "remote", "get-url", "origin").strip()) or repo
    )


# The differences between two prompts, and runs that would show whether they matter.

SHORT_ID_CHARS = 12
PROPOSED_REPEATS = 3
"""Repeats per task: a single attempt says little about a prompt."""


def diff_prompts(old: PromptVersion, new: PromptVersion) -> Iterator[str]:
    """Yield the lines of a unified diff: of the text, then of tools and settings."""
    from difflib import unified_diff

    for name in ("text", "tools", "settings"):
        before, after = _compared_part(old, name), _compared_part(new, name)
        if before != after:
            yield from unified_diff(
                before.splitlines(),
                after.splitlines(),
                f"{name} of {old.id[:SHORT_ID_CHARS]}",
                f"{name} of {new.id[:SHORT_ID_CHARS]}",
                lineterm="",
            )


def _compared_part(prompt: PromptVersion, name: str) -> str:
    """Return a part of a prompt; of an observed prompt, without what varies by session."""
    part: str = getattr(prompt, name)
    return normalise_system_prompt(part) if name == "text" and prompt.source != "variant" else part


def propose_prompt_runs(old: PromptUse, new: PromptUse) -> PromptProposal:
    """Return the runs that test the new prompt on the tasks that the old one had."""
    untried = tuple(task for task in old.tasks if task not in new.tasks)
    compare = f"closeloop compare prompt:{old.id[:SHORT_ID_CHARS]} prompt:{new.id[:SHORT_ID_CHARS]}"
    if not old.tasks:
        note = "The old prompt ran on no task: run both on the same tasks."
        commands = (*_commands_for_both(old, new), compare)
    elif not untried:
        note, commands = "Both ran on the same tasks: compare them.", (compare,)
    else:
        note = (
            f"{len(untried)} of {count_with_noun(len(old.tasks), 'task')} ran with the "
            "old prompt only."
        )
        variant_flags = [f"--variant {name}" for name in new.variants[:1]]
        run = " ".join(["closeloop run", *untried, *variant_flags, f"--repeats {PROPOSED_REPEATS}"])
        commands = (run, compare)
    return PromptProposal(old=old.id, new=new.id, tasks=untried, note=note, commands=commands)


def _commands_for_both(old: PromptUse, new: PromptUse) -> tuple[str, ...]:
    names = [use.id[:SHORT_ID_CHARS] for use in (old, new)]
    restore = [f"closeloop prompt restore {name} --out {name}.md" for name in names]
    files = " ".join(f"--prompt {name}.md" for name in names)
    return (*restore, f"closeloop run {files} --repeats {PROPOSED_REPEATS}")


# Stored prompts: a log, with what ran under each.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PromptIndex:
    """Finds the prompt that a piece of work ran under, by the best evidence.

    First what the gateway or the session's files show; then what a pull request names by trailer
    or label; then the prompt of the variant; then the prompt that its agent was declared to use
    from some time on.
    """

    def __init__(self, store: Store) -> None:
        self.prompts = {prompt.id: prompt for prompt in store.prompts.list_prompts()}
        self._ids_by_name = {
            prompt.name: prompt.id for prompt in self.prompts.values() if prompt.name
        }
        self._sorted_ids = sorted(self.prompts)
        self._seen = store.prompts.list_attempt_prompts()
        self._rollouts = store.prompts.list_rollouts()

    @property
    def tells_of_attempts(self) -> bool:
        """Return whether more is known than the prompts of variants."""
        return bool(self._seen or self._rollouts)

    def resolve_name(self, name: str) -> str:
        """Return the id that a trailer or label refers to; the name itself if no such prompt is
        stored."""
        if name in self._ids_by_name:
            return self._ids_by_name[name]
        if len(name) < MIN_PROMPT_ID_CHARS:
            return name
        start = bisect_left(self._sorted_ids, name)
        ids = [key for key in self._sorted_ids[start : start + 2] if key.startswith(name)]
        return ids[0] if len(ids) == 1 else name

    def find_prompt_id(
        self,
        attempt: str,
        *,
        variant: str | None = None,
        prompt_name: str | None = None,
        agent: str | None = None,
        repo: str | None = None,
        started: datetime | None = None,
    ) -> str | None:
        """Return the prompt's id.

        `variant`: the variant's prompt; `prompt_name`: what the pull request names.
        """
        if attempt in self._seen:
            return self._seen[attempt]
        if prompt_name:
            return self.resolve_name(prompt_name)
        variant_prompt = self.prompts.get(variant or "")
        if variant_prompt is not None and (variant_prompt.text.strip() or variant_prompt.tools):
            return variant_prompt.id
        for rollout in reversed(self._rollouts if agent and started else ()):
            same_repo = rollout.repo is None or rollout.repo.lower() == (repo or "").lower()
            if rollout.agent == agent and same_repo and started and rollout.since <= started:
                return rollout.prompt
        # An unrecorded prompt of a program: its settings are not a prompt version.
        return None if variant_prompt is not None else variant


class PromptWork(Record):
    """One attempt, with the fields that the log of prompts needs."""

    id: str
    prompt: str | None
    task: str | None
    variant: str | None
    started: datetime | None
    pull: str | None
    """Its pull request, as `owner/name#12`."""
    is_listed: bool
    """Whether lists of attempts have it: not held out, and more than an unrecorded pull request."""


def list_prompt_work(
    store: Store, index: PromptIndex, variants: Mapping[str, Variant], pulls: Sequence[PullRow]
) -> Iterator[PromptWork]:
    """Yield every attempt with the prompt that it ran under, latest first."""
    pulls_by_attempt = {row.attempt: row for row in pulls if row.attempt and row.agent}
    sealed = store.held_out.list_sealed_digests()
    attempt_columns = store.numbers.load_attempt_columns(AttemptSpan())
    names = ("started", "variant", "agent", "repo", "task_digest", "task", "events")
    columns = (attempt_columns.columns[name].tolist() for name in names)
    rows = [*zip(attempt_columns.attempts, *columns, strict=True)]
    rows.sort(key=lambda row: (isnan(row[1]), -row[1], row[0]))
    for attempt, microseconds, digest, session_agent, repo, task_digest, task, events in rows:
        variant, pull = variants.get(digest or ""), pulls_by_attempt.get(attempt)
        agent = variant.agent if variant else session_agent
        started = None if isnan(microseconds) else _EPOCH + timedelta(microseconds=microseconds)
        prompt = index.find_prompt_id(
            attempt,
            variant=variant.prompt if variant else None,
            prompt_name=pull.prompt if pull else None,
            agent=pull.agent if pull else agent,
            repo=repository_name(pull.repo if pull else repo or ""),
            started=started,
        )
        yield PromptWork(
            id=attempt,
            prompt=prompt,
            task=None if task_digest in sealed else task,
            variant=variant.name if variant else pull.agent if pull else agent,
            started=started,
            pull=f"{pull.repo}#{pull.pull}" if pull else None,
            is_listed=task_digest not in sealed and (session_agent is None or not isnan(events)),
        )


def list_prompt_uses(store: Store) -> list[PromptUse]:
    """Return every prompt, newest first, without the names of held-out tasks."""
    index = PromptIndex(store)
    sealed = store.held_out.list_sealed_digests()
    hidden = {task.id for key, task in store.numbers.load_tasks().items() if key in sealed}
    known_variants, known_pulls = store.numbers.load_variants(), store.pulls.list_pulls()
    work: dict[str, list[PromptWork]] = {}
    listed: set[str] = set()
    for item in list_prompt_work(store, index, known_variants, known_pulls):
        if item.is_listed:
            listed.add(item.id)
        if item.prompt is not None:
            work.setdefault(item.prompt, []).append(item)
    variants: dict[str, list[str]] = {}
    for variant in known_variants.values():
        variants.setdefault(variant.prompt or "", []).append(variant.name)
    contexts: dict[str, list[ContextRecord]] = {}
    for record in store.memory.list_context_records():
        contexts.setdefault(record.prompt or "", []).append(record)
    pulls: dict[str, list[str]] = {}
    for pull in known_pulls:
        if pull.prompt:
            key = index.resolve_name(pull.prompt)
            pulls.setdefault(key, []).append(f"{pull.repo}#{pull.pull}")
    unstored = {key: PromptVersion(id=key, text="") for key in pulls if key not in index.prompts}
    uses = []
    for prompt in reversed([*unstored.values(), *index.prompts.values()]):
        prompt_work, records = work.get(prompt.id, []), contexts.get(prompt.id, [])
        if not (
            prompt.text.strip() or prompt.tools or prompt_work or records or prompt.id in pulls
        ):
            continue
        attempts = {item.id for item in prompt_work} | {record.key for record in records}
        pull_names = [item.pull for item in prompt_work if item.pull]
        days = [item.started for item in prompt_work if item.started] + [
            record.at for record in records
        ]
        names = [
            *variants.get(prompt.id, ()),
            *(item.variant for item in prompt_work if item.variant),
        ]
        uses.append(
            PromptUse(
                id=prompt.id,
                name=prompt.name,
                source=prompt.source,
                variants=tuple(dict.fromkeys(names)),
                attempts=len(attempts & listed),
                tasks=tuple(sorted({item.task for item in prompt_work if item.task} - hidden)),
                pulls=tuple(dict.fromkeys((*pulls.get(prompt.id, ()), *pull_names))),
                first=min(days, default=None),
                last=max(days, default=None),
                opening=next(iter(prompt.text.strip().splitlines()), ""),
            )
        )
    return uses


def add_prompt(
    store: Store,
    text: str,
    *,
    name: str | None = None,
    agent: str | None = None,
    repo: str | None = None,
    since: datetime | None = None,
) -> PromptVersion:
    """Store a prompt that is used elsewhere; with an agent, its work since then counts under it."""
    from closeloop.text.redaction import redact_record

    prompt, _ = redact_record(build_prompt_version(text, "file", agent, name) or _no_text())
    named_id = PromptIndex(store).resolve_name(name) if name else prompt.id
    if named_id not in (name, prompt.id):
        raise BadInput(f"Another prompt has the name {name!r}: choose another name.")
    stored_prompt = store.load_prompt(prompt.id)
    if stored_prompt is None or (name and stored_prompt.name != name):
        store.save_prompt(replace(stored_prompt, name=name) if stored_prompt else prompt)
    if agent:
        start = since or datetime.now(UTC)
        rollout = PromptRollout(prompt=prompt.id, agent=agent, repo=repo, since=start)
        store.prompts.add_rollout(rollout)
    return store.load_prompt(prompt.id) or prompt


def _no_text() -> PromptVersion:
    raise BadInput("The file is empty: give the file with the system prompt.")


def find_prompt_id(store: Store, start: str) -> str:
    """Return the id of a stored prompt, or of a version that pull requests name but nobody
    stored."""
    if store.load_prompt(start) is not None:
        return start
    named_prompts = {row.prompt for row in store.pulls.list_pulls(agent=True) if row.prompt}
    index = PromptIndex(store)
    if index.resolve_name(start) == start and start in named_prompts:
        return start
    return find_prompt(store, start).id


def find_prompt_before(store: Store, prompt: str) -> str:
    """Return the version that the same agents or variants began to use last before this one."""
    uses = {use.id: use for use in list_prompt_uses(store)}
    use = uses.get(prompt)
    if use is None or use.first is None:
        raise BadInput("No work used this prompt yet: give the prompt to compare it with.")
    earlier = [
        earlier_use
        for earlier_use in uses.values()
        if earlier_use.id != prompt
        and {*earlier_use.variants} & {*use.variants}
        and earlier_use.first is not None
        and earlier_use.first < use.first
    ]
    if not earlier:
        raise BadInput("There is no earlier prompt: give the prompt to compare it with.")
    return sorted(earlier, key=lambda use_before: (use_before.first is None, use_before.first))[
        -1
    ].id


def find_prompt(store: Store, start: str) -> PromptVersion:
    """Return the prompt with this name or id, or with the only id that begins with it."""
    prompts = store.prompts.list_prompts()
    named_prompts = [prompt for prompt in prompts if prompt.name == start]
    matching_prompts = named_prompts or [
        prompt for prompt in prompts if prompt.id.startswith(start)
    ]
    if not start or not matching_prompts:
        known_ids = [use.id[:SHORT_ID_CHARS] for use in list_prompt_uses(store)]
        raise unknown_name_error("prompt", start, known_ids)
    if len(matching_prompts) > 1:
        raise BadInput(f"{start!r} is a prefix of several prompts: give more characters.")
    return matching_prompts[0]
