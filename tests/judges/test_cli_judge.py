"""`closeloop judge`, as somebody types it."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from judge_scripts import judge_script
from judging_models import CODE

from closeloop.cli import main
from closeloop.gateway import Gateway
from closeloop.judges import checks
from closeloop.judges.evaluator import evaluate_outputs
from closeloop.judges.judge_panel import JudgePanel, OpenJudge
from closeloop.providers.script_server import serve_script
from closeloop.providers.scripted_model import parse_script
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.change import Change
from closeloop.records.evaluation import Subtask, TaskOutput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits, Task
from closeloop.store import open_store

SCRIPT = judge_script(
    ("return a [+] b", "yes", "return a + b"), ("BEGIN task", "no", "the sum of two")
)
REQUEST = "Write add, the sum of two numbers."
GOOD = "--- /dev/null\n+++ b/add.py\n@@ -0,0 +1,2 @@\n+def add(a, b):\n+    return a + b\n"
TASK = Task(id="add", prompt=REQUEST, digest="d1", grading="g1", scope=("add.py",))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    (tmp_path / "judge.yaml").write_bytes(SCRIPT)
    (tmp_path / "closeloop.toml").write_text('[judge]\nmodels = ["scripted:judge.yaml"]\n')
    (tmp_path / "good.patch").write_text(GOOD)
    (tmp_path / "bad.patch").write_text(GOOD.replace("return a + b", "return None"))
    return tmp_path


def typed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["judge", *arguments])
    return int(left.value.code or 0)


def handed_in(content: bytes, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    return typed("-", "--json")


def save(project: Path, patch: str, **grade: Any) -> None:
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        store.save_task(TASK)
        attempt = Attempt(
            id="abc123", origin="experiment", task="add", task_digest="d1", exit="finished"
        )
        known = Grade(attempt="abc123", grading="g1", version=1, **grade)
        store.save_attempt(AttemptResult(attempt=attempt, change=Change(patch=patch), grade=known))


def test_a_patch_is_judged_and_only_advice_until_the_judge_is_calibrated(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("--patch", "good.patch", "--request", REQUEST) == 0
    praised = capsys.readouterr().out
    assert "advisory only" not in praised
    assert praised.endswith(
        "Run `closeloop judge calibrate` to measure its agreement with people.\n"
    )
    assert "pass  1.00" in praised
    assert typed("--patch", "bad.patch", "--request", REQUEST) == 0
    out = capsys.readouterr().out
    assert "fail  0.00" in out
    assert "does-the-task (judge): It shows the sum of two." in out
    assert "advisory only" in out


def test_an_attempt_is_judged_with_its_grade_as_facts_and_kept(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Outcome(result="fail", reasons=("test_add fails",))
    save(project, GOOD, outcome=outcome, pass_to_pass=(3, 3), broken=("test_old",))
    assert typed("abc", "--json") == 1
    made = json.loads(capsys.readouterr().out)["evaluations"][0]
    assert (made["passed"], made["attempt"]) == (False, "abc123")
    by_check = {answer["check"]: answer for answer in made["answers"]}
    assert (by_check["does-the-task"]["verdict"], by_check["correct"]["verdict"]) == ("no", "no")
    assert by_check["in-scope"]["source"] == "fact"
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        (kept,) = store.judged.list_evaluations(attempt="abc123")
        assert kept.id == made["id"]


def test_an_attempt_that_passed_its_tests_is_not_failed_by_them_nor_proved_right(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(project, GOOD, outcome=Outcome(result="pass"), pass_to_pass=(3, 3))
    assert typed("abc", "--json") == 0
    made = json.loads(capsys.readouterr().out)["evaluations"][0]
    by_check = {answer["check"]: answer for answer in made["answers"]}
    assert by_check["correct"]["source"] == "judge"


def test_two_attempts_are_compared_in_both_orders_and_flips_are_counted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(project, GOOD, outcome=Outcome(result="pass"))
    value = {"seal": "SEAL", "evidence_a": ["def add(a, b)"], "evidence_b": ["def add(a, b)"]}
    value |= {"reasoning": "The first.", "better": "A"}
    say = json.dumps(value).replace("SEAL", r"\g<seal>").replace(r"\\g", r"\g")
    when = r"with seal (?P<seal>[0-9a-f]{16}) as"
    script = {"dialogues": [{"turns": [{"when": when, "say": say}]}]}
    (project / "judge.yaml").write_text(json.dumps(script))
    assert typed("abc", "--against", "abc", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert [one["winner"] for one in made["preferences"]] == ["tie"]
    assert (made["flips"]["hits"], made["flips"]["of"]) == (1, 1)
    assert typed("abc", "--against", "abc") == 0
    assert "tie: the order decided" in capsys.readouterr().out


def test_a_plan_on_standard_input_is_judged_task_by_task(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = [{"id": "add", "prompt": "Write the sum of two."}, {"id": "x", "prompt": "More."}]
    results = [{"task": "add", "text": "return None"}, {"task": "x", "text": "return a + b"}]
    content = {"request": "Both.", "plan": plan, "results": results}
    assert handed_in(json.dumps(content).encode(), monkeypatch) == 0
    made = json.loads(capsys.readouterr().out)
    assert [one["passed"] for one in made["evaluations"]] == [False, True]
    assert made["passed"] is False


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "must be a section with fields"),
        (b'{"request": "r"}', "'results' is missing"),
        (b'{"request": "r", "results": []}', "no results"),
        (b'{"request": "r", "results": [{"task": "a"}, {"task": "a"}]}', "two results"),
        (b'{"request": "r", "results": [{"task": 7}]}', "results[0].task"),
        (
            b'{"request": "r", "plan": [{"id": "a", "prompt": "p", "depends_on": ["b"]}],'
            b' "results": [{"task": "a"}]}',
            "depends on 'b'",
        ),
        (
            b'{"request": "r", "plan": [{"id": "a", "prompt": "p", "rubric": "odd"}],'
            b' "results": [{"task": "a"}]}',
            "No rubric named 'odd'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    message: str,
) -> None:
    assert handed_in(content, monkeypatch) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give attempts"),
        (("--patch", "good.patch"), "need each other"),
        (("nobody",), "No attempt begins"),
        (("--patch", "good.patch", "--request", "x", "--against", "n"), "No attempt begins"),
        (("--patch", "none.patch", "--request", "x"), "cannot be read"),
        (("--patch", "closeloop.toml", "--request", "x"), "closeloop.toml is not a patch"),
        (("--nope",), "Unknown option: --nope. See `closeloop judge --help`."),
        (("--patch", "good.patch", "--request", "x", "--samples", "0"), "at least 1"),
        (("--patch", "good.patch", "--request", "x", "--model", "nothing"), "No model named"),
        (("--patch", "good.patch", "--request", "x", "--rubric", "analysys"), "Did you mean"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    (project / ".closeloop").mkdir(exist_ok=True)
    open_store(str(project / ".closeloop/closeloop.db")).close()
    assert typed(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_judge_without_a_model_is_told_how_to_name_one(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "closeloop.toml").write_text("")
    assert typed("--patch", "good.patch", "--request", "x") == 2
    assert "No model judges" in capsys.readouterr().err


def test_two_hundred_evaluations_at_once_in_one_process() -> None:
    plan = [Subtask(id=f"t{number}", prompt="Write the sum of two.") for number in range(200)]
    outputs = {
        task.id: TaskOutput(task=task.id, text=f"return a + b  # {task.id}") for task in plan
    }

    async def go(folder: Path) -> tuple[Any, float]:
        async with (
            serve_script(parse_script(SCRIPT, "judge.yaml")) as address,
            Gateway({}, folder) as gateway,
        ):
            served = ModelSettings(provider="openai", model="m", base_url=f"{address}/v1")
            judge = OpenJudge(
                judge=checks,
                model="m",
                open_model=lambda before: gateway.open_proxy("m", served, Limits(), first=True),
                rubric=CODE,
            )
            bench = JudgePanel(judges=(judge,), concurrency=200)
            began = time.process_time()
            made = await evaluate_outputs(bench, "Many sums.", plan, outputs, {})
            return made, time.process_time() - began

    made, spent = anyio.run(go, Path())
    assert made.passed is True
    assert len({one.id for one in made.evaluations}) == 200
    assert spent < 20  # of both sides: the server is in this process too
