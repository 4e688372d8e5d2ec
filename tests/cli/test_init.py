"""A newcomer's first two commands: `closeloop init` and `closeloop task new`."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from closeloop.cli.config import load_project
from closeloop.cli.task import init, new, try_discovered
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.tasks.project_discovery import discover_commands
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
    init(repo / "pkg", untried=True)
    assert load_project(repo, environ={}).settings.commands.test == "go test ./..."
    printed = capsys.readouterr()
    said = printed.out
    assert printed.err == ""
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
    init(repo, force=True, untried=True)
    assert "go test" in file.read_text()


def test_init_speaks_json(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(repo, json=True, untried=True)
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
        init(repo, force=True, untried=True)


def test_a_new_task_needs_only_its_request(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init(repo, untried=True)
    monkeypatch.chdir(repo / "pkg")
    new("rounding", request="Fix the rounding.", json=True)
    said = json.loads(capsys.readouterr().out.partition("and the reference).\n")[2])
    task = load_task(Path(said["file"]), repo, lambda repo, revision: revision)
    assert (task.id, task.prompt) == ("rounding", "Fix the rounding.")
    assert task.base == said["base"] == git(repo, "rev-parse", "HEAD")
    assert not task.acceptance.is_given
    with pytest.raises(BadInput, match="already exists"):
        new("rounding")
    with pytest.raises(BadInput, match="The request is empty"):
        new("nothing", request=" ")


def test_a_new_task_without_its_request_takes_over_the_test_command(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init(repo, untried=True)
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


# Every command is tried where it will be run.


@pytest.fixture
def python_repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without a manifest, so that nothing is installed; its linter is nowhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "shop"
    (folder / "tests").mkdir(parents=True)
    test = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_x(self): pass\n"
    (folder / "tests" / "test_shop.py").write_text(test)
    (folder / "Makefile").write_text("lint:\n\tno-such-linter .\nbuild:\n\ttrue\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_init_tries_each_command_once_and_writes_down_how_it_ended(
    python_repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(python_repo)
    said = capsys.readouterr()
    text = (python_repo / "closeloop.toml").read_text()
    assert re.search(r"(?m)^test = .* {2}# tried: 1 test passed in ", text)
    assert '\n# lint = "make lint"  # tried: did not run: no-such-linter is not installed' in text
    assert re.search(r'(?m)^build = "make build" {2}# tried: passed in ', text)
    commands = load_project(python_repo, environ={}).settings.commands
    assert (commands.test, commands.lint) == ("python3 -m unittest discover -s tests", None)
    assert re.search(r"test .*\n +✓ 1 test passed in", said.out)
    assert re.search(r"lint .*\n +✗ did not run: ", said.out)
    assert "s] trying test: python3 -m unittest discover -s tests" in said.err
    assert git(python_repo, "status", "--porcelain") == "?? closeloop.toml"


def test_init_says_what_to_do_when_the_test_command_fails(
    python_repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(python_repo, "rm", "-rq", "tests")
    (python_repo / "Makefile").write_text("test:\n\tno-such-runner .\n")
    git(python_repo, "commit", "-qam", "Test with another runner")
    assert init(python_repo) == 1
    said = capsys.readouterr()
    assert re.search(r"(?m)^# test = ", (python_repo / "closeloop.toml").read_text())
    assert "The test command did not run: no-such-runner is not installed" in said.err
    assert "It is only a comment in the file" in said.err
    assert "closeloop mine`," not in said.out


def test_requirements_in_the_folder_of_the_tests_are_installed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "requirements.txt").write_text("pytest\npytest-cov\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\n')
    (tmp_path / ".pytest.ini").write_text("[pytest]\naddopts = --cov=x\n")
    git(tmp_path, "add", ".")
    setup = discover_commands(tmp_path).commands.setup
    assert any("-r tests/requirements.txt" in line for line in setup)


def test_where_the_setup_fails_nothing_else_is_tried(python_repo: Path) -> None:
    discovery = discover_commands(python_repo)
    setup = ("echo no route; false",)
    commands = msgspec.structs.replace(discovery.commands, setup=setup)
    unready = msgspec.structs.replace(discovery, commands=commands)
    kept, trials = try_discovered(unready, python_repo)
    assert kept == unready
    assert [*trials] == ["setup"]
    assert not trials["setup"].works
    assert trials["setup"].text.endswith("no route")


def test_init_without_a_commit_says_that_nothing_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "new"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "go.mod").write_text("module example.org/x\n")
    init(folder)
    assert "The commands were not tried: " in capsys.readouterr().err
    assert load_project(folder, environ={}).settings.commands.test == "go test ./..."
