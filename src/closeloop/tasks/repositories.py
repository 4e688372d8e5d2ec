"""Ask the repository of a task, which may be elsewhere."""

from __future__ import annotations

import subprocess


def asked(repo: str, *arguments: str, given: str = "") -> str:
    """What git says; nothing where it fails, as then nothing is known."""
    command = ["git", "-C", repo, *arguments]
    done = subprocess.run(command, input=given.encode(), capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
