"""What others ask of a task's repository: whose it is, and when the work began."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from closeloop.model.task import Task
from closeloop.tasks.exchange.swebench import Source
from closeloop.tasks.files import is_address

_OWNED = re.compile(r"[/:]([\w.-]{1,100})/([\w.-]{1,100}?)(?:\.git)?/?$")


def source_of(task: Task) -> Source:
    """By its address, or that which its clone was made from; else a name of our own."""
    repo = task.repo or ""
    address = repo if is_address(repo) else _git(repo, "remote", "get-url", "origin")
    found = _OWNED.search(address) if is_address(address) else None
    short = re.sub(r"[^\w.-]+", "-", Path(repo).name) or "task"
    return Source(
        repo=f"{found[1]}/{found[2]}" if found else f"local/{short}",
        created_at=_git(repo, "show", "-s", "--format=%cI", f"{task.base}^{{commit}}"),
    )


def _git(repo: str, *arguments: str) -> str:
    """What git says; nothing where the repository is elsewhere."""
    if not Path(repo).is_dir():
        return ""
    command = ["git", "-C", repo, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
