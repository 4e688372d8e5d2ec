"""Grade an attempt in a clean room.

An attempt is graded by its change alone, on a fresh copy of the base, with protected files and
hidden tests as the task has them. A failure of the machine never counts against an attempt.
"""

from __future__ import annotations

import random
import re
import secrets
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from math import comb
from typing import Literal

import anyio
import anyio.to_thread
import msgspec

from closeloop.concurrency import unwrap_exception_group
from closeloop.grading import task_proof
from closeloop.grading.integrity.confirm import (
    ChosenTests,
    ProbeRun,
    ProbeTests,
    checks_without_running,
    choose_tests,
    confirm_tests,
    doubt_pass,
    evidence_of,
    find_killed_probe,
    run_probe,
    shows_failure,
)
from closeloop.grading.integrity.data_readers import (
    AlteredData,
    alter_test_data,
    list_added_sources,
    read_base_sources,
)
from closeloop.grading.integrity.restore import (
    ADDED_TEST,
    CHANGED_TEST,
    TEST_FILES,
    Steering,
    find_test_folder,
    is_test_path,
    restored_paths,
    why_restored,
)
from closeloop.grading.suite_run import (
    FAILING_STATUSES,
    KILLED_EXIT_CODES,
    MAX_NAMED,
    NOT_FOUND_EXIT_CODE,
    RunMoment,
    SuiteVerdict,
    detect_runner,
    find_python_script,
    judge_suite,
    list_tests_to_keep,
    tests_to_fix,
)
from closeloop.grading.task_proof import (
    NOTHING_PASSES,
    UnfitChange,
    base_root,
    find_grading_basis,
    find_steering,
    limit_timeout_by_reference,
    open_clean_room,
    run_base_tests,
    run_in_clean_room,
    scale_test_timeout,
)
from closeloop.grading.tool_outcomes import (
    changed_paths,
    list_patch_paths,
    parse_change,
    path_in_test_id,
    select_tests,
)
from closeloop.records.attempt import (
    AWAITING_REVIEW,
    Attempt,
    Grade,
    IntegrityCheck,
    Outcome,
    Proof,
    TestRun,
)
from closeloop.records.change import Change
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.records.trace import Edit, Message, Trace
from closeloop.sandbox.admission import OVERSUBSCRIBED_MESSAGE, run_suite
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool
from closeloop.text.code_patterns import NAME_DEFINITION, find_missing_names
from closeloop.text.patches import count_changed_lines
from closeloop.text.wording import matches_globs

# Invented names: a failing test reports that they do not exist, and nothing else defines them.


MAX_MESSAGES = 50
"""Maximum number of failing tests whose messages are read; tests with one cause repeat one message.
"""


def find_made_up_names(
    task: Task, change: Change, after: TestRun, root: str | None
) -> tuple[str, ...] | None:
    """Return missing names that only the change uses, or None if the base cannot be searched.

    A name that the base, its tests or the reference contain exists somewhere; one that the change
    itself defines is merely out of scope.
    """
    try:
        added = "\n".join(source.text for source in list_added_sources(change))
    except BadInput:
        return None
    names = {
        missing.name: missing.name.rpartition(".")[2]
        for message in _failure_messages(after)
        for missing in find_missing_names(message)
        if missing.sort != "option"
    }
    suspects = {
        name: word
        for name, word in names.items()
        if _has_word(added, word) and not _defines_word(added, word)
    }
    if not suspects:
        return ()
    patches = [parse_change(patch) for patch in (task.reference, task.acceptance.patch)]
    sources = (
        read_base_sources(root, filter(None, patches), lambda path, text: False) if root else None
    )
    if sources is None:
        return None
    texts = [source.text for source in (*sources.tests, *sources.product, *sources.metadata)]
    return tuple(
        name for name, word in suspects.items() if not any(_has_word(text, word) for text in texts)
    )


def _failure_messages(run: TestRun) -> Iterator[str]:
    failing = [test for test in run.tests if test.status in ("failed", "error") and test.message]
    for test in failing[:MAX_MESSAGES]:
        yield test.message or ""
    for command in run.commands:
        if command.exit_code:
            yield command.output


def _has_word(text: str, word: str) -> bool:
    return word in text and re.search(rf"\b{re.escape(word)}\b", text) is not None


def _defines_word(text: str, word: str) -> bool:
    definition = NAME_DEFINITION.replace("NAME", re.escape(word))
    return re.search(definition, text, re.MULTILINE) is not None


# Distinguish a test that a change breaks intermittently from one that is flaky by itself.
#
# A test that failed in one run and passed in another is run more often, with the change and
# without it. One that fails without it too is flaky and left out of the verdict. One that always
# passes without it counts against the change, unless chance explains that as well: then the
# result is unclear.


CHANGE_RUNS = 5
"""Total runs of a suspected test with the change, including those that made it suspect."""
CONTROL_RUNS = 7
"""Total runs of a suspected test without the change, including the base run of every grade."""
MAX_CHANCE = 0.05
"""Maximum probability that all failures fell on one side by chance; above it there is no verdict.
"""

RunSuite = Callable[[], Awaitable[TestRun]]


class SuiteSeries(Record):
    """Runs of one suite in one state of the code, and the function that adds another."""

    runs: list[TestRun]
    run_suite: RunSuite


class UnsteadyTests(Record):
    """Tests that both passed and failed with a change, and the outcome that follows."""

    flaky: tuple[str, ...] = ()
    """Tests that sometimes fail without the change too."""
    outcome: Outcome | None = None
    """The outcome that the other unsteady tests impose on a change that would otherwise pass."""


def find_unsteady_tests(
    runs: Sequence[TestRun], probes: Iterable[ProbeRun], required: Collection[str]
) -> list[str]:
    """Return the required tests that both passed and failed with the same change."""
    passed = [_list_passed(run) for run in _telling_runs(runs)]
    always = set.intersection(*passed) if passed else set[str]()
    once = set[str]().union(*passed)
    unsteady = (once - always) | _find_unsteady_copies(probes)
    return [test for test in required if test in unsteady]


async def classify_unsteady_tests(
    tests: Collection[str], with_change: SuiteSeries, controls: Mapping[str, SuiteSeries]
) -> UnsteadyTests:
    """Classify unsteady tests by running them more often; a test without a control stays
    unclear."""
    changed = await _fill_series(with_change, CHANGE_RUNS)
    flaky, broken, unclear = [], [], []
    for test in tests:
        control = await _fill_series(controls[test], CONTROL_RUNS) if test in controls else []
        description = _describe_failures(test, changed, control)
        if _count_failures(control, test):
            flaky.append(test)
        elif _estimate_chance(test, changed, control) < MAX_CHANCE:
            broken.append(description)
        else:
            unclear.append(description)
    outcome = None
    if broken:
        outcome = Outcome(result="fail", reasons=tuple(broken))
    elif unclear:
        cause = (
            f"{unclear[0]}: grade it again, or check with `closeloop task check` whether "
            "it is flaky."
        )
        outcome = Outcome(result="unscored", cause=cause)
    return UnsteadyTests(flaky=tuple(flaky), outcome=outcome)


async def extend_series(series: SuiteSeries) -> TestRun:
    """Run the suite once more and append the run to the series."""
    series.runs.append(await series.run_suite())
    return series.runs[-1]


async def _fill_series(series: SuiteSeries, count: int) -> list[TestRun]:
    """Run the suite until it has `count` usable runs, and return those.

    Runs that the machine spoils are not repeated.
    """
    for _ in range(count - len(_telling_runs(series.runs))):
        await extend_series(series)
    return _telling_runs(series.runs)


def _telling_runs(runs: Iterable[TestRun]) -> list[TestRun]:
    """Return the runs without machine trouble whose test command was not stopped."""
    return [
        run
        for run in runs
        if run.trouble is None and not any(command.stopped for command in run.commands[:1])
    ]


def _count_failures(runs: Iterable[TestRun], test: str) -> int:
    """Count the runs in which a test did not pass: it failed, was skipped or did not run."""
    return sum(test not in _list_passed(run) for run in _telling_runs(runs))


def _list_passed(run: TestRun) -> set[str]:
    return {test.id for test in run.tests if test.status == "passed"}


def _find_unsteady_copies(probes: Iterable[ProbeRun]) -> set[str]:
    """Return the tests whose copy, under the same name, had different results in two probes.

    If the same number of a function's parameters failed each time, the parameter ids only changed
    places, because a set is ordered differently in each process; such tests are left out.
    """
    statuses: dict[str, set[bool]] = {}
    originals: dict[str, str] = {}
    failures: dict[str, set[int]] = {}
    for probe in probes:
        failed: Counter[str] = Counter()
        for test in probe.tests:
            # One that does not report although it must has not passed.
            has_result = test.name in probe.results or not test.optional
            if test.kind == "copy" and test.original and has_result:
                passed = probe.results.get(test.name) == "passed"
                statuses.setdefault(test.name, set()).add(passed)
                originals[test.name] = test.original
                failed[test.name.partition("[")[0]] += not passed
        for function, count in failed.items():
            failures.setdefault(function, set()).add(count)
    return {
        originals[name]
        for name, results in statuses.items()
        if len(results) > 1 and len(failures[name.partition("[")[0]]) > 1
    }


def _estimate_chance(test: str, changed: Sequence[TestRun], control: Sequence[TestRun]) -> float:
    """Return the probability that all failures occur with the change if it does not cause them."""
    failures = _count_failures(changed, test)
    return comb(len(changed), failures) / comb(len(changed) + len(control), failures)


def _describe_failures(test: str, changed: Sequence[TestRun], control: Sequence[TestRun]) -> str:
    failures = _count_failures(changed, test)
    if failures:
        text = f"{test} fails sometimes, in {failures} of {len(changed)} runs with the change"
    else:
        text = f"{test} failed in a second process, and passed there when it was run again"
    if not control:
        return f"{text}; without a reference it is unknown whether the test is stable"
    return f"{text}, and in none of {len(control)} without it"


# Measures of an attempt's change and trace beside its tests: files and questions.


class FilePrecision(Record):
    """Comparison of the changed files with the files of the reference."""

    precision: float | None = None
    recall: float | None = None
    similarity: float | None = None


def files_out_of_scope(task: Task, change: Change) -> tuple[str, ...]:
    """Return the files changed outside the declared scope; none if no scope is declared."""
    if not task.scope:
        return ()
    return tuple(path for path in changed_paths(change) if not matches_globs(path, task.scope))


def measure_file_precision(task: Task, change: Change, steering: Steering) -> FilePrecision:
    """Measure how well the changed files match those of the reference.

    Restored files are ignored, and tests that the agent added count neither for nor against it.
    """
    if task.reference is None:
        return FilePrecision()
    new_tests = {
        file.path
        for file in change.files
        if file.status == "added"
        and file.path not in steering.references
        and (is_test_path(steering, file.path) or find_test_folder(file.path) is not None)
    }
    reference_files = {path for path in steering.references if why_restored(steering, path) is None}
    changed_files = {
        path for path in changed_paths(change) if why_restored(steering, path) is None
    } - new_tests
    shared_count = len(reference_files & changed_files)
    return FilePrecision(
        precision=shared_count / len(changed_files) if changed_files else None,
        recall=shared_count / len(reference_files) if reference_files else None,
        similarity=measure_similarity(task.reference, change.patch, reference_files, changed_files),
    )


def measure_similarity(
    reference: str, patch: str, reference_files: Collection[str], changed_files: Collection[str]
) -> float | None:
    """Return 2 × shared changed lines ÷ the sum of both changes' lines; None without any."""
    reference_lines = count_changed_lines(reference, reference_files)
    changed_lines = count_changed_lines(patch, changed_files)
    total = reference_lines.total() + changed_lines.total()
    return 2 * (reference_lines & changed_lines).total() / total if total else None


def asked_before_editing(trace: Trace | None) -> bool | None:
    """Return whether a question came before the first edit; None if there is no trace."""
    if trace is None or not trace.events:
        return None
    for event in trace.events:
        if isinstance(event, Message) and event.role == "agent" and event.intent == "question":
            return True
        if isinstance(event, Edit) and event.ok is not False:
            return False
    return False


RERUN_COUNT = 2
"""Number of reruns of a newly failing test, to see whether it always fails."""


class GradedSubmission(Record):
    """An attempt with everything that grading reads."""

    attempt: Attempt
    change: Change
    trace: Trace | None
    proof: Proof


class _GradingContext(Record):
    """The data shared by all runs of one grade."""

    workspaces: WorkspacePool
    base: WorkspaceBase | None
    task: Task
    submission: GradedSubmission
    before: TestRun
    steering: Steering
    restored: Mapping[str, str]
    """Paths of the change that are restored and do not count, each with the reason."""

    async def run_suite(self, patch: str | None) -> TestRun:
        """Run the tests once, at the base or after a change."""
        when: RunMoment = "before" if patch is None else "after"
        return await run_in_clean_room(
            self.workspaces, self.base, self.task, patch, when, self.steering
        )

    @property
    def known_flaky(self) -> set[str]:
        reference = self.submission.proof.reference
        return {*self.before.flaky, *(reference.flaky if reference else ())}


async def grade_attempt(
    workspaces: WorkspacePool, base: WorkspaceBase | None, task: Task, submission: GradedSubmission
) -> Grade:
    """Grade an attempt: collect the facts and derive the outcome."""
    attempt, before = submission.attempt, submission.proof.before
    if attempt.exit == "machine" or not task.acceptance.is_given:
        fault = attempt.cause or "the machine failed during the attempt"
        cause = fault if attempt.exit == "machine" else AWAITING_REVIEW
        steering = find_steering(base, task, before)
        restored = await _list_restored_paths(steering, submission.change)
        return _with_outcome(
            _grade_without_running(task, submission, steering, restored), _unscored_outcome(cause)
        )
    if before is None or before.trouble is not None:
        before = await run_base_tests(workspaces, base, task)
    basis = find_grading_basis(base, task, before)
    task, steering = basis.task, basis.steering
    restored = await _list_restored_paths(steering, submission.change)
    partial_grade = msgspec.structs.replace(
        _grade_without_running(task, submission, steering, restored), before=before
    )
    if basis.defect is not None:
        return _with_outcome(partial_grade, _unscored_outcome(basis.defect))
    context = _GradingContext(
        workspaces=workspaces,
        base=base,
        task=task,
        submission=submission,
        before=before,
        steering=steering,
        restored=restored,
    )
    return await _grade_by_tests(context, partial_grade)


async def _list_restored_paths(steering: Steering, change: Change) -> dict[str, str]:
    """Return the paths of a change that do not count, with reasons; reads the base in a thread."""
    if not change.patch:
        return {}
    if steering.base is None:
        return restored_paths(steering, change)
    return await anyio.to_thread.run_sync(restored_paths, steering, change)


async def _grade_by_tests(context: _GradingContext, partial_grade: Grade) -> Grade:
    """Run the tests with the change, and confirm a pass by probes."""
    task, before, change = context.task, context.before, context.submission.change
    with_change = SuiteSeries(runs=[], run_suite=partial(context.run_suite, change.patch))
    confirmation = await _confirm_hidden_tests(context)
    try:
        after = await _run_after_change(context, with_change)
    except UnfitChange as unfit:
        return _with_outcome(partial_grade, Outcome(result="fail", reasons=(str(unfit),)))
    except (MachineFailed, OSError) as fault:
        return _with_outcome(partial_grade, _unscored_outcome(str(fault)))
    flaky = {*context.known_flaky, *after.flaky}
    answer = context.submission.attempt.summary or ""
    verdict = judge_suite(task.acceptance, before, after, answer=answer, flaky=flaky)
    outcome = _unclear_outcome(
        task, context.submission.proof, before, after, verdict
    ) or _decide_outcome(task, context.submission, after, verdict, context.restored)
    checks = list(checks_without_running(context.steering, context.restored, before, after))
    if outcome.result == "pass" and task.acceptance.run:
        confirmation = confirmation or _Confirmation(
            context, choose_tests(task.acceptance, before, after)
        )
        try:
            checks += await confirmation.read_checks()
            outcome = doubt_pass(outcome, checks)
            if outcome.result == "pass":
                outcome = (
                    _find_unconfirmed_pass(context, confirmation)
                    or await _find_repair_elsewhere(context)
                    or await _doubt_unsteady_tests(context, with_change, confirmation.probes)
                )
        except (MachineFailed, OSError) as fault:
            outcome = _unscored_outcome(str(fault))
    if outcome.result == "pass":
        try:
            checks += [check async for check in _check_scripts(context)]
        except (MachineFailed, OSError) as fault:
            outcome = _unscored_outcome(str(fault))
    outcome = doubt_pass(outcome, checks)
    missing_names: tuple[str, ...] | None = ()
    if change.patch and any(_failure_messages(after)):
        missing_names = await anyio.to_thread.run_sync(
            find_made_up_names, task, change, after, base_root(context.base)
        )
    return _with_outcome(
        partial_grade,
        outcome,
        after=after,
        missing_names=missing_names,
        fail_to_pass=verdict.fail_to_pass,
        pass_to_pass=verdict.pass_to_pass,
        broken=verdict.broken,
        integrity=tuple(checks),
        evidence=evidence_of(
            outcome, after, checks, is_confined=context.workspaces.sandbox.wrap is not None
        ),
    )


async def _check_scripts(context: _GradingContext) -> AsyncIterator[IntegrityCheck]:
    """Yield a check for each acceptance script that succeeds with a wrong assertion.

    It is violated if the change is at fault: the script fails with the reference, or reaches that
    assertion at the base, or ends while it imports. A product may rightly end its process.
    """
    acceptance, reference = context.task.acceptance, context.task.reference
    hidden_runner = acceptance.run if acceptance.run and not detect_runner(acceptance.run) else None
    for command in filter(None, (hidden_runner, *acceptance.commands)):
        script = find_python_script(command)
        if script is None:
            continue
        run = partial(_run_rewritten_script, context, command, script)
        patch, seed = context.submission.change.patch, secrets.token_hex(16)
        if await run(patch, partial(_rewrite_script, "invert", seed)) != 0:
            continue
        if reference is not None:
            if await run(reference, partial(_rewrite_script, "invert", seed)) == 0:
                continue
            is_at_fault = True
        else:
            is_at_fault = (
                await run(None, partial(_rewrite_script, "stop", seed)) == STOPPED_EXIT_CODE
                or await run(patch, partial(_rewrite_script, "import", seed)) == 0
            )
        detail = f"`{command}` succeeds although an assertion in {script} is wrong"
        state: Literal["violated", "not applicable"] = (
            "violated" if is_at_fault else "not applicable"
        )
        yield IntegrityCheck(name="perturbed", state=state, detail=detail)


STOPPED_EXIT_CODE = 93
"""Exit code of a script that was made to end at an assertion."""


def _rewrite_script(how: Literal["invert", "stop", "import"], seed: str, text: str) -> str | None:
    """Invert an assertion of a script, or end the script there or after its imports."""
    from closeloop.grading.integrity import perturb_python as scripts

    rng = random.Random(seed)  # noqa: S311 (`secrets` made the seed)
    match how:
        case "invert":
            return scripts.invert_script(text, rng)
        case "stop":
            return scripts.stop_at_assertion(text, rng, STOPPED_EXIT_CODE)
        case "import":
            return scripts.stop_after_imports(text, STOPPED_EXIT_CODE)


async def _run_rewritten_script(
    context: _GradingContext,
    command: str,
    script: str,
    patch: str | None,
    rewrite: Callable[[str], str | None],
) -> int | None:
    """Return the exit code of a command whose script was rewritten; None if it could not be."""
    task, steering = context.task, context.steering

    async def run(clock: int) -> int | None:
        timed = scale_test_timeout(task, clock)
        async with open_clean_room(
            context.workspaces, context.base, timed, patch, steering
        ) as workspace:
            try:
                text = rewrite((await workspace.sandbox.read(script)).decode())
            except (OSError, UnicodeDecodeError):
                return None
            if text is None:
                return None
            await workspace.sandbox.write(script, text.encode())
            process = await workspace.sandbox.run(command, seconds=timed.acceptance.timeout)
            return process.exit_code

    result, _ = await run_suite(run, lambda _: False, task.digest)
    return result


class _SeemsToFail(Exception):
    """A test does not pass in a second process: it is enough to run the tests themselves."""


class _Confirmation:
    """The probes that confirm the chosen tests of a change, each in a clean room of its own."""

    def __init__(self, context: _GradingContext, chosen_tests: ChosenTests) -> None:
        self._context, self._task = context, context.task
        self.chosen_tests = chosen_tests
        self.probes: list[ProbeRun] = []
        """The probes of the submitted change so far."""
        self._token = secrets.token_hex(16)
        self._rooms: dict[int, ProbeRun] = {}
        """The first probe of each room."""
        self._unread: dict[int, ProbeRun] = {}
        """Those of them whose results are still to be used."""
        self._checks: list[IntegrityCheck] | None = None
        self._fault: Exception | None = None

    async def read_checks(self) -> list[IntegrityCheck]:
        """Return the integrity checks, by the probes made so far and those still needed."""
        if self._fault is not None:
            raise self._fault
        if self._checks is not None:
            return self._checks
        is_late = bool(self._rooms)
        checks = await self._confirm(self._probe)
        return list(map(_doubt_late_check, checks)) if is_late else checks

    async def probe_before_run(self) -> None:
        """Make the probes before the tests themselves run with the change; stop if it fails."""
        context, reference = self._context, self._context.submission.proof.reference
        if reference is not None:
            self._task = limit_timeout_by_reference(context.task, reference)
        try:
            self._checks = await self._confirm(self._probe_unless_failing)
        except (MachineFailed, OSError) as fault:
            self._fault = fault
        except (_SeemsToFail, UnfitChange):
            self._unread = self._rooms.copy()
        self._task = context.task

    async def _confirm(self, probe: ProbeTests) -> list[IntegrityCheck]:
        patch, reference = self._context.submission.change.patch, self._task.reference
        checks = await confirm_tests(probe, patch, reference, self.chosen_tests[0], self._token)
        if any(check.state == "violated" for check in checks):
            return checks
        return [
            await self._check_data(check) if check.name == "perturbed" else check
            for check in checks
        ]

    async def _check_data(self, check: IntegrityCheck) -> IntegrityCheck:
        """Return the check of wrong assertions, or of wrong data if tests pass with that.

        It is violated if only expectations were wrong; a change may treat wrong input otherwise
        than the reference.
        """
        acceptance, reference = self._task.acceptance, self._task.reference
        test_files = set(map(path_in_test_id, self.chosen_tests[0]))
        altered = await anyio.to_thread.run_sync(
            alter_test_data,
            acceptance.patch or "",
            lambda path: path in test_files or matches_globs(path, TEST_FILES),
            random.Random(self._token),  # noqa: S311 (`secrets` made the token)
        )
        if altered is None or (reference is None and not altered.is_named):
            return check
        patch = self._context.submission.change.patch
        passed = await self._list_passing(patch, altered)
        if passed and reference is not None:
            passed -= await self._list_passing(reference, altered)
        if passed and reference is not None:  # not by chance
            passed &= await self._list_passing(patch, altered)
        if not passed:
            return check
        is_violated = altered.is_expectation and reference is not None
        return IntegrityCheck(
            name="perturbed",
            state="violated" if is_violated else "not applicable",
            detail=f"{min(passed)} passes though {', '.join(altered.paths[:MAX_NAMED])} is wrong",
        )

    async def _list_passing(self, patch: str | None, altered: AlteredData) -> set[str]:
        """Return the tests to fix that pass in a clean room with wrong data."""
        context, acceptance, tests = self._context, self._task.acceptance, self.chosen_tests[0]
        command = select_tests(acceptance.run or "", acceptance.runner, tests) or acceptance.run
        narrow = msgspec.structs.replace(acceptance, run=command, commands=(), patch=altered.patch)
        task = msgspec.structs.replace(self._task, acceptance=narrow)
        run = await run_in_clean_room(
            context.workspaces, context.base, task, patch, "after", context.steering
        )
        return _list_passed(run) & set(tests)

    async def _probe_unless_failing(self, patch: str | None, token: str, room: int) -> ProbeRun:
        run = await self._probe(patch, token, room)
        if patch == self._context.submission.change.patch and shows_failure(
            run, self.chosen_tests[0]
        ):
            raise _SeemsToFail
        return run

    async def _probe(self, patch: str | None, token: str, room: int) -> ProbeRun:
        """Run the chosen tests in one room; a room of the submitted change is stored."""
        is_submitted = patch == self._context.submission.change.patch
        if is_submitted and room in self._unread:
            return self._unread.pop(room)
        probe = partial(self._probe_once, patch, token, room)
        run, oversubscribed = await run_suite(
            probe, lambda run: run.stopped is not None, self._task.digest
        )
        if oversubscribed:
            raise MachineFailed(OVERSUBSCRIBED_MESSAGE)
        if is_submitted:
            self.probes.append(run)
            self._rooms.setdefault(room, run)
        return run

    async def _probe_once(self, patch: str | None, token: str, room: int, clock: int) -> ProbeRun:
        context, task = self._context, scale_test_timeout(self._task, clock)
        async with open_clean_room(
            context.workspaces, context.base, task, patch, context.steering
        ) as workspace:
            return await run_probe(
                workspace.sandbox,
                task.acceptance,
                self.chosen_tests,
                context.steering.test_folders,
                token,
                room,
            )


def _doubt_late_check(check: IntegrityCheck) -> IntegrityCheck:
    """Return what a check says if rooms were probed after a run that code could read tests in."""
    if check.name != "confirmed" or check.state != "held":
        return check
    detail = "tests failed in a second process before they ran, and not later"
    return IntegrityCheck(name=check.name, state="not applicable", detail=detail)


async def _confirm_hidden_tests(context: _GradingContext) -> _Confirmation | None:
    """Confirm a change before it runs with its hidden tests; None if it has none.

    Code that has read a hidden test can carry what it expects to later rooms: by the clock, or by
    the kernel's counters and caches.
    """
    acceptance = context.task.acceptance
    if not (acceptance.run and acceptance.patch and acceptance.fail_to_pass):
        return None
    chosen_tests = choose_tests(acceptance, context.before, None)
    if not chosen_tests[0] or not _changes_anything(context.submission.change, context.restored):
        return None
    confirmation = _Confirmation(context, chosen_tests)
    await confirmation.probe_before_run()
    return confirmation


def _find_unconfirmed_pass(context: _GradingContext, confirmation: _Confirmation) -> Outcome | None:
    if context.task.reference is not None:
        return None
    fixed = confirmation.chosen_tests[0]
    killed = find_killed_probe(fixed, context.before, confirmation.probes)
    return _unscored_outcome(killed) if killed else None


async def _find_repair_elsewhere(context: _GradingContext) -> Outcome | None:
    """Return an unscored outcome if an empty change passes with the reference's files in place.

    Reference files that are only tests repair nothing, and are not checked.
    """
    task, steering = context.task, context.steering
    hidden = set(list_patch_paths(task.acceptance.patch))
    in_place = [path for path in steering.references if why_restored(steering, path) is not None]
    if all(path in hidden or matches_globs(path, TEST_FILES) for path in in_place):
        return None
    run = await context.run_suite("")
    verdict = judge_suite(task.acceptance, context.before, run, flaky=context.known_flaky)
    if run.trouble is not None or verdict.reasons:
        return None
    files = ", ".join(sorted(in_place)[:MAX_NAMED])
    return _unscored_outcome(
        f"{NOTHING_PASSES}, with the files that the reference creates from {files}"
    )


async def _doubt_unsteady_tests(
    context: _GradingContext, with_change: SuiteSeries, probes: Sequence[ProbeRun]
) -> Outcome:
    """Keep a pass unless one of its tests passed in one run and failed in another."""
    acceptance, before, reference = context.task.acceptance, context.before, context.task.reference
    to_keep = list_tests_to_keep(acceptance, before, context.known_flaky)
    to_fix = [name for name in tests_to_fix(acceptance, before) if name not in context.known_flaky]
    unsteady = find_unsteady_tests(with_change.runs, probes, [*to_fix, *to_keep])
    if not unsteady:
        return Outcome(result="pass")
    at_base = SuiteSeries(runs=[before], run_suite=partial(context.run_suite, None))
    controls = dict.fromkeys(to_keep, at_base)
    if reference is not None:
        repaired = SuiteSeries(runs=[], run_suite=partial(context.run_suite, reference))
        controls |= dict.fromkeys(to_fix, repaired)
    classification = await classify_unsteady_tests(unsteady, with_change, controls)
    if classification.outcome is None and to_fix and set(to_fix) <= set(classification.flaky):
        return _unscored_outcome("every fail-to-pass test is flaky")
    return classification.outcome or Outcome(result="pass")


async def _run_after_change(context: _GradingContext, with_change: SuiteSeries) -> TestRun:
    """Run the tests with the change, and rerun newly failing ones to separate broken from flaky."""
    task, before = context.task, context.before
    if not _changes_anything(context.submission.change, context.restored):
        return msgspec.structs.replace(before, when="after", flaky=())
    after = await extend_series(with_change)
    if after.trouble is not None:
        after = await extend_series(with_change)
    broken = judge_suite(task.acceptance, before, after, flaky=before.flaky).broken
    if not broken or not after.ran or after.trouble or after.commands[0].stopped:
        return after
    if await _fail_by_themselves(context, broken):
        return after
    with unwrap_exception_group():
        async with anyio.create_task_group() as group:
            for _ in range(RERUN_COUNT):
                group.start_soon(extend_series, with_change)
    reruns = with_change.runs[-RERUN_COUNT:]
    unsteady = {test.id for run in reruns for test in run.tests if test.status == "passed"}
    if not unsteady.issuperset(broken):
        # On a busy machine, a test that depends on timing may now fail at the base too.
        base_rerun = await context.run_suite(None)
        unsteady |= {test.id for test in base_rerun.tests if test.status == "failed"}
    return msgspec.structs.replace(after, flaky=tuple(name for name in broken if name in unsteady))


async def _fail_by_themselves(context: _GradingContext, broken: Sequence[str]) -> bool:
    """Return whether tests fail alone too, with the change and never before it.

    If so, the whole suite need not run again. Any other result is inconclusive: a test may pass or
    fail only because others ran first.
    """
    acceptance = context.task.acceptance
    command = select_tests(acceptance.run or "", acceptance.runner, broken)
    if command is None:
        return False
    narrow = msgspec.structs.replace(acceptance, run=command, commands=())
    alone = msgspec.structs.replace(
        context, task=msgspec.structs.replace(context.task, acceptance=narrow)
    )
    changed = SuiteSeries(
        runs=[], run_suite=partial(alone.run_suite, context.submission.change.patch)
    )
    unchanged = SuiteSeries(runs=[], run_suite=partial(alone.run_suite, None))
    with unwrap_exception_group():
        async with anyio.create_task_group() as group:
            for series in (*[changed] * RERUN_COUNT, unchanged):
                group.start_soon(extend_series, series)
    failed_by_run = [
        {test.id for test in run.tests if test.status in FAILING_STATUSES} for run in changed.runs
    ]
    return all(failed_tests.issuperset(broken) for failed_tests in failed_by_run) and all(
        _list_passed(run).issuperset(broken) for run in unchanged.runs
    )


def _changes_anything(change: Change, restored: Collection[str]) -> bool:
    return any(path not in restored for path in changed_paths(change))


def _unclear_outcome(
    task: Task, proof: Proof, before: TestRun, after: TestRun, verdict: SuiteVerdict
) -> Outcome | None:
    """Return an outcome if the runs say nothing about the change; else None."""
    acceptance = task.acceptance
    if after.trouble is not None and not _has_kill_code(after):
        return _unscored_outcome(after.trouble)
    if acceptance.fail_to_pass and verdict.fail_to_pass is None:
        return _unscored_outcome("every fail-to-pass test is flaky")
    if proof.state == "proved":
        return None
    if missing := _missing_programs(before) & _missing_programs(after):
        return _unscored_outcome(
            f"`{min(missing)}` was not found, neither before the change nor after it; add what it "
            "needs to the task's setup."
        )
    if acceptance.run is None:
        return None
    if not before.tests and not after.tests:
        return _unscored_outcome("no test ran, neither before the change nor after it")
    if before.commands[0].stopped and after.commands[0].stopped:
        return _unscored_outcome(
            "the tests are too slow, before the change and after: raise the timeout"
        )
    return None


def _decide_outcome(
    task: Task,
    submission: GradedSubmission,
    after: TestRun,
    verdict: SuiteVerdict,
    restored: Collection[str],
) -> Outcome:
    reasons = list(verdict.reasons)
    if _has_kill_code(after):
        reasons.insert(0, "the tests were killed, twice, and not before the change")
    if not reasons:
        return Outcome(result="pass")
    if not (task.acceptance.run or task.acceptance.commands):
        pass
    elif not submission.change.files:
        crashed = submission.attempt.exit == "crashed" and submission.attempt.cause
        reasons.insert(0, crashed or "nothing was changed")
    elif not _changes_anything(submission.change, restored):
        reasons.insert(0, "only files were changed that grading restores")
    return Outcome(result="fail", reasons=tuple(reasons))


def _missing_programs(run: TestRun) -> set[str]:
    """Return commands whose program is missing.

    A program given by path may be the change's to create.
    """
    return {
        result.command
        for result in run.commands
        if result.exit_code == NOT_FOUND_EXIT_CODE and "/" not in result.command.split()[0]
    }


def _has_kill_code(run: TestRun) -> bool:
    return run.trouble is not None and any(
        result.exit_code in KILLED_EXIT_CODES for result in run.commands
    )


def _grade_without_running(
    task: Task, submission: GradedSubmission, steering: Steering, reasons: Mapping[str, str]
) -> Grade:
    """Compute the parts of a grade that need no test run."""
    change, trace = submission.change, submission.trace
    file_precision, tests = (
        measure_file_precision(task, change, steering),
        (ADDED_TEST, CHANGED_TEST),
    )
    return Grade(
        attempt=submission.attempt.id,
        grading=task.grading,
        version=task_proof.GRADER_VERSION,
        outcome=_unscored_outcome("not graded"),
        before=submission.proof.before,
        out_of_scope=files_out_of_scope(task, change),
        restored=tuple(path for path, reason in reasons.items() if reason not in tests),
        set_aside=tuple(path for path, reason in reasons.items() if reason in tests),
        files_precision=file_precision.precision,
        files_recall=file_precision.recall,
        similarity=file_precision.similarity,
        asked=asked_before_editing(trace),
    )


def _with_outcome(grade: Grade, outcome: Outcome, **found: object) -> Grade:
    return msgspec.structs.replace(grade, outcome=outcome, **found)


def _unscored_outcome(cause: str) -> Outcome:
    return Outcome(result="unscored", cause=cause)
