"""What a run that is killed leaves behind, and who clears it away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import small_project
from closeloop.records.settings import SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool
from patience import until

VARIANT = """
[variants.sleeper]
agent = "command"
model = "scripted:closer.yaml"
[variants.sleeper.settings]
program = "sleep 30"
"""


def swept(cache: Path) -> bool:
    WorkspacePool(cache, SandboxSettings(kind="none")).close()
    return not list(cache.glob("runs/*/*"))


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
        assert until(lambda: list(cache.glob("runs/*/*/*/model.sock")))
        going.kill()
        going.wait()
        assert list((tmp_path / "tmp").iterdir()) == []
        # A process that was being started holds on to the lock until it begins.
        assert until(lambda: swept(cache))
    finally:
        going.kill()
