"""Prove a candidate: by running its tests without the work and with it, again and again."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from closeloop.grading import task_proof as controls
from closeloop.records.attempt import Proof, TestRun
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.task import Acceptance, Task
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool
from closeloop.tasks.exchange.swebench import find_steady_passes, passing_tests
from closeloop.tasks.mining.candidate_builder import TaskCandidate
from closeloop.tasks.mining.mining_environments import (
    QUICK_SECONDS,
    BrokenEnvironment,
    EnvironmentCache,
    MiningEnvironment,
    acceptance_for_command,
    choose_test_files,
    extract_error_line,
    first_command_output,
    make_plain_task,
    narrow_to_files,
    narrow_to_tests,
)
from closeloop.tasks.mining.prompt_leaks import find_identifiers, split_patch_lines
from closeloop.tasks.mining.recipe_repairs import (
    describe_optional_modules,
)
from closeloop.tasks.mining.required_names import describe_untold_names, find_untold_names
from closeloop.tasks.task_files import with_digests
from closeloop.text.missing_names import find_missing_names

MAX_PROOFS = 2
"""A second proof, of the tests that the first one showed to be steady."""
TEST_FILES_SECONDS = 180.0
MAX_MESSAGES = 50
MAX_COMPLAINTS = 200
_MISSING_EXPORT = re.compile(
    r"does not provide an export named '(\w+)'|(?m:^\S+\.go:\d+:\d+: undefined: (?:\w+\.)?(\w+))"
)
UNTESTED_TAG = "untested-statement"
"""Something beside the tested fix can be changed and no test sees it."""
FAILING_STATUSES = ("failed", "error")


class ProvedTask(Record):
    """A candidate that became a task."""

    task: Task
    proof: Proof


class RefusedCandidate(Record):
    """A candidate that did not, and why."""

    why: str
    lasting: bool = True
    """It would be so tomorrow too."""
    output: str = ""
    """Of tests of which none passes: it may tell what they lack."""
    complaints: tuple[str, ...] = ()
    """What tests that fail or are skipped with the work say of it."""

    @property
    def may_lack_packages(self) -> bool:
        return bool(self.output or self.complaints)


async def prove_candidate(
    candidate: TaskCandidate, environments: EnvironmentCache, repeats: int
) -> ProvedTask | RefusedCandidate:
    """A proved task, or why there is none."""
    if untold := find_untold_names(candidate.prompt, candidate.names):
        return RefusedCandidate(why=describe_untold_names(untold))
    environment = await environments.find_environment(candidate)
    if isinstance(environment, BrokenEnvironment):
        return RefusedCandidate(why=f"no environment: {environment.why}", lasting=False)
    try:
        base = await environments.open_base(environment, candidate.base)
    except BadInput as fault:
        why = f"no environment: {extract_error_line(str(fault))}"
        return RefusedCandidate(why=why, lasting=False)
    failing_tests = await _find_fail_to_pass(candidate, environments, environment, base)
    if isinstance(failing_tests, RefusedCandidate) and failing_tests.may_lack_packages:
        completed_environment = await environments.install_missing(
            environment, candidate, failing_tests.output, failing_tests.complaints
        )
        if completed_environment is not None:
            environment, base = completed_environment
            failing_tests = await _find_fail_to_pass(candidate, environments, environment, base)
    if isinstance(failing_tests, RefusedCandidate):
        return failing_tests
    task = _build_task(candidate, environments.repo, environment, failing_tests)
    # The tests that must turn from failing to passing have been run once each way already.
    quick_command = narrow_to_tests(environment, candidate.test_files, failing_tests)
    return await _prove_steady_task(
        task, environments.workspaces, base, max(1, repeats - 1), quick_command
    )


async def _prove_steady_task(
    task: Task, workspaces: WorkspacePool, base: WorkspaceBase, repeats: int, quick: str
) -> ProvedTask | RefusedCandidate:
    """The controls, and once more with the tests that the first proof showed to be steady."""
    for _ in range(MAX_PROOFS):
        proof = await controls.prove_task(workspaces, base, task, repeats, quick)
        if proof.state == "proved" and not _has_flaky_tests(proof):
            break
        steady_task = _with_steady_tests(task, proof)
        if steady_task is None:
            break
        task = steady_task
    if proof.state != "proved":
        return RefusedCandidate(why=proof.reasons[0] if proof.reasons else "it could not be proved")
    if proof.reasons:
        task = msgspec.structs.replace(task, tags=(*task.tags, UNTESTED_TAG))
    return ProvedTask(task=task, proof=proof)


async def _find_fail_to_pass(
    candidate: TaskCandidate,
    environments: EnvironmentCache,
    environment: MiningEnvironment,
    base: WorkspaceBase,
) -> tuple[str, ...] | RefusedCandidate:
    """The tests of the changed files that fail without the work and pass with it: one run each."""
    run = narrow_to_files(environment, candidate.test_files)
    task = make_plain_task(
        environments.repo, candidate.base, environment.recipe, run, TEST_FILES_SECONDS
    )
    wanted = msgspec.structs.replace(task.acceptance, patch=candidate.tests)
    task = msgspec.structs.replace(task, acceptance=wanted, reference=candidate.source)
    after = await controls.run_reference_tests(environments.workspaces, base, task)
    if after.trouble is not None:
        return RefusedCandidate(why=after.trouble, lasting=False)
    if after.commands[0].stopped:
        why = (
            f"its test files take longer than {TEST_FILES_SECONDS:.0f} seconds, and fewer cannot"
            " be run"
        )
        return RefusedCandidate(why=why, lasting=False)
    passing = passing_tests(after)
    if not passing:
        output = first_command_output(after)
        why = f"none of its tests passes with the change ({extract_error_line(output)})"
        return RefusedCandidate(
            why=f"{why}: this machine may lack something",
            output=output,
            complaints=_list_complaints(after),
        )
    before = await controls.run_base_tests(environments.workspaces, base, task)
    if before.trouble is not None:
        return RefusedCandidate(why=before.trouble, lasting=False)
    if untold := _find_unnamed_imports(candidate, before):
        return RefusedCandidate(why=describe_untold_names(untold))
    newly_passing = passing - passing_tests(before)
    fail_to_pass = tuple(test.id for test in after.tests if test.id in newly_passing)
    if fail_to_pass:
        return fail_to_pass
    broken = sum(test.status in FAILING_STATUSES for test in after.tests)
    skipped = sum(test.status == "skipped" for test in after.tests)
    also = f", and {broken} fail with it too: they may need a network" if broken else ""
    also += f", and {skipped} are skipped: this machine may lack something" if skipped else ""
    output = describe_optional_modules(candidate.tests) if skipped else ""
    return RefusedCandidate(
        why=f"none of its tests fails only without the change{also}",
        output=output,
        complaints=_list_complaints(after),
    )


def _list_complaints(run: TestRun) -> tuple[str, ...]:
    """What tests say that did not pass."""
    messages = (test.message for test in run.tests if test.status != "passed")
    return tuple(dict.fromkeys(message for message in messages if message))[:MAX_COMPLAINTS]


def _find_unnamed_imports(candidate: TaskCandidate, before: TestRun) -> list[str]:
    """What the base's own run says the tests could not load, and the request does not name."""
    messages = [test.message or "" for test in before.tests if test.status in FAILING_STATUSES]
    messages += [command.output for command in before.commands if command.exit_code]
    missing = {
        name.name.rpartition(".")[2]
        for message in messages[:MAX_MESSAGES]
        for name in find_missing_names(message)
        if name.sort in ("import", "module")
    }
    missing |= {
        one or other
        for message in messages[:MAX_MESSAGES]
        for one, other in _MISSING_EXPORT.findall(message)
    }
    brought = find_identifiers(split_patch_lines(candidate.source).added)
    told = find_identifiers(tuple(re.findall(r"\w+", candidate.prompt)))
    return [f"`{name}`" for name in sorted((missing & brought) - told)]


def _build_task(
    candidate: TaskCandidate, repo: Path, environment: MiningEnvironment, failing: tuple[str, ...]
) -> Task:
    """All tests where that is quick, else a selection, which the task says by its command."""
    # By the tests' own times: what else a busy machine takes for a run says nothing of them.
    runs_all = environment.seconds is not None and sum(environment.files.values()) <= QUICK_SECONDS
    run = environment.recipe.test
    if not runs_all:
        run = narrow_to_files(
            environment, choose_test_files(repo, environment, candidate, candidate.commit)
        )
    tags = ["mined", *(["multi-file"] if len(candidate.source_files) > 1 else [])]
    tags += [] if runs_all or run == environment.recipe.test else ["selected-tests"]
    tags += [f"without-{name}" for name in environment.recipe.left_out]
    # Slower machines than this one must be able to grade it.
    timeout = max(120.0, 10 * (environment.seconds or 60.0))
    wanted = acceptance_for_command(run, float(round(timeout)))
    task = Task(
        id=make_task_id(candidate),
        prompt=candidate.prompt,
        prompt_by=candidate.prompt_by,
        repo=str(repo),
        base=candidate.base,
        setup=environment.recipe.setup,
        acceptance=msgspec.structs.replace(wanted, fail_to_pass=failing, patch=candidate.tests),
        reference=candidate.source,
        tags=tuple(tags),
        scope=candidate.scope,
        origin=f"mined:{candidate.commit}",
    )
    return with_digests(task)


def make_task_id(candidate: TaskCandidate) -> str:
    """An id people can read, and the commit's beginning to tell equal ones apart."""
    subject = candidate.prompt.partition("\n")[0]
    words = re.findall(r"[a-z0-9]+", subject.lower().replace("'", ""))
    return "-".join([*words[:6], candidate.commit[:8]])[:100]


def _has_flaky_tests(proof: Proof) -> bool:
    runs = (proof.before, proof.reference)
    return any(run is not None and run.flaky for run in runs)


def _with_steady_tests(task: Task, proof: Proof) -> Task | None:
    """The task with only those tests named that were the same each time, as they should be."""
    before, after = proof.before, proof.reference
    if before is None or after is None or before.trouble or after.trouble:
        return None
    early, passing = find_steady_passes(before, after)
    failing = tuple(
        name for name in task.acceptance.fail_to_pass if name in passing and name not in early
    )
    both = early & passing
    kept = tuple(test.id for test in before.tests if test.id in both)
    if not failing or (failing, kept) == (
        task.acceptance.fail_to_pass,
        task.acceptance.pass_to_pass,
    ):
        return None
    wanted: Acceptance = msgspec.structs.replace(
        task.acceptance, fail_to_pass=failing, pass_to_pass=kept
    )
    return with_digests(msgspec.structs.replace(task, acceptance=wanted))
