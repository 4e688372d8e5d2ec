"""The log of events: read on by anybody; sent to webhooks signed, in order, at least once."""

from __future__ import annotations

import hmac
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from github_api import serving
from github_team import START
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from closeloop.attempts.attempt_saving import ended_events
from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import WebhookSettings
from closeloop.records.task import Task
from closeloop.records.trace import LogEvent
from closeloop.reviews.webhook_delivery import WebhookTarget, build_target, follow_target
from closeloop.store import Store, open_store
from patience import PATIENCE

SECRET = "the team's key"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def happened(*kinds: str) -> list[LogEvent]:
    return [
        LogEvent(kind=kind, at=START, repo="ann/tally", details={"by": "bob"}) for kind in kinds
    ]


class Ear:
    """A webhook of the team's: what it heard, and how often it refuses first."""

    def __init__(self, refuse: int = 0) -> None:
        self.refuse = refuse
        self.heard: list[LogEvent] = []
        self.tries = 0

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        right = f"sha256={hmac.digest(SECRET.encode(), body, 'sha256').hex()}"
        assert request.headers["x-closeloop-signature-256"] == right
        self.tries += 1
        if self.tries <= self.refuse:
            return Response(status_code=500)
        event = msgspec.json.decode(body, type=LogEvent)
        assert request.headers["x-closeloop-delivery"] == str(event.number)
        self.heard.append(event)
        return Response(status_code=204)


def tell(store: Store, ear: Ear, until: int, **given: Any) -> list[float]:
    """Follow the log until the ear has heard so much; the pauses that were made."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await anyio.sleep(0.005)

    async def go(url: str) -> None:
        target = WebhookTarget(name="team", url=url, secret=SECRET, **given)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(follow_target, store, target, pause)
                while len(ear.heard) < until or not pauses:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                group.cancel_scope.cancel()

    with serving(ear.answer) as address:
        anyio.run(go, f"{address}/hook")
    return pauses


def test_a_new_webhook_hears_what_happens_from_then_on_in_order(store: Store) -> None:
    store.events.add(happened("pull.opened"))
    tell(store, Ear(), 0)
    store.events.add(happened("review.approved", "pull.merged"))
    ear = Ear()
    tell(store, ear, 2)
    assert [event.kind for event in ear.heard] == ["review.approved", "pull.merged"]
    assert [event.number for event in ear.heard] == [2, 3]
    assert ear.heard[0].details == {"by": "bob"}


def test_what_is_refused_is_sent_again_with_longer_and_longer_pauses(store: Store) -> None:
    store.events.save_position("webhook:team", "0")
    store.events.add(happened("a", "b"))
    ear = Ear(refuse=4)
    pauses = tell(store, ear, 2)
    assert [event.kind for event in ear.heard] == ["a", "b"]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]


def test_only_what_was_asked_for_is_sent(store: Store) -> None:
    store.events.save_position("webhook:team", "0")
    store.events.add(happened("check.passed", "pull.merged", "review.round"))
    ear = Ear()
    tell(store, ear, 2, events=("pull.*", "review.round"))
    assert [event.kind for event in ear.heard] == ["pull.merged", "review.round"]


def test_after_a_restart_sending_goes_on_where_it_was(store: Store) -> None:
    store.events.save_position("webhook:team", "0")
    store.events.add(happened("a", "b", "c"))
    first, second = Ear(), Ear()
    tell(store, first, 3)
    store.events.add(happened("d"))
    tell(store, second, 1)
    assert [event.kind for event in second.heard] == ["d"]


def test_an_attempt_and_what_stopped_it_are_told_once(store: Store) -> None:
    task = Task(id="t", prompt="do", digest="d" * 64, grading="g", split="held-out")
    attempt = Attempt(id="one", origin="experiment", exit="out_of_budget", cause="$2 were used")
    made = AttemptResult(attempt=attempt)
    for _ in range(2):
        store.save_attempt(replace(made, events=ended_events(made, task)))
    told = [(event.kind, event.task, event.attempt) for event in store.events.list_after(0)]
    sealed = "sealed-dddddddd"
    assert told == [("guardrail.stopped", sealed, "one"), ("attempt.ended", sealed, "one")]


def test_keys_are_not_sent_in_the_clear_and_must_be_there() -> None:
    with pytest.raises(BadInput, match="must start with https"):
        build_target("team", WebhookSettings(url="http://example.org/hook"), "key")
    with pytest.raises(BadInput, match="set CLOSELOOP_WEBHOOK_SECRET"):
        build_target("team", WebhookSettings(url="https://example.org/hook"), None)


def test_the_log_is_never_changed(store: Store) -> None:
    store.events.add(happened("a"))
    with pytest.raises(Exception, match="facts"):
        store._write(lambda on: on.execute_sql("UPDATE events SET kind = 'b'"))


def test_following_prints_what_happens_as_it_does(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with open_store(str(tmp_path / ".closeloop/closeloop.db")) as store:
        store.events.add(happened("pull.opened"))
        following = subprocess.Popen(
            [sys.executable, "-m", "closeloop", "admin", "events", "--follow", "--json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert following.stdout is not None
            assert msgspec.json.decode(following.stdout.readline())["kind"] == "pull.opened"
            store.events.add(happened("pull.merged"))
            assert msgspec.json.decode(following.stdout.readline())["kind"] == "pull.merged"
        finally:
            following.kill()
            following.wait()
