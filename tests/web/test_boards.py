"""Overview, comparing, experiments, plans, pull requests, memory, prompts and the review queue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import html5lib
import msgspec
import pytest
from boards_store import EXPERIMENT, NEW, OLD, PLAN, PULL, REPO, TASKS, attempt, fill_boards
from dashboard_store import HOSTILE, LONG, PASSED, SEALED, SECRET_NAME, SPIRAL, START, fill
from msgspec.structs import replace
from starlette.testclient import TestClient

from closeloop.records.attempt import Attempt, Usage
from closeloop.records.experiment_plan import AttemptResult, GateReport, MetricDifference
from closeloop.records.orchestration import Orchestration, OrchestrationResult, SubtaskSpec
from closeloop.records.settings import Settings
from closeloop.records.task import Experiment, PromptVersion, Task, Variant
from closeloop.records.team_rules import RepeatedRemark, TeamRule
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.pages.compare import CompareView, Repeat, most_different
from closeloop.web.pages.experiments import ExperimentsView, ExperimentView
from closeloop.web.pages.metrics import ScoresView, TriageView
from closeloop.web.pages.overview import OverviewView
from closeloop.web.pages.plans import draw_plan_graph, task_depths
from closeloop.web.pages.review import ReviewView
from closeloop.web.pages.trust import TrustView
from closeloop.web.render import format_week, name_side, pull_request_link

HERE = "http://127.0.0.1:4318"
HTML = {"accept": "text/html,*/*"}
TWO = "/compare?variants=steady&variants=hasty"
READ = (
    "/",
    "/experiments",
    f"/experiments/{EXPERIMENT}",
    TWO,
    "/?since=2026-03-05&until=2026-03-20",
    "/cost",
    "/cost?since=2026-03-05",
    "/compare?attempt=x00000000000&attempt=x00000000006",
    "/compare?variants=steady&variants=closer&score=findings",
    "/triage",
    "/metrics",
    "/metrics?by=variant&metric=cost",
    "/gates",
    "/trust",
    "/judges",
    "/memory/preview",
    "/pulls",
    "/pulls?since=2026-03-01",
    "/pulls?risk_by=user&sort=cost&q=round",
    "/pulls?by=agents&state=merged",
    f"/pulls/{REPO}/{PULL}",
    "/plans",
    f"/plans/{PLAN}",
    "/memory",
    "/memory?state=active",
    "/insights",
    "/prompts",
    f"/prompts/{NEW}",
    f"/prompts/{OLD}?against={NEW}",
    "/trials",
    "/review",
)


def served(store: Store, settings: Settings | None = None) -> TestClient:
    """Pages wait until all is counted, so that a slow machine shows the same."""
    desk = PageContext(store, settings or Settings())
    desk.metric_cache.patience = None
    return TestClient(
        build_web_app(store, token=None, page_context=desk), base_url=HERE, headers=HTML
    )


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        fill_boards(opened)
        yield opened


@pytest.fixture(scope="module")
def client(store: Store) -> Iterator[TestClient]:
    with served(store) as opened:
        yield opened


@pytest.fixture(scope="module")
def hostile() -> Iterator[TestClient]:
    with open_store(":memory:") as opened:
        fill_boards(opened, HOSTILE)
        with served(opened) as client:
            yield client


def read(client: TestClient, path: str, kind: type[Any]) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=kind)


def obeyed(text: str) -> list[str]:
    """What a browser would do that no template says."""
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    document = parser.parse(text)
    assert [error for error in parser.errors if "doctype" not in error[1]] == []
    found = []
    for element in document.iter():
        if element.tag in ("img", "iframe", "object", "embed", "base", "style"):
            found.append(str(element.tag))
        if element.tag == "script" and not element.get("src", "").startswith("/static/"):
            found.append("script")
        for name, value in element.attrib.items():
            if name.startswith("on") or name == "style":
                found.append(f"{element.tag} {name}")
            if name in ("href", "src", "action") and not re.match(r"[/#]", value):
                found.append(f"{element.tag} {name} {value}")
    return found


@pytest.mark.parametrize("path", READ)
def test_a_board_is_valid_html(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert obeyed(answer.text) == []
    assert "Computing…" not in answer.text
    assert SECRET_NAME not in answer.text
    assert SECRET_NAME not in client.get(f"/api{path}" if path != "/" else "/api/overview").text


@pytest.mark.parametrize("path", [path for path in READ if "variants=" not in path])
def test_what_people_and_agents_wrote_is_only_text(hostile: TestClient, path: str) -> None:
    answer = hostile.get(path)
    assert answer.status_code == 200, answer.text
    assert obeyed(answer.text) == []
    assert "\u202e" not in answer.text
    assert "\x1b" not in answer.text


def test_every_board_shows_what_postgresql_holds(postgres_url: str) -> None:
    with open_store(postgres_url) as opened:
        fill_boards(opened)
        with served(opened) as client:
            for path in READ:
                answer = client.get(path)
                assert answer.status_code == 200, (path, answer.text)


def test_hostile_names_of_variants_can_be_compared(hostile: TestClient) -> None:
    groups = read(hostile, "/api/compare", CompareView).choices
    known = [value for group in groups if group.kind == "Variants" for value, _ in group.names]
    names = [one for one in known if one.startswith(("steady", "hasty"))]
    answer = hostile.get("/compare", params={"variants": names})
    assert answer.status_code == 200, answer.text
    assert obeyed(answer.text) == []


def test_the_overview_says_which_is_better_and_what_is_under_way(client: TestClient) -> None:
    view = read(client, "/api/overview", OverviewView)
    assert [course.experiment.id for course in view.live] == [EXPERIMENT]
    assert view.numbers.verdict.report.pairs[0].comparison.here_word == "worse"
    assert {point.name for point in view.numbers.trend} >= {"steady", "hasty"}
    known = {line.metric.name: line.figure.value for line in view.numbers.production}
    assert known["task completion rate"] is not None
    assert ("spiral", "spiraller") in {(one.rule, one.variant) for one in view.numbers.found}
    text = client.get("/").text
    assert text.index("is better than") < text.index("Production metrics")
    assert "31 of 32" in text


def test_the_overview_of_old_sessions_counts_all_of_them() -> None:
    """Imported recordings end months ago: all numbers cover what the picker says, all time."""
    with open_store(":memory:") as store:
        fill(store)
        with served(store) as client:
            view = read(client, "/api/overview", OverviewView)
            assert view.numbers.glance.label == "All time"
            since = read(client, "/api/overview?since=2020-01-01", OverviewView)
            assert view.numbers.glance.period.sessions == view.numbers.attempts == 5
            assert "Charts: without 1 session of unknown time." in client.get("/").text
            assert since.numbers.glance.period.sessions == 4
            assert sum(point.value for point in view.numbers.glance.use.sessions) == 4
            ranked = read(client, "/api/triage", TriageView)
            assert view.look_first.total == ranked.total
            assert [one.attempt for one in view.look_first.sessions] == [LONG]
            assert "Sessions, most likely failures first" in client.get("/").text


def test_computed_outcomes_are_not_called_given_by_people(client: TestClient) -> None:
    """Nobody has scored anything: completion and regressions come from grades and deliveries."""
    scores = read(client, "/api/scores", ScoresView).scores
    assert "completed" in {one.definition.name for one in scores if one.source == "person"}
    assert all(one.last for one in read(client, "/api/trust", TrustView).given)
    page = client.get("/scores").text
    assert page.index("From outcomes") < page.index("<strong>completed</strong>")
    assert "completed, given by people" not in client.get("/trust").text


def test_a_task_that_was_never_checked_is_unchecked_everywhere(client: TestClient) -> None:
    states = [one["state"] for one in client.get("/api/tasks").json()["tasks"]]
    page = client.get("/tasks").text
    unchecked = sum(one in ("unchecked", "unknown") for one in states)
    assert unchecked
    assert f'<span class="big">{unchecked}</span> unchecked' in page
    assert f'<span class="big">{states.count("unproved")}</span> not verified' in page
    assert "not checked" not in page


def test_metrics_of_a_comparison_are_grouped_by_what_they_show(client: TestClient) -> None:
    page = client.get(TWO).text
    view = read(client, f"/api{TWO}", CompareView)
    words = [one.word for one in view.pairs[0].versus.secondary]
    unclear = words.count("no clear difference")
    assert 0 < unclear < len(words)
    assert f"{len(words) - unclear} metrics with a clear difference" in page
    assert f"{unclear} metrics without a clear difference" in page
    unclear_part = page[page.index("without a clear difference") :]
    assert unclear_part.count("<td>no clear difference</td>") == unclear
    assert '<option value="resolved" selected>pass rate</option>' in page


def test_a_gate_set_by_the_team_says_so_on_the_page() -> None:
    settings = Settings(rules={"spiral": {"gates": True}})
    with open_store(":memory:") as store:
        fill(store)
        with served(store, settings) as client:
            page = client.get("/trust").text
    row = page[page.index("/rules#spiral") :].split("</tr>")[0]
    assert ">fail a build<" in row
    assert "set in closeloop.toml</div>" in row
    assert page.count("set in closeloop.toml</div>") == 1


def test_a_comparison_shows_the_attempts_behind_its_dots(client: TestClient) -> None:
    view = read(client, f"/api{TWO}", CompareView)
    pair = view.pairs[0]
    assert (pair.versus.first, pair.versus.second) == ("steady", "hasty")
    assert pair.tasks[0].differs
    assert len(pair.tasks) == 8
    assert {one.result for line in pair.tasks for one in line.first} == {"pass"}
    first, second = pair.tasks[0].pair
    text = client.get(TWO).text
    assert f"/compare?attempt={first}&amp;attempt={second}" in text
    assert "2 of 2" in text


@pytest.mark.parametrize(
    "page", [f"/experiments/{EXPERIMENT}", TWO, "/metrics?by=variant", "/attempts"]
)
def test_pages_say_which_passes_are_not_confirmed(client: TestClient, page: str) -> None:
    text = client.get(page).text
    if page == "/attempts":
        assert "</span> pass, weak</span>" in text
        assert "</span> pass</span>" in text
    else:
        assert re.search(r"passes: \d+ confirmed, \d+ weak", text)


def test_side_by_side_opens_two_attempts_that_differ() -> None:
    """The first repeats of both pass: what differs is the second one."""

    def repeat(name: str, value: float) -> Repeat:
        return Repeat(id=name, result="pass" if value else "fail", value=value)

    first = (repeat("a1", 1.0), repeat("a2", 1.0))
    second = (repeat("b1", 1.0), repeat("b2", 0.0))
    assert most_different(first, second) == ("a1", "b2")
    assert most_different(first, (Repeat(id="b1", result="unscored"),)) == ("a1", "b1")
    assert most_different(first, ()) is None


def test_two_attempts_at_one_task_are_told_apart_by_their_variants(client: TestClient) -> None:
    page = client.get("/compare?attempt=x00000000000&attempt=x00000000002").text
    assert [part.split("</a>")[0].rpartition(">")[2] for part in page.split("<h2><span")[1:]] == [
        "steady",
        "hasty",
    ]


def test_two_ticked_attempts_show_the_diff_of_their_diffs(client: TestClient) -> None:
    page = f"/compare?attempt={SPIRAL}&attempt={PASSED}"
    two = read(client, f"/api{page}", CompareView).two
    assert (
        two.pair.sentence == "On the same task, missing-cent, spiraller failed and closer passed."
    )
    assert [file.state for file in two.pair.files] == ["same"]
    text = client.get(page).text
    assert "the same in both" in text
    assert f"closeloop compare attempt:{SPIRAL} attempt:{PASSED}" in text
    assert client.get(f"/compare?attempt={SPIRAL}").status_code == 400
    assert client.get(f"/compare?attempt={SPIRAL}&attempt={SEALED}").status_code == 404
    assert client.get(f"/compare?attempt={SPIRAL}&attempt=nobody").status_code == 404


def test_groups_that_share_no_task_are_compared_and_called_observational(
    client: TestClient,
) -> None:
    page = "/compare?variants=steady&variants=closer&score=findings"
    view = read(client, f"/api{page}", CompareView)
    assert view.pairs[0].versus.observational
    assert view.pairs[0].tasks == ()
    text = client.get(page).text
    assert "They share no task" in text
    assert "did different work, and there is not enough data to say which did better:" in text


def test_a_comparison_of_nothing_says_what_to_do(client: TestClient) -> None:
    assert "Choose what to compare it with" in client.get("/compare?variants=steady").text
    refused = client.get("/compare?variants=steady&variants=nobody")
    assert refused.status_code == 400
    assert "No variant named &#39;nobody&#39;" in refused.text
    assert refused.text.count('<select name="variants">') >= 2, "others can be chosen"
    assert client.get("/api/compare?variants=steady&variants=nobody").json().keys() == {"message"}
    assert client.get("/compare?" + "&".join(f"variants={n}" for n in range(9))).status_code == 400


def test_an_experiment_tells_how_far_it_is(client: TestClient) -> None:
    view = read(client, f"/api/experiments/{EXPERIMENT[:5]}", ExperimentView)
    now, course = view.now, view.now.course
    assert (course.done, course.total, course.running, course.state) == (31, 32, 1, "running")
    assert now.seconds_left is not None
    assert now.ends.passed + now.ends.failed == 31
    assert len(now.failed) == now.ends.failed
    assert now.verdict is not None
    text = client.get(f"/experiments/{EXPERIMENT}").text
    assert text.index("is better than") < text.index("Tasks and variants")
    assert client.get("/experiments/nobody").status_code == 404


def test_an_experiment_tells_what_each_variant_costs(client: TestClient) -> None:
    """Per attempt and per passed task: `hasty` passes four of its fifteen."""
    view = read(client, f"/api/experiments/{EXPERIMENT}", ExperimentView)
    assert view.now is not None
    spent = {
        (line.figure.group["variant"].split()[0], line.metric.name): line.figure.value
        for line in view.now.scores.spent
    }
    assert spent["steady", "cost"] == pytest.approx(0.01)
    assert spent["hasty", "cost per passed task"] == pytest.approx(0.15 / 4)
    assert spent["hasty", "time"] == 90
    page = client.get(f"/experiments/{EXPERIMENT}").text
    assert "Per passed task" in page
    assert 'data-label="Median time"' in page


def test_the_list_of_experiments_says_which_variant_is_better(client: TestClient) -> None:
    view = read(client, "/api/experiments", ExperimentsView)
    pair = view.verdicts[EXPERIMENT]
    own = read(client, f"/api/experiments/{EXPERIMENT}", ExperimentView).now.verdict
    assert pair.comparison == own.pairs[0].comparison
    assert "is better than" in client.get("/experiments").text


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("agent:codex", "Codex"),
        ("agent:claude-code,2026-11-01..", "Claude Code, since 2026-11-01"),
        ("2026-11-01..2026-11-08", "2026-11-01 to 2026-11-08"),
        ("repo:https://github.com/acme/billing.git", "billing"),
        ("agent:our-own", "our-own"),
        ("careful, but slow", "careful, but slow"),
        ("v1..v2", "v1..v2"),
    ],
)
def test_a_side_of_a_comparison_is_called_as_people_call_it(name: str, called: str) -> None:
    assert name_side(name) == called


def test_sides_that_share_no_task_show_what_each_comes_to(client: TestClient) -> None:
    page = "/compare?variants=steady&variants=closer&score=findings"
    first, second = read(client, f"/api{page}", CompareView).figures
    assert [line.metric for line in first.lines] == [line.metric for line in second.lines]
    assert "Both in numbers" in client.get(page).text
    assert read(client, f"/api{TWO}", CompareView).figures == ()


def test_an_experiment_without_a_name_is_called_by_what_it_compares() -> None:
    with open_store(":memory:") as store:
        fill_boards(store)
        made = store.list_experiments()[0]
        store.save_experiment(msgspec.structs.replace(made, name=None))
        with served(store) as client:
            assert "steady against hasty</a>" in client.get("/experiments").text
            page = client.get(f"/experiments/{EXPERIMENT}").text
            assert "<h1>steady against hasty</h1>" in page
            assert "<title>steady against hasty" in page


def test_a_plan_shows_every_try_and_what_was_never_begun(client: TestClient) -> None:
    text = client.get(f"/plans/{PLAN}").text
    assert text.count("feedback ignored") == 2
    assert "0.90, 2 tries" in text
    assert "after api, pages" in text
    assert client.get("/plans/nobody").status_code == 404


def test_plans_are_sorted_by_what_is_asked() -> None:
    with open_store(":memory:") as store:
        fill_boards(store)
        for number, cost in ((1, 0.1), (2, 9.0), (3, None)):
            part = SubtaskSpec(id="all", prompt="Do it.")
            made = Orchestration(
                id=f"pl{number}", at=START + timedelta(days=number), request=f"Do {number}.",
                tasks=(part,), worker="steady",
            )  # fmt: skip
            store.plans.save_plan(made)
            if cost is not None:
                ending = OrchestrationResult(
                    plan=made.id, at=made.at, passed=True, summary="Done.", seconds=60.0 * number,
                    usage=Usage(cost=cost),
                )  # fmt: skip
                store.plans.save_ending(made, ending)
        client = served(store)

        def ids(sort: str) -> list[str]:
            return [one["id"] for one in client.get(f"/api/plans?sort={sort}").json()["plans"]]

        assert ids("newest") == ["pl3", "pl2", "pl1", PLAN]
        assert ids("cost")[:3] == ["pl2", PLAN, "pl1"]
        assert ids("time")[:3] == [PLAN, "pl2", "pl1"]
        assert ids("tries")[0] == PLAN
        assert 'aria-sort="descending"' in client.get("/plans?sort=cost").text
        assert client.get("/plans?sort=nothing").status_code == 400


def test_a_plan_that_nobody_works_on_any_more_is_stopped() -> None:
    with open_store(":memory:") as store:
        tasks = (SubtaskSpec(id="one", prompt="Do it."),)
        begun = Orchestration(id="0123", at=START, request="Build.", tasks=tasks, worker="w")
        store.plans.save_plan(begun)
        client = served(store)

        def states() -> list[bool]:
            texts = [client.get(path).text for path in ("/plans", "/plans/0123")]
            return [">running<" in text and "stopped" not in text for text in texts]

        assert store.claim_job(begun.job, "elsewhere:1:7", 3600)
        assert states() == [True, True]
        first = client.get("/").text
        assert 'href="/plans/0123"' in first
        assert "1 task, 0 tries so far" in first
        assert "Nothing has happened yet" not in first
        store.release_jobs("elsewhere:1:7")
        assert states() == [False, False]
        assert "/plans/0123" not in client.get("/").text
        assert "closeloop orchestrate --resume 0123" in client.get("/plans/0123").text


def test_a_task_is_shown_as_it_was_before_an_edit_that_was_taken_back() -> None:
    first = Task(id="t", prompt="Do it.", digest="d1", grading="g")
    edit = Task(id="t", prompt="Do it twice.", digest="d2", grading="g", tags=("edited",))
    with open_store(":memory:") as store:
        for one in (first, edit, first):
            store.save_task(one)
        client = served(store)
        assert "Do it twice." not in client.get("/tasks/t").text
        assert "edited" not in client.get("/tasks").text


def test_a_page_of_an_odd_name_leads_to_its_record() -> None:
    name = "50% #1 ü"
    with open_store(":memory:") as store:
        store.save_task(Task(id=name, prompt="Do it.", digest="d", grading="g"))
        client = served(store)
        [link] = re.findall(r'href="(/api/[^"]+)"', client.get(f"/tasks/{quote(name)}").text)
        assert link == f"/api/tasks/{quote(name)}"
        assert client.get(link).json()["task"]["id"] == name


def test_tasks_stand_to_the_right_of_what_they_wait_for() -> None:
    drawn = draw_plan_graph({"a": (), "b": ("a",), "c": ("a", "b"), "d": ("nobody",)})
    assert drawn is not None
    across = {box.task: box.x for box in drawn.boxes}
    assert across["a"] == across["d"] < across["b"] < across["c"]
    assert len(drawn.lines) == 3


def test_tasks_that_wait_for_each_other_are_drawn_all_the_same() -> None:
    assert set(task_depths({"a": ("b",), "b": ("a",), "c": ("c",)})) == {"a", "b", "c"}
    assert draw_plan_graph({"a": ("b",), "b": ("a",)}) is not None
    assert draw_plan_graph({}) is None


def test_a_pull_request_that_nobody_told_of_is_not_there(client: TestClient) -> None:
    assert client.get(f"/pulls/{REPO}/99").status_code == 404
    assert client.get("/pulls/nobody/nothing/1").status_code == 404
    assert "Round 1" in client.get(f"/pulls/{REPO}/{PULL}").text


def test_a_prompt_is_held_against_the_one_before(client: TestClient) -> None:
    text = client.get(f"/prompts/{NEW}").text
    assert '<span class="minus">-Be careful.' in text
    assert '<span class="plus">+Be quick.' in text
    assert client.get("/prompts/nobody").status_code == 404


# The review queue


def test_a_prompt_stands_beside_its_results_by_name(client: TestClient) -> None:
    """`Be quick.` ran last; every other of its tasks fails."""
    text = client.get("/prompts").text
    assert text.index(">Be quick.</a>") < text.index(">Be careful.</a>")
    row = next(one for one in text.split("<li ") if ">Be quick.</a>" in one)
    assert "pass rate <strong" in row
    assert "25 %" in row


def test_a_prompt_says_what_it_changed_and_whether_results_improved() -> None:
    with open_store(":memory:") as store:
        fill_boards(store)
        newer = PromptVersion(id="c" * 64, text="Be quick.\nAsk first.\nplain words\n")
        store.save_prompt(newer)
        store.save_variant(
            Variant(digest="vasking", name="asking", agent="builtin", prompt=newer.id)
        )
        for place, task in enumerate(TASKS, 40):
            attempt(store, f"y{place:011d}", (task, "asking", 1), "plain words", good=True)
        client = served(store)
        change = client.get("/api/prompts").json()["changes"][newer.id]
        assert (change["previous"], change["added"]) == (NEW, 1)
        assert change["effect"]["metric"] == "pass rate"
        text = client.get("/prompts").text
        assert "pass rate 27 % of 15 before, 100 % of 8 after" in text
        assert "Results were <strong>better</strong> after 1 new version" in text
        page = client.get(f"/prompts/{newer.id}").text
        link = f'<a href="/attempts?prompt={newer.id}">8'
        assert (f"{link} attempts</a>" in text, f"{link}</a>" in page) == (True, True)
        listed = client.get(f"/api/attempts?prompt={newer.id[:12]}").json()
        assert {line["row"]["variant_name"] for line in listed["lines"]} == {"asking"}
        assert (listed["count"], listed["asked"]["prompt"]) == (8, newer.id)
        assert "Results were better with it" in page
        assert page.index("Results were better with it") < page.index("+Ask first.")


def test_a_prompt_for_another_purpose_is_no_version_of_the_one_before() -> None:
    """Both are the same agent's; the third continues the first."""
    rules = "".join(f"Rule {number}: keep it.\n" for number in range(20))
    texts = (
        ("d", f"Work on the code.\n{rules}"),
        ("e", "Review the change.\n" + "".join(f"Look at {n}.\n" for n in range(20))),
        ("f", f"Work on the code, please.\n{rules}"),
        ("g", "Name three jokes about tea, and pick the best of them."),
        ("h", "Answer only with the number of the item that fits."),
    )
    with open_store(":memory:") as store:
        fill_boards(store)
        for place, (letter, text) in enumerate(texts):
            digest = f"v{letter}"
            store.save_prompt(PromptVersion(id=letter * 64, text=text))
            made = Variant(digest=digest, name="several", agent="codex", prompt=letter * 64)
            store.save_variant(made)
            attempt(store, f"z{40 + place:011d}", ("task-1", letter, 1), "words", good=True)
        changes = served(store).get("/api/prompts").json()["changes"]
        assert changes["f" * 64]["previous"] == "d" * 64
        assert changes["f" * 64]["added"] == 1
        assert not {letter * 64 for letter in "egh"} & changes.keys()


@pytest.fixture
def queue() -> Iterator[TestClient]:
    with open_store(":memory:") as opened:
        fill_boards(opened)
        with served(opened) as client:
            client.app_store = opened  # type: ignore[attr-defined]
            yield client


ANSWERS = {"contained": "yes", "outside": "none", "approach": "no", "merge": "no"}


def send(client: TestClient, path: str = "/review", **said: Any) -> Any:
    found = re.search(r'name="csrf" value="(\w+)".*?name="item" value="([^"]+)"', _page(client))
    assert found is not None
    data = {"csrf": found[1], "item": found[2], **said}
    return client.post(path, data=data, headers={"origin": HERE}, follow_redirects=False)


def _page(client: TestClient) -> str:
    return client.get("/review").text


def test_an_answer_is_kept_and_the_next_change_comes(queue: TestClient) -> None:
    first = read(queue, "/api/review", ReviewView)
    said = {**ANSWERS, "quality": "partly", "tags": ["scope creep"], "notes": "Too much."}
    assert send(queue, **said).headers["location"] == "/review"
    kept = queue.app_store.reviews.list_reviews(item=first.item.id)[0]  # type: ignore[attr-defined]
    assert (kept.contained, kept.outside, kept.approach, kept.merge) == (True, "none", False, False)
    assert (kept.tags, kept.notes) == (("scope creep",), "Too much.")
    assert kept.dimensions == {"quality": "partly"}
    assert (kept.state, kept.reviewer) == ("done", "somebody")
    after = read(queue, "/api/review", ReviewView)
    assert after.item.id != first.item.id
    assert after.reviewed == 1


def test_an_answer_that_leaves_a_question_open_is_asked_again(queue: TestClient) -> None:
    first = read(queue, "/api/review", ReviewView).item.id
    answer = send(queue, contained="yes", notes="Hm.", tags="nonsense")
    assert answer.headers["location"] == "/review?more=true"
    text = queue.get("/review?more=true").text
    assert "Answer all required questions" in text
    assert 'value="yes" data-key="y" checked' in text
    assert "Hm.</textarea>" in text
    assert read(queue, "/api/review", ReviewView).item.id == first


def test_answers_are_kept_while_they_are_given(queue: TestClient) -> None:
    assert send(queue, "/review/draft", contained="no").status_code == 204
    draft = read(queue, "/api/review", ReviewView).draft
    assert (draft.contained, draft.merge) == (False, None)


def test_a_draft_that_comes_late_changes_nothing(queue: TestClient) -> None:
    first = read(queue, "/api/review", ReviewView).item.id
    send(queue, **ANSWERS)
    send(queue, "/review/draft", item=first, contained="no")
    kept = queue.app_store.reviews.list_reviews(item=first)[0]  # type: ignore[attr-defined]
    assert (kept.state, kept.contained) == ("done", True)


def test_answers_about_nothing_are_not_kept(queue: TestClient) -> None:
    assert send(queue, "/review/draft", item="nobody", contained="no").status_code == 204
    assert send(queue, item="a/b#12", **ANSWERS).headers["location"] == "/review?more=true"
    assert read(queue, "/api/review", ReviewView).item.id not in ("nobody", "a/b#12")


def test_answers_come_as_json_too(queue: TestClient) -> None:
    first = read(queue, "/api/review", ReviewView).item.id
    found = re.search(r'name="csrf" value="(\w+)"', _page(queue))
    assert found is not None
    headers = {"origin": HERE, "x-csrf-token": found[1]}
    said = {"item": first, "contained": True, "outside": "none", "approach": True, "merge": True}
    open_ = {"item": first, "contained": True}
    for body, status in (([], 400), (open_, 400), ({**said, "merge": "x"}, 400), (said, 200)):
        assert queue.post("/api/review", json=body, headers=headers).status_code == status
    kept = queue.app_store.reviews.list_reviews(item=first)[0]  # type: ignore[attr-defined]
    assert (kept.merge, kept.reviewer) == (True, "somebody")


def test_nobody_answers_in_the_name_of_others_or_from_elsewhere(queue: TestClient) -> None:
    item = read(queue, "/api/review?caller=ann", ReviewView)
    assert item.reviewer == "somebody"
    elsewhere = {"origin": "http://evil.example"}
    data = {"item": item.item.id, **ANSWERS}
    assert queue.post("/review", data=data, headers=elsewhere).status_code == 403
    assert queue.post("/review", data=data, headers={"origin": HERE}).status_code == 403
    assert queue.app_store.reviews.list_reviews(item=item.item.id) == []  # type: ignore[attr-defined]


def test_what_is_held_out_is_not_put_before_anybody(queue: TestClient) -> None:
    items = set()
    for _ in range(30):
        view = read(queue, "/api/review", ReviewView)
        if view.item is None:
            break
        items.add(view.item.id)
        assert send(queue, **ANSWERS).status_code == 303
    assert view.item is None
    assert "The review queue is empty" in _page(queue)
    assert "closeloop metrics --score would-merge --group-by variant" in _page(queue)
    assert SEALED not in items
    assert len(items) > 20


# Memory


def decide(client: TestClient, **said: str) -> Any:
    found = re.search(r'name="csrf" value="(\w+)"', client.get("/memory").text)
    assert found is not None
    data = {"csrf": found[1], **said}
    return client.post("/memory", data=data, headers={"origin": HERE}, follow_redirects=False)


def test_a_person_accepts_a_rule_and_says_what_restates_it(queue: TestClient) -> None:
    kept = queue.app_store.memory  # type: ignore[attr-defined]
    assert decide(queue, rule="rule0", state="active").status_code == 303
    rules = {rule.id: rule for rule in kept.list_rules()}
    assert (rules["rule0"].state, rules["rule0"].by) == ("active", "somebody")
    assert decide(queue, remark="c2", state="denied").status_code == 303
    assert {one.key: one.state for one in kept.list_repeats()}["c2"] == "denied"


def propose_again(client: TestClient) -> RepeatedRemark:
    """A likely repeat whose rule waits to be accepted."""
    kept = client.app_store.memory  # type: ignore[attr-defined]
    likely: RepeatedRemark = next(one for one in kept.list_repeats() if one.state == "candidate")
    (rule,) = (one for one in kept.list_rules() if one.id == likely.rule)
    kept.save_rule(replace(rule, state="proposed"))
    return likely


def test_one_button_confirms_a_repeat_and_accepts_its_rule(queue: TestClient) -> None:
    likely = propose_again(queue)
    assert ">Same, accept the rule</button>" in queue.get("/memory").text
    answer = decide(queue, remark=likely.key, of=likely.rule, state="accepted")
    assert answer.status_code == 303
    kept = queue.app_store.memory  # type: ignore[attr-defined]
    assert {rule.id: rule.state for rule in kept.list_rules()}[likely.rule] == "active"
    decided = {(one.key, one.rule): one.state for one in kept.list_repeats()}
    assert decided[likely.key, likely.rule] == "confirmed"


def test_a_confirmed_repeat_of_a_proposed_rule_offers_to_accept_it(queue: TestClient) -> None:
    likely = propose_again(queue)
    assert decide(queue, remark=likely.key, of=likely.rule, state="confirmed").status_code == 303
    assert ">Accept the rule</button>" in queue.get("/memory").text


def test_a_person_overrules_a_model_that_confirmed_a_repeat(queue: TestClient) -> None:
    kept = queue.app_store.memory  # type: ignore[attr-defined]
    likely = propose_again(queue)
    kept.save_repeats([replace(likely, state="confirmed", by="model", who="careful")])
    page = queue.get("/memory").text
    assert "by careful</span>" in page
    row = next(row for row in page.split("<tr>") if "by careful" in row)
    assert ">Different</button>" in row
    assert "data-press" not in row, "keys are for what nobody decided"
    answer = decide(queue, remark=likely.key, of=likely.rule, state="denied")
    assert answer.status_code == 303
    decided = {(one.key, one.rule): (one.state, one.by) for one in kept.list_repeats()}
    assert decided[likely.key, likely.rule] == ("denied", "person")


def test_nothing_else_is_decided(queue: TestClient) -> None:
    kept = queue.app_store.memory  # type: ignore[attr-defined]
    before = kept.list_rules(), kept.list_repeats()
    for said in ({}, {"rule": "rule0", "state": "x"}, {"remark": "c2", "state": "x"}):
        assert decide(queue, **said).status_code == 400
    assert decide(queue, rule="nobody", state="active").status_code == 400
    data = {"rule": "rule0", "state": "active"}
    assert queue.post("/memory", data=data, headers={"origin": HERE}).status_code == 403
    assert (kept.list_rules(), kept.list_repeats()) == before


# Scores that programs send


def test_scores_are_sent_all_or_none(queue: TestClient) -> None:
    found = re.search(r'name="csrf" value="(\w+)"', _page(queue))
    assert found is not None
    queue.headers |= {"origin": HERE, "x-csrf-token": found[1]}
    good = {"attempt": SPIRAL, "name": "quality", "value": 0.5, "note": "<b>so</b>"}
    answer = queue.post("/api/scores", json={"scores": [good], "source": "code"})
    assert (answer.status_code, answer.json()["added"]) == (200, 1)
    assert queue.post("/api/scores", json={"scores": [good], "source": "code"}).json()["added"] == 0
    for body, says in (
        ({"scores": []}, "No score was given"),
        ({"scores": [good, {**good, "name": "luck"}]}, "luck"),
        ({"scores": [{**good, "value": 7}]}, "out of range"),
        ({"scores": [{**good, "attempt": "zz"}]}, "No attempt begins with"),
        ({"scores": [{**good, "by": "somebody else"}]}, "only submit their own"),
        ({"scores": "none"}, "These are not valid scores"),
        ({"scores": [good], "source": "tests"}, "These are not valid scores"),
    ):
        refused = queue.post("/api/scores", json=body)
        assert refused.status_code == 400, body
        assert says in refused.json()["message"]
    assert queue.post("/api/scores", content=b"{}").status_code == 415


@pytest.mark.parametrize(
    ("url", "is_link"),
    [
        ("https://github.com/acme/billing/pull/7", True),
        ("https://git.acme.example:8443/acme/billing/-/merge_requests/7", True),
        ("https://github.com/evil/billing/pull/7", False),
        ("https://evil.example/?x=/acme/billing/pull/7", False),
        ("http://github.com/acme/billing/pull/7", False),
        ("javascript:alert(1)//acme/billing/pull/7", False),
        (None, False),
    ],
)
def test_only_the_address_of_a_pull_request_becomes_a_link(url: str | None, is_link: bool) -> None:
    assert pull_request_link(url, "acme/billing") == (url if is_link else None)


def test_cost_is_added_up_from_every_side_and_unknown_is_said(client: TestClient) -> None:
    view = client.get("/api/cost").json()["numbers"]
    totals = {one["metric"]["name"]: one["figure"] for one in view["totals"]}
    assert view["unknown"] == totals["cost in all"]["more"].get("unknown", 0) > 0
    assert [side["by"] for side in view["sides"]] == ["week", "agent", "model", "repo"]
    sums = [
        sum(row["cells"][0]["figure"]["value"] for row in side["rows"]) for side in view["sides"]
    ]
    assert sums == [pytest.approx(totals["cost in all"]["value"])] * 4
    one = view["session"]
    assert one["mean"] * one["priced"] == pytest.approx(totals["cost in all"]["value"])
    assert 0.1 <= one["dearest_share"] <= 1
    page = client.get("/cost").text
    assert "no known cost" in page
    assert (format_week("2026-W25"), format_week("–")) == ("15 Jun 2026", "–")
    assert 'data-kind="bars"' in page


def test_the_overview_narrows_to_the_time_that_is_chosen(client: TestClient) -> None:
    chosen = read(client, "/api/overview?since=2026-03-05&until=2026-03-07", OverviewView)
    everything = read(client, "/api/overview", OverviewView)
    assert chosen.numbers.glance.label == "In this time range"
    assert 0 < chosen.numbers.glance.period.sessions < everything.numbers.attempts
    assert chosen.numbers.attempts == chosen.numbers.glance.period.sessions
    assert chosen.numbers.verdict == everything.numbers.verdict


def test_an_empty_store_offers_three_ways_to_start() -> None:
    with open_store(":memory:") as empty, served(empty) as client:
        page = client.get("/").text
    assert page.count('<section class="card"><h2>') == 3
    for command in ("closeloop import", "closeloop import --github owner/name", "closeloop run"):
        assert f"<copy-button><code>{command}</code></copy-button>" in page


def test_a_metric_is_drawn_with_its_bounds_and_what_was_first_seen_when(client: TestClient) -> None:
    view = client.get("/api/metrics?metric=pass+rate&by=variant").json()
    (chart,) = view["numbers"]["charts"]
    assert {point["name"] for point in chart["points"]} >= {"steady", "hasty"}
    assert all(point["low"] <= point["value"] <= point["high"] for point in chart["points"])
    assert client.get("/metrics?by=nothing").status_code == 400
    assert client.get("/metrics?metric=nobody").status_code == 400


def test_what_a_gate_saw_is_kept_and_shown() -> None:
    with open_store(":memory:") as store:
        fill_boards(store)
        assert "No gate has run yet" in served(store).get("/gates").text
        worse = MetricDifference(
            variant="hasty", metric="passed", verdict="worse", tasks=8,
            before=1.0, now=0.5, low=-0.9, high=-0.1,
        )  # fmt: skip
        report = GateReport(
            baseline=None,
            experiment=EXPERIMENT,
            passed=False,
            reasons=("hasty: passed is worse",),
            differences=(worse,),
            coverage=1.0,
            passes={"confirmed": 5, "weak": 1},
        )
        store.experiments.save_gate_report(report, START)
        (kept,) = served(store).get("/api/gates").json()["gates"]
        assert kept["run"]["report"]["experiment"] == EXPERIMENT
        page = served(store).get("/gates").text
        assert "✗ failed" in page
        assert "−90 … −10 points" in page
        assert "Passes: 5 confirmed, 1 weak." in page


def test_three_hundred_rules_are_paged_and_can_be_searched() -> None:
    with open_store(":memory:") as store:
        for number in range(300):
            rule = TeamRule(
                id=f"r{number:03}", text=f"Keep rule {number:03}.", repo=REPO, state="active",
                since=START,
            )  # fmt: skip
            store.memory.save_rule(rule)
        client = served(store)
        view = client.get("/api/memory").json()
        assert (len(view["rules"]), view["found"], view["pages"]) == (30, 300, 10)
        last = client.get("/api/memory?page=10").json()
        assert last["rules"][-1]["rule"]["text"] == "Keep rule 299."
        assert "page 10 of 10" in client.get("/memory?page=10").text
        found = client.get("/api/memory?q=RULE+123").json()
        assert [one["rule"]["id"] for one in found["rules"]] == ["r123"]


def test_what_goes_into_agents_md_has_its_origin_and_its_cost(client: TestClient) -> None:
    view = client.get("/api/memory/preview").json()
    assert view["repo"] == REPO
    assert view["preview"]["hints"], view
    assert all(one["tokens"] and one["why"] for one in view["preview"]["hints"])
    page = client.get("/memory/preview").text
    assert f"closeloop learn context --repo {REPO} --into AGENTS.md --write" in page


def test_tasks_come_in_the_order_of_their_numbers() -> None:
    with open_store(":memory:") as store:
        for number in (10, 1, 0, 2):
            name = f"t{number}"
            store.save_task(Task(id=name, prompt="Do it.", digest=f"d{name}", grading=f"g{name}"))
        listed = [one["id"] for one in served(store).get("/api/tasks").json()["tasks"]]
        assert listed == ["t0", "t1", "t2", "t10"]


def test_tasks_are_sorted_by_how_often_they_were_solved(client: TestClient) -> None:
    tasks = client.get("/api/tasks?sort=passed").json()["tasks"]
    rates = [one["rate"]["hits"] / one["rate"]["of"] if one.get("rate") else 2.0 for one in tasks]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    assert client.get("/tasks?sort=nothing").status_code == 400


def test_an_experiment_is_judged_alike_in_the_list_and_on_its_page() -> None:
    """One that shares the attempts of another counts only its own repeats, also after a check."""
    with open_store(":memory:") as store:
        fill_boards(store)
        digests = tuple(f"d{task}" for task in TASKS)
        short = Experiment(id="e2", tasks=digests, variants=("vsteady", "vhasty"), repeats=1)
        store.save_experiment(short)
        client = served(store)
        listed = read(client, "/api/experiments", ExperimentsView).verdicts
        for name in (EXPERIMENT, "e2"):
            now = read(client, f"/api/experiments/{name}", ExperimentView).now
            assert listed[name].comparison.here == now.verdict.pairs[0].comparison.here
        assert listed["e2"].comparison.here != listed[EXPERIMENT].comparison.here


def test_repeats_that_failed_are_one_line_of_an_experiment(client: TestClient) -> None:
    page = client.get(f"/experiments/{EXPERIMENT}").text
    failed = page[page.index("What failed, and why") :].split("</table>")[0]
    now = read(client, f"/api/experiments/{EXPERIMENT}", ExperimentView).now
    tasks = {(row.task, row.variant_name) for row in now.failed}
    assert failed.count("<tr>") - 1 == len(tasks) < len(now.failed)
    assert all(f'href="/attempts/{row.id}"' in failed for row in now.failed)


def test_cost_counts_the_sessions_that_the_list_has(client: TestClient) -> None:
    """Not a pull request whose work nobody recorded."""
    listed = client.get("/api/attempts").json()["total"]
    assert client.get("/api/cost").json()["numbers"]["attempts"] == listed


def test_a_prompt_of_work_at_an_unknown_time_was_used_and_follows_no_other() -> None:
    with open_store(":memory:") as store:
        for name in (OLD, NEW):
            store.save_prompt(PromptVersion(id=name, text="Be careful."))
            store.save_variant(Variant(digest=name, name="v", agent="builtin", prompt=name))
            made = Attempt(id=name[:12], origin="experiment", variant=name, exit="finished")
            store.save_attempt(AttemptResult(attempt=made))
        client = served(store)
        page = client.get("/prompts").text
        assert "never used" not in page
        assert "time unknown" in page
        assert client.get("/api/prompts").json()["changes"] == {}
