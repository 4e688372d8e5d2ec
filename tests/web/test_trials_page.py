"""A page for each trial that runs, that of memory's control arm among them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult, Trial, TrialAssignment
from closeloop.records.pull_request import Delivery
from closeloop.records.team_rules import ContextRecord
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
HERE = "http://127.0.0.1:4318"


@pytest.fixture
def client() -> TestClient:
    store = open_store(":memory:")
    trial = Trial(
        name="prompts", shares={"old": 0.5, "new": 0.5}, metric="merge rate", started=START
    )
    store.trials.start_trial(trial)
    for number in range(60):
        add_work(store, f"w{number:011x}", "new" if number % 2 else "old", merged=number % 2 == 1)
    desk = PageContext(store)
    desk.metric_cache.patience = None
    app = build_web_app(store, token=None, page_context=desk)
    return TestClient(app, base_url=HERE, headers={"accept": "text/html"})


def add_work(store: Store, name: str, variant: str, *, merged: bool) -> None:
    store.trials.save_assignment(
        TrialAssignment(trial="prompts", key=name, variant=variant, at=START)
    )
    arm = "memory" if variant == "new" else "control"
    store.memory.save_context_record(ContextRecord(key=name, repo="ann/tally", arm=arm, at=START))
    started = START + timedelta(minutes=1)
    attempt = Attempt(id=name, origin="production", exit="finished", started=started)
    store.save_attempt(AttemptResult(attempt=attempt))
    store.pulls.save_delivery(Delivery(attempt=name, at=started, merged=merged))


def test_every_trial_has_a_page_with_its_verdict(client: TestClient) -> None:
    listed = client.get("/trials").text
    assert 'href="/trials/prompts"' in listed
    assert 'href="/trials/memory"' in listed
    assert "new: better" in listed
    assert "prompts: <strong>new</strong> is better than old." in listed
    page = client.get("/trials/prompts").text
    assert "points compared with old" in page
    assert 'class="picture"' in page
    assert "valid at any time" in page
    (standing,) = client.get("/api/trials/prompts").json()["report"]["standings"]
    assert standing["comparison"]["verdict"] == "better"
    assert client.get("/trials/none").status_code == 404


def test_each_arm_links_to_its_attempts(client: TestClient) -> None:
    link = "/attempts?arm=prompts%3A%20new"
    for path in ("/trials", "/trials/prompts"):
        assert f'<a href="{link}">30' in client.get(path).text
    listed = client.get(f"/api{link}").json()
    assert listed["count"] == 30
    assert {int(line["row"]["id"][1:], 16) % 2 for line in listed["lines"]} == {1}
    assert listed["choices"]["arms"] == ["control", "memory", "prompts: new", "prompts: old"]
    refused = client.get("/attempts?arm=prompts%3A%20nwe")
    assert (refused.status_code, "Did you mean" in refused.text) == (400, True)
    assert client.get("/api/attempts?arm=memory").json()["count"] == 30
    arms = client.get("/api/trials/prompts").json()["arms"]
    assert {name: (arm["attempts"], arm["pulls"]) for name, arm in arms.items()} == {
        "old": (30, 0), "new": (30, 0)
    }  # fmt: skip


def test_memory_s_page_says_what_is_lacking_where_its_score_is_not_known(
    client: TestClient,
) -> None:
    view = client.get("/api/trials/memory").json()
    assert view["trial"]["shares"] == {"control": 0.5, "memory": 0.5}
    (standing,) = view["report"]["standings"]
    assert standing["comparison"]["verdict"] == "not enough data"
    assert standing["why"] == "no outcome is known for both arms yet"
