"""Whose work a pull request is: by account, label, branch, trailers, or what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from github_team import CLAUDE, REPO, START, Team

from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.pull_request import PullCommit, PullDescription
from closeloop.records.settings import AgentSigns
from closeloop.records.trace import Session, Trace
from closeloop.reviews.authorship import detect_authorship, merge_known_agents
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.store import Store, open_store
from closeloop.store.record_bodies import pack_record
from closeloop.store.session_rows import build_packed_session, session_key

AGENTS = merge_known_agents({})


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def whose(message: str = "x", author: str = "ann", **told: Any) -> tuple[str | None, list[str]]:
    description = PullDescription(title="x", opened=START, author=author, **told)
    commit = PullCommit(sha="a" * 40, at=START, message=message, author=author)
    found = detect_authorship(description, [commit], AGENTS)
    return found.agent, [sign.kind for sign in found.signs]


@pytest.mark.parametrize(
    ("given", "agent", "sign"),
    [
        ({"author": "copilot-swe-agent[bot]"}, "copilot", "author"),
        ({"author": "Devin-AI-Integration[bot]"}, "devin", "author"),
        ({"labels": ("Agent",)}, "agent", "label"),
        ({"branch": "claude/fix-it"}, "claude-code", "branch"),
        ({"branch": "codex/fix-it"}, "codex", "branch"),
        ({"message": f"x\n\n{CLAUDE}"}, "claude-code", "trailer"),
        ({"message": "x\n\nco-authored-by: aider (gpt-5) <aider@aider.chat>"}, "aider", "trailer"),
        ({"message": "x\n\nTask-Id: t-1"}, "agent", "trailer"),
        ({"message": "x\n\nPrompt-Version: abc"}, "agent", "trailer"),
        ({"body": f"Text\n\n{CLAUDE}"}, "claude-code", "trailer"),
    ],
)
def test_an_agents_work_is_known_by_each_of_its_signs(
    given: dict[str, Any], agent: str, sign: str
) -> None:
    found, signs = whose(**given)
    assert (found, signs[0]) == (agent, sign)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"author": "dependabot[bot]"},
        {"author": "claude"},
        {"message": "x\n\nCo-Authored-By: Claude Monet <claude@giverny.example>"},
        {"message": "Thanks to Claude, whose idea it was"},
        {"branch": "fix/claude"},
        {"labels": ("agents-page",)},
    ],
)
def test_people_who_are_called_like_agents_stay_people(given: dict[str, Any]) -> None:
    assert whose(**given) == (None, [])


def test_the_settings_name_agents_of_the_teams_own_and_replace_known_ones() -> None:
    own = {"housekeeper": AgentSigns(branches=("tidy/*",)), "codex": AgentSigns()}
    told = PullDescription(title="x", opened=START, branch="tidy/x")
    assert detect_authorship(told, [], merge_known_agents(own)).agent == "housekeeper"
    told = PullDescription(title="x", opened=START, branch="codex/x")
    assert detect_authorship(told, [], merge_known_agents(own)).agent is None


def session(store: Store, name: str, **given: Any) -> None:
    links = given.pop("links", {})
    told = Session(
        id=name,
        agent="claude-code",
        trace=Trace(reader="none", reader_version=1),
        started=START,
        branch=given.get("branch"),
    )
    attempt = Attempt(
        id=name, origin="production", exit="finished", started=START, links=links, **given
    )
    store.save_sessions(
        [build_packed_session(attempt, told, session_key(told, name), pack_record(told.trace))], []
    )


@pytest.mark.parametrize(
    ("given", "linked"),
    [
        ({"links": {"pull request": f"https://github.com/{REPO}/pull/1"}}, True),
        ({"branch": "topic-1", "repo": f"git@github.com:{REPO}.git"}, True),
        ({"branch": "topic-1", "repo": f"https://github.com/{REPO}"}, True),
        ({"branch": "topic-1", "repo": "https://github.com/other/tally"}, False),
        ({"branch": "other", "repo": f"https://github.com/{REPO}"}, False),
    ],
)
def test_recorded_work_is_found_by_what_it_names_and_where_it_was_done(
    store: Store, given: dict[str, Any], linked: bool
) -> None:
    session(store, "the-session", **given)
    team = Team()
    team.open("ann", "No sign of an agent")
    save_facts(team.facts(), store, AGENTS)
    row = store.pulls.load_pull(REPO, 1)
    assert row is not None
    assert (row.attempt, row.agent) == (("the-session", "claude-code") if linked else (None, None))


def test_an_attempts_own_branch_leads_back_to_it(store: Store) -> None:
    store.save_attempt(
        AttemptResult(
            attempt=Attempt(id="abc123", origin="experiment", exit="finished", started=START)
        )
    )
    team = Team()
    team.open("ann", branch="closeloop/task/abc123")
    save_facts(team.facts(), store, AGENTS)
    row = store.pulls.load_pull(REPO, 1)
    assert row is not None
    assert (row.attempt, row.agent) == ("abc123", "agent")
