"""What is staged is the change: the index, and not what else lies in the working tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from closeloop.changes.change_sides import ChangeQuery, NoChange, open_sides
from closeloop.records.errors import BadInput

STAGED = ChangeQuery(staged=True)


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.py").write_text("one\n")
    (folder / "b.py").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Start")
    return folder


def test_only_what_was_added_counts(repo: Path) -> None:
    (repo / "a.py").write_text("staged\n")
    git(repo, "add", "a.py")
    for name in ("a.py", "b.py", "new.py"):
        (repo / name).write_text("later\n")
    with open_sides(repo, STAGED) as sides:
        assert [file.path for file in sides.change.files] == ["a.py"]
        assert sides.read("after", "a.py") == b"staged\n"
        assert sides.read("after", "b.py") == b"one\n"
        assert "new.py" not in sides.tree("after")
        assert sides.head is None


def test_the_first_commit_is_all_of_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a.py").write_text("one\n")
    git(tmp_path, "add", ".")
    with open_sides(tmp_path, STAGED) as sides:
        assert [(file.path, file.status) for file in sides.change.files] == [("a.py", "added")]
        assert sides.base is None


def test_the_index_of_a_commit_under_way_is_the_one_that_is_meant(repo: Path) -> None:
    shutil.copy(repo / ".git/index", repo / ".git/index.lock")
    (repo / "b.py").write_text("taken by -a\n")
    environment = {"GIT_INDEX_FILE": str(repo / ".git/index.lock"), "PATH": "/usr/bin:/bin"}
    subprocess.run(["git", "add", "-u"], cwd=repo, env=environment, check=True)
    with open_sides(repo, ChangeQuery(staged=True, index=repo / ".git/index.lock")) as sides:
        assert [file.path for file in sides.change.files] == ["b.py"]
    with pytest.raises(NoChange), open_sides(repo, STAGED):
        pass


def test_conflicts_are_told(repo: Path) -> None:
    git(repo, "checkout", "-q", "-b", "other")
    (repo / "a.py").write_text("other\n")
    git(repo, "commit", "-q", "-am", "Other")
    git(repo, "checkout", "-q", "main")
    (repo / "a.py").write_text("mine\n")
    git(repo, "commit", "-q", "-am", "Mine")
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "other")
    with pytest.raises(BadInput, match=r"Merge conflicts in a\.py"), open_sides(repo, STAGED):
        pass


def test_it_is_one_change_of_several(repo: Path) -> None:
    wanted = ChangeQuery(staged=True, range="HEAD")
    with pytest.raises(BadInput, match="Give only one of"), open_sides(repo, wanted):
        pass
