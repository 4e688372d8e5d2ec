"""A newcomer's first two commands: `closeloop init` and `closeloop task new`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from closeloop.cli.config import load_project
from closeloop.cli.task import init, new
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.tasks.task_files import PROMPT_PLACEHOLDER, load_task


def git(repo: Path, *arguments: str) -> str:
    who = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=repo, check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "go.mod").write_text("module example.org/x\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_init_writes_what_it_found_and_says_so(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(repo / "pkg")
    assert load_project(repo, environ={}).settings.commands.test == "go test ./..."
    said = capsys.readouterr().out
    assert "test   go test ./...  (go.mod)" in said
    assert "types  not found" in said
    assert "closeloop mine" in said
    assert "closeloop task new" in said
    assert git(repo, "status", "--porcelain") == "?? closeloop.toml"


def test_init_never_replaces_a_file_unless_asked_to(repo: Path) -> None:
    file = repo / "closeloop.toml"
    file.write_text("# mine\n")
    with pytest.raises(BadInput, match="--force"):
        init(repo)
    assert file.read_text() == "# mine\n"
    init(repo, force=True)
    assert "go test" in file.read_text()


def test_init_speaks_json(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(repo, json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == str(repo / "closeloop.toml")
    assert said["found"]["commands"]["test"] == "go test ./..."


def test_init_wants_a_git_repository(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="git init"):
        init(tmp_path)
    with pytest.raises(BadInput, match="not a folder"):
        init(tmp_path / "none")


def test_init_says_what_it_could_not_write(repo: Path) -> None:
    (repo / "closeloop.toml").mkdir()
    with pytest.raises(MachineFailed, match=r"closeloop\.toml cannot be written"):
        init(repo, force=True)


def test_a_new_task_needs_only_its_request(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init(repo)
    monkeypatch.chdir(repo / "pkg")
    new("rounding", prompt="Fix the rounding.", json=True)
    said = json.loads(capsys.readouterr().out.partition("NAME`.\n")[2])
    task = load_task(Path(said["file"]), repo, lambda repo, revision: revision)
    assert (task.id, task.prompt) == ("rounding", "Fix the rounding.")
    assert task.base == said["base"] == git(repo, "rev-parse", "HEAD")
    assert not task.acceptance.is_given
    with pytest.raises(BadInput, match="is there already"):
        new("rounding")
    with pytest.raises(BadInput, match="The prompt is empty"):
        new("nothing", prompt=" ")


def test_a_new_task_without_its_request_takes_over_the_test_command(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init(repo)
    monkeypatch.chdir(repo / "pkg")
    new("rounding")
    path = repo / "tasks" / "rounding.md"
    path.write_text(path.read_text().replace(PROMPT_PLACEHOLDER, "Fix the rounding."))
    task = load_task(path, repo, lambda repo, revision: revision)
    assert task.acceptance.run == "go test ./..."
    assert "closeloop task check" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../x", "a b", "", "-x"])
def test_a_new_task_needs_a_plain_name(
    repo: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(repo)
    with pytest.raises(BadInput, match="must be letters"):
        new(name)


def test_a_new_task_needs_a_commit_to_start_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="git init"):
        new("x")
    git(tmp_path, "init", "-q")
    with pytest.raises(BadInput, match="no commits yet"):
        new("x")
    assert not (tmp_path / "tasks").exists()
