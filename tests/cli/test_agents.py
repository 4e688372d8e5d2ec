"""`closeloop admin agents` says what is here and how to get the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from closeloop.cli import main


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    with pytest.raises(SystemExit) as left:
        main(["admin", "agents", "--json"])
    assert left.value.code == 0
    return {one["name"]: one for one in json.loads(capsys.readouterr().out)["items"]}


def test_agents_are_listed_with_version_and_place_or_the_line_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "node_modules" / "@openai" / "codex"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "@openai/codex", "version": "9.9.9"}')
    (package / "codex").write_text("#!/bin/sh\n")
    (package / "codex").chmod(0o755)
    monkeypatch.setenv("PATH", f"{package}:/usr/bin:/bin")
    agents = listed(capsys)
    assert agents["codex"] == {
        "name": "codex", "installed": True, "version": "9.9.9", "path": str(package / "codex"),
        "install": None,
    }  # fmt: skip
    assert agents["gemini-cli"]["installed"] is False
    assert agents["gemini-cli"]["install"] == "npm install -g @google/gemini-cli"
    assert agents["builtin"]["installed"] is True
    assert agents["command"]["install"] is None


def test_the_table_shows_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["admin", "agents"])
    shown = capsys.readouterr().out
    for name in ("builtin", "claude-code", "codex", "command", "openhands"):
        assert name in shown
