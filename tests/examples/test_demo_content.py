"""The demo is what it says: its history, its tasks, and how its two scripted models behave."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo_run import BARE_PYTEST, DEMO

from closeloop import demo as build
from closeloop.grading.grading import files_out_of_scope
from closeloop.metrics.attempt_measuring import (
    find_experiment,
    list_experiment_attempts,
    load_story,
    project_rulebook,
)
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptDetails
from closeloop.records.settings import Settings
from closeloop.records.task import Task
from closeloop.records.trace import Command, Edit, Message
from closeloop.sandbox.workspaces import resolve_commit
from closeloop.store import open_store
from closeloop.tasks.task_files import load_task
from closeloop.text.patches import parse_patch

TASKS = sorted(path.stem for path in (DEMO / "tasks").glob("*.md"))
EASY = {"explain-vat", "version-flag"}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build_demo(tmp_path_factory.mktemp("demo"))


def task_of(demo: Path, name: str) -> Task:
    return load_task(demo / "tasks" / f"{name}.md", None, resolve_commit)


@pytest.fixture(scope="session")
def stories(tried_demo: Path) -> dict[tuple[str | None, str | None], AttemptDetails]:
    """All that is known of each attempt, by task and variant."""
    with open_store(str(tried_demo / ".closeloop/closeloop.db")) as store:
        rows = list_experiment_attempts(store, find_experiment(store, None))
        book = project_rulebook(Settings())
        return {(row.task, row.variant_name): load_story(store, row.id, book) for row in rows}


class Tried:
    """An attempt by the real agent, graded by the real grader and measured by the rules."""

    def __init__(self, story: AttemptDetails) -> None:
        assert story.trace
        assert story.grade
        self.attempt, self.measurement = story.attempt, story.measurement
        self.trace, self.grade = story.trace, story.grade

    @property
    def rules(self) -> set[str]:
        return {finding.rule for finding in self.measurement.findings}

    def commands(self) -> list[Command]:
        return [event for event in self.trace.events if isinstance(event, Command)]


def failures(command: Command) -> set[str]:
    return set(re.findall(r"^FAILED (\S+)", command.output or "", re.MULTILINE))


def test_the_history_has_the_same_commits_on_every_machine(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    (tmp_path / ".gitconfig").write_text(
        f"[commit]\n gpgSign = true\n[core]\n hooksPath = {hooks}\n autocrlf = true\n"
        "[user]\n name = Somebody Else\n[init]\n defaultBranch = trunk\n"
    )
    for name, value in {
        "HOME": str(tmp_path),
        "GIT_CONFIG_GLOBAL": str(tmp_path / ".gitconfig"),
        "TZ": "Asia/Tokyo",
        "LC_ALL": "de_DE.UTF-8",
        "GIT_AUTHOR_NAME": "Nobody",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z",
        "GIT_DIR": str(tmp_path / "elsewhere"),
    }.items():
        monkeypatch.setenv(name, value)
    built = build.build_demo(tmp_path / "demo")
    monkeypatch.undo()
    for folder in (demo, built):
        project = folder / "project"
        assert git(project, "rev-parse", "HEAD", *build.TAGS).split() == [
            build.HEAD,
            *build.TAGS.values(),
        ]
        assert git(project, "symbolic-ref", "--short", "HEAD") == "main"
        assert git(project, "status", "--porcelain") == ""


def test_the_history_is_the_work_of_a_team_over_months(demo: Path) -> None:
    commits = git(demo / "project", "log", "--format=%an %ad", "--date=format:%m").splitlines()
    assert len(commits) == 12
    assert len({commit.rpartition(" ")[0] for commit in commits}) == 3
    assert len({commit.rpartition(" ")[2] for commit in commits}) >= 7


def test_building_again_replaces_only_what_was_changed(tmp_path: Path) -> None:
    folder = build.build_demo(tmp_path / "demo")
    (folder / "tasks" / "stray.md").write_text("left over")
    (folder / ".closeloop").mkdir()
    git(folder / "project", "checkout", "-q", "missing-cent")
    build.build_demo(folder)
    assert not (folder / "tasks" / "stray.md").exists()
    assert (folder / ".closeloop").is_dir()
    assert git(folder / "project", "rev-parse", "HEAD") == build.HEAD


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.md").write_text("mine")
    with pytest.raises(BadInput, match="choose another folder"):
        build.build_demo(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["tasks", "mine.md"]


def test_the_tests_of_the_project_fail_only_where_the_team_left_them_failing(
    demo: Path, tmp_path: Path
) -> None:
    for tag, result in {"v0.6.0": "117 passed", "missing-cent": "4 failed, 106 passed"}.items():
        git(tmp_path, "clone", "-q", "-b", tag, str(demo / "project"), tag)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            command,
            cwd=tmp_path / tag,
            env={**os.environ, BARE_PYTEST: "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.splitlines()[-1].startswith(result)


def test_the_demo_has_every_kind_of_task(demo: Path) -> None:
    tags = {tag for name in TASKS for tag in task_of(demo, name).tags}
    wanted = "understanding ambiguous several-files failing-test handoff scope constraints"
    assert tags >= set(wanted.split())


@pytest.mark.parametrize("name", TASKS)
def test_the_reference_passes_and_doing_nothing_fails(tried_demo: Path, name: str) -> None:
    with open_store(str(tried_demo / ".closeloop/closeloop.db")) as store:
        proof = store.load_proof(task_of(tried_demo, name).grading)
    assert proof
    assert (proof.state, proof.reasons) == ("proved", ())


@pytest.mark.parametrize("name", TASKS)
def test_the_reference_stays_in_scope_and_changes_no_existing_test(demo: Path, name: str) -> None:
    """Its tests would be those of the grade, and call functions that another right change lacks."""
    task = task_of(demo, name)
    reference = parse_patch(task.reference or "")
    assert files_out_of_scope(task, reference) == ()
    changed_tests = [
        file.path
        for file in reference.files
        if file.path.startswith("tests/") and file.status != "added"
    ]
    assert changed_tests == []


@pytest.mark.parametrize("name", TASKS)
def test_careful_closes_the_loop(
    demo: Path, stories: dict[tuple[str, str], AttemptDetails], name: str
) -> None:
    tried = Tried(stories[name, "careful"])
    assert tried.attempt.exit == "finished"
    assert (tried.grade.outcome.result, tried.grade.outcome.reasons) == ("pass", ())
    assert tried.grade.out_of_scope == ()
    assert tried.grade.restored == ()
    assert tried.grade.asked == task_of(demo, name).ambiguous
    assert tried.rules == set()
    assert tried.measurement.ending
    assert tried.measurement.ending.category == "clean"
    assert_every_edit_worked(tried)
    edits = [event.number for event in tried.trace.events if isinstance(event, Edit)]
    verified = [event.number for event in tried.commands() if event.exit_code == 0]
    assert max(verified) > max(edits, default=0)
    if name == "missing-cent":
        needs_three_tries(tried)


@pytest.mark.parametrize("name", TASKS)
def test_looping_is_plausible_and_wrong_but_where_it_is_easy(
    stories: dict[tuple[str, str], AttemptDetails], name: str
) -> None:
    tried = Tried(stories[name, "looping"])
    assert tried.attempt.exit == "finished"
    assert tried.grade.outcome.result == ("pass" if name in EASY else "fail")
    assert tried.grade.asked is False
    assert_every_edit_worked(tried)
    assert tried.rules == FINDINGS.get(name, set())
    SPIRALS.get(name, lambda tried: None)(tried)


def assert_every_edit_worked(tried: Tried) -> None:
    assert [event for event in tried.trace.events if getattr(event, "ok", None) is False] == []


def needs_three_tries(tried: Tried) -> None:
    """Each leaves fewer failures than the one before."""
    left = [failures(check) for check in tried.commands()]
    assert [len(names) for names in left] == [4, 2, 1, 0, 0]
    assert left[0] > left[1] > left[2]


def spirals(tried: Tried) -> None:
    """Five fixes, each with other words and other code, and the same four failures."""
    checks = tried.commands()
    assert len(checks) == 6
    assert [len(failures(check)) for check in checks] == [4] * 6
    assert len({frozenset(failures(check)) for check in checks}) == 1
    messages = [re.findall(r"^E +.*", check.output or "", re.MULTILINE) for check in checks]
    assert messages[1:] == messages[:-1]
    said = [event.text for event in tried.trace.events if isinstance(event, Message)]
    assert len(set(said)) == len(said)
    assert checks[-1].exit_code == 1
    assert "fixed" in (tried.attempt.summary or "")


def leaves_scope(tried: Tried) -> None:
    assert tried.grade.out_of_scope == ("tally/text.py",)
    broken = " ".join(tried.grade.broken)
    assert "test_customers.py::test_the_keys_of_old_customers_are_found_again" in broken
    assert all(check.exit_code == 0 for check in tried.commands())


def drops_facts(tried: Tried) -> None:
    assert tried.grade.broken == ()


def silences_a_test(tried: Tried) -> None:
    assert tried.grade.restored == ("tests/test_tax.py",)
    assert "tests/test_tax.py::test_countries_are_known_by_their_iso_code" in tried.grade.broken


def claims_without_checking(tried: Tried) -> None:
    assert not any("pytest" in check.command for check in tried.commands())
    assert "all tests pass" in (tried.attempt.summary or "")
    assert "tally/migrations/0002_paid_on.sql" in tried.grade.out_of_scope
    assert tried.grade.fail_to_pass == (4, 6)


def forgets_a_constraint(tried: Tried) -> None:
    assert tried.commands()[-1].exit_code == 0
    assert tried.grade.fail_to_pass == (4, 6)


FINDINGS = {
    "missing-cent": {"spiral", "false-claim"},
    "statement-names": {"out-of-scope-edit"},
    "reminders": {"dropped-brief"},
    "greek-buyer": {"out-of-scope-edit", "weakened-test"},
    "purchase-order": {"out-of-scope-edit", "unverified-claim"},
    "version-flag": {"unverified-claim"},
}
SPIRALS: dict[str, Callable[[Tried], None]] = {
    "missing-cent": spirals,
    "statement-names": leaves_scope,
    "reminders": drops_facts,
    "greek-buyer": silences_a_test,
    "purchase-order": claims_without_checking,
    "report-tables": forgets_a_constraint,
}
