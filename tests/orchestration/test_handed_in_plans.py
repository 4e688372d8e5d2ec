"""Plans that others carry out: what they hand in fills the same tables, on both engines."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from orchestrated import judge_script, rows
from starlette.testclient import TestClient

from closeloop.cli import main
from closeloop.gateway import Gateway
from closeloop.judges.judge_panel import JudgePanel, open_judge_panel
from closeloop.judges.rubric import load_rubric
from closeloop.records.settings import JudgeSettings, Settings
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from closeloop.web.submissions import SubmissionEvaluator

ANALYSIS = load_rubric("analysis", Path())
MISSING = "There is no price."
CASES = [
    ("Ours is 3 euros", "yes", "Ours is 3 euros", "It is there."),
    ("BEGIN task [0-9a-f]+\nprices\n", "no", "Compare the prices.", MISSING),
    ("BEGIN task", "yes", "It is fine.", "It is there."),
]
HANDED: dict[str, Any] = {
    "request": "A market report.",
    "plan": [
        {"id": "market", "prompt": "Describe the market."},
        {"id": "prices", "prompt": "Compare the prices.", "depends_on": ["market"]},
    ],
    "results": [
        {
            "task": "market",
            "text": "It is fine.",
            "author": "some-model",
            "agent": "crew",
            "seconds": 12.5,
            "usage": {"input_tokens": 900, "output_tokens": 80, "cost": 0.25},
        },
        {"task": "prices", "text": "Nothing yet."},
    ],
}
AGAIN = {"task": "prices", "text": "Ours is 3 euros.", "seconds": 4.0}


@pytest.fixture
def project(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOSELOOP_STORE", store_url)
    (tmp_path / "judge.json").write_text(judge_script(CASES, ANALYSIS))
    settings = '[judge]\nmodels = ["scripted:judge.json"]\nrubric = "analysis"\n'
    (tmp_path / "closeloop.toml").write_text(settings)
    return tmp_path


@pytest.fixture
def store(project: Path, store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def typed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main([*arguments])
    return int(left.value.code or 0)


def hand_in(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    stdin = SimpleNamespace(buffer=io.BytesIO(json.dumps(content).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    return typed("judge", "-", *flags)


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_results_on_standard_input_fill_the_three_tables_and_go_on_with_a_retry(
    project: Path,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert hand_in(HANDED, monkeypatch, "--json") == 0
    first = said(capsys)
    assert first["passed"] is False
    plan = first["plan"]
    again = {"request": "A market report.", "continues": plan[:6], "results": [AGAIN]}
    assert hand_in(again, monkeypatch, "--json") == 0
    second = said(capsys)
    assert (second["plan"], second["passed"]) == (plan, True)
    assert second["summary"] == "2 tasks: 2 passed."

    ended = "SELECT overall_pass, summary FROM orchestrator_plans WHERE state = 'ended'"
    assert rows(store_url, f"{ended} ORDER BY number") == [
        (False, f"2 tasks: 1 passed, 1 failed.\nprices failed: {MISSING}"),
        (True, "2 tasks: 2 passed."),
    ]
    assert rows(store_url, "SELECT COUNT(*) FROM orchestrator_plans WHERE duration > 0") == [(2,)]
    verdicts = "SELECT task, try, pass, score FROM plan_tasks ORDER BY task, try"
    assert [tuple(row) for row in rows(store_url, verdicts)] == [
        ("market", 1, True, 1.0),
        ("prices", 1, False, 0.0),
        ("prices", 2, True, 1.0),
    ]
    (issues,) = rows(store_url, "SELECT issues FROM plan_tasks WHERE pass = (1 = 0)")
    assert MISSING in json.loads(issues[0])
    judging = "SELECT COUNT(*) FROM plan_tasks WHERE prompt_tokens > 0 AND duration > 0"
    assert rows(store_url, judging) == [(3,)]
    work = "SELECT task, try, agent, model, prompt_tokens, completion_tokens, cost, duration"
    assert rows(store_url, f"{work} FROM subagent_executions ORDER BY task, try") == [
        ("market", 1, "crew", "some-model", 900, 80, 0.25, 12.5),
        # What nobody told is not known, and not nothing.
        ("prices", 1, "unknown", None, None, None, None, None),
        ("prices", 2, "unknown", None, None, None, None, 4.0),
    ]
    graded = "SELECT overall_pass, tasks, judged, passed, score, grade FROM plan_grades"
    assert rows(store_url, graded) == [(True, 2, 2, 2, 1.0, "A")]
    retried = "SELECT task, retries, passed_first, passed FROM plan_retries ORDER BY task"
    assert rows(store_url, retried) == [("market", 0, 1, 1), ("prices", 1, 0, 1)]

    assert typed("show", plan, "--json") == 0
    shown = said(capsys)
    assert shown["grade"] == {"letter": "A", "score": 1.0, "weakest": 1.0, "judged": 2, "passed": 2}
    rates = {name: (one["hits"], one["of"]) for name, one in shown["rates"].items() if "_" in name
             and isinstance(one, dict) and "hits" in one}  # fmt: skip
    assert rates == {"first_try": (1, 2), "after_feedback": (1, 1)}


def test_a_plan_of_others_is_one_attempt_with_the_scores_of_its_last_verdict(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_plan = {**HANDED, "results": HANDED["results"][:1]}
    assert hand_in(open_plan, monkeypatch, "--json") == 0
    assert capsys.readouterr()
    assert typed("list", "attempts", "--json") == 0
    assert said(capsys)["items"] == [], "a plan without a verdict is none yet"
    assert hand_in(HANDED, monkeypatch, "--json") == 0
    plan = said(capsys)["plan"]
    again = {"request": "A market report.", "continues": plan, "results": [AGAIN]}
    assert hand_in(again, monkeypatch, "--json") == 0
    capsys.readouterr()
    last = store.plans.load_story(plan).ending
    assert last is not None
    assert last.attempt is not None
    values = {one.name: one.value for one in store.scores.list_scores(last.attempt)}
    assert values == dict.fromkeys(
        ("would-merge", "judge-score", "completeness", "quality", "relevance"), 1.0
    )
    assert typed("metrics", "--json") == 0
    told = {one["metric"]: one for one in said(capsys)["figures"]}
    names = ("would-merge", "first-try rate", "after-feedback rate")
    counted = {name: (told[name]["value"], told[name]["attempts"]) for name in names}
    assert counted == {
        "would-merge": (1.0, 1),
        "first-try rate": (0.0, 1),
        "after-feedback rate": (1.0, 1),
    }, "of a plan that went on, the last attempt alone"
    assert typed("show", last.attempt) == 0
    assert "A market report." in capsys.readouterr().out


def test_a_trend_says_by_day_how_plans_and_tries_went(
    project: Path,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open_store(store_url):
        pass
    assert typed("list", "plans", "--over-time") == 0
    assert "No plan was judged yet" in capsys.readouterr().out
    assert hand_in(HANDED, monkeypatch) == 0
    first = capsys.readouterr().out
    assert "fail: 2 tasks: 1 passed, 1 failed." in first
    assert hand_in({**HANDED, "results": HANDED["results"][:1]}, monkeypatch, "--json") == 0
    # A task whose result may come yet leaves the plan open.
    assert said(capsys)["passed"] is None
    good = {**HANDED, "results": [HANDED["results"][0], AGAIN]}
    assert hand_in(good, monkeypatch, "--json") == 0
    capsys.readouterr()
    assert typed("list", "plans", "--over-time", "--json") == 0
    told = said(capsys)
    (day,) = told["grades"]
    assert (day["plans"], day["grades"]) == (3, {"A": 1, "F": 1})
    assert (day["passed"]["hits"], day["passed"]["of"]) == (1, 2)
    (quality,) = told["quality"]
    assert quality["judged"] == 5
    assert (quality["passed"]["hits"], quality["passed"]["of"]) == (4, 5)
    assert (quality["first_try"]["hits"], quality["first_try"]["of"]) == (4, 5)
    assert quality["score"] == pytest.approx(0.8)
    (counted,) = rows(
        store_url, "SELECT judged, pass_rate, first_try_rate, score FROM plan_quality_trend"
    )
    assert [float(value) for value in counted] == pytest.approx([5, 0.8, 0.8, 0.8])
    assert typed("list", "plans", "--over-time") == 0
    assert "4 of 5" in capsys.readouterr().out
    assert typed("list", "plans") == 0
    assert " F " in capsys.readouterr().out


@contextmanager
def serving(store: Store, project: Path) -> Iterator[TestClient]:
    settings = Settings(judge=JudgeSettings(models=("scripted:judge.json",), rubric="analysis"))

    @asynccontextmanager
    async def opening() -> AsyncIterator[JudgePanel]:
        async with Gateway({}, project) as gateway:
            yield open_judge_panel(settings, gateway, project)

    desk = PageContext(store, settings, project)
    desk.metric_cache.patience = None
    served = build_web_app(
        store, token="word", evaluator=SubmissionEvaluator(opening), page_context=desk
    )
    token = {"authorization": "Bearer word"}
    with TestClient(served, base_url="http://127.0.0.1", headers=token) as web:
        yield web


def test_results_over_http_fill_them_too_and_pages_show_the_same(
    store: Store, project: Path
) -> None:
    with serving(store, project) as web:
        made = web.post("/api/evaluations", json=HANDED).json()
        again = {"request": "r", "continues": made["plan"], "results": [AGAIN]}
        assert web.post("/api/evaluations", json=again).json()["passed"] is True
        page = web.get(f"/api/plans/{made['plan']}").json()
        listed = web.get("/api/plans").json()
        text_shown = web.get(f"/plans/{made['plan']}").text
        assert "1 of 2" in text_shown
        assert MISSING in text_shown
        assert "Grades of plans by day" in web.get("/plans").text
        unknown = web.post("/api/evaluations", json={**again, "continues": "zzz"})
        assert (unknown.status_code, "No plan begins with 'zzz'" in unknown.text) == (400, True)
        stranger = {**again, "results": [{"task": "more", "text": "x"}]}
        refused = web.post("/api/evaluations", json=stranger)
        assert (refused.status_code, "no subtask 'more'" in refused.text) == (400, True)
    assert page["grade"]["letter"] == "A"
    assert listed["plans"][0]["grade"] == page["grade"]
    assert (page["rates"]["first_try"]["hits"], page["rates"]["first_try"]["of"]) == (1, 2)
    assert [len(line["tries"]) for line in page["lines"]] == [1, 2]


def test_hostile_results_are_kept_as_text(store: Store, project: Path, store_url: str) -> None:
    name = "'; DROP TABLE plan_tasks; --\x00<script>"
    key = "ghp_" + "a1B2c3D4e5F6" * 3
    hostile = {
        "request": f"Use {key}.",
        "results": [{"task": name, "text": f"It is fine. {key}", "change": "no patch at all"}],
    }
    with serving(store, project) as web:
        made = web.post("/api/evaluations", json=hostile).json()
        page = web.get(f"/plans/{made['plan']}")
    assert page.status_code == 200
    assert "<script>" not in page.text.partition("<main")[2].partition("</main>")[0]
    story = store.plans.load_story(made["plan"])
    assert key not in story.tries[0].execution.report + story.plan.request
    assert rows(store_url, "SELECT COUNT(*) FROM plan_tasks") == [(1,)]


def test_closeloop_does_not_go_on_with_what_others_carry_out(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hand_in(HANDED, monkeypatch, "--json") == 0
    plan = said(capsys)["plan"]
    with (project / "closeloop.toml").open("a") as file:
        file.write('[variants.small]\nmodel = "scripted:judge.json"\n')
    assert typed("orchestrate", "--resume", plan) == 2
    assert f'"continues": "{plan}"' in capsys.readouterr().err
    assert typed("show", plan, "--diff") == 1


def test_a_plan_that_others_carried_out_has_no_patch_though_it_passed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {**HANDED, "results": [HANDED["results"][0], AGAIN]}
    assert hand_in(good, monkeypatch, "--json") == 0
    made = said(capsys)
    assert made["passed"] is True
    assert typed("show", made["plan"], "--diff") == 1
    shown = capsys.readouterr()
    assert (shown.out, "has no change here" in shown.err) == ("", True)
