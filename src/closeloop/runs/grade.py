"""Grade an attempt in a clean room.

An attempt is judged by its change alone, on a fresh copy of the base, with protected files and
hidden tests as the task has them. What the machine did is never held against it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

import anyio.to_thread
import msgspec

from closeloop.model.attempt import Attempt, Grade, Outcome, Proof, TestRun
from closeloop.model.change import Change
from closeloop.model.errors import MachineFailed
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.model.trace import Trace
from closeloop.runs import facts
from closeloop.runs import proof as proving
from closeloop.runs.admission import OVERSUBSCRIBED, run_suite
from closeloop.runs.integrity.believe import (
    ChosenTests,
    checks_without_running,
    choose_tests,
    doubt,
    evidence_of,
)
from closeloop.runs.integrity.confirm import ProbeRun, confirm_tests, run_probe
from closeloop.runs.integrity.restore import (
    ADDED_TEST,
    CHANGED_TEST,
    Steering,
    restored_paths,
)
from closeloop.runs.proof import (
    Unfit,
    clean_room,
    defect_of,
    prove_base,
    room,
    steering_of,
    with_clock,
)
from closeloop.runs.protected import changed_paths, with_failing_tests
from closeloop.runs.testing.run import KILLED, NOT_FOUND
from closeloop.runs.testing.verdict import Verdict, judge
from closeloop.runs.workspaces import Base, Workspaces

RERUNS = 2
"""How often a newly failing test is run again: it counts only if it fails always."""


class Submission(Record):
    """An attempt with all that grading looks at."""

    attempt: Attempt
    change: Change
    trace: Trace | None
    proof: Proof


async def grade(
    workspaces: Workspaces, base: Base | None, task: Task, submission: Submission
) -> Grade:
    """What became of an attempt, as facts, and the outcome they mean."""
    attempt, before = submission.attempt, submission.proof.before
    if attempt.exit == "machine":
        cause = attempt.cause or "the machine failed the attempt"
        steering = steering_of(base, task, before)
        aside = await anyio.to_thread.run_sync(restored_paths, steering, submission.change)
        return _with(_facts(task, submission, steering, aside), _unscored(cause))
    if before is None or before.trouble is not None:
        before = await prove_base(workspaces, base, task)
    task = with_failing_tests(task, before)
    steering = steering_of(base, task, before)
    aside = await anyio.to_thread.run_sync(restored_paths, steering, submission.change)
    graded = msgspec.structs.replace(_facts(task, submission, steering, aside), before=before)
    if defect := defect_of(task, before):
        return _with(graded, _unscored(defect))

    async def run() -> TestRun:
        return await room(workspaces, base, task, submission.change.patch, "after", steering)

    try:
        after = await _after(run, task, submission.change, before, aside)
    except Unfit as unfit:
        return _with(graded, Outcome(result="fail", reasons=(str(unfit),)))
    except (MachineFailed, OSError) as fault:
        return _with(graded, _unscored(str(fault)))
    reference = submission.proof.reference
    flaky = {*before.flaky, *after.flaky, *(reference.flaky if reference else ())}
    verdict = judge(task.acceptance, before, after, answer=attempt.summary or "", flaky=flaky)
    outcome = _unclear(task, submission.proof, before, after, verdict) or _outcome(
        task, submission, after, verdict, aside
    )
    checks = list(checks_without_running(steering, aside, before, after))
    if outcome.result == "pass" and task.acceptance.run:
        chosen = choose_tests(task.acceptance, before, after)
        probe = _second_process(workspaces, base, task, steering, chosen)
        try:
            checks += await confirm_tests(probe, submission.change.patch, task.reference, chosen[0])
        except (MachineFailed, OSError) as fault:
            outcome = _unscored(str(fault))
    outcome = doubt(outcome, checks)
    return _with(
        graded,
        outcome,
        after=after,
        fail_to_pass=verdict.fail_to_pass,
        pass_to_pass=verdict.pass_to_pass,
        broken=verdict.broken,
        integrity=tuple(checks),
        evidence=evidence_of(outcome, after, checks),
    )


def _second_process(
    workspaces: Workspaces, base: Base | None, task: Task, steering: Steering, chosen: ChosenTests
) -> Callable[[str | None, str, int], Awaitable[ProbeRun]]:
    """How some tests are run a second time, in a clean room and a process of their own."""

    async def probe(patch: str | None, token: str, number: int) -> ProbeRun:
        async def run(clock: int) -> ProbeRun:
            timed = with_clock(task, clock)
            async with clean_room(workspaces, base, timed, patch, steering) as workspace:
                return await run_probe(workspace.cage, timed.acceptance, chosen, token, number)

        result, oversubscribed = await run_suite(run, lambda run: run.stopped is not None)
        if oversubscribed:
            raise MachineFailed(OVERSUBSCRIBED)
        return result

    return probe


async def _after(
    run: Callable[[], Awaitable[TestRun]],
    task: Task,
    change: Change,
    before: TestRun,
    restored: Collection[str],
) -> TestRun:
    """The tests with a change; newly failing ones again, to tell broken from flaky."""
    if not _changes_anything(change, restored):
        return msgspec.structs.replace(before, when="after", flaky=())
    after = await run()
    if after.trouble is not None:
        after = await run()
    broken = judge(task.acceptance, before, after, flaky=before.flaky).broken
    if not broken or not after.ran or after.trouble or after.commands[0].stopped:
        return after
    again = [await run() for _ in range(RERUNS)]
    passed = {test.id for run in again for test in run.tests if test.status == "passed"}
    return msgspec.structs.replace(after, flaky=tuple(name for name in broken if name in passed))


def _changes_anything(change: Change, restored: Collection[str]) -> bool:
    return any(path not in restored for path in changed_paths(change))


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


def _outcome(
    task: Task,
    submission: Submission,
    after: TestRun,
    verdict: Verdict,
    restored: Collection[str],
) -> Outcome:
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
    elif not _changes_anything(submission.change, restored):
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


def _facts(
    task: Task, submission: Submission, steering: Steering, aside: Mapping[str, str]
) -> Grade:
    """All that needs no test run."""
    change, trace = submission.change, submission.trace
    files, tests = facts.right_files(task, change, steering), (ADDED_TEST, CHANGED_TEST)
    return Grade(
        attempt=submission.attempt.id,
        grading=task.grading,
        version=proving.GRADER_VERSION,
        outcome=_unscored("not graded"),
        before=submission.proof.before,
        out_of_scope=facts.out_of_scope(task, change),
        restored=tuple(path for path, why in aside.items() if why not in tests),
        set_aside=tuple(path for path, why in aside.items() if why in tests),
        files_precision=files.precision,
        files_recall=files.recall,
        asked=facts.asked(trace),
    )


def _with(graded: Grade, outcome: Outcome, **found: object) -> Grade:
    return msgspec.structs.replace(graded, outcome=outcome, **found)


def _unscored(cause: str) -> Outcome:
    return Outcome(result="unscored", cause=cause)
