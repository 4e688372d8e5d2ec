"""What a run shows while it goes on: a bar, counts, cost and the time left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from closeloop.cli.console import console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from closeloop.model.plan import Plan
    from closeloop.model.plan import Progress as Told


class Live:
    """Counts what it is told and keeps the bar up to date."""

    def __init__(self, plan: Plan, bar: Progress | None) -> None:
        self.total = len(plan.tasks) * len(plan.variants) * plan.experiment.repeats
        self.each = len(plan.variants) * plan.experiment.repeats
        self.counts: Counter[str] = Counter()
        self.cost = 0.0
        self.prepared = 0
        self.tasks = len(plan.tasks)
        self.skipped: dict[str, str] = {}
        self.bar = bar
        self.line: TaskID | None = None
        if bar is not None:
            self.line = bar.add_task("preparing", total=self.total, counts="")

    def tell(self, told: Told) -> None:
        """One step of the run."""
        match told.stage:
            case "prepared":
                self.prepared += 1
            case "skipped":
                self.skipped[told.task] = told.why or ""
                self.total -= self.each
            case "elsewhere":
                self.counts["elsewhere"] += 1
            case "settled" if told.row is not None:
                self.counts[told.row.outcome or "unscored"] += 1
                self.cost += told.row.cost or 0.0
        self.draw()

    def draw(self) -> None:
        if self.bar is None or self.line is None:
            return
        done = sum(self.counts.values())
        waiting = self.prepared + len(self.skipped) < self.tasks
        parts = [f"{count} {what}" for what, count in sorted(self.counts.items())]
        if self.cost:
            parts.append(f"${self.cost:.2f}")
        self.bar.update(
            self.line,
            description=f"preparing {self.prepared}/{self.tasks} tasks" if waiting else "running",
            completed=done,
            total=self.total,
            counts=" · ".join(parts),
        )


@contextmanager
def live(plan: Plan, *, quiet: bool) -> Iterator[Live]:
    """A bar on the terminal; nothing where nobody watches."""
    output = console(stderr=True)
    if quiet or not output.is_terminal:
        yield Live(plan, None)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=output,
        transient=True,
    ) as bar:
        yield Live(plan, bar)
