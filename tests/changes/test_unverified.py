"""A change that no test was run on is not verified, whoever is told, and an attempt has a grade."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from closeloop.changes.check_verdict import decide_verdict, save_report
from closeloop.changes.report_formats import (
    REPORT_FORMATS,
    build_check_run,
    is_clean,
    render_report,
    report_headline,
)
from closeloop.grading.tool_outcomes import NO_COMMAND_REASON, explain_unverified
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.change import ToolRun, ToolState
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import CheckSettings
from closeloop.records.task import Acceptance, Task
from closeloop.store import open_store
from closeloop.text.patches import parse_patch
from closeloop.web.app import build_web_app
from command_line import typed
from patience import PATIENCE
from report_example import CLEAN
from small_project import pytest_command

CODE = "def total(prices):\n    return sum(prices)\n"
PATCH = (
    "diff --git a/cart.py b/cart.py\n--- a/cart.py\n+++ b/cart.py\n@@ -1,2 +1,3 @@\n"
    " def total(prices):\n+    prices = list(prices)\n     return sum(prices)\n"
)
PYTEST = pytest_command(sys.executable)
PRAISE = "Passed"


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    made = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return made.stdout.strip()


def make_repo(folder: Path, commands: str = "", check: str = "") -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "cart.py").write_text(CODE)
    (folder / "closeloop.toml").write_text(
        f'[commands]\n{commands}\n[sandbox]\nkind = "none"\n[check]\ntimeout = {PATIENCE}\n{check}'
    )
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Start")
    (folder / "cart.py").write_text(CODE + "\n\ndef most(prices):\n    return max(prices)\n")
    return folder


@pytest.mark.parametrize(
    ("commands", "why"),
    [
        ("", "no test command is known; set one under [commands]"),
        ('lint = "true"', "no test command is known; set one under [commands]"),
        ('test = "no-such-uv run pytest"', "`no-such-uv` is not installed where the tools run"),
        ('setup = ["no-such-uv sync"]\ntest = "pytest"', "no-such-uv: command not found"),
        (f'test = "{sys.executable} -S -m pytest"', "found no module pytest; install it in"),
        (f'test = "{PYTEST}"', "ran no test"),
    ],
)
def test_without_a_test_that_ran_the_headline_says_so(
    tmp_path: Path, commands: str, why: str
) -> None:
    repo = make_repo(tmp_path / "repo", commands)
    said = typed(repo, "check", "--tier", "tools", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert said.stdout.startswith("Not verified: "), said
    assert why in " ".join(said.stdout.split())
    assert PRAISE not in said.stdout
    assert said.returncode == 0


def test_a_test_file_that_cannot_be_loaded_verifies_nothing(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo", f'test = "{PYTEST}"')
    (repo / "test_cart.py").write_text("from cart import gone\n\n\ndef test_gone():\n    gone()\n")
    git(repo, "add", "test_cart.py")
    git(repo, "commit", "-qm", "Test what is gone", "test_cart.py")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = typed(repo, "check", "--tier", "tools", **cache)
    text = " ".join(said.stdout.split())
    assert text.startswith("Not verified: test failed before any test ran (ImportError: cannot"), (
        said
    )
    assert "1 test;" not in text


def test_json_has_it_as_the_verdict_and_a_strict_gate_blocks_it(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo", check='gate = "strict"\n')
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = typed(repo, "check", "--tier", "tools", "--json", **cache)
    report = json.loads(said.stdout)
    assert (said.returncode, report["verdict"]) == (1, "block")
    assert report["reasons"] == [f"not verified: {NO_COMMAND_REASON}"]


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_change_that_chooses_its_own_tests_is_not_verified_by_them(
    tmp_path: Path, is_committed: bool
) -> None:
    repo = make_repo(tmp_path / "repo", 'test = "false"')
    settings = repo / "closeloop.toml"
    settings.write_text(settings.read_text().replace("false", "true"))
    if is_committed:
        git(repo, "commit", "-qam", "Choose other tests")
    wanted = ["HEAD"] if is_committed else []
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = typed(repo, "check", *wanted, "--tier", "tools", **cache)
    assert said.stdout.startswith("Not verified: the change itself rewrites commands.test"), said


def tool(after: ToolState, output: str = "", **more: object) -> ToolRun:
    more = {"name": "test", "command": "pytest", "before": after, **more}
    return ToolRun(after=after, output=output, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([], "no test command is known"),
        ([tool("passed", name="lint", command="ruff check .")], "no test command is known"),
        ([tool("timed out")], "raise check.timeout"),
        ([tool("machine trouble", note="no space")], "machine failure (no space)"),
        ([tool("not set up", "pip: no network")], "cannot be set up (pip: no network)"),
        (
            [tool("not set up", "error: Could not resolve host: index.example.org")],
            "setup needs the network: check the connection, then run the check again",
        ),
        ([tool("failed", "E: conftest.py")], "failed before any test ran (E: conftest.py)"),
        ([tool("inert", "/bin/sh: 1: uv: not found")], "`uv` is not installed"),
        ([tool("inert", "\n===== no tests ran in 0.4s =====\n")], "(no tests ran in 0.4s); set"),
        ([tool("passed")], None),
        ([tool("failed", "1 failed", already=("test_a",))], None),
        (
            [
                tool(
                    "failed",
                    "collecting ...\nE   ImportError: cannot import name 'a'\n1 error in 0.36s",
                    already=("tests/test_a.py",),
                    note="no test ran",
                )
            ],
            "failed before any test ran (ImportError: cannot import name 'a'); correct commands",
        ),
        ([tool("failed", broke=("tests/test_a.py",), note="no test ran")], None),
        ([tool("failed", "coverage is too low", ran=12)], None),
        ([tool("inert"), tool("passed", name="units", command="pytest units")], None),
    ],
)
def test_what_keeps_tests_from_saying_anything(runs: list[ToolRun], why: str | None) -> None:
    said = explain_unverified(runs)
    assert (said is None) == (why is None)
    assert why is None or why in (said or "")


UNVERIFIED = replace(CLEAN, verdict="unverified", reasons=(NO_COMMAND_REASON,), tools=())


def test_every_report_says_it() -> None:
    assert report_headline(UNVERIFIED) == f"Not verified: {NO_COMMAND_REASON}; risk low"
    blocked = replace(UNVERIFIED, verdict="block", reasons=("1 error",))
    assert report_headline(blocked) == "Blocked: 1 error"
    assert not is_clean(UNVERIFIED)
    for name in REPORT_FORMATS:
        text = render_report(name, UNVERIFIED)
        assert "ot verified: no test command is known" in text, name
        assert PRAISE not in text
        assert "found no problems" not in text
    run = build_check_run(UNVERIFIED)
    assert run.conclusion == "neutral"
    assert run.title.startswith("Not verified: no test command")


def test_pages_say_it() -> None:
    lint = ToolRun(name="lint", command="ruff", before="passed", after="passed")
    report = replace(UNVERIFIED, tools=(lint,))
    with open_store(":memory:") as store:
        number = save_report(report, store, None)
        with TestClient(build_web_app(store, token=None), base_url="http://127.0.0.1") as client:
            page = client.get(f"/reports/{number}", headers={"accept": "text/html"}).text
            listed = client.get("/pulls", headers={"accept": "text/html"}).text
    assert "? not verified" in page
    assert "no test command is known" in page
    assert "none worse, but no test ran" in page
    assert "? not verified" in listed


def test_a_tier_alone_is_no_more_than_that() -> None:
    report = replace(CLEAN, tiers=("quality",), tools=(), risk=None)
    assert report_headline(report) == "No findings in quality; the tools were not run"
    assert "the tools were not run" in render_report("markdown", report)


@pytest.mark.parametrize(
    ("result", "verdict", "reasons"),
    [
        ("pass", "pass", ()),
        ("fail", "block", ("its grade is fail: 1 test still fails",)),
        ("unscored", "unverified", ("no tests", "its grade is unscored: no space")),
    ],
)
def test_an_attempts_grade_counts(result: str, verdict: str, reasons: tuple[str, ...]) -> None:
    why = ("1 test still fails",) if result == "fail" else ()
    cause = "no space" if result == "unscored" else None
    grade = Outcome(result=result, reasons=why, cause=cause)  # type: ignore[arg-type]
    judgement = decide_verdict(CheckSettings(), [], [], None, unverified="no tests", grade=grade)
    assert (judgement.verdict, judgement.reasons) == (verdict, reasons)


def test_an_attempt_is_checked_where_its_task_is_with_its_setup_and_grade(tmp_path: Path) -> None:
    """From a folder that is no repository at all."""
    repo = make_repo(tmp_path / "repo", 'test = "no-such-runner"')
    git(repo, "checkout", "-q", "--", ".")
    base = git(repo, "rev-parse", "HEAD")
    run = f"test -f made-by-setup && {sys.executable} -c 'import cart; assert cart.total([1]) == 1'"
    task = Task(
        id="t",
        prompt="p",
        repo=str(repo),
        base=base,
        setup=("touch made-by-setup",),
        acceptance=Acceptance(run=run),
        digest="d",
        grading="g",
    )
    made = Attempt(
        id="abcdef123456", origin="experiment", exit="finished", task="t", task_digest="d"
    )
    outcome = Outcome(result="fail", reasons=("2 tests still fail",))
    grade = Grade(attempt=made.id, grading="g", version=1, outcome=outcome)
    home = tmp_path / "elsewhere"
    (home / ".closeloop").mkdir(parents=True)
    (home / "closeloop.toml").write_text('[sandbox]\nkind = "none"\n')
    with open_store(str(home / ".closeloop/closeloop.db")) as store:
        store.save_task(task)
        change = parse_patch(PATCH, base=base)
        store.save_attempt(AttemptResult(attempt=made, change=change, grade=grade))
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = typed(home, "check", "attempt:abc", "--tier", "tools", "--json", **cache)
    report = json.loads(said.stdout)
    assert [(one["name"], one["command"], one["after"]) for one in report["tools"]] == [
        ("test", run, "passed")
    ]
    assert report["grade"]["result"] == "fail"
    assert (said.returncode, report["reasons"]) == (1, ["its grade is fail: 2 tests still fail"])
