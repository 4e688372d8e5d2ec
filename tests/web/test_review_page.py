"""The queue for several people: looking takes nothing, and what somebody took is theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from boards_store import fill_boards
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

from closeloop.records.settings import AccessScope, AccessToken, ReviewSettings, Settings
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from patience import until

HERE = "http://127.0.0.1:4318"
PEOPLE: dict[str, tuple[AccessScope, ...]] = {
    "ann": ("read", "review"),
    "bob": ("read", "review"),
    "guest": ("read",),
}
ONE_EACH = Settings(review=ReviewSettings(double=0.0, golden=0.0))


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        fill_boards(opened)
        for name, scopes in PEOPLE.items():
            token = AccessToken(id=name, name=name, scopes=scopes, at=datetime.now(UTC))
            opened.access.save_token(token, f"secret-of-{name}")
        yield opened


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    desk = PageContext(store, ONE_EACH)
    desk.metric_cache.patience = None
    app = build_web_app(store, token="word", page_context=desk)
    with TestClient(app, base_url=HERE, follow_redirects=False) as opened:
        yield opened


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer secret-of-{name}", "accept": "text/html"}


def shown(client: TestClient, name: str) -> str:
    return str(client.get("/api/review", headers=by(name)).json()["item"]["id"])


def test_two_people_do_not_get_the_same_item_and_looking_takes_none(
    client: TestClient, store: Store
) -> None:
    first = shown(client, "ann")
    assert shown(client, "bob") == first
    client.get("/review", headers=by("ann"))
    assert store.reviews.list_assignments() == []
    kept = client.post("/review/take", data={"item": first}, headers=by("ann"))
    assert (kept.status_code, kept.headers.get("hx-refresh")) == (204, None)
    late = client.post("/review/take", data={"item": first}, headers=by("bob"))
    assert (late.status_code, late.headers["hx-refresh"]) == (204, "true")
    assert shown(client, "ann") == first
    assert shown(client, "bob") != first
    assert {one.reviewer: one.item for one in store.reviews.list_assignments()}["ann"] == first


def test_whoever_may_only_read_is_not_asked_to_answer(client: TestClient, store: Store) -> None:
    before = store.reviews.list_assignments()
    page = client.get("/review", headers=by("guest")).text
    assert "data-review" not in page
    assert "/review/take" not in page
    assert "the scope <code>review</code>" in page
    assert client.post("/review/take", headers=by("guest")).status_code == 403
    assert ">Accept</button>" in client.get("/memory", headers=by("ann")).text
    assert ">Accept</button>" not in client.get("/memory", headers=by("guest")).text
    assert store.reviews.list_assignments() == before


def test_the_description_lists_what_a_caller_says_and_no_more(client: TestClient) -> None:
    described = client.get("/api/openapi.json", headers=by("ann")).json()
    asked = described["paths"]["/api/review"]
    assert [one["name"] for one in asked["get"]["parameters"]] == ["item", "more"]
    body = asked["post"]["requestBody"]["content"]["application/json"]["schema"]
    answers = described["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert answers["required"] == ["item"]
    assert not {"reviewer", "at", "state"} & answers["properties"].keys()


@pytest.mark.parametrize("path", ["/review", "/review/draft", "/review/take", "/memory", "/login"])
def test_a_form_of_a_thousand_fields_is_no_fault_of_ours(client: TestClient, path: str) -> None:
    headers = {**by("ann"), "origin": HERE, "content-type": "application/x-www-form-urlencoded"}
    answer = client.post(path, content="&".join(["a=1"] * 1001), headers=headers)
    assert answer.status_code < 500


def test_a_token_does_not_send_what_no_memory_holds(client: TestClient) -> None:
    headers = {**by("ann"), "content-type": "application/json"}
    long = b'{"item": "' + b"x" * (1 << 20) + b'"}'
    assert client.post("/api/review", content=long, headers=headers).status_code == 413


def test_a_queue_that_is_long_to_count_comes_by_itself(
    serve: Callable[..., AbstractContextManager[str]],
    open_page: Callable[..., Page],
    tmp_path: Path,
) -> None:
    with open_store(str(tmp_path / "store.db")) as opened:
        fill_boards(opened)
        desk = PageContext(opened)
        desk.metric_cache.patience = 0.0
        with serve(opened, desk=desk) as address:
            page = open_page()
            page.goto(f"{address}/review")
            expect(page.locator("form[data-review]")).to_be_visible()
            assert until(opened.reviews.list_assignments)
        assert [one.asked for one in opened.reviews.list_assignments()] == [False], (
            "it was taken when seen"
        )
