"""Pull requests of the past, asked for: what was done stays done, and asking again goes on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from closeloop.model.errors import MachineFailed
from closeloop.model.record import Record
from closeloop.model.review import Extent, Fact, PullRequest
from closeloop.reviewing.lives import keep, recorded
from closeloop.reviews.authorship import Agents
from closeloop.reviews.lifecycle import life
from closeloop.reviews.pulls import File, Listed, Pull, Remark, Reviewed, Run, Teller, files_of
from closeloop.reviews.pulls_witness import MOST
from closeloop.store import Store

MOST_CHECKED = 10
"""Commits of a pull request whose checks are asked for: the first and the last."""
MOST_SIZED = 20
"""Commits of people whose files are asked for."""
BEGINNING = "1970-01-01T00:00:00Z"
_SHA = re.compile(r"[0-9a-f]{40,64}")

Kind = TypeVar("Kind")
Tell = Callable[[int], None]
"""How many are done."""


class Hub(Protocol):
    """One repository at its host, asked page by page."""

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[Kind],
        payload: dict[str, Any] | None = None,
        *,
        again: bool = True,
    ) -> Kind: ...

    def pages(self, path: str, kind: type[Kind]) -> AsyncIterator[Kind]: ...


class Touched(Protocol):
    """What a host lists in the order of its changes."""

    @property
    def number(self) -> int: ...

    @property
    def updated_at(self) -> str: ...


Dated = TypeVar("Dated", bound=Touched)


class Backfill(Record):
    """What is asked for, and where it is kept."""

    repo: str
    store: Store
    agents: Agents
    tell: Tell

    @property
    def place(self) -> str:
        return f"backfill:{self.repo}"

    def begin(self, since: datetime | None) -> str:
        """From when on to ask: as told, else where the last one stopped."""
        if since is not None:
            return since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self.store.events.place(self.place) or BEGINNING

    def took(self, facts: list[Fact], updated: str) -> None:
        """Keep what was told of one; the next time begins here."""
        keep(facts, self.store, self.agents)
        self.store.events.move(self.place, updated)


class _Touched(Record):
    """An issue or a pull request, in the order they were last touched."""

    number: int
    updated_at: str
    pull_request: dict[str, Any] | None = None


class _Runs(Record):
    check_runs: tuple[Run, ...] = ()


async def backfill_github(hub: Hub, wanted: Backfill, since: datetime | None = None) -> int:
    """Ask GitHub for all pull requests that changed since the last time; how many those were."""
    done = 0
    async for one in each_since(wanted.begin(since), lambda start: _touched(hub, start)):
        if one.pull_request is not None:
            wanted.took(await github_facts(hub, wanted, one.number), one.updated_at)
            done += 1
            wanted.tell(done)
    return done


async def each_since(
    start: str, pages: Callable[[str], AsyncIterator[list[Dated]]]
) -> AsyncIterator[Dated]:
    """What changed since a time, the oldest first; what changes meanwhile comes again."""
    seen: set[tuple[int, str]] = set()
    while True:
        before = start
        async for page in pages(start):
            for one in page:
                if (one.number, one.updated_at) not in seen:
                    seen.add((one.number, one.updated_at))
                    yield one
                start = max(start, one.updated_at)
            # What is touched meanwhile moves to the end, and what follows it to another page:
            # rather than turn pages, ask again from here.
            if start > before:
                break
        if start == before:
            return


async def _touched(hub: Hub, start: str) -> AsyncIterator[list[_Touched]]:
    """What changed since a time, the oldest first."""
    order = "state=all&sort=updated&direction=asc"
    try:
        # Only issues can be asked for since a time; pull requests are among them.
        async for page in hub.pages(f"issues?{order}&since={quote(start)}", list[_Touched]):
            yield page
    except MachineFailed as refused:
        if getattr(refused, "status", None) != 410:
            raise
        # There are no issues in this repository.
        every = [one async for page in hub.pages(f"pulls?{order}", list[_Touched]) for one in page]
        yield [replace(one, pull_request={}) for one in every if one.updated_at >= start]


async def github_facts(hub: Hub, wanted: Backfill, number: int) -> list[Fact]:
    """All that GitHub still knows of a pull request; of an agent's, more is asked for."""
    tell = Teller(wanted.repo, datetime.now(UTC))
    try:
        pull = await hub.ask("GET", f"pulls/{number}", Pull)
    except MachineFailed as refused:
        if getattr(refused, "status", None) in (404, 410):
            return []
        raise
    commits = await listed(hub, f"pulls/{number}/commits", Listed)
    names = tuple(commit.sha for commit in commits if _SHA.fullmatch(commit.sha))
    facts = [*tell.pull(pull), *(tell.listed(number, commit) for commit in commits)]
    facts.append(tell.extent(number, Extent(commits=names), pull.updated_at))
    reviews = await listed(hub, f"pulls/{number}/reviews", Reviewed)
    facts += [tell.review(number, one, None) for one in reviews if one.state.upper() != "PENDING"]
    for path in (f"pulls/{number}/comments", f"issues/{number}/comments"):
        facts += [tell.comment(number, one) for one in await listed(hub, path, Remark)]
    told = life(facts, number, wanted.agents)
    if told is not None and (told.signs or recorded(told, wanted.store)):
        facts += await _closer(hub, tell, told)
    return facts


async def _closer(hub: Hub, tell: Teller, pull: PullRequest) -> list[Fact]:
    """What an agent's pull request changed, what CI said of it, and what people mended."""
    number = pull.number
    files = tuple(await listed(hub, f"pulls/{number}/files", File))
    facts = [tell.extent(number, Extent(files=files_of(files)), pull.told)]
    shas = [commit.sha for commit in pull.commits]
    half = MOST_CHECKED // 2
    for sha in dict.fromkeys([*shas[:half], *shas[-half:]]):
        runs = await hub.ask("GET", f"commits/{sha}/check-runs?per_page=100", _Runs)
        facts += [tell.check("check_run", run) for run in runs.check_runs]
    for edit in pull.edits[:MOST_SIZED]:
        facts.append(tell.listed(number, await hub.ask("GET", f"commits/{edit.sha}", Listed)))
    return facts


async def listed(hub: Hub, path: str, kind: type[Kind]) -> list[Kind]:
    """A whole list."""
    found: list[Kind] = []
    async for page in hub.pages(path, list[kind]):  # type: ignore[valid-type]
        found += page
    return found[:MOST]
