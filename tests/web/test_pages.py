"""Every page: whole HTML, the same record as JSON, and nothing that an agent wrote is obeyed."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import html5lib
import msgspec
import pytest
from dashboard_store import (
    BARE,
    FACT,
    HANDOFF,
    HOSTILE,
    LONG,
    LONG_EVENTS,
    PASSED,
    SEALED,
    SECRET_NAME,
    SPIRAL,
    START,
    fill,
)
from starlette.testclient import TestClient

from closeloop.records.attempt import Attempt
from closeloop.records.errors import MachineFailed
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import SandboxSettings
from closeloop.sandbox.machine_view import describe_sandbox_limits
from closeloop.sandbox.sandbox_ladder import find_sandbox
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.auth_middleware import Caller
from closeloop.web.page import Page, PageLocation
from closeloop.web.pages import PAGES
from closeloop.web.pages.attempts import AttemptsView

HERE = "http://127.0.0.1:4318"
HTML = {"accept": "text/html,*/*"}
OURS = [
    page
    for page in PAGES
    if {field.name for field in msgspec.structs.fields(page.query_type) if field.required}
    <= {"attempt", "task", "number"}
]
"""All but those that need the id of something else."""
_HTML = "{http://www.w3.org/1999/xhtml}"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        fill(opened)
        yield opened


@pytest.fixture(scope="module")
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(build_web_app(store, token=None), base_url=HERE, headers=HTML) as opened:
        yield opened


def addresses() -> list[str]:
    """Every page that the store can fill; of every attempt where it is about one."""
    found = []
    for page in OURS:
        for name in (SPIRAL, HANDOFF, PASSED, LONG, BARE):
            path = page.path.replace("{attempt}", name).replace("{task}", "missing-cent")
            path = path.replace("{number}", "1")
            if not (name == BARE and path.endswith("/events/1")):
                found.append(path)
    more = [
        "/attempts?show=grid",
        "/attempts?outcome=fail&limit=1",
        "/attempts?rule=spiral",
        "/attempts?score=would-merge&score=resolved&score=cost",
        "/attempts?task=nobody",
        "/attempts?q=script+words&sort=cost&since=7d",
        "/attempts?q=plain&sort=findings&since=2026-01-01&until=2026-12-31&limit=1",
        f"/attempts?open={SPIRAL}&min_cost=0.01&model=m",
        f"/attempts/{LONG}/search?q=needle",
        f"/attempts/{LONG}/events?first=201",
    ]
    return list(dict.fromkeys([*found, *more]))


def checked(text: str) -> Any:
    """The document, when it is HTML by the book."""
    parser = html5lib.HTMLParser()
    whole = text.lstrip().lower().startswith("<!doctype")
    document = parser.parse(text) if whole else parser.parseFragment(text)
    assert [error for error in parser.errors if "doctype" not in error[1]] == []
    return document


def obeyed(document: Any) -> list[str]:
    """What a browser would do that the templates do not say."""
    found = []
    for element in document.iter():
        name = str(element.tag).removeprefix(_HTML)
        if name in ("img", "iframe", "object", "embed", "base", "style"):
            found.append(name)
        if name == "script" and not str(element.get("src", "")).startswith("/static/"):
            found.append("script")
        for key, value in element.attrib.items():
            if str(key).startswith("on") or str(key) == "style":
                found.append(f"{name} {key}")
            wanders = re.match(r"\s*(?:javascript|data|https?|//)", value, re.IGNORECASE)
            if str(key) in ("href", "src", "action", "hx-get", "hx-post") and wanders:
                found.append(f"{name} {key} {value}")
    return found


@pytest.mark.parametrize("address", addresses())
def test_a_page_is_valid_html_and_its_record_is_json(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    assert obeyed(checked(answer.text)) == []
    page = page_at(address)
    record = client.get(f"/api{address}" if page.api is None else page.api)
    assert msgspec.json.decode(record.content, type=page.view_type) is not None


def page_at(address: str) -> Page:
    path = address.partition("?")[0]
    for page in OURS:
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", page.path), path):
            return page
    raise AssertionError(address)


@pytest.fixture(scope="module")
def hostile() -> Iterator[TestClient]:
    with open_store(":memory:") as opened:
        fill(opened, HOSTILE)
        served = build_web_app(opened, token=None)
        with TestClient(served, base_url=HERE, headers=HTML) as client:
            yield client


@pytest.mark.parametrize("address", addresses())
def test_what_an_agent_a_task_or_a_person_wrote_is_only_text(
    hostile: TestClient, address: str
) -> None:
    answer = hostile.get(address)
    assert answer.status_code == 200, answer.text
    assert obeyed(checked(answer.text)) == []
    assert "\u202e" not in answer.text, "text is not turned around"
    assert "\x1b" not in answer.text


def test_the_hostile_text_is_there_to_be_read(hostile: TestClient) -> None:
    text = hostile.get(f"/attempts/{PASSED}").text
    assert "&lt;script&gt;window.pwned" in text
    assert "\\u202ereversed" in text
    assert "{{ 7 * 7 }}" in text


def test_the_first_who_looks_at_an_attempt_sees_all_that_the_rules_say() -> None:
    with open_store(":memory:") as opened:
        fill(opened)
        client = TestClient(build_web_app(opened, token=None), base_url=HERE)
        first, second = (client.get(f"/api/attempts/{SPIRAL}").json() for _ in range(2))
    assert first["head"]["marks"]["iterations"] == 5
    assert first == second


def test_an_answer_that_is_known_is_not_sent_again(client: TestClient) -> None:
    first = client.get(f"/attempts/{SPIRAL}")
    again = client.get(f"/attempts/{SPIRAL}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_page_that_is_kept_up_to_date_is_sent_again_only_when_there_is_more() -> None:
    with open_store(":memory:") as opened:
        app = build_web_app(opened, token=None)
        with TestClient(app, base_url=HERE, headers=HTML) as client:
            known = {"if-none-match": client.get("/attempts").headers["etag"]}
            assert client.get("/attempts", headers=known).status_code == 304
            opened.save_attempt(
                AttemptResult(attempt=Attempt(id="new", origin="experiment", exit="finished"))
            )
            assert client.get("/attempts", headers=known).status_code == 200


def test_a_page_may_load_nothing_from_elsewhere(client: TestClient) -> None:
    answer = client.get("/attempts")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"


def test_a_page_is_light(client: TestClient) -> None:
    text = client.get("/attempts").text
    named = re.findall(r'(?:src|href)="(/static/[^"#]+)"', text)
    sizes = [int(client.get(name).headers["content-length"]) for name in {*named}]
    assert len(sizes) > 4
    assert sum(sizes) < 100_000


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/attempts/nothing-like-it", 404),
        (f"/attempts/{SPIRAL}/events/99999", 404),
        ("/reports/999", 404),
        ("/reports/x", 400),
        ("/tasks/nobody", 404),
        ("/attempts?outcome=wonderful", 400),
        ("/attempts?limit=0", 400),
        ("/attempts?after=%00garbage", 400),
        (f"/attempts/{SPIRAL}/events?first=-1", 400),
        (f"/attempts/{SPIRAL}/search?q={'x' * 300}", 400),
        ("/nowhere", 404),
    ],
)
def test_a_bad_address_is_answered_with_one_sentence(
    client: TestClient, address: str, status: int
) -> None:
    answer = client.get(address)
    assert answer.status_code == status
    checked(answer.text)
    record = client.get(f"/api{address}", headers={"accept": "application/json"})
    assert record.status_code == status
    assert set(record.json()) == {"message"}


def test_a_sealed_task_is_never_shown(client: TestClient) -> None:
    sealed = (f"/attempts/{SEALED}", f"/attempts/{SEALED}/diff", f"/tasks/{SECRET_NAME}")
    for address in (*sealed, "/reports/2"):
        answer = client.get(address)
        assert answer.status_code == 400
        assert "held out" in answer.text
    for address in addresses():
        for place in (address, f"/api{address}"):
            assert SECRET_NAME not in client.get(place).text
    assert SEALED not in client.get("/api/attempts").text
    assert SEALED not in client.get(f"/api/attempts?task={SECRET_NAME}").text
    assert "sealed-" not in client.get("/api/compare?variants=closer&variants=spiraller").text
    assert SEALED not in client.get("/api/overview").text


def test_held_out_results_stand_under_their_own_heading_with_the_look(client: TestClient) -> None:
    report = client.get("/api/sets").json()["held_out"]
    assert (report["looks"], report["last_look"]["reason"]) == (1, "plain words")
    assert [(one["variant"], one["held_out"]["value"]) for one in report["gaps"]] == [("closer", 0)]
    for address in ("/sets", "/compare?variants=closer&variants=spiraller"):
        text = client.get(address).text
        assert "<h2>Held-out tasks</h2>" in text
        assert "Unsealed 1 time" in text


def test_the_spiral_is_seen(client: TestClient) -> None:
    text = client.get(f"/attempts/{SPIRAL}/iterations").text
    assert "Spiral: 5 iterations in a row ended in the same failure." in text
    assert "✗ spiral" in text


def test_the_fact_that_was_lost_is_marked(client: TestClient) -> None:
    text = client.get(f"/attempts/{HANDOFF}/handoffs").text
    assert f'<mark class="dropped" title="dropped">{FACT}</mark>' in text
    assert "a needed fact was lost" in text


def test_the_facts_of_a_handoff_stand_beside_its_score(client: TestClient) -> None:
    [one] = client.get(f"/api/attempts/{HANDOFF}").json()["handoffs"]
    assert (one["event"], one.get("arrived"), one["lost"]) == (2, None, [FACT])
    text = client.get(f"/attempts/{HANDOFF}").text
    assert "0 of 1 needed fact in the brief" in text
    assert "Needed facts in the brief, briefs that the sub-agent understood" in text
    assert FACT in text


def test_a_long_trace_comes_in_pieces_and_is_searched_whole(client: TestClient) -> None:
    first = client.get(f"/api/attempts/{LONG}").json()
    assert len(first["events"]) == 200
    numbers, start = [each["number"] for each in first["events"]], first["fragments"][0]
    while start:
        part = client.get(f"/api/attempts/{LONG}/events?first={start}").json()
        numbers += [each["number"] for each in part["events"]]
        start = part["next"]
    assert numbers == list(range(1, LONG_EVENTS + 1))
    found = client.get(f"/api/attempts/{LONG}/search?q=NEEDLE").json()
    assert [hit["number"] for hit in found["hits"]] == [LONG_EVENTS - 7]


def test_a_list_is_walked_to_its_end_without_a_gap(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as opened:
        for number in range(25):
            # Several start at once, and some have no start at all.
            began = START + timedelta(hours=number // 3) if number % 5 else None
            made = Attempt(id=f"{number:012}", origin="experiment", exit="finished", started=began)
            opened.save_attempt(AttemptResult(attempt=made))
        everything = [row.id for row in opened.list_attempts()]
        with TestClient(build_web_app(opened, token=None), base_url=HERE) as client:
            seen: list[str] = []
            after = ""
            while True:
                body = client.get(f"/api/attempts?limit=4&after={after}").content
                view = msgspec.json.decode(body, type=AttemptsView)
                seen += [line.row.id for line in view.lines]
                if view.next is None:
                    break
                after = view.next
    assert seen == everything


def test_what_a_check_said_is_shown_by_tier_file_and_line(client: TestClient) -> None:
    for address in (f"/attempts/{SPIRAL}/checks", "/reports/1"):
        text = client.get(address).text
        assert "Tools: worse than before in test plain words (1 broke)<" in text
        assert "Quality: 5 warnings<" in text
        assert re.search(r"src/x\.py.*line 2<.*line 9<", text, re.DOTALL)
        assert "of changes of its size were reverted" in text
    assert "Check report" not in client.get(f"/attempts/{PASSED}/checks").text
    assert f"closeloop check attempt:{PASSED}" in client.get(f"/attempts/{PASSED}/checks").text


def test_what_was_checked_lately_is_listed_with_the_pull_requests(client: TestClient) -> None:
    rows = client.get("/api/pulls").json()["reports"]
    assert [(row["number"], row["level"], row["findings"]) for row in rows] == [(1, "high", 5)]
    assert '<a class="row-link" href="/reports/1">' in client.get("/pulls").text


def test_a_filter_is_part_of_the_address(client: TestClient) -> None:
    view = client.get("/api/attempts?outcome=fail&variant=spiraller").json()
    assert {line["row"]["id"] for line in view["lines"]} == {SPIRAL, HANDOFF}
    client.get(f"/attempts/{SPIRAL}")
    view = client.get("/api/attempts?rule=spiral").json()
    assert [line["row"]["id"] for line in view["lines"]] == [SPIRAL]
    assert "5 iterations in a row ended in the same" in view["lines"][0]["finding"]
    assert view["lines"][0]["finding"][:40] in client.get("/attempts?rule=spiral").text
    assert "lines" not in client.get("/api/attempts?rule=spir").json()


def test_a_list_is_searched_sorted_counted_and_held_to_a_time(client: TestClient) -> None:
    def listed(query: str) -> tuple[list[str], Any]:
        view = client.get(f"/api/attempts?{query}").json()
        return [line["row"]["id"] for line in view.get("lines", ())], view

    ids, view = listed("q=customers+hold")
    assert ids == [HANDOFF]
    assert (view["count"], view["total"]) == (1, 5)
    assert view["lines"][0]["snippet"]["match"].lower() == "customers"
    assert listed("q=%22%29+OR+%28")[0] == []
    assert listed("q=secret")[0] == [], "held-out tasks are not searched"
    newest, _ = listed("since=2026-01-01")
    assert listed("sort=oldest&since=2026-01-01")[0] == newest[::-1]
    assert listed("until=2026-02-28")[0] == []
    assert listed("since=2026-03-01&until=2026-03-01")[0] == newest
    first, view = listed("sort=turns&limit=1")
    rest, _ = listed(f"sort=turns&after={view['next']}")
    assert [*first, *rest] == listed("sort=turns")[0]
    text = client.get("/attempts?q=customers").text
    assert "<mark>customers</mark>" in text
    assert "of 5" in text


def test_a_time_that_cannot_be_read_is_refused_with_what_to_write(client: TestClient) -> None:
    answer = client.get("/attempts?since=yesterday")
    assert answer.status_code == 400
    assert "2026-11-01" in answer.text
    assert client.get("/attempts?sort=beauty").status_code == 400


def test_the_time_range_travels_along_and_can_be_chosen_anew(client: TestClient) -> None:
    text = client.get("/attempts?since=7d&outcome=fail").text
    assert "Last 7 days" in text
    assert 'href="/experiments?since=7d"' in text
    assert 'href="/attempts?outcome=fail&amp;since=30d"' in text
    assert 'href="/attempts?outcome=fail"' in text, "all time"
    assert "/experiments?since" not in client.get("/attempts?outcome=fail").text


def test_the_navigation_has_six_groups_and_every_page_is_in_one_or_a_tool() -> None:
    location = PageLocation(path="/", query="", page=None, caller=Caller(), sections=PAGES)
    assert [group for group, _ in location.groups] == [
        "Overview", "Sessions", "Experiments", "Pull requests", "Tasks", "Trust",
    ]  # fmt: skip
    assert {page.section for page in location.tools} == {"Settings"}, (
        "put the section into a group of NAVIGATION in web/page.py"
    )


def test_a_line_opens_beside_the_list(client: TestClient) -> None:
    client.get(f"/attempts/{SPIRAL}")
    part = client.get(f"/attempts/{SPIRAL}/preview").text
    assert "<html" not in part
    assert "missing-cent" in part
    assert "spiral" in part
    assert "missing-cent" in client.get(f"/attempts?open={SPIRAL}").text
    assert client.get("/attempts?open=nobody").status_code == 404


def test_the_api_is_described(client: TestClient) -> None:
    described = client.get("/api/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    for page in PAGES:
        assert re.sub(r":\w+", "", page.record_path) in described["paths"]
    names = [
        operation["operationId"]
        for path in described["paths"].values()
        for operation in path.values()
    ]
    assert len(names) == len(set(names))


def test_no_two_pages_share_a_path_a_key_or_a_place_in_the_navigation() -> None:
    named = tuple(page for page in PAGES if page.key)
    for name, pages in (
        ("path", PAGES),
        ("record_path", PAGES),
        ("key", named),
        ("section", named),
    ):
        told = [getattr(page, name) for page in pages]
        assert len(told) == len(set(told)), name


def test_the_settings_page_says_what_the_sandbox_enforces_here(client: TestClient) -> None:
    try:
        with TemporaryDirectory() as folder:
            described = describe_sandbox_limits(
                find_sandbox(SandboxSettings(), Path(folder)).sandbox_limits
            )
    except MachineFailed as failed:
        described = str(failed)
    assert client.get("/api/settings").json()["sandbox"] == described
    assert described in html.unescape(client.get("/settings", headers=HTML).text)


def test_an_empty_store_says_what_to_do() -> None:
    with open_store(":memory:") as opened:
        served = build_web_app(opened, token=None)
        with TestClient(served, base_url=HERE, headers=HTML) as client:
            assert "closeloop run" in client.get("/attempts").text
            assert "closeloop mine" in client.get("/tasks").text
            assert client.get("/", follow_redirects=True).status_code == 200
