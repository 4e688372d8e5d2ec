"""Tasks without an automatic check: they run, and await people and judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import small_project
from closeloop.cli import main
from closeloop.records.attempt import TimeRange
from closeloop.store import open_store
from closeloop.web.page import PageContext
from closeloop.web.pages.overview import overview

pytestmark = pytest.mark.usefixtures("warm_path")

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
        assert f"closeloop run {name}" in closeloop(
            capsys, "task", "new", name, "--request", prompt
        )
    printed = closeloop(capsys, "run")
    assert printed.count("? awaiting review") == 6
    assert "6 attempts await blind, side-by-side review" in printed
    assert "closeloop review" in printed
    assert "closeloop judge --awaiting-review" in printed
    made = json.loads(closeloop(capsys, "run", "--json"))
    assert {(one["outcome"], one["outcome_cause"]) for one in made["attempts"]} == {
        ("unscored", "awaiting review")
    }
    assert made["skipped"] == {}


def test_a_run_tells_of_a_crash_where_nothing_is_checked_and_of_tests_only_where_some_ran(
    project, capsys
):
    script = project / "crash"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    settings = project / "closeloop.toml"
    program = f'[variants.sh]\nagent = "command"\n[variants.sh.settings]\nprogram = "{script}"\n'
    settings.write_text(settings.read_text() + program)
    closeloop(capsys, "task", "new", "answer", "--request", PROMPTS["answer"])
    printed = " ".join(closeloop(capsys, "run", "--variant", "sh").split())
    assert "? awaiting review; the agent crashed: " in printed
    assert "broke a passing test –" in printed


def test_nothing_of_it_is_made_or_graded_again(project, capsys):
    folder = project / "prompts"
    folder.mkdir()
    for name, prompt in PROMPTS.items():
        (folder / f"{name}.md").write_text(prompt)
    before = json.loads(closeloop(capsys, "run", "prompts/", "--json"))["attempts"]
    for more in (("--again", "unscored"), ("--again", "grades"), ()):
        made = json.loads(closeloop(capsys, "run", "prompts/", *more, "--json"))
        assert made["attempts"] == before
    checked = json.loads(closeloop(capsys, "task", "check", "prompts/", "--json"))["items"]
    assert {one["state"] for one in checked} == {"unchecked"}


def test_a_check_that_is_added_grades_what_is_there(project, capsys):
    path = project / "tasks" / "answer.md"
    path.write_text("---\nrepo: none\n---\nWhat is the answer?")
    first = json.loads(closeloop(capsys, "run", "--json"))["attempts"]
    path.write_text("---\nrepo: none\nacceptance: {answer: '\\b42\\b'}\n---\nWhat is the answer?")
    then = json.loads(closeloop(capsys, "run", "--json"))["attempts"]
    assert [one["id"] for one in then] == [one["id"] for one in first]
    assert [one["outcome"] for one in then] == ["pass", "fail"]


def test_a_document_without_a_repository_is_kept_reviewed_and_graded(project, capsys):
    """Reports and analyses are work as well: what was written is the change."""
    script = """dialogues:
  - turns:
      - do: {write: {path: report.md, text: "# Tea\\n\\nIt is hot.\\n"}}
      - do: {finish: {summary: It is written.}}
"""
    (project / "writer.yaml").write_text(script)
    path = project / "tasks" / "report.md"
    path.write_text("---\nrepo: none\n---\nWrite a report on tea.")
    run = ("run", "--model", "scripted:writer.yaml", "--json")
    (made,) = json.loads(closeloop(capsys, *run))["attempts"]
    assert (made["outcome_cause"], made["files_changed"]) == ("awaiting review", 1)
    shown = json.loads(closeloop(capsys, "review", "--json"))
    assert shown["output"]["answer"] == "It is written."
    assert "+It is hot." in shown["output"]["patch"]
    assert shown["questions"][0]["text"] == "Would you use it as it is?"
    path.write_text(
        "---\nrepo: none\nacceptance: {commands: [grep -q hot report.md]}\n---\n"
        "Write a report on tea."
    )
    (graded,) = json.loads(closeloop(capsys, *run))["attempts"]
    assert (graded["id"], graded["outcome"]) == (made["id"], "pass")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--awaiting-review",), "No attempt awaits a judge"),
        (("a1b2", "--awaiting-review"), "selects the attempts itself"),
    ],
)
def test_a_judge_without_anything_to_see_says_so(project, capsys, arguments, why):
    (project / "tasks" / "answer.md").write_text(small_project.QUESTION)
    closeloop(capsys, "run")
    assert why in closeloop(capsys, "judge", *arguments, code=2)


def test_work_that_awaits_review_is_missing_nowhere(project, capsys):
    """One task has a check and is passed by one of two; the prompt lowers no coverage."""
    (project / "tasks" / "answer.md").write_text(small_project.QUESTION)
    (project / "tasks" / "prompt.md").write_text("---\nrepo: none\n---\nWhat is an answer?")
    closeloop(capsys, "run")
    figures = json.loads(closeloop(capsys, "metrics", "--score", "pass rate", "--json"))["figures"]
    assert [(one["value"], one["coverage"]) for one in figures] == [(0.5, 1.0)]
    report = json.loads(closeloop(capsys, "compare", "closer", "spiraller", "--json"))
    assert report["refusal"] is None
    assert [side["coverage"] for side in report["sides"]] == [1.0, 1.0]


def test_what_a_script_prints_is_its_answer_and_a_review_its_outcome(project, capsys):
    script = project / "say"
    script.write_text("#!/bin/sh\necho It is 42.\n")
    script.chmod(0o755)
    settings = project / "closeloop.toml"
    program = f'[variants.sh]\nagent = "command"\n[variants.sh.settings]\nprogram = "{script}"\n'
    settings.write_text(settings.read_text() + program)
    closeloop(capsys, "task", "new", "answer", "--request", PROMPTS["answer"])
    made = json.loads(closeloop(capsys, "run", "--variant", "sh", "--json"))["attempts"]
    shown = closeloop(capsys, "show", made[0]["id"])
    assert "Final answer\n  It is 42." in shown
    assert "What happened" not in shown
    assert "Tests" not in shown
    assert "awaiting review" in shown
    assert "done, 1 for review" in closeloop(capsys, "list", "experiments")
    closeloop(capsys, "score", made[0]["id"], "would-merge=yes")
    assert "by review: 1 of 1 would merge it" in closeloop(capsys, "show", made[0]["id"])
    listed = closeloop(capsys, "list", "attempts")
    assert "by review" in listed
    assert "✓" in listed
    assert "awaiting review" not in listed
    assert "for review" not in closeloop(capsys, "list", "experiments")


def test_a_review_is_the_outcome_of_a_task_over_its_repeats_and_on_the_overview(project, capsys):
    closeloop(capsys, "task", "new", "answer", "--request", PROMPTS["answer"])
    made = json.loads(closeloop(capsys, "run", "--json"))["attempts"]
    for one, word in zip(made, ("yes", "no"), strict=True):
        closeloop(capsys, "score", one["id"], f"would-merge={word}")
    shown = json.loads(closeloop(capsys, "show", "--task", "answer", "--json"))
    outcomes = {one["attempt"]: one["outcome"] for one in shown["repeats"]}
    assert outcomes == {made[0]["id"]: "pass", made[1]["id"]: "fail"}
    said = closeloop(capsys, "show", "--task", "answer")
    assert "output used: failing checks" in " ".join(said.split())
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        latest = overview(PageContext(store), TimeRange()).latest
    assert {line.row.id: line.result for line in latest} == outcomes
