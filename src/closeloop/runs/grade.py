"""Grade an attempt in a clean room, and prove a task by its controls.

An attempt is judged by its change alone, on a fresh copy of the base, with protected files and
hidden tests as the task has them. What the machine did is never held against it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from closeloop.model.attempt import Attempt, Grade, Outcome, Proof, TestRun
from closeloop.model.change import Change
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.globs import matches
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.model.trace import Trace
from closeloop.model.variant import Limits
from closeloop.runs import facts
from closeloop.runs.mutants import mutants
from closeloop.runs.protected import changed_paths, put_back, with_failing_tests
from closeloop.runs.testing.run import HIDDEN_FAILURES, KILLED, NOT_FOUND, When, run_tests
from closeloop.runs.testing.verdict import NAMED, Verdict, judge, nearest
from closeloop.runs.workspaces import Base, Workspaces

GRADER_VERSION = 1
RERUNS = 2
"""How often a newly failing test is run again: it counts only if it fails always."""
NO_REFERENCE = "no reference change given"
DOING_NOTHING = "doing nothing passes"


class Submission(Record):
    """An attempt with all that grading looks at."""

    attempt: Attempt
    change: Change
    trace: Trace | None
    proof: Proof


class _Unfit(Exception):
    """A change that cannot be put on top of the base: the attempt's failure, not ours."""


async def prove_base(
    workspaces: Workspaces, base: Base | None, task: Task, repeats: int = 1
) -> TestRun:
    """The tests before any change, hidden ones included; flaky where repeats differ."""
    try:
        return await _repeated(task, lambda: _room(workspaces, base, task, None, "before"), repeats)
    except _Unfit as unfit:
        return TestRun(when="before", trouble=f"The task's hidden tests do not fit: {unfit}")
    except (MachineFailed, OSError) as fault:
        return TestRun(when="before", trouble=str(fault))


async def look(workspaces: Workspaces, base: Base | None, task: Task) -> Proof:
    """The least that grading needs: what the tests say at the base, and if that can serve."""
    before = await prove_base(workspaces, base, task)
    defect = _defect(task, before)
    return Proof(
        task=task.id,
        grading=task.grading,
        version=GRADER_VERSION,
        state="unchecked" if defect is None else "unproved",
        reasons=() if defect is None else (defect,),
        before=before,
    )


async def prove(workspaces: Workspaces, base: Base | None, task: Task, repeats: int) -> Proof:
    """The controls: doing nothing fails, the reference passes, each as often as it is run.

    And the reference made wrong must fail too: else the tests take anything.

    A task that wants only an answer has no reference: it is proved when no answer is not one.
    """
    before = await prove_base(workspaces, base, task, repeats)
    defect = _defect(task, before)
    reasons = [] if defect is None else [defect]
    reference = None
    if before.trouble is None:
        task = with_failing_tests(task, before)
        reasons += _misnamed(task, before)
        if task.reference is not None:
            reference = await run_reference(workspaces, base, task, repeats)
            reasons += _reference_reasons(task, before, reference)
        reasons += _unknown_tests(task, before, reference)
        if reference is not None and not reasons:
            reasons += await _wrong_passes(workspaces, base, task, before, reference)
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


async def grade(
    workspaces: Workspaces, base: Base | None, task: Task, submission: Submission
) -> Grade:
    """What became of an attempt, as facts, and the outcome they mean."""
    attempt, before = submission.attempt, submission.proof.before
    if attempt.exit == "machine":
        cause = attempt.cause or "the machine failed the attempt"
        return _with(_facts(task, submission), _unscored(cause))
    if before is None or before.trouble is not None:
        before = await prove_base(workspaces, base, task)
    task = with_failing_tests(task, before)
    graded = msgspec.structs.replace(_facts(task, submission), before=before)
    if defect := _defect(task, before):
        return _with(graded, _unscored(defect))
    try:
        after = await _after(workspaces, base, task, submission.change, before)
    except _Unfit as unfit:
        return _with(graded, Outcome(result="fail", reasons=(str(unfit),)))
    except (MachineFailed, OSError) as fault:
        return _with(graded, _unscored(str(fault)))
    reference = submission.proof.reference
    flaky = {*before.flaky, *after.flaky, *(reference.flaky if reference else ())}
    verdict = judge(task.acceptance, before, after, answer=attempt.summary or "", flaky=flaky)
    return _with(
        graded,
        _unclear(task, submission.proof, before, after, verdict)
        or _outcome(task, submission, after, verdict),
        after=after,
        fail_to_pass=verdict.fail_to_pass,
        pass_to_pass=verdict.pass_to_pass,
        broken=verdict.broken,
    )


async def _room(
    workspaces: Workspaces, base: Base | None, task: Task, patch: str | None, when: When
) -> TestRun:
    """One run of the tests in a clean room: the base, a change, then what the task puts back."""
    wanted = task.acceptance
    if not wanted.run and not wanted.commands:
        return TestRun(when=when)
    limits = Limits(
        seconds=Limits().seconds + wanted.timeout * (1 + len(wanted.commands)),
        idle_seconds=2 * wanted.timeout,
        command_seconds=wanted.timeout,
    )
    async with workspaces.open(base, limits) as workspace:
        try:
            if patch is not None:
                await workspace.apply(patch, exclude=put_back(task))
            if wanted.patch is not None:
                await workspace.apply(wanted.patch)
        except BadInput as fault:
            raise _Unfit(str(fault)) from fault
        return await run_tests(workspace.cage, wanted, when)


async def _repeated(task: Task, run: Callable[[], Awaitable[TestRun]], repeats: int) -> TestRun:
    """Several runs as one; the first that the machine spoiled ends them."""
    runs = []
    for _ in range(max(1, repeats)):
        runs.append(await run())
        if runs[-1].trouble is not None:
            return runs[-1]
    return msgspec.structs.replace(runs[0], flaky=_differing(task, runs))


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


async def _after(
    workspaces: Workspaces, base: Base | None, task: Task, change: Change, before: TestRun
) -> TestRun:
    """The tests with a change; newly failing ones again, to tell broken from flaky."""
    if not _changes_anything(task, change):
        return msgspec.structs.replace(before, when="after", flaky=())

    async def run() -> TestRun:
        return await _room(workspaces, base, task, change.patch, "after")

    after = await run()
    if after.trouble is not None:
        after = await run()
    broken = judge(task.acceptance, before, after, flaky=before.flaky).broken
    if not broken or not after.ran or after.trouble or after.commands[0].stopped:
        return after
    again = [await run() for _ in range(RERUNS)]
    passed = {test.id for run in again for test in run.tests if test.status == "passed"}
    return msgspec.structs.replace(after, flaky=tuple(name for name in broken if name in passed))


def _changes_anything(task: Task, change: Change) -> bool:
    aside = put_back(task)
    return any(not matches(path, aside) for path in changed_paths(change))


def _unclear(
    task: Task, proof: Proof, before: TestRun, after: TestRun, verdict: Verdict
) -> Outcome | None:
    """Why the runs say nothing about the change, if they do not."""
    wanted = task.acceptance
    if after.trouble is not None and not _killed(after):
        return _unscored(after.trouble)
    if wanted.fail_to_pass and verdict.fail_to_pass is None:
        return _unscored("every fail-to-pass test is flaky")
    if proof.state == "proved":
        return None
    if missing := _missing(before) & _missing(after):
        return _unscored(
            f"`{min(missing)}` was not found, neither before the change nor after it; add what it "
            "needs to the task's setup."
        )
    if wanted.run is None:
        return None
    if not before.tests and not after.tests:
        return _unscored("no test ran, neither before the change nor after it")
    if before.commands[0].stopped and after.commands[0].stopped:
        return _unscored("the tests are too slow, before the change and after: raise the timeout")
    return None


def _outcome(task: Task, submission: Submission, after: TestRun, verdict: Verdict) -> Outcome:
    reasons = list(verdict.reasons)
    if _killed(after):
        reasons.insert(0, "the tests were killed, twice, and not before the change")
    if not reasons:
        return Outcome(result="pass")
    if not (task.acceptance.run or task.acceptance.commands):
        pass
    elif not submission.change.files:
        crashed = submission.attempt.exit == "crashed" and submission.attempt.cause
        reasons.insert(0, crashed or "no change was made")
    elif not _changes_anything(task, submission.change):
        reasons.insert(0, "only files were changed that grading puts back")
    return Outcome(result="fail", reasons=tuple(reasons))


def _missing(run: TestRun) -> set[str]:
    """Commands whose program is not there; one with a path may be for the change to make."""
    return {
        result.command
        for result in run.commands
        if result.exit_code == NOT_FOUND and "/" not in result.command.split()[0]
    }


def _killed(run: TestRun) -> bool:
    return run.trouble is not None and any(result.exit_code in KILLED for result in run.commands)


def _facts(task: Task, submission: Submission) -> Grade:
    """All that needs no test run."""
    change, trace = submission.change, submission.trace
    aside = put_back(task)
    files = facts.right_files(task, change)
    return Grade(
        attempt=submission.attempt.id,
        grading=task.grading,
        version=GRADER_VERSION,
        outcome=_unscored("not graded"),
        before=submission.proof.before,
        out_of_scope=facts.out_of_scope(task, change),
        restored=tuple(path for path in changed_paths(change) if matches(path, aside)),
        files_precision=files.precision,
        files_recall=files.recall,
        asked=facts.asked(trace),
    )


def _with(graded: Grade, outcome: Outcome, **found: object) -> Grade:
    return msgspec.structs.replace(graded, outcome=outcome, **found)


def _unscored(cause: str) -> Outcome:
    return Outcome(result="unscored", cause=cause)


def _defect(task: Task, before: TestRun) -> str | None:
    """Why no attempt at this task can be scored, as far as its base shows."""
    wanted = task.acceptance
    if before.trouble is not None:
        return before.trouble
    if HIDDEN_FAILURES in before.notes:
        return f"`{wanted.run}` exits with 0 although tests fail: drop what hides its exit code."
    # Java's tools leave no report where the tests do not compile, as they do before the change.
    silent = wanted.run is not None and not before.ran and not before.tests
    uncompiled = silent and wanted.runner == "junit" and before.commands[0].exit_code != 0
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


async def run_reference(
    workspaces: Workspaces, base: Base | None, task: Task, repeats: int = 1
) -> TestRun:
    """The tests after the reference change; flaky where repeats differ."""
    try:
        return await _repeated(
            task, lambda: _room(workspaces, base, task, task.reference, "after"), repeats
        )
    except (_Unfit, MachineFailed, OSError) as fault:
        return TestRun(when="after", trouble=str(fault))


async def _wrong_passes(
    workspaces: Workspaces, base: Base | None, task: Task, before: TestRun, reference: TestRun
) -> list[str]:
    """That wrong changes pass, if all do that can be made of the reference."""
    flaky = {*before.flaky, *reference.flaky}
    passing = []
    for mutant in mutants(task.reference or ""):
        try:
            run = await _room(workspaces, base, task, mutant.patch, "after")
        except (_Unfit, MachineFailed, OSError):
            continue
        if judge(task.acceptance, before, run, flaky=flaky).reasons:
            return []
        passing.append(mutant.how)
    told = " or with ".join(passing)
    return [f"the reference change passes with {told} too"] if passing else []


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
