"""The demo judged: by the gate, which lets noise pass, and by the checks of a change."""

from __future__ import annotations

import json
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from demo_run import closeloop
from msgspec.structs import replace

from closeloop.cli.config import load_project
from closeloop.demo import DATA
from closeloop.metrics.attempt_measuring import (
    MeasuredAttempt,
    find_experiment,
    list_experiment_attempts,
    measure_attempts,
    project_rulebook,
)
from closeloop.metrics.variant_comparison import compare_by_name, compare_with_baseline
from closeloop.process.rulebook import list_gating_rules
from closeloop.records.experiment_plan import Baseline
from closeloop.records.settings import Settings
from closeloop.store import Store, open_store

BASELINE = Baseline(name="main", experiment="e", attempts=(), at=datetime(2026, 11, 1, tzinfo=UTC))
GATING = list_gating_rules(project_rulebook(load_project(DATA).settings))


@pytest.fixture
def demo(tried_demo: Path, tmp_path: Path) -> Path:
    # Others may be reading the store: what SQLite keeps beside it meanwhile comes and goes.
    beside = shutil.ignore_patterns("*.db-wal", "*.db-shm")
    return Path(shutil.copytree(tried_demo, tmp_path / "demo", symlinks=True, ignore=beside))


def test_a_worsened_variant_is_caught_and_an_equal_one_passes(demo: Path) -> None:
    again = ("run", "--variant", "careful")
    assert closeloop(demo, *again).returncode == 0
    equal = closeloop(demo, "gate")
    assert equal.returncode == 0, equal.stderr
    assert "Not shown to be worse" in equal.stdout
    assert "the pass rate may have fallen by up to" in " ".join(equal.stdout.split())
    settings = demo / "closeloop.toml"
    text = settings.read_text()
    worse = text.replace('[variants.careful]\nagent = "builtin"\nmodel = "careful"',
                         '[variants.careful]\nagent = "builtin"\nmodel = "looping"')  # fmt: skip
    assert worse != text
    settings.write_text(worse)
    assert closeloop(demo, *again).returncode == 0
    report = closeloop(demo, "gate", "--json")
    assert report.returncode == 1
    verdicts = {one["metric"]: one["verdict"] for one in json.loads(report.stdout)["differences"]}
    assert verdicts["passed"] == verdicts["without gating findings"] == "worse"


def test_the_checks_find_what_was_planted_and_nothing_in_clean_work(demo: Path) -> None:
    found: dict[tuple[str, str], tuple[set[str], str]] = {}
    with open_store(str(demo / ".closeloop" / "closeloop.db")) as store:
        assert worse_of_two(store) == "looping"
        for row in list_experiment_attempts(store, find_experiment(store, None)):
            change = store.load_change(row.id)
            if change is None or not change.files:
                continue
            patch = demo / "change.patch"
            patch.write_text(change.patch)
            told = closeloop(
                demo / "project", "check", "--patch", str(patch), "--base", change.base or "",
                "--task", row.task or "", "--tier", "quality", "--tier", "risk", "--json",
            )  # fmt: skip
            assert told.returncode in (0, 1), told.stderr
            report = json.loads(told.stdout)
            grave = [one for one in report["findings"] if one["severity"] == "error"]
            copies = [one for one in report["findings"] if one["rule"] == "copied-code"]
            rules = {one["rule"] for one in grave + copies}
            level = report["risk"]["level"]
            found[row.task or "", row.variant_name or ""] = rules, level
    for (task, variant), (rules, _) in found.items():
        assert rules == (PLANTED.get(task, set()) if variant == "looping" else set()), task
    assert found["version-flag", "careful"][1] == "low"
    assert found["purchase-order", "looping"][1] == "critical"


def worse_of_two(store: Store) -> str | None:
    """What a comparison of the newest experiment's variants says, asked both ways round."""
    variants = find_experiment(store, None).variants
    book = project_rulebook(Settings())
    worse = set()
    for names in (variants, variants[::-1]):
        (pair,) = compare_by_name(store, book, names).pairs
        if pair.comparison.here_word == pair.comparison.alike_word == "worse":
            kept = store.load_variant(pair.second)
            worse |= {kept.name} if kept else set()
    return worse.pop() if len(worse) == 1 else None


PLANTED = {
    "statement-names": {"out-of-scope-change"},
    "greek-buyer": {"out-of-scope-change", "weakened-test"},
    "purchase-order": {"out-of-scope-change", "hallucinated-name"},
    "late-fee": {"copied-code"},
}


def test_scripted_noise_passes_nine_times_of_ten_and_a_worse_agent_is_still_caught(
    demo: Path,
) -> None:
    """A noisy agent does each task as careful does it, now and then as looping does."""
    with open_store(str(demo / ".closeloop" / "closeloop.db")) as store:
        rows = list_experiment_attempts(store, find_experiment(store, None))
        every = list(measure_attempts(store, rows, project_rulebook(Settings())))
    ways = {
        name: [one for one in every if one.row.variant_name == name]
        for name in ("careful", "looping")
    }
    assert len(ways["careful"]) == len(ways["looping"]) == 9
    chance = random.Random(7)

    def agent(slips: float) -> list[MeasuredAttempt]:
        return [
            MeasuredAttempt(row=replace(one.row, variant_name="noisy"), measurement=one.measurement)
            for good, bad in zip(ways["careful"], ways["looping"], strict=True)
            for one in (chance.choices([good, bad], [1 - slips, slips])[0] for _ in range(3))
        ]

    def passes(slips: float) -> bool:
        return compare_with_baseline(BASELINE, agent(0.15), agent(slips), "f", GATING).passed

    assert sum(passes(0.15) for _ in range(100)) >= 90
    assert sum(passes(0.9) for _ in range(100)) <= 10
