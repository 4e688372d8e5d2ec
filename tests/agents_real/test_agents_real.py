"""Real agents, where they are installed: `CLOSELOOP_AGENTS=.agents make test` runs them too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = os.environ.get("CLOSELOOP_AGENTS")


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="CLOSELOOP_AGENTS names no folder: see `make agents`")
@pytest.mark.parametrize("name", ["aider", "claude-code", "codex", "gemini-cli", "mini-swe-agent",
                                  "opencode", "openhands", "pi", "qwen-code"])  # fmt: skip
def test_a_real_agent_mends_two_repositories_and_every_token_is_counted(
    name: str, tmp_path: Path
) -> None:
    folder = Path(INSTALLED or "").absolute()
    if not (folder / name).is_dir():
        pytest.skip(f"{name} is not installed there")
    command = [sys.executable, str(ROOT / "examples" / "agents" / "demo.py")]
    ran = subprocess.run(
        [*command, str(folder), str(tmp_path), name], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 of 2 are as they should be" in ran.stdout
