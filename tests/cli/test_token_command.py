"""`closeloop admin token`: made once, shown once, revoked for good."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from closeloop.cli import main
from closeloop.store import open_store


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["admin", "token", *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_token_is_made_listed_and_revoked(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("new", "ann", "--scope", "read", "--scope", "ingest", "--json") == 0
    made = msgspec.json.decode(capsys.readouterr().out)
    assert made["scopes"] == ["read", "ingest"]
    with open_store(str(project / ".closeloop" / "closeloop.db")) as store:
        token = store.access.find_token(secret=made["secret"])
        assert token is not None
        assert token.name == "ann"
        assert run() == 0
        shown = capsys.readouterr().out
        assert "ann" in shown
        assert made["secret"] not in shown
        assert run("revoke", made["id"]) == 0
        assert store.access.find_token(secret=made["secret"]) is None


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new") == 2
    assert run("revoke", "nobody") == 2
    assert run("new", "ann", "--scope", "everything") == 2
    assert run("list") == 0
    assert "closeloop admin token new NAME" in capsys.readouterr().out


def test_a_port_that_is_taken_is_told_with_the_next(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "closeloop.toml").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as left:
            main(["serve", "--port", str(port)])
    assert left.value.code == 2
    advice = f"Port {port} is already in use: try --port {port + 1}."
    assert advice in capsys.readouterr().err
