"""Seed 002 from end to end: every output evaluated, tried again with feedback, kept in PostgreSQL.

A project of its own, four sub-agents at work on a market report in code and prose; one output
lacks what was asked for and is mended after feedback, another breaks the whole and is mended too.
All numbers are read by plain SQL, and stand the same on the page, in JSON, report and export.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import orchestrated
import psycopg
import pytest
from starlette.testclient import TestClient

from closeloop.store import open_store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from command_line import typed
from small_project import git

REQUEST = "Compare our prices with theirs: data, a summary, and a note for the board."
NO_PRICE = "The summary has no pricing data: add their price."
CHECK = "python3 -c 'import json, prices; assert prices.OURS'"
COMMANDS = ["python3 -c 'import prices; assert min(prices.OURS, prices.THEIRS) > 0'", CHECK]
PLAN = {
    "request": REQUEST,
    "plan": [
        {"id": "data", "prompt": "Write prices.py with OURS and THEIRS.", "commands": COMMANDS},
        {"id": "summary", "prompt": "Summarise in SUMMARY.md.", "depends_on": ["data"]},
        {"id": "note", "prompt": "Write NOTE.md for the board."},
        {"id": "rename", "prompt": "Call their price RIVAL in all files."},
    ],
}
write = orchestrated.writes
DATA = write(("prices.py", "OURS = 3\nTHEIRS = 4\n"))
RENAMED = [
    {"do": {"run": "printf 'RIVAL = 4\\n' > rival.py; printf 'raise SystemExit(1)\\n' > json.py"}},
    {"do": {"finish": {"summary": "Wrote rival.py."}}},
]
MENDED = [
    {"do": {"run": "rm json.py"}},
    {"do": {"finish": {"summary": "json.py stood in for the standard library: removed it."}}},
]
WORKER = [
    ("Your task: data\n", DATA),
    ("Your task: summary\n.*has no pricing data", write(("SUMMARY.md", "Ours 3, theirs 4.\n"))),
    ("Your task: summary\n", write(("SUMMARY.md", "It is a market.\n"))),
    ("Your task: note\n", write(("NOTE.md", "All is well.\n"))),
    ("Your task: rename\n.*makes commands fail", MENDED),
    ("Your task: rename\n", RENAMED),
]
JUDGE = [
    ("BEGIN task [0-9a-f]+\ndata\n", "yes", "+OURS = 3", "Both are there."),
    ("Ours 3, theirs 4", "yes", "Ours 3, theirs 4.", "Both prices are there."),
    ("BEGIN task [0-9a-f]+\nsummary\n", "no", "Summarise in SUMMARY.md.", NO_PRICE),
    ("BEGIN task [0-9a-f]+\nnote\n", "yes", "All is well.", "It is there."),
    ("BEGIN task [0-9a-f]+\nrename\n", "yes", "+RIVAL = 4", "It is there."),
]


@pytest.fixture
def project(tmp_path: Path, postgres_url: str) -> Path:
    made = orchestrated.build(tmp_path / "project", store=postgres_url)
    (made / "worker.json").write_text(orchestrated.script("worker", WORKER))
    (made / "judge.json").write_text(orchestrated.judge_script(JUDGE))
    (made / "plan.json").write_text(json.dumps(PLAN))
    (made / "agent_config.json").write_text('{"max_retries": 2, "judges": ["judge"]}')
    return made


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchall()


def test_every_output_is_evaluated_mended_after_feedback_and_counted_once_everywhere(
    project: Path, postgres_url: str
) -> None:
    done = typed(project, "orchestrate", "plan.json", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    plan, attempt = made["plan"]["id"], made["ending"]["attempt"]

    # The three tables, by plain SQL, with the names that orchestrators expect.
    ended = "SELECT overall_pass, summary, prompt_tokens, completion_tokens, duration"
    ((passed, summary, prompt, completion, duration),) = query(
        postgres_url, f"{ended} FROM orchestrator_plans WHERE state = 'ended'"
    )
    assert (passed, summary) == (True, "4 tasks: 4 passed.")
    verdicts = query(
        postgres_url, "SELECT task, try, pass, score, issues FROM plan_tasks ORDER BY number"
    )
    told = [(task, number, verdict) for task, number, verdict, _, _ in verdicts]
    assert sorted(told) == [
        ("data", 1, True),
        ("note", 1, True),
        ("rename", 1, False),
        ("rename", 1, True),
        ("rename", 2, True),
        ("summary", 1, False),
        ("summary", 2, True),
    ]
    issues = {
        (task, number, verdict): json.loads(each) for task, number, verdict, _, each in verdicts
    }
    assert NO_PRICE in issues["summary", 1, False]
    assert CHECK in issues["rename", 1, False][0]
    judging = "SELECT COUNT(*) FROM plan_tasks WHERE prompt_tokens > 0 AND duration > 0"
    assert query(postgres_url, judging) == [(7,)]
    work = "SELECT task, try, agent, exit, prompt_tokens, completion_tokens, cost, duration"
    executions = query(postgres_url, f"{work} FROM subagent_executions ORDER BY task, try")
    assert [row[:4] for row in executions] == [
        ("data", 1, "builtin", "finished"),
        ("note", 1, "builtin", "finished"),
        ("rename", 1, "builtin", "finished"),
        ("rename", 2, "builtin", "finished"),
        ("summary", 1, "builtin", "finished"),
        ("summary", 2, "builtin", "finished"),
    ]
    assert all(row[7] > 0 for row in executions)
    # What the plan took is what its sub-agents and their judges took, each verdict's once.
    judged = "SELECT SUM(input_tokens), SUM(output_tokens), SUM(cost) FROM evaluations"
    ((judge_in, judge_out, judge_cost),) = query(postgres_url, judged)
    assert prompt == sum(row[4] for row in executions) + judge_in
    assert completion == sum(row[5] for row in executions) + judge_out
    cost = sum(row[6] for row in executions) + judge_cost
    assert made["ending"]["usage"]["cost"] == pytest.approx(cost)

    # The merged change holds, and the feedback was in the prompt of the retry.
    patch = typed(project, "show", plan, "--diff")
    (project / "all.patch").write_text(patch.stdout)
    git(project, "apply", "all.patch")
    assert (project / "SUMMARY.md").read_text() == "Ours 3, theirs 4.\n"
    assert not (project / "json.py").exists()

    rates = {"first_try": (2, 4), "after_feedback": (2, 2), "final": (4, 4)}
    assert_json_agrees(project, plan, rates)
    assert_page_agrees(postgres_url, plan, attempt, rates)
    assert_report_agrees(project, rates)
    assert_log_agrees(project, attempt, duration, (prompt, completion, cost), rates)


def pairs(made: dict[str, Any]) -> dict[str, tuple[float, int]]:
    names = ("first_try", "after_feedback", "final")
    return {name: (made[name]["hits"], made[name]["of"]) for name in names}


def assert_json_agrees(project: Path, plan: str, rates: dict[str, tuple[int, int]]) -> None:
    shown = json.loads(typed(project, "show", plan, "--json").stdout)
    assert pairs(shown["rates"]) == rates
    assert (shown["grade"]["letter"], shown["grade"]["score"]) == ("A", 1.0)
    (listed,) = json.loads(typed(project, "list", "plans", "--json").stdout)["items"]
    assert listed["grade"] == shown["grade"]
    trend = json.loads(typed(project, "list", "plans", "--over-time", "--json").stdout)
    assert pairs(trend["totals"]) == rates
    assert trend["totals"]["grades"] == {"A": 1}
    assert [(one["judged"], one["passed"]["hits"]) for one in trend["quality"]] == [(6, 4)]
    terminal = typed(project, "show", plan).stdout
    assert "first try 2 of 4 · after feedback 2 of 2 · in the end 4 of 4" in terminal
    assert "pass  grade A, mean score 1.00" in terminal


def assert_page_agrees(
    url: str, plan: str, attempt: str, rates: dict[str, tuple[int, int]]
) -> None:
    with open_store(url) as store:
        desk = PageContext(store)
        desk.metric_cache.patience = None
        client = TestClient(
            build_web_app(store, token=None, page_context=desk), base_url="http://127.0.0.1"
        )
        page = client.get(f"/api/plans/{plan}").json()
        assert pairs(page["rates"]) == rates
        assert page["grade"]["letter"] == "A"
        shown = client.get(f"/plans/{plan}").text
        assert all(
            f"<dd>{hits} of {of}</dd>" in shown
            for name, (hits, of) in rates.items()
            if name != "final"
        )
        passed, tasks = rates["final"]
        assert f"{passed} of {tasks} subtasks passed" in shown
        assert NO_PRICE in shown
        assert pairs(client.get("/api/plans").json()["trend"]["totals"]) == rates
        log = client.get(f"/api/attempts/{attempt}/log").json()["log"]
        assert {name: tuple(log["plan"][name]) for name in rates} == rates


def assert_report_agrees(project: Path, rates: dict[str, tuple[int, int]]) -> None:
    assert typed(project, "report", "numbers.csv", "numbers.md", "numbers.html").returncode == 0
    table = csv.DictReader(io.StringIO((project / "numbers.csv").read_text()))
    figures = {row["metric"]: row for row in table if row["family"] == "plans"}
    names = ("plan tasks at the first try", "plan tasks after feedback", "plan tasks in the end")
    for name, (hits, of) in zip(names, rates.values(), strict=True):
        assert (float(figures[name]["value"]), int(figures[name]["n"])) == (hits / of, of)
    assert (figures["plans passed"]["value"], figures["plans passed"]["more"]) == ("1.0", "A 1")
    assert figures["plans passed"]["query"] == "closeloop list plans --over-time --json"
    assert "| plan tasks at the first try | 2 of 4 |" in (project / "numbers.md").read_text()
    assert "plan tasks at the first try" in (project / "numbers.html").read_text()


def assert_log_agrees(
    project: Path,
    attempt: str,
    duration: float,
    used: tuple[int, int, float],
    rates: dict[str, tuple[int, int]],
) -> None:
    (log,) = [json.loads(line) for line in typed(project, "export", "--log").stdout.splitlines()]
    shown = json.loads(typed(project, "show", attempt, "--json").stdout)["log"]
    assert shown == log
    assert (log["attempt"], log["description"]) == (attempt, REQUEST)
    assert [file["path"] for file in log["files"]] == [
        "NOTE.md",
        "SUMMARY.md",
        "prices.py",
        "rival.py",
    ]
    assert (log["tests_after"]["of"], log["tests_after"]["passed"]) == ("commands", 2)
    assert {name: tuple(log["plan"][name]) for name in rates} == rates
    prompt, completion, cost = used
    assert (log["plan"]["prompt_tokens"], log["plan"]["completion_tokens"]) == (prompt, completion)
    assert log["plan"]["cost"] == pytest.approx(cost)
    assert log["plan"]["seconds"] == duration
    assert (log["plan"]["grade"]["letter"], log["plan"]["tries"]) == ("A", 6)
