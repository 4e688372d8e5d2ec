"""`closeloop task due`, and the same on the overview."""

from __future__ import annotations

import json

import pytest

import small_project
from closeloop.cli import main
from closeloop.cli.config import load_project
from closeloop.records.attempt import TimeRange
from closeloop.store import open_store
from closeloop.web.page import PageContext
from closeloop.web.pages.overview import overview


def closeloop(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert left.value.code == 0, printed.out + printed.err
    return printed.out


def test_what_is_due_is_said_on_the_command_line_and_on_the_overview(tmp_path, monkeypatch, capsys):
    folder = small_project.build(tmp_path, sandbox="none")
    (folder / "tasks/fix.md").write_text(small_project.QUICK_FIX)
    monkeypatch.chdir(folder)
    for name in ("CLOSELOOP_STORE", "CLOSELOOP_CACHE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert "No variants have been compared yet" in closeloop(capsys, "task", "due")
    closeloop(capsys, "run", "fix", "question", "--repeats", "3")
    settings = folder / "closeloop.toml"
    settings.write_text(
        settings.read_text() + '\n[variants.fresh]\nagent = "builtin"\nmodel = "openai/new"\n'
    )
    report = json.loads(closeloop(capsys, "task", "due", "--json"))
    assert [(one["name"], one["says"]) for one in report["changes"]] == [
        ("fresh", "never compared")
    ]
    assert report["last_comparison"]["days"] == 0
    assert report["last_look"] is None
    said = closeloop(capsys, "task", "due")
    assert "changed: fresh: never compared" in said
    assert "last run of held-out tasks: never" in said
    project = load_project(folder)
    with open_store(str(folder / ".closeloop/closeloop.db")) as store:
        desk = PageContext(store, project.settings, project.root)
        desk.metric_cache.patience = None
        shown = overview(desk, TimeRange()).due
    assert shown is not None
    assert [one.name for one in shown.changes] == ["fresh"]
    assert list(shown.says) == [
        line for line in report["says"] if "half of the dev tasks" not in line
    ]
