"""`closeloop import --github`: pull requests of the past, and what became of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.model.plural import plural
from closeloop.model.record import Record

if TYPE_CHECKING:
    from closeloop.reviewing.backfill import Backfill, Tell

_NAME = re.compile(r"[\w.-]{1,100}(?:/[\w.-]{1,100}){1,20}")


class Past(Record):
    """Whose pull requests are asked for."""

    github: str | None = None
    gitlab: str | None = None
    git: Path | None = None
    since: datetime | None = None


class Read(Record):
    """What came of it."""

    repo: str
    pulls: int
    """That were read this time."""
    known: int
    agents: int
    """How many there are now, and how many of them are an agent's."""


def import_pulls(past: Past, *, json: bool) -> int:
    """Ask for pull requests; exit code 2 where there is none."""
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json
    from closeloop.model.errors import BadInput
    from closeloop.reviewing.backfill import Backfill
    from closeloop.reviewing.history import import_history
    from closeloop.reviews.authorship import agents_of

    if sum(one is not None for one in (past.github, past.gitlab, past.git)) != 1:
        raise BadInput("Give one of --github, --gitlab and --git.")
    found = load(Path.cwd())
    agents = agents_of(found.settings.pulls.agents)
    with flow.open_named_store(found.settings, found.root) as store, counted(json) as tell:
        if past.git is not None:
            repo = _origin(past.git)
            done = import_history(past.git, repo, store, agents, tell)
            repo = repo or str(past.git.resolve())
        else:
            repo = named(past.github or past.gitlab or "")
            wanted = Backfill(repo=repo, store=store, agents=agents, tell=tell)
            done = _asked(past, wanted)
        rows = store.pulls.rows(repo=repo)
    known = len(rows)
    ours = sum(row.agent is not None for row in rows)
    if json:
        say_json(Read(repo=repo, pulls=done, known=known, agents=ours))
    else:
        say(f"{repo}: {plural(done, 'pull request')} read; of {known} known, {ours} by agents")
    return 0 if known else 2


def named(repo: str) -> str:
    from closeloop.model.errors import BadInput

    if not _NAME.fullmatch(repo) or any(part in (".", "..") for part in repo.split("/")):
        raise BadInput(f"{repo!r} names no repository: write OWNER/NAME.")
    return repo


def _asked(past: Past, wanted: Backfill) -> int:
    import anyio

    from closeloop.checking.github import GITLAB_API, open_gitlab
    from closeloop.cli.sources import github_of
    from closeloop.reviewing.backfill import backfill_github
    from closeloop.reviewing.backfill_gitlab import backfill_gitlab

    async def ask() -> int:
        if past.github is not None:
            async with github_of(wanted.repo, os.environ) as hub:
                return await backfill_github(hub, wanted, past.since)
        token, api = (
            os.environ.get("GITLAB_TOKEN", ""),
            os.environ.get("GITLAB_API_URL", GITLAB_API),
        )
        async with open_gitlab(wanted.repo, token, api) as hub:
            return await backfill_gitlab(hub, wanted, past.since)

    return anyio.run(ask)


def _origin(folder: Path) -> str | None:
    """`owner/name` by the address that a clone was made from; None where it has none."""
    from closeloop.cli.sources import name_of
    from closeloop.model.errors import BadInput

    try:
        return name_of(folder)
    except BadInput:
        return None


@contextmanager
def counted(quiet: bool) -> Iterator[Tell]:
    """One line that counts, on a terminal."""
    from closeloop.cli.console import console

    output = console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda done: None
        return
    with output.status("asking for pull requests") as status:
        yield lambda done: status.update(f"{plural(done, 'pull request')} read")
