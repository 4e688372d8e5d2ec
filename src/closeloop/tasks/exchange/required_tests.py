"""The tests that a task asks for, each by its name: other tools have no word for "the rest"."""

from __future__ import annotations

from closeloop.records.attempt import Proof, TestRun
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.task import Task


class RequiredTests(Record):
    """What must come to pass, and what must stay so."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


def list_required_tests(task: Task, proof: Proof | None) -> RequiredTests:
    """All tests by name, from the task where it says so and else from its proof."""
    acceptance = task.acceptance
    if acceptance.fail_to_pass and acceptance.pass_to_pass is not None:
        return RequiredTests(
            fail_to_pass=acceptance.fail_to_pass, pass_to_pass=acceptance.pass_to_pass
        )
    if proof is None or proof.before is None or proof.reference is None:
        raise BadInput(
            f"What passes in {task.id} is not known by name: prove it first, with "
            f"`closeloop task check {task.id}`."
        )
    passing_before, passing_after = find_steady_passes(proof.before, proof.reference)
    fail_to_pass = acceptance.fail_to_pass or tuple(sorted(passing_after - passing_before))
    pass_to_pass = (
        tuple(sorted(passing_before & passing_after))
        if acceptance.pass_to_pass is None
        else acceptance.pass_to_pass
    )
    return RequiredTests(fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass)


def find_steady_passes(before: TestRun, after: TestRun) -> tuple[set[str], set[str]]:
    """What passes without the change and with it, but for tests that are flaky in either."""
    flaky = {*before.flaky, *after.flaky}
    return passing_tests(before) - flaky, passing_tests(after) - flaky


def passing_tests(run: TestRun) -> set[str]:
    return {test.id for test in run.tests if test.status == "passed"}
