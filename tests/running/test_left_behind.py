"""What a run that is killed leaves behind, and who clears it away."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import small_project
from closeloop.model.settings import SandboxSettings
from closeloop.runs.workspaces import Workspaces

VARIANT = """
[variants.sleeper]
agent = "command"
model = "scripted:closer.yaml"
[variants.sleeper.settings]
program = "sleep 5"
"""


def test_the_sockets_of_a_killed_run_are_swept_by_the_next_one(tmp_path):
    project = small_project.build(tmp_path / "project", sandbox="none")
    file = project / "closeloop.toml"
    file.write_text(file.read_text() + VARIANT)
    (tmp_path / "tmp").mkdir()
    going = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "run", "question", "--variant", "sleeper"],
        cwd=project,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.DEVNULL,
    )
    cache = project / ".closeloop" / "cache"
    try:
        end = time.monotonic() + 30
        while not list(cache.glob("runs/*/*/*/model.sock")) and time.monotonic() < end:
            time.sleep(0.05)
        assert list(cache.glob("runs/*/*/*/model.sock"))
        going.kill()
        going.wait()
        assert list((tmp_path / "tmp").iterdir()) == []
        Workspaces(cache, SandboxSettings(kind="none")).close()
        assert list(cache.glob("runs/*/*")) == []
    finally:
        going.kill()
