"""Pull requests of agents: rounds of review, corrections, and what came after the merge."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from closeloop.model.record import Record
from closeloop.model.review import Correction, PullRequest, PullRow, State
from closeloop.reviewing.lives import shown
from closeloop.reviews.authorship import agents_of
from closeloop.web.desk import Desk
from closeloop.web.page import Page, found

MOST_PULLS = 100


class PullsAsked(Record):
    repo: str | None = None
    state: State | None = None
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


def pulls(desk: Desk, asked: PullsAsked) -> PullsView:
    agent = None if asked.by is None else asked.by == "agents"
    rows = desk.store.pulls.rows(
        repo=asked.repo, state=asked.state, agent=agent, limit=MOST_PULLS + 1
    )
    first = tuple(rows[:MOST_PULLS])
    return PullsView(
        asked=asked,
        pulls=first,
        repos=tuple(sorted({row.repo for row in first})),
        cut=len(rows) > MOST_PULLS,
    )


def pull(desk: Desk, asked: PullAsked) -> PullView:
    agents = agents_of(desk.settings.pulls.agents)
    life = found(shown, asked.repo, asked.number, desk.store, agents)
    known = desk.store.memory.corrections(repo=asked.repo, pull=asked.number)
    return PullView(pull=life, corrections=tuple(known))


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
