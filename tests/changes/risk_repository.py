"""Real repositories of two commits and more, to assess changes in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.records.change import Inspection
from closeloop.records.settings import CheckSettings

DAY = 86_400
START = 1_600_000_000
Files = Mapping[str, str | bytes | None]
"""By path, the content; None takes the file away."""


def git(folder: Path, *arguments: str, at: int = START, author: str = "ann") -> str:
    who = {
        f"GIT_{role}_{part}": f"{author}@example.org"
        for role in ("AUTHOR", "COMMITTER")
        for part in ("NAME", "EMAIL")
    }
    when = {f"GIT_{role}_DATE": f"{at} +0000" for role in ("AUTHOR", "COMMITTER")}
    config = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    ran = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **who, **when, **config},
        capture_output=True,
        check=True,
    )
    return ran.stdout.decode().strip()


def commit(
    folder: Path, files: Files, message: str = "More", *, at: int = START, author: str = "ann"
) -> str:
    if not (folder / ".git").exists():
        folder.mkdir(exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else dedent(content).encode())
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message, at=at, author=author)
    return git(folder, "rev-parse", "HEAD")


@contextmanager
def changed(folder: Path, before: Files, after: Files) -> Iterator[Inspection]:
    """The change from one state to the next, laid open."""
    commit(folder, before)
    commit(folder, after)
    settings = CheckSettings()
    with (
        open_sides(folder, ChangeQuery(range="HEAD~1..HEAD")) as sides,
        open_index(sides, folder / ".git" / "cache", settings) as index,
    ):
        yield inspect_change(sides, index, settings=settings)
