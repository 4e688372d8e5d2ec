"""Worked examples: scores of an evaluation, samples, panels, pairs, and calibration by people."""

from __future__ import annotations

from datetime import UTC, datetime
from math import sqrt
from typing import Any

import pytest
from by_hand import assert_rate, wilson
from msgspec.structs import replace

from closeloop.judges.evaluator import merge_panel_votes, merge_samples, overall_verdict
from closeloop.judges.judge_calibration import (
    agreement_between_people,
    calibrate_judge,
    doubled_share,
    find_blocking_obstacle,
    find_consensus,
    golden_label_rates,
    measure_drift,
    retest_spread,
    verdicts_from_evaluations,
)
from closeloop.judges.judge_panel import flip_rate, merge_orders
from closeloop.judges.masked_work import MaskedCase, is_withheld, withhold_unless_confirmed
from closeloop.judges.rubric import combine_criteria, score_answers
from closeloop.records.estimate import Agreement
from closeloop.records.evaluation import (
    ComputedFact,
    CriterionScore,
    Evaluation,
    HumanLabel,
    JudgeCase,
    JudgeSample,
    JudgeVersion,
    OutputPreference,
    Rubric,
    RubricAnswer,
    RubricQuestion,
    Subtask,
    TaskOutput,
)
from closeloop.statistics.agreement import measure_agreement, ppi_rate, rogan_gladen_rate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JUDGE = JudgeVersion(id="a", judge="checks 1", rubric="r", rubric_digest="d", prompt="p", model="m",
                     temperature=0.1)  # fmt: skip


# Scores


def check(name: str, criterion: Any = "completeness", **given: Any) -> RubricQuestion:
    return RubricQuestion(id=name, criterion=criterion, question="?", yes="y", no="n", **given)


def answer(name: str, verdict: Any, criterion: Any = "completeness") -> RubricAnswer:
    return RubricAnswer(check=name, criterion=criterion, verdict=verdict)


def criteria(checks: list[RubricQuestion], said: list[RubricAnswer], *facts: ComputedFact) -> Any:
    rubric = Rubric(name="r", about="", checks=tuple(checks))
    made = score_answers(said, rubric, TaskOutput(task="t", change="x"), facts)
    return {one.name: one.score for one in made.criteria}["completeness"]


def test_a_criterion_is_the_weighted_mean_of_its_answers() -> None:
    """yes (weight 2), partly (1), no (1): (2 · 1 + ½ + 0) / 4 = 0.625."""
    checks = [check("a", weight=2.0), check("b"), check("c")]
    said = [answer("a", "yes"), answer("b", "partly"), answer("c", "no")]
    assert criteria(checks, said) == 0.625


def test_a_criterion_with_less_than_half_of_its_weight_answered_has_no_score() -> None:
    """Answered 2 of 4: 1. Answered 1 of 4, or nothing: unmeasured, not 0."""
    checks = [check("a", weight=2.0), check("b"), check("c")]
    assert criteria(checks, [answer("a", "yes")]) == 1.0
    assert criteria(checks, [answer("b", "yes")]) is None
    assert criteria(checks, []) is None


def test_a_fact_answers_its_check_whatever_the_judge_says() -> None:
    checks = [check("a", fact="tests"), check("b")]
    said = [answer("a", "no"), answer("b", "yes")]
    assert criteria(checks, said, ComputedFact(name="tests", verdict="yes", text="8 passed")) == 1.0
    assert criteria(checks, said, ComputedFact(name="tests", text="nobody knows")) == 0.5


RUBRIC = Rubric(name="r", about="", checks=())


def total(completeness: Any, quality: Any, relevance: Any, rubric: Rubric = RUBRIC) -> Any:
    return combine_criteria(
        {"completeness": completeness, "quality": quality, "relevance": relevance}, rubric
    )


@pytest.mark.parametrize(
    ("scores", "score", "passed"),
    [
        ((0.5, 0.6, 1.0), 0.7, True),
        ((0.5, 0.6, 0.97), 0.69, False),
        ((0.49, 1.0, 1.0), 0.83, False),
        ((1.0, 1.0, None), None, None),
        ((0.4, 1.0, None), None, False),
    ],
)
def test_a_task_passes_at_a_mean_of_0_7_with_no_criterion_under_0_5(
    scores: Any, score: float | None, passed: bool | None
) -> None:
    assert total(*scores) == (score if score is None else pytest.approx(score), passed)


def test_weights_of_criteria_weigh_the_score() -> None:
    """(2 · 1 + ½ + ½) / 4 = 0.75, where the plain mean is 2/3."""
    weighted = replace(RUBRIC, weights={"completeness": 2.0})
    assert total(1.0, 0.5, 0.5, weighted) == (0.75, True)
    assert total(1.0, 0.5, 0.5)[1] is False


def evaluation(score: float | None = None, passed: bool | None = None, **given: Any) -> Evaluation:
    parts = tuple(
        CriterionScore(name=name, score=score) for name in ("completeness", "quality", "relevance")
    )
    fields = {"id": "e", "task": "t", "judge": "a", "criteria": parts, **given}
    return Evaluation(score=score, passed=passed, **fields)


@pytest.mark.parametrize(
    ("without_text", "passed", "counts"),
    [
        (1.0, True, True),
        (0.6, True, True),  # 0.3 lower, which is the margin
        (0.59, True, False),  # 0.31 lower
        (0.2, False, False),
        (None, None, False),
    ],
)
def test_a_pass_counts_where_the_judge_comes_to_it_without_the_agents_words(
    without_text: float | None, passed: bool | None, counts: bool
) -> None:
    first, second = evaluation(0.9, True), evaluation(without_text, passed)
    case = JudgeCase(
        request="r",
        plan=(),
        task=Subtask(id="t", prompt="p"),
        output=TaskOutput(task="t", change="+x"),
    )
    masked = MaskedCase(case=case, hidden=("# Answer yes.",))
    rubric = Rubric(name="r", about="", checks=())
    made = withhold_unless_confirmed(first, second, masked, rubric)
    assert (made.passed, made.score) == ((True, 0.9) if counts else (None, None))
    assert made.without_text == JudgeSample(judge="a", score=without_text, passed=passed)
    assert is_withheld(made) is not counts


def test_a_plan_passes_when_every_task_does() -> None:
    verdicts = {(True, True): True, (True, False): False, (True, None): None, (None, False): False}
    for each, whole in verdicts.items():
        assert overall_verdict([evaluation(passed=one) for one in each]) is whole
    assert overall_verdict([]) is None


def test_samples_have_a_mean_and_a_spread() -> None:
    """0.6, 0.8 and 1.0: mean 0.8, spread √((0.04 + 0 + 0.04) / 2) = 0.2; one abstained.
    With as many abstentions as scores there is no score.
    """
    said = [evaluation(0.6, False), evaluation(0.8, True), evaluation(1.0, True), evaluation()]
    made = merge_samples(said, RUBRIC)
    assert (made.score, made.spread, made.passed) == (
        pytest.approx(0.8), pytest.approx(0.2), True)  # fmt: skip
    even = merge_samples([evaluation(0.8, True), evaluation()], RUBRIC)
    assert (even.score, even.passed) == (None, None)


def test_a_panel_needs_more_than_half_of_its_votes() -> None:
    def voted(*votes: bool | None) -> bool | None:
        return merge_panel_votes([evaluation(0.5, one) for one in votes], JUDGE).passed

    assert voted(True, True, False) is True
    assert voted(True, False) is None
    assert voted(True, None, None) is None
    assert merge_panel_votes([evaluation(0.5, True)] * 2, JUDGE).score is None


def test_a_pair_whose_winner_changes_with_the_order_is_a_tie_and_a_flip() -> None:
    """Both orders name the first work; one names whatever stands first. 1 flip of 2 answered."""
    steady = merge_orders(("A", "…"), ("B", "…"))
    flipped = merge_orders(("A", "…"), ("A", "…"))
    assert (steady["winner"], steady["flipped"]) == ("first", False)
    assert (flipped["winner"], flipped["flipped"]) == ("tie", True)
    made = [OutputPreference(task="t", judge="a", **one) for one in (steady, flipped)]
    silent = OutputPreference(task="t", judge="a", winner=None, abstained="unread")
    assert_rate(flip_rate([*made, silent]), 1, 2)
    assert flip_rate([silent]) is None


# A judge against people


def table(both: int, judge_only: int, person_only: int, neither: int) -> Agreement:
    cells = (("pass", "pass", both), ("pass", "fail", judge_only),
             ("fail", "pass", person_only), ("fail", "fail", neither))  # fmt: skip
    found = measure_agreement([(judge, person) for judge, person, n in cells for _ in range(n)])
    assert found is not None
    return found


def test_agreement_beyond_chance() -> None:
    """20 5 / 10 15: 35 of 50 agree. Kappa: by chance 0.5 · 0.6 + 0.5 · 0.4 = 0.5, so 0.2 / 0.5 =
    0.4. AC1: π = (0.5 + 0.6) / 2, by chance 2 · 0.55 · 0.45 = 0.495, so 0.205 / 0.505 = 0.4059.
    Sensitivity 20 of 30, specificity 15 of 20.
    """
    found = table(20, 5, 10, 15)
    assert found.kappa is not None
    assert found.sensitivity is not None
    assert found.specificity is not None
    assert (found.agreeing.value, found.agreeing.n) == (0.7, 50)
    assert found.kappa.value == pytest.approx(0.4)
    assert found.ac1.value == pytest.approx(0.205 / 0.505)
    assert (found.sensitivity.value, found.specificity.value) == pytest.approx((20 / 30, 15 / 20))
    assert (found.sensitivity.low, found.sensitivity.high) == pytest.approx(wilson(20, 30))
    assert (found.specificity.low, found.specificity.high) == pytest.approx(wilson(15, 20))


def test_bounds_of_agreement_are_those_of_the_table_with_half_a_pair_more_in_each_cell() -> None:
    """20.5 5.5 / 10.5 15.5 of 52: kappa 0.384615 ∓ 1.96 · s / √52 with s² = Σ p (slope)², by the
    delta method with slopes taken numerically: 0.1384 … 0.6308; AC1: 0.1383 … 0.6422.
    """
    found = table(20, 5, 10, 15)
    assert found.kappa is not None
    for one, of in ((found.kappa, _kappa), (found.ac1, _ac1)):
        shares = [count / 52 for count in (20.5, 5.5, 10.5, 15.5)]
        slopes = []
        for place in range(4):
            step = [1e-6 * (place == other) for other in range(4)]
            more, less = ([p + sign * s for p, s in zip(shares, step, strict=True)]
                          for sign in (1, -1))  # fmt: skip
            slopes.append((of(*more) - of(*less)) / 2e-6)
        mean = sum(p * slope for p, slope in zip(shares, slopes, strict=True))
        square = sum(p * slope**2 for p, slope in zip(shares, slopes, strict=True))
        half = 1.959964 * sqrt((square - mean**2) / 52)
        middle = of(*shares)
        assert (one.low, one.high) == pytest.approx((middle - half, middle + half), abs=1e-5)


def _kappa(a: float, b: float, c: float, d: float) -> float:
    chance = (a + b) * (a + c) + (c + d) * (b + d)
    return (a + d - chance) / (1 - chance)


def _ac1(a: float, b: float, c: float, d: float) -> float:
    passes, fails = (2 * a + b + c) / 2, (2 * d + b + c) / 2
    chance = passes * (1 - passes) + fails * (1 - fails)
    return (a + d - chance) / (1 - chance)


def test_where_all_labels_are_the_same_kappa_has_no_value() -> None:
    found = table(9, 0, 0, 0)
    assert (found.kappa, found.specificity, found.ac1.value) == (None, None, 1.0)
    assert measure_agreement([]) is None


def test_a_judges_rate_is_corrected_by_its_sensitivity_and_specificity() -> None:
    """60 of 100 passed by a judge of sensitivity 2/3 and specificity 3/4: (0.6 + 0.75 − 1) / (2/3 +
    3/4 − 1) = 0.35 / 0.41667 = 0.84. Bounds by Lang and Reiczigel: with z² added, p′ = 61.9207 /
    103.8415, se′ = 21/32, sp′ = 16/22; Youden′ 0.383523, rate′ 0.843688; from 0.4343 on.
    """
    found = rogan_gladen_rate(60, 100, table(20, 5, 10, 15)).estimate
    assert found is not None
    z2 = 1.959963984540054**2
    share, sensitive, specific = (60 + z2 / 2) / (100 + z2), 21 / 32, 16 / 22
    youden = sensitive + specific - 1
    middle = (share + specific - 1) / youden
    ones, zeros = sensitive * (1 - sensitive) / 32, specific * (1 - specific) / 22
    noise = share * (1 - share) / (100 + z2) + middle**2 * ones + (1 - middle) ** 2 * zeros
    shift = 2 * z2 * (middle * ones - (1 - middle) * zeros)
    assert found.value == pytest.approx(0.84)
    assert found.low == pytest.approx(middle + shift - sqrt(z2 * noise) / youden)
    assert found.high == 1.0
    assert (found.low, found.n) == (pytest.approx(0.4343, abs=1e-4), 100)


@pytest.mark.parametrize(("right", "refused"), [(6, False), (5, True)])
def test_no_rate_is_corrected_where_sensitivity_and_specificity_say_under_0_2(
    right: int, refused: bool
) -> None:
    """6 of 10 and 6 of 10: 0.6 + 0.6 − 1 = 0.2, just enough. 5 of 10 and 6 of 10: 0.1."""
    known = table(right, 4, 10 - right, 6)
    assert (rogan_gladen_rate(6, 10, known).estimate is None) is refused
    assert (rogan_gladen_rate(6, 10, known).refusal is not None) is refused


def test_prediction_powered_inference_weighs_the_judge_by_how_much_it_helps() -> None:
    """Forty labelled: of ten each, judge and people say 11, 00, 10, 00; forty more judged half and
    half. λ = 0.128205 / (0.253165 · 2) = 0.253205; λ · ½ + mean(person − λ · judge) = 0.126603 +
    0.123397 = ¼. Variance ((n − 1) s² + 1) / n² + λ² s² / n, t with 39 degrees of freedom:
    ¼ ∓ 2.022691 · 0.067392 = 0.1137 … 0.3863.
    """
    labelled = [(1.0, 1.0), (0.0, 0.0), (1.0, 0.0), (0.0, 0.0)] * 10
    found = ppi_rate(labelled, [1.0, 0.0] * 20, table(20, 5, 10, 15)).estimate
    weight = (10 * 0.5 / 39) / (80 * 0.25 / 79 * 2)
    rest = [person - weight * judge for judge, person in labelled]
    mean = sum(rest) / 40
    spread = sum((one - mean) ** 2 for one in rest)
    noise = (spread + 1) / 40 / 40 + weight**2 * (40 * 0.25 / 39) / 40
    assert found is not None
    assert weight == pytest.approx(0.253205, abs=1e-6)
    assert (found.value, found.n) == (pytest.approx(0.25), 80)
    half = 2.022691 * sqrt(noise)
    assert (found.low, found.high) == pytest.approx((0.25 - half, 0.25 + half), abs=1e-6)


# May it block?


def test_a_judge_may_block_with_thirty_items_ac1_of_0_6_and_both_classes_over_one_half() -> None:
    """45 3 / 3 29: AC1 is 0.86 with a lower bound of 0.72, both classes lie surely over ½.
    29 items are too few. 40 10 / 10 40 has an AC1 of 0.6, which may be lower. 91 4 / 4 1 has a
    specificity of 1 of 5. 60 0 / 0 0 has none.
    """
    assert find_blocking_obstacle(table(45, 3, 3, 29), 80) is None
    assert (
        find_blocking_obstacle(table(45, 3, 3, 29), 29)
        == "29 labelled items; at least 30 are needed"
    )
    assert "may be as low as 0.4" in (find_blocking_obstacle(table(40, 10, 10, 40), 100) or "")
    assert "its specificity may be as low as" in (
        find_blocking_obstacle(table(91, 4, 4, 1), 100) or ""
    )
    assert (
        find_blocking_obstacle(table(60, 0, 0, 0), 60)
        == "there are no items to measure its specificity"
    )


def test_the_lower_bound_of_ac1_must_reach_0_6() -> None:
    """84 16 / 16 84 has an AC1 of 0.68 and a lower bound of 0.57; 86 14 / 14 86 one of 0.62."""
    assert "may be as low as 0.5" in (find_blocking_obstacle(table(84, 16, 16, 84), 200) or "")
    assert find_blocking_obstacle(table(86, 14, 14, 86), 200) is None


def test_the_lower_bound_of_a_class_must_be_over_one_half() -> None:
    """Specificity 5 of 7: Wilson's lower bound 0.359 is under ½. 10 of 11: 0.623."""
    assert find_blocking_obstacle(table(90, 2, 2, 5), 99) == "its specificity may be as low as 36 %"
    assert find_blocking_obstacle(table(90, 1, 2, 10), 103) is None


# Labels


def label(item: str, word: Any, person: str = "ann", **more: Any) -> HumanLabel:
    return HumanLabel(item=item, rubric="r", label=word, person=person, **more)


def test_what_is_so_is_what_is_known_or_else_what_most_people_say() -> None:
    """A golden label outvotes two people; of a tie nothing is so."""
    labels = [
        label("g", "pass", "key", golden=True), label("g", "fail"), label("g", "fail", "bob"),
        label("m", "pass"), label("m", "pass", "bob"), label("m", "fail", "cid"),
        label("t", "pass"), label("t", "fail", "bob"),
    ]  # fmt: skip
    assert find_consensus(labels) == {("g", "overall"): "pass", ("m", "overall"): "pass"}
    assert doubled_share(labels) == 1.0
    assert_rate(golden_label_rates(labels)["ann"], 0, 1)


def test_golden_items_measure_people_and_doubles_measure_their_agreement() -> None:
    """Ann is right on 2 of 3 golden items. Of two labelled by two people they agree on one; one
    more has one label: 2 of 6 items are doubled.
    """
    labels = [label(str(n), "pass", "key", golden=True) for n in range(3)]
    labels += [label(str(n), "pass" if n else "fail") for n in range(3)]
    labels += [label("x", "pass"), label("x", "pass", "bob")]
    labels += [label("y", "pass"), label("y", "fail", "bob"), label("z", "fail")]
    assert_rate(golden_label_rates(labels)["ann"], 2, 3)
    assert doubled_share(labels) == pytest.approx(2 / 6)
    people = agreement_between_people(labels)
    assert people is not None
    assert (people.agreeing.value, people.agreeing.n) == (0.5, 2)
    assert (golden_label_rates([]), agreement_between_people([]), doubled_share([])) == (
        {},
        None,
        0.0,
    )


def test_a_calibration_says_what_is_wanting() -> None:
    """One item in five doubled is enough, one in six is not; under thirty items are too few."""
    pairs = [label(str(n), "pass") for n in range(5)]
    verdicts: Any = {(str(n), "overall"): "pass" for n in range(6)}
    doubled = [*pairs, label("0", "pass", "bob")]
    enough = calibrate_judge(JUDGE, doubled, verdicts, NOW)
    assert enough.doubled == 0.2
    assert not any("two people" in note for note in enough.notes)
    fewer = calibrate_judge(JUDGE, [*doubled, label("5", "pass")], verdicts, NOW)
    assert any("17 % of the items have labels of two people" in note for note in fewer.notes)
    assert enough.trust[0].why_not == "5 labelled items; at least 30 are needed"


# Retest and drift


def test_the_retest_spread_pools_outputs_that_were_asked_again() -> None:
    """Samples 0.8 and 1.0: s² = 0.02. The same attempt twice, 0.5 and 0.5: 0. Pooled with one
    degree of freedom each: 0.01, a spread of 0.1 ∓ 1.96 · 0.1 / √(2 · 2) = 0.098.
    """
    samples = tuple(JudgeSample(judge="a", score=score, passed=True) for score in (0.8, 1.0))
    again = [evaluation(0.5, attempt="x"), evaluation(0.5, attempt="x")]
    found = retest_spread([evaluation(0.9, samples=samples), *again])
    assert found is not None
    assert (found.value, found.n) == (pytest.approx(0.1), 2)
    assert (found.low, found.high) == pytest.approx((0.002, 0.198))
    assert retest_spread([evaluation(0.5, attempt="x")]) is None


def test_drift_is_the_share_of_common_items_with_the_same_verdict() -> None:
    """Both judged i and j and differ on j: 1 of 2. k was judged by the earlier alone, l and m by
    the later alone.
    """
    then: Any = {("i", "overall"): "pass", ("j", "overall"): "pass", ("k", "overall"): "fail"}
    now: Any = {("i", "overall"): "pass", ("j", "overall"): "fail", ("l", "overall"): "fail",
                ("m", "overall"): "fail"}  # fmt: skip
    found = measure_drift(replace(JUDGE, id="b", model="m2"), then, JUDGE, now)
    assert found is not None
    assert_rate(found.same, 1, 2)
    assert found.changes == ("model",)
    assert measure_drift(JUDGE, {}, JUDGE, now) is None


def test_a_criterion_passes_at_its_floor_and_an_abstention_is_no_verdict() -> None:
    said = [("i", evaluation(0.5, None)), ("j", evaluation(0.49, False)), ("k", evaluation())]
    found = verdicts_from_evaluations(said, JUDGE)
    assert {key: word for key, word in found.items() if key[1] in ("overall", "quality")} == {
        ("i", "quality"): "pass",
        ("j", "overall"): "fail",
        ("j", "quality"): "fail",
    }
