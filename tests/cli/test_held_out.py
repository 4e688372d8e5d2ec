"""Held-out tasks: no look without a reason, every look in the ledger, no content in any output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import small_project
from closeloop.cli import main
from closeloop.store import open_store

pytestmark = pytest.mark.usefixtures("warm_path")

SECRETS = ("subtracts", "test_add", "calculator.py", "return a", "fix.md", "'fix'", "assert")
"""What only somebody who reads the held-out task or an attempt at it would know."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = small_project.build(tmp_path, sandbox="none")
    monkeypatch.chdir(folder)
    for name in ("CLOSELOOP_STORE", "CLOSELOOP_CACHE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    small_project.git(folder, "config", "user.email", "ann@example.org")
    hold_out(folder, "riddle", small_project.QUESTION.replace("the answer", "the answer, again"))
    for name in ("triple", "fix"):
        (folder / f"tasks/{name}.md").unlink()
    return folder


def hold_out(folder: Path, name: str, text: str) -> None:
    (folder / f"tasks/{name}.md").write_text(text.replace("---\n", "---\nsplit: held-out\n", 1))


def closeloop(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert left.value.code == code, printed.out + printed.err
    return printed.out if "--json" in arguments else printed.out + printed.err


def look(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    return closeloop(capsys, "task", "unseal", "a new prompt", *more)


def test_a_look_ends_with_where_to_read_what_it_came_to(project, capsys):
    assert "closeloop task sets   # compare dev and held-out" in look(capsys)


def test_a_run_takes_dev_tasks_and_leaves_the_others_alone(project, capsys):
    made = json.loads(closeloop(capsys, "run", "--json"))
    assert [task["id"] for task in made["tasks"]] == ["question"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "riddle"), "run them with `closeloop task unseal REASON`"),
        (("task", "unseal", " "), "REASON is empty: say why the held-out tasks are run."),
    ],
)
def test_a_look_without_a_reason_is_refused(project, capsys, arguments, sentence):
    said = closeloop(capsys, *arguments, code=2)
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert "No run of held-out tasks" in closeloop(capsys, "task", "unsealed")


@pytest.mark.parametrize("command", [("run",), ("task", "stress"), ("task", "check")])
def test_a_name_that_no_task_has_lists_dev_tasks_alone(project, capsys, command):
    said = closeloop(capsys, *command, "nothing-like-it", code=2)
    assert "Known: question." in said


def test_a_reason_for_dev_tasks_is_refused(project, capsys):
    assert "and these are none" in closeloop(capsys, "task", "unseal", "so", "question", code=2)


def test_a_look_is_in_the_ledger_with_who_when_why_and_the_change(project, capsys):
    look(capsys)
    first, *others = json.loads(closeloop(capsys, "task", "unsealed", "--json"))["items"]
    assert not others
    assert (first["who"], first["reason"], first["count"]) == ("ann@example.org", "a new prompt", 1)
    assert first["at"].startswith("20")
    look(capsys, "--variant", "closer")
    again = json.loads(closeloop(capsys, "task", "unsealed", "--json"))["items"]
    assert len({one["change"] for one in again}) == 2
    assert len({one["tasks"] for one in again}) == 1


def test_too_many_changes_on_one_set_are_warned_of(project, capsys):
    prompts = []
    for number in range(4):
        (project / f"p{number}.md").write_text(f"Be careful, {number} times.")
        prompts.append(look(capsys, "--variant", "spiraller", "--prompt", f"p{number}.md"))
    assert ["hold out new tasks" in said for said in prompts] == [False, False, False, True]
    assert "hold out new tasks" in look(capsys, "--variant", "spiraller", "--prompt", "p0.md"), (
        "looking again at an old change does not make the set fresh"
    )


def test_no_command_prints_what_is_held_out(project, capsys):
    (project / "tasks/riddle.md").unlink()
    hold_out(project, "fix", small_project.FIX)
    said = look(capsys)
    assert "1 of 1" in said
    assert "0 of 1" in said
    said += look(capsys, "--json")
    said += look(capsys, "--again", "grades")
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        ids = [row.id for row in store.list_attempts()]
    for arguments in (
        ["list", "attempts"],
        ["list", "attempts", "--json"],
        ["list", "experiments", "--json"],
        ["measure"],
        ["measure", "--all", "--json"],
        ["task", "check", "--test-runs", "1"],
        ["task", "check", "--test-runs", "1", "--json"],
        ["task", "sets"],
        ["task", "sets", "--json"],
        ["gate", "--save", "--json"],
        ["gate"],
    ):
        said += closeloop(capsys, *arguments)
    for arguments in (
        ["measure", ids[0]],
        ["measure", *ids, "--sarif"],
        ["show", ids[0]],
        ["show", ids[0], "--json"],
        ["show", ids[0], "--branch"],
        ["export", ids[0], "--table", "events"],
        ["export", "--table", "events"],
        ["check", "--task", "fix"],
    ):
        said += closeloop(capsys, *arguments, code=2)
    assert not [secret for secret in SECRETS if secret in said]
    assert "sealed-" in said


def test_a_task_that_is_moved_to_dev_can_be_looked_at_again(project, capsys):
    look(capsys)
    file = project / "tasks/riddle.md"
    file.write_text(file.read_text().replace("split: held-out\n", ""))
    closeloop(capsys, "task", "sets")
    [row] = json.loads(closeloop(capsys, "list", "attempts", "--variant", "closer", "--json"))[
        "items"
    ]
    assert row["task"] == "riddle"
    assert "again" in closeloop(capsys, "show", row["id"])


def test_the_gap_between_the_sets_has_its_bounds(project, capsys):
    closeloop(capsys, "run", "--variant", "closer")
    look(capsys, "--variant", "closer")
    [gap] = json.loads(closeloop(capsys, "task", "sets", "--json"))["held_out"]["gaps"]
    assert gap["variant"] == "closer"
    assert gap["gap"]["value"] == 0
    assert gap["gap"]["low"] < -0.3 < 0.3 < gap["gap"]["high"], "two tasks prove nothing"
    assert "closer" in closeloop(capsys, "task", "sets")


def test_after_a_look_numbers_go_on_with_dev_alone(project, capsys):
    closeloop(capsys, "run")
    before = json.loads(closeloop(capsys, "metrics", "--json"))
    assert before["held_out"] is None
    said = look(capsys)
    assert "Held-out tasks\nUnsealed on" in said
    assert "ann@example.org: a new prompt" in said
    after = json.loads(closeloop(capsys, "metrics", "--json"))
    assert (after["attempts"], after["figures"]) == (before["attempts"], before["figures"])
    assert after["held_out"]["looks"] == 1
    compared = json.loads(closeloop(capsys, "compare", "closer", "spiraller", "--json"))
    assert [side["tasks"] for side in compared["sides"]] == [1, 1]
    assert {one["variant"] for one in compared["held_out"]["gaps"]} == {"closer", "spiraller"}
    for arguments in (["compare", "closer", "spiraller"], ["metrics"]):
        text = closeloop(capsys, *arguments)
        heading = text.index("Held-out tasks\nunsealed 1 time; last on")
        assert "held-out" not in text[:heading].replace(
            "held-out attempts were excluded", ""
        ).replace("the held-out set", "")
    listed = json.loads(closeloop(capsys, "list", "attempts", "--json"))["items"]
    assert {row["task"] for row in listed} == {"question"}
    gated = json.loads(closeloop(capsys, "gate", "--threshold", "passed=0", "--json"))
    assert {one["task"] for one in gated["tasks"]} <= {"question"}
    events = [
        json.loads(line) for line in closeloop(capsys, "admin", "events", "--json").splitlines()
    ]
    outcomes = {
        (one["task"] or "").partition("-")[0]: one["details"]["outcome"]
        for one in events
        if one["kind"] == "attempt.ended"
    }
    assert outcomes["sealed"] is None
    assert outcomes["question"] in ("pass", "fail")
    [taken] = [one for one in events if one["kind"] == "tasks.unsealed"]
    assert (taken["details"]["reason"], taken["details"]["tasks"]) == ("a new prompt", 1)


def test_tasks_that_were_run_as_dev_are_named_when_they_are_sealed(project, capsys):
    (project / "tasks/riddle.md").unlink()
    for number in range(2):
        (project / f"tasks/q{number}.md").write_text(
            f"---\nrepo: none\nacceptance: {{answer: '4{number}'}}\n---\nWhat is 4{number}?\n"
        )
    closeloop(capsys, "run", "question", "--variant", "closer")
    hold_out(project, "question", small_project.QUESTION)
    report = json.loads(closeloop(capsys, "task", "sets", "--json"))
    assert (report["sealed_now"], report["run_as_dev"]) == ({"question": 1}, 1)
    said = closeloop(capsys, "task", "sets")
    assert "1 held-out task was run as dev before being held out" in said
    assert "question" not in said, "named once, when it was sealed"


def test_a_run_names_tasks_that_were_dev_before(project, capsys):
    closeloop(capsys, "run", "--variant", "closer")
    hold_out(project, "question", small_project.QUESTION)
    said = look(capsys, "--variant", "closer")
    assert "Now held out, but run as dev tasks before: question (1 attempt)" in said


def test_splitting_holds_out_some_tasks_and_says_how_many(project, capsys):
    for number in range(4):
        (project / f"tasks/q{number}.md").write_text(
            f"---\nrepo: none\nacceptance: {{answer: '4{number}'}}\n---\nWhat is 4{number}?\n"
        )
    said = closeloop(capsys, "task", "split", "--method", "tags", "--share", "0.5")
    texts = {path.name: path.read_text() for path in (project / "tasks").glob("*.md")}
    held = sum("split: held-out" in text for text in texts.values())
    assert held == 3
    assert "held-out 3" in " ".join(said.split())
    closeloop(capsys, "task", "split", "--method", "tags", "--share", "0.5")
    again = {path.name: path.read_text() for path in (project / "tasks").glob("*.md")}
    assert again == texts, "splitting again changes nothing"
    assert "--share" in closeloop(capsys, "task", "split", "--share", "2", code=2)
