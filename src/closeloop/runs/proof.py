"""Prove a task by its controls, each run in a clean room.

A room is a fresh copy of the base, with protected files and hidden tests as the task has them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from closeloop.model.attempt import Proof, TestRun
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.task import Task
from closeloop.model.variant import Limits
from closeloop.runs.admission import OVERSUBSCRIBED, run_suite
from closeloop.runs.integrity.apply import apply_change
from closeloop.runs.integrity.restore import Steering, read_steering
from closeloop.runs.integrity.run_through import BaseTree
from closeloop.runs.mutants import mutants
from closeloop.runs.protected import with_failing_tests
from closeloop.runs.sandbox.place import Place, real_paths
from closeloop.runs.testing.run import HIDDEN_FAILURES, OVERTIME, When, run_tests
from closeloop.runs.testing.verdict import NAMED, judge, nearest
from closeloop.runs.workspaces import Base, Workspace, Workspaces

GRADER_VERSION = 3
NO_REFERENCE = "no reference change given"
DOING_NOTHING = "doing nothing passes"


class Unfit(Exception):
    """A change that cannot be put on top of the base: the attempt's failure, not ours."""


async def look(workspaces: Workspaces, base: Base | None, task: Task) -> Proof:
    """The least that grading needs: what the tests say at the base, and if that can serve."""
    before = await prove_base(workspaces, base, task)
    defect = defect_of(task, before)
    return Proof(
        task=task.id,
        grading=task.grading,
        version=GRADER_VERSION,
        state="unchecked" if defect is None else "unproved",
        reasons=() if defect is None else (defect,),
        before=before,
    )


def unready(task: Task, fault: BadInput) -> Proof:
    """That a task's base cannot be made, and why: by the first line and the last."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    return Proof(
        task=task.id,
        grading=task.grading,
        version=GRADER_VERSION,
        state="unproved",
        reasons=(" ".join(dict.fromkeys((lines[0], lines[-1]))),),
    )


async def prove(
    workspaces: Workspaces,
    base: Base | None,
    task: Task,
    repeats: int,
    quick: str | None = None,
) -> Proof:
    """The controls: doing nothing fails, the reference passes, each as often as it is run.

    And the reference made wrong must fail too: else the tests take anything.

    A task that wants only an answer has no reference: it is proved when no answer is not one.
    `quick` runs the tests that must be made to pass and few others: enough for repeats, and to
    see most wrong changes fail.
    """
    before = await prove_base(workspaces, base, task, repeats, quick)
    defect = defect_of(task, before)
    reasons = [] if defect is None else [defect]
    reference = None
    if before.trouble is None:
        task = with_failing_tests(task, before)
        reasons += _misnamed(task, before)
        if task.reference is not None:
            reference = await run_reference(workspaces, base, task, before, repeats, quick)
            reasons += _reference_reasons(task, before, reference)
        reasons += _unknown_tests(task, before, reference)
        if reference is not None and not reasons:
            reasons += await _wrong_passes(workspaces, base, task, quick, (before, reference))
    unshown = task.reference is None and (task.acceptance.run or task.acceptance.commands)
    return Proof(
        task=task.id,
        grading=task.grading,
        version=GRADER_VERSION,
        state="unproved" if reasons else "unchecked" if unshown else "proved",
        reasons=(NO_REFERENCE,) if unshown and not reasons else tuple(reasons),
        before=before,
        reference=reference,
        repeats=repeats,
    )


async def prove_base(
    workspaces: Workspaces,
    base: Base | None,
    task: Task,
    repeats: int = 1,
    quick: str | None = None,
) -> TestRun:
    """The tests before any change, hidden ones included; flaky where repeats differ."""

    async def run(task: Task) -> TestRun:
        return await room(workspaces, base, task, None, "before")

    try:
        return await _repeated(task, run, repeats, quick)
    except Unfit as unfit:
        return TestRun(when="before", trouble=f"The task's hidden tests do not fit: {unfit}")
    except (MachineFailed, OSError) as fault:
        return TestRun(when="before", trouble=str(fault))


async def run_reference(
    workspaces: Workspaces,
    base: Base | None,
    task: Task,
    before: TestRun | None = None,
    repeats: int = 1,
    quick: str | None = None,
) -> TestRun:
    """The tests after the reference change; flaky where repeats differ."""
    steering = steering_of(base, task, before)

    async def run(task: Task) -> TestRun:
        return await room(workspaces, base, task, task.reference, "after", steering)

    try:
        return await _repeated(task, run, repeats, quick)
    except (Unfit, MachineFailed, OSError) as fault:
        return TestRun(when="after", trouble=str(fault))


async def room(
    workspaces: Workspaces,
    base: Base | None,
    task: Task,
    patch: str | None,
    when: When,
    steering: Steering | None = None,
) -> TestRun:
    """One run of the tests in a clean room, when the machine has room for it."""
    if not task.acceptance.run and not task.acceptance.commands:
        return TestRun(when=when)

    async def run(clock: int) -> TestRun:
        timed = with_clock(task, clock)
        async with clean_room(workspaces, base, timed, patch, steering) as workspace:
            return await run_tests(workspace.cage, timed.acceptance, when)

    def is_stopped(run: TestRun) -> bool:
        return any(command.stopped in OVERTIME for command in run.commands)

    result, oversubscribed = await run_suite(run, is_stopped)
    return msgspec.structs.replace(result, trouble=OVERSUBSCRIBED) if oversubscribed else result


def with_clock(task: Task, times: int) -> Task:
    """The task with so many times the time for its tests."""
    wanted = msgspec.structs.replace(task.acceptance, timeout=times * task.acceptance.timeout)
    return msgspec.structs.replace(task, acceptance=wanted)


@asynccontextmanager
async def clean_room(
    workspaces: Workspaces,
    base: Base | None,
    task: Task,
    patch: str | None,
    steering: Steering | None = None,
) -> AsyncIterator[Workspace]:
    """The base, a change, then all that does not count of it as the base or the reference has it.

    A change needs the steering of its task. Unfit when the change cannot be put on top of the base.
    """
    wanted = task.acceptance
    limits = Limits(
        seconds=Limits().seconds + wanted.timeout * (3 + len(wanted.commands)),
        idle_seconds=2 * wanted.timeout,
        command_seconds=wanted.timeout,
    )
    async with workspaces.open(base, limits) as workspace:
        try:
            if patch is not None and steering is not None:
                await apply_change(workspace, task, patch, steering)
            if wanted.patch is not None:
                await workspace.apply(wanted.patch)
        except BadInput as fault:
            raise Unfit(str(fault)) from fault
        yield workspace


def steering_of(base: Base | None, task: Task, before: TestRun | None) -> Steering:
    """What of a change to this base does not count."""
    tree = BaseTree(root=real_paths(Place(folder=base.folder))[0]) if base else None
    return read_steering(task, tree, before)


async def _repeated(
    task: Task, run: Callable[[Task], Awaitable[TestRun]], repeats: int, quick: str | None
) -> TestRun:
    """Several runs as one; the first that the machine spoiled ends them."""
    first = await run(task)
    if first.trouble is not None:
        return first
    again = []
    for _ in range(repeats - 1):
        again.append(await run(_with_command(task, quick)))
        if quick is not None and not again[-1].tests:
            quick = None  # it does not do what it should
            again[-1] = await run(task)
        if again[-1].trouble is not None:
            return again[-1]
    seen = [first, *again]
    if quick is not None and again:
        # What only the whole suite has was run once: that is no reason to call it flaky.
        asked = {test.id for one in again for test in one.tests}
        kept = tuple(test for test in first.tests if test.id in asked)
        seen[0] = msgspec.structs.replace(first, tests=kept)
    return msgspec.structs.replace(first, flaky=_differing(task, seen))


def _with_command(task: Task, run: str | None) -> Task:
    """A task that runs fewer tests: only what must be made to pass is sure to be among them."""
    if run is None:
        return task
    wanted = msgspec.structs.replace(task.acceptance, run=run, pass_to_pass=())
    return msgspec.structs.replace(task, acceptance=wanted)


def _differing(task: Task, runs: Sequence[TestRun]) -> tuple[str, ...]:
    """Tests, and acceptance commands, whose result is not the same in all runs."""
    seen: dict[str, list[object]] = {}
    for run in runs:
        for test in run.tests:
            seen.setdefault(test.id, []).append(test.status)
        for result in run.commands[task.acceptance.run is not None :]:
            seen.setdefault(result.command, []).append(result.exit_code == 0)
    steady = {name for name, all_ in seen.items() if len(all_) == len(runs) and len({*all_}) == 1}
    return tuple(name for name in seen if name not in steady)


def defect_of(task: Task, before: TestRun) -> str | None:
    """Why no attempt at this task can be scored, as far as its base shows."""
    wanted = task.acceptance
    if before.trouble is not None:
        return before.trouble
    if HIDDEN_FAILURES in before.notes:
        return f"`{wanted.run}` exits with 0 although tests fail: drop what hides its exit code."
    # Before the change, tests that need it may not compile, nor hidden ones load: no report then.
    silent = wanted.run is not None and not before.ran and not before.tests
    hidden = wanted.fail_to_pass and wanted.patch is not None
    uncompiled = (
        silent and (wanted.runner == "junit" or hidden) and before.commands[0].exit_code != 0
    )
    if silent and not uncompiled and not before.commands[0].stopped:
        return (
            f"`{wanted.run}` ran no test that could be read: correct it, name its runner, "
            "or use acceptance.commands."
        )
    if wanted.fail_to_pass and set(wanted.fail_to_pass) <= set(before.flaky):
        return "every fail-to-pass test is flaky at the base"
    try:
        nothing = judge(wanted, before, before, answer="", flaky=before.flaky)
    except re.error as error:
        return f"acceptance.answer is not a regular expression: {error}."
    return None if nothing.reasons else DOING_NOTHING


def _misnamed(task: Task, before: TestRun) -> list[str]:
    """Tests in a list that their result at the base says they do not belong to."""
    passing = {test.id for test in before.tests if test.status == "passed"} - {*before.flaky}
    wanted = task.acceptance
    early = [name for name in wanted.fail_to_pass if name in passing]
    listed = wanted.pass_to_pass or ()
    failing = [name for name in listed if name not in passing and name not in before.flaky]
    known = [test.id for test in before.tests]
    return [
        *(f"{name} passes before any change, so it is not fail-to-pass" for name in early[:NAMED]),
        *(
            f"{name} does not pass before the change, so it is not pass-to-pass."
            f"{'' if name in known else nearest(name, known)}"
            for name in failing[:NAMED]
        ),
    ]


def _reference_reasons(task: Task, before: TestRun, reference: TestRun) -> list[str]:
    """What does not hold with the reference; its answer is not known, so none is looked at."""
    if reference.trouble is not None:
        return [f"with the reference change: {reference.trouble}"]
    flaky = {*before.flaky, *reference.flaky}
    verdict = judge(task.acceptance, before, reference, flaky=flaky)
    reasons = [f"with the reference change, {reason}" for reason in verdict.reasons]
    if task.acceptance.fail_to_pass and flaky.issuperset(task.acceptance.fail_to_pass):
        reasons.append("every fail-to-pass test is flaky")
    return reasons


def _unknown_tests(task: Task, before: TestRun, reference: TestRun | None) -> list[str]:
    """Fail-to-pass tests that the reference should have shown; without one nobody can know."""
    if reference is None:
        return []
    known = dict.fromkeys(test.id for run in (before, reference) for test in run.tests)
    missing = [name for name in task.acceptance.fail_to_pass if name not in known]
    return [f"no test named {name} ran.{nearest(name, known)}" for name in missing[:NAMED]]


async def _wrong_passes(
    workspaces: Workspaces,
    base: Base | None,
    task: Task,
    quick: str | None,
    runs: tuple[TestRun, TestRun],
) -> list[str]:
    """That wrong changes pass, if all do that can be made of the reference."""
    before, reference = runs
    steering = steering_of(base, task, before)
    flaky = {*before.flaky, *reference.flaky}
    passing = []
    for mutant in mutants(task.reference or ""):
        for command in dict.fromkeys((quick, None)):
            asked = _with_command(task, command)
            try:
                run = await room(workspaces, base, asked, mutant.patch, "after", steering)
            except (Unfit, MachineFailed, OSError):
                break
            # A quick run without results only shows that it cannot be had.
            seen = run.tests or command is None
            if seen and judge(asked.acceptance, before, run, flaky=flaky).reasons:
                return []
        else:
            passing.append(mutant.how)
    told = " or with ".join(passing)
    return [f"the reference change passes with {told} too"] if passing else []
