"""The boards in a real browser: compared, reviewed by keyboard, watched, and opened from disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from accessibility import CONTRAST, find_violations
from boards_store import EXPERIMENT, NEW, PLAN, PULL, REPO, attempt, fill_boards
from dashboard_store import HOSTILE, SPIRAL, START
from playwright.sync_api import Page, expect

from closeloop.records.experiment_plan import Trial, TrialAssignment
from closeloop.store import Store, open_store
from closeloop.web import static_export
from closeloop.web.page import PageContext
from closeloop.web.static_export import export_pages

Serve = Callable[..., AbstractContextManager[str]]
OpenPage = Callable[..., Page]
FEW_PAGES = 150
"""Of an export: all that are read here. `test_export_site.py` writes every page."""
READ = (
    "/",
    "/compare",
    "/compare?variants=steady&variants=hasty",
    "/compare?attempt=x00000000000&attempt=x00000000006",
    "/compare?variants=steady&variants=closer&score=findings",
    "/triage",
    "/metrics",
    "/metrics?by=variant&metric=cost",
    "/gates",
    "/trust",
    "/judges",
    "/memory/preview",
    "/experiments",
    f"/experiments/{EXPERIMENT}",
    "/cost",
    "/pulls",
    f"/pulls/{REPO}/{PULL}",
    "/plans",
    f"/plans/{PLAN}",
    "/memory",
    "/insights",
    "/prompts",
    f"/prompts/{NEW}",
    "/trials",
    "/trials/prompts",
    "/review",
    "/sets",
)


def start_trial(store: Store) -> None:
    """Twelve pieces of work, assigned to two prompts."""
    shares = {"old": 0.5, "new": 0.5}
    store.trials.start_trial(
        Trial(name="prompts", shares=shares, metric="merge rate", started=START)
    )
    for number in range(12):
        arm = TrialAssignment(
            trial="prompts", key=f"x{number:011d}", variant=("old", "new")[number % 2], at=START
        )
        store.trials.save_assignment(arm)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(str(tmp_path_factory.mktemp("boards") / "store.db")) as opened:
        fill_boards(opened)
        start_trial(opened)
        yield opened


@pytest.fixture(scope="module")
def address(store: Store, serve: Serve) -> Iterator[str]:
    with serve(store) as found:
        yield found


def settled(page: Page) -> None:
    """Until the numbers are those of now."""
    expect(page.get_by_text("Computing…")).to_have_count(0)


def test_two_variants_are_compared_down_to_their_traces(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/compare")
    for place, name in enumerate(("steady", "hasty")):
        page.locator("select[name=variants]").nth(place).select_option(name)
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url(re.compile("variants="))
    expect(page.get_by_text("steady is better than hasty").first).to_be_visible()
    page.get_by_role("link", name="side by side").first.click()
    expect(page.get_by_role("heading", name="Files changed")).to_be_visible()
    expect(page.locator("h2 + .chips .chip.pass")).to_be_visible()
    expect(page.locator("h2 + .chips .chip.fail")).to_be_visible()


def test_no_table_of_figures_is_clipped_at_any_width(open_page: OpenPage, address: str) -> None:
    """The Variants table lost cost and time on laptops."""
    page = open_page()
    page.goto(address)
    settled(page)
    cost = page.get_by_role("region", name="Results by variant").get_by_text("$0.01").first
    for width in (360, 768, 1280, 1401, 1440, 1550, 1690, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        expect(cost).to_be_visible()
        clipped = page.evaluate(
            "[...document.querySelectorAll('.scroll.fits')]"
            ".filter((each) => each.scrollWidth > each.clientWidth + 1)"
            ".map((each) => each.getAttribute('aria-label'))"
        )
        assert clipped == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_charts_of_a_page_have_one_axis_of_days(open_page: OpenPage, address: str) -> None:
    """Few sessions cost something: their chart is as long as that of all sessions."""
    page = open_page()
    page.goto(f"{address}/?since=2026-03-05&until=2026-03-12")
    settled(page)
    charts = page.locator(".glance plot-figure[data-kind=bars] svg[class]")
    expect(charts.first).to_be_visible()
    axes = charts.evaluate_all(
        "charts => charts.map(one => [...one.querySelectorAll("
        "'[aria-label=\"x-axis tick label\"] text')].map(tick => tick.textContent))"
    )
    assert len(axes) > 1
    assert all(axis == axes[0] for axis in axes)
    assert [int("".join(filter(str.isdigit, tick))) for tick in axes[0]] == [*range(5, 14)]


def test_a_trend_has_a_gap_where_there_is_no_data(open_page: OpenPage, address: str) -> None:
    """A week apart is one line, half a year apart are two."""
    page = open_page()
    page.goto(f"{address}/metrics")
    settled(page)
    points = [
        {"at": at, "name": "all", "value": 0.5, "low": 0.2, "high": 0.8, "faint": False}
        for at in ("2026-01-05", "2026-01-12", "2026-07-06", "2026-07-13")
    ]
    page.evaluate(
        """points => {
            const chart = document.createElement("plot-figure");
            chart.id = "gap";
            chart.dataset.label = "rate";
            chart.dataset.chart = JSON.stringify(points);
            document.querySelector("main").append(chart);
        }""",
        points,
    )
    expect(page.locator("#gap [aria-label=line] path")).to_have_count(2)


def test_the_scores_of_an_attempt_fit_on_a_telephone(open_page: OpenPage, address: str) -> None:
    page = open_page(viewport={"width": 390, "height": 800})
    page.goto(f"{address}/attempts/{SPIRAL}/scores")
    scores = page.get_by_role("region", name="Scores")
    expect(scores).to_be_visible()
    assert scores.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_every_page_is_in_the_menu_of_a_telephone(open_page: OpenPage, address: str) -> None:
    page = open_page(viewport={"width": 390, "height": 800})
    page.goto(f"{address}/triage")
    pages = page.get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link", name="Triage")).to_be_in_viewport()
    expect(pages.get_by_role("link", name="Judges")).to_be_hidden()
    page.get_by_text("Menu", exact=True).click()
    expect(pages.get_by_role("link", name="Judges")).to_be_visible()
    expect(page.get_by_role("link", name="Settings")).to_be_visible()
    page.wait_for_load_state()
    page.keyboard.press("Escape")
    expect(pages.get_by_role("link", name="Judges")).to_be_hidden()
    expect(page.locator(".site-menu summary")).to_be_focused()


def test_a_long_list_is_filtered_by_what_is_typed(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/scores")
    settled(page)
    page.get_by_role("textbox", name="Filter scores").fill("cost")
    expect(page.get_by_text("tokens-out", exact=True)).to_be_hidden()
    expect(page.locator(".score-entries strong", has_text="cost").first).to_be_visible()
    expect(page.get_by_role("status").filter(has_text=re.compile(r"\d+ of \d+"))).to_be_visible()


def test_triage_takes_an_answer_without_leaving_the_list(
    open_page: OpenPage, address: str, store: Store
) -> None:
    page = open_page()
    page.goto(f"{address}/triage")
    settled(page)
    page.wait_for_load_state()
    first = page.locator(".triage-list > li").first
    first.get_by_role("button", name="Would not").click()
    expect(first.get_by_role("button", name="Would not")).to_have_attribute("aria-pressed", "true")
    name = first.locator(".row-link").get_attribute("href").rpartition("/")[2]
    assert [one.value for one in store.scores.list_scores(name)] == [0.0]


def test_the_tabs_of_an_attempt_fit_on_a_small_laptop(open_page: OpenPage, address: str) -> None:
    page = open_page(viewport={"width": 1280, "height": 800})
    page.goto(f"{address}/attempts/{SPIRAL}")
    tabs = page.locator("nav.tabs")
    expect(tabs).to_be_visible()
    assert tabs.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_three_changes_are_reviewed_by_keyboard_only(
    open_page: OpenPage, address: str, store: Store
) -> None:
    page = open_page()
    page.goto(f"{address}/review")
    expect(page.locator("form[data-review]")).to_be_visible()
    page.wait_for_load_state()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next file of the change")
    page.keyboard.press("Escape")
    for number in range(3):
        expect(page.get_by_text(f"{number} of 21 reviewed")).to_be_visible()
        page.wait_for_load_state()
        page.keyboard.press("d")
        expect(page.locator("[data-evidence]").first).to_be_focused()
        for key in ("y", "-", "n", "b", "y", "n", "Enter", "p", "Enter", "2", "w"):
            page.keyboard.press(key)
        page.keyboard.type(f"Note yy{number}")
        page.keyboard.press("Control+Enter")
    expect(page.get_by_text("3 of 21 reviewed")).to_be_visible()
    kept = [
        one
        for one in store.reviews.list_reviews()
        if one.state == "done" and one.notes[:4] == "Note"
    ]
    assert [one.notes for one in kept] == ["Note yy0", "Note yy1", "Note yy2"]
    for one in kept:
        assert (one.contained, one.outside, one.approach, one.merge) == (True, "none", True, False)
        assert one.dimensions == {"quality": "partly"}
        assert "instruction drift" in one.tags
    page.keyboard.press("a")
    expect(page.get_by_text("4 of 21 reviewed")).to_be_visible()
    (good,) = [one for one in store.reviews.list_reviews() if one.state == "done" and not one.notes]
    assert (good.contained, good.outside, good.approach, good.merge) == (True, "none", True, True)
    assert good.tags == ()


def test_a_key_of_the_review_means_one_thing_only(open_page: OpenPage, address: str) -> None:
    """`t` is the trace there and not the theme; `g a` leaves, and does not say that all is good."""
    page = open_page()
    page.goto(f"{address}/review")
    told = page.get_by_text("of 21 reviewed").inner_text()
    page.wait_for_load_state()
    page.keyboard.press("t")
    expect(page.locator("html")).not_to_have_attribute("data-theme", "dark")
    page.keyboard.press("g")
    page.keyboard.press("a")
    expect(page.get_by_role("heading", name="Sessions", level=1)).to_be_visible()
    page.goto(f"{address}/review")
    expect(page.get_by_text("of 21 reviewed")).to_have_text(told)


def test_a_run_is_watched_until_it_is_done(open_page: OpenPage, serve: Serve, store: Store) -> None:
    with serve(store) as address:
        page = open_page()
        page.goto(f"{address}/experiments/{EXPERIMENT}")
        expect(page.get_by_text("31 of 32")).to_be_visible()
        expect(page.get_by_text("running", exact=True)).to_be_visible()
        attempt(store, "x00000000031", ("task-7", "hasty", 2), "the last one", good=False)
        store.release_jobs("somebody")
        expect(page.get_by_text("32 of 32")).to_be_visible()
        expect(page.get_by_text("done", exact=True)).to_be_visible()
        page.goto(f"{address}/")
        settled(page)
        expect(page.locator("plot-figure svg").first).to_be_visible()


def test_an_export_opens_from_disk(
    open_page: OpenPage, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_export, "MAX_PAGES", FEW_PAGES)
    export_pages(PageContext(store), tmp_path / "site")
    page = open_page()
    page.goto((tmp_path / "site" / "index.html").as_uri())
    expect(page.locator("plot-figure svg").first).to_be_visible()
    page.get_by_role("link", name="See where they differ").click()
    expect(page.get_by_role("heading", name="Where they differ")).to_be_visible()
    page.get_by_role("link", name="side by side").first.click()
    page.locator(".place").first.click()
    expect(page.locator(".event").first).to_be_visible()
    page.get_by_role("link", name="Plans").click()
    page.get_by_role("link", name="Build it.").click()
    expect(page.locator(".dag svg")).to_be_visible()
    page.wait_for_load_state()
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_every_board_is_open_to_everybody(open_page: OpenPage, address: str) -> None:
    """By axe, in both themes; and no board is wider than its window."""
    found: dict[str, Any] = {}
    page = open_page(reduced_motion="reduce")
    for path in READ:
        page.emulate_media(color_scheme="light")
        page.goto(address + path)
        settled(page)
        violations = find_violations(page)
        page.emulate_media(color_scheme="dark")
        violations |= find_violations(page, CONTRAST)
        found |= {f"{path} {rule}": elements for rule, elements in violations.items()}
        for width in (360, 2560, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found[f"{path} at {width}"] = "too wide"
    assert found == {}


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        fill_boards(opened, HOSTILE)
        start_trial(opened)
        yield opened


def test_nothing_that_somebody_wrote_runs_on_a_board(
    hostile: Store,
    serve: Serve,
    open_page: OpenPage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(static_export, "MAX_PAGES", FEW_PAGES)
    export_pages(PageContext(hostile), tmp_path / "site")
    with serve(hostile) as address:
        page = open_page()
        for path in READ:
            if "variants" not in path:
                page.goto(address + path)
                settled(page)
                assert page.evaluate("window.pwned") is None, path
                for width in (360, 1280):
                    page.set_viewport_size({"width": width, "height": 900})
                    over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert over <= 0, f"{path} at {width}"
        for name in ("index.html", f"plans_{PLAN}.html", "memory.html"):
            page.goto((tmp_path / "site" / name).as_uri())
            assert page.evaluate("window.pwned") is None, name
