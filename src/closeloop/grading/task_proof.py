"""Prove a task by its controls, each run in a clean room.

A clean room is a fresh copy of the base, with protected files and hidden tests as in the task.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from closeloop.grading.integrity.restore import BaseTree, Steering, apply_change, read_steering
from closeloop.grading.suite_run import (
    HIDDEN_FAILURES,
    MAX_NAMED,
    TIMEOUT_CAUSES,
    RunMoment,
    judge_suite,
    run_tests,
    suggest_nearest,
)
from closeloop.grading.tool_outcomes import list_patch_paths, with_failing_tests
from closeloop.records.attempt import Proof, TestRun
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record
from closeloop.records.task import Limits, Task
from closeloop.sandbox.admission import OVERSUBSCRIBED_MESSAGE, run_suite
from closeloop.sandbox.machine_view import WorkspaceLayout, real_paths
from closeloop.sandbox.workspaces import Workspace, WorkspaceBase, WorkspacePool
from closeloop.text.wording import compile_lazily, matches_globs

# Mutants of a correct change: tests that cannot distinguish them prove nothing.


MAX_LINE_CHARS = 2_000
MIN_MUTANT_SECONDS = 30.0
MUTANT_SLOWNESS = 10
"""Timeout factor: tests of a mutant may take this many times as long as with the reference."""
_HUNK = compile_lazily(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_COMMENT_START = compile_lazily(r"\s*(?:#|//|/?\*|\"\"\"|''')")
_INVERSES = {
    "==": "!=",
    "!=": "==",
    ">=": "<",
    "<=": ">",
    " < ": " >= ",
    " > ": " <= ",
    " is not ": " is ",
    " not in ": " in ",
    "True": "False",
    "False": "True",
    "true": "false",
    "false": "true",
    " and ": " or ",
    " or ": " and ",
    " + ": " - ",
    " - ": " + ",
    " * ": " + ",
    "&&": "||",
    "||": "&&",
    "if not ": "if ",
    "if !": "if ",
}
_LOGIC = compile_lazily(
    r"(?<![=!<>])(?:[!=]=(?!=)|[<>]=)| [<>] | is not | not in |\b(?:True|False|true|false)\b"
    r"| (?:and|or|[-+*]) |&&|\|\||\bif not |\bif !"
)
_CONDITION = compile_lazily(r"^(\s*(?:el)?if )([^:]+)(:\s*)$")
_VALUE = compile_lazily(r"(?<![\w.])\d{1,9}(?![\w.])|(?<=[\"'])[A-Za-z](?=[^\"'\n]*[\"'])")
_STATEMENT = compile_lazily(
    r"^(\s*)(?:(?:return|raise|yield|del)\b|(?:await )?[\w.]+\(.*\);?$"
    r"|[\w.\[\], '\"]+ [-+*/|&:]?= ?\S)"
)
_TEXT_QUOTES = compile_lazily(r"\"{3}|'{3}")
_DECLARATION = compile_lazily(
    r"\s*(?:(?:#|//|/?\*|\"{3}|'{3}|@).*"
    r"|(?:(?:export|public|private|static|async|default|pub) )*"
    r"(?:def|class|func|function|fn|interface|type|import|from|package|use|module|struct|enum) .*"
    r"|(?:\} ?)?(?:else|try|finally|pass|begin|end|do)\W*|[^\w\"'`]*)"
)


class Mutant(Record):
    """A wrong version of a change."""

    patch: str
    how: str
    """How it differs from the right one."""


def make_mutants(patch: str) -> list[Mutant]:
    """Make mutants with conditions inverted, values changed, and statements removed.

    The last is only a shell of the change. Mutants equal to the change are left out.
    """
    candidates = (
        Mutant(
            patch=_change_added_lines(patch, _invert_condition),
            how="the fix has its conditions inverted",
        ),
        Mutant(
            patch=_change_added_lines(patch, _alter_values), how="the fix has its values changed"
        ),
        Mutant(patch=_change_added_lines(patch, _drop_statement), how="the fix is removed"),
    )
    return [mutant for mutant in candidates if mutant.patch != patch]


def has_unchanged_code(patch: str, mutants: Sequence[Mutant]) -> bool:
    """Return whether a change has code that no mutant alters, which may be what the tests check.

    Declarations and documentation do not count.
    """
    in_text = False
    mutant_lines = [mutant.patch.split("\n") for mutant in mutants]
    for number, line in enumerate(patch.split("\n")):
        if not line.startswith("+") or line.startswith("+++"):
            continue
        is_text, in_text = in_text, in_text != bool(len(_TEXT_QUOTES.findall(line)) % 2)
        is_mutated = any(lines[number] != line for lines in mutant_lines)
        if not (is_text or in_text or is_mutated or _DECLARATION.fullmatch(line[1:])):
            return True
    return False


def _change_added_lines(patch: str, change: Callable[[str, str], str]) -> str:
    """Change each added line of a patch, given the line and the header of its file."""
    lines, old, new, path = patch.split("\n"), 0, 0, ""
    for number, line in enumerate(lines):
        if old <= 0 and new <= 0:
            if header := _HUNK.match(line):
                old, new = (1 if count is None else int(count) for count in header.groups())
            elif line.startswith("+++ "):
                path = line.rstrip()
            continue
        if line.startswith("+"):
            new -= 1
            if len(line) <= MAX_LINE_CHARS and not _COMMENT_START.match(line[1:]):
                lines[number] = "+" + change(line[1:], path)
        elif line.startswith("-"):
            old -= 1
        elif not line.startswith("\\"):
            old, new = old - 1, new - 1
    return "\n".join(lines)


def _invert_condition(line: str, path: str) -> str:
    inverted = _LOGIC.sub(lambda match: _INVERSES[match[0]], line)
    return _CONDITION.sub(r"\1not (\2)\3", line) if inverted == line else inverted


def _alter_values(line: str, path: str) -> str:
    def change_value(match: re.Match[str]) -> str:
        return str(int(match[0]) + 1) if match[0].isdigit() else chr(ord(match[0]) ^ 1)

    return _VALUE.sub(change_value, line)


def _drop_statement(line: str, path: str) -> str:
    """Drop a one-line statement; dropping a part of a longer one would be a syntax error."""
    is_balanced = all(
        line.count(opening) == line.count(closing) for opening, closing in ("()", "[]", "{}")
    )
    statement = _STATEMENT.match(line)
    if not is_balanced or statement is None or line.rstrip().endswith((",", "\\", '"""')):
        return line
    return f"{statement[1]}pass" if path.endswith(".py") else ""


GRADER_VERSION = 3
NO_REFERENCE = "there is no reference change"
NO_CHECK = "no automatic check: people and judges score it"
NOTHING_PASSES = "an empty change passes"


class UnfitChange(Exception):
    """A change that cannot be applied to the base: the attempt's failure, not ours."""


async def check_gradable(
    workspaces: WorkspacePool, base: WorkspaceBase | None, task: Task
) -> Proof:
    """Run the tests at the base, and return whether attempts can be graded by them."""
    before = await run_base_tests(workspaces, base, task)
    defect = find_task_defect(task, before)
    reason = defect if task.acceptance.is_given else NO_CHECK
    return Proof(
        task=task.id,
        grading=task.grading,
        version=GRADER_VERSION,
        state="unchecked" if defect is None else "unproved",
        reasons=() if reason is None else (reason,),
        before=before,
    )


def unready_proof(task: Task, fault: BadInput) -> Proof:
    """Return a proof that a task's base cannot be built, with the first and last line of the
    error."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    return Proof(
        task=task.id,
        grading=task.grading,
        version=GRADER_VERSION,
        state="unproved",
        reasons=(" ".join(dict.fromkeys((lines[0], lines[-1]))),),
    )


async def prove_task(
    workspaces: WorkspacePool,
    base: WorkspaceBase | None,
    task: Task,
    repeats: int,
    quick: str | None = None,
) -> Proof:
    """Run the controls: an empty change fails, the reference passes, in each run.

    The reference made wrong must fail too; otherwise the tests accept anything.

    A task that wants only an answer has no reference: it is proved if an empty answer is wrong.
    `quick` runs the fail-to-pass tests and few others: enough for repeats, and to see most wrong
    changes fail.
    """
    if not task.acceptance.is_given:
        return await check_gradable(workspaces, base, task)
    before = await run_base_tests(workspaces, base, task, repeats, quick)
    defect = find_task_defect(task, before)
    reasons = _find_scope_faults(task) if defect is None else [defect]
    reference, remarks = None, list[str]()
    if before.trouble is None:
        task = with_failing_tests(task, before)
        reasons += _find_misnamed_tests(task, before)
        if task.reference is not None:
            reference = await run_reference_tests(workspaces, base, task, before, repeats, quick)
            reasons += _find_reference_faults(task, before, reference)
        reasons += _find_unknown_tests(task, before, reference)
        if reference is not None and not reasons:
            passing = await _find_passing_mutants(
                workspaces, base, task, quick, (before, reference)
            )
            # If the tests may check code that no mutant changes, mutants that pass are only a
            # remark.
            is_remark = has_unchanged_code(task.reference or "", make_mutants(task.reference or ""))
            reasons, remarks = ([], passing) if is_remark else (passing, [])
    lacks_reference = task.reference is None and (task.acceptance.run or task.acceptance.commands)
    return Proof(
        task=task.id,
        grading=task.grading,
        version=GRADER_VERSION,
        state="unproved" if reasons else "unchecked" if lacks_reference else "proved",
        reasons=(NO_REFERENCE,) if lacks_reference and not reasons else (*reasons, *remarks),
        before=before,
        reference=reference,
        repeats=repeats,
    )


async def run_base_tests(
    workspaces: WorkspacePool,
    base: WorkspaceBase | None,
    task: Task,
    repeats: int = 1,
    quick: str | None = None,
) -> TestRun:
    """Run the tests before any change, including hidden ones; tests whose repeats differ are
    flaky."""

    async def run(task: Task) -> TestRun:
        return await run_in_clean_room(workspaces, base, task, None, "before")

    try:
        return await _run_repeatedly(task, run, repeats, quick)
    except UnfitChange as unfit:
        return TestRun(when="before", trouble=f"The task's hidden tests do not apply: {unfit}")
    except (MachineFailed, OSError) as fault:
        return TestRun(when="before", trouble=str(fault))


async def run_reference_tests(
    workspaces: WorkspacePool,
    base: WorkspaceBase | None,
    task: Task,
    before: TestRun | None = None,
    repeats: int = 1,
    quick: str | None = None,
) -> TestRun:
    """Run the tests after the reference change; tests whose repeats differ are flaky."""
    steering = find_steering(base, task, before)

    async def run(task: Task) -> TestRun:
        return await run_in_clean_room(workspaces, base, task, task.reference, "after", steering)

    try:
        return await _run_repeatedly(task, run, repeats, quick)
    except (UnfitChange, MachineFailed, OSError) as fault:
        return TestRun(when="after", trouble=str(fault))


async def run_in_clean_room(
    workspaces: WorkspacePool,
    base: WorkspaceBase | None,
    task: Task,
    patch: str | None,
    when: RunMoment,
    steering: Steering | None = None,
) -> TestRun:
    """Run the tests once in a clean room, when the machine has capacity."""
    if not task.acceptance.run and not task.acceptance.commands:
        return TestRun(when=when)

    async def run(clock: int) -> TestRun:
        timed = scale_test_timeout(task, clock)
        async with open_clean_room(workspaces, base, timed, patch, steering) as workspace:
            return await run_tests(workspace.sandbox, timed.acceptance, when)

    def is_stopped(run: TestRun) -> bool:
        return any(command.stopped in TIMEOUT_CAUSES for command in run.commands)

    result, oversubscribed = await run_suite(run, is_stopped, task.digest)
    return (
        msgspec.structs.replace(result, trouble=OVERSUBSCRIBED_MESSAGE)
        if oversubscribed
        else result
    )


def scale_test_timeout(task: Task, times: int) -> Task:
    """Return the task with its test timeout multiplied."""
    acceptance = msgspec.structs.replace(task.acceptance, timeout=times * task.acceptance.timeout)
    return msgspec.structs.replace(task, acceptance=acceptance)


@asynccontextmanager
async def open_clean_room(
    workspaces: WorkspacePool,
    base: WorkspaceBase | None,
    task: Task,
    patch: str | None,
    steering: Steering | None = None,
) -> AsyncIterator[Workspace]:
    """Open a base with a change applied, and restore what does not count.

    That is taken from the base or the reference. A change needs the steering of its task. Raises
    UnfitChange if the change cannot be applied to the base.
    """
    acceptance = task.acceptance
    limits = Limits(
        seconds=Limits().seconds + acceptance.timeout * (3 + len(acceptance.commands)),
        idle_seconds=2 * acceptance.timeout,
        command_seconds=acceptance.timeout,
    )
    async with workspaces.open(base, limits) as workspace:
        try:
            if patch is not None and steering is not None:
                await apply_change(workspace, task, patch, steering)
            if acceptance.patch is not None:
                await workspace.apply_patch(acceptance.patch)
        except BadInput as fault:
            raise UnfitChange(str(fault)) from fault
        yield workspace


def find_steering(base: WorkspaceBase | None, task: Task, before: TestRun | None) -> Steering:
    """Find out which parts of a change to this base do not count."""
    root = base_root(base)
    return read_steering(task, BaseTree(root=root) if root else None, before)


class GradingBasis(Record):
    """What grading knows about a task before it sees a change."""

    task: Task
    """The task, with the files of its fail-to-pass tests protected."""
    steering: Steering
    defect: str | None
    """Why no attempt at the task can be scored; None if attempts can."""


def find_grading_basis(base: WorkspaceBase | None, task: Task, before: TestRun) -> GradingBasis:
    """Return the basis of a task's grades, which all attempts at it share; recent ones are
    cached."""
    key = id(base), id(task), id(before)
    if key not in _recent_bases:
        while len(_recent_bases) >= MAX_RECENT_BASES:
            del _recent_bases[next(iter(_recent_bases))]
        # The objects are stored with it, so that their ids are not reused.
        _recent_bases[key] = _read_grading_basis(base, task, before), (base, task, before)
    return _recent_bases[key][0]


MAX_RECENT_BASES = 8
"""Maximum number of cached bases; each may hold the sources of a repository."""
_recent_bases: dict[tuple[int, int, int], tuple[GradingBasis, object]] = {}


def _read_grading_basis(base: WorkspaceBase | None, task: Task, before: TestRun) -> GradingBasis:
    task = with_failing_tests(task, before)
    steering = find_steering(base, task, before)
    return GradingBasis(task=task, steering=steering, defect=find_task_defect(task, before))


def base_root(base: WorkspaceBase | None) -> str | None:
    """Return the folder of a base's files; None without a base."""
    return real_paths(WorkspaceLayout(folder=base.folder))[0] if base else None


async def _run_repeatedly(
    task: Task, run: Callable[[Task], Awaitable[TestRun]], repeats: int, quick: str | None
) -> TestRun:
    """Merge several runs into one; the first run with machine trouble is returned at once."""
    first = await run(task)
    if first.trouble is not None:
        return first
    reruns = []
    for _ in range(repeats - 1):
        reruns.append(await run(_replace_test_command(task, quick)))
        if quick is not None and not reruns[-1].tests:
            quick = None  # it does not do what it should
            reruns[-1] = await run(task)
        if reruns[-1].trouble is not None:
            return reruns[-1]
    all_runs = [first, *reruns]
    if quick is not None and reruns:
        # Tests that only the whole suite has ran once: that does not make them flaky.
        rerun_ids = {test.id for rerun in reruns for test in rerun.tests}
        rerun_tests = tuple(test for test in first.tests if test.id in rerun_ids)
        all_runs[0] = msgspec.structs.replace(first, tests=rerun_tests)
    return msgspec.structs.replace(first, flaky=_find_flaky(task, all_runs))


def _replace_test_command(task: Task, run: str | None) -> Task:
    """Return a task that runs fewer tests; only the fail-to-pass tests are sure to be among
    them."""
    if run is None:
        return task
    acceptance = msgspec.structs.replace(task.acceptance, run=run, pass_to_pass=())
    return msgspec.structs.replace(task, acceptance=acceptance)


def _find_flaky(task: Task, runs: Sequence[TestRun]) -> tuple[str, ...]:
    """Return tests and acceptance commands whose result differs between runs."""
    results_by_name: dict[str, list[object]] = {}
    for run in runs:
        for test in run.tests:
            results_by_name.setdefault(test.id, []).append(test.status)
        for result in run.commands[task.acceptance.run is not None :]:
            results_by_name.setdefault(result.command, []).append(result.exit_code == 0)
    steady = {
        name
        for name, results in results_by_name.items()
        if len(results) == len(runs) and len({*results}) == 1
    }
    return tuple(name for name in results_by_name if name not in steady)


def find_task_defect(task: Task, before: TestRun) -> str | None:
    """Return why no attempt at this task can be scored, judging by its base; None if attempts
    can."""
    acceptance = task.acceptance
    if before.trouble is not None:
        return before.trouble
    if not acceptance.is_given:
        return None
    if HIDDEN_FAILURES in before.notes:
        return (
            f"`{acceptance.run}` exits with 0 although tests fail: remove what hides its exit code."
        )
    # Before the change, tests that need it may not compile or load: then there is no report.
    is_silent = acceptance.run is not None and not before.ran and not before.tests
    has_hidden_tests = acceptance.fail_to_pass and acceptance.patch is not None
    uncompiled = (
        is_silent
        and (acceptance.runner == "junit" or has_hidden_tests)
        and before.commands[0].exit_code != 0
    )
    if is_silent and not uncompiled and not before.commands[0].stopped:
        return (
            f"`{acceptance.run}` ran no test that could be read: correct it, set its "
            "runner, or use acceptance.commands."
        )
    if acceptance.fail_to_pass and set(acceptance.fail_to_pass) <= set(before.flaky):
        return "every fail-to-pass test is flaky at the base"
    try:
        unchanged_verdict = judge_suite(acceptance, before, before, answer="", flaky=before.flaky)
    except re.error as error:
        return f"acceptance.answer is not a regular expression: {error}."
    return None if unchanged_verdict.reasons else NOTHING_PASSES


def _find_scope_faults(task: Task) -> list[str]:
    """Return a fault if the reference leaves the scope.

    An attempt that solves it so would be out of scope.
    """
    paths = list_patch_paths(task.reference) if task.scope else ()
    outside = [path for path in paths if not matches_globs(path, task.scope)]
    if not outside:
        return []
    names = ", ".join(outside[:MAX_NAMED])
    return [f"the reference changes {names}, which are outside the task's scope: extend `scope`"]


def _find_misnamed_tests(task: Task, before: TestRun) -> list[str]:
    """Return tests in the wrong list, judging by their result at the base."""
    passing = {test.id for test in before.tests if test.status == "passed"} - {*before.flaky}
    acceptance = task.acceptance
    passing_early = [name for name in acceptance.fail_to_pass if name in passing]
    pass_to_pass = acceptance.pass_to_pass or ()
    failing = [name for name in pass_to_pass if name not in passing and name not in before.flaky]
    base_tests = [test.id for test in before.tests]
    return [
        *(
            f"{name} passes before any change, so it is not fail-to-pass"
            for name in passing_early[:MAX_NAMED]
        ),
        *(
            f"{name} does not pass before the change, so it is not pass-to-pass."
            f"{'' if name in base_tests else suggest_nearest(name, base_tests)}"
            for name in failing[:MAX_NAMED]
        ),
    ]


def _find_reference_faults(task: Task, before: TestRun, reference: TestRun) -> list[str]:
    """Return what fails with the reference; its answer is unknown, so answers are not checked."""
    if reference.trouble is not None:
        return [f"with the reference change: {reference.trouble}"]
    flaky = {*before.flaky, *reference.flaky}
    verdict = judge_suite(task.acceptance, before, reference, flaky=flaky)
    reasons = [f"with the reference change, {reason}" for reason in verdict.reasons]
    if task.acceptance.fail_to_pass and flaky.issuperset(task.acceptance.fail_to_pass):
        reasons.append("every fail-to-pass test is flaky")
    return reasons


def _find_unknown_tests(task: Task, before: TestRun, reference: TestRun | None) -> list[str]:
    """Return fail-to-pass tests that the reference run lacks; none without a reference."""
    if reference is None:
        return []
    ran_tests = dict.fromkeys(test.id for run in (before, reference) for test in run.tests)
    missing = [name for name in task.acceptance.fail_to_pass if name not in ran_tests]
    return [
        f"no test named {name} ran.{suggest_nearest(name, ran_tests)}"
        for name in missing[:MAX_NAMED]
    ]


def limit_timeout_by_reference(task: Task, reference: TestRun) -> Task:
    """Limit the test timeout for changes that may loop: those never end by themselves."""
    seconds = max((command.seconds for command in reference.commands), default=0.0)
    max_seconds = max(MIN_MUTANT_SECONDS, MUTANT_SLOWNESS * seconds)
    timeout = min(task.acceptance.timeout, max_seconds)
    acceptance = msgspec.structs.replace(task.acceptance, timeout=timeout)
    return msgspec.structs.replace(task, acceptance=acceptance)


async def _find_passing_mutants(
    workspaces: WorkspacePool,
    base: WorkspaceBase | None,
    task: Task,
    quick: str | None,
    runs: tuple[TestRun, TestRun],
) -> list[str]:
    """Return a fault if every mutant of the reference that can be run passes."""
    before, reference = runs
    steering = find_steering(base, task, before)
    flaky = {*before.flaky, *reference.flaky}
    task = limit_timeout_by_reference(task, reference)
    passing = []
    for mutant in make_mutants(task.reference or ""):
        for command in dict.fromkeys((quick, None)):
            command_task = _replace_test_command(task, command)
            try:
                run = await run_in_clean_room(
                    workspaces, base, command_task, mutant.patch, "after", steering
                )
            except (UnfitChange, MachineFailed, OSError):
                break
            # A quick run without results only shows that a quick run is not possible.
            has_results = run.tests or command is None
            if (
                has_results
                and judge_suite(command_task.acceptance, before, run, flaky=flaky).reasons
            ):
                return []
        else:
            passing.append(mutant.how)
    if not passing:
        return []
    mutations = " or ".join(passing)
    return [f"its tests also pass when {mutations}, so they would not notice a wrong fix"]
