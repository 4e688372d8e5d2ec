"""What others ask of a task's repository: whose it is, and when the work began."""

from __future__ import annotations

import re
from pathlib import Path

from closeloop.git import try_git_text
from closeloop.records.task import Task
from closeloop.tasks.exchange.swebench import SwebenchSource
from closeloop.tasks.task_files import is_repository_address

_OWNER_AND_NAME = re.compile(r"[/:]([\w.-]{1,100})/([\w.-]{1,100}?)(?:\.git)?/?$")


def read_swebench_source(task: Task) -> SwebenchSource:
    """By its address, or that which its clone was made from; else a name of our own."""
    repo = task.repo or ""
    address = (
        repo
        if is_repository_address(repo)
        else try_git_text(repo, "remote", "get-url", "origin").strip()
    )
    match = _OWNER_AND_NAME.search(address) if is_repository_address(address) else None
    folder_name = re.sub(r"[^\w.-]+", "-", Path(repo).name) or "task"
    return SwebenchSource(
        repo=f"{match[1]}/{match[2]}" if match else f"local/{folder_name}",
        created_at=try_git_text(
            repo, "show", "-s", "--format=%cI", f"{task.base}^{{commit}}"
        ).strip(),
    )
