"""How the demo is made for its tests: built, its tasks checked, and run by both agents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from closeloop import demo as closeloop_demo
from closeloop.grading.integrity import confirm
from command_line import typed
from warm_pytest import FOLDER

DEMO = closeloop_demo.DATA
BARE_PYTEST = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"


def closeloop(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As typed, where `python` is the one that has pytest, and only that; with `warm_python`."""
    path = f"{FOLDER}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return typed(folder, *arguments, PATH=path, **{BARE_PYTEST: "1"})


def make_tried_demo(folder: Path) -> None:
    closeloop_demo.build_demo(folder)
    with (folder / "closeloop.toml").open("a") as settings:
        settings.write(f'\n[sandbox]\nkind = "none"\nenv = ["{BARE_PYTEST}"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confirm, "MIN_ASSERTIONS", ())  # probe once: tests/runs covers further rounds
        for words in (
            ("task", "check", "--test-runs", "1"),
            ("run", "--variant", "careful"),
            ("gate", "--save", "--reason", "the one we trust"),
            ("run",),
        ):
            done = closeloop(folder, *words)
            assert done.returncode == 0, done.stdout + done.stderr
