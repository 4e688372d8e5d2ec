"""A warm pytest does what `python -m pytest` does, and does not outlive whoever asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from patience import until

TESTS = """\
import os, sys

def test_place():
    print([sys.argv[1:], os.getcwd(), sys.path[:2], os.environ["GIVEN"], sys.stdin.read()])
    assert __name__ == "test_here"

def test_wrong():
    assert os.environ["GIVEN"] == "something else"
"""


def run_pytest(python: str, folder: Path) -> subprocess.CompletedProcess[str]:
    given = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "GIVEN": "a\nb", "PYTHONPATH": "/nowhere"}
    return subprocess.run(
        [python, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--durations=0", "-s", "."],
        cwd=folder,
        env={**os.environ, **given},
        input="typed",
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_does_what_pytest_does(warm_python: str, tmp_path: Path) -> None:
    (tmp_path / "test_here.py").write_text(TESTS)
    plain, warm = (run_pytest(python, tmp_path) for python in (sys.executable, warm_python))
    assert (warm.returncode, warm.stderr) == (plain.returncode, plain.stderr) == (1, "")

    def without_times(text: str) -> list[str]:
        return [line for line in text.splitlines() if "s call" not in line and " in " not in line]

    assert without_times(warm.stdout) == without_times(plain.stdout)
    assert "'a\\nb', 'typed'" in warm.stdout


def test_other_programs_of_python_are_python_itself(warm_python: str) -> None:
    words = ["-c", "import sys; print(sys.executable); sys.exit(7)"]
    ran = subprocess.run([warm_python, *words], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (7, sys.executable)


@pytest.mark.parametrize("dies", ["the copy", "whoever asked"])
def test_both_are_killed_together(warm_python: str, tmp_path: Path, dies: str) -> None:
    (tmp_path / "test_here.py").write_text(
        "import os, signal\nfrom pathlib import Path\n\ndef test_long():\n"
        "    Path('new').write_text(str(os.getpid()))\n    os.rename('new', 'pid')\n"
        "    signal.pause()\n"
    )
    asking = subprocess.Popen([warm_python, "-m", "pytest", "-q", "."], cwd=tmp_path)
    assert until((tmp_path / "pid").exists)
    copy = int((tmp_path / "pid").read_text())
    assert copy != asking.pid
    os.kill(copy if dies == "the copy" else asking.pid, signal.SIGKILL)
    assert asking.wait() == -signal.SIGKILL
    assert until(lambda: not Path(f"/proc/{copy}").exists())
