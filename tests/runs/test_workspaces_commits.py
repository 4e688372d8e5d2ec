"""Which commit somebody means."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_trees import git

from closeloop.records.errors import BadInput
from closeloop.sandbox.workspaces import resolve_commit


def test_any_way_to_name_a_commit_gives_its_id(repo: Path) -> None:
    second = git(repo, "rev-parse", "main")
    for name in ("main", "HEAD", "v1", second[:8], second, "later~1"):
        assert resolve_commit(repo, name) == second
    assert resolve_commit(f"file://{repo}", "v1") == second
    assert resolve_commit(f"file://{repo}", "main") == second
    assert resolve_commit(f"file://{repo}", second) == second


def test_a_commit_is_found_from_a_bare_repository_a_worktree_and_a_subfolder(
    repo: Path, tmp_path: Path
) -> None:
    second = git(repo, "rev-parse", "main")
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"), "later")
    (repo / "sub").mkdir()
    for folder in (tmp_path / "bare.git", tmp_path / "tree", repo / "sub"):
        assert resolve_commit(folder, "v1") == second


def test_what_is_no_commit_gets_one_sentence(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    cases = [
        (tmp_path / "plain", "HEAD", "is not a git repository"),
        (tmp_path / "missing", "HEAD", "does not exist"),
        (tmp_path / "empty", "HEAD", "it has no commits yet"),
        (repo, "nowhere", "There is no commit 'nowhere'"),
        (repo, "f" * 40, "There is no commit 'ffff"),
        (repo, "--help", "There is no commit '--help'"),
        (repo, "", "There is no commit ''"),
        (f"file://{repo}", "nowhere", "has no branch or tag 'nowhere'"),
        (f"file://{tmp_path}/missing", "main", "cannot be reached"),
    ]
    for folder, revision, message in cases:
        with pytest.raises(BadInput, match=message):
            resolve_commit(folder, revision)
