"""Whose work a pull request is: by account, label, branch, trailers, or what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from github_team import CLAUDE, REPO, START, Team

from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.pull_request import Fact, PullCommit, PullDescription
from closeloop.records.settings import AgentSigns
from closeloop.records.trace import Session, Trace
from closeloop.reviews.authorship import detect_authorship, merge_known_agents
from closeloop.reviews.pull_facts import list_descriptions
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


FORGED = f"x\n\n{CLAUDE}\nTask-Id: t-1\nPrompt-Version: v9\nAttempt-Id: abc123"


@pytest.mark.parametrize(
    "told",
    [
        {"author": "dependabot[bot]", "bot": True, "branch": "dependabot/pip/x"},
        {"author": "acme-app", "bot": True},
        {"author": "renovate-bot"},
        {"author": "mallory", "fork": True, "branch": "claude/fix-it"},
        {"author": None, "fork": True, "branch": "closeloop/task/abc123"},
    ],
)
def test_what_bots_quote_and_strangers_write_says_nothing_of_whose_work_it_is(
    told: dict[str, Any],
) -> None:
    description = PullDescription(title="x", opened=START, body=FORGED, **told)
    commits = [
        PullCommit(sha="a" * 40, at=START, message=FORGED, author="mallory"),
        PullCommit(sha="b" * 40, at=START, message="y", email="noreply@anthropic.com"),
    ]
    whose_work = detect_authorship(description, commits, AGENTS)
    assert (whose_work.signs, whose_work.agent) == ((), None)
    assert (whose_work.task, whose_work.prompt) == (None, None)
    assert whose_work.asked_by in (None, "mallory")


def test_a_known_agents_account_outweighs_every_trailer() -> None:
    told = PullDescription(
        title="x", opened=START, body=FORGED, author="copilot-swe-agent[bot]", bot=True,
        assignees=("ann",),
    )  # fmt: skip
    forged = PullCommit(sha="a" * 40, at=START, message=FORGED, author="mallory")
    found = detect_authorship(told, [forged], AGENTS)
    assert (found.agent, found.task, found.prompt) == ("copilot", None, None)
    assert ([sign.kind for sign in found.signs], found.asked_by) == (["author"], "ann")
    own = PullCommit(sha="b" * 40, at=START, message="y\n\nPrompt-Version: v2", author="copilot")
    assert detect_authorship(told, [forged, own], AGENTS).prompt == "v2"
    labelled = PullDescription(title="x", opened=START, author="copilot", labels=("prompt:v3",))
    assert detect_authorship(labelled, [own], AGENTS).prompt == "v3"


@pytest.mark.parametrize(
    ("association", "agent"), [("MEMBER", "claude-code"), ("CONTRIBUTOR", None), (None, None)]
)
def test_trailers_in_a_fork_count_for_people_of_the_team(
    store: Store, association: str | None, agent: str | None
) -> None:
    team = Team()
    team.open("ann", f"Add\n\n{CLAUDE}")
    for _, payload in team.deliveries:
        if "pull_request" in payload:
            payload["pull_request"]["head"]["repo"] = {"full_name": "ann/fork"}
            payload["pull_request"]["author_association"] = association
    save_facts(team.facts(), store, AGENTS)
    row = store.pulls.load_pull(REPO, 1)
    assert row is not None
    assert (row.agent, row.asked_by) == (agent, "ann")


def test_a_bot_stays_one_when_a_later_event_names_no_author() -> None:
    known = {"title": "x", "opened": START, "body": FORGED}
    told = [
        Fact(source="gitlab", repo=REPO, pull=1, at=START, key=str(place), what=what)
        for place, what in enumerate(
            (
                PullDescription(author="renovate", bot=True, **known),
                PullDescription(state="closed", **known),
            )
        )
    ]
    assert [(one.author, one.bot) for one in list_descriptions(told)] == [("renovate", True)] * 2


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
