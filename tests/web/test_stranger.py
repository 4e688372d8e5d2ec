"""What somebody who has never seen closeloop is told, without a word that needs explaining."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from html import unescape
from typing import Literal

import pytest
from boards_store import EXPERIMENT, NEW, fill_boards
from dashboard_store import HANDOFF, SPIRAL, START
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

from closeloop.records import attempt as graded
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.task import Experiment, Task, Variant
from closeloop.records.trace import AnyEvent, Command, Edit, Lane, Message, Trace
from closeloop.store import Store, open_store
from closeloop.text.wording import format_points
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.render import shorten_name

HERE = "http://127.0.0.1:4318"
TALKER = "talker000000"
SAID = ("Rounding is to blame.", "Then it is precision.")
LONG = "tests/test_discounts.py::" + "test_a_name_that_goes_on_and_on_" * 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(str(tmp_path_factory.mktemp("stranger") / "store.db")) as opened:
        fill_boards(opened)
        talker(opened)
        yield opened


@contextmanager
def shown(store: Store) -> Iterator[TestClient]:
    desk = PageContext(store)
    desk.metric_cache.patience = None
    app = build_web_app(store, token=None, page_context=desk)
    with TestClient(app, base_url=HERE, headers={"accept": "text/html"}) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(store: Store) -> Iterator[TestClient]:
    with shown(store) as opened:
        yield opened


def talker(store: Store) -> None:
    """Two rounds that are announced, and one that is not."""
    events: list[AnyEvent] = []
    for turn in range(3):
        number = 3 * turn + 1
        if turn < len(SAID):
            events.append(Message(number=number, lane="root", role="agent", text=SAID[turn]))
        before, after = f"x = {turn}", f"x = {turn + 1}"
        edit = Edit(
            number=number + 1, lane="root", path="x.py", before=before, after=after, ok=True
        )
        output = f"FAILED {LONG} - assert 1 == 2\n1 failed in 0.10s\n"
        check = Command(
            number=number + 2, lane="root", command="pytest -q", output=output, exit_code=1
        )
        events += [edit, check]
    trace = Trace(
        reader="builtin", reader_version=1, lanes=(Lane(id="root"),), events=tuple(events)
    )
    began = START - timedelta(days=1)
    attempt = Attempt(id=TALKER, origin="production", exit="finished", started=began, cause=LONG)
    store.save_attempt(AttemptResult(attempt=attempt, trace=trace))


def told(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return unescape(answer.text)


def test_the_first_page_says_which_variant_is_better(client: TestClient) -> None:
    page = " ".join(told(client, "/").split())
    better = "<strong>steady</strong> is better than <bdi>hasty</bdi> on these 8 tasks: "
    assert f"{better}pass rate 100 % against 25 %." in page
    assert re.search(r"They are 75 points apart \(95 % bounds: \d+ to \d+ points\)", page)


def test_a_spiral_is_told_in_the_words_of_the_agent(client: TestClient) -> None:
    rounds = client.get(f"/api/attempts/{TALKER}/iterations").json()["lanes"][0]["rounds"]
    assert [one.get("said") for one in rounds] == [*SAID, None]
    page = told(client, f"/attempts/{TALKER}/iterations")
    assert "Message before each iteration" in page
    assert SAID[1] in page


def test_a_finding_leads_to_the_picture_of_it(client: TestClient) -> None:
    assert f'href="/attempts/{SPIRAL}/iterations">See the iterations' in told(
        client, f"/attempts/{SPIRAL}"
    )
    assert f'href="/attempts/{HANDOFF}/handoffs">See the handoff' in told(
        client, f"/attempts/{HANDOFF}"
    )


def test_what_the_brief_left_out_is_called_needed(client: TestClient) -> None:
    page = told(client, f"/attempts/{HANDOFF}/handoffs")
    assert "a needed fact was lost" in page
    assert "needed, left out" in page
    assert "planted" not in page


def test_nobody_is_told_to_wait_for_a_review_that_never_comes(client: TestClient) -> None:
    assert "Only attempts that passed their checks" in told(client, f"/attempts/{TALKER}/reviews")


def test_the_trend_of_risk_says_what_is_not_in_it(client: TestClient) -> None:
    page = told(client, "/pulls")
    assert "Of changes that people merged or closed" in page
    assert 'id="checked"' in page


def test_versions_of_a_prompt_go_by_twelve_digits(client: TestClient) -> None:
    assert f">{NEW[:12]}</span>" in told(client, "/prompts")
    assert f">{NEW[:13]}" not in told(client, "/prompts")


def test_an_experiment_names_its_variants_in_one_order(client: TestClient) -> None:
    now = client.get(f"/api/experiments/{EXPERIMENT}").json()["now"]
    assert now["grid"]["variants"] == now["course"]["variants"] == ["steady", "hasty"]


def test_a_variant_is_offered_once(client: TestClient) -> None:
    page = told(client, "/compare?variants=steady&variants=steady")
    assert page.count('value="steady" selected') == 1


def test_whoever_chooses_nothing_sees_the_newest_experiment_compared(client: TestClient) -> None:
    shown = client.get("/api/compare").json()
    assert shown["asked"]["variants"] == ["steady", "hasty"]
    assert "Where they differ" in told(client, "/compare")


def test_what_was_found_leads_from_a_list_to_the_picture_of_it(client: TestClient) -> None:
    linked = f'<a class="chip rule" href="/attempts/{SPIRAL}/iterations">spiral</a>'
    told(client, "/")  # measures all that nobody has looked at
    assert linked in told(client, "/attempts")
    assert linked in told(client, "/tasks/missing-cent")


def try_once(
    store: Store, name: str, how: Literal["pass", "fail"], trace: Trace | None = None
) -> None:
    """A variant of that name, and its one attempt at the only task."""
    store.save_variant(Variant(digest=name, name=name, agent="builtin"))
    made = Attempt(
        id=name, origin="experiment", task="t", task_digest="d", variant=name, exit="finished"
    )
    grade = Grade(attempt=name, grading="g", version=1, outcome=Outcome(result=how))
    store.save_attempt(AttemptResult(attempt=made, trace=trace, grade=grade))


def test_a_comparison_says_what_was_found_in_the_worse_one(store: Store) -> None:
    with open_store(":memory:") as opened:
        opened.save_task(Task(id="t", prompt="Do it.", digest="d", grading="g"))
        try_once(opened, "good", "pass")
        try_once(opened, "bad", "fail", store.load_trace(SPIRAL))
        with shown(opened) as client:
            page = told(client, "/compare")
    assert "<bdi>bad</bdi> or <bdi>good</bdi>" in page
    assert '<a class="chip rule" href="/attempts/bad/iterations">spiral</a>' in page


def test_thirty_variants_do_not_fill_the_first_page() -> None:
    names = [f"v{number:02}" for number in range(30)]
    with open_store(":memory:") as opened:
        opened.save_task(Task(id="t", prompt="Do it.", digest="d", grading="g"))
        for name in names:
            try_once(opened, name, "pass")
        opened.save_experiment(Experiment(id="e", tasks=("d",), variants=tuple(names)))
        with shown(opened) as client:
            page = told(client, "/")
            chosen = told(client, "/compare")
    assert page.count("There is not enough data") == 1
    assert "28 other variants show no clear difference from <bdi>v00</bdi>." in page
    assert chosen.count('value="v00" selected') == 1


def test_what_rules_find_in_sessions_is_on_the_first_page(store: Store) -> None:
    with open_store(":memory:") as opened:
        session = Attempt(id="s", origin="production", exit="finished", started=START)
        opened.save_attempt(AttemptResult(attempt=session, trace=store.load_trace(SPIRAL)))
        with shown(opened) as client:
            page = told(client, "/")
    assert 'href="/attempts?origin=production&rule=spiral"' in page
    assert "1 session<" in page
    assert ">Experiments</h2>" not in page, "each block only where there is data"


def test_an_empty_store_says_what_to_do() -> None:
    with open_store(":memory:") as opened, shown(opened) as client:
        for command in ("import", "mine", "run"):
            assert f"<code>closeloop {command}</code>" in told(client, "/")
        assert "No attempts at tasks yet" in told(client, "/attempts?show=grid")
        assert "Remove a filter" in told(client, "/attempts?show=grid&task=x")


def test_a_name_that_no_folder_can_have_breaks_no_page() -> None:
    with open_store(":memory:") as opened:
        fill_boards(opened, "word" * 300)
        with shown(opened) as client:
            assert client.get("/sets").status_code == 200


def test_long_names_dark_screens_and_paper(
    store: Store, serve: Callable[..., AbstractContextManager[str]], open_page: Callable[..., Page]
) -> None:
    """Nothing is wider than a telephone, tabs show where one is, and print is dark on white."""
    with serve(store) as address:
        page = open_page(viewport={"width": 360, "height": 800})
        page.goto(f"{address}/compare?attempt={TALKER}&attempt={SPIRAL}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        page.goto(f"{address}/attempts/{TALKER}/raw")
        page.wait_for_load_state()
        tab = page.locator(".tabs [aria-current]").bounding_box()
        assert tab is not None
        assert 0 <= tab["x"] < 360 - 40
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        page.emulate_media(media="print")
        colour = "getComputedStyle(document.body).color"
        assert page.evaluate(colour) == "rgb(29, 35, 39)"
        page.goto(f"{address}/attempts")
        expect(page.locator("thead")).to_be_visible()
        expect(page.get_by_label("Filter the list")).to_be_hidden()
        assert page.evaluate("getComputedStyle(document.querySelector('tbody tr')).display") == (
            "table-row"
        )


def test_tests_that_say_very_much_do_not_make_a_page_of_megabytes() -> None:
    said = tuple(
        graded.TestResult(id=f"{'n' * 9000}{n}", status="failed", message="m" * 200_000)
        for n in range(20)
    )
    grade = Grade(
        attempt="loud00000000",
        grading="g",
        version=1,
        outcome=Outcome(result="fail"),
        after=graded.TestRun(when="after", tests=said, ran=True),
    )
    with open_store(":memory:") as opened:
        opened.save_attempt(
            AttemptResult(
                attempt=Attempt(id="loud00000000", origin="experiment", exit="finished"),
                grade=grade,
            )
        )
        with TestClient(build_web_app(opened, token=None), base_url=HERE) as client:
            answer = client.get("/attempts/loud00000000/tests")
    assert answer.status_code == 200
    assert "nnn …" in answer.text
    assert len(answer.content) < 400_000


def test_long_names_are_told_apart_by_their_ends() -> None:
    first, second = (shorten_name(f"{'model-' * 20}{end}") for end in ("old", "new"))
    assert first is not None
    assert first != second
    assert len(first) == 40
    assert shorten_name("closer") == "closer"
    assert shorten_name(None) is None


def test_differences_of_shares_are_told_in_points() -> None:
    assert [format_points(share) for share in (0.784, -0.01, 0)] == [
        "78 points",
        "1 point",
        "0 points",
    ]
    assert format_points(-0.784, signed=True) == "−78 points"


def test_an_iteration_of_unknown_result_says_nothing_of_any_failure() -> None:
    """Between two checks that fail in the same way, one whose output is not recorded."""
    outputs: list[str | None] = [f"FAILED {LONG} - assert 1 == 2\n1 failed in 0.10s\n"] * 3
    outputs[1] = None
    events: list[AnyEvent] = []
    for turn, output in enumerate(outputs):
        number = 2 * turn + 1
        events += [
            Edit(number=number, lane="root", path="x.py", before=f"x = {turn}", after="", ok=True),
            Command(
                number=number + 1, lane="root", command="pytest -q", output=output or "",
                exit_code=None if output is None else 1,
            ),
        ]  # fmt: skip
    trace = Trace(
        reader="builtin", reader_version=1, lanes=(Lane(id="root"),), events=tuple(events)
    )
    made = Attempt(id="unclear00000", origin="production", exit="finished", started=START)
    with open_store(":memory:") as store:
        store.save_attempt(AttemptResult(attempt=made, trace=trace))
        with shown(store) as client:
            (lane,) = client.get("/api/attempts/unclear00000/iterations").json()["lanes"]
            rounds = lane["rounds"]
            assert [one["known"] for one in rounds] == [True, False, True]
            assert [(one["fixed"], one["new"]) for one in rounds] == [(0, 0)] * 3
            page = client.get("/attempts/unclear00000/iterations").text
            assert page.count('aria-label="unknown">?') == 1
            assert "does not fail" not in page
