"""Worked examples: what `closeloop task sets` says of held-out tasks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from math import sqrt
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scripted_work import START, add_attempt, add_task, add_variant

from closeloop.metrics.held_out_runs import (
    estimate_gap_changes,
    estimate_held_out_gaps,
    overuse_warning,
    report_held_out,
)
from closeloop.records.experiment_plan import HeldOutReport, HeldOutRun
from closeloop.records.task import Experiment, Variant
from closeloop.statistics.rate_comparison import paired_t_difference
from closeloop.statistics.special_functions import t_quantile
from closeloop.store import Store, open_store


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def look(change: str, tasks: str = "held") -> HeldOutRun:
    return HeldOutRun(
        at=START,
        who="ann",
        reason="release",
        tasks=tasks,
        change=change,
        experiment="e",
        variants=("a",),
        count=25,
    )


def test_the_fourth_change_tried_on_the_same_held_out_tasks_is_warned_of() -> None:
    """Looks at other tasks, and the same change again, do not count. The best of four equals is
    expected 1.029 standard deviations above their mean: 1.029 · 0.5 / √25 = 0.10.
    """
    earlier = [look("1"), look("2"), look("2"), look("9", "others")]
    assert overuse_warning(look("3"), earlier) is None
    told = overuse_warning(look("4"), [*earlier, look("3")])
    assert told is not None
    assert "change 4 tested on these 25 held-out tasks" in told
    assert "up to 10 points better" in told


def test_the_gap_is_how_much_better_a_variant_does_on_dev_tasks(store: Store) -> None:
    """Dev: 2 of 2 tasks. Held out: 1 of 2 tasks, one more unscored. 1 − ½ = ½, of 4 tasks."""
    variant = add_variant(store, "a")
    dev = [add_task(store, name) for name in "tu"]
    held = [add_task(store, name, split="held-out") for name in "vwx"]
    for task, passed in zip([*dev, *held], [True, True, True, False, None], strict=True):
        add_attempt(store, task, variant, passed)
    (one,) = estimate_held_out_gaps(store, [*dev, *held])
    assert (one.dev.value, one.held_out.value, one.gap.value, one.gap.n) == (1.0, 0.5, 0.5, 4)
    low = 0.5 - sqrt((1 - one.dev.low) ** 2 + (one.held_out.high - 0.5) ** 2)
    assert one.gap.low == pytest.approx(low)


def tried_versions(
    store: Store, dev: list[tuple[int, int]], held: list[tuple[int, int]]
) -> HeldOutReport:
    """Two versions of one variant, looked at a week apart: their outcomes task by task."""
    tasks = {
        split: [add_task(store, f"{split}{place}", split=split) for place in range(len(outcomes))]
        for split, outcomes in (("dev", dev), ("held-out", held))
    }
    for version in (0, 1):
        variant = add_variant(store, "a", digest=f"v{version}")
        at = START + timedelta(days=7 * version)
        for split, outcomes in (("dev", dev), ("held-out", held)):
            for task, passed in zip(tasks[split], outcomes, strict=True):
                for number in (1, 2, 3):
                    add_attempt(store, task, variant, bool(passed[version]), number=number)
        digests = tuple(task.digest for task in tasks["held-out"])
        store.save_experiment(
            Experiment(id=f"e{version}", tasks=digests, variants=(variant.digest,))
        )
        store.held_out.add_unsealing(
            replace(look(f"c{version}"), at=at, experiment=f"e{version}", count=len(digests))
        )
    report = report_held_out(store)
    assert report is not None
    return report


def test_a_gap_that_widens_for_certain_is_called_overfitted(store: Store) -> None:
    """The second version passes 12 of 12 dev tasks where the first passed 2, and of held-out ones
    as many as before, 3 of 6: +10/12 − 0. Each side is a paired t, and the bounds of their
    difference are Newcombe's.
    """
    dev = [(1, 1)] * 2 + [(0, 1)] * 10
    held = [(1, 1)] * 3 + [(0, 0)] * 3
    report = tried_versions(store, dev, held)
    assert (report.looks, report.last_look.change) == (2, "c1")
    [change] = report.changes
    assert (change.dev.value, change.held_out.value) == (pytest.approx(10 / 12), 0)
    low = change.change.value - sqrt(
        (change.dev.value - change.dev.low) ** 2 + change.held_out.high**2
    )
    assert change.change.low == pytest.approx(low)
    assert 0 < low < change.change.value == pytest.approx(10 / 12)
    assert change.overfitted
    assert change.says == (
        "a: likely overfitted. Between the held-out runs of 2026-11-02 and 2026-11-09, its pass "
        "rate changed by +83 points on dev tasks and by 0 points on held-out tasks, and the gap "
        f"between them by +83 points (+{round(100 * low)} to +{round(100 * change.change.high)})."
    )
    assert [one.label for one in report.gaps] == ["a v0", "a v1"], "two versions of one name"


def test_a_gap_may_change_by_more_than_its_whole_range(store: Store) -> None:
    """From 0 % on dev and 100 % held out to the opposite: −100 points to +100 points."""
    [change] = tried_versions(store, [(0, 1)] * 12, [(1, 0)] * 6).changes
    assert change.change.value == 2.0
    assert change.change.low < change.change.value <= change.change.high == 2.0


@pytest.mark.parametrize(
    ("dev", "held"),
    [
        pytest.param([(0, 1)] * 12, [(0, 1)] * 6, id="both sets gain"),
        pytest.param([(1, 1)] * 12, [(0, 0)] * 6, id="held-out tasks are harder"),
        pytest.param([(0, 1)] * 3 + [(0, 0)], [(1, 1), (0, 0)], id="too few tasks"),
    ],
)
def test_a_gap_that_may_not_have_widened_is_not(store: Store, dev: Any, held: Any) -> None:
    [change] = tried_versions(store, dev, held).changes
    assert not change.overfitted
    assert "no clear sign of overfitting" in change.says


def test_every_look_at_a_new_version_widens_the_bounds(store: Store) -> None:
    """Two looks at new versions are two chances to be wrong: 97.5 % each, so that both hold."""
    tasks = [*map(str, range(8))]
    first, second = {one: [0.0, 1.0] for one in tasks}, {one: [1.0, 1.0] for one in tasks}
    once, twice = (paired_t_difference(first, second, comparisons=many) for many in (1, 2))
    assert once is not None
    assert twice is not None
    reach = t_quantile(0.9875, 7) / t_quantile(0.975, 7)
    assert twice.value - twice.low == pytest.approx(reach * (once.value - once.low))


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_versions_that_gain_alike_on_both_sets_are_seldom_called_overfitted(gain: float) -> None:
    """Of 600 made-up pairs of versions, at most 1 in 40 but for chance: under 25 here."""
    random, alarms = np.random.RandomState(7), 0
    for _ in range(600):
        values = {}
        for split, tasks in (("dev", 20), ("held-out", 8)):
            first = random.beta(1, 1, tasks)
            rates = (first, np.clip(first + random.normal(gain, 0.15, tasks), 0, 1))
            for version, rate in enumerate(rates):
                repeats = random.binomial(1, rate, (3, tasks)).T.astype(float).tolist()
                by_task = dict(zip(map(str, range(tasks)), repeats, strict=True))
                values.setdefault(f"v{version}", {})[split] = by_task
        looks = [replace(look("c1"), experiment="e1"), replace(look("c0"), experiment="e0")]
        known = {f"v{one}": Variant(name="a", agent="builtin", digest=f"v{one}") for one in (0, 1)}
        tried = {"e0": ("v0",), "e1": ("v1",)}
        [change] = estimate_gap_changes(values, known, looks, tried)
        alarms += change.overfitted
    assert alarms < 25
