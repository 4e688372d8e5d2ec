"""Commands that only look: in a folder where nothing was done yet they make nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from closeloop.cli import main

LOOKING = (
    "list attempts",
    "admin events",
    "list experiments",
    "learn insights",
    "measure",
    "learn corrections",
    "learn list",
    "learn repeats",
    "metrics",
    "find rounding",
    "list plans",
    "prompt log",
    "list pulls",
    "report",
    "review",
    "metrics --over-time",
    "serve --port 0",
    "triage",
)
WITHOUT_A_STORE = ("admin token list", "learn context", "task list", "task due", "task sets")
"""Commands that have something to say before there is a store."""
ASKING_FOR_ONE = (
    "ab status trial",
    "show x --branch",
    "compare a b",
    "admin pause x",
    "export --table events",
    "gate",
    "judge x",
    "learn accept x",
    "learn show x",
    "prompt diff a b",
    "show x",
    "admin token revoke x",
)


def run(folder: Path, command: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(command.split())
    assert list(folder.iterdir()) == []
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", LOOKING)
def test_looking_makes_nothing_and_says_what_to_run(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, command) == 2
    error = capsys.readouterr().err
    assert f"There is no store at {folder}/.closeloop/closeloop.db: run `closeloop import`" in error


@pytest.mark.parametrize("command", WITHOUT_A_STORE)
def test_what_needs_no_store_makes_none(folder: Path, command: str) -> None:
    run(folder, command)


@pytest.mark.parametrize("project", [".git", "closeloop.toml"])
def test_serve_makes_a_store_in_a_project_so_that_agents_can_send_to_it(
    folder: Path, project: str
) -> None:
    (folder / project).mkdir() if project == ".git" else (folder / project).touch()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as left:
        main(["serve", "--port", str(taken.getsockname()[1])])
    assert left.value.code == 2, "the port is in use"
    assert (folder / ".closeloop" / "closeloop.db").is_file()


@pytest.mark.parametrize("command", ASKING_FOR_ONE)
def test_asking_for_what_is_not_there_makes_nothing(folder: Path, command: str) -> None:
    assert run(folder, command) == 2


def test_what_is_written_down_is_there_for_those_who_look(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["learn", "add", "Never commit keys.", "--repo", "ann/tally"])
    assert (folder / ".closeloop").is_dir()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["learn", "list"])
    assert "Never commit keys." in capsys.readouterr().out
