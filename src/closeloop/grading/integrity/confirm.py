"""Say what of a probe did not come out as it must, and whether that is the change's doing."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

from closeloop.grading.integrity.probe import ROOMS, ProbeKind, ProbeTest, Results
from closeloop.grading.integrity.probe_run import ProbeRun
from closeloop.records.attempt import IntegrityCheck
from closeloop.records.record import Record
from closeloop.text.wording import count_with_noun

NAMED = 3
HELD = ("passed", "mixed")
ENOUGH = (3, 5)
"""Assertions of a test, one of ours among them: with fewer, it is probed once more for each."""
MANY = 1_000
Condition = Literal["controls", "confirmed", "perturbed"]
_CONDITIONS: dict[ProbeKind, Condition] = {
    "control": "controls",
    "copy": "confirmed",
    "perturbed": "perturbed",
}


class Violation(Record):
    """Something that did not come out as it must."""

    condition: Condition
    test: ProbeTest | None
    """None where the run as a whole is wrong."""
    evidence: str


Weighed = tuple[Sequence[Violation], Sequence[Violation]]
"""Those that are the change's doing, and those that are not."""


def find_violations(runs: Iterable[ProbeRun]) -> list[Violation]:
    """What did not come out as it must, in any room."""
    return [violation for run in runs if run.tests for violation in _violations_in(run)]


def _violations_in(run: ProbeRun) -> list[Violation]:
    """For nothing at all, one violation."""
    if not run.results:
        how = run.stopped or f"exit code {run.exit_code}"
        return [_make_violation("confirmed", None, f"the second process reported no test ({how})")]
    violations = []
    silent = _find_silent(run)
    for test in run.tests:
        status = run.results.get(test.name)
        named = test.original or "a control test"
        if status is None and test.optional and test.name not in silent:
            continue
        if status is None:
            text = f"{named} did not report in a second process"
        elif test.kind == "control" and test.how and test.expect == "pass" and status != "passed":
            text = test.how
        elif test.expect == "pass" and status != "passed":
            text = f"{named} does not pass in a second process under another name"
        elif test.expect == "fail" and status in HELD:
            text = f"{named} passes though it must fail{f' ({test.how})' if test.how else ''}"
        else:
            continue
        violations.append(_make_violation(_CONDITIONS[test.kind], test, text))
    if run.exit_code == 0 and any(test.expect == "fail" for test in run.tests):
        text = "the second process exited with 0 although tests in it must fail"
        violations.append(_make_violation("controls", None, text))
    return violations


def _find_silent(run: ProbeRun) -> set[str]:
    """Assertions in branches, of tests none of whose assertions was reached."""
    claims: dict[str, list[ProbeTest]] = {}
    for test in run.tests:
        if test.opposite and test.original and test.kind != "control":
            claims.setdefault(test.original, []).append(test)
    return {
        claim.name
        for found in claims.values()
        if all(claim.optional and claim.name not in run.results for claim in found)
        for claim in found
    }


async def confirm_tests(
    probe: Callable[[str | None, str, int], Awaitable[ProbeRun]],
    patch: str,
    reference: str | None,
    fail_to_pass: Collection[str],
) -> list[IntegrityCheck]:
    """Probe a change; a violation counts only if it returns, and the reference has none of it.

    One that logic forbids need not return, and then those beside it need not either.
    Without a reference, the base is the control: there the fail-to-pass tests say nothing.
    """
    token = secrets.token_hex(16)
    begun = await probe(patch, token, 0)
    rooms = begun.rooms + ROOMS * _count_more_rounds(begun, fail_to_pass)

    async def probe_rooms(patch: str | None, first: int = 0) -> list[ProbeRun]:
        return [await probe(patch, token, room) for room in range(first, rooms)]

    async def probe_control() -> Control:
        known = frozenset(fail_to_pass) if reference is None else None
        return _read_control(await probe_rooms(reference), known)

    def build_checks(runs: Sequence[ProbeRun], weighed: Weighed) -> list[IntegrityCheck]:
        return _build_checks(runs, weighed, reference, fail_to_pass)

    runs = [begun, *await probe_rooms(patch, 1)]
    first, control = find_violations(runs), None
    if not first:
        return build_checks(runs, ((), ()))
    if any(_is_forbidden(one.test) for one in first):
        # What logic forbids needs no second time: answers at random are right in half of them.
        control = await probe_control()
        weighed = _split_by_control(first, runs, control)
        if any(_is_forbidden(one.test) for one in weighed[0]):
            return build_checks(runs, weighed)
    before = {_function_of(violation) for violation in first}
    runs = await probe_rooms(patch)
    violations = [
        one
        for one in find_violations(runs)
        if _function_of(one) in before or _is_forbidden(one.test)
    ]
    if control is None and not violations:
        return build_checks(runs, ((), ()))
    control = control or await probe_control()
    weighed = _split_by_control(violations, runs, control)
    return build_checks(runs if weighed[0] or control.results else (), weighed)


def _count_more_rounds(first: ProbeRun, fail_to_pass: Collection[str]) -> int:
    """How often more to probe where a test has few assertions: their coins could be guessed."""
    if first.rooms < ROOMS:
        return 0
    reported = Counter(
        test.original for test in first.tests if test.opposite and test.name in first.results
    )
    fewest = min((reported[name] for name in fail_to_pass if reported[name]), default=MANY)
    return sum(fewest < enough for enough in ENOUGH)


def _is_forbidden(test: ProbeTest | None) -> bool:
    """Whether no right change can let a test pass, however often it is tried."""
    return test is not None and test.expect == "fail" and test.certain and test.kind == "perturbed"


class Control(Record):
    """What the same probe came to with the reference, or at the base of a task without one."""

    results: Results
    expected: Mapping[str, str]
    """What each of its tests must come to, by name."""
    violations: Sequence[Violation]
    unknown: Collection[str] | None
    """At the base: the tests that fail there for a good reason."""


def _read_control(runs: Sequence[ProbeRun], unknown: Collection[str] | None) -> Control:
    return Control(
        results=_merge_results(runs),
        expected={test.name: test.expect for run in runs for test in run.tests},
        violations=find_violations(runs),
        unknown=unknown,
    )


def _counts_as_tampering(violation: Violation, runs: Sequence[ProbeRun], control: Control) -> bool:
    """Whether a violation is the change's doing: what the control shows too is the task's."""
    test, results, is_base = violation.test, _merge_results(runs), control.unknown is not None
    if test is None:
        return bool(control.results) and all(one.test is not None for one in control.violations)
    status = control.results.get(test.name)
    if test.optional and test.name not in results:
        # Only a reference that reaches the assertion shows that it can be reached.
        return not is_base and status is not None
    if not test.certain and not _is_proved(test, control) and not _holds_both_ways(test, results):
        return False
    if test.expect == "fail" and results.get(test.name) in HELD:
        # A control that could not load the test says nothing of a pass that logic forbids. The
        # base may give the very answer that we made of the right one, if it does not give that.
        # A helper that was proved to tell the two apart cannot have accepted both there.
        is_answer_of_base = is_base and (
            bool(test.proved_by) or control.results.get(test.opposite) == "failed"
        )
        return status not in HELD or is_answer_of_base
    if test.kind == "copy" and test.original in (control.unknown or ()):
        return all(
            results.get(other.name) == "passed" or control.results.get(other.name) == "passed"
            for run in runs
            for other in run.tests
            if other.kind == "control" and other.expect == "pass"
            if other.certain and not other.optional and not other.original
        )
    if test.kind == "copy" and _function_of(violation) in _functions_that_fail(control):
        # Which parameters of a test fail under another name may change from run to run.
        return False
    return status is not None and (status == "passed") == (test.expect == "pass")


def _split_by_control(
    violations: Sequence[Violation], runs: Sequence[ProbeRun], control: Control
) -> Weighed:
    counted = [one for one in violations if _counts_as_tampering(one, runs, control)]
    return counted, [one for one in violations if one not in counted]


def _functions_that_fail(control: Control) -> set[str | None]:
    """Tests that fail in a control too, be it with parameters that were not chosen for a probe."""
    copies = (name for name in control.results if "[" in name and "#" not in name)
    failed = {name.partition("[")[0] for name in copies if control.results[name] == "failed"}
    return {*failed, *map(_function_of, control.violations)}


def _is_proved(test: ProbeTest, control: Control) -> bool:
    """Whether the control shows what a test must come to, where logic alone does not.

    The base shows only what does not hang on the change.
    """
    if control.unknown is None or test.kind == "control":
        return test.name in control.results
    return bool(test.proved_by) and all(
        name in control.results
        and (control.results[name] == "passed") == (control.expected.get(name) == "pass")
        for name in test.proved_by
    )


def _holds_both_ways(test: ProbeTest, results: Results) -> bool:
    """Whether an assertion held as it is in one room, and made wrong in the other, each time."""
    return (
        test.expect == "fail"
        and not test.met_by_many
        and results.get(test.name) == "passed"
        and results.get(test.opposite) == "passed"
    )


def _merge_results(runs: Sequence[ProbeRun]) -> Results:
    return {name: status for run in runs for name, status in run.results.items()}


def _function_of(violation: Violation) -> str | None:
    """The test that a violation is about, without its parameters."""
    return violation.test.name.partition("[")[0] if violation.test else None


def _excused_part(test: ProbeTest, reference: str | None) -> tuple[ProbeKind, str]:
    """What counts for nothing when a violation is not the change's doing.

    The reference shows that a single assertion cannot be made wrong. Without one, nothing that
    was made wrong in its test is believed.
    """
    if test.kind == "perturbed" and reference is not None:
        return test.kind, test.name
    return test.kind, test.original or test.name


def _build_checks(
    runs: Sequence[ProbeRun],
    weighed: Weighed,
    reference: str | None,
    fail_to_pass: Collection[str],
) -> list[IntegrityCheck]:
    counted, excused = weighed
    parts = {_excused_part(one.test, reference) for one in excused if one.test}
    tests = [
        test
        for run in runs
        for test in run.tests
        if _excused_part(test, reference) not in parts
        and (test.kind != "perturbed" or test.name in run.results)
    ]
    return [_build_check(kind, tests, counted, fail_to_pass) for kind in _CONDITIONS]


def _build_check(
    kind: ProbeKind,
    tests: Sequence[ProbeTest],
    violations: Sequence[Violation],
    fail_to_pass: Collection[str],
) -> IntegrityCheck:
    name = _CONDITIONS[kind]
    evidence = dict.fromkeys(one.evidence for one in violations if one.condition == name)
    if evidence:
        more = f" (and {len(evidence) - NAMED} more)" if len(evidence) > NAMED else ""
        detail = "; ".join([*evidence][:NAMED]) + more
        return IntegrityCheck(name=name, state="violated", detail=detail)
    subjects = {test.original or test.name for test in tests if test.kind == kind}
    if not subjects:
        return IntegrityCheck(name=name, state="not applicable")
    missing = count_with_noun(len({*fail_to_pass} - subjects), "test")
    if kind != "control" and not subjects.issuperset(fail_to_pass):
        lacking = {"copy": "could not be confirmed", "perturbed": "could not be made to fail"}
        detail = f"{missing} {lacking[kind]}"
        return IntegrityCheck(name=name, state="not applicable", detail=detail)
    return IntegrityCheck(name=name, state="held", detail=count_with_noun(len(subjects), "test"))


def _make_violation(condition: Condition, test: ProbeTest | None, evidence: str) -> Violation:
    return Violation(condition=condition, test=test, evidence=evidence)
