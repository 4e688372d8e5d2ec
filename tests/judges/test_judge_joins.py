"""Where judges meet the rest: validation as facts, their findings in pages, the gateway's queue."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from judge_scripts import judge_script
from judging_models import CODE, GOOD, TASK, Asked, bench, fair
from msgspec.structs import replace

from closeloop.cli import main
from closeloop.gateway import Gateway
from closeloop.judges import checks
from closeloop.judges.evaluator import (
    EvaluationSaver,
    cases_from_plan,
    combine_evaluations,
    evaluate_outputs,
    judge_each,
)
from closeloop.judges.judge_cases import case_from_patch
from closeloop.judges.judge_panel import JudgePanel, OpenJudge
from closeloop.providers.script_server import serve_script
from closeloop.providers.scripted_model import parse_script
from closeloop.records.attempt import Attempt
from closeloop.records.change import Change, ChangeReport, Risk, ToolRun
from closeloop.records.errors import MachineFailed, PluginFailed
from closeloop.records.evaluation import (
    Evaluation,
    Evaluations,
    JudgeVersion,
    Subtask,
    TaskOutput,
    TraceAnswer,
    TraceQuestion,
)
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.finding import Finding
from closeloop.records.settings import ModelSettings
from closeloop.records.task import Limits
from closeloop.records.trace import ChatMessage, Exchange, Lane, Message, ModelRequest, Trace
from closeloop.store import open_store
from patience import SCALES

SCRIPT = judge_script(("return a [+] b", "yes", "return a + b"), ("BEGIN task", "no", "sum of two"))
REQUEST = "Make `add` the sum of two."
PATCH = (
    "diff --git a/add.py b/add.py\n--- a/add.py\n+++ b/add.py\n@@ -1,2 +1,2 @@\n"
    " def add(a, b):\n-    return a - b\n+    return a + b  # {}\n"
)


# Validation as facts


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    (tmp_path / "judge.yaml").write_bytes(SCRIPT)
    (tmp_path / "add.py").write_text("def add(a, b):\n    return a - b\n")
    (tmp_path / "closeloop.toml").write_text(
        '[judge]\nmodels = ["scripted:judge.yaml"]\n[sandbox]\nkind = "none"\n'
        '[commands]\ntest = "! grep -q broken add.py"\n'
    )
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "Start"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    (tmp_path / "good.patch").write_text(PATCH.format("so"))
    (tmp_path / "broken.patch").write_text(PATCH.format("broken"))
    return tmp_path


def typed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return int(left.value.code or 0)


def test_a_patch_that_breaks_a_test_fails_whatever_the_judge_says(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("judge", "--request", REQUEST, "--check", "--json", "--patch")
    assert typed(*asked, "good.patch") == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert typed(*asked, "broken.patch") == 1
    (made,) = json.loads(capsys.readouterr().out)["evaluations"]
    assert made["passed"] is False
    by_check = {one["check"]: one for one in made["answers"]}
    assert (by_check["correct"]["verdict"], by_check["correct"]["source"]) == ("no", "fact")
    assert any(one["check"] == "check" and one["source"] == "fact" for one in made["issues"])
    assert typed("judge", "abc", "--check") == 2


def test_what_tools_say_decides_only_where_they_ran_and_the_change_is_to_blame() -> None:
    def verdict(**run: Any) -> Any:
        tool = ToolRun(name="test", command="pytest", **run)
        report = ChangeReport(change=Change(), title="x", verdict="pass", tools=(tool,))
        facts = {one.name: one for one in case_from_patch("p", "r", None, report).facts}
        return facts["tests"].verdict

    assert verdict(before="failed", after="passed") is None
    assert verdict(after="failed", broke=("test_a",)) == "no"
    assert verdict(after="failed", already=("test_a",)) is None
    assert verdict(before="passed", after="failed") == "no"
    assert verdict(before="failed", after="failed") is None
    assert verdict(after="inert") is None
    assert verdict(after="timed out") is None


def test_findings_and_risk_are_told_and_decide_nothing() -> None:
    finding = Finding(rule="dead-code", version=1, severity="info", message="m", places=("a:1",))
    silent = Finding(rule="x", version=1, severity="error", message="m", silenced="known")
    report = ChangeReport(
        change=Change(),
        title="x",
        verdict="warn",
        reasons=("large",),
        findings=(finding, silent),
        risk=Risk(level="high", reasons=("large",)),
    )
    facts = case_from_patch("p", "r", None, report).facts
    assert [(one.name, one.verdict, one.blocks) for one in facts] == [
        ("check", None, False),
        ("finding dead-code", None, False),
        ("risk", None, False),
    ]


# Findings of judges where people look


def test_what_judges_said_is_shown_with_the_attempt_and_measured_beside_the_rules(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Message(number=1, lane="root", role="user", text="Fix it.")
    trace = Trace(reader="x", reader_version=1, lanes=(Lane(id="root"),), events=(said,))
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        attempt = Attempt(id="abc123", origin="production", exit="finished")
        store.save_attempt(AttemptResult(attempt=attempt, trace=trace))
        question = TraceQuestion(name="installs", text="Did it?", severity="warning")
        yes = TraceAnswer(
            attempt="abc123", question=question, verdict="yes", text="It ran pip.", events=(1,)
        )
        store.judged.save_answers("j1", [yes])
        store.judged.save_answers("j2", [yes])
        version = JudgeVersion(
            id="v", judge="checks 1", rubric="r", rubric_digest="d", prompt="p", model="m",
            temperature=0.1,
        )  # fmt: skip
        for number, score in enumerate((0.2, 0.9)):
            one = Evaluation(
                id=f"e{number}", task="t", attempt="abc123", judge="v", score=score, passed=True
            )
            store.judged.save_evaluations(
                Evaluations(judges=(version,), evaluations=(one,), passed=True, summary="")
            )
    assert typed("show", "abc") == 0
    shown = capsys.readouterr().out
    assert shown.count("installs  (by a judge)  It ran pip.") == 1
    assert "t  abc123  pass  0.90" in shown
    assert "0.20" not in shown
    assert typed("measure", "--all", "--json") == 0
    (measured,) = json.loads(capsys.readouterr().out)["items"]
    found = measured["measurement"]["findings"]
    assert [(one["rule"], one["source"]) for one in found if one["source"] == "judge"] == [
        ("installs", "judge")
    ]
    assert typed("measure", "--all", "--sarif") == 0
    assert "installs" in capsys.readouterr().out


# Judges of others


def test_a_judge_that_raises_is_to_blame_and_nobody_else() -> None:
    def raising(*arguments: Any) -> Any:
        raise ZeroDivisionError("oh")

    for broken in ({"pose": raising}, {"read": raising}):
        parts = {"name": "odd", "version": 1, "pose": checks.pose, "read": checks.read, **broken}
        model = Asked(fair)
        judge = bench(model).judges[0]
        odd = OpenJudge(
            judge=SimpleNamespace(**parts), model="m", open_model=judge.open_model, rubric=CODE
        )

        async def go(odd: OpenJudge = odd) -> Evaluations:
            return await evaluate_outputs(
                JudgePanel(judges=(odd,)), "Sums.", [TASK], {"add": GOOD}, {}
            )

        with pytest.raises(PluginFailed, match=r"judge 'odd' raised ZeroDivisionError \(oh\)"):
            anyio.run(go)


# What goes through the gateway


def asked_of_plan(
    plan: Sequence[Subtask], folder: Path, **settings: Any
) -> tuple[Evaluations, list[Exchange]]:
    heard: list[Exchange] = []

    async def go() -> Evaluations:
        async with (
            serve_script(parse_script(SCRIPT, "judge.yaml")) as address,
            Gateway({}, folder) as gateway,
        ):
            served = ModelSettings(
                provider="openai", model="m", base_url=f"{address}/v1", **settings
            )
            judge = OpenJudge(
                judge=checks,
                model="m",
                open_model=lambda before: gateway.open_proxy(
                    "m", served, Limits(), heard.append, first=True
                ),
                rubric=CODE,
                confirm="always",
            )
            outputs = {
                one.id: TaskOutput(task=one.id, text=f"return a + b # {one.id}") for one in plan
            }
            return await evaluate_outputs(
                JudgePanel(judges=(judge,)), "Many sums.", plan, outputs, {}
            )

    return anyio.run(go), heard


def test_recorded_requests_share_all_that_a_provider_can_cache(tmp_path: Path) -> None:
    plan = [Subtask(id=f"t{number}", prompt=f"Write sum {number}.") for number in range(4)]
    made, heard = asked_of_plan(plan, tmp_path)
    assert made.passed is True
    both = [json.loads(one.request) for one in heard]
    assert len(both) == 8  # what passes is asked about once more, without the plan
    requests = [one for one in both if "END plan" in one["messages"][0]["text"]]
    assert len(requests) == 4
    assert len({one["system"] for one in both}) == 1
    assert len({one["messages"][0]["text"].partition("END request")[0] for one in both}) == 1
    assert len({one["system"] for one in requests}) == 1
    assert len({json.dumps(one["schema"]) for one in requests}) == 1
    texts = [one["messages"][0]["text"] for one in requests]
    shared = max(end for end in range(len(texts[0])) if len({one[:end] for one in texts}) == 1)
    assert "END plan" in texts[0][:shared]
    same = len(requests[0]["system"]) + shared
    assert same / (len(requests[0]["system"]) + len(texts[0])) > 0.85


def test_a_judge_is_answered_before_work_that_came_earlier(tmp_path: Path) -> None:
    async def go(scale: int) -> int:
        order: list[str] = []
        script = b"dialogues: [{turns: [{say: Done., delay: %f, repeat: true}]}]" % (0.1 * scale)
        async with (
            serve_script(parse_script(script, "slow.yaml")) as address,
            Gateway({}, tmp_path) as gateway,
        ):
            served = ModelSettings(
                provider="openai", model="m", base_url=f"{address}/v1", concurrency=1
            )

            async def ask(name: str, first: bool) -> None:
                message = ChatMessage(role="user", text=name)
                async with gateway.open_proxy("m", served, Limits(), first=first) as door:
                    await door.reply(ModelRequest(messages=(message,)))
                    order.append(name)

            async with anyio.create_task_group() as group:
                for number in range(4):
                    group.start_soon(ask, f"work {number}", False)
                await anyio.sleep(0.03 * scale)
                group.start_soon(ask, "judge", True)
        return order.index("judge")

    # On a slow machine much of the work may be done before the judge comes.
    assert any(anyio.run(go, scale) <= 1 for scale in SCALES)


# Nothing that is paid for is lost


class Away:
    """A store that is gone for the first calls."""

    def __init__(self, store: Any, calls: int) -> None:
        self.judged = self
        self._store, self._left = store, calls

    def save_evaluations(self, made: Evaluations) -> None:
        self._left -= 1
        if self._left >= 0:
            raise MachineFailed("The database is gone.")
        self._store.judged.save_evaluations(made)


def test_evaluations_are_kept_as_they_come_and_again_when_the_store_is_back(tmp_path: Path) -> None:
    plan = [Subtask(id=f"t{number}", prompt="Add.") for number in range(3)]
    outputs = {one.id: TaskOutput(task=one.id, text="return a + b") for one in plan}
    cases = cases_from_plan("Sums.", plan, outputs, {})
    with open_store(str(tmp_path / "store.db")) as store:
        for calls, left in ((0, None), (2, None), (9, "The database is gone.")):
            keeper = EvaluationSaver(Away(store, calls))  # type: ignore[arg-type]
            judged = anyio.run(judge_each, bench(Asked(fair)), cases, keeper.save_one)
            made = combine_evaluations(judged)
            before = len(store.judged.list_evaluations())
            whole, fault = keeper.save_all(made)
            assert (str(fault) if fault else None) == left
            assert len(whole.evaluations) == 3
            if calls == 0:
                assert before == 3
            if left is None:
                assert all(store.judged.load_evaluation(one.id) for one in whole.evaluations)
        assert len(store.judged.list_evaluations()) == 6


def test_a_judge_that_is_killed_leaves_what_it_had_said(tmp_path: Path) -> None:
    plan = [Subtask(id=f"t{number}", prompt="Add.") for number in range(3)]
    outputs = {one.id: TaskOutput(task=one.id, text="return a + b") for one in plan}
    asked: list[int] = []

    def then_killed(request: ModelRequest) -> Any:
        asked.append(1)
        if len(asked) == 5:  # each that passes is asked about twice
            raise KeyboardInterrupt
        return fair(request)

    one_by_one = JudgePanel(judges=bench(Asked(then_killed)).judges, concurrency=1)
    with open_store(str(tmp_path / "store.db")) as store:
        keeper = EvaluationSaver(store)
        cases = cases_from_plan("Sums.", plan, outputs, {})
        with pytest.raises(BaseException):  # noqa: B017, PT011 - a group, or the interrupt itself
            anyio.run(judge_each, one_by_one, cases, keeper.save_one)
        assert len(store.judged.list_evaluations()) == 2


def test_evaluations_and_answers_are_found_again_on_both_engines(store_url: str) -> None:
    asked = TraceQuestion(name="odd", text="Is it?")
    with open_store(store_url) as store:
        for name in ("one", "two"):
            store.save_attempt(
                AttemptResult(attempt=Attempt(id=name, origin="production", exit="finished"))
            )
        yes, no = (
            TraceAnswer(attempt="one", question=asked, verdict=verdict, text="t", events=(1,))
            for verdict in ("yes", "no")
        )
        store.judged.save_answers("j1", [yes, replace(no, attempt="two")])
        store.judged.save_answers("j2", [no])
        assert (
            store.judged.positive_answers()
            == store.judged.positive_answers("one")
            == {"one": [yes]}
        )
        assert store.judged.positive_answers("two") == {}
        made = anyio.run(evaluate_outputs, bench(Asked(fair)), "Sums.", [TASK], {"add": GOOD}, {})
        store.judged.save_evaluations(made)
        assert store.judged.load_evaluation(made.evaluations[0].id) == made.evaluations[0]
        assert store.judged.load_evaluation("no\0\ud800ne") is None
