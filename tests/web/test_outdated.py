"""What earlier rules said is shown as outdated until it is measured again."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import Any

import pytest
from dashboard_store import PASSED, SPIRAL, fill
from starlette.testclient import TestClient

from closeloop.metrics.attempt_measuring import measure_attempts, project_rulebook
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.records.settings import Settings
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.pages import attempt
from patience import until

HERE = "http://127.0.0.1:4318"
HTML = {"accept": "text/html,*/*"}
EARLIER = Settings(rules={"spiral": {"enabled": False}})
TOLD = "outdated: measured before the rules, their settings or the grade changed"


@pytest.fixture
def store() -> Iterator[Store]:
    """Every attempt is measured by rules that are not those of now."""
    with open_store(":memory:") as opened:
        fill(opened)
        assert list(measure_attempts(opened, opened.list_attempts(), project_rulebook(EARLIER)))
        yield opened


@pytest.fixture
def client(store: Store) -> TestClient:
    return TestClient(build_web_app(store, token=None), base_url=HERE)


def read_marks(client: TestClient) -> dict[str, Any]:
    lines = client.get("/api/attempts").json()["lines"]
    return {line["row"]["id"]: line["marks"] for line in lines}


def test_a_list_marks_attempts_that_earlier_rules_have_measured(client: TestClient) -> None:
    marks = read_marks(client)
    assert marks[SPIRAL]["outdated"]
    assert marks[SPIRAL]["rules"]
    assert ">outdated</span>" in client.get("/attempts", headers=HTML).text


def test_an_attempt_that_is_opened_is_measured_again(client: TestClient) -> None:
    shown = client.get(f"/api/attempts/{SPIRAL}").json()
    assert "outdated" not in shown["head"]["marks"]
    marks = read_marks(client)
    assert "outdated" not in marks[SPIRAL]
    assert marks[PASSED]["outdated"]


def test_other_pages_of_an_attempt_show_the_old_value_marked(client: TestClient) -> None:
    shown = client.get(f"/api/attempts/{SPIRAL}/checks").json()
    assert shown["head"]["marks"]["outdated"]
    page = client.get(f"/attempts/{SPIRAL}/checks", headers=HTML).text
    assert f"closeloop measure {SPIRAL}" in page
    assert client.get(f"/api/attempts/{SPIRAL}/events").json()["outdated"]
    client.get(f"/attempts/{SPIRAL}")
    assert "outdated" not in client.get(f"/attempts/{SPIRAL}/checks", headers=HTML).text


def test_a_long_trace_shows_what_was_found_before_while_it_is_measured_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "MAX_EVENTS_MEASURED_AT_ONCE", 10)
    shown = client.get(f"/api/attempts/{SPIRAL}").json()
    assert shown["head"]["marks"]["outdated"]
    assert not shown["measured"]
    assert shown["findings"]
    page = client.get(f"/attempts/{SPIRAL}", headers=HTML).text
    assert "The rules are measuring this long trace again" in page
    client.get(f"/attempts/{SPIRAL}/measured")
    shown = client.get(f"/api/attempts/{SPIRAL}").json()
    assert shown["measured"]
    assert "outdated" not in shown["head"]["marks"]


def test_numbers_over_a_mix_say_how_many_are_outdated(store: Store) -> None:
    book = project_rulebook(Settings())
    rows = [row for row in store.list_attempts() if row.events is not None]
    assert list(measure_attempts(store, rows[:1], book))
    mixed = load_attempt_table(store, book, remeasure=False)
    assert mixed.outdated == len(rows) - 1
    told = f"{len(rows) - 1} of {len(mixed)} attempts are {TOLD}"
    assert any(told in note for note in mixed.notes)

    earlier, now = (
        load_attempt_table(store, project_rulebook(EARLIER)),
        load_attempt_table(store, book),
    )
    assert now.outdated == 0
    for place, name in enumerate(mixed.attempts):
        expected = now if name == rows[0].id else earlier
        one, other = (work.columns["findings"][place] for work in (mixed, expected))
        assert one == other or (isnan(one) and isnan(other))
    assert not any("outdated" in note for note in now.notes)


def test_the_overview_shows_old_numbers_at_once_and_then_new_ones(client: TestClient) -> None:
    def read_numbers() -> Any:
        return client.get("/api/overview").json()["numbers"]

    first = until(read_numbers)
    assert any(TOLD in note for note in first["notes"])
    assert until(lambda: not any(TOLD in note for note in read_numbers()["notes"]))
    assert not any("outdated" in mark for mark in read_marks(client).values())


def test_an_export_holds_nothing_outdated(store: Store) -> None:
    desk = PageContext(store)
    desk.metric_cache.patience = None
    client = TestClient(build_web_app(store, token=None, page_context=desk), base_url=HERE)
    assert not any(TOLD in note for note in client.get("/api/overview").json()["numbers"]["notes"])
