"""The failure modes that people tag reach the list of tasks, what is mined and what is exported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

import small_project
from closeloop.cli.config import load_project
from closeloop.cli.mine import tag_merged_pulls
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.finding import FailureMode
from closeloop.records.pull_request import PullRow
from closeloop.records.settings import Settings
from closeloop.records.task import Task
from closeloop.records.team_rules import HumanReview
from closeloop.store import Store, open_store
from closeloop.store.store import open_project_store
from closeloop.tasks.task_files import select_tasks
from command_line import typed

AT = datetime(2026, 11, 2, tzinfo=UTC)


def review(store: Store, item: str, tags: Sequence[FailureMode]) -> None:
    store.reviews.save_review(
        HumanReview(item=item, reviewer="bob", at=AT, merge=False, tags=tuple(tags))
    )


def try_task(store: Store, task: Task, name: str) -> None:
    store.save_task(task)
    attempt = Attempt(id=name, origin="experiment", task=task.id, task_digest=task.digest,
                      started=AT, exit="finished")  # fmt: skip
    grade = Grade(attempt=name, grading=task.grading, version=1, outcome=Outcome(result="pass"))
    store.save_attempt(AttemptResult(attempt=attempt, grade=grade))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two tasks, each tried once; a person saw one mode in the first, and two in the second."""
    root = small_project.build(tmp_path / "project")
    found = load_project(root)
    first, second = select_tasks(found.settings, found.root, ("fix", "triple"))
    with open_project_store(found.settings, found.root) as store:
        for task, tags in ((first, ["scope creep"]), (second, ["scope creep", "hallucinated API"])):
            try_task(store, task, f"of-{task.id}")
            review(store, f"of-{task.id}", tags)  # type: ignore[arg-type]
    return root


def test_tasks_list_what_people_tagged_and_several_modes_first(project: Path) -> None:
    listed = json.loads(typed(project, "task", "list", "--json").stdout)["items"]
    assert [line["id"] for line in listed][:2] == ["triple", "fix"]
    assert listed[0]["modes"] == ["hallucinated-api", "scope-creep"]
    assert {"hallucinated-api", "scope-creep"} <= {*listed[0]["tags"]}
    shown = json.loads(typed(project, "show", "of-triple", "--json").stdout)
    tags = [(tag["mode"], tag["source"]) for tag in shown["measurement"]["modes"]]
    assert ("hallucinated API", "person") in tags


def test_exported_tasks_carry_what_people_tagged(project: Path, tmp_path: Path) -> None:
    done = typed(project, "task", "export", "--format", "harbor", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "triple" / "task.toml").read_text(encoding="utf-8")
    assert '"scope-creep", "hallucinated-api"' in text


def test_mined_pull_requests_carry_what_people_tagged() -> None:
    with open_store(":memory:") as store:
        attempt = Attempt(id="a", origin="production", started=AT, exit="finished")
        store.save_attempt(AttemptResult(attempt=attempt))
        row = PullRow(repo="ann/tally", pull=7, source="github", title="x", agent="claude-code",
                      attempt="a", state="merged", merge_commit="c0ffee", opened=AT,
                      told=AT)  # fmt: skip
        store.pulls.save_pull(row, lambda old: [])
        review(store, "ann/tally#7", ["context blindness"])
        assert tag_merged_pulls(store, Settings()) == {"c0ffee": ["context-blindness"]}
