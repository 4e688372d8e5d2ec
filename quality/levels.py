"""Are the levels of risk in order, and what do they say of changes that nothing became of?

    python quality/levels.py REPOSITORY... [--commits N] [--sample N] [--details FILE]

The past is cut in two. Ranks are learned from the earlier half; of the later one, changes that
went wrong and others are drawn, assessed as a check does, and weighed by how many they stand for.
The latest commits that touch anything are assessed too: those that nobody repaired should be low.
FILE gets one change a line, with its reasons.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.changes.risk import assess_risk
from closeloop.changes.risk.change_history import History, PastChange, read_history
from closeloop.changes.risk.risk_model import RiskModel, fit_risk_model
from closeloop.records.change import RiskLevel
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings

RISK_LEVELS: tuple[RiskLevel, ...] = get_args(RiskLevel)
COMMITS = 100
SAMPLE = 40
SEED = 21


class AssessedChange(Record):
    """The level of one past change, and what became of it."""

    repository: str
    commit: str
    level: RiskLevel
    reasons: tuple[str, ...]
    latest: bool
    """Whether it was drawn from the latest, of which nobody knows yet."""
    wrong: bool = False
    stands_for: float = 1.0
    """How many changes of its kind it was drawn for."""


def assess_repository(
    repository: Path, commits: int = COMMITS, sample: int = SAMPLE
) -> Iterator[AssessedChange]:
    """The latest commits, then a sample of the later half of what can be judged."""
    name = repository.parent.name if repository.name == "repo" else repository.name
    head = _git(repository, "rev-parse", "HEAD").strip()
    with tempfile.TemporaryDirectory() as cache:
        history = read_history(repository, head, Path(cache))
        model = fit_risk_model(history).model
        latest = _git(repository, "log", "--first-parent", "--min-parents=1", "--format=%H",
                      f"-{commits}").split()  # fmt: skip
        for commit in latest:
            if (found := _assess(repository, commit, history, model, Path(cache))) is not None:
                yield AssessedChange(repository=name, commit=commit, latest=True, **found)
        judged = history.judged_changes
        later = judged[len(judged) // 2 :]
        known = msgspec.structs.replace(
            history, past=tuple(one for one in history.past if later and one.at < later[0].at)
        )
        known = msgspec.structs.replace(known, labelled=len(known.past))
        model = fit_risk_model(known).model
        for wrong in (True, False):
            drawn, weight = _draw([one for one in later if one.went_wrong == wrong], sample)
            for past in drawn:
                found = _assess(repository, past.id, known, model, Path(cache))
                if found is not None:
                    yield AssessedChange(repository=name, commit=past.id, latest=False,
                                         wrong=wrong, stands_for=weight, **found)  # fmt: skip


def _draw(changes: Sequence[PastChange], sample: int) -> tuple[Sequence[PastChange], float]:
    if len(changes) <= sample:
        return changes, 1.0
    return random.Random(SEED).sample(changes, sample), len(changes) / sample  # noqa: S311


def _assess(
    repository: Path, commit: str, history: History, model: RiskModel, cache: Path
) -> dict[str, object] | None:
    settings = CheckSettings()
    try:
        with (
            open_sides(repository, ChangeQuery(range=f"{commit}^..{commit}")) as sides,
            open_index(sides, cache, settings) as index,
        ):
            inspection = inspect_change(sides, index, settings=settings)
            risk = assess_risk(inspection, history=history, model=model)
    except BadInput:
        return None
    return {"level": risk.level, "reasons": risk.reasons}


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=repository, check=True, capture_output=True, text=True
    ).stdout


def estimate_level_rates(changes: Iterable[AssessedChange]) -> dict[RiskLevel, tuple[float, int]]:
    """By level, the estimated share that went wrong, and how many were drawn."""
    wrong: Counter[RiskLevel] = Counter()
    every: Counter[RiskLevel] = Counter()
    drawn: Counter[RiskLevel] = Counter()
    for one in changes:
        if not one.latest:
            drawn[one.level] += 1
            every[one.level] += one.stands_for
            wrong[one.level] += one.stands_for * one.wrong
    return {
        level: (wrong[level] / every[level], drawn[level]) for level in RISK_LEVELS if drawn[level]
    }


def render_level_tables(changes: Iterable[AssessedChange]) -> str:
    """By repository: how many of the latest have each level, and how often each went wrong."""
    groups: dict[str, list[AssessedChange]] = {}
    for one in changes:
        groups.setdefault(one.repository, []).append(one)
    groups["all"] = [one for group in groups.values() for one in group]
    head = f"| repository | changes | {' | '.join(RISK_LEVELS)} |"
    lines = ["Latest commits, by level:", "", head, "| --- " * 6 + "|"]
    for name, group in groups.items():
        counts = Counter(one.level for one in group if one.latest)
        cells = " | ".join(str(counts[level]) for level in RISK_LEVELS)
        lines.append(f"| {name} | {counts.total()} | {cells} |")
    lines += ["", "Went wrong later, by level (how many were drawn):", "", head, "| --- " * 6 + "|"]
    for name, group in groups.items():
        rates = estimate_level_rates(group)
        cells = " | ".join(
            f"{rates[level][0]:.0%} ({rates[level][1]})" if level in rates else "–"
            for level in RISK_LEVELS
        )
        lines.append(f"| {name} | {sum(not one.latest for one in group)} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Print both tables; with a file, write each change too."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("repositories", nargs="+", type=Path)
    options.add_argument("--commits", type=int, default=COMMITS)
    options.add_argument("--sample", type=int, default=SAMPLE)
    options.add_argument("--details", type=argparse.FileType("wb"))
    given = options.parse_args()
    every = []
    for repository in given.repositories:
        for one in assess_repository(repository, given.commits, given.sample):
            every.append(one)
            if given.details:
                given.details.write(msgspec.json.encode(one) + b"\n")
        sys.stderr.write(f"{repository}: {len(every)} assessed\n")
    sys.stdout.write(render_level_tables(every) + "\n")


if __name__ == "__main__":
    main()
