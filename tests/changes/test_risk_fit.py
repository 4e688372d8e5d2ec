"""How likely a change goes wrong is learned from the past, and tried on its later part."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from closeloop.changes.risk.change_history import History, PastChange
from closeloop.changes.risk.risk_model import (
    RiskFit,
    RiskModel,
    estimate_chance,
    fit_logistic,
    fit_risk_model,
    fit_shift,
    rank_change,
    sigmoid,
)
from closeloop.statistics.agreement import roc_auc

LABELLED = Path(__file__).resolve().parents[3] / "shared" / "risk"
DAY = 86_400


def past(number: int, added: int, wrong: bool, files: int = 1) -> PastChange:
    return PastChange(
        id=f"{number:040x}",
        at=number * DAY,
        author=0,
        fix=False,
        files=tuple(range(files)),
        added=added,
        fixed=wrong,
    )


def history(steps: list[PastChange]) -> History:
    paths = tuple(f"src/file{number}.py" for number in range(20))
    return History(code="c", head="h", paths=paths, past=tuple(steps), labelled=len(steps))


def invented(count: int, slope: float, seed: int = 3) -> History:
    chosen = random.Random(seed)
    steps = []
    for number in range(count):
        added = int(chosen.lognormvariate(2.5, 1.5)) + 1
        wrong = chosen.random() < sigmoid(-3 + slope * math.log1p(added))
        steps.append(past(number, added, wrong))
    return history(steps)


def test_the_rule_that_made_the_past_is_found_again() -> None:
    learned = fit_risk_model(invented(6000, 0.8)).model

    assert learned.weights[1] == pytest.approx(0.8, abs=0.12)
    assert learned.weights[0] == pytest.approx(-3, abs=0.35)


def test_what_is_foretold_comes_about_as_often_as_foretold() -> None:
    told = fit_risk_model(invented(6000, 0.8))

    assert told.auc is not None
    assert told.auc > 0.7
    assert len(told.calibration) == 10
    for one in told.calibration:
        assert one.came.low - 0.03 <= one.foretold <= one.came.high + 0.03


def test_levels_hold_changes_in_the_order_of_their_risk() -> None:
    held = fit_risk_model(invented(3000, 0.8)).held

    rates = [one.wrong.value for one in held]
    assert [one.level for one in held][:3] == ["low", "medium", "high"]
    assert rates == sorted(rates)
    assert sum(one.wrong.of for one in held) == fit_risk_model(invented(3000, 0.8)).changes


def test_too_few_that_went_wrong_teach_nothing() -> None:
    calm = history([past(number, number % 30 + 1, number % 50 == 0) for number in range(600)])

    told = fit_risk_model(calm)

    assert told.model.of == 0
    assert "the default model" in told.note
    assert estimate_chance(told.model, 100, 3) is None
    assert rank_change(told.model, 30, 1) > rank_change(told.model, 5, 1)


def test_without_a_past_a_change_is_ranked_among_those_of_other_projects() -> None:
    model = fit_risk_model(history([])).model

    assert model.past == 0
    assert (
        rank_change(model, 2, 1)
        < 0.3
        < 0.6
        < rank_change(model, 60, 1)
        < rank_change(model, 2000, 1)
    )


def test_the_number_of_files_joins_in_where_it_helps() -> None:
    chosen = random.Random(5)
    steps = []
    for number in range(3000):
        files = chosen.randint(1, 15)
        steps.append(past(number, chosen.randint(1, 60), chosen.random() < files / 20, files))

    told = fit_risk_model(history(steps))

    assert told.model.columns == ("lines added", "files")
    assert told.auc is not None
    assert told.baseline is not None
    assert told.auc > told.baseline + 0.1


def test_a_change_that_touches_no_sources_ranks_lowest() -> None:
    model = fit_risk_model(invented(1000, 0.8)).model

    assert rank_change(model, None, 9) == 0
    assert estimate_chance(model, None, 9) is None


@given(some.integers(1, 10**6), some.integers(1, 10**6))
def test_more_lines_never_rank_lower(fewer: int, more: int) -> None:
    fewer, more = sorted((fewer, more))

    assert rank_change(LEARNED.model, fewer, 2) <= rank_change(LEARNED.model, more, 2)
    chance = estimate_chance(LEARNED.model, more, 2)
    assert chance is not None
    assert 0 <= chance.low <= chance.value <= chance.high <= 1


LEARNED: RiskFit = fit_risk_model(invented(1000, 0.8))


@given(some.lists(some.tuples(some.integers(0, 9), some.booleans()), min_size=1, max_size=60))
def test_the_area_under_the_curve_is_the_share_of_pairs_in_order(
    pairs: list[tuple[int, bool]],
) -> None:
    hits = [score for score, hit in pairs if hit]
    others = [score for score, hit in pairs if not hit]
    by_pairs = [(a > b) + (a == b) / 2 for a in hits for b in others]

    told = roc_auc([float(score) for score, _ in pairs], [hit for _, hit in pairs])

    if not by_pairs:
        assert told is None
    else:
        assert told == pytest.approx(sum(by_pairs) / len(by_pairs))


@given(some.lists(some.booleans(), min_size=2, max_size=80))
def test_a_regression_that_cannot_separate_or_separates_all_still_ends(hits: list[bool]) -> None:
    weights, covariance = fit_logistic([(float(hit),) for hit in hits], hits)
    shift, variance = fit_shift([0.0] * len(hits), sum(hits))

    assert all(map(math.isfinite, (*weights, shift, variance, *covariance[0])))


def labelled(name: str) -> History:
    with (LABELLED / f"{name}_k_feature.csv").open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["date"]))
    steps = [
        past(number, int(float(row["la"])), row["bug"] == "1", int(float(row["nf"])))
        for number, row in enumerate(rows)
    ]
    return History(
        code="c", head="h", paths=("a.py",) * 3000, past=tuple(steps), labelled=len(steps)
    )


@pytest.mark.skipif(not LABELLED.is_dir(), reason="no labelled commits here")
def test_on_labelled_commits_later_ones_are_foretold_from_earlier_ones() -> None:
    reached = {name: fit_risk_model(labelled(name)).auc or 0 for name in ("go", "jdt", "platform")}

    assert sum(reached.values()) / 3 >= 0.70
    assert min(reached.values()) >= 0.67


@pytest.mark.skipif(not LABELLED.is_dir(), reason="no labelled commits here")
@pytest.mark.parametrize("name", ["go", "jdt", "platform"])
def test_on_labelled_commits_more_lines_go_wrong_more_often(name: str) -> None:
    """By the the default model too, which was never told about the project's own past."""
    steps = sorted(labelled(name).past, key=lambda one: rank_change(RiskModel(), one.added, 1))
    quarters = [steps[len(steps) * n // 4 : len(steps) * (n + 1) // 4] for n in range(4)]
    rates = [sum(one.went_wrong for one in some) / len(some) for some in quarters]

    assert rates == sorted(rates)
    assert rates[3] > 1.5 * rates[0]


def test_a_level_that_is_out_of_order_here_is_named() -> None:
    calm = invented(1000, 0.8)
    ci = [replace(past(2000 + n, 5, wrong=False), files=(0, 20)) for n in range(200)]
    paths = (*calm.paths, ".github/workflows/ci.yml")

    told = fit_risk_model(
        replace(calm, paths=paths, past=(*calm.past, *ci), labelled=len(calm.past) + 200)
    )

    assert "critical went wrong less often than high" in told.note
    assert "only size is used" in told.note
