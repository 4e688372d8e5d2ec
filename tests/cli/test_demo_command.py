"""`closeloop demo` refuses what it cannot do, before anything is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from command_line import typed


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
        "main(['check', 'HEAD', '--tier', 'quality', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "code after a return needs ast-grep: install it with pip install" in done.stdout
    assert "ty is not installed: install it with pip install 'closeloop[check]'" in done.stdout
