"""Worked examples: what `closeloop task due` says, and why."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from scripted_work import START, add_attempt, add_task, add_variant

import small_project
from closeloop.metrics.evaluation_due import (
    count_commits_behind,
    list_setup_changes,
    report_due,
    tells_variants_apart,
)
from closeloop.records.attempt import Proof
from closeloop.records.attempt import TestRun as SuiteRun
from closeloop.records.experiment_plan import DueReport
from closeloop.records.settings import DueSettings, Settings, VariantSettings
from closeloop.records.task import Experiment, Task, Variant
from closeloop.store import Store, open_store
from closeloop.store.experiment_section import SessionSetup


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def due(
    store: Store, tasks: list[Task], after_days: int = 10, root: Path | None = None, **given: Any
) -> DueReport:
    now = START + timedelta(days=after_days)
    return report_due(store, tasks, Settings(**given), root or Path(), now)


def compared(store: Store, names: str, outcomes: dict[str, tuple[bool, ...]]) -> list[Task]:
    """An experiment of two variants with three repeats: by task, what each variant always does."""
    tasks = [add_task(store, name) for name in outcomes]
    variants = [add_variant(store, name) for name in names]
    for task in tasks:
        for variant, passed in zip(variants, outcomes[task.id], strict=True):
            for number in (1, 2, 3):
                add_attempt(store, task, variant, passed, number=number)
    digests = (tuple(one.digest for one in tasks), tuple(one.digest for one in variants))
    store.save_experiment(Experiment(id="e1", tasks=digests[0], variants=digests[1], repeats=3))
    return tasks


# Stale tasks


def test_a_task_tells_nothing_when_variants_never_differ_on_it() -> None:
    """Six scored attempts of two variants, all the same; with five nobody can say."""
    assert tells_variants_apart([[1, 1, 1], [1, 1, 1]]) is False
    assert tells_variants_apart([[0, 0, 0], [0, 0, 0]]) is False
    assert tells_variants_apart([[1, 1, 1], [1, 1, 0]]) is True
    assert tells_variants_apart([[1, 1, 1], [1, 1]]) is None
    assert tells_variants_apart([[1] * 6]) is None


def test_a_base_is_behind_by_the_commits_that_it_lacks(tmp_path: Path, store: Store) -> None:
    """Three commits; the first lacks two of them. With a limit of 2 its task is stale."""
    small_project.git(tmp_path, "init", "-q")
    commits = []
    for number in range(3):
        small_project.git(tmp_path, "commit", "-q", "--allow-empty", "-m", str(number))
        commits.append(small_project.git(tmp_path, "rev-parse", "HEAD").strip())
    tasks = [
        add_task(store, f"t{number}", repo=str(tmp_path), base=base)
        for number, base in enumerate(commits)
    ]
    odd = [
        add_task(store, "moved", repo=str(tmp_path), base="--all"),
        add_task(store, "far", repo="https://example.org/x", base=commits[0]),
        add_task(store, "lost", repo=str(tmp_path), base="0" * 40),
    ]
    counts = count_commits_behind([*tasks, *odd])
    assert counts == {(str(tmp_path), commit): 2 - number for number, commit in enumerate(commits)}
    found = due(store, [*tasks, *odd], due=DueSettings(commits=2)).stale
    assert [(one.task, one.reasons) for one in found] == [("t0", ("its base is 2 commits behind",))]


def test_every_reason_is_told_and_the_worst_task_comes_first(store: Store) -> None:
    tasks = compared(store, "ab", {"dull": (True, True), "sharp": (True, False), "shaky": (0, 0)})
    for name in ("sharp", "shaky"):
        run = SuiteRun(when="before", flaky=("t1", "t2"))
        store.save_proof(Proof(task=name, grading=f"g-{name}", state="proved", before=run))
    report = due(store, tasks)
    assert [(one.task, one.reasons, one.flaky) for one in report.stale] == [
        ("shaky", ("all variants have the same result on it", "2 tests are flaky"), 2),
        ("dull", ("all variants have the same result on it",), 0),
        ("sharp", ("2 tests are flaky",), 2),
    ]
    assert "3 of 3 dev tasks are stale" in report.says[0]


def test_held_out_tasks_are_not_named(store: Store) -> None:
    tasks = compared(store, "ab", {"dull": (True, True)})
    sealed = add_task(store, "secret", split="held-out")
    report = due(store, [*tasks, sealed])
    assert report.tasks == 1
    assert "secret" not in str(report)


# When the last run was


def test_a_quarter_after_the_last_full_comparison_another_one_is_due(store: Store) -> None:
    """Tasks t, u, v; the comparison had t and u, which is more than half."""
    assert due(store, []).says == (
        "No variants have been compared yet: run two of them with `closeloop run`.",
    )
    tasks = compared(store, "ab", {"t": (True, False), "u": (False, True)})
    report = due(store, [*tasks, add_task(store, "v")], after_days=92)
    assert report.says == ()
    assert report.last_full_run is not None
    assert (report.last_full_run.days, report.last_full_run.tasks) == (92, 2)
    assert report.last_full_run.variants == ("a", "b")
    [said] = due(store, [*tasks, add_task(store, "v")], after_days=93).says
    assert said == (
        "The last comparison on the whole set was 93 days ago, on 2026-11-02: run one every quarter"
        " with `closeloop run`."
    )
    more = [add_task(store, name) for name in "wxyz"]
    assert "No comparison covers half of the dev tasks yet" in due(store, [*tasks, *more]).says[0]


def test_a_run_of_one_variant_and_a_look_are_no_comparisons(store: Store) -> None:
    alone, other = add_variant(store, "a"), add_variant(store, "b")
    sealed = add_task(store, "s", split="held-out")
    for variant in (alone, other):
        add_attempt(store, sealed, variant, True)
    add_attempt(store, add_task(store, "t"), alone, True)
    store.save_experiment(Experiment(id="e1", tasks=("d-t",), variants=(alone.digest,)))
    both = (alone.digest, other.digest)
    store.save_experiment(Experiment(id="e2", tasks=("d-s",), variants=both))
    assert due(store, [add_task(store, "t")]).last_comparison is None


# What changed since


def test_variants_that_are_set_otherwise_and_new_models_of_sessions_are_changes() -> None:
    old = Variant(name="careful", agent="codex", agent_version="1.0", model="openai/x", digest="1")
    same = Variant(name="quick", agent="codex", digest="2")
    now = {
        "careful": Variant(
            name="careful", agent="codex", agent_version="1.1", model="openai/y", prompt="p",
            digest="3",
        ),
        "quick": same,
        "fresh": Variant(name="fresh", agent="gemini", digest="4"),
        "again": Variant(name="again", agent="codex", model="recorded:8c1f", digest="5"),
    }  # fmt: skip
    seen = [
        SessionSetup(agent="claude-code", model="sonnet", first=START),
        SessionSetup(agent="codex", model="x", first=START),
    ]
    assert {one.name: one.says for one in list_setup_changes(now, [old, same], seen)} == {
        "careful": "version 1.0 → 1.1, model openai/x → openai/y, another prompt or other tools",
        "fresh": "never compared",
        "claude-code with sonnet": "first seen in sessions on 2026-11-02",
    }


def test_the_configuration_of_now_is_held_against_the_last_comparison(store: Store) -> None:
    tasks = compared(store, "ab", {"t": (True, False), "u": (False, True)})
    variants = {"c": VariantSettings(agent="builtin"), "broken": VariantSettings(agent="nobody")}
    report = due(store, tasks, variants=variants)
    assert [(one.name, one.says) for one in report.changes] == [("c", "never compared")]
    assert report.says == ("Changed since the comparison of 2026-11-02: c. Compare again.",)
