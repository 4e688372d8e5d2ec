"""What others ask of a task's repository: whose it is, and when the work began."""

from __future__ import annotations

import re
from pathlib import Path

from closeloop.git import try_text
from closeloop.model.task import Task
from closeloop.tasks.exchange.swebench import Source
from closeloop.tasks.files import is_address

_OWNED = re.compile(r"[/:]([\w.-]{1,100})/([\w.-]{1,100}?)(?:\.git)?/?$")


def source_of(task: Task) -> Source:
    """By its address, or that which its clone was made from; else a name of our own."""
    repo = task.repo or ""
    address = repo if is_address(repo) else try_text(repo, "remote", "get-url", "origin").strip()
    found = _OWNED.search(address) if is_address(address) else None
    short = re.sub(r"[^\w.-]+", "-", Path(repo).name) or "task"
    return Source(
        repo=f"{found[1]}/{found[2]}" if found else f"local/{short}",
        created_at=try_text(repo, "show", "-s", "--format=%cI", f"{task.base}^{{commit}}").strip(),
    )
