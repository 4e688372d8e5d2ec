"""From test runs before and after to what does not hold: nothing is run here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from closeloop.records.attempt import TestResult, TestRun
from closeloop.records.record import Record
from closeloop.records.task import Acceptance

MAX_NAMED = 3
"""How many of a kind are named before the rest is counted."""
MAX_ANSWER_CHARS = 100_000
FAILING_STATUSES = ("failed", "error")


class SuiteVerdict(Record):
    """What was asked for, and what of it does not hold."""

    reasons: tuple[str, ...] = ()
    """Most telling first; none when all holds."""
    fail_to_pass: tuple[int, int] | None = None
    pass_to_pass: tuple[int, int] | None = None
    broken: tuple[str, ...] = ()


def judge_suite(
    acceptance: Acceptance,
    before: TestRun,
    after: TestRun,
    *,
    answer: str | None = None,
    flaky: Collection[str] = (),
) -> SuiteVerdict:
    """Whether a change is what was asked for. No answer given: answers are not looked at."""
    results = {test.id: test for test in after.tests}
    to_fix = [name for name in tests_to_fix(acceptance, before) if name not in flaky]
    to_keep = list_tests_to_keep(acceptance, before, flaky)
    unfixed = [name for name in to_fix if not _is_pass(results.get(name))]
    unloaded = (
        [] if acceptance.names_tests else _find_unloaded_tests(acceptance, before, after, flaky)
    )
    broken = [name for name in to_keep if not _is_pass(results.get(name))]
    known_tests = {*to_fix, *to_keep, *flaky}
    other_tests = (
        [] if acceptance.names_tests else [name for name in results if name not in known_tests]
    )
    failing = [name for name in other_tests if results[name].status in FAILING_STATUSES]
    reasons = [
        *(note for note in after.notes if not after.ran),
        *_list_some(unfixed, lambda name: f"{name} {_describe_result(results.get(name))}"),
        *_list_some(
            unloaded, lambda name: f"{name} was an error before, and none of it passes now"
        ),
        *_list_some(
            broken, lambda name: f"{name} passed before and {_describe_result(results.get(name))}"
        ),
        *_list_some(failing, lambda name: f"{name} {_describe_result(results[name])}"),
        *_failed_commands(acceptance, after, flaky),
        *(note for note in after.notes if after.ran),
    ]
    if answer is not None and not matches_answer(acceptance, answer):
        reasons.append(f"the last message does not match `{acceptance.answer}`")
    return SuiteVerdict(
        reasons=tuple(reasons),
        fail_to_pass=(len(to_fix) - len(unfixed), len(to_fix)) if to_fix else None,
        pass_to_pass=(len(to_keep) - len(broken), len(to_keep)) if to_keep else None,
        broken=tuple(broken),
    )


def tests_to_fix(acceptance: Acceptance, before: TestRun) -> Sequence[str]:
    """The tests that the change must make pass."""
    if acceptance.names_tests:
        return acceptance.fail_to_pass
    # A test file that cannot be loaded is an error too, and is gone once it can.
    return [test.id for test in before.tests if test.status == "failed"]


def _find_unloaded_tests(
    acceptance: Acceptance, before: TestRun, after: TestRun, flaky: Collection[str]
) -> list[str]:
    """Python tests and files of tests that broke before the change, and are skipped after it."""
    passed = [test.id for test in after.tests if test.status == "passed"]
    known = {test.id for test in after.tests if test.status in FAILING_STATUSES} | {*flaky}
    errors = [test.id for test in before.tests if test.status == "error"]
    python = "unittest" in (acceptance.runner, *(acceptance.run or "").split())
    return [
        name
        for name in errors
        if name not in known
        and (python or name.partition("::")[0].endswith(".py"))
        and not any(
            other == name or other.startswith((f"{name}::", f"{name}.")) for other in passed
        )
    ]


def list_tests_to_keep(
    acceptance: Acceptance, before: TestRun, flaky: Collection[str] = ()
) -> list[str]:
    """The tests that must go on passing: they pass before any change, and always."""
    unsteady_tests = {*flaky, *before.flaky, *acceptance.fail_to_pass}
    passed = [test.id for test in before.tests if test.status == "passed"]
    listed_tests = acceptance.pass_to_pass
    required_tests = set(passed if listed_tests is None else listed_tests)
    return [name for name in passed if name in required_tests and name not in unsteady_tests]


def matches_answer(acceptance: Acceptance, text: str) -> bool:
    """Whether a last message is the answer asked for, if one is."""
    return acceptance.answer is None or bool(re.search(acceptance.answer, text[:MAX_ANSWER_CHARS]))


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """` Nearest: …`, or nothing."""
    near = difflib.get_close_matches(name, list(known)[:5_000], n=2, cutoff=0.5)
    return f" Nearest: {', '.join(near)}." if near else ""


def _is_pass(result: TestResult | None) -> bool:
    return result is not None and result.status == "passed"


def _describe_result(result: TestResult | None) -> str:
    if result is None:
        return "did not run"
    if result.status == "skipped":
        return "was skipped"
    message = (result.message or "").strip().partition("\n")[0][:200]
    return f"fails: {message}" if message else "fails"


def _list_some(names: Sequence[str], describe: Callable[[str], str]) -> list[str]:
    more = len(names) - MAX_NAMED
    lines = [describe(name) for name in names[:MAX_NAMED]]
    if more > 0:
        lines[-1] += f" (and {more} more like this)"
    return lines


def _failed_commands(acceptance: Acceptance, after: TestRun, flaky: Collection[str]) -> list[str]:
    return [
        f"`{result.command}` {_describe_end(result.exit_code, result.stopped)}"
        for result in after.commands[acceptance.run is not None :]
        if (result.exit_code != 0 or result.stopped) and result.command not in flaky
    ]


def _describe_end(exit_code: int | None, stopped: str | None) -> str:
    return f"was stopped: {stopped}" if stopped else f"exited with {exit_code}"
