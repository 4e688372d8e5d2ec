"""What a run shows while it goes on: a bar, counts, cost and the time left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING

from closeloop.cli.console import open_console
from closeloop.cli.run_forecast import describe_duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from closeloop.records.experiment_plan import ExperimentForecast, ExperimentPlan
    from closeloop.records.experiment_plan import RunProgress as Told

OUTCOME_WORDS = {"pass": "passed", "fail": "failed"}


class RunProgressBar:
    """Counts what it is told and keeps the bar up to date."""

    def __init__(
        self, plan: ExperimentPlan, ahead: ExperimentForecast, jobs: int, bar: Progress | None
    ) -> None:
        self.total = ahead.attempts
        self.repeats = plan.experiment.repeats
        self.tasks = len(plan.tasks)
        self.jobs = jobs
        self.prepared = 0
        self.skipped: dict[str, str] = {}
        self.running: set[tuple[str, str | None, int | None]] = set()
        self.counts: Counter[str] = Counter()
        self.cost = 0.0
        self.held: str | None = None
        """Why attempts were not begun."""
        self.waiting = {variant.name: self.tasks * self.repeats for variant in plan.variants}
        typical_seconds = {
            v.name: ahead.typical[v.digest] for v in plan.variants if v.digest in ahead.typical
        }
        self.seconds = {name: [typical] for name, typical in typical_seconds.items()}
        self.bar = bar
        self.line: TaskID | None = None
        if bar is not None:
            self.line = bar.add_task("preparing", total=self.total, counts="", left="")

    def record_step(self, told: Told) -> None:
        """One step of the run."""
        slot = (told.task, told.variant, told.number)
        match told.stage:
            case "prepared":
                self.prepared += 1
            case "skipped":
                self.skipped[told.task] = told.why or ""
                self.total -= len(self.waiting) * self.repeats
                self.waiting = {name: n - self.repeats for name, n in self.waiting.items()}
            case "started":
                self.running.add(slot)
            case "elsewhere" | "held" | "settled":
                self._record_finished_slot(told)
                self.running.discard(slot)
        self.draw_bar()

    def _record_finished_slot(self, told: Told) -> None:
        """A slot that this run will not touch again."""
        self.waiting[told.variant or ""] -= 1
        row = told.row
        if told.stage == "settled" and row is not None:
            self.counts[OUTCOME_WORDS.get(row.outcome or "", "unscored")] += 1
            self.cost += row.cost or 0.0
            if (told.task, told.variant, told.number) in self.running and row.seconds is not None:
                self.seconds.setdefault(told.variant or "", []).append(row.seconds)
        else:
            self.counts[told.stage] += 1
            self.held = told.why or self.held

    def estimate_seconds_left(self) -> float | None:
        """Seconds until the end, by what attempts took before; None when that is not known."""
        remaining = {name: count for name, count in self.waiting.items() if count > 0}
        if any(name not in self.seconds for name in remaining):
            return None
        total = sum(count * fmean(self.seconds[name]) for name, count in remaining.items())
        return total / min(self.jobs, max(sum(remaining.values()), 1))

    def draw_bar(self) -> None:
        if self.bar is None or self.line is None:
            return
        preparing = self.prepared + len(self.skipped) < self.tasks
        parts = [f"{len(self.running)} running"] if self.running else []
        parts += [f"{count} {what}" for what, count in sorted(self.counts.items())]
        if self.cost:
            parts.append(f"${self.cost:.2f}")
        seconds_left = self.estimate_seconds_left()
        self.bar.update(
            self.line,
            description=f"preparing {self.prepared}/{self.tasks} tasks" if preparing else "running",
            completed=sum(self.counts.values()),
            total=self.total,
            counts=" · ".join(parts),
            left="" if seconds_left is None else f"about {describe_duration(seconds_left)} left",
        )


@contextmanager
def show_run_progress(
    plan: ExperimentPlan, ahead: ExperimentForecast, jobs: int, *, quiet: bool
) -> Iterator[RunProgressBar]:
    """A bar on the terminal; nothing where nobody watches."""
    output = open_console(stderr=True)
    if quiet or not output.is_terminal:
        yield RunProgressBar(plan, ahead, jobs, None)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=output,
        transient=True,
    ) as bar:
        yield RunProgressBar(plan, ahead, jobs, bar)
