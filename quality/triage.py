"""Fit the prior of `closeloop triage` on public runs with known outcomes, and say how good it is.

    python quality/triage.py FOLDER [--write] [--measure-held]

FOLDER holds `dev` and `held` (and `more/dev`, `more/held`), each with `over/MODEL/TASK.json` of
AlexCuadron/Overthinking and `mini/TASK.traj.json` of gruckion/mini-swe-agent, and in `meta` their
outcomes; `meta/over-output-tokens.json` has `{"MODEL/TASK": [output tokens, turns]}` of all turns,
as those recordings have the last one's alone. Tasks were split by a hash of their names. Weights
are fitted on dev, and judged by leaving out each model and a fifth of the tasks; held is looked at
once, at the end. `--write` puts the prior into the package.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from closeloop import plugins
from closeloop.metrics import triage as model
from closeloop.process.rulebook import build_rulebook
from closeloop.process.trace_measurement import measure_reading
from closeloop.process.trace_reading import build_reading
from closeloop.records.score import PriorFeature, TriagePrior
from closeloop.statistics.agreement import calibration_error, fit_ridge_logistic
from closeloop.traces.file_source import FileSource, find_reader

PRIOR = Path(model.__file__).with_name("triage_prior.json")
SOURCE = "AlexCuadron/Overthinking (OpenHands, 14 models) and gruckion/mini-swe-agent, tasks of dev"
RAISES = frozenset((
    "certainty", "named_by_request", "focus", "verified", "runs_after_write",
    "actions_after_write", "last_check_passes", "feedback_share", "first_write", "runs",
))  # fmt: skip
"""Features of which more speaks for success; of all others more speaks against it. A weight of
the wrong sign would explain nothing, and holds for these runs alone."""
RIDGE = 30.0
SECOND_AGENT_COUNT = 2.0
"""So often each run of mini-swe-agent counts, as there are eight times as many of OpenHands."""
TASK_FOLDS = 5
QUANTILES = 21
BOOTSTRAPS = 1000
MIN_OF_EACH = 5
"""A model counts in an AUC with so many successes and failures."""

Array = Any


class Run(NamedTuple):
    """A recorded run with its outcome."""

    group: str
    task: str
    success: bool
    path: Path


class Runs(NamedTuple):
    """Runs with their features."""

    groups: list[str]
    folds: Array
    hits: Array
    features: list[dict[str, float]]


def list_runs(folder: Path, half: str) -> Iterator[Run]:
    """Every run whose outcome is known; an empty or broken patch is no success."""
    for base in (folder / half, folder / "more" / half):
        for runs in sorted((base / "over").glob("*/")):
            outcomes = json.loads((folder / "meta" / "over" / f"{runs.name}.json").read_text())
            submitted, resolved = set(outcomes["submitted_ids"]), set(outcomes["resolved_ids"])
            for path in sorted(runs.glob("*.json")):
                if path.stem in submitted:
                    yield Run(runs.name, path.stem, path.stem in resolved, path)
    summary = json.loads((folder / "meta" / "mini" / "results_summary.json").read_text())
    resolved_by_task = {one["instance_id"]: one["resolved"] for one in summary["instances"]}
    for path in sorted((folder / half / "mini").glob("*.traj.json")):
        task = path.name.removesuffix(".traj.json")
        if task in resolved_by_task:
            yield Run("mini-swe-agent", task, resolved_by_task[task], path)


@cache
def rulebook() -> Any:
    return build_rulebook(plugins.load_plugins("detectors"), {})


def read_features(path: Path) -> dict[str, float]:
    source = FileSource(path)
    reader: Any = find_reader(source)
    for session in reader.read(source):
        return measure_reading(build_reading(session.trace), rulebook()).features
    return {}


def load_runs(folder: Path, half: str) -> Runs:
    """All runs of a half, measured."""
    runs = list(list_runs(folder, half))
    with ProcessPoolExecutor() as pool:
        features = list(pool.map(read_features, [run.path for run in runs], chunksize=20))
    totals = folder / "meta" / "over-output-tokens.json"
    tokens = json.loads(totals.read_bytes()) if totals.is_file() else {}
    for run, one in zip(runs, features, strict=True):
        if total := tokens.get(f"{run.group}/{run.task}"):
            one["output_tokens"] = float(total[0])
    measured = [(run, one) for run, one in zip(runs, features, strict=True) if one]
    return Runs(
        [run.group for run, _ in measured],
        np.array([task_fold(run.task) for run, _ in measured]),
        np.array([float(run.success) for run, _ in measured]),
        [one for _, one in measured],
    )


def task_fold(task: str) -> int:
    return int(hashlib.md5(task.encode(), usedforsecurity=False).hexdigest(), 16) % TASK_FOLDS


# Fitting


def build_prior(runs: Runs, rows: Array, figures: dict[str, float]) -> TriagePrior:
    """The prior that these runs give."""
    chosen = [runs.features[row] for row in rows]
    names = sorted({name for one in chosen for name in one})
    values = model.feature_matrix(chosen, names)
    steps = np.linspace(0, 1, QUANTILES)
    spread = {
        name: PriorFeature(
            weight=0.0, quantiles=tuple(round_figures(np.nanquantile(column, steps)))
        )
        for name, column in zip(names, values.T, strict=True)
    }
    prior = TriagePrior(
        fitted=f"{datetime.now(UTC):%Y-%m-%d}",
        source=SOURCE,
        sessions=len(rows),
        successes=int(runs.hits[rows].sum()),
        features=spread,
        figures=figures,
    )
    groups = [runs.groups[row] for row in rows]
    weights = fit_weights(
        model.relative_positions(chosen, groups, prior), groups, runs.hits[rows], names
    )
    features = {
        name: PriorFeature(weight=weight, quantiles=spread[name].quantiles)
        for name, weight in zip(names, round_figures(weights), strict=True)
        if weight
    }
    return msgspec.structs.replace(prior, features=features)


def round_figures(values: Array) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def fit_weights(
    positions: Array, groups: Sequence[str], hits: Array, names: Sequence[str]
) -> Array:
    """Weights of the expected sign, each model with a constant of its own."""
    labels = sorted(set(groups))
    shares = np.array([[group == label for label in labels] for group in groups], np.float64)
    counts = np.array([SECOND_AGENT_COUNT if "mini" in group else 1.0 for group in groups])
    signs = np.array([1 if name in RAISES else -1 for name in names])
    active = np.arange(len(names))
    while True:
        penalty = np.r_[np.full(len(active), RIDGE), np.full(len(labels), 1e-2)]
        rows = np.hstack([positions[:, active], shares])
        fitted = fit_ridge_logistic(rows, hits, penalty, counts=counts)[: len(active)]
        right = fitted * signs[active] >= 0
        if right.all():
            break
        active = active[right]
    weights = np.zeros(len(names))
    weights[active] = fitted
    return weights


# Measuring


def score_with(prior: TriagePrior, runs: Runs, rows: Array) -> Array:
    groups = [runs.groups[row] for row in rows]
    positions = model.relative_positions([runs.features[row] for row in rows], groups, prior)
    return positions @ np.array([one.weight for one in prior.features.values()])


def left_out_scores(runs: Runs, *, by_model: bool) -> Array:
    """Scores by weights that saw neither the task nor, if `by_model`, the model."""
    scores = np.zeros(len(runs.hits))
    groups = np.array(runs.groups)
    for group in sorted(set(runs.groups)) if by_model else [None]:
        own = np.flatnonzero(groups == group) if group else np.arange(len(groups))
        for fold in range(TASK_FOLDS):
            others = (runs.folds != fold) & (groups != group)
            prior = build_prior(runs, np.flatnonzero(others), {})
            # Places are among all of the agent's runs, as they are in a store.
            left_out = runs.folds[own] == fold
            scores[own[left_out]] = score_with(prior, runs, own)[left_out]
    return scores


def mean_auc(scores: Array, runs: Runs, rows: Array | None = None) -> float:
    """Within model, by runs, of the models with enough of both outcomes."""
    chosen = np.arange(len(scores)) if rows is None else rows
    _, each = model.auc_within(scores[chosen], runs.hits[chosen], [runs.groups[r] for r in chosen])
    counted = [(area, n) for group, (area, n) in each.items() if group in usable_groups(runs)]
    return sum(area * n for area, n in counted) / sum(n for _, n in counted)


def usable_groups(runs: Runs) -> frozenset[Hashable]:
    groups = np.array(runs.groups)
    return frozenset(
        group
        for group in set(runs.groups)
        if MIN_OF_EACH <= runs.hits[groups == group].sum() <= (groups == group).sum() - MIN_OF_EACH
    )


def auc_interval(scores: Array, runs: Runs) -> tuple[float, float]:
    """95 %, by drawing runs of each model again."""
    random = np.random.default_rng(1)
    members = list(model.rows_by_label(runs.groups).values())
    drawn = [
        mean_auc(scores, runs, np.concatenate([random.choice(rows, len(rows)) for rows in members]))
        for _ in range(BOOTSTRAPS)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def calibration_with(prior: TriagePrior, runs: Runs, graded: int, seed: int = 1) -> float:
    """Expected calibration error on all other runs of a model, once so many of it are graded."""
    random = np.random.default_rng(seed)
    chances: list[float] = []
    outcomes: list[bool] = []
    for group, rows in model.rows_by_label(runs.groups).items():
        if len(rows) < 2 * graded or group not in usable_groups(runs):
            continue
        order = random.permutation(rows)
        groups = [str(group)] * len(order)
        positions = model.relative_positions([runs.features[row] for row in order], groups, prior)
        hits = runs.hits[order].copy()
        hits[graded:] = np.nan
        fitted = model.fit_team_model(positions, groups, hits, prior)
        scores = model.score_sessions(fitted, positions, groups)
        held_out = model.cross_validated_scores(positions, groups, hits, prior)
        chance = model.fit_chances(scores, held_out, groups, hits)
        chances += chance[graded:].tolist()
        outcomes += (runs.hits[order][graded:] == 1).tolist()
    error = calibration_error(chances, outcomes)
    assert error is not None
    return error


def main() -> None:
    """Print how good it is; write it if asked."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--write", action="store_true", help="put the prior into the package")
    options.add_argument("--measure-held", action="store_true", help="look at held: once")
    given = options.parse_args()
    runs = load_runs(given.folder, "dev")
    say(f"{len(runs.hits)} runs of dev, {runs.hits.sum():.0f} successes")
    length = -model.feature_matrix(runs.features, ["turns"])[:, 0]
    figures = {
        "auc turns alone, dev": mean_auc(np.nan_to_num(length), runs),
        "auc other tasks, dev": mean_auc(left_out_scores(runs, by_model=False), runs),
        "auc other models and tasks, dev": mean_auc(left_out_scores(runs, by_model=True), runs),
    }
    prior = build_prior(runs, np.arange(len(runs.hits)), {})
    errors = [calibration_with(prior, runs, 50, seed) for seed in range(5)]
    figures["calibration error, 50 graded, dev"] = float(np.mean(errors))
    if given.measure_held:
        figures |= measure_held(prior, load_runs(given.folder, "held"))
    elif PRIOR.exists():
        kept = msgspec.json.decode(PRIOR.read_bytes(), type=TriagePrior).figures
        figures |= {name: value for name, value in kept.items() if "held" in name}
    rounded = {name: round(value, 3) for name, value in figures.items()}
    for name, value in rounded.items():
        say(f"{name:40} {value:.3f}")
    for name, feature in sorted(prior.features.items(), key=lambda one: -abs(one[1].weight)):
        say(f"  {name:24} {feature.weight:+.3f}")
    if given.write:
        written = msgspec.json.encode(msgspec.structs.replace(prior, figures=rounded))
        PRIOR.write_bytes(msgspec.json.format(written, indent=1) + b"\n")


def measure_held(prior: TriagePrior, runs: Runs) -> dict[str, float]:
    scores = score_with(prior, runs, np.arange(len(runs.hits)))
    low, high = auc_interval(scores, runs)
    _, each = model.auc_within(scores, runs.hits, runs.groups)
    for group, (area, n) in each.items():
        say(f"  held {group!s:32} n {n:4} AUC {area:.3f}")
    length = np.nan_to_num(-model.feature_matrix(runs.features, ["turns"])[:, 0])
    errors = [calibration_with(prior, runs, 50, seed) for seed in range(5)]
    return {
        "runs, held": len(runs.hits),
        "auc, held": mean_auc(scores, runs),
        "auc low, held": low,
        "auc high, held": high,
        "auc turns alone, held": mean_auc(length, runs),
        "calibration error, 50 graded, held": float(np.mean(errors)),
    }


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
