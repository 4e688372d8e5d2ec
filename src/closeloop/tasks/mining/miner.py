"""Mine a repository: rank its past work, prove it piece by piece, write down what holds."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import anyio
import msgspec
from anyio import to_thread

from closeloop.concurrency import unwrap_exception_group
from closeloop.git import try_git_text
from closeloop.records.attempt import Proof
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import CommandSettings
from closeloop.records.task import Task
from closeloop.sandbox.workspaces import WorkspacePool
from closeloop.store import Store
from closeloop.tasks.mining import candidate_builder
from closeloop.tasks.mining.candidate_proof import ProvedTask, RefusedCandidate, prove_candidate
from closeloop.tasks.mining.change_parts import CollectionRules, find_collection_rules
from closeloop.tasks.mining.mining_environments import EnvironmentCache, acceptance_for_command
from closeloop.tasks.mining.prompt_leaks import split_patch_lines
from closeloop.tasks.mining.request_rewording import RewordCandidate
from closeloop.tasks.mining.setup_recipes import (
    ConfiguredCommands,
    Recipe,
    detect_edited_commands,
    list_recipes,
    package_cutoff_day,
)
from closeloop.tasks.mining.work_history import (
    GatheredWork,
    LedgerEntry,
    PastWork,
    append_entry,
    is_shallow_clone,
    read_ledger,
    with_source_tags,
)
from closeloop.tasks.projects.manifest_folder import ManifestFolder
from closeloop.tasks.task_writer import render_task_files
from closeloop.text.patches import parse_patch
from closeloop.text.redaction import redact_proof

MAX_FAILED_ENVIRONMENTS = 12
"""After so many environments in a row that cannot be made, older ones are not tried."""

NEAR_BEST_COUNT = 8
"""So many of the best are about as good: of them, those are tried that need no new environment."""


class MiningContext(Record):
    """Where mining happens, and with what."""

    repo: Path
    tasks: Path
    """The folder that the tasks go to."""
    ledger: Path
    commands: CommandSettings
    workspaces: WorkspacePool
    store: Store
    reword: RewordCandidate | None = None
    gathered: GatheredWork | None = None
    """The work to try, where it does not come from the history alone."""


class MiningOptions(Record):
    """What is wanted."""

    limit: int = 20
    """Mined tasks in all, those of earlier times included."""
    since: str | None = None
    seconds: float | None = None
    repeats: int = 3
    jobs: int | None = None


class MiningEvent(Record):
    """What has just happened."""

    stage: Literal["surveyed", "trying", "proved", "refused"]
    commit: str | None = None
    about: str = ""
    """The message's first line, or why not."""
    task: str | None = None


class MiningResult(Record):
    """What came of it."""

    tasks: tuple[str, ...] = ()
    """Ids, this time's only."""
    before: int = 0
    """Mined earlier."""
    lost: int = 0
    """Mined earlier from a history that was rewritten since: where they start is gone."""
    tried: int = 0
    candidates: int = 0
    left: int = 0
    """Candidates that were never tried to the end."""
    passed_over: dict[str, int] = {}
    """Reason → pieces of work that could not be tasks, without running anything."""
    refused: dict[str, str] = {}
    """Commit → why it did not become a task, this time's only."""
    environments: int = 0
    seconds: float = 0.0
    shallow: bool = False


class _MiningRun:
    """A mining under way."""

    def __init__(
        self,
        ground: MiningContext,
        known: ConfiguredCommands,
        wish: MiningOptions,
        tell: Callable[[MiningEvent], None],
    ) -> None:
        self.ground, self.known, self.wish, self.tell = ground, known, wish, tell
        self.environments = EnvironmentCache(ground.workspaces, ground.repo, known)
        self.entries = read_ledger(ground.ledger)
        proved = [entry for entry in self.entries.values() if entry.state == "proved"]
        standing = _reachable_entries(proved, ground.repo)
        self.before = sum(_task_exists(entry, ground.tasks) for entry in standing)
        """Mined earlier, which the limit counts too."""
        self.lost = sum(_task_exists(entry, ground.tasks) for entry in proved) - self.before
        self.limit = wish.limit - self.before
        self.changes = {entry.change for entry in standing}
        self.tasks: list[str] = []
        self.refused: dict[str, str] = {}
        self.rotten = 0
        self.scope = anyio.CancelScope()
        gathered = ground.gathered.given if ground.gathered else ()
        self.given = {one.work.commit: one for one in gathered}

    async def try_work(self, work: PastWork) -> None:
        """One piece of work, tried and noted down."""
        self.tell(
            MiningEvent(stage="trying", commit=work.commit, about=work.message.partition("\n")[0])
        )
        start = time.monotonic()
        try:
            outcome = await self._prove_work(work)
        except (BadInput, MachineFailed) as fault:
            outcome = RefusedCandidate(why=str(fault), lasting=False)
        if isinstance(outcome, RefusedCandidate):
            self._record_refusal(work, outcome, time.monotonic() - start)
        elif len(self.tasks) < self.limit:
            await self._accept_task(work, outcome, time.monotonic() - start)

    async def _prove_work(self, work: PastWork) -> ProvedTask | RefusedCandidate:
        repo = self.ground.repo
        with candidate_builder.open_manifests(repo, work.commit) as folder:
            rules = rules_for_recipes(folder, list_recipes(folder, self.known, work.at))
        candidate = candidate_builder.build_candidate(repo, work, rules)
        if isinstance(candidate, str):
            return RefusedCandidate(why=candidate)
        change = _change_digest(candidate.source)
        if change in self.changes:
            return RefusedCandidate(why="the same change is a task already")
        self.changes.add(change)
        if self.ground.reword is not None:
            candidate = await self.ground.reword(candidate)
        outcome = await prove_candidate(candidate, self.environments, self.wish.repeats)
        if isinstance(outcome, RefusedCandidate):
            self.changes.discard(change)
        return outcome

    async def _accept_task(self, work: PastWork, found: ProvedTask, seconds: float) -> None:
        task = with_source_tags(found.task, self.given.get(work.commit))
        self.tasks.append(task.id)
        # In a thread: proofs under way go on while this one waits for the database.
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._save_task, task, found.proof)
        self.rotten = 0
        change = _change_digest(task.reference or "")
        self._append_entry(work, seconds, "proved", task=task.id, change=change, base=work.base)
        self.tell(MiningEvent(stage="proved", commit=work.commit, task=task.id))
        if len(self.tasks) >= self.limit:
            self.scope.cancel()

    def _save_task(self, task: Task, proof: Proof) -> None:
        self.ground.store.save_task(task)
        self.ground.store.save_proof(redact_proof(proof))
        write_task_files(task, self.ground.tasks)

    def _record_refusal(self, work: PastWork, found: RefusedCandidate, seconds: float) -> None:
        self.refused[work.commit] = found.why
        self._append_entry(
            work, seconds, "refused" if found.lasting else "failed", why=found.why[:1000]
        )
        self.tell(MiningEvent(stage="refused", commit=work.commit, about=found.why))
        self.rotten = self.rotten + 1 if found.why.startswith("no environment") else 0
        if self.rotten >= MAX_FAILED_ENVIRONMENTS:
            self.scope.cancel()

    def _append_entry(
        self,
        work: PastWork,
        seconds: float,
        state: Literal["proved", "refused", "failed"],
        **more: str,
    ) -> None:
        entry = LedgerEntry(
            commit=work.commit, state=state, at=datetime.now(UTC), seconds=round(seconds, 1)
        )
        append_entry(self.ground.ledger, msgspec.structs.replace(entry, **more))


async def mine_tasks(
    ground: MiningContext, wish: MiningOptions, tell: Callable[[MiningEvent], None]
) -> MiningResult:
    """Tasks until there are as many as wished, time is up, or no work is left."""
    start = time.monotonic()
    if not try_git_text(str(ground.repo), "rev-parse", "--verify", "HEAD"):
        raise BadInput(f"{ground.repo} has no commits: there is no past work to look at.")
    with candidate_builder.open_manifests(ground.repo, "HEAD") as folder:
        known = detect_edited_commands(ground.commands, folder)
        head_recipes = list_recipes(folder, known, datetime.now(UTC))
        rules = rules_for_recipes(folder, head_recipes)
    if not head_recipes:
        raise BadInput(
            f"No command that runs the tests of {ground.repo} was found: name it as `test` under "
            "[commands] in closeloop.toml."
        )
    survey = _gather_work(ground, rules, wish)
    mining_run = _MiningRun(ground, known, wish, tell)
    untried_work = [
        work for work in survey.works if _needs_trial(mining_run.entries.get(work.commit))
    ]
    left = len(untried_work)
    tell(MiningEvent(stage="surveyed", about=f"{left} of {len(survey.works)} candidates to try"))
    if mining_run.limit > 0:
        await _try_all_work(mining_run, untried_work)
    return MiningResult(
        tasks=tuple(mining_run.tasks),
        before=mining_run.before,
        lost=mining_run.lost,
        tried=len(mining_run.tasks) + len(mining_run.refused),
        candidates=len(survey.works),
        left=left - len(mining_run.tasks) - len(mining_run.refused),
        passed_over=dict(Counter(survey.passed_over.values())),
        refused=mining_run.refused,
        environments=mining_run.environments.made,
        seconds=time.monotonic() - start,
        shallow=is_shallow_clone(ground.repo),
    )


def rules_for_recipes(folder: ManifestFolder, ways: Sequence[Recipe]) -> CollectionRules:
    """Which files are tests: as the likeliest way to run them takes it whose runner is seen."""
    runners = (acceptance_for_command(way.test, 1.0).runner for way in ways)
    return find_collection_rules(folder, next(filter(None, runners), None))


def _gather_work(
    ground: MiningContext, rules: CollectionRules, wish: MiningOptions
) -> candidate_builder.WorkSurvey:
    """The work that was gathered, or all of the history."""
    if ground.gathered is None:
        return candidate_builder.survey_work(ground.repo, rules, wish.since, datetime.now(UTC))
    return candidate_builder.WorkSurvey(
        works=tuple(one.work for one in ground.gathered.given),
        passed_over=ground.gathered.passed_over,
    )


async def _try_all_work(dig: _MiningRun, works: list[PastWork]) -> None:
    """Several at once, each taking the best that is left."""
    begun: set[str] = set()

    async def worker() -> None:
        while works:
            work = works.pop(_choose_next(works, begun))
            begun.add(package_cutoff_day(work.at))
            await dig.try_work(work)

    if dig.wish.seconds is not None:
        dig.scope.deadline = anyio.current_time() + dig.wish.seconds
    with unwrap_exception_group(), dig.scope:
        async with anyio.create_task_group() as group:
            for _ in range(dig.wish.jobs or os.cpu_count() or 1):
                group.start_soon(worker)


def _choose_next(works: Sequence[PastWork], begun: Collection[str]) -> int:
    """Of the best few, the first whose packages are there already, else the best."""
    near = (
        place
        for place, work in enumerate(works[:NEAR_BEST_COUNT])
        if package_cutoff_day(work.at) in begun
    )
    return next(near, 0)


def write_task_files(task: Task, folder: Path) -> Path:
    """Write a task's files; the one that makes it a task comes last, and each appears whole."""
    files = render_task_files(task, folder)
    main = folder / f"{task.id}.md"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in reversed(files):
            part = folder / f".{name}.part"
            part.write_text(files[name], encoding="utf-8", newline="")
            part.replace(folder / name)
    except OSError as error:
        raise MachineFailed(f"{main} cannot be written: {error.strerror}.") from error
    return main


def _task_exists(entry: LedgerEntry, tasks: Path) -> bool:
    return (tasks / f"{entry.task}.md").is_file()


def _reachable_entries(entries: Sequence[LedgerEntry], repo: Path) -> list[LedgerEntry]:
    """Those whose task starts from a commit that is still to be had."""
    bases = "".join(f"{base}\n" for base in {entry.base for entry in entries} if base)
    git_output = try_git_text(str(repo), "cat-file", "--batch-check", stdin=bases) if bases else ""
    known_commits = {line.split()[0] for line in git_output.splitlines() if " commit " in line}
    return [entry for entry in entries if not entry.base or entry.base in known_commits]


def _needs_trial(entry: LedgerEntry | None) -> bool:
    """Whether a commit is to be tried: a task that somebody deleted is not wanted back."""
    return entry is None or entry.state == "failed"


def _change_digest(patch: str) -> str:
    """The same for the same work on another branch, whose patch has other ids and places."""
    lines, files = split_patch_lines(patch), parse_patch(patch).files
    return content_digest([file.path for file in files], lines.added, lines.removed)[:32]
