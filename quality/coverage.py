"""Do bounds of 95 % hold the truth in 95 of 100 experiments? Simulated, cell by cell.

    python quality/coverage.py [--write]

Each experiment draws the tasks' rates near a base rate (a beta of weight ten), and for the second
variant moves each on the scale of log odds: by a step common to all tasks (none in every other
experiment, else one down) and by one of its own (deviation 0.5). Where a share is missing, each
attempt is lost to the machine with that chance. The same seed gives the same table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from closeloop.records.record import Record
from closeloop.statistics.rate_comparison import paired_t_difference, rate_difference
from closeloop.statistics.rate_estimate import TaskValues, estimate_rate, rate_on_these_tasks

PAGE = Path(__file__).resolve().parents[1] / "docs" / "measurements" / "statistics.md"
TASKS, REPEATS = (5, 8, 10, 20, 50), (1, 2, 3, 5, 10)
BASES, LOST = (0.5, 0.95), (0.0, 0.1)
EXPERIMENTS = 4000
FEWER = 400
"""Of them, those that ask about tasks like these: the posterior of a rate takes longer."""
WEIGHT, OWN = 10, 0.5
LOW, HIGH = 0.93, 0.995
FEW = 0.5
"""Failures expected of a variant: with fewer, hardly any bounds can be narrow enough."""


class Cell(Record):
    """How often the truth was within the bounds, by what was estimated."""

    base: float
    lost: float
    tasks: int
    repeats: int
    rate_here: float
    difference_here: float
    rate_alike: float
    difference_alike: float

    @property
    def few(self) -> bool:
        """Whether hardly any failure is expected, so that nothing can tell variants apart."""
        return few(self.base, self.lost, self.tasks, self.repeats)

    @property
    def holds(self) -> bool:
        """Within the limits on exactly these tasks; too careful only where failures are few."""
        difference_high = 1.0 if self.few else HIGH
        return LOW <= self.rate_here <= HIGH and LOW <= self.difference_here <= difference_high


def few(base: float, lost: float, tasks: int, repeats: int) -> bool:
    return tasks * repeats * (1 - lost) * (1 - base) < FEW


def cells(experiments: int = EXPERIMENTS) -> Iterator[Cell]:
    """Those near the limit are looked at more closely."""
    for place in product(BASES, LOST, TASKS, REPEATS):
        yield cell(*place, experiments * (5 if few(*place) else 1))


def cell(base: float, lost: float, tasks: int, repeats: int, experiments: int) -> Cell:
    """One line of the table."""
    chance = np.random.RandomState([int(base * 100), int(lost * 1000), tasks, repeats])
    truths = {step: _population(base, step) for step in (0.0, -1.0)}
    hits = {name: [0, 0] for name in Cell.__struct_fields__[4:]}
    for number in range(experiments):
        step = -1.0 if number % 2 else 0.0
        rates = _rates(chance, base, step, tasks)
        sides = [_tried(chance, side, repeats, lost) for side in rates]
        _count(hits, rates, sides, truths[step] if number < FEWER else None)
    shares = {name: held / max(1, of) for name, (held, of) in hits.items()}
    return Cell(base=base, lost=lost, tasks=tasks, repeats=repeats, **shares)


def _count(
    hits: dict[str, list[int]],
    rates: tuple[np.ndarray, np.ndarray],
    sides: list[TaskValues],
    population: tuple[float, float] | None,
) -> None:
    def held(name: str, low: float, high: float, truth: float) -> None:
        hits[name][0] += low - 1e-9 <= truth <= high + 1e-9
        hits[name][1] += 1

    common = [int(task) for task in sides[0] if task in sides[1]]
    if found := rate_difference(*sides):
        held("difference_here", found.low, found.high, float((rates[1] - rates[0])[common].mean()))
    if sides[0]:
        one = rate_on_these_tasks(sides[0])
        held("rate_here", one.low, one.high, float(rates[0][list(map(int, sides[0]))].mean()))
    if population is None:
        return
    if (both := estimate_rate(sides[0])) and both.alike:
        held("rate_alike", both.alike.low, both.alike.high, population[0])
    if paired := paired_t_difference(*sides):
        held("difference_alike", paired.low, paired.high, population[1])


def _rates(
    chance: np.random.RandomState, base: float, step: float, tasks: int
) -> tuple[np.ndarray, np.ndarray]:
    first = chance.beta(WEIGHT * base, WEIGHT * (1 - base), tasks).clip(1e-9, 1 - 1e-9)
    odds = np.log(first / (1 - first)) + step + chance.normal(0, OWN, tasks)
    return first, 1 / (1 + np.exp(-odds))


@cache
def _population(base: float, step: float) -> tuple[float, float]:
    """The rate of all tasks like these, and the difference."""
    first, second = _rates(np.random.RandomState(0), base, step, 1_000_000)
    return base, float(second.mean() - first.mean())


def _tried(
    chance: np.random.RandomState, rates: np.ndarray, repeats: int, lost: float
) -> TaskValues:
    scored = chance.binomial(repeats, 1 - lost, len(rates))
    passed = chance.binomial(scored, rates)
    return {
        str(task): [1.0] * int(hits) + [0.0] * int(of - hits)
        for task, (of, hits) in enumerate(zip(scored, passed, strict=True))
        if of
    }


def table(found: list[Cell]) -> str:
    """A line for each number of tasks and repeats; both base rates, with and without losses."""
    groups = list(product(BASES, LOST))
    names = [f"{base:g}" + (", 10 % lost" if lost else "") for base, lost in groups]
    parts = []
    for field in Cell.__struct_fields__[4:]:
        by_place = {(one.tasks, one.repeats, one.base, one.lost): one for one in found}
        lines = [["tasks", "repeats", *names], ["---"] * (2 + len(names))]
        for tasks, repeats in product(TASKS, REPEATS):
            line = [by_place[tasks, repeats, *group] for group in groups if by_place]
            lines.append([str(tasks), str(repeats), *(_told(one, field) for one in line)])
        head = f"**{TITLES[field]}**"
        parts.append(head + "\n\n" + "\n".join("| " + " | ".join(one) + " |" for one in lines))
    return "\n\n".join(parts)


TITLES = {
    "rate_here": "One rate, on exactly these tasks",
    "difference_here": "A difference, on exactly these tasks",
    "rate_alike": "One rate, on tasks like these",
    "difference_alike": "A difference, on tasks like these",
}


def _told(one: Cell, field: str) -> str:
    share: float = getattr(one, field)
    return f"{share:.1%}".replace("%", " %") + (
        " ¹" if field == "difference_here" and one.few and share > HIGH else ""
    )


def write(text: str) -> None:
    """Put the tables between their markers, with the day."""
    page = PAGE.read_text(encoding="utf-8")
    pattern = r"(<!-- coverage -->\n\n).*?(\n\n<!-- /coverage -->)"
    page, times = re.subn(pattern, lambda found: found[1] + text + found[2], page, flags=re.DOTALL)
    assert times == 1, "docs/measurements/statistics.md has no markers for its tables"
    today = f"Simulated on {datetime.now(UTC).date()}"
    PAGE.write_text(re.sub(r"Simulated on [\d-]+", today, page), encoding="utf-8")


def report(*, keep: bool) -> None:
    """Print the tables; fail where bounds on exactly these tasks do not hold what they promise."""
    found = list(cells())
    text = table(found)
    sys.stdout.write(text + "\n")
    if keep:
        write(text)
    if broken := [one for one in found if not one.holds]:
        sys.exit(f"outside {LOW:.0%} to {HIGH:.1%}: {broken}")


if __name__ == "__main__":
    report(keep="--write" in sys.argv)
