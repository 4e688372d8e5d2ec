"""The dashboard in a real browser: read, searched, walked by keys, and open to everybody."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from accessibility import CONTRAST, find_violations
from dashboard_store import HANDOFF, HOSTILE, LONG, LONG_EVENTS, PASSED, SPIRAL, START, fill
from playwright.sync_api import Page, Route, expect
from playwright.sync_api import TimeoutError as TooLate
from test_receiver import conversation, export

from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.store import Store, open_store
from closeloop.web.page import PageContext
from patience import PATIENCE, ROUNDS, until

Serve = Callable[..., AbstractContextManager[str]]
OpenPage = Callable[..., Page]
READ = (
    "/attempts",
    "/attempts?show=grid",
    f"/attempts?q=cent&sort=cost&open={SPIRAL}",
    "/attempts?score=would-merge&score=resolved",
    "/scores",
    f"/attempts/{SPIRAL}",
    f"/attempts/{SPIRAL}/iterations",
    f"/attempts/{HANDOFF}/handoffs",
    f"/attempts/{SPIRAL}/diff",
    f"/attempts/{SPIRAL}/tests",
    f"/attempts/{SPIRAL}/checks",
    f"/attempts/{SPIRAL}/evaluations",
    f"/attempts/{SPIRAL}/reviews",
    f"/attempts/{SPIRAL}/scores",
    f"/attempts/{SPIRAL}/log",
    f"/attempts/{SPIRAL}/raw",
    "/reports/1",
    "/tasks",
    "/tasks/missing-cent",
    "/rules",
    "/settings",
    "/login",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(str(tmp_path_factory.mktemp("store") / "store.db")) as opened:
        fill(opened)
        yield opened


@pytest.fixture(scope="module")
def address(store: Store, serve: Serve) -> Iterator[str]:
    with serve(store) as found:
        yield found


def read(page: Page, address: str) -> None:
    """Open a page, and wait for the part of it that comes later."""
    page.goto(address)
    expect(page.locator("[hx-trigger=load]")).to_have_count(0)


def test_a_link_into_a_long_trace_opens_at_its_event(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/attempts/{LONG}#e{LONG_EVENTS - 7}")
    event = page.locator(f"#e{LONG_EVENTS - 7}")
    expect(event).to_be_in_viewport()
    expect(event).to_contain_text("a needle in the hay")
    assert page.locator(".event").count() < 800, "what is far away is not loaded"


def test_a_search_finds_what_was_not_loaded(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/attempts/{LONG}")
    page.get_by_role("main").get_by_role("searchbox").fill("needle")
    page.locator("#hits a").click()
    expect(page.locator(f"#e{LONG_EVENTS - 7}")).to_be_in_viewport()


def test_keys_go_from_finding_to_finding(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/attempts/{SPIRAL}")
    expect(page.locator(".finding", has_text="spiral").first).to_be_visible()
    page.keyboard.press("n")
    expect(page).to_have_url(re.compile("#e"))
    first = page.url
    found = page.locator(f"#{first.partition('#')[2]} .margin .finding")
    expect(found.first).to_be_in_viewport()
    page.keyboard.press("n")
    expect(page).not_to_have_url(first)
    page.keyboard.press("p")
    expect(page).to_have_url(first)


def test_pages_and_their_lines_are_reached_by_keys(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/attempts")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Tasks")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/attempts/*")
    # The second key counts for a moment only, which a slow machine may let pass.
    for _ in range(ROUNDS):
        page.keyboard.press("g")
        page.keyboard.press("t")
        with suppress(TooLate):
            page.wait_for_url("**/tasks", timeout=PATIENCE * 1000 / ROUNDS)
            return
    pytest.fail(page.url)


def test_a_slash_goes_to_the_search_of_every_page(open_page: OpenPage, address: str) -> None:
    page = open_page()
    for path in ("/attempts", f"/attempts/{SPIRAL}", "/tasks"):
        page.goto(address + path)
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox").and_(page.locator(":focus"))).to_have_count(1)
        page.keyboard.type("cent")
    page.keyboard.press("Enter")
    page.wait_for_url("**/attempts?q=cent")


def test_keys_that_come_before_the_script_are_taken_up(open_page: OpenPage, address: str) -> None:
    page = open_page()
    waiting: list[Route] = []

    def hold_back(route: Route) -> None:
        waiting.append(route)

    page.route("**/app.*.js", hold_back)
    page.goto(f"{address}/tasks", wait_until="commit")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("/")
    until(lambda: bool(page.wait_for_timeout(20) or waiting))
    waiting.pop().continue_()
    expect(page.locator(".find input")).to_be_focused()


def test_a_line_opens_beside_a_wide_list_and_two_are_compared(
    open_page: OpenPage, address: str
) -> None:
    page = open_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{address}/attempts?sort=oldest")
    link = page.locator(".row-link").first
    name = link.get_attribute("data-id")
    link.click()
    expect(page.locator("#beside article")).to_be_visible()
    expect(page).to_have_url(re.compile(f"open={name}"))
    page.reload()
    expect(page.locator("#beside article")).to_be_visible()
    compare = page.get_by_role("button", name="Compare these two")
    expect(compare).to_be_hidden()
    boxes = page.get_by_role("checkbox", name=re.compile("^Compare "))
    boxes.nth(0).check()
    boxes.nth(1).check()
    compare.click()
    page.wait_for_url("**/compare?attempt=*&attempt=*")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{address}/attempts")
    page.locator(".row-link").first.click()
    page.wait_for_url("**/attempts/*")


def test_a_theme_that_was_chosen_stays(open_page: OpenPage, address: str) -> None:
    page = open_page(color_scheme="light")
    page.goto(f"{address}/rules")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Theme").click()
    page.goto(f"{address}/tasks")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_a_list_grows_while_it_is_looked_at(
    open_page: OpenPage, serve: Serve, store: Store
) -> None:
    desk = PageContext(store)

    def add(task: str) -> None:
        made = Attempt(id=task * 4, origin="experiment", task=task, exit="gave_up", started=START)
        store.save_attempt(AttemptResult(attempt=made))

    def add_first(route: Route) -> None:
        """Between drawing the page and its hearing of what is new."""
        before = desk.news_mark()
        add("early")
        until(lambda: desk.news_mark() != before)
        route.continue_()

    with serve(store, desk=desk) as address:
        page = open_page()
        page.route("**/live", add_first)
        page.goto(f"{address}/attempts?exit=gave_up")
        expect(page.get_by_role("link", name="early")).to_be_visible()
        # In a tab behind others it waits until somebody looks.
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, writable: true})")
        add("late")
        live = page.locator("live-updates")
        assert until(lambda: live.evaluate("live => live.told !== live.dataset.mark"))
        page.evaluate("document.hidden = false")
        live.dispatch_event("visibilitychange")
        expect(page.get_by_role("link", name="late")).to_be_visible()


def test_a_session_under_way_is_watched(open_page: OpenPage, serve: Serve, tmp_path: Path) -> None:
    first, *rest = conversation()[1:]
    with open_store(str(tmp_path / "store.db")) as opened, serve(opened) as address:
        send = partial(httpx.post, f"{address}/v1/traces", timeout=PATIENCE)
        send(json=export(first)).raise_for_status()
        rows = until(opened.list_attempts)
        page = open_page()
        live = page.locator("live-updates")

        def answer_late(route: Route) -> None:
            """With what there was, when there is more and the page has been told so."""
            answer = route.fetch()
            send(json=export(*rest)).raise_for_status()
            until(lambda: live.evaluate("live => live.told !== live.dataset.mark"))
            route.fulfill(response=answer)

        page.route("**/tail?*", answer_late, times=1)
        page.goto(f"{address}/attempts/{rows[0].id}")
        expect(page.locator(".event").first).to_be_visible()
        expect(page.locator(".event", has_text="pytest -q")).to_be_visible()


def test_a_filter_is_chosen_without_a_click_too_many(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/attempts")
    page.get_by_label("Outcome").first.select_option("pass")
    page.wait_for_url("**/attempts?outcome=pass")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_every_page_is_open_to_everybody(open_page: OpenPage, address: str) -> None:
    """By axe, which reads a page as a screen reader would, in both themes; and at every width."""
    page = open_page(reduced_motion="reduce")
    found: dict[str, Any] = {}
    for path in READ:
        page.emulate_media(color_scheme="light")
        read(page, address + path)
        violations = find_violations(page)
        page.emulate_media(color_scheme="dark")
        violations |= find_violations(page, CONTRAST)
        found |= {f"{path} {rule}": elements for rule, elements in violations.items()}
        for width in (360, 861, 900, 1100, 1440, 1920, 2560, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found[f"{path} at {width}"] = "too wide"
    assert found == {}


def test_dates_and_badges_of_the_list_are_whole(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/attempts")
    page.locator("table.sessions td.found").evaluate_all(
        'all => all.forEach(one => one.innerHTML = \'<a class="chip rule">missing-verification</a>'
        ' <a class="chip rule">pressed-on-after-failed-edit</a>\')'
    )
    for width in (900, 1300, 1450, 1700):
        page.set_viewport_size({"width": width, "height": 900})
        wrapped = page.locator("table.sessions time").evaluate_all(
            "all => all.filter(one => one.getClientRects().length > 1).length"
        )
        cut = page.locator("table.sessions .found .chip").evaluate_all(
            "all => all.filter(one => one.scrollWidth > one.clientWidth + 1"
            " || one.getBoundingClientRect().right > "
            "one.closest('td').getBoundingClientRect().right).length"
        )
        assert (wrapped, cut) == (0, 0), width


def test_nothing_that_an_agent_wrote_runs(
    open_page: OpenPage, serve: Serve, tmp_path: Path
) -> None:
    with open_store(str(tmp_path / "store.db")) as opened:
        fill(opened, HOSTILE)
        with serve(opened) as address:
            page = open_page()
            for path in (*READ, f"/attempts/{PASSED}"):
                read(page, address + path)
                assert page.evaluate("window.pwned") is None, path
                for width in (360, 1280):
                    page.set_viewport_size({"width": width, "height": 900})
                    over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert over <= 0, f"{path} at {width}"
