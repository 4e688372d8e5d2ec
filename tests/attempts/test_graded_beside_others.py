"""Work is graded beside the next agent's: its place is free, its cost is not forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

import small_project
from closeloop.attempts.attempt_execution import (
    AttemptExecutor,
    AttemptPacer,
    EndAgentWork,
    attempt_identity,
)
from closeloop.attempts.experiment_run import (
    RunContext,
    RunState,
    open_run_context,
    plan_experiment,
    run_attempts,
)
from closeloop.cli.config import load_project
from closeloop.records.attempt import Attempt, Usage
from closeloop.records.experiment_plan import AttemptOrder, AttemptResult, ExperimentPlan
from closeloop.records.settings import ExperimentSettings
from closeloop.tasks.task_files import select_tasks

pytestmark = pytest.mark.usefixtures("warm_path")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return small_project.build(tmp_path, sandbox="none")


def build_run(
    plan: ExperimentPlan,
    context: RunContext,
    make: Callable[[AttemptOrder, EndAgentWork], Awaitable[AttemptResult]],
    jobs: int = 1,
) -> RunState:
    return RunState(
        plan=plan,
        context=context,
        executor=AttemptExecutor(make=make, places=jobs),
        jobs=jobs,
        pace=AttemptPacer(plan.experiment, context.store),
        mode="fill",
        report_progress=lambda progress: None,
    )


def test_the_next_agent_begins_while_the_work_of_another_is_graded(project: Path) -> None:
    settings = load_project(project, environ={}).settings
    begun: list[str] = []
    graded: list[str] = []

    async def go() -> None:
        second_begins = anyio.Event()

        async def make(order: AttemptOrder, end_agent_work: EndAgentWork) -> AttemptResult:
            begun.append(order.key)
            if len(begun) == 2:
                second_begins.set()
            await end_agent_work(None)
            await second_begins.wait()
            graded.append(order.key)
            return AttemptResult(attempt=Attempt(**attempt_identity(order), exit="finished"))

        tasks = select_tasks(settings, project, ["question"])
        async with open_run_context(settings, project, ("closer",), {}) as context:
            plan = plan_experiment(context, tasks, ExperimentSettings(repeats=3))
            await run_attempts(build_run(plan, context, make))
            assert len(context.store.list_attempts()) == 3

    anyio.run(go)
    assert len(begun) == 3
    assert sorted(graded) == sorted(begun)


def test_a_variant_keeps_to_its_own_number_of_jobs(project: Path) -> None:
    file = project / "closeloop.toml"
    file.write_text(file.read_text() + "jobs = 1\n")  # of the last variant, spiraller
    settings = load_project(project, environ={}).settings
    working: Counter[str] = Counter()
    most: Counter[str] = Counter()
    two_closers = anyio.Event()

    async def make(order: AttemptOrder, end_agent_work: EndAgentWork) -> AttemptResult:
        name = order.slot.variant.name
        working[name] += 1
        most[name] = max(most[name], working[name])
        if name == "closer":
            if working[name] == 2:
                two_closers.set()
            with anyio.fail_after(60):
                await two_closers.wait()
        else:
            await anyio.wait_all_tasks_blocked()
        working[name] -= 1
        await end_agent_work(None)
        return AttemptResult(attempt=Attempt(**attempt_identity(order), exit="finished"))

    async def go() -> None:
        tasks = select_tasks(settings, project, ["question"])
        async with open_run_context(settings, project, ("closer", "spiraller"), {}) as context:
            plan = plan_experiment(context, tasks, ExperimentSettings(repeats=5))
            await run_attempts(build_run(plan, context, make, jobs=4))
            assert len(context.store.list_attempts()) == 10

    anyio.run(go)
    assert most["spiraller"] == 1
    assert most["closer"] > 1


def test_what_is_being_graded_counts_against_the_budget(project: Path) -> None:
    settings = load_project(project, environ={}).settings

    async def go() -> list[str | None]:
        tasks = select_tasks(settings, project, ["question"])
        async with open_run_context(settings, project, ("closer",), {}) as context:
            plan = plan_experiment(context, tasks, ExperimentSettings())
            pace = AttemptPacer(replace(plan.experiment, budget=1.0), context.store)
            reasons = [pace.block_reason("closer")]
            pace.add_unsaved_cost("first", 0.6)
            pace.add_unsaved_cost("unknown", None)
            reasons.append(pace.block_reason("closer"))
            pace.add_unsaved_cost("second", 0.5)
            reasons.append(pace.block_reason("closer"))
            pace.remove_unsaved_cost("first")
            return [*reasons, pace.block_reason("closer")]

    assert anyio.run(go) == [
        None,
        None,
        "$1.10 of the budget of $1.00 are spent: run it again with a larger budget to continue",
        None,
    ]


def test_a_cost_is_counted_once_when_its_attempt_is_saved(project: Path) -> None:
    settings = load_project(project, environ={}).settings
    spent: list[float] = []

    async def go() -> None:
        tasks = select_tasks(settings, project, ["question"])
        async with open_run_context(settings, project, ("closer",), {}) as context:
            plan = plan_experiment(context, tasks, ExperimentSettings(repeats=4, budget=1.0))

            async def make(order: AttemptOrder, end_agent_work: EndAgentWork) -> AttemptResult:
                spent.append(0.6)
                await end_agent_work(0.6)
                identity = attempt_identity(order)
                attempt = Attempt(**identity, exit="finished", usage=Usage(cost=0.6))
                return AttemptResult(attempt=attempt)

            await run_attempts(build_run(plan, context, make))
            assert context.store.experiments.total_cost(plan.experiment) == pytest.approx(1.2)

    anyio.run(go)
    assert len(spent) == 2
