"""`closeloop demo`: the sample project, built and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEFAULT_FOLDER = Path("closeloop-demo")
INTRODUCTION = """
Nine tasks on a small invoicing project and two agents, each attempt in its own sandbox.
Commands, edits and tests are real; only the two models' replies are scripted.
"""


def demo(folder: Path = DEFAULT_FOLDER, /) -> int:
    """Build the sample project in a folder, run two scripted agents on it, and report on them.

    No API key is needed. If the results already exist, they are shown again.

    Parameters
    ----------
    folder
        The folder to create.
    """
    from closeloop.cli.console import print_line
    from closeloop.demo import build_demo

    require_pytest()
    folder = build_demo(folder.absolute())
    # The demo's tests run with the Python that has pytest.
    programs = str(Path(sys.executable).parent)
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    os.chdir(folder)
    print_line(INTRODUCTION)
    if code := run_closeloop("run"):
        return code
    print_line("\nFindings in how they worked:")
    if code := run_closeloop("measure"):
        return code
    print_line(
        f"\nNext, in {folder}:\n"
        "  closeloop serve                      # the dashboard at http://127.0.0.1:4318\n"
        "  closeloop compare careful looping    # which variant is better, and how sure that is\n"
        "  closeloop run --model anthropic/NAME # a real model, with ANTHROPIC_API_KEY set"
    )
    if sys.stdin.isatty() and sys.stdout.isatty():
        print_line("\nStarting the dashboard; press Ctrl-C to stop it.")
        return run_closeloop("serve")
    return 0


def run_closeloop(*arguments: str) -> int:
    """Run a command in a process of its own, as somebody would type it."""
    command = [sys.executable, "-P", "-m", "closeloop", *arguments]
    return subprocess.run(command, check=False).returncode


def require_pytest() -> None:
    """The sample project's tests are pytest's."""
    from importlib.util import find_spec

    from closeloop.records.errors import BadInput

    if find_spec("pytest") is None:
        raise BadInput("The demo's tests need pytest: pip install 'closeloop[demo]'.")
