"""Triage by hand: features of a session, its place among others, its score and calibration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from measured import measure_events

from closeloop.metrics.triage import (
    fit_team_model,
    load_triage_prior,
    relative_positions,
    score_sessions,
)
from closeloop.records.score import PriorFeature, TriagePrior
from closeloop.statistics.special_functions import calibration_error, fit_ridge_logistic, sigmoid

PRIOR = TriagePrior(
    fitted="2026-11-16",
    source="made up",
    sessions=4,
    successes=2,
    features={
        "actions": PriorFeature(weight=-0.5, quantiles=(0, 10, 20, 30, 40)),
        "verified": PriorFeature(weight=0.4, quantiles=(0, 0, 1, 1, 1)),
    },
    figures={},
)


def test_the_features_of_a_small_session() -> None:
    features = measure_events(
        {"user": "Fix the total in cart.py."},
        {"say": "But maybe the tax is the cause. Wait, I will look."},
        {"read": {"path": "cart.py", "text": "total = 1"}},
        {"edit": {"path": "cart.py", "before": "total = 1", "after": "total = 2"}},
        {
            "run": {
                "command": "pytest -q",
                "exit": 1,
                "output": "FAILED tests/t.py::test_a - E\n1 failed",
            }
        },
        {"edit": {"path": "cart.py", "before": "total = 2", "after": "total = 3\ntax = 1"}},
        {"run": {"command": "pytest -q", "exit": 0, "output": "3 passed"}},
        {"say": "Done: the total is right."},
    ).features
    assert features["actions"] == 5
    assert (features["changes"], features["files_changed"], features["rewrites"]) == (2, 1, 1)
    assert (features["first_write"], features["last_write"]) == (1 / 5, 4 / 5)
    assert (features["actions_after_write"], features["runs_after_write"]) == (1, 1)
    assert (features["lines_changed"], features["last_edit_lines"]) == (5, 3)
    assert (features["verified"], features["last_check_passes"]) == (1, 1)
    assert (features["last_run_fails"], features["no_code_change"]) == (0, 0)
    assert (features["focus"], features["named_by_request"]) == (1, 1)
    assert (features["ends_in_action"], features["ends_in_edit"]) == (0, 0)
    assert features["hesitations"] == 2  # maybe, wait: the text begins with "But"
    assert features["request_words"] == 5
    assert "output_tokens" not in features  # not recorded, which is not zero


def test_what_a_user_or_a_hook_does_afterwards_is_no_ending_of_the_agent() -> None:
    work = ({"user": "Fix cart.py."}, {"edit": {"path": "cart.py", "before": "a", "after": "b"}})
    after = [{"note": {"text": "Goodbye!"}}] * 4
    assert measure_events(*work, {"say": "Done."}, *after).features["ends_in_action"] == 0
    assert measure_events(*work, *after).features["ends_in_action"] == 1


def test_a_session_that_does_nothing_says_just_that() -> None:
    features = measure_events({"user": "Fix it."}, {"say": "All is fixed."}).features
    assert features == {"actions": 0, "no_code_change": 1}


def test_a_place_is_among_the_agents_sessions_and_twelve_public_ones() -> None:
    sessions = [{"actions": 10.0}, {"actions": 20.0}, {"actions": 30.0, "verified": 1.0}]
    places = relative_positions(sessions, ["a"] * 3, PRIOR)
    # Own: (2 + 3) / 3 - 1 = 2/3. Public: (3 + 4) / 5 - 1 = 0.4. Together (3 · 2/3 + 12 · 0.4) / 15.
    assert places[2, 0] == pytest.approx(6.8 / 15)
    # In the middle of its own and of the public ones.
    assert places[1, 0] == pytest.approx(0)
    # Not known is the middle; the only one of its agent is held against the public ones alone.
    assert places[0, 1] == 0
    assert places[2, 1] == pytest.approx((1 * 0 + 12 * ((2 + 5) / 5 - 1)) / 13)


def test_a_score_without_grades_is_the_sum_of_the_priors_weights() -> None:
    positions = np.array([[1.0, 0.0], [0.5, -1.0]])
    groups = ["a", "b"]
    model = fit_team_model(positions, groups, np.array([np.nan, np.nan]), PRIOR)
    assert score_sessions(model, positions, groups).tolist() == pytest.approx([-0.5, -0.65])


def test_ridge_holds_a_weight_where_it_was_until_the_data_say_otherwise() -> None:
    # One weight w, rows of 1 with 3 hits of 4: 3 - 4·σ(w) = penalty · (w - 0.2).
    rows, hits = np.ones((4, 1)), np.array([1.0, 1, 1, 0])
    (weight,) = fit_ridge_logistic(rows, hits, np.array([2.0]), np.array([0.2]))
    assert 3 - 4 * sigmoid(np.array(weight)) == pytest.approx(2 * (weight - 0.2))
    (free,) = fit_ridge_logistic(rows, hits, np.array([0.0]))
    assert free == pytest.approx(np.log(3))


def test_calibration_error_is_the_mean_gap_of_ten_bins() -> None:
    # Two at 0.9 of which one came: gap 0.4. Two at 0.1 of which none came: gap 0.1.
    assert calibration_error([0.9, 0.9, 0.1, 0.1], [True, False, False, False]) == pytest.approx(
        (2 * 0.4 + 2 * 0.1) / 4
    )
    assert calibration_error([], []) is None


def test_the_prior_that_ships_says_how_good_it_is_and_weighs_in_the_expected_direction() -> None:
    prior = load_triage_prior()
    assert prior.sessions > 2000
    assert prior.figures["auc, held"] >= 0.68
    assert prior.figures["calibration error, 50 graded, held"] <= 0.05
    for name in ("actions", "output_tokens", "no_code_change", "ends_in_action", "hesitation"):
        assert prior.features[name].weight < 0, name
    for name in ("verified", "named_by_request", "certainty"):
        assert prior.features[name].weight > 0, name
    assert all(len(one.quantiles) == 21 for one in prior.features.values())


def test_the_page_about_triage_prints_the_figures_of_the_prior_that_ships() -> None:
    page = (Path(__file__).parents[2] / "docs" / "triage.md").read_text(encoding="utf-8")
    prior = load_triage_prior()
    assert f"| {prior.figures['runs, held']:,.0f} |" in page
    assert f"| {prior.sessions:,} |" in page
    for name in set(prior.figures) - {"runs, held", "auc turns alone, dev", "auc other tasks, dev"}:
        assert f"{prior.figures[name]:.3f}" in page, name


def test_code_that_is_only_in_the_submitted_diff_was_changed() -> None:
    diff = "diff --git a/cart.py b/cart.py\n--- a/cart.py\n+++ b/cart.py\n@@ -1 +1 @@\n-a\n+b\n"
    submission = {"note": {"text": diff, "about": "submission"}}
    rewrite = {"run": {"command": "./rewrite", "exit": 0, "output": ""}}
    features = measure_events({"user": "Fix cart.py."}, rewrite, submission).features
    assert features["no_code_change"] == 0


def test_a_review_owes_no_change_of_code() -> None:
    look = {"run": {"command": "git show", "exit": 0, "output": "+ x = 1"}}
    answer = {"claim": "Two remarks: the name is long, and a test is missing."}
    for request in ("Review the last commit.", "Why does parse() return None?", "Resume here"):
        assert "no_code_change" not in measure_events({"user": request}, look, answer).features
    for request in ("Fix the crash in parse().", "Can you fix parse()?", "parse() crashes " * 20):
        wanted = measure_events({"user": request}, look, answer).features
        assert wanted["no_code_change"] == 1
