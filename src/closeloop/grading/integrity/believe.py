"""From test runs and probes to whether a pass is believed: nothing is run here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from closeloop.grading.integrity.probe_run import ProbeRun
from closeloop.grading.integrity.restore import SHADOWS, Steering
from closeloop.grading.testing.suite_run import tests_to_fix
from closeloop.grading.touched_paths import path_in_test_id
from closeloop.records.attempt import IntegrityCheck, Outcome, TestResult, TestRun
from closeloop.records.task import Acceptance

RULE = "tampered-result"
MAX_SECONDS = 20.0
"""Tests beside the fail-to-pass ones are confirmed while they take no longer than this."""
MAX_TESTS = 400
NAMED = 5


ChosenTests = tuple[Sequence[str], Sequence[str]]
"""Those that a pass hangs on, and others."""


def choose_tests(acceptance: Acceptance, before: TestRun, after: TestRun) -> ChosenTests:
    """The tests that a pass hangs on, and others that passed, as many as are soon run again."""
    passed = {test.id: test for test in after.tests if test.status == "passed"}
    fixed = [name for name in tests_to_fix(acceptance, before) if name in passed]
    if not fixed:
        earlier = {test.id for test in before.tests if test.status == "passed"}
        fixed = [name for name in passed if name not in earlier]
    unsteady = {*before.flaky, *after.flaky}
    fixed = [name for name in fixed if name not in unsteady]
    near = {path_in_test_id(name) for name in fixed}
    rest = [test for test in passed.values() if test.id not in {*fixed, *unsteady}]
    random.SystemRandom().shuffle(rest)
    rest.sort(key=lambda test: path_in_test_id(test.id) not in near)
    return fixed, list(_choose_affordable(rest))


def checks_without_running(
    steering: Steering, aside: Mapping[str, str], before: TestRun, after: TestRun
) -> Iterator[IntegrityCheck]:
    """The conditions that need no second process."""
    if not steering.checked:
        return
    shadows = {path: why for path, why in aside.items() if why.startswith(SHADOWS)}
    others = {path: why for path, why in aside.items() if path not in shadows}
    yield IntegrityCheck(name="restored", state="held", detail=_list_reasons(others))
    yield IntegrityCheck(name="unshadowed", state="held", detail=_list_reasons(shadows))
    if after.tests:
        forged = more_passes_than_printed(before, after)
        yield IntegrityCheck(
            name="agreement", state="violated" if forged else "held", detail=forged or ""
        )


def more_passes_than_printed(before: TestRun, after: TestRun) -> str | None:
    """That a report counts passes which the runner did not print, where it prints them."""
    if before.printed_passes is None:
        return None
    reported = sum(test.status == "passed" for test in after.tests)
    if after.printed_passes is None and not (after.commands and after.commands[0].exit_code):
        return "the runner ended before it printed its summary"
    if after.printed_passes is not None and reported > after.printed_passes:
        return f"the report has {reported} passes, the runner printed {after.printed_passes}"
    return None


def doubt_pass(outcome: Outcome, checks: Sequence[IntegrityCheck]) -> Outcome:
    """A pass with a violated condition is a fail."""
    violated = [check for check in checks if check.state == "violated"]
    if outcome.result != "pass" or not violated:
        return outcome
    return Outcome(result="fail", reasons=tuple(f"{RULE}: {check.detail}" for check in violated))


def find_killed_probe(
    fixed: Sequence[str], before: TestRun, probes: Sequence[ProbeRun]
) -> str | None:
    """That a second process was cut short, where a base that cannot load the tests says nothing.

    Only for a task without a reference: with one, that is measured by the reference.
    """
    loaded = {test.id for test in before.tests if test.status in ("passed", "failed")}
    if not probes or not loaded.isdisjoint(fixed):
        return None
    last = probes[-1]
    missing = [test for test in last.tests if not test.optional and test.name not in last.results]
    if not missing:
        return None
    how = last.stopped or f"exit code {last.exit_code}"
    return (
        f"{len(missing)} of {len(last.tests)} tests did not report in a second process ({how}), "
        "and the base cannot load them: give the task a reference, to show whose fault that is."
    )


def evidence_of(
    outcome: Outcome, after: TestRun, checks: Sequence[IntegrityCheck], *, is_confined: bool
) -> str | None:
    """How a pass is known; code that ran without a sandbox may have changed the second process."""
    if outcome.result != "pass" or not after.commands:
        return None
    held = {check.name for check in checks if check.state == "held"}
    if is_confined and held >= {"confirmed", "perturbed"}:
        return "confirmed"
    return "reported" if after.tests else "weak"


def _choose_affordable(tests: Sequence[TestResult]) -> Iterator[str]:
    seconds = 0.0
    for test in tests[:MAX_TESTS]:
        seconds += test.seconds or 0.0
        if seconds > MAX_SECONDS:
            return
        yield test.id


def _list_reasons(reasons: dict[str, str]) -> str:
    lines = [f"{path} ({why})" for path, why in reasons.items()]
    more = f" and {len(lines) - NAMED} more" if len(lines) > NAMED else ""
    return ", ".join(lines[:NAMED]) + more
