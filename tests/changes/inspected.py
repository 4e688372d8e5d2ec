"""A change in a real repository, laid open for one check."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.records.change import Inspection
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.settings import CheckSettings

Files = Mapping[str, str | bytes | None]
_GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{
        f"GIT_{who}_{what}": "someone@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    },
}


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", *arguments], cwd=folder, env={**os.environ, **_GIT}, check=True, capture_output=True
    )


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def inspected(
    folder: Path, before: Files, after: Files, settings: CheckSettings | None = None
) -> Iterator[Inspection]:
    """The change from `before` to `after`; a file that is None afterwards is deleted."""
    repository = folder / "repository"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    write(repository, before)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "--allow-empty", "-m", "Start")
    write(repository, after)
    chosen = settings or CheckSettings()
    with (
        open_sides(repository, ChangeQuery()) as sides,
        open_index(sides, folder / "cache", chosen) as index,
    ):
        yield inspect_change(sides, index, settings=chosen)


def said(
    check: Any, folder: Path, before: Files, after: Files, settings: CheckSettings | None = None
) -> list[Finding]:
    """What one check finds."""
    with inspected(folder, before, after, settings) as inspection:
        found = check.check(inspection)
    assert not [one for one in found if isinstance(one, Unmeasured)]
    return list(found)


def told(findings: list[Finding]) -> list[tuple[str, str]]:
    """Severity and first place, which is what a reviewer sees."""
    return [(one.severity, one.places[0]) for one in findings]
