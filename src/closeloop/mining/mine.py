"""Mine a repository: rank its past work, prove it piece by piece, write down what holds."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import anyio
import msgspec
from anyio import to_thread

from closeloop.git import try_text
from closeloop.mining import digging
from closeloop.mining.environments import Environments, acceptance
from closeloop.mining.given import Gathered, dressed
from closeloop.mining.ledger import Entry, note, read_ledger
from closeloop.mining.proving import Proved, Refused, prove
from closeloop.model.attempt import Proof
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.patches import parse
from closeloop.model.record import Record, digest
from closeloop.model.settings import Commands
from closeloop.model.task import Task
from closeloop.runs.executors.local import plainly
from closeloop.runs.workspaces import Workspaces
from closeloop.store import Store
from closeloop.tasks.mining.candidates import Candidate
from closeloop.tasks.mining.code import sides
from closeloop.tasks.mining.history import Work, is_shallow
from closeloop.tasks.mining.parts import Collects, collects
from closeloop.tasks.mining.recipes import Configured, Recipe, configured, recipes, until
from closeloop.tasks.projects.folder import Folder
from closeloop.tasks.write import render
from closeloop.traces.redact import redact_proof

ROT = 12
"""After so many environments in a row that cannot be made, older ones are not tried."""

NEAR = 8
"""So many of the best are about as good: of them, those are tried that need no new environment."""

Reword = Callable[[Candidate], Awaitable[Candidate]]


class Ground(Record):
    """Where mining happens, and with what."""

    repo: Path
    tasks: Path
    """The folder that the tasks go to."""
    ledger: Path
    commands: Commands
    workspaces: Workspaces
    store: Store
    reword: Reword | None = None
    gathered: Gathered | None = None
    """The work to try, where it does not come from the history alone."""


class Wish(Record):
    """What is wanted."""

    limit: int = 20
    """Mined tasks in all, those of earlier times included."""
    since: str | None = None
    seconds: float | None = None
    repeats: int = 3
    jobs: int | None = None


class Told(Record):
    """What has just happened."""

    stage: Literal["surveyed", "trying", "proved", "refused"]
    commit: str | None = None
    about: str = ""
    """The message's first line, or why not."""
    task: str | None = None


class Mined(Record):
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


class _Dig:
    """A mining under way."""

    def __init__(
        self, ground: Ground, known: Configured, wish: Wish, tell: Callable[[Told], None]
    ) -> None:
        self.ground, self.known, self.wish, self.tell = ground, known, wish, tell
        self.environments = Environments(ground.workspaces, ground.repo, known)
        self.entries = read_ledger(ground.ledger)
        proved = [entry for entry in self.entries.values() if entry.state == "proved"]
        standing = _standing(proved, ground.repo)
        self.before = sum(_is_there(entry, ground.tasks) for entry in standing)
        """Mined earlier, which the limit counts too."""
        self.lost = sum(_is_there(entry, ground.tasks) for entry in proved) - self.before
        self.limit = wish.limit - self.before
        self.changes = {entry.change for entry in standing}
        self.tasks: list[str] = []
        self.refused: dict[str, str] = {}
        self.rotten = 0
        self.scope = anyio.CancelScope()
        gathered = ground.gathered.given if ground.gathered else ()
        self.given = {one.work.commit: one for one in gathered}

    async def one(self, work: Work) -> None:
        """One piece of work, tried and noted down."""
        self.tell(Told(stage="trying", commit=work.commit, about=work.message.partition("\n")[0]))
        start = time.monotonic()
        try:
            found = await self._tried(work)
        except (BadInput, MachineFailed) as fault:
            found = Refused(why=str(fault), lasting=False)
        if isinstance(found, Refused):
            self._refuse(work, found, time.monotonic() - start)
        elif len(self.tasks) < self.limit:
            await self._keep(work, found, time.monotonic() - start)

    async def _tried(self, work: Work) -> Proved | Refused:
        repo = self.ground.repo
        with digging.manifests(repo, work.commit) as folder:
            rules = _rules(folder, recipes(folder, self.known, work.at))
        candidate = digging.candidate(repo, work, rules)
        if isinstance(candidate, str):
            return Refused(why=candidate)
        change = _change(candidate.source)
        if change in self.changes:
            return Refused(why="the same change is a task already")
        self.changes.add(change)
        if self.ground.reword is not None:
            candidate = await self.ground.reword(candidate)
        found = await prove(candidate, self.environments, self.wish.repeats)
        if isinstance(found, Refused):
            self.changes.discard(change)
        return found

    async def _keep(self, work: Work, found: Proved, seconds: float) -> None:
        task = dressed(found.task, self.given.get(work.commit))
        self.tasks.append(task.id)
        # In a thread: proofs under way go on while this one waits for the database.
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._save, task, found.proof)
        self.rotten = 0
        change = _change(task.reference or "")
        self._note(work, seconds, "proved", task=task.id, change=change, base=work.base)
        self.tell(Told(stage="proved", commit=work.commit, task=task.id))
        if len(self.tasks) >= self.limit:
            self.scope.cancel()

    def _save(self, task: Task, proof: Proof) -> None:
        self.ground.store.save_task(task)
        self.ground.store.save_proof(redact_proof(proof))
        write_whole(task, self.ground.tasks)

    def _refuse(self, work: Work, found: Refused, seconds: float) -> None:
        self.refused[work.commit] = found.why
        self._note(work, seconds, "refused" if found.lasting else "failed", why=found.why[:1000])
        self.tell(Told(stage="refused", commit=work.commit, about=found.why))
        self.rotten = self.rotten + 1 if found.why.startswith("no environment") else 0
        if self.rotten >= ROT:
            self.scope.cancel()

    def _note(
        self,
        work: Work,
        seconds: float,
        state: Literal["proved", "refused", "failed"],
        **more: str,
    ) -> None:
        entry = Entry(
            commit=work.commit, state=state, at=datetime.now(UTC), seconds=round(seconds, 1)
        )
        note(self.ground.ledger, msgspec.structs.replace(entry, **more))


async def mine(ground: Ground, wish: Wish, tell: Callable[[Told], None]) -> Mined:
    """Tasks until there are as many as wished, time is up, or no work is left."""
    start = time.monotonic()
    if not try_text(str(ground.repo), "rev-parse", "--verify", "HEAD"):
        raise BadInput(f"{ground.repo} has no commits: there is no past work to look at.")
    with digging.manifests(ground.repo, "HEAD") as folder:
        known = configured(ground.commands, folder)
        ways = recipes(folder, known, datetime.now(UTC))
        rules = _rules(folder, ways)
    if not ways:
        raise BadInput(
            f"No command that runs the tests of {ground.repo} was found: name it as `test` under "
            "[commands] in closeloop.toml."
        )
    lode = _lode(ground, rules, wish)
    dig = _Dig(ground, known, wish, tell)
    works = [work for work in lode.works if _is_open(dig.entries.get(work.commit))]
    left = len(works)
    tell(Told(stage="surveyed", about=f"{left} of {len(lode.works)} candidates to try"))
    if dig.limit > 0:
        await _all(dig, works)
    return Mined(
        tasks=tuple(dig.tasks),
        before=dig.before,
        lost=dig.lost,
        tried=len(dig.tasks) + len(dig.refused),
        candidates=len(lode.works),
        left=left - len(dig.tasks) - len(dig.refused),
        passed_over=dict(Counter(lode.passed_over.values())),
        refused=dig.refused,
        environments=dig.environments.made,
        seconds=time.monotonic() - start,
        shallow=is_shallow(ground.repo),
    )


def _rules(folder: Folder, ways: Sequence[Recipe]) -> Collects:
    """Which files are tests: as the likeliest way to run them takes it whose runner is seen."""
    runners = (acceptance(way.test, 1.0).runner for way in ways)
    return collects(folder, next(filter(None, runners), None))


def _lode(ground: Ground, rules: Collects, wish: Wish) -> digging.Lode:
    """The work that was gathered, or all of the history."""
    if ground.gathered is None:
        return digging.survey(ground.repo, rules, wish.since, datetime.now(UTC))
    return digging.Lode(
        works=tuple(one.work for one in ground.gathered.given),
        passed_over=ground.gathered.passed_over,
    )


async def _all(dig: _Dig, works: list[Work]) -> None:
    """Several at once, each taking the best that is left."""
    begun: set[str] = set()

    async def worker() -> None:
        while works:
            work = works.pop(_best(works, begun))
            begun.add(until(work.at))
            await dig.one(work)

    if dig.wish.seconds is not None:
        dig.scope.deadline = anyio.current_time() + dig.wish.seconds
    with plainly(), dig.scope:
        async with anyio.create_task_group() as group:
            for _ in range(dig.wish.jobs or os.cpu_count() or 1):
                group.start_soon(worker)


def _best(works: Sequence[Work], begun: Collection[str]) -> int:
    """Of the best few, the first whose packages are there already, else the best."""
    near = (place for place, work in enumerate(works[:NEAR]) if until(work.at) in begun)
    return next(near, 0)


def write_whole(task: Task, folder: Path) -> Path:
    """Write a task's files; the one that makes it a task comes last, and each appears whole."""
    files = render(task, folder)
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


def _is_there(entry: Entry, tasks: Path) -> bool:
    return (tasks / f"{entry.task}.md").is_file()


def _standing(entries: Sequence[Entry], repo: Path) -> list[Entry]:
    """Those whose task starts from a commit that is still to be had."""
    bases = "".join(f"{base}\n" for base in {entry.base for entry in entries} if base)
    said = try_text(str(repo), "cat-file", "--batch-check", stdin=bases) if bases else ""
    there = {line.split()[0] for line in said.splitlines() if " commit " in line}
    return [entry for entry in entries if not entry.base or entry.base in there]


def _is_open(entry: Entry | None) -> bool:
    """Whether a commit is to be tried: a task that somebody deleted is not wanted back."""
    return entry is None or entry.state == "failed"


def _change(patch: str) -> str:
    """The same for the same work on another branch, whose patch has other ids and places."""
    lines, files = sides(patch), parse(patch).files
    return digest([file.path for file in files], lines.added, lines.removed)[:32]
