"""`closeloop demo` refuses what it cannot do, before anything is run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from command_line import typed
from patience import PATIENCE, until


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = typed(tmp_path, "demo", ".")
    assert done.returncode == 2
    assert "is not empty, and not a demo: choose another folder." in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_pytest_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from closeloop.cli import main\nmain(['demo', 'there'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "The demo's tests need pytest: pip install 'closeloop[demo]'." in done.stderr
    assert not (tmp_path / "there").exists()


def test_ctrl_c_ends_the_dashboard_of_the_demo_once(tmp_path: Path) -> None:
    """A terminal sends the signal to the demo and to the dashboard that it started."""
    (tmp_path / "closeloop.toml").write_text("")
    code = (
        "import sys; from closeloop.cli.run import run_closeloop\n"
        "sys.exit(run_closeloop('serve', '--port', '0'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    assert until(lambda: is_up(address))
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=PATIENCE)
    assert printed.count("topped.") == 1
    assert printed.splitlines()[-1] == "Dashboard stopped."
    assert process.returncode == 0


def is_up(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=PATIENCE).is_success
    except httpx.TransportError:
        return False


def test_a_check_without_its_tools_names_the_command_that_installs_them(tmp_path: Path) -> None:
    """What needs no tool is checked all the same."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    for text in ("def one():\n    return 1\n", "def one():\n    return 2\n    return 3\n"):
        (tmp_path / "module.py").write_text(text)
        subprocess.run([*git, "add", "."], cwd=tmp_path, check=True)
        subprocess.run([*git, "commit", "-qm", "Change"], cwd=tmp_path, check=True)
    code = (
        "import os, sys, sysconfig\n"
        "sys.modules['ast_grep_py'] = sys.modules['ty'] = None\n"
        "sysconfig.get_path = lambda name: '/nowhere'\n"
        "os.environ['PATH'] = '/usr/bin:/bin'\n"
        "from closeloop.cli import main\n"
        "main(['check', 'HEAD', '--tier', 'quality', '--format', 'terminal', "
        "'--format', 'json=report.json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "report.json").read_text()
    assert "code after a return needs ast-grep: install it with pip install" in report
    assert "ty is not installed: install it with pip install 'closeloop[check]'" in report
    assert "dead-code, hallucinated-name, unsafe-code: install ruff, ty and ast-grep" in done.stdout
