"""Mining from end to end: real git, real pytest, real cages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio
import msgspec
import pytest

from closeloop.cli import console
from closeloop.cli import mine as mine_command
from closeloop.records import attempt
from closeloop.records.errors import BadInput
from closeloop.records.settings import CommandSettings, SandboxSettings, Settings
from closeloop.records.task import Acceptance, Task
from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit
from closeloop.store import open_store
from closeloop.tasks import miner, mining_environments, setup_recipes
from closeloop.tasks.candidate_builder import build_candidate, open_manifests
from closeloop.tasks.change_parts import find_collection_rules
from closeloop.tasks.miner import (
    MiningContext,
    MiningEvent,
    MiningOptions,
    MiningResult,
    mine_tasks,
    open_rewording,
)
from closeloop.tasks.task_files import load_tasks
from closeloop.tasks.work_history import LedgerEntry, append_entry, list_past_work, read_ledger
from command_line import typed
from patience import SCALES
from small_project import PYTEST as TEST

SHOP = "def total(prices):\n    return sum(prices)\n"
TESTS = "from shop import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
FIXED = "def total(prices):\n    return sum(price for price in prices if price > 0)\n"
FIXED_TESTS = TESTS + "\n\ndef test_negative():\n    assert total([1, -2]) == 1\n"


class Project:
    """A repository with a past, and what mining is done with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        self.commit("Start", {"shop.py": SHOP, "test_shop.py": TESTS})

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(self.folder), *who, *arguments]
        env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
        ran = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
        return ran.stdout.strip()

    def commit(self, message: str, files: dict[str, str]) -> str:
        for name, text in files.items():
            (self.folder / name).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def mine(
        self,
        wish: MiningOptions,
        test: str | None = TEST,
        model: str | None = None,
        sandbox: SandboxSettings | None = None,
    ) -> MiningResult:
        self.told: list[MiningEvent] = []

        async def go() -> MiningResult:
            with open_store(str(self.folder / ".closeloop/closeloop.db")) as store:
                async with WorkspacePool(
                    self.folder / ".closeloop/cache", sandbox or SandboxSettings()
                ) as workspaces:
                    ground = MiningContext(
                        repo=self.folder,
                        tasks=self.folder / "tasks",
                        ledger=self.folder / ".closeloop/mined.jsonl",
                        commands=CommandSettings(test=test),
                        workspaces=workspaces,
                        store=store,
                    )
                    if model is None:
                        return await mine_tasks(ground, wish, self.told.append)
                    async with open_rewording(model, Settings(), self.folder, {}) as reword:
                        ground = msgspec.structs.replace(ground, reword=reword)
                        return await mine_tasks(ground, wish, self.told.append)

        return anyio.run(go)

    def tasks(self):
        return load_tasks(self.folder / "tasks", self.folder, resolve_commit)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # no test waits for the network
    return Project(tmp_path / "shop")


def test_work_with_tests_becomes_a_proved_task(project: Project) -> None:
    base = project.git("rev-parse", "HEAD")
    fix = project.commit(
        "Negative prices do not count (#3)\n\nThey made totals too small.\n\nFixes #2",
        {"shop.py": FIXED, "test_shop.py": FIXED_TESTS},
    )
    refactoring = project.commit(
        "Sum in a loop, which is easier to read",
        {
            "shop.py": FIXED + "\n\nNAMES = ('a',)\n",
            "test_shop.py": FIXED_TESTS + "\n\ndef test_more():\n    assert total([]) == 0\n",
        },
    )
    mined = project.mine(MiningOptions(repeats=1))
    assert mined.refused == {
        refactoring: "none of its tests fails without the change and passes with it"
    }
    (task,) = project.tasks()
    assert mined.tasks == (task.id,)
    assert task.id == f"negative-prices-do-not-count-{fix[:8]}"
    assert task.prompt == "Negative prices do not count\n\nThey made totals too small."
    assert task.base == base
    assert task.origin == f"mined:{fix}"
    assert task.acceptance.fail_to_pass == ("test_shop.py::test_negative",)
    with open_store(str(project.folder / ".closeloop/closeloop.db")) as store:
        proof = store.load_proof(task.grading)
    assert proof is not None
    assert proof.state == "proved"
    assert "test_negative" not in (task.reference or "")
    again = project.mine(MiningOptions(repeats=1))
    assert (again.tasks, again.before, again.tried) == ((), 1, 0)


def test_a_request_that_says_too_little_is_completed_by_what_fails_without_the_work(
    project: Project,
) -> None:
    more = "\n\ndef test_none():\n    assert total([]) == 0\n"
    project.commit("Fix: #3", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS + more})
    assert project.mine(MiningOptions(repeats=1)).refused == {}
    (task,) = project.tasks()
    assert task.prompt == (
        "Make the examples below hold.\n\nExamples of what must hold:\n\n"
        "```\ndef test_negative():\n    assert total([1, -2]) == 1\n```"
    )
    assert task.tags == ("mined", "examples-from-tests")


def test_a_request_that_nothing_completes_is_refused(project: Project) -> None:
    fast = "\n\ndef test_fast():\n    assert total([]) == 0\n"
    long = FIXED_TESTS + "".join(f"    assert total([{number}])\n" for number in range(1, 40))
    fix = project.commit("Fix: #3", {"shop.py": FIXED, "test_shop.py": long + fast})
    assert project.mine(MiningOptions(repeats=1)).refused == {
        fix: "its message has too little information, or only the solution, and no short test "
        "shows it"
    }


def test_a_test_file_at_the_root_that_pytest_does_not_collect_by_itself_is_mined(
    project: Project,
) -> None:
    tests = (project.folder / "test_shop.py").read_text()
    project.git("rm", "-q", "test_shop.py")
    project.commit("Put the tests into one file", {"test.py": tests})
    fix = project.commit(
        "Negative prices do not count, as they made totals too small",
        {"shop.py": FIXED, "test.py": FIXED_TESTS},
    )
    mined = project.mine(MiningOptions(repeats=1))
    assert mined.refused == {}
    (task,) = project.tasks()
    assert task.origin == f"mined:{fix}"
    assert task.acceptance.fail_to_pass == ("test.py::test_negative",)


def test_what_is_refused_names_the_files_and_is_tried_again_under_other_commands(
    project: Project,
) -> None:
    fix = project.commit("Negative prices do not count", {"shop.py": FIXED, "checks.py": "A = 1\n"})
    works = list_past_work(project.folder)
    with open_manifests(project.folder, fix) as folder:
        rules = find_collection_rules(folder, "pytest")
    (work,) = (work for work in works if work.commit == fix)
    assert build_candidate(project.folder, work, rules) == (
        "it changes no tests: the test command does not run checks.py, shop.py"
    )
    project.commit(
        "Count in a loop, which is easier to read",
        {"shop.py": FIXED + "A = 1\n", "test_shop.py": FIXED_TESTS.replace("negative", "below")},
    )
    assert project.mine(MiningOptions(repeats=1)).tried == 1
    assert project.mine(MiningOptions(repeats=1)).tried == 0
    assert project.mine(MiningOptions(repeats=1, named=True)).tried == 1
    assert project.mine(MiningOptions(repeats=1), test=f"{TEST} -p no:doctest").tried == 1


def test_tests_that_take_a_wrong_fix_are_no_proof(project: Project) -> None:
    commit = project.commit(
        "Totals can be had in euro too",
        {
            "shop.py": SHOP + "\n\ndef euro(prices):\n    return 1.0 if prices else 2.0\n",
            "test_shop.py": TESTS + "\n\ndef test_euro():\n    from shop import euro\n",
        },
    )
    (project.folder / "closeloop.toml").write_text(f'[commands]\ntest = "{TEST}"\n')
    mined = typed(project.folder, "mine", "--test-runs", "1")
    assert mined.returncode == 1
    assert f"  rejected {commit[:10]} Totals can be had in euro too: its tests also" in mined.stdout
    assert "the fix is removed, so they would not notice a wrong fix" in mined.stdout
    assert not (project.folder / "tasks").exists()


def test_tests_that_cannot_even_be_loaded_without_the_work_fail_without_it(
    project: Project,
) -> None:
    project.commit("Prepare", {"conftest.py": "import shop\n"})
    project.commit(
        "Prices are refunded by a function of their own",
        {
            "shop.py": SHOP + "\n\ndef refund(price):\n    return -price\n",
            "conftest.py": "from shop import refund\n",
            "test_shop.py": TESTS + "\n\ndef test_refund():\n    from shop import refund\n\n"
            "    assert refund(2) == -2\n",
        },
    )
    project.mine(MiningOptions(repeats=2))
    (task,) = project.tasks()
    assert "test_shop.py::test_refund" in task.acceptance.fail_to_pass


def test_of_a_suite_that_breaks_without_the_work_the_files_of_its_tests_are_run() -> None:
    """As in freezegun, where a test that fails leaves the clock stopped for pytest itself."""
    task = Task(id="clock", prompt="Stop it", acceptance=Acceptance(run="pytest"), tags=("mined",))
    before = attempt.TestRun(when="before")
    broken = attempt.Proof(task="clock", grading="", state="unproved", before=before)
    run = "pytest test_clock.py"
    selected = miner._with_own_files(task, broken, run)
    assert selected is not None
    assert (selected.acceptance.run, selected.tags) == (run, ("mined", "selected-tests"))
    assert miner._with_own_files(selected, broken, run) is None


def test_flaky_tests_are_not_asked_for(project: Project, tmp_path: Path) -> None:
    """Flaky without chance: it fails in every second run, counted outside the workspace."""
    runs = tmp_path / "runs"
    flaky = (
        "\n\ndef test_flaky():\n"
        f"    with open({str(runs)!r}, 'a') as runs:\n"
        "        runs.write('x')\n"
        "        assert runs.tell() % 2\n"
    )
    project.commit(
        "Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS + flaky}
    )
    project.mine(MiningOptions(repeats=3), sandbox=SandboxSettings(kind="none"))
    assert runs.stat().st_size > 2
    (task,) = project.tasks()
    assert task.acceptance.fail_to_pass == ("test_shop.py::test_negative",)
    assert "test_shop.py::test_flaky" not in task.acceptance.pass_to_pass


def test_a_repository_without_tests_says_so(project: Project) -> None:
    project.git("rm", "-q", "test_shop.py")
    project.commit("Drop the tests, nobody runs them", {"shop.py": SHOP + "\n"})
    with pytest.raises(BadInput, match="set it as `test`"):
        project.mine(MiningOptions(), test=None)


def test_a_repository_without_commits_says_so(project: Project) -> None:
    project.git("checkout", "-q", "--orphan", "new")
    with pytest.raises(BadInput, match="has no commits"):
        project.mine(MiningOptions())


def test_of_tests_that_fail_with_the_work_too_it_is_said(project: Project) -> None:
    cut = "\n\ndef test_far():\n    assert far\n    raise OSError('Network is unreachable')\n"
    commit = project.commit(
        "Prices may be asked for far away",
        {
            "shop.py": SHOP + "\n\nfar = True\n",
            "test_shop.py": TESTS.replace("total\n", "*\n", 1) + cut,
        },
    )
    mined = project.mine(MiningOptions(repeats=1))
    assert "1 also fail with it: they may need a network" in mined.refused[commit]


def test_what_skipped_tests_lack_of_an_extra_is_installed_for_them(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def add(recipe, output, packages, wanted=()):
        asked.append(tuple(wanted))
        test = f"HAS_RICH=1 {recipe.test}"  # as if it had been installed
        return msgspec.structs.replace(recipe, test=test) if wanted else None

    monkeypatch.setattr(mining_environments, "add_missing_packages", add)
    helper = "import os, pytest\nrich_required = pytest.mark.skipif(\n"
    helper += "    not os.getenv('HAS_RICH'), reason='Requires rich installed')\n"
    extra = "[project.optional-dependencies]\nshow = ['rich>=1']\n"
    project.commit("Prepare", {"helper.py": helper, "pyproject.toml": extra})
    tests = FIXED_TESTS.replace("def test_neg", "@rich_required\ndef test_neg")
    project.commit(
        "Leave out negative prices when adding up",
        {"shop.py": FIXED, "test_shop.py": f"from helper import rich_required\n{tests}"},
    )
    result = project.mine(MiningOptions(repeats=1))
    assert len(result.tasks) == 1, result.refused
    assert asked[-1] == ("rich",)


def test_a_command_that_hides_its_runner_is_mined_all_the_same(project: Project) -> None:
    project.commit("Script", {"run.sh": f"{TEST}\n"})
    project.commit("Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS})
    assert len(project.mine(MiningOptions(repeats=1), test="sh run.sh").tasks) == 1


def test_a_broken_environment_is_told_and_tried_again_another_day(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_recipes, "_UV_SETUP", ("false",))  # quicker to fail
    project.commit("Use more", {"conftest.py": "import no_such_package\n"})
    fix = project.commit(
        "Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS}
    )
    mined = project.mine(MiningOptions(repeats=1))
    assert "no environment" in mined.refused[fix]
    assert read_ledger(project.folder / ".closeloop/mined.jsonl")[fix].state == "failed"
    mended = f"touch no_such_package.py && {TEST}"
    assert len(project.mine(MiningOptions(repeats=1), test=mended).tasks) == 1


def test_where_no_recipe_works_each_is_tried_at_few_commits_and_why_is_said_alike(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_recipes, "_UV_SETUP", ("false",))
    monkeypatch.setattr(mining_environments, "MAX_TRIALS", 3)
    project.commit("Use more", {"conftest.py": "import no_such_package\n"})
    shop, tests = SHOP, TESTS
    for number in range(5):
        shop += f"\n\ndef add_{number}(price):\n    return price + {number}\n"
        tests += f"\n\ndef test_{number}():\n    assert add_{number}(1) == {number + 1}\n"
        project.commit(
            f"Add {number} to prices of the shop", {"shop.py": shop, "test_shop.py": tests}
        )
    mined = project.mine(MiningOptions(repeats=1, jobs=1))
    assert (len(mined.refused), len({*mined.refused.values()})) == (5, 1)
    assert mined.environments == 3 + 1 + 1
    assert "no test runs (" in next(iter(mined.refused.values()))


def test_a_commit_whose_tests_fail_anywhere_says_nothing_of_its_neighbours(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_recipes, "_UV_SETUP", ("false",))
    project.commit("Use what is nowhere", {"shop.py": f"import no_such_package\n{SHOP}"})
    broken = project.commit(
        "Negative prices do not count, as it should be in any shop",
        {"shop.py": FIXED, "test_shop.py": FIXED_TESTS},
    )
    project.git("revert", "--no-edit", "HEAD", "HEAD~1")
    project.commit("Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS})
    mined = project.mine(MiningOptions(repeats=1, jobs=1))
    assert "no environment" in mined.refused[broken]
    assert len(mined.tasks) == 1


def test_of_a_suite_without_end_some_tests_are_selected(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "import time\n\n\ndef test_slow():\n    time.sleep(2400)\n"
    for scale in SCALES:
        monkeypatch.setattr(mining_environments, "TRIAL_SECONDS", 4.0 * scale)
        there = Project(project.folder.with_name(f"shop-{scale}"))
        there.commit("Take forty minutes", {"test_slow.py": slow})
        there.commit(
            "Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS}
        )
        if there.mine(MiningOptions(repeats=1)).tasks:
            break
    (task,) = there.tasks()
    assert (task.acceptance.run or "").endswith(" test_shop.py")
    assert "selected-tests" in task.tags


def test_tests_that_take_too_long_and_cannot_be_selected_end_the_matter(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mining_environments, "TRIAL_SECONDS", 4.0)
    monkeypatch.setattr(miner, "TEST_FILES_SECONDS", 4.0)
    slow = "import time\n\n\ndef test_slow():\n    time.sleep(2400)\n"
    project.commit("Take forty minutes", {"test_slow.py": slow, "run.sh": f"{TEST}\n"})
    fix = project.commit(
        "Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS}
    )
    assert "take longer" in project.mine(MiningOptions(repeats=1), test="sh run.sh").refused[fix]


def test_time_is_kept_and_nothing_is_half_written(project: Project) -> None:
    project.commit("Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS})
    mined = project.mine(MiningOptions(seconds=0.01))
    assert (mined.tasks, mined.tried, mined.left) == ((), 0, 1)
    assert not list(project.folder.glob("tasks/*"))
    assert len(project.mine(MiningOptions(repeats=1)).tasks) == 1
    assert not list(project.folder.glob("tasks/.*"))


def test_tasks_whose_start_is_gone_from_a_rewritten_history_do_not_count(project: Project) -> None:
    base = project.git("rev-parse", "HEAD")
    project.commit("Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS})
    (project.folder / "tasks").mkdir()
    for name, start in {"a": base, "b": "f" * 40}.items():
        (project.folder / "tasks" / f"{name}.md").touch()
        entry = LedgerEntry(commit=name, state="proved", at=datetime.now(UTC), seconds=1.0)
        entry = msgspec.structs.replace(entry, task=name, change=name, base=start)
        append_entry(project.folder / ".closeloop/mined.jsonl", entry)
    mined = project.mine(MiningOptions(seconds=0.01))
    assert (mined.before, mined.lost, mined.left) == (1, 1, 1)


def test_a_model_may_reword_the_request_and_is_named_as_its_author(project: Project) -> None:
    project.commit("Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS})
    said = json.dumps({"request": "Totals come out too small: negative prices should not count."})
    (project.folder / "script.yaml").write_text(
        f"name: wordy\ndialogues:\n- turns:\n  - say: '{said}'\n"
    )
    project.mine(MiningOptions(repeats=1), model="scripted:script.yaml")
    (task,) = project.tasks()
    assert task.prompt_by == "model"
    assert task.prompt.startswith("Totals come out too small")
    assert "Examples of what must hold" in task.prompt, "the title alone was brief"


def test_a_torn_ledger_is_still_a_ledger(tmp_path: Path) -> None:
    entry = LedgerEntry(commit="a" * 40, state="refused", at=datetime.now(UTC), seconds=1.0)
    file = tmp_path / "mined.jsonl"
    append_entry(file, entry)
    with file.open("ab") as opened:
        opened.write('{"commit":"é'.encode()[:-1])
    append_entry(file, LedgerEntry(commit="c", state="proved", at=datetime.now(UTC), seconds=1.0))
    assert set(read_ledger(file)) == {"a" * 40, "c"}


def test_the_command_says_what_it_made(project: Project) -> None:
    project.commit("Negative prices do not count", {"shop.py": FIXED, "test_shop.py": FIXED_TESTS})
    (project.folder / "closeloop.toml").write_text(f'[commands]\ntest = "{TEST}"\n')
    command = [sys.executable, "-m", "closeloop", "mine", "--test-runs", "1", "--json"]
    ran = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)["tasks"]) == 1
    stages = [line.split()[0] for line in ran.stderr.splitlines() if line.strip()]
    assert [one for one in stages if one in ("surveyed", "trying", "verified")] == [
        "surveyed",
        "trying",
        "verified",
    ], "progress stands in logs, too"
    refused = subprocess.run(
        [*command[:4], "--limit", "0"], cwd=project.folder, capture_output=True, check=False
    )
    assert refused.returncode == 2


def test_many_rejected_commits_are_summed_up_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    vague = "its tests also pass when the fix is removed, so they would not notice a wrong fix"
    refused = {f"{number:040x}": vague for number in range(9)}
    refused |= {
        "a" * 40: "with the reference change, tests/test_a.py::test_one fails: 1",
        "b" * 40: "with the reference change, tests/test_b.py::test_two fails: 2",
    }
    titles = {commit: f"Change {number}" for number, commit in enumerate(refused)}
    lines = list(mine_command._list_rejections(refused, titles))
    assert lines == [
        f"  rejected 9: {vague}",
        "    0000000000 Change 0",
        "    0000000000 Change 1",
        "    … and 7 more: -v or --json lists all",
        "  rejected 2: with the reference change, tests/test_a.py::test_one fails: 1",
        "    aaaaaaaaaa Change 9",
        "    bbbbbbbbbb Change 10",
    ]
    monkeypatch.setattr(console, "verbosity", console.VERBOSE)
    assert len(list(mine_command._list_rejections(refused, titles))) == 11
