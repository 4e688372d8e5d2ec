"""Does anything but size foretell which changes go wrong?

    python quality/risk_features.py REPOSITORY...

For each repository, what was known before each change: its size, the past of its files (changes,
fixes, and repairs that had come by then), tests beside it, and how its author's earlier changes
fared. Each set of features is learned from the first 70 % of the changes and tried on the rest.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from closeloop.changes.file_kinds import classify_file
from closeloop.changes.risk.change_history import (
    REPAIR_DAYS,
    DefectLabels,
    InverseSteps,
    MainlineStep,
    count_source_lines,
    find_stated_reverts,
    is_fix_message,
    is_product_source,
    read_landed_commits,
    read_mainline_steps,
)
from closeloop.git import find_repository
from closeloop.records.errors import MachineFailed
from closeloop.statistics.agreement import roc_auc

TRAINING_SHARE = 0.7
MIN_WRONG = 20
REVERT_KNOWN_DAYS = 30
"""A revert that nobody dated is known so many days after the change."""
SETS = {
    "lines added": ("lines",),
    "+ files": ("lines", "files"),
    "+ past of files": ("lines", "files", "changes", "fixes", "repaired", "age"),
    "+ tests": ("lines", "files", "tests"),
    "+ author": ("lines", "files", "experience", "author"),
    "all": ("lines", "files", "changes", "fixes", "repaired", "age", "tests", "experience",
            "author", "fix"),
}  # fmt: skip
FeatureRow = Mapping[str, float]


def list_features(repository: Path, limit: int = 20_000) -> tuple[list[FeatureRow], list[bool]]:
    """For each change that can be judged, what was known before it, and whether it went wrong."""
    place = find_repository(repository)
    assert place is not None
    labels, inverses, steps = DefectLabels(), InverseSteps(), []
    try:
        for step in read_mainline_steps(place, "HEAD", limit):
            labels.add_step(step)
            inverses.add_step(step)
            steps.append(step)
    except MachineFailed:
        sys.stderr.write(f"{repository}: the rest of the history is missing\n")
    landed = read_landed_commits(place, [one.id for one in steps], "HEAD")
    wrong = find_stated_reverts(landed) | inverses.reverted
    known = {number: steps[number].at + REVERT_KNOWN_DAYS * 86_400 for number in wrong}
    for fixing, broken in labels.repairs:
        known[broken] = min(known.get(broken, steps[fixing].at), steps[fixing].at)
    last = steps[-1].at - REPAIR_DAYS * 86_400
    rows, hits = [], []
    for number, row in enumerate(_walk_features(steps, known)):
        if row is not None and steps[number].at <= last:
            rows.append(row)
            hits.append(number in known)
    return rows, hits


def _walk_features(
    steps: Sequence[MainlineStep], known: Mapping[int, int]
) -> Iterator[FeatureRow | None]:
    changes, fixes, experience = Counter[str](), Counter[str](), Counter[str]()
    touched: dict[str, int] = {}
    repairs: dict[str, list[int]] = defaultdict(list)
    for number, step in enumerate(steps):
        paths = [file.path for file in step.files if is_product_source(file.path)]
        added = count_source_lines((file.path, file.added_lines) for file in step.files)
        past = {key: sum(at < step.at for at in repairs[key]) for key in (*paths, step.author)}
        yield (
            None
            if added is None
            else {
                "lines": math.log1p(added),
                "files": math.log1p(len(paths)),
                "changes": math.log1p(max(changes[path] for path in paths)),
                "fixes": max(fixes[path] / (changes[path] + 3) for path in paths),
                "repaired": max(past[path] / (changes[path] + 5) for path in paths),
                "age": math.log1p(min((step.at - touched.get(path, 0)) / 86_400 for path in paths)),
                "tests": float(any(classify_file(file.path) == "test" for file in step.files)),
                "experience": math.log1p(experience[step.author]),
                "author": (past[step.author] + 1) / (experience[step.author] + 20),
                "fix": float(is_fix_message(step.message)),
            }
        )
        for path in paths:
            changes[path] += 1
            fixes[path] += is_fix_message(step.message)
            touched[path] = step.at
        experience[step.author] += 1
        if number in known:
            for key in (*paths, step.author):
                repairs[key].append(known[number])


def measure_sets(rows: Sequence[FeatureRow], hits: Sequence[bool]) -> dict[str, float | None]:
    """By set of features, the area under the curve on the later changes."""
    cut = int(len(rows) * TRAINING_SHARE)
    areas = {}
    for name, columns in SETS.items():
        matrix = np.array([[row[column] for column in columns] for row in rows])
        matrix = (matrix - matrix[:cut].mean(0)) / (matrix[:cut].std(0) + 1e-9)
        matrix = np.column_stack([np.ones(len(rows)), matrix])
        weights = _fit_ridge(matrix[:cut], np.array(hits[:cut], dtype=float))
        areas[name] = roc_auc((matrix[cut:] @ weights).tolist(), hits[cut:])
    return areas


def _fit_ridge(matrix: np.ndarray, hits: np.ndarray, penalty: float = 5.0) -> np.ndarray:
    weights = np.zeros(matrix.shape[1])
    ridge = np.diag([1e-6, *[penalty] * (len(weights) - 1)])
    for _ in range(30):
        chance = 1 / (1 + np.exp(-np.clip(matrix @ weights, -30, 30)))
        curvature = (matrix * (chance * (1 - chance))[:, None]).T @ matrix + ridge
        weights += np.clip(
            np.linalg.solve(curvature, matrix.T @ (hits - chance) - ridge @ weights), -3, 3
        )
    return weights


def main() -> None:
    """Print a row for each repository, and the means."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("repositories", nargs="+", type=Path)
    sys.stdout.write(f"| repository | tried on | {' | '.join(SETS)} |\n{'| --- ' * 8}|\n")
    every: list[dict[str, float | None]] = []
    for repository in options.parse_args().repositories:
        rows, hits = list_features(repository)
        name = repository.parent.name if repository.name == "repo" else repository.name
        if sum(hits) < MIN_WRONG:
            continue
        every.append(measure_sets(rows, hits))
        later = hits[int(len(hits) * TRAINING_SHARE) :]
        cells = " | ".join(f"{area:.3f}" if area else "–" for area in every[-1].values())
        sys.stdout.write(f"| {name} | {sum(later)} of {len(later):,} | {cells} |\n")
        sys.stdout.flush()
    means = [sum(row[name] or 0.5 for row in every) / max(1, len(every)) for name in SETS]
    sys.stdout.write(f"| mean | | {' | '.join(f'{mean:.3f}' for mean in means)} |\n")


if __name__ == "__main__":
    main()
