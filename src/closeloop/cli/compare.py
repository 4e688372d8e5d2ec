"""`closeloop compare`: which of two is better, how sure that is, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import count_with_noun, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from closeloop.changes.patch_comparison import ComparedFile
    from closeloop.metrics.attempt_pairs import AttemptPair
    from closeloop.records.estimate import CompareReport, TwoEstimates, VariantComparison


MAX_TASKS = 30
MAX_DOTS = 10
VERDICT_COLOURS = {"worse": "red", "better": "green"}


def compare(
    *names: str,
    score: list[str] | None = None,
    margin: float = 0.05,
    json: JsonFlag = False,
) -> int:
    """Hold anything against the first one named. Exits with 4 where nothing can be judged.

    On the tasks that both tried; where they share none, as groups, which is observational.

    Parameters
    ----------
    names
        Variants by name or digest; or `agent:X`, `model:X`, `prompt:ID`, `repo:X`, `user:X`,
        `experiment:ID`, or times, such as `2026-11-01..2026-11-08`; several joined by commas
        must all hold. Or two attempts, as `attempt:ID`.
    score
        What decides: any that `closeloop scores` lists; may be given again, for exploration.
        When not given, `resolved`; `would-merge` where no task has a check.
    margin
        Differences up to this are none: in a rate, else as a share of the scale or the mean.
    """
    from closeloop.cli.config import (
        load_project_scores,
        open_metrics_store,
        print_measuring_progress,
    )
    from closeloop.cli.console import print_json, print_parts, record_to_map, require_margin
    from closeloop.cli.sets import render_held_out
    from closeloop.metrics.attempt_pairs import compare_two_attempts
    from closeloop.metrics.held_out_runs import report_held_out
    from closeloop.metrics.variant_comparison import compare_by_name

    require_margin(margin)
    with open_metrics_store() as (store, book):
        catalogue = load_project_scores()
        attempts = [name.partition(":")[2] for name in names if name.startswith("attempt:")]
        if len(names) == len(attempts) == 2:
            pair = compare_two_attempts(store, book, catalogue, attempts)
            print_json(pair) if json else print_parts(*render_attempt_pair(pair))
            return 0
        report = compare_by_name(
            store,
            book,
            names,
            margin=margin,
            scores=score or (),
            catalogue=catalogue,
            tell=print_measuring_progress,
        )
        digests = {digest for side in report.sides for digest in side.variants}
        held_out = report_held_out(store, variants=digests)
    if json:
        print_json(record_to_map(report) | {"held_out": held_out})
    else:
        print_parts(*render_comparison(report), *(render_held_out(held_out) if held_out else ()))
    return 0 if report.refusal is None else 4


def render_comparison(report: CompareReport) -> Iterator[RenderableType]:
    """Who is compared; then for each pair the verdict, the tasks, the rest."""
    from rich.text import Text

    yield compared_sides_table(report)
    for pair in report.pairs:
        yield Text()
        yield from render_pair(pair)
    for line in report.left_out[:MAX_TASKS]:
        yield Text(f"not compared: {make_visible(line)}", style="yellow")
    if (more := len(report.left_out) - MAX_TASKS) > 0:
        yield Text(f"… and {more} more that are not compared: --json has all", style="yellow")
    for note in report.notes:
        yield Text(make_visible(note), style="yellow")
    if report.refusal:
        yield Text(make_visible(report.refusal), style="bold yellow")


def compared_sides_table(report: CompareReport) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("", no_wrap=True)
    for name in ("tasks", "attempts", "scored"):
        table.add_column(name, justify="right")
    for side in report.sides:
        scored = "–" if side.coverage is None else format_percent(side.coverage)
        table.add_row(
            Text(make_visible(side.name)), f"{side.tasks:,}", f"{side.attempts:,}", scored
        )
    return table


def render_pair(pair: VariantComparison) -> Iterator[RenderableType]:
    """The verdict first."""
    from rich.text import Text

    comparison = pair.comparison
    words = (comparison.here_word, comparison.alike_word)
    if pair.observational:
        words = (comparison.alike_word, "not enough data")
    for line, word in zip(pair.words, words, strict=False):
        yield Text(make_visible(line), style=f"bold {VERDICT_COLOURS.get(word, 'default')}")
    for line in pair.words[2:]:
        yield Text(make_visible(line))
    if pair.tasks:
        yield Text()
        yield compared_tasks_table(pair)
    if table := pair.table:
        yield Text(
            f"both right {table.both}, only {make_visible(pair.first)} {table.only_first}, only "
            f"{make_visible(pair.second)} {table.only_second}, both wrong {table.neither}; "
            "right is more than half of the repeats",
            style="dim",
        )
    yield Text()
    yield cost_ratio_table(pair)
    if pair.secondary:
        yield Text()
        yield secondary_rates_table(pair)


def compared_tasks_table(pair: VariantComparison) -> RenderableType:
    """A row a task, a dot a repeat; those that differ first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("task", no_wrap=True)
    for name in (pair.first, pair.second):
        table.add_column(make_visible(name), no_wrap=True)
    for task in pair.tasks[:MAX_TASKS]:
        table.add_row(
            Text(make_visible(task.task)), repeat_dots(task.first), repeat_dots(task.second)
        )
    if len(pair.tasks) > MAX_TASKS:
        table.caption = f"… and {len(pair.tasks) - MAX_TASKS} that differ less: --json has all"
    return table


def repeat_dots(repeats: Sequence[float]) -> Text:
    """`●●○ 2 of 3`; the count alone where dots would be too many, else the values."""
    from rich.text import Text

    text = Text()
    if not {*repeats} <= {0, 1}:
        shown = " ".join(f"{value:.3g}" for value in repeats[:MAX_DOTS])
        return text.append(f"{shown} …" if len(repeats) > MAX_DOTS else shown)
    for value in repeats if len(repeats) <= MAX_DOTS else ():
        text.append("●" if value else "○", style="green" if value else "red")
    return text.append(f"{' ' if text else ''}{sum(repeats)} of {len(repeats)}", style="dim")


def cost_ratio_table(pair: VariantComparison) -> RenderableType:
    """What the second takes for each unit that the first does."""
    from rich.table import Table

    table = Table(box=None)
    table.add_column(f"{make_visible(pair.second)} takes", no_wrap=True, min_width=26)
    bounds: tuple[str, ...] = ("on different work",)
    if not pair.observational:
        bounds = ("on these tasks", "on tasks like these")
    for name in ("times as much", *bounds):
        table.add_column(name, justify="right", no_wrap=True)
    for name, estimates in pair.ratios.items():
        value, here, alike = format_ratio_cells(estimates)
        table.add_row(name, value, *((alike,) if pair.observational else (here, alike)))
    return table


def format_ratio_cells(held: TwoEstimates) -> tuple[str, str, str]:
    estimate = held.here or held.alike
    bounds = [f"{one.low:.2f}–{one.high:.2f}" if one else "–" for one in (held.here, held.alike)]
    return (f"{estimate.value:.2f} ×" if estimate else "not known"), bounds[0], bounds[1]


def secondary_rates_table(pair: VariantComparison) -> RenderableType:
    """Every other rate, those that differ most surely first."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.variant_pairs import format_secondary

    title = "Exploratory: one of many rates may differ by chance, so p is adjusted for their number"
    table = Table(title=title, title_justify="left", title_style="dim", box=None)
    table.add_column("", no_wrap=True, min_width=26)
    for name in (make_visible(pair.first), make_visible(pair.second), "difference", "p adjusted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for rate in sorted(pair.secondary, key=lambda one: (one.adjusted is None, one.adjusted or 0)):
        table.add_row(
            rate.metric,
            *format_secondary(rate),
            "–" if rate.adjusted is None else f"{rate.adjusted:.3f}",
            Text(rate.word, style=VERDICT_COLOURS.get(rate.word, "dim")),
        )
    return table


def render_attempt_pair(pair: AttemptPair) -> Iterator[RenderableType]:
    """What came of both, what they took, the scores that differ, and the diff of their diffs."""
    from rich.table import Table
    from rich.text import Text

    yield Text(make_visible(pair.sentence), style="bold")
    yield Text("One attempt each shows where they differ, never which agent is better.")
    ratios = [f"{name} {ratio:.2f} ×" for name, ratio in pair.ratios.items() if ratio is not None]
    if ratios:
        yield Text(f"B takes of what A takes: {', '.join(ratios)}")
    table = Table(box=None)
    table.add_column("score", no_wrap=True)
    for name in ("A", "B"):
        table.add_column(name, justify="right", no_wrap=True)
    differing = [one for one in pair.scores if one.differs]
    for one in differing:
        shown = ("–" if value is None else f"{value:.3g}" for value in (one.first, one.second))
        table.add_row(Text(make_visible(one.definition.name)), *shown)
    if differing:
        yield Text()
        yield table
    yield Text()
    yield from render_compared_files(pair.files)


def render_compared_files(files: Sequence[ComparedFile]) -> Iterator[RenderableType]:
    """The lines of two changes: `A` and `B` before what only one has."""
    from rich.text import Text

    if not files:
        yield Text("Neither has a change on record.", style="dim")
    for file in files:
        counts = f"{file.both} alike, {file.first} only A, {file.second} only B"
        yield Text(f"{make_visible(file.path)} ({file.state}: {counts})", style="bold")
        for line in file.lines if file.state != "same" else ():
            mark = {"both": " ", "first": "A", "second": "B"}[line.by]
            style = {"both": "dim", "first": "cyan", "second": "yellow"}[line.by]
            yield Text(f"{mark} {line.sign}{make_visible(line.text)}", style=style)
        if file.left_out:
            yield Text(f"… and {count_with_noun(file.left_out, 'more line')}", style="dim")
