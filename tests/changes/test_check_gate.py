"""The gate of `check` never opens by itself: every way for a tool to end, before and after."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from closeloop.changes.change_check import CheckRequest
from closeloop.changes.change_sides import ChangeQuery, CheckContext, open_sides
from closeloop.changes.check_verdict import decide_verdict
from closeloop.changes.tool_comparison import CheckTool, ToolResult, compare_once
from closeloop.flow import check_change
from closeloop.records.change import ChangeReport, GatePolicy
from closeloop.records.settings import CheckSettings, CommandSettings, SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool
from patience import PATIENCE, SCALES
from small_project import pytest_command
from warm_pytest import PYTHON

pytestmark = pytest.mark.usefixtures("warm_python")

PYTEST = pytest_command(PYTHON)
FILES = {
    "cart.py": "def total(prices):\n    return sum(prices)\n\n\ndef count(prices):\n    return 0\n",
    "tests/test_total.py": (
        "import sys\n\nsys.path.insert(0, '.')\nfrom cart import total\n\n\n"
        "class TestTotal:\n"
        "    def test_total(self):\n        assert total([1, 2]) == 3\n\n"
        "    def test_nothing(self):\n        assert total([]) == 0\n"
    ),
    "tests/test_count.py": (
        "import sys\n\nimport pytest\n\nsys.path.insert(0, '.')\nfrom cart import count\n\n\n"
        "def test_count():\n    assert count([1, 2]) == 2\n\n\n"
        "@pytest.mark.parametrize('prices', [[], ()])\n"
        "def test_none(prices):\n    assert count(prices) == 0\n"
    ),
    "pyproject.toml": "[tool.pytest.ini_options]\ntestpaths = ['tests']\n",
}


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """One of its tests fails, before any change."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    write(folder, FILES)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Start")
    return folder


SETTINGS = CheckSettings(timeout=PATIENCE)


def checked(repo: Path, settings: CheckSettings = SETTINGS, **commands: object) -> ChangeReport:
    """The tools' tier of a check of the working tree."""

    async def go() -> ChangeReport:
        cache = repo.parent / "cache"
        order = CheckRequest(
            root=repo,
            cache=cache,
            commands=CommandSettings(**{"test": PYTEST, **commands}),  # type: ignore[arg-type]
            settings=settings,
            tiers=("tools",),
        )
        async with WorkspacePool(cache / "workspaces", SandboxSettings(kind="none")) as workspaces:
            return await check_change(order, workspaces)

    return anyio.run(go)


def short(names: tuple[str, ...]) -> list[str]:
    return [name.partition("::")[2].partition(": ")[0] for name in names]


# Every combination

PASSED = {"a": "passed", "b": "failed"}
ENDINGS: dict[str, ToolResult] = {
    "passed": ToolResult(state="passed", tests={"a": "passed", "b": "passed"}),
    "failed": ToolResult(state="failed", tests=PASSED, failures={"b": "…"}),
    "failed without results": ToolResult(state="failed"),
    "no test ran": ToolResult(state="inert", note="no test ran"),
    "timed out": ToolResult(state="timed out"),
    "not set up": ToolResult(state="not set up"),
    "tool missing": ToolResult(state="inert"),
    "machine trouble": ToolResult(state="machine trouble"),
}
LINT = {
    **ENDINGS,
    "passed": ToolResult(state="passed"),
    "failed": ToolResult(state="failed", failures={"b": "…"}),
}
STANDING = (
    ("failed", "failed"),
    ("failed without results", "failed without results"),
    ("timed out", "timed out"),
    ("not set up", "not set up"),
    *itertools.product(("no test ran", "tool missing"), repeat=2),
)
"""Red in the same way without the change: with `regression_only` the one way past the gate."""
BLAMED = (
    *itertools.product(
        ("passed", "failed"),
        ("failed without results", "no test ran", "tool missing", "timed out", "not set up"),
    ),
    *itertools.product(
        ("failed without results", "no test ran", "tool missing"), ("timed out", "not set up")
    ),
    ("passed", "failed"),
    ("timed out", "not set up"),
    ("not set up", "timed out"),
)
"""The change broke it. Whatever else is red cannot be compared, and stays outside as well."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckContext]:
    folder = tmp_path_factory.mktemp("table") / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    write(folder, {"a.py": "x = 1\n"})
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Start")
    write(folder, {"a.py": "x = 2\n"})
    cache = folder.parent / "cache"
    with open_sides(folder, ChangeQuery()) as sides:
        workspaces = WorkspacePool(cache, SandboxSettings(kind="none"))
        yield CheckContext(workspaces=workspaces, bases={}, sides=sides)
        workspaces.close()


@pytest.mark.parametrize("kind", ["test", "lint", "types", "build", "own"])
@pytest.mark.parametrize(("before", "after"), list(itertools.product(ENDINGS, ENDINGS)))
def test_only_what_is_shown_to_be_no_worse_passes_the_gate(
    bench: CheckContext, before: str, after: str, kind: str
) -> None:
    endings = ENDINGS if kind == "test" else LINT
    tool = CheckTool(name=kind, command="run", is_test=kind == "test")
    run = compare_once(bench, tool, endings[before], endings[after])

    def verdict(gate: GatePolicy) -> str:
        return decide_verdict(CheckSettings(gate=gate), [run], [], None).verdict

    worst = "pass" if after == "passed" else "warn"
    no_worse = after == "passed" or (before, after) in STANDING
    assert verdict("informational") == worst
    assert verdict("regression_only") == (worst if no_worse else "block")
    assert verdict("strict") == ("pass" if after == "passed" else "block")
    blamed = "broken" if (before, after) in BLAMED else "unknown"
    assert run.outcome == ("no worse" if no_worse else blamed)
    assert run.mended == (("b",) if (before, after) == ("failed", "passed") else ())


# A change that stops the tests


@pytest.mark.parametrize(
    ("files", "commands"),
    [
        ({"tests/conftest.py": "import nowhere_at_all\n"}, {}),
        ({"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--nope'\n"}, {}),
        ({"pyproject.toml": "[tool.pytest.ini_options\n"}, {}),
        ({"tests/conftest.py": "import os\n\nos._exit(0)\n"}, {}),
        ({"tests/conftest.py": "collect_ignore_glob = ['*']\n"}, {}),
        ({"requirements.txt": "no such package\n"}, {"setup": ("test ! -e requirements.txt",)}),
    ],
    ids=["conftest", "addopts", "no toml", "exit", "ignored", "packages"],
)
def test_a_change_that_stops_every_test_is_blocked(
    repo: Path, files: dict[str, str], commands: dict[str, object]
) -> None:
    write(repo, files)
    report = checked(repo, **commands)
    (test,) = report.tools
    assert (report.verdict, test.outcome) == ("block", "broken"), report.reasons
    assert test.mended == ()
    assert sorted(short(test.lost)) == [
        "TestTotal::test_nothing",
        "TestTotal::test_total",
        "test_none[prices0]",
        "test_none[prices1]",
    ]


@pytest.mark.parametrize(
    "files",
    [
        {"tests/conftest.py": "collect_ignore = ['test_total.py']\n"},
        {
            "tests/conftest.py": "def pytest_collection_modifyitems(items):\n"
            "    items[:] = [one for one in items if 'otal' not in one.nodeid]\n"
        },
        {
            "tests/conftest.py": "import pytest\n\n\ndef pytest_runtest_setup(item):\n"
            "    if 'Total' in item.nodeid:\n        pytest.skip('not now')\n"
        },
        {"tests/test_total.py": FILES["tests/test_total.py"].replace("TestTotal", "Totals")},
    ],
    ids=["ignored", "deselected", "skipped", "no longer collected"],
)
def test_tests_that_are_kept_from_running_are_broken(repo: Path, files: dict[str, str]) -> None:
    write(repo, files)
    report = checked(repo)
    assert report.verdict == "block"
    assert report.reasons == ("2 no longer running in test",)
    assert short(report.tools[0].lost) == ["TestTotal::test_total", "TestTotal::test_nothing"]


# Honest changes


def move(repo: Path, old: str, new: str) -> None:
    (repo / new).parent.mkdir(exist_ok=True)
    (repo / old).rename(repo / new)


def test_tests_of_a_renamed_file_are_known_by_their_new_name(repo: Path) -> None:
    move(repo, "tests/test_total.py", "tests/more/test_sum.py")
    move(repo, "tests/test_count.py", "tests/test_number.py")
    report = checked(repo)
    (test,) = report.tools
    assert (report.verdict, test.outcome, test.removed) == ("warn", "no worse", ())
    assert [name.partition("::")[0] for name in test.already] == ["tests/test_number.py"]


def test_a_renamed_class_and_a_moved_test_still_run(repo: Path) -> None:
    text = FILES["tests/test_total.py"].replace("TestTotal", "TestSum")
    moved = "    def test_nothing(self):\n        assert total([]) == 0\n"
    write(
        repo,
        {
            "tests/test_total.py": text.replace(moved, ""),
            "tests/test_empty.py": f"from cart import total\n\n\nclass TestEmpty:\n{moved}",
        },
    )
    report = checked(repo)
    assert (report.verdict, report.tools[0].removed) == ("warn", ())
    assert report.reasons == ("test failed, as without this change",)


def test_a_test_that_goes_with_its_code_is_reported_and_blocks_nothing(repo: Path) -> None:
    (repo / "tests/test_total.py").unlink()
    write(repo, {"cart.py": "def count(prices):\n    return len(prices)\n"})
    report = checked(repo)
    (test,) = report.tools
    assert (report.verdict, report.reasons) == ("pass", ())
    assert short(test.removed) == ["TestTotal::test_total", "TestTotal::test_nothing"]
    assert short(test.mended) == ["test_count"]


def test_a_removed_function_and_a_removed_case_are_reported(repo: Path) -> None:
    total = FILES["tests/test_total.py"].partition("    def test_nothing")[0]
    count = FILES["tests/test_count.py"].replace("[[], ()]", "[[]]")
    write(repo, {"tests/test_total.py": total, "tests/test_count.py": count})
    report = checked(repo)
    assert report.verdict == "warn"
    assert sorted(short(report.tools[0].removed)) == [
        "TestTotal::test_nothing",
        "test_none[prices1]",
    ]


def test_a_test_that_runs_now_and_then_is_not_missed(repo: Path, tmp_path: Path) -> None:
    """Its name differs from run to run."""
    odd = "import os\n\n\nglobals()[f'test_{os.getpid()}'] = lambda: None\n"
    write(repo, {"tests/test_odd.py": odd})
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "Add an odd one")
    write(repo, {"notes.txt": "a change\n"})
    report = checked(repo)
    assert (report.verdict, report.tools[0].lost) == ("warn", ())


# One side only


def test_a_base_that_takes_too_long_mends_nothing_and_hides_nothing(repo: Path) -> None:
    slow = "import time\n\ntime.sleep(600)\n"
    write(repo, {"tests/conftest.py": slow})
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "Be slow")
    (repo / "tests/conftest.py").unlink()
    for scale in SCALES:
        report = checked(repo, CheckSettings(timeout=4.0 * scale, tests="all"))
        (test,) = report.tools
        if test.after == "failed":
            break
    assert (test.before, test.after, test.outcome) == ("timed out", "failed", "unknown")
    assert (test.mended, report.verdict) == ((), "block")


def test_a_suite_that_only_the_change_makes_slow_is_not_narrowed(repo: Path) -> None:
    write(repo, {"tests/test_slow.py": "import time\n\n\ndef test_slow():\n    time.sleep(600)\n"})
    write(repo, {"cart.py": FILES["cart.py"] + "\n\nBIG = 1\n"})
    for scale in SCALES:
        report = checked(repo, CheckSettings(timeout=4.0 * scale))
        (test,) = report.tools
        if test.before == "failed":
            break
    assert (test.after, test.selected, test.outcome) == ("timed out", None, "broken")
    assert report.reasons == ("test timed out",)


def test_a_base_that_cannot_be_set_up_says_nothing_about_the_change(repo: Path) -> None:
    setup = ("grep -q right requirements.txt",)
    write(repo, {"requirements.txt": "wrong\n"})
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "Ask for the wrong thing")
    write(repo, {"requirements.txt": "right\n"})
    (lint, test) = checked(repo, setup=setup, lint="true").tools
    assert (lint.before, lint.after, lint.outcome) == ("not set up", "passed", "no worse")
    assert (test.before, test.after, test.outcome) == ("not set up", "failed", "unknown")
    assert test.mended == ()


def test_selected_tests_that_are_new_are_not_looked_for_before(repo: Path) -> None:
    move(repo, "tests/test_count.py", "tests/test_number.py")
    write(repo, {"tests/test_new.py": "def test_new():\n    pass\n"})
    (test,) = checked(repo, CheckSettings(timeout=PATIENCE, tests="selected")).tools
    assert test.selected
    assert (test.before, test.after, test.outcome) == ("failed", "failed", "no worse")
    assert (test.lost, test.removed) == ((), ())
