"""Worked examples: numbers made of scores, each computed here by hand."""

from __future__ import annotations

from math import sqrt

import pytest
from by_hand import T

from closeloop.grading.grading import measure_similarity
from closeloop.metrics.variant_pairs import compare_primary
from closeloop.records.estimate import Metric
from closeloop.statistics.mean_comparison import compare_means

REFERENCE = """\
diff --git a/m.py b/m.py
--- a/m.py
+++ b/m.py
@@ -1,3 +1,4 @@
-    return a - b
+    total = a + b
+    return total
 x = 1
 y = 2
"""
MADE = """\
diff --git a/m.py b/m.py
--- a/m.py
+++ b/m.py
@@ -1,3 +1,3 @@
-  return a - b
+  return total
 x = 1
 y = 2
diff --git a/n.py b/n.py
--- a/n.py
+++ b/n.py
@@ -1,1 +1,2 @@
 z = 1
+w = 2
"""


def test_similarity_is_the_share_of_changed_lines_that_both_have() -> None:
    """3 lines of the reference, 3 of the change, 2 in both, layout aside: 2 · 2 ÷ (3 + 3)."""
    assert measure_similarity(REFERENCE, MADE, ["m.py"], ["m.py", "n.py"]) == pytest.approx(4 / 6)
    # Without the file that grading leaves out, 2 lines of the change: 2 · 2 ÷ (3 + 2).
    assert measure_similarity(REFERENCE, MADE, ["m.py"], ["m.py"]) == pytest.approx(4 / 5)
    assert measure_similarity("", "", [], []) is None


def test_means_are_compared_by_the_noise_of_repeats_and_by_tasks() -> None:
    """Two tasks, two repeats each: 10, 12 and 20, 22 against 14, 16 and 26, 28.

    Task means 11, 21 and 15, 27: differences 4 and 6, mean 5. Each pair of repeats varies by 2
    with one degree of freedom: pooled 2 with 4. On these tasks the difference of two means of two
    varies by 2 ÷ 2 + 2 ÷ 2 = 2, the mean of both tasks by 2 ÷ 2 = 1: 5 ± t(4). On tasks like
    these the differences vary by 2, no less than repeats do: 5 ± t(1) · √(2 ÷ 2).
    """
    first = {"a": [10.0, 12.0], "b": [20.0, 22.0]}
    second = {"a": [14.0, 16.0], "b": [26.0, 28.0]}
    compared = compare_means(first, second, margin=0.5)
    here, alike = compared.here, compared.alike
    assert here is not None
    assert alike is not None
    assert (compared.first, compared.second, here.value) == (16.0, 21.0, 5.0)
    assert (here.low, here.high) == pytest.approx((5 - 2.776445, 5 + 2.776445), abs=1e-5)
    half = 12.706205 * sqrt(2 / 2)
    assert (alike.low, alike.high) == pytest.approx((5 - half, 5 + half), abs=1e-4)
    assert compared.here_word == "better"
    assert compared.alike_word == "not enough data", "two tasks cannot decide for others"
    assert compared.test is None


def test_the_margin_is_a_share_of_the_scale_or_of_the_firsts_mean() -> None:
    """0.05 of a scale from 1 to 5 is 0.2; of a first mean of 16 it is 0.8."""
    first, second = {"a": [15.0, 17.0]}, {"a": [15.0, 17.0]}
    scale = Metric(
        name="m", score="m", family="scores", kind="mean", source="person", says="", better="more",
        low=1, high=5,
    )  # fmt: skip
    amount = Metric(
        name="m", score="m", family="scores", kind="median", source="person", says="",
        better="less", low=0,
    )  # fmt: skip
    assert compare_primary(scale, first, second, 0.05).margin == pytest.approx(0.2)
    assert compare_primary(amount, first, second, 0.05).margin == pytest.approx(0.8)


def test_several_comparisons_widen_the_bounds_of_means() -> None:
    """The same four degrees of freedom, and 0.025 ÷ 2 in each tail: t = 3.495406."""
    first = {"a": [10.0, 12.0], "b": [20.0, 22.0]}
    second = {"a": [14.0, 16.0], "b": [26.0, 28.0]}
    here = compare_means(first, second, margin=0.5, comparisons=2).here
    assert here is not None
    assert (here.low, here.high) == pytest.approx((5 - 3.495406, 5 + 3.495406), abs=1e-5)


def test_without_repeats_only_tasks_show_noise() -> None:
    compared = compare_means({"a": [1.0], "b": [2.0]}, {"a": [2.0], "b": [4.0]}, margin=0.1)
    assert compared.here is None
    assert compared.alike is not None
    # Differences 1 and 2: mean 1.5, variance 0.5.
    assert compared.alike.high == pytest.approx(1.5 + T[1] * sqrt(0.5 / 2), abs=1e-3)


def test_marks_that_do_not_vary_have_the_noise_of_their_rounding() -> None:
    """Six tasks, 2 against 4 in each. The marks are 2 apart, so that each may be off by 1: the
    variance of a difference is 2 · 2² ÷ 12 = 2/3, the bounds −2 ± t(5) · √(2/3 ÷ 6).
    """
    tasks = "abcdef"
    compared = compare_means(
        {task: [4.0] for task in tasks}, {task: [2.0] for task in tasks}, margin=0.2
    )
    assert compared.alike is not None
    half = 2.570582 * sqrt(2 / 3 / 6)
    assert (compared.alike.low, compared.alike.high) == pytest.approx((-2 - half, -2 + half))
    assert compared.alike_word == "worse"
    same = {task: [4.0] for task in tasks}
    assert compare_means(same, same, margin=0.2).alike is None, "one mark shows no step"
