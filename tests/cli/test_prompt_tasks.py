"""Tasks without an automatic check: they run, and await people and judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import small_project
from closeloop.cli import main

PROMPTS = {
    "fix": "`add` subtracts: make it add.",
    "triple": "Add `triple` to the calculator.",
    "answer": "What is the answer?",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small project with prompts in place of its tasks."""
    folder = small_project.build(tmp_path, sandbox="none")
    for path in (folder / "tasks").iterdir():
        path.unlink()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    return folder


def closeloop(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert left.value.code == code, printed.err
    return printed.err if code == 2 else printed.out


def test_prompts_run_as_they_are_and_await_review(project, capsys):
    for name, prompt in PROMPTS.items():
        assert f"closeloop run {name}" in closeloop(capsys, "task", "new", name, "--prompt", prompt)
    printed = closeloop(capsys, "run")
    assert printed.count("? awaiting review") == 6
    assert "6 attempts await review" in printed
    assert "closeloop review" in printed
    assert "closeloop judge --awaiting-review" in printed
    made = json.loads(closeloop(capsys, "run", "--json"))
    assert {(one["outcome"], one["outcome_cause"]) for one in made["attempts"]} == {
        ("unscored", "awaiting review")
    }
    assert made["skipped"] == {}


def test_nothing_of_it_is_made_or_graded_again(project, capsys):
    folder = project / "prompts"
    folder.mkdir()
    for name, prompt in PROMPTS.items():
        (folder / f"{name}.md").write_text(prompt)
    before = json.loads(closeloop(capsys, "run", "prompts/", "--json"))["attempts"]
    for more in (("--rerun", "unscored"), ("--regrade",), ()):
        made = json.loads(closeloop(capsys, "run", "prompts/", *more, "--json"))
        assert made["attempts"] == before
    checked = json.loads(closeloop(capsys, "task", "check", "prompts/", "--json"))
    assert {one["state"] for one in checked} == {"unchecked"}


def test_a_check_that_is_added_grades_what_is_there(project, capsys):
    path = project / "tasks" / "answer.md"
    path.write_text("---\nrepo: none\n---\nWhat is the answer?")
    first = json.loads(closeloop(capsys, "run", "--json"))["attempts"]
    path.write_text("---\nrepo: none\nacceptance: {answer: '\\b42\\b'}\n---\nWhat is the answer?")
    then = json.loads(closeloop(capsys, "run", "--json"))["attempts"]
    assert [one["id"] for one in then] == [one["id"] for one in first]
    assert [one["outcome"] for one in then] == ["pass", "fail"]
