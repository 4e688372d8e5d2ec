"""A repository's configuration names programs; no command that looks at it starts one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import hostile_repository
import small_project
from command_line import typed

COMMANDS = {
    "init": ("init", "--force"),
    "check of the working tree": ("check", "--tier", "quality", "--tier", "risk"),
    "check of what is staged": ("check", "--staged", "--tier", "quality"),
    "check of a range": ("check", "HEAD~2..HEAD", "--tier", "quality", "--tier", "risk"),
    "check with tools": ("check", "HEAD~2..HEAD", "--tier", "tools"),
    "check risk": ("check", "risk"),
    "mine": ("mine", "--limit", "1", "--test-runs", "1"),
    "task new": ("task", "new", "another"),
    "task check": ("task", "check", "fix"),
    "task export": ("task", "export", "fix", "--format", "harbor", "--out", "out"),
    "task list": ("task", "list"),
    "task sets": ("task", "sets"),
    "run": ("run", "fix", "--variant", "closer", "--yes"),
    "import": ("import", "--git", "."),
    "orchestrate": ("orchestrate", "plan.json"),
    "learn context": ("learn", "context", "--task", "subtracts"),
    "judge": ("judge", "--patch", "tasks/fix.patch", "--request", "fix", "--check"),
}
PLAN = {
    "request": "It subtracts.",
    "plan": [{"id": "fix", "prompt": "It subtracts.", "commands": ["true"], "variant": "closer"}],
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = hostile_repository.build(tmp_path / "project", tmp_path / "markers")
    (folder / "plan.json").write_text(json.dumps(PLAN))
    return tmp_path


def markers(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "markers").iterdir())


def test_the_repository_is_as_hostile_as_it_claims(place: Path) -> None:
    folder = place / "project"
    looks = ("status", "diff -- version.txt", "log -p -- calculator.py", "archive HEAD")
    for command in (*looks, "add -A", "branch another"):
        argv = ["git", "-C", str(folder), *command.split()]
        subprocess.run(argv, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"})
    started = set(markers(place))
    expected = {"fsmonitor", "external-diff", "process", "odd-clean", "gpg"}
    assert expected | {"submodule", "hook-reference-transaction"} <= started


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_no_command_starts_what_the_repository_names(place: Path, command: tuple[str, ...]) -> None:
    folder = place / "project"
    home = {"XDG_CACHE_HOME": str(place / "cache"), "HOME": str(place / "home")}
    assert "Unknown" not in typed(folder, *command, **home).stderr
    assert markers(place) == []


def test_what_git_prints_is_the_same_as_of_a_harmless_repository(tmp_path: Path) -> None:
    from closeloop import git

    hostile = hostile_repository.build(tmp_path / "hostile", tmp_path / "markers")
    files = git.try_git_text(hostile, "ls-tree", "--name-only", "HEAD").split()
    assert "calculator.py" in files
    changed = git.try_git_text(hostile, "status", "--porcelain", "--ignore-submodules=all")
    assert changed.splitlines()[:2] == [" M test_calculator.py", " M version.txt"]
    shown = git.read_git_text(hostile, "diff", "HEAD", "--", "test_calculator.py")
    assert "+x = 2" in shown
    archive = git.run_git(hostile, "archive", "--format=tar", "HEAD", "calculator.py")
    assert b"return a + b" in archive
    assert list((tmp_path / "markers").iterdir()) == []


def test_an_address_is_asked_without_the_configuration_of_the_folder_one_stands_in(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from closeloop.records.errors import BadInput
    from closeloop.sandbox.workspaces import resolve_commit

    monkeypatch.chdir(place / "project")
    monkeypatch.setenv("GIT_SSH_COMMAND", "false")
    with pytest.raises(BadInput, match="cannot be reached"):
        resolve_commit("ssh://git@example.invalid/owner/project", "main")
    assert markers(place) == []


def test_a_branch_is_made_without_hooks(place: Path) -> None:
    from closeloop.sandbox.workspaces.workspace_patches import make_branch

    folder = place / "project"
    head = (folder / ".git" / "refs" / "heads").iterdir().__next__().read_text().strip()
    make_branch(str(folder), head, "", "closeloop/x/1", "A change")
    assert markers(place) == []
    assert (folder / ".git" / "refs" / "heads" / "closeloop" / "x" / "1").is_file()


def test_every_start_of_git_goes_through_one_module() -> None:
    source = Path(small_project.__file__).parent.parent / "src" / "closeloop"
    direct = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if any(
            pattern in path.read_text() for pattern in ('["git"', '("git", "-', '["git",', "'git'")
        )
    }
    # Inside the sandbox, on a git folder of our own that nobody else writes.
    assert direct <= {"git.py", "sandbox/workspaces/workspace_patches.py"}
