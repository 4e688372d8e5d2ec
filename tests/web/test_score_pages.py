"""Scores on pages: the same numbers as the commands have, each with its source, n and coverage."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pytest
from dashboard_store import PASSED, SPIRAL, START, fill
from starlette.testclient import TestClient

from closeloop.records.attempt import Attempt, Usage
from closeloop.records.estimate import CompareReport, Metric, MetricsReport
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.score import Score, ScoreSettings, ScoreSummary
from closeloop.records.settings import Settings
from closeloop.records.task import Experiment, Task, Variant
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.pages.attempts import AttemptsView
from closeloop.web.pages.compare import CompareView, _build_repeat
from closeloop.web.pages.experiments import ExperimentView
from closeloop.web.pages.metrics import AttemptScoresView, ScoresView
from closeloop.web.pages.overview import OverviewView
from command_line import typed

T = TypeVar("T")
HERE = "http://127.0.0.1:4318"
EXPERIMENT = "e22222222222"
TASKS = 7
DECLARED = {
    "readability": ScoreSettings(kind="ordinal", low=1, high=5, better="more"),
    "review-minutes": ScoreSettings(kind="amount", unit="min", better="less"),
    "verdict": ScoreSettings(kind="label", labels=("ship", "fix")),
}
TOML = """
[scores.readability]
kind = "ordinal"
low = 1
high = 5
better = "more"

[scores.review-minutes]
kind = "amount"
unit = "min"
better = "less"

[scores.verdict]
kind = "label"
labels = ["ship", "fix"]
"""


def give(store: Store, attempt: str, source: str = "person", **values: float | str) -> None:
    """What somebody says of an attempt."""
    store.scores.add_scores(
        [
            Score(
                attempt=attempt,
                name=name.replace("_", "-"),
                value=None if isinstance(value, str) else value,
                label=value if isinstance(value, str) else None,
                source=source,  # type: ignore[arg-type]
                by="ann",
                at=START,
                note="as I see it",
            )
            for name, value in values.items()
        ]
    )


def fill_prompts(store: Store) -> None:
    """Seven tasks without a check, twice by each of two variants; the last repeat is not reviewed.

    People would merge all that `b` did and, of `a`, what it did for the first task.
    """
    for name in ("a", "b"):
        store.save_variant(Variant(digest=f"v{name}", name=name, agent="builtin"))
    tasks = tuple(f"t{number}" for number in range(TASKS))
    for task in tasks:
        store.save_task(Task(id=task, prompt="Do it.", digest=f"d{task}", grading=f"g{task}"))
    store.save_experiment(
        Experiment(
            id=EXPERIMENT,
            tasks=tuple(f"d{task}" for task in tasks),
            variants=("va", "vb"),
            repeats=2,
        )
    )
    for place, task in enumerate(tasks):
        for name in ("a", "b"):
            for number in (1, 2):
                attempt = f"{name}{task}{number}"
                began = START + timedelta(hours=place)
                store.save_attempt(
                    AttemptResult(
                        attempt=Attempt(
                            id=attempt,
                            origin="experiment",
                            task=task,
                            task_digest=f"d{task}",
                            variant=f"v{name}",
                            experiment=EXPERIMENT,
                            number=number,
                            started=began,
                            ended=began + timedelta(seconds=60 + place),
                            exit="finished",
                            usage=Usage(cost=0.5),
                        )
                    )
                )
                if (place, name, number) != (TASKS - 1, "b", 2):
                    merge = float(name == "b" or place == 0)
                    minutes = 10.0 if name == "a" else 4.0 + place + number
                    give(store, attempt, would_merge=merge, review_minutes=minutes)
                    give(store, attempt, readability=2 + (name == "b"), verdict="ship")
                    give(store, attempt, source="judge", quality=0.25 * number)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "closeloop.toml").write_text(TOML)
    (folder / ".closeloop").mkdir()
    with open_store(str(folder / ".closeloop/closeloop.db")) as store:
        fill_prompts(store)
    return folder


@pytest.fixture(scope="module")
def client(project: Path) -> Iterator[TestClient]:
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        desk = PageContext(store, Settings(scores=DECLARED))
        desk.metric_cache.patience = None
        app = build_web_app(store, token=None, page_context=desk)
        with TestClient(app, base_url=HERE, headers={"accept": "text/html"}) as opened:
            yield opened


def read(client: TestClient, address: str, kind: type[T]) -> T:
    answer = client.get(f"/api{address}")
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=kind)


def text(client: TestClient, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return " ".join(answer.text.split())


def printed(project: Path, kind: type[T], *arguments: str) -> T:
    return msgspec.json.decode(typed(project, *arguments, "--json").stdout, type=kind)


def round_numbers(value: Any) -> Any:
    """A record with twelve digits of each number: sums over another order differ in the last."""
    if isinstance(value, msgspec.Struct):
        return round_numbers(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return {name: round_numbers(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [round_numbers(one) for one in value]
    return f"{value:.12g}" if isinstance(value, float) else value


# Which scores there are


def test_the_page_of_scores_has_what_the_command_lists(client: TestClient, project: Path) -> None:
    listed = printed(project, dict[str, Any], "score", "list")
    scores = read(client, "/scores", ScoresView).scores
    assert scores == msgspec.convert(listed["items"], tuple[ScoreSummary, ...])
    assert len(scores) == listed["total"]
    page = text(client, "/scores")
    assert 'href="/compare?score=would-merge"' in page
    assert 'href="/attempts?score=review-minutes"' in page
    assert "27" in page


# The list


def test_a_list_has_a_column_for_each_score(client: TestClient) -> None:
    names = ("would-merge", "verdict", "quality", "cost", "resolved")
    query = "&".join(f"score={name}" for name in names)
    view = read(client, f"/attempts?task=t6&{query}", AttemptsView)
    cells = {line.row.id: [one.labels or one.value for one in line.scores] for line in view.lines}
    assert cells == {
        "at61": [0.0, ("ship",), 0.25, 0.5, None],
        "at62": [0.0, ("ship",), 0.5, 0.5, None],
        "bt61": [1.0, ("ship",), 0.25, 0.5, None],
        "bt62": [None, None, None, 0.5, None],
    }
    page = text(client, f"/attempts?task=t6&{query}")
    assert '<td data-label="would-merge" class="number">–</td>' in page
    assert '<td data-label="verdict" class="number">ship</td>' in page


@pytest.mark.parametrize(
    ("query", "says"),
    [("score=luck", "luck"), ("&".join(f"score=s{number}" for number in range(7)), "at most 6")],
)
def test_a_score_that_is_none_is_answered_with_one_sentence(
    client: TestClient, query: str, says: str
) -> None:
    for address in (f"/api/attempts?{query}", f"/api/compare?variants=a&variants=b&{query}"):
        answer = client.get(address)
        assert answer.status_code == 400
        assert says in answer.json()["message"]


def test_a_list_measures_nothing() -> None:
    def computed_names(client: TestClient) -> set[str]:
        view = read(client, f"/attempts/{SPIRAL}/scores", AttemptScoresView)
        return {one.definition.name for one in view.computed}

    with open_store(":memory:") as store:
        fill(store)
        client = TestClient(build_web_app(store, token=None), base_url=HERE)
        view = read(client, "/attempts?score=feedback&score=resolved", AttemptsView)
        cells = {line.row.id: [one.value for one in line.scores] for line in view.lines}
        assert cells[SPIRAL] == [None, 0.0]
        assert cells[PASSED] == [None, 1.0]
        assert "feedback" not in computed_names(client)
        client.get(f"/attempts/{SPIRAL}")
        assert "feedback" in computed_names(client)


# One attempt


def test_an_attempt_shows_who_said_what_of_it(client: TestClient) -> None:
    view = read(client, "/attempts/bt01/scores", AttemptScoresView)
    given = {one.definition.name: one for one in view.given}
    assert (given["would-merge"].value, given["would-merge"].by) == (1, "ann")
    assert (given["quality"].source, given["verdict"].label) == ("judge", "ship")
    computed = {one.definition.name: one.value for one in view.computed}
    assert (computed["cost"], computed["seconds"]) == (0.5, 60)
    page = text(client, "/attempts/bt01/scores")
    for said in ("as I see it", 'person <span class="dim">ann</span>', "5 min", "$0.50"):
        assert said in page
    assert "would-merge" in text(client, "/attempts/bt01")


# Compare


@pytest.mark.parametrize(
    "scores",
    [
        (),
        ("would-merge",),
        ("review-minutes", "would-merge", "readability"),
        ("readability",),
        ("judge:quality", "verdict"),
        ("cost",),
        ("seconds", "judge:quality"),
    ],
)
def test_a_comparison_has_the_numbers_of_the_command(
    client: TestClient, project: Path, scores: tuple[str, ...]
) -> None:
    flags = [word for name in scores for word in ("--score", name)]
    told = printed(project, CompareReport, "compare", "a", "b", *flags)
    query = "".join(f"&score={name}" for name in scores)
    view = read(client, f"/compare?variants=a&variants=b{query}", CompareView)
    assert round_numbers(view.report) == round_numbers(told)
    assert view.decides is not None
    assert view.decides.metric.score == (scores or ("would-merge",))[0]
    page = text(client, f"/compare?variants=a&variants=b{query}")
    assert f"Decided by <strong>{view.decides.metric.score}</strong>" in page


def test_tasks_without_a_check_are_compared_by_what_people_would_merge(client: TestClient) -> None:
    """`a` is merged for 1 task of 7, `b` for all; of one attempt of `b` nobody has a say."""
    page = text(client, "/compare")
    better = "<strong>b</strong> is better than <bdi>a</bdi> on these 7 tasks: "
    assert f"{better}would-merge 100 % against 14 %." in page
    assert "given by people" in page
    assert "<strong>b</strong> 7 tasks, " in page
    assert ">14 attempts</a>, 13 scored" in page
    assert '<a class="dot pass" href="/attempts/bt01" title="pass">' in page
    assert '<a class="dot unscored" href="/attempts/bt62" title="unscored">' in page


def test_a_score_that_is_no_rate_is_told_in_its_unit(client: TestClient) -> None:
    """`a` takes 10 minutes each; `b` 5 + place and one more: 8.43 on average, of a difference 1.57.

    The last task of `b` has one repeat, of 11 minutes: (5.5 + 6.5 + … + 10.5 + 11) ÷ 7 = 8.43.
    """
    page = text(client, "/compare?variants=a&variants=b&score=review-minutes")
    assert "less is better" in page
    assert "review-minutes 8.43 min against 10 min" in page
    assert "−1.57 min" in page
    assert '<a class="measured" href="/attempts/bt01">5</a>' in page
    assert "Both pass" not in page


def test_a_score_of_which_less_is_better_has_its_colours_turned(client: TestClient) -> None:
    repeat = _build_repeat("x", 1.0, make_metric("less"))
    assert (repeat.result, _build_repeat("x", 0.0, make_metric("less")).result) == ("fail", "pass")
    assert _build_repeat("x", 0.5, make_metric("more")).result == "between"


def make_metric(better: Literal["more", "less"]) -> Metric:
    return Metric(
        name="m", score="m", family="scores", kind="rate", source="person", says="", better=better
    )


def test_what_nobody_has_scored_is_said_where_it_would_be_compared() -> None:
    with open_store(":memory:") as store:
        for name in ("a", "b"):
            store.save_variant(Variant(digest=f"v{name}", name=name, agent="builtin"))
            attempt = Attempt(
                id=name, origin="experiment", task="t", task_digest="dt", variant=f"v{name}",
                exit="finished",
            )  # fmt: skip
            store.save_attempt(AttemptResult(attempt=attempt))
        store.save_task(Task(id="t", prompt="Do it.", digest="dt", grading="gt"))
        desk = PageContext(store)
        desk.metric_cache.patience = None
        app = build_web_app(store, token=None, page_context=desk)
        client = TestClient(app, base_url=HERE, headers={"accept": "text/html"})
        assert "would-merge is unknown for" in text(client, "/compare")


# Experiments and the overview


def test_an_experiment_shows_what_each_variant_came_to_and_what_awaits_review(
    client: TestClient, project: Path
) -> None:
    """The last repeat of `b` at the last task is for people to look at: 13 of 14 are known."""
    told = printed(
        project, MetricsReport, "metrics", "--group-by", "variant", "--score", "would-merge"
    )
    now = read(client, f"/experiments/{EXPERIMENT}", ExperimentView).now
    assert now is not None
    scores = now.scores
    assert (scores.decides, scores.source, scores.awaiting) == ("would-merge", "person", 1)
    figures = [line.figure for line in scores.lines]
    assert round_numbers(figures) == round_numbers(told.figures)
    assert [(one.value, one.n, one.attempts) for one in figures] == [(1 / 7, 7, 14), (1, 7, 13)]
    assert figures[1].coverage == 13 / 14
    results = {dot.id: dot.result for row in now.grid.rows for cell in row.cells for dot in cell}
    assert (results["at01"], results["at11"], results["bt62"]) == ("pass", "fail", "unscored")
    page = text(client, f"/experiments/{EXPERIMENT}")
    assert '<a href="/review">1 attempt awaits review</a>' in page
    assert "Decided by <strong>would-merge</strong>, given by people." in page
    assert "What failed, and why" not in page, "nothing was checked"


def test_an_experiment_shows_the_scores_that_are_asked_for(client: TestClient) -> None:
    view = read(client, f"/experiments/{EXPERIMENT}?score=readability", ExperimentView)
    assert view.now is not None
    shown = {
        (line.metric.name, line.figure.group["variant"]): line.figure.value
        for line in view.now.scores.lines
    }
    assert {name for name, _ in shown} == {"would-merge", "readability"}
    assert [shown["readability", name] for name in ("a", "b")] == [2, 3]
    answer = client.get(f"/experiments/{EXPERIMENT}?score=nonsense")
    assert answer.status_code == 400
    assert "No score named" in answer.text


def test_the_overview_leads_with_what_people_would_merge(client: TestClient) -> None:
    numbers = read(client, "/overview", OverviewView).numbers
    assert numbers is not None
    assert numbers.verdict is not None
    assert numbers.verdict.report.pairs[0].primary == "would-merge"
    assert [one.name for one in numbers.variants.metrics][:1] == ["would-merge"]
    assert "would-merge 100 % against 14 %." in text(client, "/")
