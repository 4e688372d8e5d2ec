"""A plan from its file to its tables: judged, tried again, merged, on both engines."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import orchestrated
import psycopg
import pytest
from orchestrated import ADD, DOUBLE, JUDGE, MISSING, NOTES, PLAN, WORKER, rows

import postgres_server
from closeloop.cli import main
from closeloop.records.orchestration import OrchestrationHistory
from closeloop.records.trace import ModelRequest
from closeloop.reviews.rule_editing import add_rule
from closeloop.store import Store, open_store
from small_project import git


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CLOSELOOP_STORE", "CLOSELOOP_CACHE"):
        monkeypatch.delenv(name, raising=False)
    made = orchestrated.build(tmp_path / "project")
    monkeypatch.chdir(made)
    return made


def typed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main([*arguments])
    return int(left.value.code or 0)


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def stored(project: Path) -> Store:
    return open_store(str(project / ".closeloop/closeloop.db"))


def newest(project: Path) -> OrchestrationHistory:
    with stored(project) as store:
        return store.plans.load_story(store.plans.list_plans(1)[0].id)


def tries(story: OrchestrationHistory) -> list[tuple[str, int, bool | None]]:
    return sorted(
        (one.execution.task, one.execution.number, one.assessment and one.assessment.passed)
        for one in story.tries
    )


def write_plan(project: Path, *tasks: dict[str, Any]) -> None:
    (project / "plan.json").write_text(json.dumps({"request": "All of it.", "plan": tasks}))


def write_script(project: Path, *dialogues: tuple[str, list[dict[str, Any]]]) -> None:
    (project / "worker.json").write_text(orchestrated.script("worker", [*dialogues]))


GOES_WELL = [("add", 1, True), ("double", 1, False), ("double", 2, True), ("notes", 1, True)]


def test_a_bad_task_is_judged_tried_again_with_what_was_wrong_and_passes(
    project: Path,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CLOSELOOP_STORE", store_url)
    assert typed("orchestrate", "plan.json", "--json") == 0
    made = said(capsys)
    plan = made["plan"]["id"]
    assert made["ending"]["passed"] is True
    shares = {name: (made["rates"][name]["hits"], made["rates"][name]["of"]) for name in RATES}
    assert shares == {"first_try": (2, 3), "after_feedback": (1, 1), "final": (3, 3)}
    assert 0 < made["rates"]["retry_usage"]["cost"] < made["rates"]["usage"]["cost"]

    with open_store(store_url) as store:
        first, *_ = [
            request_in(one.request) for one in store.plans.load_exchanges(plan, "double", 1)
        ]
        again, *_ = [
            request_in(one.request) for one in store.plans.load_exchanges(plan, "double", 2)
        ]
        assert MISSING not in first.messages[0].text
        assert MISSING in again.messages[0].text
        # A provider has all of the first brief in its cache when the second comes.
        assert again.messages[0].text.startswith(first.messages[0].text.rstrip())
        assert (again.system, again.tools) == (first.system, first.tools)
        # And most of it when another task's comes.
        other, *_ = [
            request_in(one.request) for one in store.plans.load_exchanges(plan, "notes", 1)
        ]
        shared, found, _ = first.messages[0].text.partition("# Your task: ")
        assert found
        assert other.messages[0].text.startswith(shared + found)
        assert len(shared) > 0.7 * len(other.messages[0].text)
        assert store.load_attempt(made["ending"]["attempt"]).links == {"plan": plan}
        change = store.load_change(made["ending"]["attempt"])
        assert change is not None
        paths = [file.path for file in change.files]
        assert paths == ["NOTES.md", "add.py", "double.py", "test_double.py"]
        assert len(store.judged.list_evaluations()) == 4

    assert rows(store_url, "SELECT overall_pass, tasks, state FROM orchestrator_plans") == [
        (None, 3, "begun"),
        (True, 3, "ended"),
    ]
    verdicts = "SELECT task, try, pass, score FROM plan_tasks ORDER BY task, try"
    assert [tuple(row) for row in rows(store_url, verdicts)] == [
        ("add", 1, True, 1.0),
        ("double", 1, False, 0.0),
        ("double", 2, True, 1.0),
        ("notes", 1, True, 1.0),
    ]
    (issues,) = rows(store_url, "SELECT issues FROM plan_tasks WHERE pass = (1 = 0)")
    assert MISSING in json.loads(issues[0])
    used = "SELECT task, try, prompt_tokens, completion_tokens, cost, duration, exit "
    for row in rows(store_url, f"{used} FROM subagent_executions"):
        assert row[2] > 500
        assert row[3] > 5
        assert row[4] == pytest.approx(row[2] / 1e6 + row[3] / 1e5)
        assert row[5] > 0
        assert row[6] == "finished"
    retried = "SELECT task, retries, passed_first, passed FROM plan_retries ORDER BY task"
    assert rows(store_url, retried) == [("add", 0, 1, 1), ("double", 1, 0, 1), ("notes", 0, 1, 1)]
    graded = "SELECT overall_pass, tasks, judged, passed, score, grade FROM plan_grades"
    assert rows(store_url, graded) == [(True, 3, 3, 3, 1.0, "A")]
    trend = "SELECT judged, pass_rate, first_try_rate, score FROM plan_quality_trend"
    (day,) = rows(store_url, trend)
    assert [float(value) for value in day] == pytest.approx([4, 0.75, 2 / 3, 0.75])
    tokens = "SELECT SUM(executions), SUM(prompt_tokens) FROM plan_tokens"
    assert rows(store_url, tokens)[0][0] == 4
    assert rows(store_url, "SELECT COUNT(*) FROM plan_durations") == [(3,)]


RATES = ("first_try", "after_feedback", "final")


def request_in(content: bytes) -> ModelRequest:
    return msgspec.json.decode(content, type=ModelRequest)


def test_a_plan_is_listed_and_shown_with_its_tries_rates_and_change(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("list", "plans") == 2
    assert "There is no store" in capsys.readouterr().err
    assert typed("orchestrate", "plan.json") == 0
    came = capsys.readouterr()
    assert "double, try 2  pass 1.00" in came.err
    plan = newest(project).plan.id
    assert typed("list", "plans") == 0
    assert plan in capsys.readouterr().out
    assert typed("show", plan[:5]) == 0
    shown = capsys.readouterr().out
    assert "first try 2 of 3 · after feedback 1 of 1 · in the end 3 of 3" in shown
    assert MISSING in shown
    assert typed("show", plan, "--diff") == 0
    (project / "all.patch").write_text(capsys.readouterr().out)
    git(project, "apply", "all.patch")
    assert (project / "double.py").exists()
    assert typed("list", "plans", "--json") == 0
    assert [row["passed"] for row in said(capsys)["items"]] == [True]
    attempt = newest(project).ending
    assert attempt is not None
    assert attempt.attempt is not None
    assert typed("measure", attempt.attempt, "--json") == 0
    assert said(capsys)["items"]


def test_a_model_plans_what_is_only_asked_for(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {name: [] for name in ("depends_on", "scope", "commands")} | {"wanted": "add.py."}
    say = json.dumps({"plan": [{"id": "add", "prompt": "Write add(a, b) in add.py.", **told}]})
    turns = [{"say": "I would begin with add."}, {"say": say}]
    write_script(project, ("Split the request into tasks", turns), ("Your task: add\n", ADD))
    assert typed("orchestrate", "--request", "A calculator that adds.", "--json") == 0
    made = said(capsys)
    assert made["plan"]["planning"]["usage"]["input_tokens"] > 0
    assert "At the top: .gitignore, settings.py." in made["plan"]["about"]
    assert [one["execution"]["task"] for one in made["tries"]] == ["add"]


def test_a_planner_chooses_among_the_workers_of_the_settings(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (project / "closeloop.toml").open("a") as file:
        file.write('[variants.large]\nmodel = "worker"\nsettings = {max_tokens = 9000}\n')
        file.write('[orchestrate]\nworkers = ["small", "large"]\nplanner = "planner"\n')
        file.write('[models.planner]\nprovider = "scripted"\nmodel = "planner.json"\n')
    none: dict[str, Any] = {name: [] for name in ("depends_on", "scope", "commands")}
    told = {**none, "wanted": "It is there."}
    tasks = [
        {"id": "add", "prompt": "Write add(a, b).", "variant": "large", **told},
        {"id": "notes", "prompt": "Say it.", "variant": "small", **told},
    ]
    turns = [{"say": json.dumps({"plan": tasks})}]
    (project / "planner.json").write_text(orchestrated.script("planner", [("small, large", turns)]))
    assert typed("orchestrate", "--judge", "judge", "--request", "Both.", "--json") == 0
    made = said(capsys)
    chosen = {one["execution"]["task"]: one["execution"]["variant"] for one in made["tries"]}
    assert chosen == {"add": "large", "notes": "small"}


# What is not as it should be


def test_commands_and_scope_decide_whatever_the_judge_says(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(
        project,
        {"id": "add", "prompt": "p", "commands": ["python -c 'import nothing'"]},
        {"id": "notes", "prompt": "p", "scope": ["docs"]},
    )
    (project / "agent_config.json").write_text('{"max_retries": 0}')
    assert typed("orchestrate", "plan.json", "--json") == 1
    by_task = {one["execution"]["task"]: one for one in said(capsys)["tries"]}
    (issue,) = [
        one for one in by_task["add"]["assessment"]["issues"] if one["check"] == "acceptance"
    ]
    assert "No module named 'nothing'" in issue["text"]
    texts = [one["text"] for one in by_task["notes"]["assessment"]["issues"]]
    assert "Changed outside the scope: NOTES.md" in texts


def test_commands_that_succeed_do_not_speak_for_the_judge(project: Path) -> None:
    cases = [("BEGIN task", "no", "Write add(a, b)", "It does something else.")]
    (project / "judge.json").write_text(orchestrated.judge_script(cases))
    write_plan(project, {"id": "add", "prompt": "Write add(a, b).", "commands": ["true"]})
    (project / "agent_config.json").write_text('{"max_retries": 0}')
    assert typed("orchestrate", "plan.json") == 1
    (one,) = newest(project).tries
    assert one.assessment is not None
    assert one.assessment.score == 0


def test_what_rules_find_in_the_trace_of_a_try_is_told_to_its_judge(project: Path) -> None:
    claims = [ADD[0], {"do": {"finish": {"summary": "All tests pass."}}}]
    write_script(project, ("Your task: add\n", claims))
    write_plan(project, {"id": "add", "prompt": "Write add(a, b) with tests."})
    cases = [("finding unverified-claim: ", "no", "Write add(a, b)", "Nobody ran a test.")]
    (project / "judge.json").write_text(orchestrated.judge_script(cases))
    (project / "agent_config.json").write_text('{"max_retries": 0}')
    assert typed("orchestrate", "plan.json") == 1
    (one,) = newest(project).tries
    assert "finding unverified-claim" in [fact.name for fact in one.execution.facts]
    assert one.assessment is not None
    assert one.assessment.issues[0].text == "Nobody ran a test."


def test_parts_that_pass_alone_and_fail_together_are_not_passed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(
        project,
        {"id": "notes", "prompt": "p"},
        {"id": "add", "prompt": "p", "commands": ["test ! -e NOTES.md", "test -e add.py"]},
    )
    (project / "agent_config.json").write_text('{"max_retries": 0}')
    assert typed("orchestrate", "plan.json", "--json") == 1
    made = said(capsys)
    by_task = {one["execution"]["task"]: one["assessment"] for one in made["tries"]}
    assert (by_task["add"]["passed"], by_task["notes"]["passed"]) == (True, False)
    assert by_task["notes"]["score"] == 1.0
    (issue,) = by_task["notes"]["issues"]
    assert issue["check"] == "together"
    assert "`test ! -e NOTES.md` fails (exit code 1)" in issue["text"]
    assert "notes failed: Together with the changes of the other tasks" in made["ending"]["summary"]
    plan = made["plan"]["id"]
    assert typed("show", plan, "--diff") == 1
    refused = capsys.readouterr()
    assert refused.out == ""
    assert f"Plan {plan} failed, so there is no change to apply: 2 tasks: 1 passed" in refused.err
    assert typed("show", plan) == 0
    assert "Together with the changes of the other tasks" in capsys.readouterr().out


def test_whoever_breaks_the_whole_is_told_and_mends_it(project: Path) -> None:
    write_plan(
        project,
        {"id": "add", "prompt": "p", "commands": ["test ! -e NOTES.md"]},
        {"id": "notes", "prompt": "p"},
        {"id": "double", "prompt": "p", "depends_on": ["add"]},
    )
    moves = [
        {"do": {"run": "mv NOTES.md README.md"}},
        {"do": {"finish": {"summary": "It is README.md now."}}},
    ]
    write_script(
        project,
        ("Your task: notes\n.*`test ! -e NOTES.md` fails", moves),
        *((prompt, turns) for prompt, turns in WORKER if "Feedback" not in prompt),
    )
    cases = [case for case in JUDGE if case[1] == "yes" and "test_double" not in case[0]]
    cases += [("BEGIN task [0-9a-f]+\ndouble\n", "yes", "def double(a)", "It is there.")]
    (project / "judge.json").write_text(orchestrated.judge_script(cases))
    assert typed("orchestrate", "plan.json") == 0
    story = newest(project)
    assert tries(story) == [
        ("add", 1, True),
        ("double", 1, True),
        ("notes", 1, False),
        ("notes", 2, True),
    ]
    again = next(one.execution for one in story.tries if one.execution.number == 2)
    assert set(again.built_on) == {"add", "double"}
    assert story.ending is not None
    assert [check.exit_code for check in story.ending.checks] == [0]
    verdicts = "SELECT try, pass FROM plan_tasks WHERE task = 'notes' ORDER BY number"
    url = str(project / ".closeloop/closeloop.db")
    assert rows(url, verdicts) == [(1, 1), (1, 0), (2, 1)]
    # What counts is the newest verdict on a try.
    assert rows(url, "SELECT passed_first, passed FROM plan_retries WHERE task = 'notes'") == [
        (0, 1)
    ]
    assert typed("orchestrate", "--resume", story.plan.id) == 0
    assert newest(project) == story


def test_a_command_that_fails_in_what_is_left_of_a_failed_plan_names_whose_change_breaks_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(
        project,
        {"id": "add", "prompt": "p", "commands": ["test ! -e NOTES.md"]},
        {"id": "notes", "prompt": "p"},
        {"id": "double", "prompt": "p", "scope": ["elsewhere"]},
    )
    (project / "agent_config.json").write_text('{"max_retries": 0}')
    assert typed("orchestrate", "plan.json") == 1
    shown = capsys.readouterr().out
    because = "`test ! -e NOTES.md` fails (exit code 1), broken by the change of notes"
    assert f"merged result: {because}" in shown
    ending = newest(project).ending
    assert ending is not None
    assert ending.broken_by == {"test ! -e NOTES.md": "notes"}
    assert f"All together: {because}" in ending.summary


def test_changes_that_clash_are_a_failed_try_and_made_again_on_top(project: Path) -> None:
    write_plan(project, {"id": "add", "prompt": "p"}, {"id": "double", "prompt": "p"})
    last = {"do": {"finish": {"summary": "Set it."}}}

    def sets(old: str, new: str) -> list[dict[str, Any]]:
        return [{"do": {"edit": {"path": "settings.py", "old": old, "new": new}}}, last]

    write_script(
        project,
        ("Your task: add\n.*does not go together", sets("VERSION = 5", "VERSION = 45")),
        ("Your task: double\n.*does not go together", sets("VERSION = 4", "VERSION = 45")),
        ("Your task: add\n", sets("VERSION = 3", "VERSION = 4")),
        ("Your task: double\n", sets("VERSION = 3", "VERSION = 5")),
    )
    cases = [("BEGIN task", "yes", "+VERSION = ", "Set.")]
    (project / "judge.json").write_text(orchestrated.judge_script(cases))
    assert typed("orchestrate", "plan.json") == 0
    story = newest(project)
    assert sorted(number for _, number, _ in tries(story)) == [1, 1, 2]
    failed = next(one for one in story.tries if one.assessment and one.assessment.passed is False)
    assert failed.assessment is not None
    assert failed.assessment.issues[-1].check == "merge"
    assert "settings.py" in failed.assessment.issues[-1].text
    with stored(project) as store:
        assert story.ending is not None
        change = store.load_change(story.ending.attempt or "")
        assert change is not None
        assert "+VERSION = 45" in change.patch


def test_ten_megabytes_of_output_are_judged_by_their_ends_and_kept_short(project: Path) -> None:
    write_plan(
        project,
        {"id": "notes", "prompt": "p"},
        {"id": "add", "prompt": "p", "depends_on": ["notes"]},
    )
    big = "python3 -c \"print('There is add.' * 800000)\" > NOTES.md"
    finish = {"do": {"finish": {"summary": "There is add. " * 70_000}}}
    write_script(project, ("Your task: notes\n", [{"do": {"run": big}}, finish]), ("add\n", ADD))
    assert typed("orchestrate", "plan.json") == 0
    story = newest(project)
    first = next(one.execution for one in story.tries if one.execution.task == "notes")
    assert len(first.patch) > 10_000_000
    assert len(first.report) < 110_000
    second = next(one.execution for one in story.tries if one.execution.task == "add")
    assert len(second.brief) < 10_000


def test_a_budget_and_a_time_hold_back_what_is_not_begun(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "agent_config.json").write_text('{"budget": 0.0001, "concurrency": 1}')
    assert typed("orchestrate", "plan.json", "--json") == 1
    made = said(capsys)
    assert len(made["tries"]) == 1
    assert set(made["ending"]["not_begun"]) == {"double", "notes"}
    (project / "agent_config.json").write_text("{}")
    assert typed("orchestrate", "--resume", made["plan"]["id"]) == 0
    assert tries(newest(project)) == GOES_WELL
    assert rows(str(project / ".closeloop/closeloop.db"), "SELECT COUNT(*) FROM plan_grades") == [
        (1,)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give one of these"),
        (("plan.json", "--request", "x"), "Give one of these"),
        (("nowhere.json",), "cannot be read"),
        (("--request", " "), "--request is empty"),
        (("--request", "caf\udce9"), "--request is not UTF-8"),
        (("--resume", "nobody"), "No plan begins with 'nobody'"),
        (("--resume", "nobody", "--model", "worker"), "leave out --agent and --model"),
        (("--reqest",), "Unknown option: --reqest. See `closeloop orchestrate --help`."),
        (("plan.json", "--judge", "nothing"), "No model named 'nothing'"),
        (("plan.json", "--agent", "claud"), "No agent named 'claud'"),
        (("plan.json", "--model", "nothing"), "No model named 'nothing'"),
        (("--request", "x", "--planner", "nothing"), "No model named 'nothing'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_paid(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert typed("orchestrate", *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no", "is not JSON"),
        ("[]", "must be an object"),
        ('{"max_retry": 1}', "Did you mean 'max_retries'"),
        ('{"max_retries": "two"}', "must be a whole number"),
        ('{"max_retries": -1}', "must not be negative"),
        ('{"concurrency": 0}', "at least 1"),
        ('{"budget": 0}', "budget must be more than 0"),
        ('{"pass_at": 7}', "must be between 0 and 1"),
        ('{"weights": {"quality": 0}}', "every weight must be a number above 0"),
        ('{"weights": {"beauty": 1}}', "No criterion in the weights"),
        ('{"workers": ["smal"]}', "Did you mean 'small'"),
    ],
)
def test_an_agent_config_that_makes_no_sense_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (project / "agent_config.json").write_text(content)
    assert typed("orchestrate", "plan.json") == 2
    assert message in capsys.readouterr().err


def test_thresholds_of_the_agent_config_hold(project: Path) -> None:
    cases = [("BEGIN task", "partly", "def add(a, b)", "Nearly.")]
    (project / "judge.json").write_text(orchestrated.judge_script(cases))
    write_plan(project, {"id": "add", "prompt": "p"})
    (project / "agent_config.json").write_text('{"max_retries": 0}')
    assert typed("orchestrate", "plan.json") == 1
    (project / "agent_config.json").write_text('{"max_retries": 0, "pass_at": 0.3, "floor": 0}')
    assert typed("orchestrate", "plan.json") == 0


@pytest.mark.parametrize("weight", ["inf", "nan", "-1"])
def test_weights_that_could_decide_nothing_are_refused_before_anything_is_paid(
    project: Path, capsys: pytest.CaptureFixture[str], weight: str
) -> None:
    with (project / "closeloop.toml").open("a") as file:
        file.write(f"weights = {{quality = {weight}}}\n")
    assert typed("orchestrate", "plan.json") == 2
    assert "every weight must be a number above 0" in capsys.readouterr().err
    with stored(project) as store:
        assert store.plans.list_plans(1) == []


def test_a_secret_in_a_request_is_kept_nowhere(project: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    write_plan(project, {"id": "add", "prompt": f"Write add(a, b). The token is {secret}."})
    assert typed("orchestrate", "plan.json") == 0
    story = newest(project)
    assert secret not in story.tries[0].execution.brief
    assert story.ending is not None
    with stored(project) as store:
        told = msgspec.json.encode(store.load_trace(story.ending.attempt or ""))
    assert secret.encode() not in told + msgspec.json.encode(story)
    assert "The token is [redacted" in story.plan.tasks[0].prompt


# A judge that looks

LOOKS = """\
import json, os, pathlib, re, sys, urllib.request
prompt = sys.stdin.read()
asked = {"model": os.environ["AGENT_MODEL"], "messages": [{"role": "user", "content": "?"}]}
address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
headers = {"content-type": "application/json"}
sent = urllib.request.Request(address, json.dumps(asked).encode(), headers)
urllib.request.urlopen(sent, timeout=600).read()
seal = re.findall(r"with seal ([0-9a-f]{16}) as", prompt)[-1]
below = pathlib.Path("add.py").read_text().splitlines()[0]
checks = json.loads(prompt.rpartition("\\n")[2])["properties"]["answers"]["required"]
own = "def double(a)" if "+def double(a)" in prompt else below
answer = {"evidence": [own, below], "reasoning": "Found. " * 150, "verdict": "yes"}
value = {"seal": seal, "answers": {name: answer for name in checks}, "summary": "Looked."}
print("looked at {add.py}")
print(json.dumps({**value, "files": ["add.py"]}))
"""


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_judge_that_looks_sees_a_try_on_top_of_what_it_depends_on(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "reader").mkdir()
    (tmp_path / "reader" / "reader.py").write_text(LOOKS)
    settings = (project / "closeloop.toml").read_text()
    settings = settings.replace('kind = "none"', f'read = ["{tmp_path}/reader"]')
    settings = settings.replace('models = ["judge"]\n', "")
    settings += 'variant = "reader"\n[variants.reader]\nagent = "command"\nmodel = "judge"\n'
    program = f"{sys.executable} {tmp_path}/reader/reader.py"
    settings += f'settings = {{program = "{program}", prompt = "stdin"}}\n'
    (project / "closeloop.toml").write_text(settings)
    # The agent's model says nothing of use to the agent, and confirms what the agent passes.
    dialogues = orchestrated.judge_script(
        [("\nadd\n", "yes", "def add(a, b)", "."), ("\ndouble\n", "yes", "def double(a)", ".")]
    )
    script = json.loads(dialogues)
    script["dialogues"].append({"prompt": "", "turns": [{"say": "Go on."}]})
    (project / "judge.json").write_text(json.dumps(script))
    write_plan(project, *PLAN["plan"][:2])
    assert typed("orchestrate", "plan.json") == 0
    story = newest(project)
    assert tries(story) == [("add", 1, True), ("double", 1, True)]
    assert story.plan.judges == ("judge",)


# Stopped in the middle


def test_who_stops_a_plan_is_told_how_to_go_on(project: Path) -> None:
    write_script(project, ("", [{**ADD[0], "delay": 600}]))
    (project / "settings.py").write_text("VERSION = 4\n")
    (project / "new.py").write_text("")
    process = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "orchestrate", "plan.json"],
        cwd=project,
        env=orchestrated.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "started" in line:
            process.send_signal(signal.SIGINT)
            break
    lines += process.stderr.readlines()
    assert process.wait() == 130
    plan = newest(project).plan.id
    assert f"continue with `closeloop orchestrate --resume {plan}`." in lines[-1]
    unseen = "2 files are changed or new but not committed: the agents do not see these changes."
    assert unseen in "".join(lines)


OUTAGE = """\
import sys
from pathlib import Path

import psycopg

with Path("times").open("a") as file:
    file.write("x")
with psycopg.connect(sys.argv[1], autocommit=True) as admin:
    admin.execute(f"ALTER DATABASE {sys.argv[2]} ALLOW_CONNECTIONS false")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    admin.execute(end, sys.argv[2:])
"""


def test_a_database_that_goes_away_loses_nothing_that_is_finished(
    project: Path,
    postgres_folder: str,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CLOSELOOP_STORE", postgres_url)
    admin, (name,) = (
        postgres_server.address(postgres_folder),
        re.findall(r"/(test_\d+)", postgres_url),
    )
    (project / "outage.py").write_text(
        OUTAGE.replace('Path("times")', f"Path({str(project / 'times')!r})")
    )
    run = f"{sys.executable} {project}/outage.py '{admin}' {name}"
    write_script(project, ("Your task: notes\n", [{"do": {"run": run}}, *NOTES]), *WORKER)
    add, double, notes = PLAN["plan"]
    chain = (add, {**notes, "depends_on": ["add"]}, {**double, "depends_on": ["notes"]})
    write_plan(project, *chain)
    assert typed("orchestrate", "plan.json") == 4
    said_last = capsys.readouterr().err.splitlines()[-1]
    resume = re.findall(r"continue with `closeloop orchestrate --resume ([0-9a-f]{12})`", said_last)
    assert list((project / ".closeloop/plans").iterdir())
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert typed("orchestrate", "--resume", *resume, "--json") == 0
    assert [one["execution"]["task"] for one in said(capsys)["tries"]].count("notes") == 1
    assert (project / "times").read_text() == "x"
    assert not list((project / ".closeloop/plans").iterdir())
    with open_store(postgres_url) as store:
        assert tries(store.plans.load_story(resume[0])) == GOES_WELL
    assert typed("orchestrate", "--resume", *resume) == 0
    with open_store(postgres_url) as store:
        assert len(store.plans.load_story(resume[0]).tries) == 4
        assert len(store.list_attempts()) == 1


def test_a_plan_that_is_killed_goes_on_where_it_was(project: Path) -> None:
    slow = [{**ADD[0], "delay": 0.2}, ADD[1]]
    waits = [{**DOUBLE[0], "delay": 600}, DOUBLE[1]]
    write_script(
        project, ("Your task: add\n", slow), ("Your task: double\n", waits), ("notes\n", NOTES)
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "orchestrate", "plan.json"],
        cwd=project,
        env=orchestrated.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    awaited = {"double, try 1  started", "notes, try 1  pass"}
    for line in process.stderr:
        awaited = {one for one in awaited if one not in line}
        if not awaited:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    before = newest(project)
    assert tries(before) == [("add", 1, True), ("notes", 1, True)]
    assert before.ending is None
    write_script(project, *WORKER)
    assert typed("orchestrate", "--resume", before.plan.id) == 0
    after = newest(project)
    assert tries(after) == GOES_WELL
    assert after.tries[:2] == before.tries


def test_only_one_process_carries_out_a_plan(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_script(project, ("", [{"say": "Nothing."}]))
    assert typed("orchestrate", "plan.json") == 1
    plan = newest(project).plan.id
    with stored(project) as store:
        assert store.claim_job(f"plan/{plan}/0/0", "another:1:1", 600.0)
    capsys.readouterr()
    assert typed("orchestrate", "--resume", plan) == 2
    assert f"Another process runs plan {plan}" in capsys.readouterr().err


def test_a_judge_that_could_not_be_read_is_asked_again_when_the_plan_goes_on(project: Path) -> None:
    (project / "judge.json").write_text(
        orchestrated.script("judge", [("", [{"say": "Well."}] * 2)])
    )
    assert typed("orchestrate", "plan.json") == 1
    story = newest(project)
    assert {passed for _, _, passed in tries(story)} == {None}
    (project / "judge.json").write_text(orchestrated.judge_script(JUDGE))
    assert typed("orchestrate", "--resume", story.plan.id) == 0
    assert tries(newest(project)) == GOES_WELL


def test_work_without_a_repository_is_judged_by_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = orchestrated.build(tmp_path / "words")
    monkeypatch.chdir(project)
    git(project, "status")
    (project / ".git").rename(tmp_path / "elsewhere")
    write_plan(project, {"id": "notes", "prompt": "Say it."})
    write_script(project, ("Your task: notes\n", [{"say": "There is add."}]))
    assert typed("orchestrate", "plan.json") == 0
    assert newest(project).plan.repo is None


def test_sub_agents_are_told_what_reviewers_taught_where_that_is_set(project, capsys):
    with stored(project) as store:
        text = "Keep the tests of the calculator short."
        rule = add_rule(store, text, str(project), "ann", datetime(2026, 1, 1, tzinfo=UTC))
    with (project / "closeloop.toml").open("a") as file:
        file.write('[memory]\nhydrate = true\nencoder = "ngrams"\n')
    typed("orchestrate", "plan.json", "--json")
    story = newest(project)
    with stored(project) as store:
        (whole,) = store.memory.list_context_records(str(project), [story.ending.attempt])
        every = store.memory.list_context_records(str(project))
        assert len(every) == len(story.tries) + 1
        assert all(offer.rules == (rule.id,) for offer in every)
        assert whole.tokens == sum(offer.tokens for offer in every if offer.prompt)
        assert all(rule.text in store.load_prompt(one.prompt).text for one in every if one.prompt)
