"""Replayed attempts: marked wherever they are shown, and counted nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import small_project
from closeloop.cli import main


def closeloop(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert left.value.code == code, printed.out + printed.err
    return printed.out


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = small_project.build(tmp_path, sandbox="none")
    monkeypatch.chdir(folder)
    for name in ("CLOSELOOP_STORE", "CLOSELOOP_CACHE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.mark.parametrize("named", [False, True], ids=["by its id", "by a name of the settings"])
def test_a_replay_is_marked_and_stays_out_of_every_number(project, capsys, named):
    closeloop(capsys, "run", "question", "--variant", "closer")
    before = json.loads(closeloop(capsys, "metrics", "--json"))
    [live] = json.loads(closeloop(capsys, "list", "attempts", "--json"))["items"]
    model = f"recorded:{live['id']}"
    if named:
        settings = project / "closeloop.toml"
        settings.write_text(
            f'{settings.read_text()}\n[models.old]\nprovider = "recorded"\nmodel = "{live["id"]}"\n'
        )
        model = "old"
    closeloop(capsys, "run", "question", "--agent", "builtin", "--model", model)
    listed = json.loads(closeloop(capsys, "list", "attempts", "--json"))["items"]
    replay = next(row for row in listed if row["id"] != live["id"])
    assert (live["replay_of"], replay["replay_of"]) == (None, live["id"])
    assert f"replay of {live['id']}" in " ".join(closeloop(capsys, "list", "attempts").split())
    assert f"a replay of {live['id']}: excluded from" in closeloop(capsys, "show", replay["id"])
    shown = json.loads(closeloop(capsys, "show", replay["id"], "--json"))
    assert shown["replay_of"] == live["id"]
    after = json.loads(closeloop(capsys, "metrics", "--json"))
    assert after["attempts"] == before["attempts"] == 1
    assert after["figures"] == before["figures"]
    assert any("1 replayed attempt was excluded" in note for note in after["notes"])
