"""Fixtures for the tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_trees import git

from closeloop.grading.integrity import confirm


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Three commits on two branches, with a tag, a link, a program and an ignored file."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "readme").write_text("one\n")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    (folder / "link").symlink_to("readme")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    (folder / "readme").write_text("two\n")
    git(folder, "commit", "-qam", "second")
    git(folder, "tag", "-a", "v1", "-m", "v1")
    git(folder, "checkout", "-qb", "later")
    (folder / "answer").write_text("the future fix\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "future")
    git(folder, "checkout", "-q", "main")
    return folder


@pytest.fixture(autouse=True)
def one_round(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe once, but for tests with the mark `all_rounds`: chance alone decides on the others."""
    if request.node.get_closest_marker("all_rounds") is None:
        monkeypatch.setattr(confirm, "MIN_ASSERTIONS", ())
