"""Tell a test that a change breaks now and then from one that is flaky by itself.

A test that failed in one run and passed in another is run more often, with the change and without
it. One that fails without it too is flaky and kept out of the verdict. One that always passes
without it is held against the change, unless chance explains that as well: then nobody can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from math import comb

from closeloop.grading.integrity.probe_run import ProbeRun
from closeloop.records.attempt import Outcome, TestRun
from closeloop.records.record import Record

CHANGE_RUNS = 5
"""How often a suspected test is run with the change, with the runs that made it one."""
CONTROL_RUNS = 7
"""How often it is run without the change, with the run at the base that every grade has."""
MAX_CHANCE = 0.05
"""With a greater probability that all failures fell on one side by chance, nothing is said."""

RunSuite = Callable[[], Awaitable[TestRun]]


class SuiteSeries(Record):
    """Runs of one suite in one state of the code, and how to get more of them."""

    runs: list[TestRun]
    run_suite: RunSuite


class UnsteadyTests(Record):
    """Tests that were seen to pass and to fail with a change, and what is to be said of them."""

    flaky: tuple[str, ...] = ()
    """They fail without the change too, now and then."""
    outcome: Outcome | None = None
    """What the others mean for a change that would pass otherwise."""


def find_unsteady_tests(
    runs: Sequence[TestRun], probes: Iterable[ProbeRun], required: Collection[str]
) -> list[str]:
    """Of the tests that a pass hangs on, those that passed and failed with the same change."""
    passed = [_list_passed(run) for run in _telling_runs(runs)]
    always = set.intersection(*passed) if passed else set[str]()
    once = set[str]().union(*passed)
    unsteady = (once - always) | _find_unsteady_copies(probes)
    return [test for test in required if test in unsteady]


async def hold_unsteady_tests(
    tests: Collection[str], with_change: SuiteSeries, controls: Mapping[str, SuiteSeries]
) -> UnsteadyTests:
    """Say what unsteady tests mean, by more runs; a test without a control cannot be judged."""
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
        cause = f"{unclear[0]}: grade it again, or see by `closeloop task check` if it is flaky."
        outcome = Outcome(result="unscored", cause=cause)
    return UnsteadyTests(flaky=tuple(flaky), outcome=outcome)


async def extend_series(series: SuiteSeries) -> TestRun:
    """One more run."""
    series.runs.append(await series.run_suite())
    return series.runs[-1]


async def _fill_series(series: SuiteSeries, count: int) -> list[TestRun]:
    """The runs that say something, so many of them if the machine spoils none."""
    for _ in range(count - len(_telling_runs(series.runs))):
        await extend_series(series)
    return _telling_runs(series.runs)


def _telling_runs(runs: Iterable[TestRun]) -> list[TestRun]:
    """The runs that neither the machine nor the clock spoiled."""
    return [
        run
        for run in runs
        if run.trouble is None and not any(command.stopped for command in run.commands[:1])
    ]


def _count_failures(runs: Iterable[TestRun], test: str) -> int:
    """In how many runs a test did not pass, whether it failed, was skipped or did not run."""
    return sum(test not in _list_passed(run) for run in _telling_runs(runs))


def _list_passed(run: TestRun) -> set[str]:
    return {test.id for test in run.tests if test.status == "passed"}


def _find_unsteady_copies(probes: Iterable[ProbeRun]) -> set[str]:
    """Tests whose copy, under one and the same name, came to different ends in two probes.

    Where equally many of a function's parameters failed each time, their ids changed places: those
    of a set are in another order in each process.
    """
    statuses: dict[str, set[bool]] = {}
    originals: dict[str, str] = {}
    failures: dict[str, set[int]] = {}
    for probe in probes:
        failed: Counter[str] = Counter()
        for test in probe.tests:
            if test.kind == "copy" and test.original and test.name in probe.results:
                passed = probe.results[test.name] == "passed"
                statuses.setdefault(test.name, set()).add(passed)
                originals[test.name] = test.original
                failed[test.name.partition("[")[0]] += not passed
        for function, count in failed.items():
            failures.setdefault(function, set()).add(count)
    return {
        originals[name]
        for name, seen in statuses.items()
        if len(seen) > 1 and len(failures[name.partition("[")[0]]) > 1
    }


def _estimate_chance(test: str, changed: Sequence[TestRun], control: Sequence[TestRun]) -> float:
    """How likely all failures are with the change if it has no part in them."""
    failures = _count_failures(changed, test)
    return comb(len(changed), failures) / comb(len(changed) + len(control), failures)


def _describe_failures(test: str, changed: Sequence[TestRun], control: Sequence[TestRun]) -> str:
    failures = _count_failures(changed, test)
    if failures:
        text = f"{test} fails now and then, in {failures} of {len(changed)} runs with the change"
    else:
        text = f"{test} failed in a second process, and passed there when it was tried again"
    if not control:
        return f"{text}; no reference shows whether the test is steady"
    return f"{text}, and in none of {len(control)} without it"
