"""`make test` runs what failed once more, alone: what then passes is printed as flaky."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RERUN = Path(__file__).parent / "rerun.py"
FINE = "def test_fine():\n    pass\n"
ONCE = """
from pathlib import Path

def test_once():
    before = Path("{name}").exists()
    Path("{name}").touch()
    assert before, "the first time\\nis the worst"
"""
WRONG = "def test_wrong():\n    assert 1 == 2\n"


def ran(folder: Path, *arguments: str, **files: str) -> tuple[int, list[str]]:
    """The exit code and what it printed, in a project of these files."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text.replace("{name}", name))
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    # Without the plug-ins of whoever runs these tests, which take most of its time.
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ("-p", "xdist.plugin") if "-n" in arguments else ()
    result = subprocess.run(
        [sys.executable, str(RERUN), "-p", "no:cacheprovider", *plugins, *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout.splitlines()


def test_a_run_without_failures_ends_as_pytest_ends_it(tmp_path: Path) -> None:
    code, lines = ran(tmp_path, fine=FINE)
    assert code == 0
    assert "1 passed" in lines[-1]


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_test_that_passes_alone_is_printed_as_flaky(tmp_path: Path, processes: str) -> None:
    code, lines = ran(tmp_path, "-n", processes, fine=FINE, once=ONCE)
    assert code == 0
    flaky = "FLAKY: test_once.py::test_once: AssertionError: the first time"
    assert lines[-2:] == [flaky, "2 passed, 0 failed"]


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    code, lines = ran(tmp_path, fine=FINE, once=ONCE, wrong=WRONG)
    assert code == 1
    assert lines[-2].startswith("FLAKY: test_once.py::test_once: ")
    assert lines[-1] == "2 passed, 1 failed"


def test_too_many_failures_are_not_run_again(tmp_path: Path) -> None:
    code, lines = ran(tmp_path, **{f"once{number}": ONCE for number in range(6)})
    assert code == 1
    assert "6 failed" in lines[-1]
    assert not any(line.startswith("FLAKY: ") for line in lines)


@pytest.mark.parametrize(
    "broken",
    ["import nowhere_at_all\n", "import os\n\n\ndef test_crash():\n    os._exit(3)\n"],
    ids=["collection", "crash"],
)
def test_what_cannot_be_collected_and_what_crashes_is_not_retried_away(
    tmp_path: Path, broken: str
) -> None:
    code, lines = ran(tmp_path, "-n", "2", once=ONCE, broken=broken)
    assert code != 0
    assert not any(line.startswith("FLAKY: ") for line in lines)


def test_a_run_that_is_stopped_early_is_not_made_good(tmp_path: Path) -> None:
    code, lines = ran(tmp_path, "-x", once=ONCE, zebra=FINE)
    assert code != 0
    assert not any(line.startswith("FLAKY: ") for line in lines)
