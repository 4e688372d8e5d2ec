"""`closeloop run`: tasks × variants × repeats, graded, resumable; and `closeloop demo`."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from closeloop.cli.console import (
    OUTCOME_MARKS,
    JsonFlag,
    WaitingLog,
    describe_waiting,
    failure_reason,
    make_visible,
    open_console,
    print_warning,
    show_progress,
)
from closeloop.records.attempt import AWAITING_REVIEW
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.settings import ExperimentSettings, Settings
from closeloop.tasks.task_sets import split_results
from closeloop.text.wording import count_with_noun, truncate_at_word

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from closeloop.attempts.run_resources import ProgressCallback
    from closeloop.records.attempt import AttemptRow
    from closeloop.records.experiment_plan import (
        ExperimentForecast,
        ExperimentPlan,
        ExperimentResults,
        HeldOutRun,
        RunMode,
        RunProgress,
    )
    from closeloop.sandbox.workspaces import WorkspacePool
    from closeloop.store import Store


# Output of a run: forecast, progress and results.


def print_forecast(forecast: ExperimentForecast, is_comparison: bool) -> None:
    """Print the number of attempts, duration and cost, and what they can show, as `compare` says
    it."""
    from closeloop.metrics.variant_pairs import describe_detectable, describe_missing_tasks

    parts = [f"{forecast.missing:,} of {count_with_noun(forecast.attempts, 'attempt')} to run"]
    if forecast.seconds is not None and forecast.seconds >= 1:
        parts.append(f"time about {describe_duration(forecast.seconds)}")
    if forecast.cost is None or forecast.cost > 0:
        price = "unknown" if forecast.cost is None else f"about ${forecast.cost:.2f}"
        parts.append(f"cost {price}")
    print_warning(" · ".join(parts))
    if is_comparison:
        size = (forecast.tasks, forecast.repeats)
        detectable = describe_detectable(*size, forecast.effect_here, forecast.effect)
        print_warning(f"{detectable} {describe_missing_tasks(forecast.tasks)}".rstrip())


def print_nothing_to_run(plan: ExperimentPlan) -> None:
    total = sum(1 for _ in plan.list_slots())
    print_warning(
        f"nothing to run: {count_with_noun(total, 'attempt exists', 'attempts exist')} already; "
        f"--again all runs {'it' if total == 1 else 'them'} once more"
    )


def confirm_cost(forecast: ExperimentForecast, *, yes: bool) -> None:
    """Ask before spending money; raise BadInput if nobody can answer, or the answer is no."""
    if not forecast.paid or forecast.missing == 0 or yes:
        return
    models = ", ".join(make_visible(model) for model in forecast.paid)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(f"This calls {models}, which costs money: add --yes to confirm.")
    print(  # noqa: T201
        f"This calls {models}, which costs money. Continue? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BadInput("Nothing was run.")


def describe_duration(seconds: float) -> str:
    """Format a duration: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


# Progress of a run: a bar, counts, cost and the remaining time.

OUTCOME_WORDS = {"pass": "passed", "fail": "failed"}
LOG_SECONDS = 10.0
"""Seconds between lines in a log."""
LONG_SECONDS = 60.0
"""An attempt that runs longer is named."""
MIN_BAR_WIDTH = 100
"""A narrower terminal has no bar, only counts."""


class RunProgressBar:
    """Counts steps of the run and updates the progress bar."""

    def __init__(
        self,
        plan: ExperimentPlan,
        bar: Progress | None,
        clock: Callable[[], float] = time.monotonic,
        print_stage: Callable[[str], None] | None = None,
    ) -> None:
        self.slots = Counter((slot.task.id, slot.variant.name) for slot in plan.list_slots())
        """Number of attempts by task and variant."""
        self.total = self.slots.total()
        self.tasks = len(plan.tasks)
        self.clock = clock
        self.started_at: float | None = None
        """When the first attempt of this run started."""
        self.finished = 0
        """Number of attempts that this run finished."""
        self.expected_end: float | None = None
        self.prepared = 0
        self.skipped: dict[str, str] = {}
        self.running: dict[tuple[str, str | None, int | None], float] = {}
        """When each running attempt started, the oldest first."""
        self.counts: Counter[str] = Counter()
        self.cost = 0.0
        self.block_reason: str | None = None
        """Why attempts were not started."""
        self.waiting = {
            variant.name: sum(self.slots[task.id, variant.name] for task in plan.tasks)
            for variant in plan.variants
        }
        self.others = 0
        """Suites of other processes that the tests of this run wait for."""
        self.bar = bar
        self.line: TaskID | None = None
        self.print_stage = print_stage
        """Prints a line in a log, where there is no bar."""
        self.waiting_log = None if print_stage is None else WaitingLog(print_stage, clock)
        self.next_log = clock() + LOG_SECONDS
        if bar is not None:
            self.line = bar.add_task(
                "preparing",
                total=self.total,
                counts=self.describe_counts,
                left=self.describe_time_left,
            )

    def record_step(self, step: RunProgress) -> None:
        """Record one step of the run."""
        slot = (step.task, step.variant, step.number)
        match step.stage:
            case "prepared":
                self.prepared += 1
            case "skipped":
                self.skipped[step.task] = step.why or ""
                for name in self.waiting:
                    self.total -= self.slots[step.task, name]
                    self.waiting[name] -= self.slots[step.task, name]
            case "started":
                self.started_at = self.clock() if self.started_at is None else self.started_at
                self.running[slot] = self.clock()
            case "elsewhere" | "held" | "settled":
                self._record_finished_slot(step)
                self.running.pop(slot, None)
        self.draw_bar()

    def _record_finished_slot(self, step: RunProgress) -> None:
        """Record a slot that this run has finished."""
        self.waiting[step.variant or ""] -= 1
        row = step.row
        if step.stage == "settled" and row is not None:
            outcome = OUTCOME_WORDS.get(row.outcome or "", "unscored")
            self.counts["for review" if row.is_for_review else outcome] += 1
            self.cost += row.cost or 0.0
            if (step.task, step.variant, step.number) in self.running:
                self.finished += 1
                self.expected_end = self._estimate_end()
        else:
            self.counts[step.stage] += 1
            self.block_reason = step.why or self.block_reason

    def _estimate_end(self) -> float | None:
        """Estimate when the last attempt ends; None while too few are finished."""
        from closeloop.attempts.run_resources import estimate_seconds_left

        if self.started_at is None:
            return None
        now, remaining = self.clock(), sum(self.waiting.values())
        seconds_left = estimate_seconds_left(now - self.started_at, self.finished, remaining)
        return None if seconds_left is None else now + seconds_left

    def describe_time_left(self) -> str:
        """Return `about 40 s left`; empty if unknown, or if less than a second is left."""
        seconds_left = 0.0 if self.expected_end is None else self.expected_end - self.clock()
        return "" if seconds_left < 1 else f"about {describe_duration(seconds_left)} left"

    def note_waiting(self, suite_count: int) -> None:
        """Show that tests wait for so many suites of other processes, or no longer."""
        self.others = suite_count
        if self.waiting_log is not None:
            self.waiting_log.note(suite_count)
        self.draw_bar()

    def _describe_oldest(self) -> list[str]:
        """Return the attempt that has run longest, if it has run for long."""
        # A copy: the bar is drawn in a thread of its own.
        for (task, variant, _), started_at in list(self.running.items())[:1]:
            seconds = self.clock() - started_at
            name = " by ".join(filter(None, (task, variant)))
            is_long = seconds >= LONG_SECONDS
            return [f"longest: {name}, {describe_duration(seconds)}"] if is_long else []
        return []

    def describe_counts(self) -> str:
        """Return `2 running · 1 passed`."""
        parts = [f"{len(self.running)} running"] if self.running else []
        parts += [f"{count} {name}" for name, count in sorted(self.counts.items())]
        if self.cost:
            parts.append(f"${self.cost:.2f}")
        parts += self._describe_oldest()
        if self.others and self.bar is not None:  # a log has a line of its own
            parts.append(describe_waiting(self.others, ""))
        return " · ".join(parts)

    def draw_bar(self) -> None:
        preparing = self.prepared + len(self.skipped) < self.tasks
        stage = f"preparing {self.prepared}/{self.tasks} tasks" if preparing else "running"
        finished = sum(self.counts.values())
        if self.print_stage is not None and self.clock() >= self.next_log:
            self.next_log = self.clock() + LOG_SECONDS
            stage_line = f"{stage}, {finished} of {self.total} attempts finished"
            self.print_stage(" · ".join(filter(None, (stage_line, self.describe_counts()))))
        if self.bar is not None and self.line is not None:
            self.bar.update(self.line, description=stage, completed=finished, total=self.total)


@contextmanager
def show_run_progress(plan: ExperimentPlan, *, quiet: bool) -> Iterator[RunProgressBar]:
    """Show a bar on a terminal, and lines in a log."""
    from closeloop.sandbox.admission import report_waiting

    output = open_console(stderr=True)
    if quiet:
        yield RunProgressBar(plan, None)
        return
    if not output.is_terminal:
        with show_progress("preparing") as print_stage:
            progress = RunProgressBar(plan, None, print_stage=print_stage)
            with report_waiting(progress.note_waiting):
                yield progress
        return
    with make_progress(output) as bar:
        progress = RunProgressBar(plan, bar)
        with report_waiting(progress.note_waiting):
            yield progress


def make_progress(output: Console) -> Progress:
    """Return a progress line of which only the counts are truncated."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column

    class FieldColumn(ProgressColumn):
        """Text that is computed whenever it is drawn."""

        def __init__(self, name: str, column: Column | None = None) -> None:
            super().__init__(column)
            self.name = name

        def render(self, task: Task) -> Text:
            # rich truncates its neighbour to make room for an empty column.
            return Text(make_visible(task.fields[self.name]() or " "))

    return Progress(
        TextColumn("{task.description}"),
        *([BarColumn(20)] if output.width >= MIN_BAR_WIDTH else []),
        MofNCompleteColumn(),
        FieldColumn("counts", Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        TimeElapsedColumn(),
        FieldColumn("left"),
        console=output,
        transient=True,
        expand=True,
    )


# Result tables of a run: outcomes by variant, and where to look next.

MAX_POINTERS = 6
MAX_REASON_CHARS = 110
TEST_PATH = re.compile(r"[\w./-]+(?:::\w+)*::(?=\w)")
"""File and class of a test; removed in tables, where its name suffices."""


def run_summary_tables(
    results: ExperimentResults, unsealing: HeldOutRun | None = None
) -> list[RenderableType]:
    """Build tables of outcomes by task and totals by variant, and list what to look at.

    Held-out tasks come after those of dev, under a heading with the ledger's entry.
    """
    dev, held_out = split_results(results)
    tables: list[RenderableType] = []
    for part in (dev, held_out):
        if part is held_out and part.tasks and unsealing is not None:
            tables += [
                Text("\nHeld-out tasks", style="bold"),
                Text(
                    make_visible(
                        f"Unsealed on {unsealing.at:%Y-%m-%d} by {unsealing.who}: "
                        f"{unsealing.reason}"
                    )
                ),
            ]
        if part.tasks:
            tables += [Text(), run_outcomes_table(part), Text(), run_variants_table(part)]
    sets = (
        [Text("closeloop task sets   # compare dev and held-out", "cyan")] if held_out.tasks else []
    )
    return [*tables, Text(), *attempts_to_look_at(dev), *sets, *review_pointers(results)]


MIN_TASK_CHARS = 24
"""Width of a task's name on a narrow terminal; a longer one takes several lines."""


def run_outcomes_table(results: ExperimentResults) -> Table:
    """Build a table with a row per task, a column per variant and a mark per attempt."""
    table = Table(title="Outcomes by task", title_justify="left", title_style="bold", box=None)
    table.add_column("task", min_width=MIN_TASK_CHARS)  # so that the variants stay beside it
    for variant in results.variants:
        table.add_column(make_visible(variant.name), overflow="fold")
    for task in (task for task in results.tasks if task.id not in results.skipped):
        cells = [
            render_outcome_cell(
                [row for row in results.attempts if _is_attempt_of(row, task.digest, v.digest)],
                results.would_merge,
            )
            if v.can_attempt(task)
            else Text("no reference change", style="dim")
            for v in results.variants
        ]
        table.add_row(Text(make_visible(task.id)), *cells)
    for name, reason in results.skipped.items():
        table.add_row(
            Text(make_visible(name)), Text(f"not run: {make_visible(reason)}", style="yellow")
        )
    return table


def render_outcome_cell(rows: Sequence[AttemptRow], would_merge: Mapping[str, float]) -> Text:
    """Render `✓✓✗ 1 of 2 tests still fails`: a mark for each repeat, and the first reason."""
    cell, reasons = Text(), []
    for row in rows:
        outcome = row.outcome or "unscored"
        if row.is_for_review and row.id in would_merge:
            outcome = "pass" if would_merge[row.id] > 0.5 else "fail"
            reasons.append("by review")
        elif outcome != "pass":
            reasons.append(failure_reason(row))
        cell.append(*OUTCOME_MARKS[outcome])
    if reason := next(filter(None, sorted(reasons, key=AWAITING_REVIEW.__eq__)), ""):
        short_reason = TEST_PATH.sub("", reason)
        cell.append(" " + truncate_at_word(short_reason, MAX_REASON_CHARS), style="dim")
    return cell if rows else Text("not finished", style="dim")


ASKED_ROW = "asked about unclear requests"


def run_variants_table(results: ExperimentResults) -> Table:
    """Build a table of each variant's totals. Counts, not rates: few tasks prove little."""
    from closeloop.metrics.metric_definitions import count_passes, describe_passes

    table = Table(title="Totals by variant", title_justify="left", title_style="bold", box=None)
    table.add_column("")
    for variant in results.variants:
        table.add_column(make_visible(variant.name), justify="right")
    by_variant = [
        [row for row in results.attempts if row.variant == variant.digest]
        for variant in results.variants
    ]
    count_rule = functools.partial(_make_rule_counter, results)
    ambiguous_tasks = {task.digest for task in results.tasks if task.ambiguous}
    for name, measure in (
        ("passed / scored", format_pass_count),
        ("passes", lambda rows: describe_passes(count_passes(rows)) or "–"),
        ("not scored", lambda rows: _format_count(rows, lambda row: row.is_unscored)),
        (ASKED_ROW, lambda rows: format_asked_count(rows, ambiguous_tasks)),
        ("spiralled", count_rule("spiral")),
        ("incomplete brief to a sub-agent", count_rule("dropped-brief")),
        ("made a false claim", count_rule("false-claim")),
        ("claimed success without a check", count_rule("unverified-claim")),
        (
            "changed files outside the scope",
            lambda rows: _format_count(rows, lambda row: row.out_of_scope),
        ),
        ("broke a passing test", format_broken_count),
        ("median turns", lambda rows: _format_median([row.turns for row in rows])),
        ("input tokens", lambda rows: _format_sum([row.input_tokens for row in rows])),
        ("output tokens", lambda rows: _format_sum([row.output_tokens for row in rows])),
        ("cost", format_total_cost),
        ("median seconds", lambda rows: _format_median([row.seconds for row in rows])),
    ):
        if ambiguous_tasks or name != ASKED_ROW:
            table.add_row(name, *(measure(rows) for rows in by_variant))
    if any(row.is_for_review for row in results.attempts):
        cells = [format_merge_count(rows, results.would_merge) for rows in by_variant]
        table.add_row("would merge / reviewed", *cells)
    return table


def attempts_to_look_at(results: ExperimentResults) -> Iterable[RenderableType]:
    """List failed attempts to look at, one for each task and variant."""
    names = {variant.digest: variant.name for variant in results.variants}
    listed_slots: set[tuple[str | None, str | None]] = set()
    failed_rows = [row for row in results.attempts if row.outcome == "fail" or row.is_unscored]
    for row in sorted(failed_rows, key=lambda row: -interest_of_attempt(row, results)):
        if (row.task, row.variant) in listed_slots or len(listed_slots) == MAX_POINTERS:
            continue
        listed_slots.add((row.task, row.variant))
        subject = f"{names.get(row.variant or '', '?')} on {row.task}"
        yield Text(f"closeloop show {row.id}   # {make_visible(subject)}", style="cyan")
    if hidden_count := len({(row.task, row.variant) for row in failed_rows}) - len(listed_slots):
        yield Text(f"… and {hidden_count} more: closeloop list attempts", style="cyan")
    if not failed_rows and results.attempts:
        yield Text(f"closeloop show {results.attempts[0].id}", style="cyan")


def review_pointers(results: ExperimentResults) -> Iterator[RenderableType]:
    """Say what awaits review and how to review it; once all is reviewed, how to compare."""
    rows = [
        row
        for row in results.attempts
        if row.is_for_review and row.replay_of is None and not row.is_control
    ]
    waiting = [row for row in rows if row.id not in results.would_merge]
    if waiting:
        await_ = count_with_noun(len(waiting), "attempt awaits", "attempts await")
        yield Text(f"{await_} blind, side-by-side review:", style="bold")
        yield Text("closeloop review   # in this terminal; or `closeloop serve`, then g r", "cyan")
        yield Text("closeloop judge --awaiting-review   # a judge scores them too", "cyan")
    elif rows and len(results.variants) > 1:
        names = " ".join(shlex.quote(variant.name) for variant in results.variants)
        yield Text(f"closeloop compare {make_visible(names)}   # by would-merge", style="cyan")


def interest_of_attempt(row: AttemptRow, results: ExperimentResults) -> int:
    """Return a rough weight of what can be learned from it."""
    measurement = results.measurements.get(row.id)
    errors = (
        [finding for finding in measurement.findings if finding.severity == "error"]
        if measurement
        else []
    )
    return (row.out_of_scope or 0) + (row.broken or 0) + 2 * len(errors)


def _make_rule_counter(
    results: ExperimentResults, rule: str
) -> Callable[[Sequence[AttemptRow]], str]:
    """Return a function that counts attempts with a finding of that rule.

    It returns a dash where no attempt was measured: without a trace nothing is known.
    """

    def count_with_finding(rows: Sequence[AttemptRow]) -> str:
        measured = [row for row in rows if row.id in results.measurements]
        found = sum(
            any(
                finding.rule == rule and finding.silenced is None
                for finding in results.measurements[row.id].findings
            )
            for row in measured
        )
        return str(found) if measured else "–"

    return count_with_finding


def format_pass_count(rows: Sequence[AttemptRow]) -> str:
    scored = [row for row in rows if row.outcome in ("pass", "fail")]
    return f"{sum(row.outcome == 'pass' for row in scored)} of {len(scored)}"


def format_broken_count(rows: Sequence[AttemptRow]) -> str:
    """Format the number of attempts that broke tests; a dash if no tests ran after any of them."""
    tested = [row for row in rows if row.outcome in ("pass", "fail") and row.broken is not None]
    return str(sum(bool(row.broken) for row in tested)) if tested else "–"


def format_merge_count(rows: Sequence[AttemptRow], would_merge: Mapping[str, float]) -> str:
    reviewed = [would_merge[row.id] for row in rows if row.id in would_merge]
    return f"{sum(share > 0.5 for share in reviewed)} of {len(reviewed)}"


def format_asked_count(rows: Sequence[AttemptRow], unclear: set[str]) -> str:
    known_rows = [row for row in rows if row.task_digest in unclear and row.asked is not None]
    return (
        f"{sum(bool(row.asked) for row in known_rows)} of {len(known_rows)}" if known_rows else "–"
    )


def format_total_cost(rows: Sequence[AttemptRow]) -> str:
    known_costs = [row.cost for row in rows if row.cost is not None]
    missing = (
        f" ({len(rows) - len(known_costs)} unknown)"
        if known_costs and len(known_costs) < len(rows)
        else ""
    )
    return f"${sum(known_costs):.2f}{missing}" if known_costs else "–"


def _format_count(rows: Sequence[AttemptRow], holds: Callable[[AttemptRow], object]) -> str:
    return str(sum(bool(holds(row)) for row in rows))


def _format_sum(values: Sequence[int | None]) -> str:
    known_values = [value for value in values if value is not None]
    missing = (
        f" ({len(values) - len(known_values)} unknown)" if len(known_values) < len(values) else ""
    )
    return f"{sum(known_values):,}{missing}" if known_values else "–"


def _format_median(values: Sequence[float | None]) -> str:
    known_values = [value for value in values if value is not None]
    return f"{median(known_values):.3g}" if known_values else "–"


def _is_attempt_of(row: AttemptRow, task: str, variant: str) -> bool:
    return row.task_digest == task and row.variant == variant


class RunOptions(Record):
    """The options of a run, from flags and configuration."""

    settings: Settings
    root: Path
    wanted: ExperimentSettings
    name: str | None
    """Name of the experiment in the configuration."""
    variants: tuple[str, ...]
    mode: RunMode
    held_out: bool
    reason: str | None
    yes: bool
    json: bool


AgainKind = Literal["all", "unscored", "grades"]


def run(  # noqa: PLR0913 - one parameter for each flag
    *tasks: str,
    experiment: str | None = None,
    variant: list[str] | None = None,
    agent: list[str] | None = None,
    model: list[str] | None = None,
    prompt: list[str] | None = None,
    repeats: int | None = None,
    again: AgainKind | None = None,
    yes: bool = False,
    json: JsonFlag = False,
) -> int:
    """Run agents on tasks and grade their changes.

    Finished attempts are saved: stop at any time, and run the same command again to continue.

    Parameters
    ----------
    tasks
        Ids or files of tasks; all dev tasks of the project by default.
    experiment
        An experiment of closeloop.toml; flags override its settings.
    variant
        A variant of closeloop.toml; repeatable. All variants by default.
    agent
        Run this agent instead of the variants of closeloop.toml; repeatable.
    model
        Run the agents with this model; repeatable.
        A name of closeloop.toml, openai/, anthropic/ or gemini/NAME, scripted:FILE or recorded:ID.
    prompt
        A file with a system prompt, for every variant; repeatable.
    repeats
        How many attempts each variant makes at each task; 1 by default.
    again
        Run existing attempts again: all of them, or only the unscored ones; `grades` only grades
        them again.
    yes
        Do not ask for confirmation before spending money.
    """
    return run_selected_tasks(
        tasks,
        VariantFlags(variant=variant, agent=agent, model=model, prompt=prompt),
        experiment=experiment,
        repeats=repeats,
        again=again,
        yes=yes,
        json=json,
    )


def unseal(  # noqa: PLR0913 - one parameter for each flag
    reason: str,
    *tasks: str,
    experiment: str | None = None,
    variant: list[str] | None = None,
    agent: list[str] | None = None,
    model: list[str] | None = None,
    prompt: list[str] | None = None,
    repeats: int | None = None,
    again: AgainKind | None = None,
    yes: bool = False,
    json: JsonFlag = False,
) -> int:
    """Run agents on the held-out tasks, and record who did so and why. The tasks stay sealed.

    Parameters
    ----------
    reason
        Why the held-out tasks are run; it is recorded.
    tasks
        Ids or files of held-out tasks; all of them by default.
    experiment
        An experiment of closeloop.toml; flags override its settings.
    variant
        A variant of closeloop.toml; repeatable. All variants by default.
    agent
        Run this agent instead of the variants of closeloop.toml; repeatable.
    model
        Run the agents with this model; repeatable.
    prompt
        A file with a system prompt, for every variant; repeatable.
    repeats
        How many attempts each variant makes at each task; 1 by default.
    again
        Run existing attempts again: all of them, or only the unscored ones; `grades` only grades
        them again.
    yes
        Do not ask for confirmation before spending money.
    """
    return run_selected_tasks(
        tasks,
        VariantFlags(variant=variant, agent=agent, model=model, prompt=prompt),
        experiment=experiment,
        repeats=repeats,
        again=again,
        yes=yes,
        json=json,
        held_out=True,
        reason=reason,
    )


class VariantFlags(Record):
    """The flags that choose variants."""

    variant: list[str] | None
    agent: list[str] | None
    model: list[str] | None
    prompt: list[str] | None


def run_selected_tasks(  # noqa: PLR0913 - one parameter for each flag
    tasks: tuple[str, ...],
    flags: VariantFlags,
    *,
    experiment: str | None,
    repeats: int | None,
    again: AgainKind | None,
    yes: bool,
    json: bool,
    held_out: bool = False,
    reason: str | None = None,
) -> int:
    """Run the chosen variants on the named tasks, and print the results."""
    from closeloop.cli.config import load_project
    from closeloop.records.errors import BadInput

    project = load_project(Path.cwd())
    experiment_settings = build_experiment_settings(project.settings, experiment, tasks, repeats)
    if flags.variant and (flags.agent or flags.model):
        raise BadInput("Give either --variant, or --agent and --model.")
    settings = apply_run_flags(project.settings, agents=flags.agent, models=flags.model)
    chosen_variants = (
        flags.variant
        or ([] if flags.agent or flags.model else experiment_settings.variants)
        or settings.variants
    )
    settings, names = apply_prompts(settings, list(chosen_variants), flags.prompt)
    if not names:
        raise BadInput(
            "There is no variant to run: choose a model with --model openai/NAME, or "
            "add a [variants.NAME] section to closeloop.toml. Without a key, "
            "--agent noop --agent reference runs the controls."
        )
    options = RunOptions(
        settings=settings,
        root=project.root,
        wanted=experiment_settings,
        name=experiment,
        variants=tuple(names),
        mode=again or "fill",
        held_out=held_out,
        reason=reason,
        yes=yes,
        json=json,
    )
    return run_and_print_results(options)


def run_and_print_results(options: RunOptions) -> int:
    """Run an experiment, print its results, and return the exit code."""
    import anyio

    from closeloop.cli.console import print_json, print_parts, print_warning

    results, progress, unsealing = anyio.run(run_planned_attempts, options)
    if options.json:
        print_json(results)
    else:
        print_parts(*run_summary_tables(results, unsealing))
    if (elsewhere := progress.counts["elsewhere"]) > 0:
        attempts_are = "attempt is" if elsewhere == 1 else "attempts are"
        print_warning(
            f"{elsewhere} {attempts_are} running in another process:"
            " run the same command again to see the results."
        )
    if progress.block_reason is not None:
        attempts_were = "attempt was" if progress.counts["held"] == 1 else "attempts were"
        print_warning(
            f"{progress.counts['held']} {attempts_were} not started: {progress.block_reason}."
        )
    if results.skipped:
        return 2
    if progress.block_reason is not None or (elsewhere and len(results.attempts) < progress.total):
        return 1
    return 4 if any(row.is_unscored for row in results.attempts) else 0


async def run_planned_attempts(
    options: RunOptions,
) -> tuple[ExperimentResults, RunProgressBar, HeldOutRun | None]:
    """Plan, print the forecast and run; with held-out tasks, also the record of the unsealing."""
    from closeloop import flow
    from closeloop.cli.task import record_unsealing
    from closeloop.tasks.task_files import select_tasks
    from closeloop.tasks.task_sets import hide_results, visible_tasks

    selection = options.wanted
    tasks = visible_tasks(
        select_tasks(options.settings, options.root, selection.tasks),
        named=bool(selection.tasks),
        held_out=options.held_out,
        reason=options.reason,
    )
    progress_bars: list[RunProgressBar] = []
    unsealings: list[HeldOutRun | None] = []

    @contextmanager
    def start_run(
        plan: ExperimentPlan, forecast: ExperimentForecast, store: Store
    ) -> Iterator[ProgressCallback]:
        is_complete = not forecast.missing and options.mode != "grades"
        if is_complete and not options.json:
            print_nothing_to_run(plan)
        elif forecast.missing and not options.json:
            print_forecast(forecast, is_comparison=len(plan.variants) > 1)
        confirm_cost(forecast, yes=options.yes)
        unsealings.append(record_unsealing(plan, store, options.root, options.reason))
        with show_run_progress(plan, quiet=options.json or is_complete) as progress:
            progress_bars.append(progress)
            yield progress.record_step

    request = flow.ExperimentRequest(
        settings=options.settings,
        root=options.root,
        environ=os.environ,
        tasks=tuple(tasks),
        variants=options.variants,
        wanted=selection,
        name=options.name,
        mode=options.mode,
    )
    results = await flow.run_experiment(request, start_run, warn_of_sandbox_gaps)
    return hide_results(results), progress_bars[0], unsealings[0]


def warn_of_sandbox_gaps(workspaces: WorkspacePool) -> None:
    """Warn of limits that the sandbox of this machine does not enforce."""
    from closeloop.attempts.run_resources import sandbox_description
    from closeloop.cli.console import print_warning

    if workspaces.sandbox_limits.note:
        print_warning(f"sandbox {sandbox_description(workspaces)}")


def build_experiment_settings(
    settings: Settings, name: str | None, tasks: tuple[str, ...], repeats: int | None
) -> ExperimentSettings:
    """Return the experiment of that name, or one of all variants, with overrides of flags and
    `[run]`."""
    from msgspec.structs import replace

    from closeloop.cli.console import require_positive_flags
    from closeloop.records.errors import unknown_name_error

    if name is not None and name not in settings.experiments:
        raise unknown_name_error("experiment", name, settings.experiments)
    experiment = ExperimentSettings() if name is None else settings.experiments[name]
    defaults = settings.run
    experiment = replace(
        experiment,
        tasks=tasks or experiment.tasks,
        repeats=experiment.repeats if repeats is None else repeats,
        seed=defaults.seed if experiment.seed is None else experiment.seed,
        jobs=defaults.jobs if experiment.jobs is None else experiment.jobs,
        feedback=experiment.feedback or defaults.feedback,
        budget=defaults.budget if experiment.budget is None else experiment.budget,
    )
    require_positive_flags(repeats=experiment.repeats)
    return experiment


def apply_run_flags(
    settings: Settings,
    *,
    agents: Sequence[str] | None = None,
    models: Sequence[str | None] | None = None,
) -> Settings:
    """Return the settings with the variants that the flags name."""
    from msgspec.structs import replace

    from closeloop.records.settings import VariantSettings
    from closeloop.records.task import CONTROL_AGENTS

    if agents or models:
        new_variants = {
            f"{agent}:{model}" if model else agent: VariantSettings(agent=agent, model=model)
            for agent in agents or ["builtin"]
            for model in ([None] if agent in CONTROL_AGENTS else models or [None])
        }
        settings = replace(settings, variants=new_variants)
    return settings


def apply_prompts(
    settings: Settings, names: Sequence[str], prompts: Sequence[str] | None
) -> tuple[Settings, list[str]]:
    """Return the chosen variants, each combined with every given prompt."""
    from msgspec.structs import replace

    from closeloop.records.errors import unknown_name_error

    if not prompts:
        return settings, list(names)
    prompt_variants = {}
    for name in names:
        if name not in settings.variants:
            raise unknown_name_error("variant", name, settings.variants)
        for prompt in prompts:
            # Paths typed in a shell are relative to the current folder.
            path = str(Path.cwd() / Path(prompt).expanduser())
            prompt_variants[f"{name} {Path(prompt).name}"] = replace(
                settings.variants[name], prompt=path
            )
    return replace(settings, variants=settings.variants | prompt_variants), list(prompt_variants)


# The sample project: build and run.

DEMO_FOLDER = Path("closeloop-demo")
DEMO_INTRODUCTION = """
Nine tasks on a small invoicing project and two agents, each attempt in its own sandbox.
Commands, edits and tests are real; only the two models' replies are scripted.
"""


def demo(folder: Path = DEMO_FOLDER, /) -> int:
    """Build the sample project in a folder, run two scripted agents on it, and report on them.

    No API key is needed. If the results already exist, they are shown again.

    Parameters
    ----------
    folder
        The folder to create.
    """
    from closeloop.cli.console import print_line
    from closeloop.demo import build_demo

    require_pytest()
    folder = build_demo(find_demo_folder(folder))
    # The demo's tests run with the Python that has pytest.
    programs = str(Path(sys.executable).parent)
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    os.chdir(folder)
    print_line(DEMO_INTRODUCTION)
    if code := run_closeloop("run"):
        return code
    print_line("\nFindings in how they worked:")
    if code := run_closeloop("measure"):
        return code
    print_line(
        f"\nNext, in {folder}:\n"
        "  closeloop serve                      # the dashboard at http://127.0.0.1:4318\n"
        "  closeloop compare careful looping    # which variant is better, with intervals\n"
        "  closeloop run --model anthropic/NAME # a real model, with ANTHROPIC_API_KEY set"
    )
    if sys.stdin.isatty() and sys.stdout.isatty():
        print_line("\nStarting the dashboard; press Ctrl-C to stop it.")
        return run_closeloop("serve")
    return 0


def find_demo_folder(folder: Path) -> Path:
    """Return the folder of the demo: the one around the current folder, if no other is named."""
    from closeloop.demo import MARK

    current_folder = Path.cwd()
    demo_folders = (
        parent for parent in (current_folder, *current_folder.parents) if (parent / MARK).exists()
    )
    demo_folder = next(demo_folders, None) if folder == DEMO_FOLDER else None
    if demo_folder is not None:
        print_warning(f"{demo_folder} is the demo already: its results are shown again.")
    return demo_folder or folder.absolute()


def run_closeloop(*arguments: str) -> int:
    """Run a command in a separate process, as a user would type it.

    Ctrl-C reaches both processes: the command decides how to end, and reports it.
    """
    import subprocess

    with subprocess.Popen([sys.executable, "-P", "-m", "closeloop", *arguments]) as process:
        while True:
            with suppress(KeyboardInterrupt):
                return process.wait()


def require_pytest() -> None:
    """Raise BadInput if pytest is missing, which the sample project's tests need."""
    from importlib.util import find_spec

    if find_spec("pytest") is None:
        raise BadInput("The demo's tests need pytest: pip install 'closeloop[demo]'.")
