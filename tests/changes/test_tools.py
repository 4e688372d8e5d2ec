"""Tier 1: the repository's own tools, before and after, and an agent that mends what broke."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from closeloop.changes.affected_tests import find_lost_tests
from closeloop.changes.change_check import CheckRequest, judge_trial
from closeloop.changes.change_sides import ChangeQuery, CheckContext, open_sides
from closeloop.changes.check_verdict import (
    AgentFixer,
    FixedChange,
    Fixer,
    FixSubject,
    build_fix_prompt,
    run_fix_cycles,
)
from closeloop.changes.tool_comparison import CheckTool, ToolResult, has_broken, run_tools
from closeloop.flow import check_change
from closeloop.records.change import ChangeReport, ToolRun
from closeloop.records.protocols import Assignment, Work
from closeloop.records.settings import CheckSettings, SandboxSettings
from closeloop.records.task import Limits, Variant
from closeloop.records.trace import Trace
from closeloop.sandbox.workspaces import WorkspacePool
from patience import PATIENCE
from small_project import pytest_command
from warm_pytest import PYTHON

pytestmark = pytest.mark.usefixtures("warm_python")

PYTEST = pytest_command(PYTHON)
TESTS = CheckTool(name="test", command=PYTEST, is_test=True)
FILES = {
    "cart.py": "def total(prices):\n    return sum(prices)\n\n\ndef count(prices):\n    return 0\n",
    "test_cart.py": (
        "from cart import count, total\n\n\n"
        "def test_total():\n    assert total([1, 2]) == 3\n\n\n"
        "def test_count():\n    assert count([1, 2]) == 2\n"
    ),
    "run.sh": "#!/bin/sh\necho fine\n",
    "folder/inner.txt": "a file that becomes a folder's name\n",
}
WRONG = FILES["cart.py"].replace("sum(prices)", "sum(prices) + 1")


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Start")
    return folder


def ran(
    repo: Path, *tools: CheckTool, timeout: float = PATIENCE, fixer: Fixer | None = None
) -> tuple[list[ToolRun], FixedChange | None]:
    async def go() -> tuple[list[ToolRun], FixedChange | None]:
        with open_sides(repo, ChangeQuery()) as sides:
            async with WorkspacePool(
                repo.parent / "cache", SandboxSettings(kind="none")
            ) as workspaces:
                base = await workspaces.prepare_base(str(repo), sides.base or "")
                bench = CheckContext(
                    workspaces=workspaces,
                    bases={"before": base, "after": base},
                    sides=sides,
                    timeout=timeout,
                )
                compared = await run_tools(bench, tools)
                subject = FixSubject(tools=tools, comparisons=compared)
                mended = await run_fix_cycles(bench, subject, fixer, 2) if fixer else None
                return [one.run for one in compared], mended

    return anyio.run(go)


def test_what_the_change_broke_is_told_from_what_was_red_before(repo: Path) -> None:
    (repo / "cart.py").write_text(FILES["cart.py"].replace("sum(prices)", "sum(prices) + 1"))
    ((test,), _) = ran(repo, TESTS)
    assert (test.before, test.after) == ("failed", "failed")
    assert [name.split(":", 3)[2] for name in test.broke] == ["test_total"]
    assert [name.rpartition("::")[2] for name in test.already] == ["test_count"]
    assert "test_total" in test.output
    assert has_broken(test)


def test_a_linter_that_could_not_start_complains_about_nothing(repo: Path) -> None:
    (repo / "cart.py").write_text(WRONG)
    fault = "An unexpected error has occurred: CalledProcessError: git fetch; exit code 128"
    broken = CheckTool(name="lint", command=f"echo '{fault}'; exit 3")
    ((lint,), _) = ran(repo, broken)
    assert (lint.before, lint.after, lint.already) == ("failed", "failed", ())
    trial = judge_trial(broken, ToolResult(state="failed", output=f"{fault}\n", seconds=1.0))
    assert not trial.works
    assert trial.text == f"failed: {fault}"


def test_tests_of_which_none_ran_are_no_working_command() -> None:
    output = "E   ImportError: cannot import name 'gone' from 'cart'\n1 error in 0.1s"
    failures = {"test_cart.py": "ImportError"}
    result = ToolResult(
        state="failed",
        failures=failures,
        tests={"test_cart.py": "error"},
        output=output,
        note="no test ran",
        seconds=1.0,
    )
    trial = judge_trial(TESTS, result)
    assert not trial.works
    assert trial.text.endswith("ImportError: cannot import name 'gone' from 'cart'")
    trial = judge_trial(TESTS, replace(result, note=None))
    assert (trial.works, trial.fails) == (True, True)
    assert trial.text == "runs; 1 test of 1 fails at this commit, in 1.0 s: test_cart.py"


def test_tests_of_a_package_that_does_not_compile_are_not_removed(repo: Path) -> None:
    tests = "package shop\n\nfunc TestSum(t *testing.T) {}\n\nfunc TestMost(t *testing.T) {}\n"
    (repo / "shop_test.go").write_text(tests)
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "Test in Go")
    (repo / "shop_test.go").write_text(f"{tests}this is not go\n")
    before = dict.fromkeys(("shop/TestSum", "shop/TestMost", "shop/TestMost/of_none"), "passed")
    with open_sides(repo, ChangeQuery()) as sides:
        lost = find_lost_tests(sides, before, {"shop": "error"})
        assert ({*lost.kept_from_running}, lost.removed) == ({*before}, ())
        without_case = {"shop/TestSum": "passed", "shop/TestMost": "passed"}
        assert find_lost_tests(sides, before, without_case).removed == ("shop/TestMost/of_none",)


def test_what_the_change_mends_is_told_too(repo: Path) -> None:
    (repo / "cart.py").write_text(FILES["cart.py"].replace("return 0", "return len(prices)"))
    ((test,), _) = ran(repo, TESTS)
    assert (test.before, test.after) == ("failed", "passed")
    assert [name.rpartition("::")[2] for name in test.mended] == ["test_count"]
    assert not has_broken(test)


def test_new_moved_deleted_linked_and_executable_files_arrive(repo: Path) -> None:
    (repo / "cart.py").rename(repo / "basket.py")
    (repo / "test_cart.py").unlink()
    (repo / "go").write_text("#!/bin/sh\nexit 0\n")
    (repo / "go").chmod(0o755)
    (repo / "link.sh").symlink_to("run.sh")
    (repo / "folder/inner.txt").unlink()
    (repo / "folder").rmdir()
    (repo / "folder").write_text("a file\n")
    look = CheckTool(
        name="look", command="test ! -e cart.py && cat basket.py link.sh folder && ./go"
    )
    ((tool,), _) = ran(repo, look)
    assert (tool.before, tool.after) == ("failed", "passed"), tool.output


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("no-such-program --check", "inert"),
        ("sleep 600", "timed out"),
        ("exit 3", "failed"),
        ("true && echo done | cat", "passed"),
        ("kill -9 $$", "machine trouble"),
    ],
)
def test_how_a_tool_ended_is_told_apart(repo: Path, command: str, state: str) -> None:
    (repo / "notes.txt").write_text("a change\n")
    timeout = 1.0 if state == "timed out" else PATIENCE
    ((tool,), _) = ran(repo, CheckTool(name="tool", command=command), timeout=timeout)
    assert (tool.before, tool.after) == (state, state)
    assert not has_broken(tool)


def test_a_suite_that_runs_no_test_is_no_pass(repo: Path) -> None:
    (repo / "notes.txt").write_text("a change\n")
    ((test,), _) = ran(repo, CheckTool(name="test", command=f"{PYTEST} -k nothing", is_test=True))
    assert test.after == "inert"


def test_a_runner_that_is_not_known_counts_by_its_exit_code(repo: Path) -> None:
    (repo / "notes.txt").write_text("a change\n")
    fine = CheckTool(name="fine", command="echo 3 passing", is_test=True)
    broken = CheckTool(name="broken", command="test ! -e notes.txt", is_test=True)
    once = f"test ! -e notes.txt || ! mkdir {repo.parent}/again"
    flaky = CheckTool(name="flaky", command=once, is_test=True)
    (one, two, three), _ = ran(repo, fine, broken, flaky)
    assert (one.before, one.after, has_broken(one)) == ("passed", "passed", False)
    assert (two.before, two.after, has_broken(two)) == ("passed", "failed", True)
    assert (three.after, three.note) == ("passed", "failed once and passed when run again")


def test_a_flood_of_output_is_cut(repo: Path) -> None:
    (repo / "notes.txt").write_text("a change\n")
    ((tool,), _) = ran(repo, CheckTool(name="flood", command="yes | head -c 9000000; exit 1"))
    assert tool.after == "failed"
    assert len(tool.output) <= 4_000


def test_the_repository_is_as_it_was(repo: Path) -> None:
    (repo / "cart.py").write_text("broken(\n")
    before = {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()}
    ran(repo, TESTS, CheckTool(name="litter", command="touch litter && git add -A"))
    assert {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()} == before


class Mender:
    """An agent that mends what it is told, at its second try, or breaks something else."""

    name = "mender"
    version = "1"

    def __init__(self, right: str = FILES["cart.py"], fault: Exception | None = None) -> None:
        self.prompts: list[str] = []
        self.right, self.fault = right, fault

    def prompt(self, system: str | None) -> tuple[str, str]:
        return "", ""

    async def work(self, assignment: Assignment) -> Work:
        self.prompts.append(assignment.prompt)
        if self.fault:
            raise self.fault
        text = self.right if len(self.prompts) == 2 else "def total(prices):\n    return 0\n"
        await assignment.sandbox.write("cart.py", text.encode())
        return Work(exit="finished", trace=Trace(reader="mender", reader_version=1))


def fixer(agent: Mender) -> Fixer:
    variant = Variant(name="mender", agent="mender", limits=Limits(seconds=PATIENCE))
    return AgentFixer(agent=agent, model_proxy=None, variant=variant)


def test_an_agent_gets_what_broke_and_up_to_two_tries(repo: Path) -> None:
    (repo / "cart.py").write_text(WRONG)
    (repo / "notes.txt").write_text("kept\n")
    agent = Mender()
    ((test,), mended) = ran(repo, TESTS, fixer=fixer(agent))
    assert len(agent.prompts) == 2
    assert "test_total" in agent.prompts[0]
    assert "test_count" not in agent.prompts[0]
    assert "ImportError" in agent.prompts[1]  # what its own first try broke
    assert has_broken(test), "the change itself is as broken as it was"
    assert mended
    assert (mended.mending.tries, mended.mending.left) == (2, ())
    # What it made goes on top of the change, as it lies in the working tree.
    subprocess.run(["git", "apply"], cwd=repo, input=mended.patch, check=True, text=True)
    assert (repo / "cart.py").read_text() == FILES["cart.py"]
    assert "notes.txt" not in mended.patch


def test_what_an_agent_could_not_mend_is_told(repo: Path) -> None:
    (repo / "cart.py").write_text(WRONG)
    _, mended = ran(repo, TESTS, fixer=fixer(Mender(WRONG.replace("+ 1", "+ 2"))))
    assert mended
    assert mended.mending.tries == 2
    (left,) = mended.mending.left
    assert [name.split(":", 3)[2] for name in left.broke] == ["test_total"]


def test_an_agent_that_falls_over_leaves_what_the_tools_said(repo: Path) -> None:
    (repo / "cart.py").write_text(WRONG)
    ((test,), mended) = ran(repo, TESTS, fixer=fixer(Mender(fault=RuntimeError("no model"))))
    assert has_broken(test)
    assert mended
    assert mended.mending.note == "RuntimeError: no model"
    assert [run.name for run in mended.mending.left] == ["test"]


def test_only_what_broke_is_asked_to_be_mended() -> None:
    runs: Sequence[ToolRun] = [
        ToolRun(name="lint", command="ruff", before="failed", after="failed", output="old"),
        ToolRun(name="types", command="mypy", before="passed", after="failed", output="new"),
    ]
    assert "mypy" in build_fix_prompt(runs)
    assert "ruff" not in build_fix_prompt(runs)


def test_errors_of_the_code_start_a_fix_cycle_too(repo: Path) -> None:
    query = "def find(db, name):\n    {}\n"
    (repo / "cart.py").write_text(query.format('db.execute(f"SELECT 1 FROM c WHERE n = {name}")'))
    mender = Mender(query.format('db.execute("SELECT 1 FROM c WHERE n = ?", (name,))'))
    fixer = AgentFixer(
        agent=mender, model_proxy=None, variant=Variant(name="mender", agent="mender")
    )
    order = CheckRequest(root=repo, cache=repo.parent / "cache", tiers=("quality", "tools"))

    async def check() -> ChangeReport:
        async with WorkspacePool(order.cache, SandboxSettings(kind="none")) as workspaces:
            return await check_change(order, workspaces, fixer)

    mender.prompts.append("")  # its second try is the right one
    report = anyio.run(check)
    assert [one.rule for one in report.findings if one.severity == "error"] == ["concatenated-sql"]
    assert report.mending is not None
    assert (report.mending.tries, report.mending.findings) == (1, ())
    assert "cart.py:2: `name` is concatenated into the text of a query" in mender.prompts[1]
    assert report.mending.patch is not None
    assert "n = ?" in Path(report.mending.patch).read_text()


def test_an_error_that_stays_is_told_and_no_patch_is_offered(repo: Path) -> None:
    text = "def find(db, name):\n    db.execute(f'SELECT 1 FROM c WHERE n = {name}')\n"
    (repo / "cart.py").write_text(text)
    mender = Mender(text.replace("find", "look_for"))
    mender.prompts.append("")
    fixer = AgentFixer(
        agent=mender, model_proxy=None, variant=Variant(name="mender", agent="mender")
    )
    settings = CheckSettings(fix_cycles=1)
    order = CheckRequest(root=repo, cache=repo.parent / "cache", settings=settings)

    async def check() -> ChangeReport:
        async with WorkspacePool(order.cache, SandboxSettings(kind="none")) as workspaces:
            return await check_change(order, workspaces, fixer)

    mending = anyio.run(check).mending
    assert mending is not None
    assert [one.rule for one in mending.findings] == ["concatenated-sql"]
    assert mending.patch is None
