"""The tests that a task asks for, each by its name: other tools have no word for "the rest"."""

from __future__ import annotations

from closeloop.model.attempt import Proof, TestRun
from closeloop.model.errors import BadInput
from closeloop.model.record import Record
from closeloop.model.task import Task


class Named(Record):
    """What must come to pass, and what must stay so."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


def named(task: Task, proof: Proof | None) -> Named:
    """All tests by name, from the task where it says so and else from its proof."""
    wanted = task.acceptance
    if wanted.fail_to_pass and wanted.pass_to_pass is not None:
        return Named(fail_to_pass=wanted.fail_to_pass, pass_to_pass=wanted.pass_to_pass)
    if proof is None or proof.before is None or proof.reference is None:
        raise BadInput(
            f"What passes in {task.id} is not known by name: prove it first, with "
            f"`closeloop task check {task.id}`."
        )
    early, late = steady(proof.before, proof.reference)
    failing = wanted.fail_to_pass or tuple(sorted(late - early))
    kept = tuple(sorted(early & late)) if wanted.pass_to_pass is None else wanted.pass_to_pass
    return Named(fail_to_pass=failing, pass_to_pass=kept)


def steady(before: TestRun, after: TestRun) -> tuple[set[str], set[str]]:
    """What passes without the change and with it, but for tests that are flaky in either."""
    flaky = {*before.flaky, *after.flaky}
    return passed(before) - flaky, passed(after) - flaky


def passed(run: TestRun) -> set[str]:
    return {test.id for test in run.tests if test.status == "passed"}
