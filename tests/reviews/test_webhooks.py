"""Webhooks: believed by their signature, kept once, acknowledged when kept, never lost."""

from __future__ import annotations

import hmac
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from github_team import CLAUDE, REPO, Team
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from closeloop.flow import learn_from_reviews, receive_pull_requests
from closeloop.records.errors import BadInput
from closeloop.reviews import ngrams, rule_learning
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.host_pulls import GITHUB_EVENTS, read_github_event
from closeloop.reviews.rule_editing import set_rule_state
from closeloop.reviews.rule_index import RuleIndex
from closeloop.reviews.rule_learning import LearningContext, LearningSummary
from closeloop.store import Store, open_store
from closeloop.store.pull_section import WebhookArrival
from closeloop.web import webhooks
from closeloop.web.webhooks import WebhookConfiguration, WebhookMiddleware
from patience import PATIENCE, ROUNDS, until

SHARED = Path(__file__).resolve().parents[3] / "shared" / "github" / "payloads"
SECRET, TOKEN = "the team's secret", "the project's token"
AGENTS = merge_known_agents({})
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_learning, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(rule_learning, "IDLE_FACTOR", 0)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that only starts and stops."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})


def client(store: Store, **doors: Any) -> TestClient:
    given = {"github": SECRET, "gitlab": TOKEN, "agents": AGENTS, **doors}
    return TestClient(WebhookMiddleware(nothing, store, WebhookConfiguration(**given)))


def signed(event: str, body: bytes, **given: str) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "x-github-event": event,
        "x-github-delivery": f"delivery-{next(_numbers)}",
        "x-hub-signature-256": f"sha256={hmac.digest(SECRET.encode(), body, 'sha256').hex()}",
    } | given


def send(web: TestClient, event: str, body: bytes, **given: str) -> int:
    headers = signed(event, body, **given)
    return web.post("/webhooks/github", content=body, headers=headers).status_code


def story() -> Team:
    team = Team()
    number = team.open("ann", f"Add\n\n{CLAUDE}", branch="claude/add")
    team.check(number)
    team.review(number, "bob", "approved")
    team.merge(number)
    return team


def wait_until_read(store: Store) -> None:
    assert until(lambda: not store.pulls.list_unread(1))


def test_deliveries_become_a_pull_request(store: Store) -> None:
    with client(store) as web:
        for event, body in story().bodies():
            assert send(web, event, body) == 202
        wait_until_read(store)
    (row,) = store.pulls.list_pulls()
    assert (row.repo, row.state, row.agent, row.first_push) == (
        REPO,
        "merged",
        "claude-code",
        "passed",
    )


def test_a_secret_that_a_delivery_brings_never_reaches_the_store() -> None:
    token = "ghp_aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cF1bD2"
    team = Team()
    number = team.open("ann", f"Add\n\n{CLAUDE}", branch="claude/add")
    team.say(number, "bob", f"Use {token} for now.")
    arrivals = [
        WebhookArrival(
            source="github", delivery=str(at), event=event, at=datetime.now(UTC), body=body
        )
        for at, (event, body) in enumerate(team.bodies())
    ]

    async def keep_all() -> None:
        writer = webhooks.ArrivalWriter(store)
        async with anyio.create_task_group() as group:
            group.start_soon(writer.run_batches)
            for one in arrivals:
                await writer.save_arrival(one)
            group.cancel_scope.cancel()

    assert any(token.encode() in (one.body or b"") for one in arrivals)
    with open_store(":memory:") as store:
        anyio.run(keep_all)
        held = store.pulls.list_unread()
        assert len(held) == len(arrivals)
        assert not any(token.encode() in one.body for one in held)
        assert receive_pull_requests(store, AGENTS) == len(arrivals)
        assert store.pulls.list_pulls()[0].comments == 1


SAID = "Please use the project's logger instead of print."


def test_a_server_learns_by_itself_what_people_said_and_said_again(store: Store) -> None:
    team, calls = Team(), list[LearningSummary]()

    def learn_now() -> None:
        school = LearningContext(rule_index=RuleIndex(store, ngrams), agents=AGENTS)
        calls.append(anyio.run(learn_from_reviews, school))

    def say_it(web: TestClient) -> None:
        before = len(team.bodies())
        number = team.open("ann", f"Add\n\n{CLAUDE}", branch="claude/add")
        team.say(number, "bob", SAID)
        for event, body in team.bodies()[before:]:
            assert send(web, event, body) == 202

    def settled() -> bool:
        before = len(calls)
        time.sleep(10 * rule_learning.LOOK_SECONDS)
        return len(calls) == before

    with client(store, learn=learn_now) as web:
        say_it(web)
        (rule,) = until(store.memory.list_rules)
        assert rule.state == "proposed"
        set_rule_state(store, rule, "active", "bob", rule.since)
        team.wait(days=1)
        say_it(web)
        assert until(store.memory.list_repeats)
        assert any(settled() for _ in range(20)), "nothing is looked at while nothing is new"
    assert [one.state for one in store.memory.list_repeats()] == ["confirmed"]


def test_what_was_read_is_news_also_when_its_facts_were_seen_too_early(store: Store) -> None:
    team, at = Team(), datetime.now(UTC)
    team.say(team.open("ann", f"Add\n\n{CLAUDE}", branch="claude/add"), "bob", SAID)
    for number, (event, body) in enumerate(team.bodies()):
        arrival = WebhookArrival(
            source="github", delivery=f"{number}", event=event, at=at, body=body
        )
        store.pulls.save_arrivals([arrival])
        store.pulls.add_facts(read_github_event(event, body, at))
        early = store.memory.learning_marker()
        receive_pull_requests(store, AGENTS)
        assert store.memory.learning_marker() != early


def test_a_server_that_cannot_learn_goes_on_receiving(store: Store) -> None:
    def fail() -> None:
        raise BadInput("The encoder is not here: install it.")

    with client(store, learn=fail) as web:
        for event, body in story().bodies():
            assert send(web, event, body) == 202
        wait_until_read(store)
    assert len(store.pulls.list_pulls()) == 1


BODY = b'{"zen": "x"}'
WRONG = "sha256=" + "0" * 64


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-hub-signature-256": WRONG}, 401),
        ({"x-hub-signature-256": ""}, 401),
        ({"x-hub-signature-256": WRONG[:-2]}, 401),
        ({"x-github-delivery": "a\x7fb"}, 400),
        ({"x-github-delivery": "x" * 300}, 400),
        ({"x-github-event": ""}, 400),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-length": str(1 << 40)}, 413),
    ],
)
def test_what_is_not_believed_is_refused_and_leaves_nothing(
    headers: dict[str, str], status: int
) -> None:
    with open_store(":memory:") as store, client(store) as web:
        assert send(web, "ping", BODY, **headers) == status
        assert web.get("/webhooks/github").status_code == 405
        assert web.post("/webhooks/elsewhere").status_code == 404
        assert store.pulls.count_arrivals() == {}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400),
        (b"[" * 100_000, 400),
        (b"[1]", 400),
        (b"", 400),
        (b'{"a": 1', 400),
    ],
)
def test_bodies_that_are_no_objects_or_too_deep_are_refused(body: bytes, status: int) -> None:
    with open_store(":memory:") as store, client(store) as web:
        assert send(web, "pull_request", body) == status
        assert store.pulls.count_arrivals() == {}


def test_too_large_is_refused_however_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "BODY_LIMIT", 1000)
    body = b'{"a": "' + b"x" * 2000 + b'"}'
    with open_store(":memory:") as store, client(store) as web:
        assert send(web, "ping", body) == 413
        chunks = (body[place : place + 100] for place in range(0, len(body), 100))
        answer = web.post("/webhooks/github", content=chunks, headers=signed("ping", body))
        assert answer.status_code == 413
        assert store.pulls.count_arrivals() == {}


def test_without_a_secret_nothing_is_taken() -> None:
    with open_store(":memory:") as store, client(store, github=None) as web:
        assert send(web, "ping", BODY) == 503
        assert store.pulls.count_arrivals() == {}


def test_a_delivery_that_comes_again_is_kept_once(store: Store) -> None:
    event, body = story().bodies()[1]
    with client(store) as web:
        for _ in range(3):
            assert send(web, event, body, **{"x-github-delivery": "the same"}) == 202
        wait_until_read(store)
    assert store.pulls.count_arrivals() == {("github", event): 1}


def test_unknown_events_are_acknowledged_and_counted() -> None:
    with open_store(":memory:") as store, client(store) as web:
        assert send(web, "ping", BODY) == 202
        assert send(web, "sponsorship", BODY) == 202
        assert store.pulls.list_unread() == []
        assert store.pulls.count_arrivals() == {("github", "ping"): 1, ("github", "sponsorship"): 1}


def test_a_known_event_with_nonsense_in_it_stops_nothing(store: Store) -> None:
    (first, *rest) = story().bodies()
    huge = msgspec.json.decode(rest[0][1])
    huge["pull_request"]["number"] = 1 << 70
    early = msgspec.json.decode(rest[0][1])
    early["pull_request"] |= {"number": 7, "created_at": "0001-01-01T00:00:00+14:00"}
    nonsense = [b"{}", b'{"repository": 3}', *map(msgspec.json.encode, (huge, early))]
    with client(store) as web:
        assert send(web, *first) == 202
        for body in nonsense:
            assert send(web, "pull_request", body) == 202
        for event, body in rest:
            assert send(web, event, body) == 202
        wait_until_read(store)
    states = {row.pull: row.state for row in store.pulls.list_pulls()}
    assert states[1] == "merged"
    assert set(states) <= {1, 7}


def test_gitlab_is_believed_by_its_token(store: Store) -> None:
    told = {
        "object_kind": "merge_request",
        "project": {"path_with_namespace": "ann/tools/tally", "default_branch": "main"},
        "user": {"id": 3, "username": "ann"},
        "labels": [{"title": "agent"}],
        "object_attributes": {
            "iid": 4,
            "title": "Add",
            "description": None,
            "state": "opened",
            "action": "open",
            "author_id": 3,
            "source_branch": "add",
            "target_branch": "main",
            "last_commit": {"id": "a" * 40},
            "created_at": "2026-01-05 09:00:00 UTC",
            "updated_at": "2026-01-05 09:00:00 UTC",
        },
    }
    body = msgspec.json.encode(told)
    headers = {"content-type": "application/json", "x-gitlab-event": "Merge Request Hook"}
    with client(store) as web:
        for token, status in (("wrong", 401), ("", 401), (TOKEN, 202), (TOKEN, 202)):
            given = headers | {"x-gitlab-token": token}
            assert web.post("/webhooks/gitlab", content=body, headers=given).status_code == status
        wait_until_read(store)
    (row,) = store.pulls.list_pulls()
    assert (row.repo, row.pull, row.author, row.agent) == ("ann/tools/tally", 4, "ann", "agent")
    assert store.pulls.count_arrivals() == {("gitlab", "Merge Request Hook"): 1}


@pytest.mark.skipif(not SHARED.is_dir(), reason="GitHub's published examples are not here")
def test_githubs_published_examples_are_all_read() -> None:
    files = sorted(SHARED.glob("*/*.json"))
    with open_store(":memory:") as store, client(store) as web:
        for file in files:
            assert send(web, file.parent.name, file.read_bytes()) == 202
        wait_until_read(store)
        while receive_pull_requests(store, AGENTS):
            pass
        (row,) = store.pulls.list_pulls()
        assert (row.repo, row.pull, row.state) == ("Codertocat/Hello-World", 2, "closed")
        known = sum(
            count
            for (_, event), count in store.pulls.count_arrivals().items()
            if event in GITHUB_EVENTS
        )
        assert known > 60
        kinds = {event.kind for event in store.events.list_after(0)}
        assert {"pull.opened", "pull.closed", "review.comment", "check.passed"} <= kinds


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=PATIENCE).is_success
    except httpx.TransportError:
        return False


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    (folder / "closeloop.toml").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "serve", "--port", "0"],
        cwd=folder,
        env={**os.environ, "CLOSELOOP_GITHUB_SECRET": SECRET},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        assert until(lambda: answers(address))
        yield process, address
    finally:
        process.kill()
        process.wait()


def test_a_kill_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    team = Team()
    for _ in range(40):
        number = team.open("ann", f"Add\n\n{CLAUDE}", branch=f"claude/{len(team.pulls)}")
        team.review(number, "bob", "approved")
        team.merge(number)
    told = [(f"d-{place}", *one) for place, one in enumerate(team.bodies())]
    acknowledged: list[str] = []

    def load(
        address: str,
        part: list[tuple[str, str, bytes]],
        server: subprocess.Popen[str] | None = None,
    ) -> None:
        """Send these; the server is killed when it has acknowledged a third of all."""
        with httpx.Client(base_url=address, timeout=PATIENCE) as web:
            for name, event, body in part:
                headers = signed(event, body, **{"x-github-delivery": name})
                try:
                    answer = web.post("/webhooks/github", content=body, headers=headers)
                except httpx.TransportError:
                    return
                if answer.status_code == 202:
                    acknowledged.append(name)
                if server and len(acknowledged) >= len(told) // 3:
                    server.kill()

    with serving(tmp_path) as (process, address):
        given = [(address, told[n::4], process) for n in range(4)]
        threads = [threading.Thread(target=load, args=each) for each in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(acknowledged) < len(told)
    with open_store(str(tmp_path / ".closeloop/closeloop.db")) as store:
        assert sum(store.pulls.count_arrivals().values()) >= len(acknowledged)
    with serving(tmp_path) as (_, address):
        # Some of these were kept before the kill, and only their answer was lost, as it may be
        # again where a server closes a connection that was long unused.
        for _ in range(ROUNDS):
            load(address, [one for one in told if one[0] not in acknowledged])
        assert set(acknowledged) == {name for name, _, _ in told}
        with open_store(str(tmp_path / ".closeloop/closeloop.db")) as store:
            wait_until_read(store)
            rows = store.pulls.list_pulls()
            assert sum(store.pulls.count_arrivals().values()) == len(told)
    assert [row.state for row in rows] == ["merged"] * 40
    assert all(row.reviewed for row in rows)
