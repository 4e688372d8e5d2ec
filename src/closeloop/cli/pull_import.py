"""`closeloop import --github`: pull requests of the past, and what became of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.records.plural import count_with_noun
from closeloop.records.record import Record

if TYPE_CHECKING:
    from closeloop.reviews.github_backfill import BackfillRequest, CountCallback

_REPO_NAME = re.compile(r"[\w.-]{1,100}(?:/[\w.-]{1,100}){1,20}")


class PullImportOptions(Record):
    """Whose pull requests are asked for."""

    github: str | None = None
    gitlab: str | None = None
    git: Path | None = None
    since: datetime | None = None


class PullImportResult(Record):
    """What came of it."""

    repo: str
    pulls: int
    """That were read this time."""
    known: int
    agents: int
    """How many there are now, and how many of them are an agent's."""


def import_pulls(past: PullImportOptions, *, json: bool) -> int:
    """Ask for pull requests; exit code 2 where there is none."""
    from closeloop import flow
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.reviews.git_history import import_git_history
    from closeloop.reviews.github_backfill import BackfillRequest

    if sum(one is not None for one in (past.github, past.gitlab, past.git)) != 1:
        raise BadInput("Give one of --github, --gitlab and --git.")
    project = load_project(Path.cwd())
    agents = merge_known_agents(project.settings.pulls.agents)
    with (
        flow.open_project_store(project.settings, project.root) as store,
        count_imported_pulls(json) as tell,
    ):
        if past.git is not None:
            repo = _find_origin(past.git)
            read_count = import_git_history(past.git, repo, store, agents, tell)
            repo = repo or str(past.git.resolve())
        else:
            repo = require_repo_name(past.github or past.gitlab or "")
            backfill = BackfillRequest(repo=repo, store=store, agents=agents, tell=tell)
            read_count = _import_from_host(past, backfill)
        rows = store.pulls.list_pulls(repo=repo)
    known_count = len(rows)
    agent_count = sum(row.agent is not None for row in rows)
    if json:
        print_json(
            PullImportResult(repo=repo, pulls=read_count, known=known_count, agents=agent_count)
        )
    else:
        print_line(
            f"{repo}: {count_with_noun(read_count, 'pull request')} read; of {known_count} known,"
            f" {agent_count} by agents"
        )
    return 0 if known_count else 2


def require_repo_name(repo: str) -> str:
    from closeloop.records.errors import BadInput

    if not _REPO_NAME.fullmatch(repo) or any(part in (".", "..") for part in repo.split("/")):
        raise BadInput(f"{repo!r} names no repository: write OWNER/NAME.")
    return repo


def _import_from_host(past: PullImportOptions, wanted: BackfillRequest) -> int:
    import anyio

    from closeloop.changes.code_host import GITLAB_API, open_gitlab
    from closeloop.cli.mining_sources import open_github_repo
    from closeloop.reviews.github_backfill import backfill_github
    from closeloop.reviews.gitlab_backfill import backfill_gitlab

    async def import_from_host() -> int:
        if past.github is not None:
            async with open_github_repo(wanted.repo, os.environ) as hub:
                return await backfill_github(hub, wanted, past.since)
        token, api = (
            os.environ.get("GITLAB_TOKEN", ""),
            os.environ.get("GITLAB_API_URL", GITLAB_API),
        )
        async with open_gitlab(wanted.repo, token, api) as hub:
            return await backfill_gitlab(hub, wanted, past.since)

    return anyio.run(import_from_host)


def _find_origin(folder: Path) -> str | None:
    """`owner/name` by the address that a clone was made from; None where it has none."""
    from closeloop.cli.mining_sources import origin_repo_name
    from closeloop.records.errors import BadInput

    try:
        return origin_repo_name(folder)
    except BadInput:
        return None


@contextmanager
def count_imported_pulls(quiet: bool) -> Iterator[CountCallback]:
    """One line that counts, on a terminal."""
    from closeloop.cli.console import open_console

    output = open_console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda done: None
        return
    with output.status("asking for pull requests") as status:
        yield lambda done: status.update(f"{count_with_noun(done, 'pull request')} read")
