"""What a set is made of, and whether it still fits the work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

import small_project
from closeloop.metrics.held_out_runs import (
    MAX_TRIED_CHANGES,
    list_held_out_reminders,
    overuse_warning,
)
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import HeldOutRun
from closeloop.records.task import Acceptance, Task
from closeloop.tasks.task_sets import (
    SetFacts,
    choose_held_out,
    describe_sets,
    find_renewable_age,
    visible_tasks,
)

NOW = datetime(2024, 6, 1, tzinfo=UTC)


def task(repo: Path, name: str, **fields: object) -> Task:
    base = small_project.git(repo, "rev-parse", "HEAD").strip()
    return Task(
        id=name,
        prompt=name,
        repo=str(repo),
        base=base,
        acceptance=Acceptance(run="pytest"),
        reference=small_project.FIX_PATCH,
        digest=name,
        **fields,
    )


def look(change: str, *, at: datetime = NOW, models: tuple[str, ...] = ("a",)) -> HeldOutRun:
    return HeldOutRun(
        at=at,
        who="ann",
        reason="so",
        tasks="set",
        change=change,
        experiment="x",
        variants=("v",),
        models=models,
        count=25,
    )


def test_a_set_says_how_old_it_is_and_which_files_are_gone(tmp_path):
    repo = small_project.build(tmp_path / "project")
    tasks = [task(repo, "one", tags=("a",)), task(repo, "two", split="held-out")]
    dev, held = describe_sets(tasks, NOW)
    assert (dev.name, dev.tasks, dev.tags, dev.gone) == ("dev", 1, {"a": 1}, 0)
    assert dev.median_days == 30
    small_project.git(repo, "rm", "-q", "calculator.py")
    small_project.git(repo, "commit", "-qm", "Start anew")
    dev, held = describe_sets(tasks, NOW)
    assert (dev.gone, dev.gone_tasks) == (1, ("one",))
    assert (held.gone, held.gone_tasks) == (1, ()), "held-out tasks are not named"


def test_a_repository_that_is_gone_is_no_accident(tmp_path):
    repo = small_project.build(tmp_path / "project")
    lost = [task(repo, "one")]
    repo.rename(tmp_path / "elsewhere")
    [facts] = describe_sets(lost, NOW)
    assert (facts.tasks, facts.oldest, facts.uncovered) == (1, None, None)


def test_only_dev_tasks_are_run_without_a_word():
    tasks = [Task(id="a", prompt="a"), Task(id="b", prompt="b", split="held-out")]
    plain = {"named": False, "held_out": False, "reason": None}
    assert [one.id for one in visible_tasks(tasks, **plain)] == ["a"]
    with pytest.raises(BadInput, match="unseal REASON"):
        visible_tasks(tasks, named=True, held_out=False, reason=None)
    with pytest.raises(BadInput, match="no held-out tasks"):
        visible_tasks(tasks[:1], named=False, held_out=True, reason="so")


def test_a_task_without_a_check_is_not_held_out():
    """Nobody is shown what is held out, so nobody could score it."""
    prompts = [Task(id=name, prompt=name, digest=name) for name in "abc"]
    with pytest.raises(BadInput, match="No task with a check"):
        choose_held_out(prompts, "tags", 0.5, lambda task: None)
    checked = Task(id="d", prompt="d", digest="d", acceptance=Acceptance(commands=("make",)))
    assert choose_held_out([*prompts, checked], "tags", 0.5, lambda task: None) == {"d"}
    sealed = [Task(id="b", prompt="b", split="held-out")]
    with pytest.raises(BadInput, match="has no check"):
        visible_tasks(sealed, named=False, held_out=True, reason="so")


def test_old_tasks_are_to_be_renewed_only_where_newer_commits_can_be_mined():
    """The sample project of the demo has no recent commits: its age is no reason to mine."""
    dev = SetFacts(name="dev", tasks=9, areas={}, tags={}, median_days=820.0)
    assert find_renewable_age([dev]) is None
    held = replace(dev, name="held-out", median_days=100.0, uncovered=0.5)
    assert find_renewable_age([dev, held]) == 100.0
    assert find_renewable_age([replace(dev, uncovered=0.0), held]) == 820.0


def test_looks_are_counted_by_change_and_not_by_run():
    earlier = [look(f"c{number}") for number in range(MAX_TRIED_CHANGES)]
    assert overuse_warning(look("c0"), earlier) is None
    told = overuse_warning(look("new"), earlier)
    assert told is not None
    assert "change 4" in told
    assert "10 points better" in told


def test_a_new_model_and_an_old_look_are_reminded_of():
    assert list_held_out_reminders([look("c")], [], 10.0, NOW) == []
    told = list_held_out_reminders([look("c", at=NOW - timedelta(days=100))], ["b"], 200.0, NOW)
    assert len(told) == 3
    assert "Never run on the held-out set: b" in told[2]
