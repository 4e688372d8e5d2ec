"""Worked examples: likelihood, impact and level of a change, and how the levels are checked."""

from __future__ import annotations

from math import exp
from pathlib import Path
from typing import Any

import pytest
from by_hand import Z, assert_rate
from risk_repository import changed

from closeloop.changes.affected_tests import Coverage, LineCoverage
from closeloop.changes.risk import coverage_factor, history_factor
from closeloop.changes.risk.change_history import (
    FileHistory,
    History,
    PastChange,
    measure_change_size,
)
from closeloop.changes.risk.risk_model import (
    RiskModel,
    determine_risk_level,
    estimate_chance,
    explain_level,
    fit_risk_model,
    impact_row,
    likelihood_band,
    rank_change,
)
from closeloop.records.change import RiskFactor
from closeloop.records.finding import Unmeasured
from closeloop.statistics.special_functions import roc_auc
from closeloop.text.wording import package_folder

DAY = 86_400


# Surface


def test_the_surface_counts_files_lines_modules_and_how_far_they_are_spread(tmp_path: Path) -> None:
    """3 lines in src/tally, 1 in docs: 2 files, 4 lines, 3 of them in sources, 2 modules. Shares ¾
    and ¼: −¾ log₂ ¾ − ¼ log₂ ¼ = 0.8113 of the 1 that two equal files have.
    """
    after = {"src/tally/a.py": "a = 1\nb = 2\nc = 3\n", "docs/a.md": "Hello\n"}
    with changed(tmp_path / "two", {"README.md": "x\n"}, after) as inspection:
        found = measure_change_size(inspection)
    assert (found.files, found.added, found.removed, found.modules) == (2, 4, 0, 2)
    assert (found.source_added, found.entropy) == (3, pytest.approx(0.811278, abs=1e-6))
    # Thrice the same: log₂ 3 of log₂ 3.
    three = {f"src/{name}/x.py": "a = 1\n" for name in "abc"}
    with changed(tmp_path / "three", {"README.md": "x\n"}, three) as inspection:
        assert measure_change_size(inspection).entropy == pytest.approx(1.0)
    with changed(tmp_path / "none", {"README.md": "x\n"}, {"README.md": "y\n"}) as inspection:
        assert measure_change_size(inspection).source_added is None


def test_a_module_is_the_top_folder_or_the_package_below_a_root_of_sources() -> None:
    paths = ("src/tally/days.py", "tally/days.py", "tally/deep/days.py", "README.md")
    assert [package_folder(path) for path in paths] == ["src/tally", "tally", "tally", "."]


# Likelihood


def test_likelihood_is_the_rank_among_past_changes_with_ties_counted_half() -> None:
    """Of the twenty sizes that ship, 0 lines ties with one: ½ / 20. 1 line is over one and ties
    with two: 2 / 20. 25 lines are over 13 and tie with one: 13½ / 20. No source changed: 0.
    """
    ranks = [rank_change(RiskModel(), added, 1) for added in (0, 1, 25)]
    assert ranks == pytest.approx([0.025, 0.1, 0.675])
    assert rank_change(RiskModel(), None, 1) == 0.0


@pytest.mark.parametrize(
    ("rank", "band"),
    [
        (0.0, "small"), (0.599, "small"), (0.6, "medium"), (0.849, "medium"), (0.85, "large"),
        (0.969, "large"), (0.97, "huge"), (1.0, "huge"),
    ],
)  # fmt: skip
def test_bands_end_below_their_rank(rank: float, band: str) -> None:
    assert likelihood_band(rank) == band


def test_the_chance_is_that_of_the_logistic_regression_learned_here() -> None:
    """No line added: log 1 = 0, the score is the constant −2 with a deviation of √0.04 = 0.2.
    1 / (1 + e²) = 0.1192, and −2 ∓ 1.96 · 0.2 give 0.0838 and 0.1669. Not learned here: none.
    """
    model = RiskModel(weights=(-2.0, 1.0), covariance=((0.04, 0.0), (0.0, 0.01)), of=500)
    found = estimate_chance(model, 0, 1)
    assert found is not None
    expected = [1 / (1 + exp(2 - step)) for step in (0, -0.2 * Z, 0.2 * Z)]
    assert [found.value, found.low, found.high] == pytest.approx(expected)
    assert expected == pytest.approx([0.1192, 0.0838, 0.1669], abs=1e-4)
    assert (found.of, estimate_chance(model, None, 1), estimate_chance(RiskModel(), 5, 1)) == (
        500,
        None,
        None,
    )


def test_the_area_under_the_curve_counts_ties_half() -> None:
    """Wrong ones score 2 and 3, the others 1 and 2: of four pairs 3 in order, one tie: 3½ / 4."""
    assert roc_auc([1, 2, 2, 3], [False, True, False, True]) == 0.875
    assert roc_auc([1, 2], [True, True]) is None


# Impact and level


def factor(weight: float, axis: Any = "impact") -> RiskFactor:
    return RiskFactor(name="f", axis=axis, text="…", weight=weight)


@pytest.mark.parametrize(
    ("weight", "row"),
    [(0.0, "none"), (0.99, "none"), (1.0, "none"), (1.9, "none"), (2.0, "shared"), (2.9, "shared"),
     (3.0, "breaking"), (9.0, "breaking")],
)  # fmt: skip
def test_the_gravest_factor_says_the_impact(weight: float, row: str) -> None:
    assert impact_row([factor(weight), factor(0.0), factor(9.0, "likelihood")], {}) == row
    assert impact_row([], {}) == "none"


MATRIX = {
    0.1: ("low", "low", "low", "critical"),
    0.7: ("low", "low", "medium", "critical"),
    0.9: ("medium", "medium", "high", "critical"),
    0.99: ("high", "high", "high", "critical"),
}
"""By rank, the levels of facts that weigh 0, 1, 2 and 3: no impact twice, shared, breaking."""


@pytest.mark.parametrize("rank", MATRIX)
def test_the_level_joins_likelihood_and_impact(rank: float) -> None:
    levels = tuple(determine_risk_level(rank, [factor(weight)]) for weight in (0.0, 1.0, 2.0, 3.0))
    assert levels == MATRIX[rank]


@pytest.mark.parametrize(
    ("lines", "covered", "weight"),
    [(10, 10, 0.4), (10, 5, 1.5), (10, 4, 2.6), (8, 3, 2.6), (7, 3, 1.5)],
)
def test_changed_lines_that_no_test_reaches(
    tmp_path: Path, lines: int, covered: int, weight: float
) -> None:
    """All reached: 0.4. 5 of 10 missed is not more than half, 4 of 7 are fewer than five: 1.5.
    6 of 10, and 5 of 8, are more than half and five or more: 2.6.
    """
    after = {"pkg/a.py": "".join(f"a{n} = {n}\n" for n in range(lines))}
    known = LineCoverage(covered=frozenset(range(1, covered + 1)))
    with changed(tmp_path / "r", {"README.md": "x\n"}, after) as inspection:
        found = coverage_factor(inspection, Coverage(files={"pkg/a.py": known}, source="x"))
        silent = coverage_factor(inspection, None)
    assert isinstance(found, RiskFactor)
    assert (found.weight, found.value) == (weight, pytest.approx((lines - covered) / lines))
    assert isinstance(silent, Unmeasured)


def test_the_history_of_files_weighs_little() -> None:
    """4 fixes and 1 revert: 4 · 0.01 + 0.1 = 0.14; never more than 0.3. No history: none."""
    found = history_factor({"a.py": FileHistory(changes=9, fixes=4, reverts=1, authors=2, last=0)})
    assert found is not None
    assert (found.weight, found.value) == (pytest.approx(0.14), 9.0)
    many = history_factor({"a.py": FileHistory(changes=9, fixes=9, reverts=9, authors=2, last=0)})
    assert many is not None
    assert many.weight == 0.3
    assert history_factor({}) is None


# Levels against what happened


def past(number: int, **given: Any) -> PastChange:
    fields = {"author": 0, "fix": False, "files": (0,), "added": number, **given}
    return PastChange(id=f"{number:040x}", at=number * DAY, **fields)


def history(*steps: PastChange) -> History:
    """With one step that touches no sources long after, so that all others are old enough."""
    end = past(9999, added=None)
    paths = ("src/a.py", ".github/workflows/ci.yml")
    return History(code="c", head="h", paths=paths, past=(*steps, end), labelled=len(steps) + 1)


def test_each_level_is_held_against_how_often_it_went_wrong() -> None:
    """Changes of 1 … 100 lines: number n has the rank (n − ½) / 100. Up to 85 small or medium: low.
    Up to 97 large: medium. The last three are huge: high. Wrong: 1, 61, 62, 90. Number 2 touched
    CI logic and was reverted: critical. So low 3 of 84, medium 1 of 12, high 0 of 3, critical 1.
    """
    steps = [past(n, fixed=n in (1, 61, 62, 90)) for n in range(1, 101)]
    steps[1] = past(2, files=(0, 1), reverted=True)
    found = fit_risk_model(history(*steps))
    assert (found.changes, found.wrong, found.reverted) == (100, 5, 1)
    assert found.model.past == 100
    wrong = {one.level: one.wrong for one in found.held}
    for level, hits, of in (("low", 3, 84), ("medium", 1, 12), ("high", 0, 3), ("critical", 1, 1)):
        assert_rate(wrong[level], hits, of)


def test_levels_out_of_order_are_named_where_too_little_went_wrong_to_fit_a_model() -> None:
    """As above: high went wrong in 0 of 3, medium in 1 of 12. With 49 judged changes, no word."""
    steps = [past(n, fixed=n in (1, 61, 62, 90)) for n in range(1, 101)]
    found = fit_risk_model(history(*steps))
    assert found.model.of == 0
    assert "high went wrong less often than medium" in found.note
    assert explain_level("high", "none", found.model.held, None) == (
        "high refers to size only: too few such changes are known here to say how often they go"
        " wrong"
    )
    assert fit_risk_model(history(*steps[:49])).model.held == ()


def test_with_fewer_than_two_hundred_changes_or_twenty_wrong_ones_nothing_is_learned() -> None:
    few = fit_risk_model(history(*(past(n, fixed=n % 5 == 0) for n in range(1, 200))))
    calm = fit_risk_model(history(*(past(n, fixed=n % 50 == 0) for n in range(1, 401))))
    assert [(one.model.of, one.auc, one.calibration) for one in (few, calm)] == [(0, None, ())] * 2


def test_calibration_is_ten_equal_bins_of_the_later_three_tenths() -> None:
    """400 changes: learned from 280, tried on 120, 12 in each of ten bins, of which those of the
    larger changes go wrong: numbers over 340, that is the last 60, hence the last five bins.
    """
    steps = [past(n, fixed=n % 10 == 0 or n > 340) for n in range(1, 401)]
    found = fit_risk_model(history(*steps))
    assert (found.tested, found.model.of, len(found.calibration)) == (120, 400, 10)
    assert [one.came.of for one in found.calibration] == [12] * 10
    assert [one.came.value for one in found.calibration[-5:]] == [1.0] * 5
    # Sixty wrong above sixty others, of which six wrong ones tie with nothing: by counting pairs.
    later = [(step.added or 0, step.went_wrong) for step in steps[280:]]
    pairs = [a > b for a, hit in later if hit for b, other in later if not other]
    assert found.auc == pytest.approx(sum(pairs) / len(pairs))
