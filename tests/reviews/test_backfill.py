"""Pull requests of the past: the API tells the same lives as webhooks did, and asking can go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from github_api import TOKEN, Api, serving
from github_team import CLAUDE, REPO, Team
from starlette.responses import JSONResponse, Response

from closeloop.changes.code_host import open_github
from closeloop.cli import main
from closeloop.records.errors import MachineFailed
from closeloop.records.pull_request import PullRow, ReviewComment
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_backfill import BackfillRequest, backfill_github
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.store import Store, open_store

AGENTS = merge_known_agents({})


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def worked() -> Team:
    """Agents and people, some of it reviewed, corrected, taken back."""
    team = Team()
    one = team.open("ann", f"Add\n\n{CLAUDE}", branch="claude/add")
    team.check(one, "failure")
    team.review(one, "bob", "changes_requested", ("src/a/b.py", 3, "Not so"))
    team.push(one, "ann", f"So\n\n{CLAUDE}")
    team.check(one)
    team.push(one, "bob", "And a test", files=["tests/test_b.py"])
    team.review(one, "bob", "approved")
    team.merge(one)
    two = team.open("cat", "By hand")
    team.say(two, "bob", "Nice")
    team.merge(two)
    three = team.open("copilot-swe-agent[bot]", branch="copilot/x")
    team.close(three)
    return team


def asked(api: Api, store: Store, **given: Any) -> int:
    """A whole backfill, with the pauses that limits ask for taken as read."""
    waits: list[float] = given.pop("waits", [])

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    async def ask() -> int:
        wanted = BackfillRequest(
            repo=REPO, store=store, agents=AGENTS, report_count=lambda done: None
        )
        async with open_github(REPO, TOKEN, api.address, pause) as hub:
            return await backfill_github(hub, wanted)

    with serving(api.answer) as api.address:
        return anyio.run(ask)


def bare(row: PullRow) -> PullRow:
    # A listing does not say when the last of it happened but to the second of the update; and the
    # deliveries of this team do not say how large files are.
    return msgspec.structs.replace(
        row, told=row.opened, files=None, added=None, removed=None, has_change=False
    )


def test_the_api_tells_the_same_as_the_webhooks_did(store: Store) -> None:
    team = worked()
    assert asked(Api(team), store) == 3
    with open_store(":memory:") as other:
        save_facts(team.facts(), other, AGENTS)
        assert [bare(row) for row in store.pulls.list_pulls()] == [
            bare(row) for row in other.pulls.list_pulls()
        ]
        for row in other.pulls.list_pulls():
            if row.attempt:
                ours, theirs = (one.pulls.load_delivery(row.attempt) for one in (store, other))
                assert ours is not None
                assert theirs is not None
                same = msgspec.structs.replace(ours, at=theirs.at)
                assert same == theirs


def test_people_s_edits_come_with_their_size(store: Store) -> None:
    asked(Api(worked()), store)
    from closeloop.reviews.pull_lifecycle import load_pull

    (edit,) = load_pull(REPO, 1, store, AGENTS).edits
    assert [(file.path, file.added, file.removed) for file in edit.files or ()] == [
        ("tests/test_b.py", 3, 1)
    ]


def test_a_second_time_only_what_changed_is_asked_for(store: Store) -> None:
    api = Api(worked())
    asked(api, store)
    api.asked.clear()
    # The newest is told again, as it may have changed within its second.
    assert asked(api, store) == 1
    assert not [path for path in api.asked if path.startswith("pulls/1")]
    api.team.say(1, "bob", "By the way")
    assert asked(api, store) == 2


def test_a_repository_without_issues_is_asked_for_its_pull_requests(store: Store) -> None:
    api = Api(worked())
    api.has_issues = False
    assert asked(api, store) == 3
    assert asked(api, store) == 1


def test_many_pages_are_all_read(store: Store) -> None:
    team = Team()
    for _ in range(7):
        team.open("ann")
    api = Api(team)
    api.page = 2
    assert asked(api, store) == 7


def test_what_moves_from_page_to_page_while_it_is_asked_for_is_not_missed(store: Store) -> None:
    team = Team()
    for _ in range(6):
        team.open("ann")
    api = Api(team)
    api.page = 2
    first, moved = api.answer, False

    async def answer(request: Any) -> Response:
        nonlocal moved
        if request.url.path.endswith("pulls/2") and not moved:
            moved = True
            team.say(1, "bob", "This takes it to the end of the list")
        return await first(request)

    api.answer = answer  # type: ignore[method-assign]
    asked(api, store)
    assert sorted(row.pull for row in store.pulls.list_pulls()) == [1, 2, 3, 4, 5, 6]
    assert (
        len([one for one in store.pulls.list_facts(REPO, 1) if isinstance(one.what, ReviewComment)])
        == 1
    )


def test_a_limit_is_waited_for(store: Store) -> None:
    api = Api(worked())
    api.refusals = [
        JSONResponse({"message": "slow down"}, 429, {"retry-after": "7"}),
        JSONResponse(
            {"message": "API rate limit exceeded"},
            403,
            {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(time.time()) + 280)},
        ),
        Response("trouble", 502),
    ]
    waits: list[float] = []
    assert asked(api, store, waits=waits) == 3
    assert waits[0] == 7
    assert 60 < waits[1] <= 281


def test_what_was_asked_for_before_a_long_limit_is_kept_and_not_asked_again(store: Store) -> None:
    team = worked()
    api = Api(team)
    limit = JSONResponse({"message": "no more"}, 429, {"retry-after": "3000"})
    calls = 0
    first = api.answer

    async def answer(request: Any) -> Response:
        nonlocal calls
        calls += 1
        return limit if calls == 16 else await first(request)

    api.answer = answer  # type: ignore[method-assign]
    with pytest.raises(MachineFailed, match="50 minutes: run the job again"):
        asked(api, store)
    assert [row.pull for row in store.pulls.list_pulls()] == [1]
    api.asked.clear()
    assert asked(api, store) >= 2
    assert sorted(row.pull for row in store.pulls.list_pulls()) == [1, 2, 3]


def test_the_command_reads_lists_and_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    (tmp_path / ".git").mkdir()
    api = Api(worked())

    def said(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == code
        return capsys.readouterr().out

    with serving(api.answer) as address:
        monkeypatch.setenv("GITHUB_API_URL", address)
        told = said("import", "--github", REPO)
        assert told == f"{REPO}: 3 pull requests imported; 2 of 3 stored ones are by agents\n"
    listing = msgspec.json.decode(said("list", "pulls", "--json"))
    assert (listing["merged"], listing["unreviewed"], listing["reverted"]) == (2, 1, 0)
    assert sorted(row["pull"]["pull"] for row in listing["items"]) == [1, 2, 3]
    cut = msgspec.json.decode(said("list", "pulls", "--limit", "1", "--json"))
    assert len(cut["items"]) == 1
    assert {**cut, "items": []} == {**listing, "items": []}
    assert "… and 2 more" in said("list", "pulls", "--limit", "1")
    shown = said("show", "pull:1")
    assert "edit by bob: +3 tests/test_b.py" in shown
    assert "unknown: there is no recording of the work" in shown
    assert "round 1 answered" in shown
    assert "claude-code" in said("list", "pulls", "--author", "agents", "--state", "merged")
    events = [msgspec.json.decode(line) for line in said("admin", "events", "--json").splitlines()]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert "pull.merged" in said("admin", "events", "pull.*")
    assert "review.approved" not in said("admin", "events", "pull.*")
    said("show", "ann/tally#77", code=2)
    said("import", "--github", "not a name", code=2)
