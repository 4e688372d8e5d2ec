"""Pull requests of agents: rounds of review, corrections, and what came after the merge."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from closeloop.records.pull_request import Correction, PullRequest, PullRequestState, PullRow
from closeloop.records.record import Record
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_updates import load_pull
from closeloop.web.page import Page, find_or_404
from closeloop.web.page_context import PageContext

MAX_PULLS = 100


class PullsAsked(Record):
    repo: str | None = None
    state: PullRequestState | None = None
    by: Literal["agents", "people"] | None = None


class PullsView(Record):
    asked: PullsAsked
    pulls: tuple[PullRow, ...]
    """The latest first."""
    repos: tuple[str, ...]
    cut: bool
    """Whether there are more."""


class PullAsked(Record):
    repo: str
    number: Annotated[int, Meta(ge=1, le=2**53)]


class PullView(Record):
    pull: PullRequest
    corrections: tuple[Correction, ...]


def pulls(desk: PageContext, asked: PullsAsked) -> PullsView:
    agent = None if asked.by is None else asked.by == "agents"
    rows = desk.store.pulls.list_pulls(
        repo=asked.repo, state=asked.state, agent=agent, limit=MAX_PULLS + 1
    )
    first = tuple(rows[:MAX_PULLS])
    return PullsView(
        asked=asked,
        pulls=first,
        repos=tuple(sorted({row.repo for row in first})),
        cut=len(rows) > MAX_PULLS,
    )


def pull(desk: PageContext, asked: PullAsked) -> PullView:
    agents = merge_known_agents(desk.settings.pulls.agents)
    pull_request = find_or_404(load_pull, asked.repo, asked.number, desk.store, agents)
    pull_corrections = desk.store.memory.list_corrections(repo=asked.repo, pull=asked.number)
    return PullView(pull=pull_request, corrections=tuple(pull_corrections))


PAGES = (
    Page(
        path="/pulls",
        show=pulls,
        template="pulls.html",
        about="Pull requests, and what people did with them.",
        section="Pull requests",
        key="u",
    ),
    Page(
        path="/pulls/{repo:path}/{number:int}",
        show=pull,
        template="pull.html",
        about="The life of one pull request.",
        section="Pull requests",
    ),
)
