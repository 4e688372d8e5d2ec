"""GitLab's merge requests become the same facts, by webhook and by API."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec
from github_api import serving
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from closeloop.changes.code_host import open_gitlab
from closeloop.records.pull_request import PullRequest
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.host_pulls import read_gitlab_event
from closeloop.reviews.pull_backfill import BackfillRequest, backfill_gitlab
from closeloop.reviews.pull_lifecycle import load_pull, save_facts
from closeloop.store import open_store

REPO = "ann/tools/tally"
AGENTS = merge_known_agents({})
HEARD = datetime(2026, 1, 5, 20, tzinfo=UTC)
ONE, TWO, MERGE = "a" * 40, "b" * 40, "c" * 40
CLAUDE = "Co-Authored-By: Claude <noreply@anthropic.com>"
ANN, BOB = {"id": 1, "username": "ann"}, {"id": 2, "username": "bob"}


def at(hour: int) -> str:
    return f"2026-01-05 {hour:02}:00:00 UTC"


def project() -> dict[str, Any]:
    return {"path_with_namespace": REPO, "default_branch": "main"}


def request(action: str, hour: int, user: Any, **given: Any) -> tuple[str, dict[str, Any]]:
    told = {
        "iid": 7,
        "title": "Add tally",
        "description": "",
        "state": "opened",
        "action": action,
        "author_id": 1,
        "source_branch": "tally",
        "target_branch": "main",
        "last_commit": {"id": given.pop("head", ONE)},
        "created_at": at(9),
        "updated_at": at(hour),
    } | given
    event = {"project": project(), "user": user, "labels": [], "object_attributes": told}
    return "Merge Request Hook", event


def push(hour: int, before: str, after: str, who: str, message: str) -> tuple[str, dict[str, Any]]:
    commit = {
        "id": after,
        "message": message,
        "timestamp": f"2026-01-05T{hour:02}:00:00Z",
        "author": {"name": who, "email": f"{who}@example.org"},
        "added": ["a.py"],
        "modified": [],
        "removed": [],
    }
    event = {
        "project": project(),
        "ref": "refs/heads/tally",
        "before": before,
        "after": after,
        "user_username": who,
        "commits": [commit],
    }
    return "Push Hook", event


def note(hour: int, user: Any, words: str) -> tuple[str, dict[str, Any]]:
    told = {
        "id": hour,
        "note": words,
        "noteable_type": "MergeRequest",
        "created_at": at(hour),
        "updated_at": at(hour),
        "position": {"new_path": "a.py", "new_line": 3},
    }
    return "Note Hook", {
        "project": project(),
        "user": user,
        "object_attributes": told,
        "merge_request": {"iid": 7},
    }


def pipeline(hour: int, sha: str, status: str) -> tuple[str, dict[str, Any]]:
    told = {"id": hour, "sha": sha, "status": status, "finished_at": at(hour), "source": "push"}
    return "Pipeline Hook", {"project": project(), "object_attributes": told}


STORY = [
    push(8, "0" * 40, ONE, "ann", f"Add\n\n{CLAUDE}"),
    request("open", 9, ANN),
    pipeline(10, ONE, "failed"),
    note(11, BOB, "Use the clock"),
    push(12, ONE, TWO, "ann", f"Use it\n\n{CLAUDE}"),
    request("update", 12, ANN, oldrev=ONE, head=TWO),
    pipeline(13, TWO, "success"),
    request("approved", 14, BOB, head=TWO),
    request("merge", 15, BOB, head=TWO, state="merged", merge_commit_sha=MERGE),
]


def check(pull: PullRequest) -> None:
    assert (pull.source, pull.state, pull.agent, pull.author) == (
        "gitlab",
        "merged",
        "claude-code",
        "ann",
    )
    assert (pull.first_push, pull.last_push, pull.reviewed) == ("failed", "passed", True)
    assert [one.by for one in pull.rounds] == [("bob",)]
    assert [one.body for one in pull.comments if one.counts] == ["Use the clock"]
    assert (pull.edits, len(pull.commits)) == ((), 2)


def test_webhooks_tell_the_life_of_a_merge_request() -> None:
    for story in (STORY, STORY[::-1]):
        with open_store(":memory:") as store:
            for event, told in story:
                save_facts(
                    read_gitlab_event(event, msgspec.json.encode(told), HEARD), store, AGENTS
                )
            check(load_pull(REPO, 7, store, AGENTS))


def z(hour: int) -> str:
    return f"2026-01-05T{hour:02}:00:00.000Z"


ANSWERS: dict[str, Any] = {
    "merge_requests": [
        {
            "iid": 7,
            "title": "Add tally",
            "state": "merged",
            "author": ANN,
            "source_branch": "tally",
            "target_branch": "main",
            "sha": TWO,
            "merge_commit_sha": MERGE,
            "created_at": z(9),
            "updated_at": z(15),
            "merged_at": z(15),
        }
    ],
    "merge_requests/7/commits": [
        {
            "id": TWO,
            "message": f"Use it\n\n{CLAUDE}",
            "committed_date": z(12),
            "author_name": "ann",
        },
        {"id": ONE, "message": f"Add\n\n{CLAUDE}", "committed_date": z(8), "author_name": "ann"},
    ],
    "merge_requests/7/versions": [
        {"id": 2, "head_commit_sha": TWO, "created_at": z(12)},
        {"id": 1, "head_commit_sha": ONE, "created_at": z(9)},
    ],
    "merge_requests/7/notes": [
        {
            "id": 1,
            "body": "Use the clock",
            "author": BOB,
            "created_at": z(11),
            "position": {"new_path": "a.py", "new_line": 3},
        },
        {
            "id": 2,
            "body": "approved this merge request",
            "author": BOB,
            "created_at": z(14),
            "system": True,
        },
        {"id": 3, "body": "mentioned in !9", "author": BOB, "created_at": z(14), "system": True},
    ],
    "merge_requests/7/diffs": [{"new_path": "a.py"}],
    "merge_requests/7/pipelines": [
        {"id": 1, "sha": ONE, "status": "failed", "updated_at": z(10)},
        {"id": 2, "sha": TWO, "status": "success", "updated_at": z(13)},
    ],
}


async def answer(request: Request) -> Response:
    assert request.headers["private-token"] == "t0ken"
    path = re.sub(r"^/projects/[^/]+(?:%2F|/)tools(?:%2F|/)tally/", "", request.url.path)
    if path == "merge_requests" and request.query_params["updated_after"] > z(15):
        return JSONResponse([])
    return JSONResponse(ANSWERS[path])


def test_the_api_tells_it_too() -> None:
    with open_store(":memory:") as store, serving(answer) as address:

        async def ask() -> int:
            wanted = BackfillRequest(
                repo=REPO, store=store, agents=AGENTS, report_count=lambda done: None
            )
            async with open_gitlab(REPO, "t0ken", address) as hub:
                return await backfill_gitlab(hub, wanted)

        assert anyio.run(ask) == 1
        pull = load_pull(REPO, 7, store, AGENTS)
        check(pull)
        assert [file.path for file in pull.files or ()] == ["a.py"]


def test_a_merge_request_from_a_fork_is_known_as_one() -> None:
    for source, fork in ((5, False), (9, True)):
        _, event = request("open", 9, ANN, source_project_id=source, target_project_id=5)
        facts = list(read_gitlab_event("Merge Request Hook", msgspec.json.encode(event), HEARD))
        assert {getattr(fact.what, "fork", fork) for fact in facts} == {fork}
        assert facts[0].branch == (None if fork else "tally")
