"""Prove a candidate: by running its tests without the work and with it, again and again."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from closeloop.mining.environments import (
    QUICK_SECONDS,
    Broken,
    Environment,
    Environments,
    acceptance,
    first_output,
    named,
    narrowed,
    plain_task,
    selection,
    telling,
)
from closeloop.model.attempt import Proof
from closeloop.model.errors import BadInput
from closeloop.model.record import Record
from closeloop.model.task import Acceptance, Task
from closeloop.runs import proof as controls
from closeloop.runs.workspaces import Base
from closeloop.tasks.digests import with_digests
from closeloop.tasks.exchange.named import passed, steady
from closeloop.tasks.mining.candidates import Candidate
from closeloop.tasks.mining.wanting import done_without

TRIES = 2
"""A second proof, of the tests that the first one showed to be steady."""
FILE_SECONDS = 180.0
FAILING = ("failed", "error")


class Proved(Record):
    """A candidate that became a task."""

    task: Task
    proof: Proof


class Refused(Record):
    """A candidate that did not, and why."""

    why: str
    lasting: bool = True
    """It would be so tomorrow too."""
    output: str = ""
    """Of tests of which none passes: it may tell what they lack."""


async def prove(candidate: Candidate, environments: Environments, repeats: int) -> Proved | Refused:
    """A proved task, or why there is none."""
    environment = await environments.of(candidate)
    if isinstance(environment, Broken):
        return Refused(why=f"no environment: {environment.why}", lasting=False)
    try:
        base = await environments.base(environment, candidate.base)
    except BadInput as fault:
        return Refused(why=f"no environment: {str(fault)[-300:]}", lasting=False)
    first = await _fail_to_pass(candidate, environments, environment, base)
    if isinstance(first, Refused) and first.output:
        better = await environments.completed(environment, candidate, first.output)
        if better is not None:
            environment, base = better
            first = await _fail_to_pass(candidate, environments, environment, base)
    if isinstance(first, Refused):
        return first
    task = _task(candidate, environments.repo, environment, first)
    # The tests that must turn from failing to passing have been run once each way already.
    more = max(1, repeats - 1)
    quick = named(environment, candidate.test_files, first)
    for _ in range(TRIES):
        proof = await controls.prove(environments.workspaces, base, task, more, quick)
        if proof.state == "proved" and not _unsteady(proof):
            break
        steady = _steady(task, proof)
        if steady is None:
            break
        task = steady
    if proof.state != "proved":
        return Refused(why=proof.reasons[0] if proof.reasons else "it could not be proved")
    return Proved(task=task, proof=proof)


async def _fail_to_pass(
    candidate: Candidate, environments: Environments, environment: Environment, base: Base
) -> tuple[str, ...] | Refused:
    """The tests of the changed files that fail without the work and pass with it: one run each."""
    run = narrowed(environment, candidate.test_files)
    task = plain_task(environments.repo, candidate.base, environment.recipe, run, FILE_SECONDS)
    wanted = msgspec.structs.replace(task.acceptance, patch=candidate.tests)
    task = msgspec.structs.replace(task, acceptance=wanted, reference=candidate.source)
    after = await controls.run_reference(environments.workspaces, base, task)
    if after.trouble is not None:
        return Refused(why=after.trouble, lasting=False)
    if after.commands[0].stopped:
        why = f"its test files take longer than {FILE_SECONDS:.0f} seconds, and fewer cannot be run"
        return Refused(why=why, lasting=False)
    passing = passed(after)
    if not passing:
        output = first_output(after)
        why = f"none of its tests passes with the change ({telling(output)})"
        return Refused(why=f"{why}: this machine may lack something", output=output)
    before = await controls.prove_base(environments.workspaces, base, task)
    if before.trouble is not None:
        return Refused(why=before.trouble, lasting=False)
    new = passing - passed(before)
    found = tuple(test.id for test in after.tests if test.id in new)
    if found:
        return found
    broken = sum(test.status in FAILING for test in after.tests)
    skipped = sum(test.status == "skipped" for test in after.tests)
    also = f", and {broken} fail with it too: they may need a network" if broken else ""
    also += f", and {skipped} are skipped: this machine may lack something" if skipped else ""
    output = done_without(candidate.tests) if skipped else ""
    return Refused(why=f"none of its tests fails only without the change{also}", output=output)


def _task(
    candidate: Candidate, repo: Path, environment: Environment, failing: tuple[str, ...]
) -> Task:
    """All tests where that is quick, else a selection, which the task says by its command."""
    # By the tests' own times: what else a busy machine takes for a run says nothing of them.
    whole = environment.seconds is not None and sum(environment.files.values()) <= QUICK_SECONDS
    run = environment.recipe.test
    if not whole:
        run = narrowed(environment, selection(repo, environment, candidate, candidate.commit))
    tags = ["mined", *(["multi-file"] if len(candidate.source_files) > 1 else [])]
    tags += [] if whole or run == environment.recipe.test else ["selected-tests"]
    # Slower machines than this one must be able to grade it.
    timeout = max(120.0, 10 * (environment.seconds or 60.0))
    wanted = acceptance(run, float(round(timeout)))
    task = Task(
        id=name_of(candidate),
        prompt=candidate.prompt,
        prompt_by=candidate.prompt_by,
        repo=str(repo),
        base=candidate.base,
        setup=environment.recipe.setup,
        acceptance=msgspec.structs.replace(wanted, fail_to_pass=failing, patch=candidate.tests),
        reference=candidate.source,
        tags=tuple(tags),
        origin=f"mined:{candidate.commit}",
    )
    return with_digests(task)


def name_of(candidate: Candidate) -> str:
    """An id people can read, and the commit's beginning to tell equal ones apart."""
    subject = candidate.prompt.partition("\n")[0]
    words = re.findall(r"[a-z0-9]+", subject.lower().replace("'", ""))
    return "-".join([*words[:6], candidate.commit[:8]])[:100]


def _unsteady(proof: Proof) -> bool:
    runs = (proof.before, proof.reference)
    return any(run is not None and run.flaky for run in runs)


def _steady(task: Task, proof: Proof) -> Task | None:
    """The task with only those tests named that were the same each time, as they should be."""
    before, after = proof.before, proof.reference
    if before is None or after is None or before.trouble or after.trouble:
        return None
    early, passing = steady(before, after)
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
