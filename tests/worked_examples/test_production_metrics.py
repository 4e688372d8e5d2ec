"""Worked examples: the metrics over attempts that `closeloop metrics` prints.

With one attempt a task a rate's bounds are those of Jeffreys' posterior: of h hits in n, the
quantiles 0.025 and 0.975 of Beta(h + ½, n − h + ½).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from by_hand import T, Z
from msgspec.structs import replace
from rules import edit, pytest_run
from scripted_work import BOOK, START, add_attempt, add_task, add_variant, fill
from story import story

from closeloop.changes.check_verdict import save_report
from closeloop.metrics.attempt_measuring import load_said_tags
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_figures import compute_metrics, describe_scope_limit
from closeloop.records.attempt import Attempt, Grade, Outcome, Usage
from closeloop.records.change import Change, ChangeReport, FileChange
from closeloop.records.estimate import MetricValue
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.finding import Finding
from closeloop.records.pull_request import Delivery
from closeloop.records.score import Score
from closeloop.records.team_rules import HumanReview
from closeloop.records.trace import Lane, Message, Trace, Turn
from closeloop.store import Store, open_store

LATER = datetime(2026, 11, 12, tzinfo=UTC)
JEFFREYS = {
    (3, 4): (0.283752, 0.971529),
    (1, 2): (0.060830, 0.939170),
    (1, 6): (0.018620, 0.558057),
    (1, 5): (0.022513, 0.628626),
    (1, 4): (0.028471, 0.716248),
    (1, 3): (0.038748, 0.823264),
    (2, 3): (0.176736, 0.961252),
}
DONE = {"passed": True, "merged": True, "corrected": False, "cycles": 0, "reviewed": True}


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def figures(store: Store, *by: str) -> dict[Any, MetricValue]:
    found = compute_metrics(load_attempt_table(store, BOOK), by).figures
    return {(one.metric, *one.group.values()) if by else one.metric: one for one in found}


def deliver(store: Store, attempt: Attempt | None = None, **told: Any) -> None:
    attempt = attempt or add_attempt(store, None, None, None)
    store.pulls.save_delivery(Delivery(attempt=attempt.id, at=LATER, **told))


def keep_session(store: Store, name: str, trace: Trace | None = None, **given: Any) -> Attempt:
    attempt = Attempt(id=name, origin="production", started=START, exit="finished", **given)
    store.save_attempt(AttemptResult(attempt=attempt, trace=trace))
    return attempt


def assert_rate(figure: MetricValue, hits: int, of: int) -> None:
    """One attempt a task: value, n and Jeffreys' bounds."""
    assert (figure.value, figure.n, figure.attempts) == (pytest.approx(hits / of), of, of)
    assert (figure.low, figure.high) == pytest.approx(JEFFREYS[hits, of], abs=1e-6)


# Outcome


def test_the_pass_rate_weighs_tasks_equally_and_leaves_out_what_is_unscored(store: Store) -> None:
    """Tasks: 1 of 2, 1 of 1 with one unscored repeat: (1/2 + 1) / 2 = 3/4, of 2 tasks and 3 scored
    attempts; 3 of 4 attempts were scored.
    """
    fill(store, {"a": {"t": [1, 0], "u": [1, None]}})
    rate = figures(store)["pass rate"]
    assert (rate.value, rate.n, rate.attempts, rate.coverage) == (0.75, 2, 3, 0.75)


def test_the_pass_rate_of_single_attempts_has_jeffreys_bounds(store: Store) -> None:
    fill(store, {"a": {"t": [1], "u": [0], "v": [0], "w": [0]}})
    assert_rate(figures(store)["pass rate"], 1, 4)


def test_the_pass_rate_of_repeats_has_the_bounds_of_a_beta_binomial_posterior(store: Store) -> None:
    """Three tasks of 2, 1 and 0 of 2: 1/2. By numeric integration over the tasks' mean rate
    (Jeffreys' prior) and over how far tasks differ (uniform): 0.1312 and 0.8690.
    """
    fill(store, {"a": {"t": [1, 1], "u": [1, 0], "v": [0, 0]}})
    rate = figures(store)["pass rate"]
    assert rate.value == 0.5
    assert (rate.low, rate.high) == pytest.approx((0.1312, 0.8690), abs=0.001)
    assert rate.method == "beta-binomial posterior"


def test_the_pass_rate_of_over_fifty_tasks_has_t_bounds_floored_by_the_noise_of_repeats(
    store: Store,
) -> None:
    """51 tasks of 1 of 2: no spread between them, so Jeffreys' variance of each, 1.5·1.5 / (3²·4) =
    1/16: 0.5 ∓ 2.008559 · √(1/16 / 51) = 0.5 ∓ 0.070313.
    """
    fill(store, {"a": {f"t{n}": [1, 0] for n in range(50)}})
    assert figures(store)["pass rate"].method == "beta-binomial posterior"
    fill(store, {"a": {"t50": [1, 0]}})
    rate = figures(store)["pass rate"]
    half = T[50] * (1 / 16 / 51) ** 0.5
    assert (rate.value, rate.low, rate.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    assert half == pytest.approx(0.070313, abs=1e-6)


def test_only_the_last_try_of_a_repeat_counts(store: Store) -> None:
    task, variant = add_task(store, "t"), add_variant(store, "a")
    add_attempt(store, task, variant, False, retry=0)
    add_attempt(store, task, variant, True, retry=1)
    rate = figures(store)["pass rate"]
    assert (rate.value, rate.attempts) == (1.0, 1)


def test_pass_at_k_and_pass_all_k_count_choices_of_repeats(store: Store) -> None:
    """k = 2, the fewest repeats of a task tried twice or more by one variant. Of the choices of two
    from 1 0 0, 2 of 3 hold a pass and none holds two; of those from 1 1, the only one does both:
    (2/3 + 1) / 2 and (0 + 1) / 2. The task tried once by each of two variants has no repeats.
    """
    fill(store, {"a": {"t": [1, 0, 0], "u": [1, 1], "once": [1]}, "b": {"once": [1]}})
    found = figures(store)
    assert found["pass@k"].value == pytest.approx(5 / 6)
    assert found["pass^k"].value == pytest.approx(1 / 2)
    assert {(found[name].n, found[name].more["k"]) for name in ("pass@k", "pass^k")} == {(2, 2)}


def test_k_is_five_at_most(store: Store) -> None:
    """Of 9 passes in 10 repeats, C(9,5) / C(10,5) = 1/2 of the choices of five are all passes."""
    fill(store, {"a": {"t": [1] * 9 + [0]}})
    each = figures(store)["pass^k"]
    assert (each.value, each.more) == (pytest.approx(0.5), {"k": 5})


def test_pass_at_k_has_the_noise_of_repeats_for_bounds(store: Store) -> None:
    """Four tasks of 1 of 2, k = 2: each choice holds a pass, so 1. Of a task's misses q ~ Beta(1½,
    1½): E q² − E q⁴ = 0.3125 − 0.1640625, times (n+2)(n+1)/(n²+n+1) = 12/7: 0.254464. Below 1 by
    1.96 · √(4 · 0.254464) / 4 = 0.494347.
    """
    fill(store, {"a": {name: [1, 0] for name in "tuvw"}})
    one = figures(store)["pass@k"]
    half = Z * (4 * (0.3125 - 0.1640625) * 12 / 7) ** 0.5 / 4
    assert (one.value, one.low, one.high) == pytest.approx((1, 1 - half, 1), abs=1e-9)
    assert half == pytest.approx(0.494347, abs=1e-6)


def test_without_grades_the_outcome_is_unmeasured(store: Store) -> None:
    add_attempt(store, None, None, None)
    found = figures(store)
    for name in ("pass rate", "pass@k", "pass^k"):
        assert (found[name].value, found[name].low, found[name].n) == (None, None, 0)


# The four production metrics


def test_task_completion_counts_what_passed_was_merged_and_nobody_corrected(store: Store) -> None:
    """Completed: 1. Not, whatever else is unknown: corrected; not merged; its suite fails; sent
    back by a reviewer and mended by the agent, with and without CI. 1 of 6.

    Unknown, in neither count, and missing from the coverage: whether it was corrected; whether it
    was sent back; whether it will be merged; whether anybody who could have corrected it looked.
    """
    for told in (
        DONE,
        {"merged": True, "corrected": True},
        {"passed": True, "merged": False},
        {"passed": False, "merged": True},
        DONE | {"cycles": 1},
        DONE | {"cycles": 1, "passed": None},
        DONE | {"corrected": None},
        DONE | {"cycles": None},
        DONE | {"merged": None},
        DONE | {"reviewed": False},
    ):
        deliver(store, **told)
    rate = figures(store)["task completion rate"]
    assert_rate(rate, 1, 6)
    assert rate.coverage == pytest.approx(6 / 10)


def test_an_unreviewed_merge_completes_only_where_the_settings_say_so(store: Store) -> None:
    """Of two merges one was reviewed: 1 of 1, or 2 of 2. Half were merged without review."""
    deliver(store, **DONE)
    deliver(store, **DONE | {"reviewed": False})
    trusting = replace(BOOK, unreviewed_completes=True)
    name = "task completion rate"
    rates = [
        compute_metrics(load_attempt_table(store, book), (), [name]).figures[0]
        for book in (BOOK, trusting)
    ]
    assert [(rate.value, rate.n, rate.coverage) for rate in rates] == [(1, 1, 0.5), (1, 2, 1.0)]
    share = figures(store)["merged without review"]
    assert (share.value, share.n, share.coverage) == (0.5, 2, 1.0)


def test_a_grade_decides_over_what_ci_said(store: Store) -> None:
    """Graded as failed though CI passed: no completion. 0 of 1."""
    task, variant = add_task(store, "t"), add_variant(store, "a")
    deliver(store, add_attempt(store, task, variant, False), **DONE)
    assert figures(store)["task completion rate"].value == 0


def test_work_that_was_never_delivered_completes_nothing_and_is_unmeasured(store: Store) -> None:
    """A session of production of which nobody knows what became."""
    add_attempt(store, None, None, None)
    rate = figures(store)["task completion rate"]
    assert (rate.value, rate.n, rate.coverage) == (None, 0, 0.0)


def review(store: Store, item: str, merge: bool, who: str = "bob", **given: Any) -> None:
    store.reviews.save_review(HumanReview(item=item, reviewer=who, at=LATER, merge=merge, **given))


def test_an_attempt_of_an_experiment_completes_by_its_tests_and_its_review(store: Store) -> None:
    """Passed and unreviewed; passed and approved; passed and refused; failed: 2 of 4, of which two
    by their tests alone. Unscored by the machine: not counted, so that 4 of 5 are. Two were
    reviewed, one was refused: ½ a cycle. Bob took 60 s, and Ann and Bob 30 s each.
    """
    task, variant = add_task(store, "t"), add_variant(store, "a")
    for number, passed in enumerate((True, True, True, False, None), 1):
        add_attempt(store, task, variant, passed, number=number, id=f"a{number}")
    review(store, "a2", True, seconds=60.0)
    review(store, "a3", False, seconds=30.0)
    review(store, "a3", True, "ann", seconds=30.0)
    found = figures(store)
    rate = found["task completion rate"]
    assert (rate.value, rate.attempts, rate.coverage) == (0.5, 4, 0.8)
    assert rate.more == {"tests-only": 2}
    assert (found["review loop count"].value, found["review loop count"].attempts) == (0.5, 2)
    assert (found["reviewer time"].value, found["reviewer time"].attempts) == (60.0, 2)
    assert (found["first-try rate"].value, found["first-try rate"].attempts) == (0.75, 4)


def test_what_cannot_be_tested_completes_by_its_review(store: Store) -> None:
    task, variant = add_task(store, "t"), add_variant(store, "a")
    for number in (1, 2, 3):
        add_attempt(store, task, variant, None, number=number, id=f"a{number}")
    review(store, "a1", True)
    review(store, "a2", False)
    rate = figures(store)["task completion rate"]
    assert (rate.value, rate.attempts, rate.more) == (0.5, 2, {})


def test_right_at_once_after_feedback_and_once_in_n_are_three_numbers(store: Store) -> None:
    """Deliveries: merged as it was; sent back and mended by the agent; sent back and mended by a
    person; sent back and closed. First try 1 of 4, after feedback 1 of 3. Repeats: task t passes in
    one of three, u in none of two: best of n 1 of 2, with 2½ repeats in the mean.
    """
    deliver(store, **DONE)
    deliver(store, **DONE | {"cycles": 1})
    deliver(store, **DONE | {"cycles": 2, "corrected": True})
    deliver(store, merged=False, cycles=1)
    found = figures(store)
    assert_rate(found["first-try rate"], 1, 4)
    assert_rate(found["after-feedback rate"], 1, 3)
    fill(store, {"a": {"t": [0, 1, 0], "u": [0, 0], "once": [1]}})
    best = figures(store)["best-of-n rate"]
    assert (best.value, best.n, best.attempts, best.more) == (0.5, 2, 5, {"repeats": 2.5})


def test_regressions_are_a_share_of_completed_tasks(store: Store) -> None:
    """Completed: one reverted later, one that broke another test by its grade, one that did
    neither; of a fourth it is unknown. A reverted one that was no completion does not count.
    2 of 3.
    """
    deliver(store, **DONE | {"regressed": True})
    deliver(store, **DONE | {"regressed": False})
    deliver(store, **DONE)
    deliver(store, passed=False, merged=True, regressed=True)
    task, variant = add_task(store, "t"), add_variant(store, "a")
    attempt = Attempt(id="b", origin="experiment", task="t", task_digest=task.digest,
                      variant=variant.digest, started=START, exit="finished")  # fmt: skip
    grade = Grade(attempt="b", grading=task.grading, version=1, outcome=Outcome(result="pass"),
                  broken=("tests/test_x.py::a",))  # fmt: skip
    store.save_attempt(AttemptResult(attempt=attempt, grade=grade))
    deliver(store, attempt, **DONE | {"regressed": False})
    assert_rate(figures(store)["regression introduction rate"], 2, 3)


def test_the_review_loop_count_is_the_mean_of_rounds(store: Store) -> None:
    """0, 1 and 5 rounds, one unknown: 2. Deviations −2, −1, 3: s² = 14/2 = 7, and the t bounds are
    2 ∓ 4.302653 · √(7/3), never under 0.
    """
    for cycles in (0, 1, 5, None):
        deliver(store, merged=True, cycles=cycles)
    found = figures(store)
    for name in ("review loop count", "revision cycles"):
        assert (found[name].value, found[name].low, found[name].n) == (2.0, 0.0, 3)
        assert found[name].high == pytest.approx(2 + T[2] * (7 / 3) ** 0.5)


def test_the_blast_radius_is_that_of_failed_or_reverted_deliveries(store: Store) -> None:
    """Files: 3 of a failed one, 5 of a reverted one, 4 that the attempt's own change has: median 4,
    p90 4 + 0.8 · 1 = 4.8, worst 5. A good one of 1,000 files does not count. Too few for bounds.
    """
    deliver(store, passed=False, merged=True, files=3, modules=1)
    deliver(store, **DONE | {"regressed": True, "files": 5, "modules": 2, "dependents": 40})
    deliver(store, **DONE | {"regressed": False, "files": 1000, "dependents": 1000})
    files = tuple(FileChange(path=f"{n}.py", status="changed") for n in range(4))
    attempt = Attempt(id="c", origin="production", started=START, exit="finished")
    store.save_attempt(
        AttemptResult(attempt=attempt, change=Change(base="b", patch="", files=files))
    )
    deliver(store, attempt, passed=False, merged=False)
    found = figures(store)
    radius = found["blast radius, files"]
    assert (radius.value, radius.n, radius.low) == (4.0, 3, None)
    assert radius.more == {"p90": pytest.approx(4.8), "worst": 5.0}
    assert (found["blast radius, modules"].value, found["blast radius, modules"].n) == (1.5, 2)
    assert (found["blast radius, dependents"].value, found["blast radius, dependents"].n) == (40, 1)


def test_the_worst_blast_radius_is_that_of_one_attempt(store: Store) -> None:
    """One task failed twice, with 1 and with 2 files: its mean is 1.5, and its worst 2."""
    task, variant = add_task(store, "t"), add_variant(store, "a")
    for count in (1, 2):
        attempt = Attempt(id=f"n{count}", origin="experiment", task=task.id, number=count,
                          task_digest=task.digest, variant=variant.digest, started=START,
                          exit="finished")  # fmt: skip
        files = tuple(FileChange(path=f"{n}.py", status="changed") for n in range(count))
        grade = Grade(attempt=attempt.id, grading=task.grading, version=1,
                      outcome=Outcome(result="fail"))  # fmt: skip
        change = Change(base="b", patch="", files=files)
        store.save_attempt(AttemptResult(attempt=attempt, grade=grade, change=change))
    radius = figures(store)["blast radius, files"]
    assert (radius.value, radius.n, radius.attempts) == (1.5, 1, 2)
    assert radius.more == {"p90": 1.5, "worst": 2.0}


def try_change(
    store: Store, name: str, passed: bool, paths: Sequence[str], **facts: Any
) -> Attempt:
    """A graded attempt of an experiment at a task of its own, with the files it changed."""
    task, variant = add_task(store, f"t-{name}"), add_variant(store, "a")
    attempt = Attempt(id=name, origin="experiment", task=task.id, task_digest=task.digest,
                      variant=variant.digest, started=START, exit="finished")  # fmt: skip
    outcome = Outcome(result="pass" if passed else "fail")
    grade = Grade(attempt=name, grading=task.grading, version=1, outcome=outcome, **facts)
    files = tuple(FileChange(path=path, status="changed") for path in paths)
    change = Change(base="b", patch="", files=files)
    store.save_attempt(AttemptResult(attempt=attempt, grade=grade, change=change))
    return attempt


def test_failed_attempts_of_experiments_have_a_blast_radius_and_regressions(store: Store) -> None:
    """Failed: 2 files in 1 module; 3 files in 3. Passed and refused by a person: 1 file. Passed: 9
    files, which do not count. Done: the one that passed; the one whose own tests pass while
    another broke: 1 of 2 introduces a regression. The other failure did not do its task.
    """
    try_change(store, "a", False, ["src/x/a.py", "src/x/b.py"], fail_to_pass=(0, 1))
    try_change(store, "b", False, ["x/a.py", "y/b.py", "z.py"], fail_to_pass=(1, 1),
               broken=("tests/t.py::a",), pass_to_pass=(3, 4))  # fmt: skip
    try_change(store, "c", True, ["x/a.py"])
    review(store, "c", False)
    try_change(store, "d", True, [f"x/{n}.py" for n in range(9)])
    found = figures(store)
    files, modules = found["blast radius, files"], found["blast radius, modules"]
    assert (files.value, files.n, files.more["worst"], files.coverage) == (2, 3, 3, 1.0)
    assert (modules.value, modules.more["worst"]) == (1, 3)
    assert found["blast radius, dependents"].coverage == 0
    assert_rate(found["regression introduction rate"], 1, 2)


def test_scope_limits_say_what_they_would_have_stopped(store: Store) -> None:
    """Ten failures of 1, 3, 3, … 3 and 8 files. Nine of ten have 3 or more, so that at most 2 files
    stop 9 of 10, and of ten completed ones, eight of 1 file, one of 2 and one of 5, also 1. The
    narrowest that keeps 9 of 10 completed ones is 2 files as well. All lie in one module, so that
    no limit on modules would have stopped any.
    """
    for number, count in enumerate([1, *[3] * 8, 8]):
        try_change(store, f"f{number}", False, [f"x/{n}.py" for n in range(count)])
    for number, count in enumerate([*[1] * 8, 2, 5]):
        try_change(store, f"p{number}", True, [f"x/{n}.py" for n in range(count)])
    limits = compute_metrics(load_attempt_table(store, BOOK), ()).limits
    assert [(one.measure, one.aim, one.most) for one in limits] == [
        ("files", "stops failures", 2),
        ("files", "keeps completions", 2),
    ]
    assert describe_scope_limit(limits[0]) == (
        "check.max_files = 2 would have stopped 9 of 10 failures, and 1 of 10 completed changes"
    )
    assert compute_metrics(load_attempt_table(store, BOOK), ("variant",)).limits == ()


# The size of the context


def keep_turns(store: Store, name: str, passed: bool, *usages: Usage) -> None:
    task, variant = add_task(store, f"t-{name}"), add_variant(store, "a")
    attempt = Attempt(id=name, origin="experiment", task=task.id, task_digest=task.digest,
                      variant=variant.digest, started=START, exit="finished")  # fmt: skip
    grade = Grade(attempt=name, grading=task.grading, version=1,
                  outcome=Outcome(result="pass" if passed else "fail"))  # fmt: skip
    lane = Lane(id="root", turns=tuple(Turn(usage=usage) for usage in usages))
    trace = Trace(reader="r", reader_version=1, lanes=(lane,), events=(
        Message(number=1, lane="root", role="user", text="Mend it"),))  # fmt: skip
    store.save_attempt(AttemptResult(attempt=attempt, grade=grade, trace=trace))


def test_outcomes_are_grouped_by_the_most_context_that_a_turn_had(store: Store) -> None:
    """Peaks: 4,000 + 3,000 read from the cache + 500 written to it + 499 of output = 7,999; 8,000;
    twice 200,000; one session does not tell. Passed: 1 of 1, 1 of 1, 0 of 2.
    """
    small = Usage(input_tokens=4000, cache_read_tokens=3000, cache_write_tokens=500,
                  output_tokens=499)  # fmt: skip
    keep_turns(store, "a", True, Usage(input_tokens=100), small)
    keep_turns(store, "b", True, Usage(input_tokens=8000))
    keep_turns(store, "c", False, Usage(input_tokens=200_000), Usage(input_tokens=10))
    keep_turns(store, "d", False, Usage(cache_read_tokens=200_000))
    keep_turns(store, "e", True, Usage())
    names = ("pass rate", "drift", "findings")
    found = compute_metrics(load_attempt_table(store, BOOK), ["context"], names).figures
    rates = [(one.group["context"], one.value, one.n) for one in found if one.metric == names[0]]
    assert rates == [("–", 1, 1), ("under 8k", 1, 1), ("8k–16k", 1, 1), ("128k–256k", 0, 2)]
    last = next(one for one in found if one.group["context"] == "128k–256k")
    assert (last.low, last.high) == pytest.approx((0.0, 0.666822), abs=1e-6)


# Memory


def test_memory_metrics_count_what_is_known_of_deliveries(store: Store) -> None:
    """First review: 1 of 3, one unknown. First push: 2 of 3. Comments: (0 + 3) / 2. Time: the
    median of 60 and 120. Repeated mistakes: 2 + 1, with 4 more that nobody confirmed.
    """
    deliver(store, first_review=True, first_push=True, comments=0, seconds_to_open=60.0)
    deliver(store, first_review=False, first_push=True, comments=3, seconds_to_open=120.0,
            repeated=2, repeated_unconfirmed=4)  # fmt: skip
    deliver(store, first_review=False, first_push=False, repeated=1)
    deliver(store, merged=True)
    found = figures(store)
    assert_rate(found["first-review merge rate"], 1, 3)
    assert_rate(found["CI pass rate on first push"], 2, 3)
    assert (found["review comments"].value, found["review comments"].n) == (1.5, 2)
    assert (found["time to PR"].value, found["time to PR"].n) == (90.0, 2)
    repeated = found["repeated mistakes"]
    assert (repeated.value, repeated.more, repeated.n) == (3.0, {"unconfirmed": 4.0}, 2)


# Process, endings, modes, risk


VAT = "tests/test_vat.py::test_greek_prefix"
USED = [pytest_run(VAT), edit("src/vat.py"), pytest_run()]
IGNORED = [pytest_run(VAT), edit("README.md", after="words"), pytest_run(VAT), edit("src/vat.py"),
           pytest_run()]  # fmt: skip


def test_process_rates_are_means_of_attempts(store: Store) -> None:
    """Feedback: 1 of 1, and 1 of 2: (1 + ½) / 2 = ¾. With 1½ hits of 2 the posterior is Beta(2, 1),
    whose quantiles are √0.025 and √0.975. Iterations to convergence: 1 and 2, their mean 1½.
    The first has no finding, the second has one. The third has no failing check: it is unmeasured.
    """
    for name, events in (("a", USED), ("b", IGNORED), ("c", [{"read": "a.py"}])):
        keep_session(store, name, story([{"user": "Mend the VAT ids"}, *events]))
    found = figures(store)
    feedback = found["feedback"]
    assert (feedback.value, feedback.n, feedback.coverage) == (0.75, 2, 1.0)
    assert (feedback.low, feedback.high) == pytest.approx((0.025**0.5, 0.975**0.5), abs=1e-9)
    assert (found["convergence"].value, found["convergence"].n) == (1.0, 2)
    assert (found["recovery"].value, found["handoff"].value) == (None, None)
    iterations = found["iterations to convergence"]
    assert (iterations.value, iterations.n) == (1.5, 2)
    assert_rate(found["without findings"], 2, 3)


def test_endings_and_modes_are_shares_of_measured_attempts(store: Store) -> None:
    """Of four sessions one ended idle, in two the last check passed, and of one it is not known
    how it came out: it is not among those of which some are clean. The fifth has no trace, so that
    nothing examined it: it counts nowhere.
    """
    asked = [{"user": "Mend src/vat.py only"}, {"read": "a.py"}]
    talk = story([*asked, {"run": {"command": "pytest", "exit": 0, "output": "1 passed in 1s"}}])
    for name in "ab":
        keep_session(store, name, talk)
    idle = Attempt(id="c", origin="production", started=START, exit="idle")
    store.save_attempt(AttemptResult(attempt=idle, trace=talk))
    keep_session(store, "d", story(asked))
    keep_session(store, "e")
    found = figures(store)
    assert_rate(found["timeout"], 1, 4)
    assert_rate(found["clean"], 2, 3)
    assert (found["reasoning error"].value, found["reasoning error"].n) == (0.0, 3)
    assert found["timeout"].coverage == 0.8
    invented = found["hallucinated API"]
    assert (invented.value, invented.n, invented.coverage) == (0.0, 4, 0.8)
    # Nobody said what was in scope, and nobody ran the tests that passed before.
    for name in ("scope creep", "silent regression"):
        assert (found[name].value, found[name].n, found[name].coverage) == (None, 0, 0.0)


def test_the_rate_of_a_mode_counts_attempts_that_show_it(store: Store) -> None:
    """Of three attempts two were graded with a file out of scope, of which one also broke another
    test while its own tests pass: it counts in both modes. Of the third it is not known which
    tests passed before: 1 of 2. Each source that shows a mode is counted.
    """
    variant = add_variant(store, "a")
    grades: list[dict[str, Any]] = [
        {"out_of_scope": ("x.py",), "pass_to_pass": (2, 2)},
        {
            "out_of_scope": ("x.py",),
            "broken": ("a",),
            "fail_to_pass": (1, 1),
            "pass_to_pass": (1, 2),
        },
        {},
    ]
    for number, facts in enumerate(grades):
        task = add_task(store, f"t{number}", scope=("src",))
        attempt = Attempt(id=f"{number}", origin="experiment", task=task.id,
                          task_digest=task.digest, variant=variant.digest, started=START,
                          exit="finished")  # fmt: skip
        grade = Grade(attempt=attempt.id, grading=task.grading, version=1,
                      outcome=Outcome(result="fail"), **facts)  # fmt: skip
        store.save_attempt(
            AttemptResult(attempt=attempt, grade=grade, trace=story([{"read": "a.py"}]))
        )
    found = figures(store)
    assert_rate(found["scope creep"], 2, 3)
    assert_rate(found["silent regression"], 1, 2)
    assert found["silent regression"].coverage == pytest.approx(2 / 3)
    assert found["scope creep"].more == {"grade": 2}
    assert (found["hallucinated API"].value, found["hallucinated API"].more) == (0, {})


def test_the_rate_of_a_mode_joins_grades_checks_judges_people_and_later_reverts(
    store: Store,
) -> None:
    """Silent regression: a delivery that was taken back shows it, one that stands does not, and
    people looked at two others: 1 of 4, by the delivery. Hallucinated API: a failing test found
    one, the newest check of a change another, a judge a third, which a person denies; the person's
    fourth and the older check say none: 3 of 4. Each source counts.
    """
    deliver(store, **DONE | {"regressed": True})
    deliver(store, **DONE | {"regressed": False})
    try_change(store, "a", False, ["a.py"], missing_names=("fetch_all",))
    for name in "bcd":
        keep_session(store, name)
    invented = Finding(rule="hallucinated-name", version=1, severity="error", message="",
                       mode="hallucinated API", source="check")  # fmt: skip
    clean = ChangeReport(change=Change(), title="x", verdict="pass")
    for report in (clean, replace(clean, findings=(invented,))):
        save_report(report, store, None, "b")
    seen = Score(attempt="c", name="hallucinated-api", value=1, source="judge", by="j", at=LATER)
    store.scores.add_scores([seen])
    review(store, "c", True, tags=())
    review(store, "d", True, tags=("scope creep",))
    found = figures(store)
    assert_rate(found["hallucinated API"], 3, 4)
    assert found["hallucinated API"].more == {"grade": 1, "check": 1, "judge": 1}
    assert found["silent regression"].more == {"delivery": 1}
    assert (found["silent regression"].value, found["silent regression"].n) == (0.25, 4)
    assert found["scope creep"].more == {"person": 1}
    assert found["scope creep"].n == 2
    tags = load_said_tags(store, ["b", "c", "d"])
    shown = {name: [(tag.mode, tag.source) for tag in each] for name, each in tags.items()}
    assert shown == {
        "b": [("hallucinated API", "check")],
        "c": [("hallucinated API", "judge")],
        "d": [("scope creep", "person")],
    }


def test_the_risk_shares_are_of_delivered_changes_whose_level_is_known(store: Store) -> None:
    """low, low, high, unknown: 2 of 3, 1 of 3, and none of 3."""
    for risk in ("low", "low", "high", None):
        deliver(store, merged=True, risk=risk)
    found = figures(store)
    assert_rate(found["low risk"], 2, 3)
    assert_rate(found["high risk"], 1, 3)
    assert (found["critical risk"].value, found["critical risk"].n) == (0.0, 3)


# Cost


def test_cost_is_a_mean_of_tasks_and_a_sum_of_attempts(store: Store) -> None:
    """A task's repeats cost 1 and 3 dollars, sessions 1 and 6, another is unknown. Mean of tasks:
    (2 + 1 + 6) / 3 = 3, with s² = (1 + 4 + 9) / 2 = 7. In all: 1 + 3 + 1 + 6 = 11.
    """
    task, variant = add_task(store, "t"), add_variant(store, "a")
    for number, cost in ((1, 1.0), (2, 3.0)):
        add_attempt(store, task, variant, True, number=number, cost=cost)
    for cost in (1.0, 6.0, None):
        add_attempt(store, None, None, None, cost=cost)
    found = figures(store)
    assert (found["cost"].value, found["cost"].n, found["cost"].low) == (3.0, 3, 0.0)
    assert found["cost"].high == pytest.approx(3 + T[2] * (7 / 3) ** 0.5)
    assert (found["cost in all"].value, found["cost in all"].low) == (11.0, None)
    assert found["cost in all"].more == {"unknown": 1}, "missing is not zero: it is counted"
    assert found["cost in all"].coverage == 4 / 5


def test_the_cost_of_a_passed_task_has_failures_and_retries_in_it(store: Store) -> None:
    """A task passes for $1 and fails for $2; at another the machine fails a try of $0.50, which is
    begun again and passes for $1.50. One more passes at an unknown cost, and is in neither. All of
    it, 1 + 2 + 0.50 + 1.50 = 5, ÷ 2 passes: $2.50. Failed: $2. Made again: $0.50.
    """
    variant = add_variant(store, "a")
    first, second, third = (add_task(store, name) for name in "tuv")
    add_attempt(store, first, variant, True, number=1, cost=1.0)
    add_attempt(store, first, variant, False, number=2, cost=2.0)
    add_attempt(store, second, variant, None, cost=0.5)
    add_attempt(store, second, variant, True, retry=1, cost=1.5)
    add_attempt(store, third, variant, True, cost=None)
    found = figures(store)
    per_pass = found["cost per passed task"]
    assert (per_pass.value, per_pass.more, per_pass.low) == (2.5, {"passed": 2}, None)
    assert per_pass.coverage == 3 / 4
    assert found["cost of failed work"].value == 2.0
    assert found["cost of retries"].value == 0.5
    assert found["cost in all"].value == 5.0
    assert found["cost in all"].more == {"unknown": 1}


def test_nothing_that_passed_has_no_cost_per_pass(store: Store) -> None:
    add_attempt(store, add_task(store, "t"), add_variant(store, "a"), False, cost=1.0)
    assert figures(store)["cost per passed task"].value is None


def test_tokens_are_means_and_turns_a_median(store: Store) -> None:
    """Input 10 and 30: 20. Output 1, one unknown: 1. Turns of all lanes 1 and 2 + 2: 2½."""
    one, two = Lane(id="root", turns=(Turn(),)), Lane(id="root", turns=(Turn(), Turn()))
    lanes = ((one,), (two, Lane(id="child", parent="root", turns=(Turn(), Turn()))))
    usages = Usage(input_tokens=10, output_tokens=1), Usage(input_tokens=30)
    for name, some, usage in zip("ab", lanes, usages, strict=True):
        keep_session(store, name, Trace(reader="r", reader_version=1, lanes=some), usage=usage)
    found = figures(store)
    assert (found["tokens in"].value, found["tokens in"].n) == (20.0, 2)
    assert (found["tokens out"].value, found["tokens out"].n) == (1.0, 1)
    assert (found["turns"].value, found["turns"].n) == (2.5, 2)


def test_time_is_a_median_with_bounds_by_order_statistics(store: Store) -> None:
    """Of 11 ordered values, the chance that at most 1 lies below the median is 12/2048 < 0.025,
    that at most 2 do 67/2048 > 0.025: the second and the tenth are the bounds. An attempt that ends
    before it starts took no known time.
    """
    for number in range(1, 12):
        add_attempt(store, None, None, None, seconds=10.0 * number)
    add_attempt(store, None, None, None, seconds=-5.0)
    time = figures(store)["time"]
    assert (time.value, time.low, time.high, time.n) == (60.0, 20.0, 100.0, 11)


def test_a_week_is_that_of_its_moment_in_utc(store: Store) -> None:
    """Sunday 2026-11-08 23:59 UTC is in week 45, a minute later week 46 begins."""
    sunday = datetime(2026, 11, 8, 23, 59, tzinfo=UTC)
    for at in (sunday, sunday + timedelta(minutes=1), sunday + timedelta(minutes=2)):
        add_attempt(store, None, None, None, started=at, cost=1.0)
    found = figures(store, "week")
    totals = {key[1]: one.value for key, one in found.items() if key[0] == "cost in all"}
    assert totals == {"2026-W45": 1.0, "2026-W46": 2.0}
