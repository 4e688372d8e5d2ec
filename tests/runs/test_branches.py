"""Branches made beside whatever goes on in a repository."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

import small_project
from closeloop.attempts.ray_cluster import pack_commits, unpack_commits
from closeloop.records.errors import BadInput
from closeloop.sandbox.workspaces.workspace_patches import (
    branch_name,
    has_branches,
    make_branch,
    resolve_commit,
)

AT = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return small_project.build(tmp_path / "project")


def state(project: Path) -> tuple[str, str, bytes]:
    """All that must stay as it is."""
    head = (project / ".git" / "HEAD").read_text() + small_project.git(project, "rev-parse", "HEAD")
    return head, small_project.git(project, "status", "-s"), (project / ".git/index").read_bytes()


def test_a_branch_holds_the_change_and_nothing_else_is_touched(project):
    (project / "calculator.py").write_text("half done\n")
    (project / "staged.py").write_text("staged\n")
    small_project.git(project, "add", "staged.py")
    (project / ".git/hooks").mkdir(exist_ok=True)
    hook = project / ".git/hooks/reference-transaction"
    hook.write_text(f"#!/bin/sh\ntouch {project}/hook-ran\n")
    hook.chmod(0o755)
    before, base = state(project), resolve_commit(project, "HEAD")
    make_branch(
        str(project), base, small_project.FIX_PATCH, "closeloop/fix/ab", "A try", committed_at=AT
    )
    assert state(project) == before
    assert not (project / "hook-ran").exists()
    shown = small_project.git(project, "show", "closeloop/fix/ab:calculator.py")
    assert "return a + b" in shown
    assert small_project.git(project, "rev-parse", "closeloop/fix/ab^").strip() == base
    log = small_project.git(project, "log", "-1", "--format=%an %ad %s", "closeloop/fix/ab")
    assert log.strip() == "closeloop Mon Jan 5 09:00:00 2026 +0000 A try"


def test_the_same_branch_again_is_replaced(project):
    base = resolve_commit(project, "HEAD")
    for patch in ("", small_project.FIX_PATCH):
        make_branch(str(project), base, patch, "closeloop/fix/ab", "A try")
    assert "a + b" in small_project.git(project, "show", "closeloop/fix/ab:calculator.py")


def test_what_cannot_be_a_branch_is_told(project):
    base = resolve_commit(project, "HEAD")
    with pytest.raises(BadInput, match="cannot be created"):
        make_branch(str(project), base, small_project.FIX_PATCH.replace("a - b", "a / b"), "x", "m")
    small_project.git(project, "branch", "closeloop")
    with pytest.raises(BadInput, match="cannot be created"):
        make_branch(str(project), base, small_project.FIX_PATCH, "closeloop/fix/ab", "m")


def test_a_patch_that_leaves_the_repository_makes_no_branch(project):
    evil = small_project.TRIPLE_TESTS_PATCH.replace("test_triple.py", ".git/hooks/post-checkout")
    base = resolve_commit(project, "HEAD")
    for patch in (evil, small_project.TRIPLE_TESTS_PATCH.replace("b/test", "b/../test")):
        with pytest.raises(BadInput):
            make_branch(str(project), base, patch, "closeloop/evil/ab", "m")
    assert "closeloop" not in small_project.git(project, "branch", "-a")


@pytest.mark.parametrize("task", ["plain", "a..b", "x.lock", "dots...", "x.", "v1.2"])
def test_a_branch_has_a_name_that_git_takes(task):
    name = branch_name(task, "0123456789ab")
    check = ["git", "check-ref-format", f"refs/heads/{name}"]
    assert subprocess.run(check, check=False).returncode == 0
    assert name.startswith("closeloop/")


def test_only_a_repository_on_this_machine_has_branches(project):
    assert has_branches(str(project))
    assert not has_branches("https://example.org/x.git")
    assert not has_branches(str(project / "nowhere"))
    assert not has_branches(None)


def test_commits_travel_without_their_history(project, tmp_path):
    first = resolve_commit(project, "HEAD")
    (project / "calculator.py").write_text("second\n")
    small_project.git(project, "commit", "-qam", "Second")
    second = resolve_commit(project, "HEAD")
    (project / "calculator.py").write_text("third\n")
    small_project.git(project, "commit", "-qam", "Third")
    third = resolve_commit(project, "HEAD")
    content = pack_commits(str(project), [second])
    for _ in range(2):  # whoever comes second finds it there
        unpack_commits(content, [second], tmp_path / "there")
    there = ["git", "--git-dir", str(tmp_path / "there")]
    copy = tmp_path / "copy"
    subprocess.run(["git", "init", "-q", str(copy)], check=True)
    fetch = ["git", "-C", str(copy), "fetch", "-q", "--depth=1", str(tmp_path / "there"), second]
    subprocess.run(fetch, check=True)
    shown = subprocess.check_output([*there, "show", f"{second}:calculator.py"])
    assert shown == b"second\n"
    for commit in (first, third):
        assert subprocess.run([*there, "cat-file", "-e", commit], check=False).returncode != 0
    assert [path.name for path in tmp_path.iterdir()].count("there") == 1
