"""The reading tool, on recordings in which the same command fails in the same way four times."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "quality"))
import reading  # noqa: E402
import reading_terminal  # noqa: E402
from reading_records import FindingVerdict, SessionNotes, load_readings, save_reading  # noqa: E402

SECRET = "the user's own words"


def write_recording(folder: Path, name: str) -> None:
    """A session as Claude Code records it."""
    said: list[tuple[str, object]] = [("user", f"Mend the cart of {name}: {SECRET}.")]
    for number in range(4):
        call = {"type": "tool_use", "id": f"t{number}", "name": "Bash"}
        said.append(("assistant", [call | {"input": {"command": "python cart.py --total"}}]))
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "is_error": True}
        said.append(("user", [result | {"content": f"Exit code 1\nKeyError: '{SECRET}'"}]))
    said.append(("assistant", [{"type": "text", "text": "I could not mend it."}]))
    lines = [
        {"type": role, "uuid": f"{name}-{at}", "parentUuid": f"{name}-{at - 1}" if at else None,
         "sessionId": name, "isSidechain": False, "cwd": "/work", "version": "2.0.0",
         "timestamp": f"2026-11-16T10:00:{at:02}.000Z",
         "message": {"role": role, "content": content, "id": f"m{at}", "model": "claude-x"}}
        for at, (role, content) in enumerate(said)
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    for number in range(3):
        write_recording(tmp_path / "strangers", f"0000000{number}-aaaa-4bbb-8ccc-000000000000")
    return tmp_path / "strangers"


def run_tool(*arguments: object) -> int:
    return reading.main([str(one) for one in arguments])


def answer(sheet: Path, **columns: str) -> None:
    """Fill every row of a sheet."""
    with sheet.open(newline="") as file:
        rows = [row | columns for row in csv.DictReader(file)]
    with sheet.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def assert_no_text(folder: Path) -> None:
    """Nothing of the recordings, not even a word of it, is in what is kept."""
    kept = "".join(path.read_text() for path in folder.glob("*"))
    assert kept
    for words in (SECRET, "cart", "KeyError", "python", "words"):
        assert words not in kept


def test_a_sample_goes_out_as_files_and_verdicts_come_back(
    recordings: Path, tmp_path: Path
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    asked = ("--rule", "repeated-failure", "--export", out, "--readings", kept)
    assert run_tool(recordings, *asked) == 0
    text = (out / "repeated-failure.txt").read_text()
    assert "The same action fails repeatedly in the same way" in text
    assert f"KeyError: '{SECRET}'" in text
    assert "def detect" not in text
    assert len(list((out / "sessions").iterdir())) == 3
    answer(out / "answers.csv", verdict="R", note=SECRET)
    assert run_tool("--verdicts", out / "answers.csv", "--reader", "ann", "--readings", kept) == 0
    lines = load_readings(kept)
    assert {(line.source, line.rule, line.verdict, line.by) for line in lines} == {  # type: ignore[union-attr]
        ("strangers", "repeated-failure", "right", "person")
    }
    assert len(lines) == 3
    assert_no_text(kept)


def test_verdicts_come_back_as_json_lines_of_a_model_too(recordings: Path, tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    run_tool(recordings, "--rule", "repeated-failure", "--each", 1, "--export", out)
    item = json.loads((out / "items.jsonl").read_text())
    told = tmp_path / "told.jsonl"
    told.write_text(json.dumps({"item": item["item"], "verdict": "wrong", "note": SECRET}) + "\n")
    back = ("--verdicts", told, "--items", out / "items.jsonl", "--readings", kept)
    assert run_tool(*back) == 2, "a reader has a name"
    assert run_tool(*back, "--reader", "m", "--model") == 0
    (line,) = load_readings(kept)
    assert isinstance(line, FindingVerdict)
    assert (line.verdict, line.by) == ("wrong", "model")
    assert line.events == tuple(item["events"])
    assert_no_text(kept)


def test_a_sample_is_never_written_into_a_repository(recordings: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "project"], check=True)
    assert run_tool(recordings, "--export", tmp_path / "project" / "deep" / "out") == 2
    assert run_tool(recordings, "--sessions", 1, "--export", ROOT / "quality" / "out") == 2
    assert not (ROOT / "quality" / "out").exists()
    assert not (tmp_path / "project" / "deep").exists()


def test_answers_are_not_written_over(recordings: Path, tmp_path: Path) -> None:
    assert run_tool(recordings, "--export", tmp_path / "out") == 0
    assert run_tool(recordings, "--export", tmp_path / "out") == 2


def test_keys_answer_and_what_is_answered_is_not_asked_again(
    recordings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = tmp_path / "kept"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def read(keys: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(keys) + "\n"))
        asked = ("--rule", "repeated-failure", "--reader", "ann", "--readings", kept)
        assert run_tool(recordings, *asked) == 0
        return capsys.readouterr().out

    assert "3 findings, 0 of them read." in read("rq")
    assert len(load_readings(kept)) == 1
    monkeypatch.setattr("builtins.input", lambda prompt: SECRET)
    assert "3 findings, 1 of them read." in read("xnuw")
    lines = load_readings(kept)
    assert [line.verdict for line in lines] == ["right", "unsure", "wrong"]  # type: ignore[union-attr]
    assert "3 findings, 3 of them read." in read("q")
    assert SECRET in (tmp_path / "state" / "closeloop" / "reading-notes.csv").read_text()
    assert_no_text(kept)


def test_whole_sessions_are_read_without_what_the_rules_found(
    recordings: Path, tmp_path: Path
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    assert run_tool(recordings, "--sessions", 2, "--export", out) == 0
    assert len(list((out / "sessions").iterdir())) == 2
    assert not (out / "items.jsonl").exists()
    answer(out / "answers.csv", rule="repeated-failure", events="#3, 5")
    back = (recordings, "--sessions", 2, "--verdicts", out / "answers.csv", "--readings", kept)
    assert run_tool(*back, "--reader", "ann") == 0
    lines = load_readings(kept)
    assert len(lines) == 2
    for line in lines:
        assert isinstance(line, SessionNotes)
        (failure,) = line.failures
        assert failure.caught
        assert failure.events == (3, 5)
    assert_no_text(kept)
    answer(out / "answers.csv", rule="repeated-failure", events="99")
    assert run_tool(*back, "--reader", "ann") == 2
    answer(out / "answers.csv", rule="none", events="")
    assert run_tool(*back, "--reader", "ann") == 0
    assert {line.failures for line in load_readings(kept)[2:]} == {()}  # type: ignore[union-attr]


def test_whole_sessions_are_read_on_a_terminal(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    said = iter(["spirall 3", "repeated-failure 3 5", "", "", "q"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(said))
    monkeypatch.setattr(reading_terminal.pydoc, "pager", lambda text: None)
    asked = ("--sessions", 3, "--reader", "ann", "--readings", kept)
    assert run_tool(recordings, *asked) == 0
    first, second = load_readings(kept)
    assert [len(line.failures) for line in (first, second)] == [1, 0]  # type: ignore[union-attr]


def test_readings_are_refreshed_from_the_recordings(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    run_tool(recordings, "--rule", "repeated-failure", "--export", out)
    answer(out / "answers.csv", verdict="right")
    run_tool("--verdicts", out / "answers.csv", "--reader", "ann", "--readings", kept)
    older = [msgspec.structs.replace(line, version=0) for line in load_readings(kept)]
    shutil.rmtree(kept)
    for line in older:
        save_reading(line, kept)
    assert run_tool(recordings, "--refresh", "--readings", kept) == 0
    assert "3 verdicts of earlier versions still hold" in capsys.readouterr().out
    assert run_tool(recordings, "--refresh", "--readings", kept) == 0
    assert "0 verdicts of earlier versions still hold" in capsys.readouterr().out
