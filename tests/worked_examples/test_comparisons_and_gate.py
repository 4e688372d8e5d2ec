"""Worked examples: what `compare`, `gate` and `ab` print."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import log, sqrt
from typing import Any

import pytest
from by_hand import T, wilson
from scripted_work import BOOK, START, add_attempt, add_task, add_variant, fill

from closeloop.metrics.attempt_measuring import MeasuredAttempt
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_definitions import describe_passes
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.variant_comparison import compare_by_name, scored_share
from closeloop.metrics.variant_comparison import compare_with_baseline as gate
from closeloop.metrics.variant_trials import compare_once, draw_variant, memory_trial, report_trial
from closeloop.records.attempt import AttemptRow
from closeloop.records.estimate import PairTable, wilson_rate
from closeloop.records.experiment_plan import (
    Baseline,
    GateDemands,
    GateReport,
    Trial,
    TrialAssignment,
)
from closeloop.records.finding import Finding, Measurement, ProcessScore
from closeloop.records.pull_request import Delivery
from closeloop.records.settings import MemorySettings
from closeloop.records.team_rules import ContextRecord
from closeloop.store import Store, open_store


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def tasks(*repeats: list[int | None]) -> dict[str, Any]:
    return {f"t{number}": values for number, values in enumerate(repeats)}


# compare


def test_a_comparison_says_who_got_which_task_right_by_more_than_half_of_its_repeats(
    store: Store,
) -> None:
    """1 of 1 against 1 of 1: both. 1 of 2 is not more than half: only the second. Neither: 0 and 1
    of 2. Only the first: 1 of 1 against 0 of 1.
    """
    first, second = tasks([1], [1, 0], [0], [1]), tasks([1], [1], [1, 0], [0])
    fill(store, {"a": first, "b": second})
    (pair,) = compare_by_name(store, BOOK, ["a", "b"]).pairs
    assert pair.table == PairTable(both=1, only_first=1, only_second=1, neither=1)


@pytest.mark.parametrize(("scored", "refused"), [(9, False), (8, True)])
def test_under_nine_scored_attempts_of_ten_there_is_no_verdict(
    store: Store, scored: int, refused: bool
) -> None:
    repeats: list[int | None] = [1] * scored + [None] * (10 - scored)
    fill(store, {"a": tasks(repeats), "b": tasks([1] * 10)})
    report = compare_by_name(store, BOOK, ["a", "b"])
    assert report.sides[0].coverage == scored / 10
    assert (report.refusal is not None, report.pairs == ()) == (refused, refused)


def test_passes_are_counted_by_how_they_are_known(store: Store) -> None:
    """a: 1 confirmed, 1 reported, 1 fails. b: 1 confirmed, 1 weak, 1 graded by an older version."""
    evidence = {"a": ("confirmed", "reported", None), "b": ("weak", None, "confirmed")}
    for name, known in evidence.items():
        variant = add_variant(store, name)
        for number, kind in enumerate(known):
            task, passed = add_task(store, f"t{number}"), name == "b" or number < 2
            add_attempt(store, task, variant, passed, evidence=kind)
    a, b = {"confirmed": 1, "reported": 1}, {"confirmed": 1, "weak": 1, "unknown evidence": 1}

    work = load_attempt_table(store, BOOK)
    figures = compute_metrics(work, ("variant",), ("pass rate",)).figures
    assert {figure.group["variant"]: figure.more for figure in figures} == {"a": a, "b": b}

    report = compare_by_name(store, BOOK, ["a", "b"])
    assert [side.passes for side in report.sides] == [a, b]
    assert report.notes == (
        "1 of 2 passes of 'a' is not confirmed: 1 confirmed, 1 reported.",
        "2 of 3 passes of 'b' are not confirmed: 1 confirmed, 1 weak, 1 unknown evidence.",
    )

    rows = store.list_attempts()
    measured = [
        MeasuredAttempt(
            row=row, measurement=Measurement(rules="r", findings=(), score=ProcessScore())
        )
        for row in rows
    ]
    both = {"confirmed": 2, "reported": 1, "weak": 1, "unknown evidence": 1}
    assert gate(None, (), measured, "x", frozenset()).passes == both
    assert describe_passes(b) == "1 confirmed, 1 weak, 1 unknown evidence"


def test_several_variants_are_held_against_the_first_with_holm_and_wider_bounds(
    store: Store,
) -> None:
    """b and c both rise on 6 of 6 tasks: p = 2/64 each. Holm's: 2 · 2/64 = 4/64 for both, so that
    neither is called better on tasks like these. Alone, b is.
    """
    every, none = tasks(*[[1]] * 6), tasks(*[[0]] * 6)
    fill(store, {"a": none, "b": every, "c": every})
    (alone,) = compare_by_name(store, BOOK, ["a", "b"]).pairs
    assert (alone.adjusted, alone.comparison.alike_word) == (None, "better")
    both = compare_by_name(store, BOOK, ["a", "b", "c"]).pairs
    assert [one.adjusted for one in both] == [4 / 64, 4 / 64]
    assert {one.comparison.alike_word for one in both} == {"not enough data"}
    assert both[0].comparison.here is not None
    assert alone.comparison.here is not None
    # Jeffreys' bounds of 6 in 6 and of 0 in 6: Beta(6½, ½) has 0.6696 at 0.025, 0.6078 at 0.0125.
    assert alone.comparison.here.low == pytest.approx(1 - sqrt(2) * (1 - 0.6696), abs=1e-4)
    assert both[0].comparison.here.low == pytest.approx(1 - sqrt(2) * (1 - 0.6078), abs=1e-4)


def test_other_rates_are_compared_by_a_paired_t_and_adjusted_for_their_number(store: Store) -> None:
    """First-review merges of six tasks: 0 against 1 in the first five, 0 against 0 in the last.
    Differences 1 1 1 1 1 0: mean 5/6, s² = 1/6, more than the noise 2 · 1/16 of single tries.
    t = 5/6 / (1/6) = 5 with 5 degrees of freedom: p = 0.004105. Bounds 5/6 ∓ 2.570582 / 6. The only
    other rate with a test, it stays as it is after Benjamini–Hochberg, and under 0.05.
    """
    for name in "ab":
        variant = add_variant(store, name)
        for number in range(6):
            made = add_attempt(store, add_task(store, f"t{number}"), variant, True)
            first = name == "b" and number < 5
            store.pulls.save_delivery(Delivery(attempt=made.id, at=START, first_review=first))
    (pair,) = compare_by_name(store, BOOK, ["a", "b"]).pairs
    one = next(one for one in pair.secondary if one.metric == "first-review merge rate")
    assert (one.tasks, one.first, one.second) == (6, 0.0, pytest.approx(5 / 6))
    assert (one.low, one.high) == pytest.approx((5 / 6 - T[5] / 6, 1.0), abs=1e-6)
    assert (one.p, one.adjusted) == pytest.approx((0.004105, 0.004105), abs=1e-6)
    assert one.word == "better"


def test_a_rate_that_differs_little_is_not_called(store: Store) -> None:
    """One of six tasks differs: mean 1/6, s² = 1/6: t = 1, p = 0.3632."""
    for name in "ab":
        variant = add_variant(store, name)
        for number in range(6):
            made = add_attempt(store, add_task(store, f"t{number}"), variant, True)
            first = name == "b" and number < 1
            store.pulls.save_delivery(Delivery(attempt=made.id, at=START, first_review=first))
    (pair,) = compare_by_name(store, BOOK, ["a", "b"]).pairs
    one = next(one for one in pair.secondary if one.metric == "first-review merge rate")
    assert (one.p, one.word) == (pytest.approx(0.363217, abs=1e-6), "no clear difference")


def test_groups_without_a_common_task_are_compared_as_independent_ones(store: Store) -> None:
    """2 of 4 tasks of one and 4 of 4 of the other: 50 points more, by Newcombe's bounds of the
    two Wilson intervals: 0.5 − √((1 − l₂)² + (u₁ − 0.5)²) to 0.5 + √((u₂ − 1)² + (0.5 − l₁)²). Two
    repeats of a task are one task.
    """
    fill(store, {"a": {"t1": [1], "t2": [0, 0], "t3": [1], "t4": [0]}})
    fill(store, {"b": {f"u{number}": [1] for number in range(4)}})
    (pair,) = compare_by_name(store, BOOK, ["a", "b"]).pairs
    (low_a, high_a), (low_b, high_b) = wilson(2, 4), wilson(4, 4)
    seen = pair.comparison.alike
    assert seen is not None
    assert (pair.comparison.first, pair.comparison.second, seen.value) == (0.5, 1.0, 0.5)
    assert seen.low == pytest.approx(0.5 - sqrt((1 - low_b) ** 2 + (high_a - 0.5) ** 2))
    assert seen.high == pytest.approx(0.5 + sqrt((high_b - 1) ** 2 + (0.5 - low_a) ** 2))
    assert (seen.n, pair.observational, pair.tasks, pair.comparison.here) == (8, True, (), None)


def test_what_independent_groups_cost_is_the_ratio_of_geometric_means(store: Store) -> None:
    """1 and 4 dollars have the geometric mean 2, 4 and 16 have 8: 4 times as much. Both logs are
    ln 2 beside their mean: s = √2 · ln 2, s / √2 = ln 2, so that each mean is ∓ 12.706205 · ln 2
    and the difference ∓ √2 of that.
    """
    for name, costs in (("a", (1, 4)), ("b", (4, 16))):
        variant = add_variant(store, name)
        for cost in costs:
            add_attempt(store, None, variant, None, cost=cost)
    (pair,) = compare_by_name(store, BOOK, ["a", "b"], scores=["cost"]).pairs
    ratio = pair.ratios["cost"].alike
    assert ratio is not None
    assert ratio.value == pytest.approx(4)
    half = sqrt(2) * T[1] * log(2)
    assert (log(ratio.low), log(ratio.high)) == pytest.approx((log(4) - half, log(4) + half))


# gate

BASELINE = Baseline(name="main", experiment="e", attempts=(), at=datetime(2026, 11, 1, tzinfo=UTC))


def attempt(task: str | None, outcome: Any = "pass", **given: Any) -> MeasuredAttempt:
    findings = given.get("findings", ())
    score = ProcessScore(feedback=wilson_rate(*given["feedback"]) if "feedback" in given else None)
    row = AttemptRow(id="a", origin="experiment", task=task, task_digest=task, variant_name="v",
                     exit="finished", outcome=outcome)  # fmt: skip
    return MeasuredAttempt(
        row=row, measurement=Measurement(rules="r", findings=findings, score=score)
    )


def finding(rule: str = "spiral", severity: Any = "error", **given: Any) -> Finding:
    return Finding(rule=rule, version=1, severity=severity, message="…", **given)


def gated(before: list[MeasuredAttempt], now: list[MeasuredAttempt], **demands: Any) -> GateReport:
    return gate(BASELINE, before, now, "f", frozenset({"spiral"}), GateDemands(**demands))


def now_of(report: GateReport, metric: str) -> tuple[float | None, float | None]:
    one = next(one for one in report.differences if one.metric == metric)
    return one.before, one.now


def test_the_gate_compares_means_of_tasks() -> None:
    """Passed: tasks of ½ and 1, mean ¾, against 1. Feedback: ½ against 1, where it was measured."""
    before = [attempt("t", feedback=(2, 2)), attempt("u")]
    now = [attempt("t", feedback=(1, 2)), attempt("t", "fail"), attempt("u"),
           attempt("u", "unscored")]  # fmt: skip
    report = gated(before, now)
    assert now_of(report, "passed") == (1.0, 0.75)
    assert now_of(report, "feedback") == (1.0, 0.5)
    assert now_of(report, "recovery") == (None, None)
    assert report.coverage == 0.75


def test_an_attempt_is_without_findings_when_no_rule_that_may_gate_found_an_error_or_warning() -> (
    None
):
    """Counted: a spiral. Not counted: one silenced, one that only informs, a rule that advises.
    3 of 4 attempts at the task: 0.75.
    """
    now = [
        attempt("t", findings=(finding(),)),
        attempt("t", findings=(finding(silenced="known"),)),
        attempt("t", findings=(finding(severity="info"),)),
        attempt("t", findings=(finding("drift"),)),
    ]
    assert now_of(gated([attempt("t")], now), "without gating findings") == (1.0, 0.75)


def test_where_no_rule_gates_nothing_is_said_of_findings() -> None:
    """All would be without findings, as nobody looked. Which rules gate stands in the report."""
    now = [attempt("t", findings=(finding(),))]
    assert gated(now, now).rules == ("spiral",)
    report = gate(BASELINE, now, now, "f", frozenset())
    assert now_of(report, "without gating findings") == (None, None)
    assert report.rules == ()


def test_all_metrics_of_the_gate_hold_at_once() -> None:
    """Three metrics can be compared: passed, without gating findings, feedback. So each has bounds
    of 1 − 0.05/3. For one try that passes on both sides: 0 ∓ (1 − q), q = 0.071715, the quantile
    0.05/6 of Beta(1½, ½).
    """
    report = gated([attempt("t", feedback=(1, 1))], [attempt("t", feedback=(1, 1))])
    known = {one.metric: one.low for one in report.differences if one.low is not None}
    assert known.keys() == {"passed", "without gating findings", "feedback"}
    assert list(known.values()) == pytest.approx([-(1 - 0.071715)] * 3, abs=1e-6)


def test_thresholds_hold_when_they_are_just_reached_and_each_task_is_the_lowest() -> None:
    """Tasks of 1 and ½: passed is ¾, the lowest ½. What nobody scored does not hold."""
    now = [attempt("t"), attempt("u"), attempt("u", "fail")]
    report = gated(now, now, least={"passed": 0.75, "each task": 0.5, "recovery": 0.0})
    told = {one.metric: (one.value, one.holds) for one in report.thresholds}
    assert told == {"passed": (0.75, True), "each task": (0.5, True), "recovery": (None, False)}
    over = gated(now, now, least={"each task": 0.51}).thresholds[0]
    assert (over.value, over.holds) == (0.5, False)


@pytest.mark.parametrize(("margin", "passes"), [(None, True), (0.05, False), (0.99, True)])
def test_a_margin_must_be_shown_to_hold(margin: float | None, passes: bool) -> None:
    """One try on each side leaves bounds of about ∓ 0.9: within 0.99, not within 0.05."""
    assert gated([attempt("t")], [attempt("t")], margin=margin).passed is passes


def test_coverage_of_the_gate_is_of_attempts_at_tasks() -> None:
    """Two of three attempts at a task are scored; a session has nothing to score."""
    side = [attempt("t"), attempt("t", "fail"), attempt("t", "unscored"), attempt(None, None)]
    assert scored_share(side) == pytest.approx(2 / 3)
    assert scored_share([attempt(None, None)]) is None


# ab: trials in production

TRIAL = Trial(
    name="x", shares={"a": 0.5, "b": 0.5}, metric="first-review merge rate", started=START
)


def assigned(store: Store, key: str, variant: str, *outcomes: Any, trial: Trial = TRIAL) -> None:
    """One piece of work, and what became of each attempt at it, an hour apart."""
    at = START + timedelta(minutes=len(store.trials.list_assignments(trial.name)))
    store.trials.save_assignment(TrialAssignment(trial=trial.name, key=key, variant=variant, at=at))
    for hours, told in enumerate(outcomes, 1):
        made = add_attempt(store, add_task(store, key), None, None, number=hours,
                           tokens=100 * hours, started=at + timedelta(hours=hours))  # fmt: skip
        store.pulls.save_delivery(Delivery(attempt=made.id, at=at, **told))


def test_a_piece_of_work_counts_by_its_last_attempt_after_it_was_assigned(store: Store) -> None:
    """b's work: first attempt merged at first review, second not: it counts as not. Its failure
    rate is 1 − passed = 0, its revision cycles 2, its tokens 200. Work that began before counts
    nowhere.
    """
    store.trials.start_trial(TRIAL)
    early = add_attempt(store, add_task(store, "old"), None, None, started=START)
    store.pulls.save_delivery(Delivery(attempt=early.id, at=START, first_review=True))
    store.trials.save_assignment(
        TrialAssignment(trial="x", key="old", variant="a", at=START + timedelta(hours=1))
    )
    assigned(store, "new", "b", {"first_review": True},
             {"first_review": False, "passed": True, "merged": False, "cycles": 2})  # fmt: skip
    first, second = report_trial(store, BOOK, TRIAL).arms
    assert (first.assigned, first.outcomes, first.rates["merge rate"]) == (1, 0, None)
    assert (second.assigned, second.outcomes) == (1, 1)
    assert second.rates == {
        "first-review merge rate": 0.0,
        "merge rate": 0.0,
        "failure rate": 0.0,
        "revision cycles": 2.0,
        "tokens in": 200.0,
    }


def test_a_trial_with_a_horizon_looks_once_at_that_many_outcomes(store: Store) -> None:
    """The first four outcomes: a 0 of 2, b 2 of 2, difference 1. The fifth is not looked at.
    Newcombe's bounds of Wilson's: 1 − √((1 − 0.3424)² + 0.6576²) = 0.0699.
    """
    trial = Trial(name="y", shares={"a": 0.5, "b": 0.5}, metric="first-review merge rate",
                  started=START, horizon=4)  # fmt: skip
    store.trials.start_trial(trial)
    for number, (variant, first) in enumerate(
        [("a", False), ("b", True), ("a", False), ("b", True), ("b", False)]
    ):
        assigned(store, f"w{number}", variant, {"first_review": first}, trial=trial)
    (standing,) = report_trial(store, BOOK, trial).standings
    assert standing.difference is not None
    assert (standing.difference.value, standing.difference.n) == (1.0, 4)
    low = 1 - sqrt((1 - wilson(2, 2)[0]) ** 2 + wilson(0, 2)[1] ** 2)
    assert standing.difference.low == pytest.approx(low)
    assert (low, standing.call) == (pytest.approx(0.0699, abs=1e-4), "better")


def test_a_key_falls_to_the_variant_that_its_hash_names() -> None:
    """The first eight bytes of SHA-256 of `x␀PR 1`, … as shares of 2⁶⁴: 0.655, 0.265, 0.892, 0.612,
    0.108, 0.949, 0.940, 0.064. Under ½ is a.
    """
    assert [draw_variant(TRIAL, f"PR {number}") for number in range(1, 9)] == list("babbabba")


def test_the_outcomes_that_are_still_needed_are_those_of_one_look_at_80_percent_power() -> None:
    """10 of 20 against 14 of 20: +0.2. Wilson: 0.5 (0.2993 … 0.7007), 0.7 (0.4810 … 0.8545), and
    Newcombe's bounds 0.2 − √(0.2190² + 0.2007²) = −0.0970, 0.2 + √(0.1545² + 0.2007²) = 0.4533:
    not enough data. By Jeffreys' rates 10.5 of 21 and 14.5 of 21 an outcome varies by 0.25 and
    0.21372, halves: (1.959964 + 0.841621)² × (0.25 + 0.21372) ÷ ½ ÷ 0.2² = 181.99, so 182 outcomes
    in all, and 142 more than the 40.
    """
    first, second = [1.0] * 10 + [0.0] * 10, [1.0] * 14 + [0.0] * 6
    found = compare_once(first, second, 0.05)
    assert found.difference is not None
    bounds = (found.difference.low, found.difference.high)
    assert bounds == (pytest.approx(-0.0970, abs=1e-4), pytest.approx(0.4533, abs=1e-4))
    assert found.verdict == "not enough data"
    assert (found.effect, found.needed) == (pytest.approx(0.2), 142)
    assert compare_once([0.0] * 20, [1.0] * 20).verdict == "better"
    assert compare_once([0.0] * 20, [1.0] * 20).needed is None


def test_memory_is_held_against_the_work_that_was_told_nothing_task_by_task(store: Store) -> None:
    """Two tasks with memory (passed 1 of 1, and 1 and 0 of two repeats) and one without (failed):
    control 0 of 1, memory (1 + ½) ÷ 2 = 0.75 over 2 outcomes, as repeats of a task are one draw.
    `--by arm` counts attempts: 1 of control, 3 of memory.
    """
    told = (
        ("one", "memory", (True,)),
        ("two", "memory", (True, False)),
        ("three", "control", (False,)),
    )
    for task, arm, passes in told:
        for number, passed in enumerate(passes, 1):
            made = add_attempt(store, add_task(store, task), None, passed,
                               number=number, started=START + timedelta(hours=1))  # fmt: skip
            store.memory.save_context_record(
                ContextRecord(key=made.id, repo="ann/tally", arm=arm, at=START)  # type: ignore[arg-type]
            )
    trial = memory_trial(store, MemorySettings(control=0.5), "pass rate")
    assert trial is not None
    report = report_trial(store, BOOK, trial)
    arms = {
        arm.variant: (arm.assigned, arm.outcomes, arm.rates["pass rate"]) for arm in report.arms
    }
    assert arms == {"control": (1, 1, 0.0), "memory": (2, 2, 0.75)}
    (standing,) = report.standings
    assert (standing.variant, standing.comparison.verdict) == ("memory", "not enough data")
    figures = compute_metrics(load_attempt_table(store, BOOK), ("arm",), ("pass rate",)).figures
    assert {one.group["arm"]: one.attempts for one in figures} == {"control": 1, "memory": 3}


def test_by_arm_shows_trials_beside_memory(store: Store) -> None:
    """One attempt in both kinds of arm counts in each of the two groups."""
    made = add_attempt(store, add_task(store, "t"), None, True, started=START + timedelta(hours=1))
    store.trials.start_trial(TRIAL)
    store.trials.save_assignment(TrialAssignment(trial="x", key="t", variant="b", at=START))
    store.memory.save_context_record(ContextRecord(key=made.id, repo="r", arm="control", at=START))
    figures = compute_metrics(load_attempt_table(store, BOOK), ("arm",), ("pass rate",)).figures
    assert {one.group["arm"] for one in figures} == {"control", "x: b"}
