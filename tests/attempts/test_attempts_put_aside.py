"""Attempts that end while the database is away: none is lost, and none is made again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest

import small_project
from closeloop.attempts.attempt_execution import (
    AttemptExecutor,
    AttemptPacer,
    EndAgentWork,
    attempt_identity,
)
from closeloop.attempts.attempt_saving import ATTEMPTS_FOLDER, ResultsRefused, pick_fault_to_report
from closeloop.attempts.experiment_run import (
    RunState,
    open_run,
    open_run_context,
    plan_experiment,
    run_attempts,
    run_slot,
)
from closeloop.attempts.run_resources import prepare_task
from closeloop.cli.config import load_project
from closeloop.concurrency import WorkPlace
from closeloop.records.attempt import Attempt
from closeloop.records.errors import Fault, MachineFailed
from closeloop.records.experiment_plan import AttemptOrder, AttemptResult, RunProgress
from closeloop.records.settings import ExperimentSettings
from closeloop.store import engine
from closeloop.store.store import open_project_store
from closeloop.tasks.task_files import select_tasks

VARIANTS = ("closer", "spiraller")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.2)
    return small_project.build(tmp_path, sandbox="none")


def run(
    project: Path, jobs: int = 1, listen: Callable[[RunProgress], None] = lambda told: None
) -> list[str]:
    """Make what is missing of six attempts; who was begun."""
    settings = load_project(project, environ={}).settings
    begun: list[str] = []

    def tell(told: RunProgress) -> None:
        if told.stage == "started":
            begun.append(f"{told.variant} {told.number}")
        listen(told)

    async def go() -> None:
        tasks = select_tasks(settings, project, ["question"])
        async with open_run_context(settings, project, VARIANTS, {}) as workshop:
            plan = plan_experiment(workshop, tasks, ExperimentSettings(repeats=3))
            async with open_run(plan, workshop, jobs=jobs, report_progress=tell) as going:
                await run_attempts(going)

    try:
        anyio.run(go)
    except Fault as fault:
        begun.append(str(fault))
    return begun


def kept(project: Path) -> dict[str, tuple[bool, int, int]]:
    """Of every attempt whether it is graded, its events and its exchanges."""
    with open_project_store(load_project(project, environ={}).settings, project) as store:
        rows = store.list_attempts()
        assert all(store.load_trace(row.id) for row in rows)
        return {
            f"{row.variant_name} {row.number}": (
                store.load_grade(row.id) is not None,
                row.events or 0,
                len(list(store.load_exchanges(row.id))),
            )
            for row in rows
        }


def locked(project: Path, after: int) -> tuple[sqlite3.Connection, Callable[[RunProgress], None]]:
    """A process that locks the database as soon as so many attempts are begun."""
    path = project / load_project(project, environ={}).settings.store
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    left = iter(range(after - 1, -1, -1))

    def listen(told: RunProgress) -> None:
        if told.stage == "started" and next(left, None) == 0:
            other.execute("BEGIN IMMEDIATE")

    return other, listen


def test_what_ends_while_the_database_is_locked_is_kept_by_the_next_run(project: Path) -> None:
    (project / ".closeloop").mkdir(exist_ok=True)
    other, listen = locked(project, after=2)
    with closing(other):
        *begun, said = run(project, jobs=2, listen=listen)
        other.rollback()
    # The first may be saved, and a third claimed, before the second begins and locks the database.
    assert len(begun) in (2, 3)
    assert f"are saved in {project / ATTEMPTS_FOLDER}: continue with `closeloop run`" in said
    aside = list((project / ATTEMPTS_FOLDER).glob("*.unsaved"))
    assert 1 <= len(aside) == len(begun) - len(kept(project))
    again = run(project)
    assert len(again) == 6 - len(begun)
    assert not set(again) & set(begun)
    assert not list((project / ATTEMPTS_FOLDER).iterdir())
    found = kept(project)
    assert len(found) == 6
    for variant in VARIANTS:
        told = {what for name, what in found.items() if name.startswith(variant)}
        assert len(told) == 1, "those put aside are as whole as the others"
        assert all(map(all, told))
    assert run(project) == []


def test_where_finished_work_lies_is_said_before_anything_else() -> None:
    """An attempt that could not be claimed may end after one that could not be saved."""
    refused, locked = ResultsRefused("It lies safe."), MachineFailed("The database is locked.")
    assert pick_fault_to_report([refused, locked]) is refused
    assert pick_fault_to_report([locked]) is locked


def test_where_the_folder_cannot_be_written_either_that_is_said(project: Path) -> None:
    (project / ".closeloop").mkdir(exist_ok=True)
    (project / ATTEMPTS_FOLDER).write_text("a file in the way")
    other, listen = locked(project, after=1)
    with closing(other):
        (begun, said) = run(project, listen=listen)
        other.rollback()
    assert "cannot be written" in said
    assert "run `closeloop run` to repeat the last tries" in said
    (project / ATTEMPTS_FOLDER).unlink()
    assert begun in run(project)


def test_a_damaged_file_is_named(project: Path) -> None:
    (project / ATTEMPTS_FOLDER).mkdir(parents=True)
    (project / ATTEMPTS_FOLDER / "0123-4567.unsaved").write_bytes(b"broken")
    assert "0123-4567.unsaved cannot be read: upgrade closeloop if" in run(project)[-1]


def test_a_file_that_cannot_be_opened_is_named_too(project: Path) -> None:
    (project / ATTEMPTS_FOLDER / "0123-4567.unsaved").mkdir(parents=True)
    assert "0123-4567.unsaved cannot be read (Is a directory)" in run(project)[-1]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_the_machine_failed_is_not_tried_again_after_a_fault(
    project: Path, elsewhere: bool
) -> None:
    settings = load_project(project, environ={}).settings
    faults: list[Fault] = []
    made: list[str] = []

    async def make(one: AttemptOrder, _: EndAgentWork) -> AttemptResult:
        made.append(one.key)
        if elsewhere:
            faults.append(MachineFailed("The database is away: bring it back."))
        return AttemptResult(attempt=Attempt(**attempt_identity(one), exit="machine"))

    async def go() -> None:
        tasks = select_tasks(settings, project, ["question"])
        async with open_run_context(settings, project, VARIANTS, {}) as workshop:
            plan = plan_experiment(workshop, tasks, ExperimentSettings())
            going = RunState(
                plan=plan,
                context=workshop,
                executor=AttemptExecutor(make=make, places=1),
                pace=AttemptPacer(plan.experiment, workshop.store),
                mode="fill",
                report_progress=lambda told: None,
                faults=faults,
            )
            slot = next(iter(plan.list_slots()))
            proof = await prepare_task(slot.task, workshop.tools, workshop.store)
            place = WorkPlace(anyio.CapacityLimiter(1), lambda: None)
            await run_slot(slot, proof, None, going, place)

    anyio.run(go)
    assert len(made) == (1 if elsewhere else 1 + settings.retries)
