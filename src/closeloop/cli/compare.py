"""`closeloop compare`: which variant is better, by how much, how sure, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from closeloop.cli.console import make_visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from closeloop.records.comparison_report import CompareReport, VariantComparison
    from closeloop.records.estimate import TwoEstimates

MAX_TASKS = 30
MAX_DOTS = 10
VERDICT_COLOURS = {"worse": "red", "better": "green"}


def compare(
    *names: str,
    margin: float = 0.05,
    json: bool = False,
) -> int:
    """Hold variants against the first one on the same tasks. Exits with 4 where none can be judged.

    Parameters
    ----------
    names
        Variants by name or digest; or `agent:X`, `model:X`, `prompt:ID`.
        Or times, such as `2026-11-01..2026-11-08`.
    margin
        Differences in pass rate up to this are none.
    json
        Print one JSON document instead of tables.
    """
    from closeloop.cli.console import print_json, print_parts
    from closeloop.cli.flag_checks import require_margin
    from closeloop.cli.metrics_store import open_metrics_store, print_measuring_progress
    from closeloop.metrics.variant_comparison import compare_by_name

    require_margin(margin)
    with open_metrics_store() as (store, book):
        report = compare_by_name(store, book, names, margin=margin, tell=print_measuring_progress)
    print_json(report) if json else print_parts(*render_comparison(report))
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
        scored = "–" if side.coverage is None else f"{side.coverage:.0%}"
        table.add_row(
            Text(make_visible(side.name)), f"{side.tasks:,}", f"{side.attempts:,}", scored
        )
    return table


def render_pair(pair: VariantComparison) -> Iterator[RenderableType]:
    """The verdict first."""
    from rich.text import Text

    comparison = pair.comparison
    for line, word in zip(pair.words, (comparison.here_word, comparison.alike_word), strict=False):
        yield Text(make_visible(line), style=f"bold {VERDICT_COLOURS.get(word, 'default')}")
    for line in pair.words[2:]:
        yield Text(make_visible(line))
    yield Text()
    yield compared_tasks_table(pair)
    table = pair.table
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


def repeat_dots(repeats: Sequence[int]) -> Text:
    """`●●○` for two passes of three; a count where dots would be too many."""
    from rich.text import Text

    text = Text()
    if len(repeats) > MAX_DOTS:
        return text.append(f"{sum(repeats)} of {len(repeats)}")
    for value in repeats:
        text.append("●" if value else "○", style="green" if value else "red")
    return text


def cost_ratio_table(pair: VariantComparison) -> RenderableType:
    """What the second takes for each unit that the first does."""
    from rich.table import Table

    table = Table(box=None)
    table.add_column(f"{make_visible(pair.second)} takes", no_wrap=True, min_width=26)
    for name in ("times as much", "on these tasks", "on tasks like these"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, estimates in pair.ratios.items():
        value, here, alike = format_ratio_cells(estimates)
        table.add_row(name, value, here, alike)
    return table


def format_ratio_cells(held: TwoEstimates) -> tuple[str, str, str]:
    estimate = held.here or held.alike
    bounds = [f"{one.low:.2f}–{one.high:.2f}" if one else "–" for one in (held.here, held.alike)]
    return (f"{estimate.value:.2f} ×" if estimate else "not known"), bounds[0], bounds[1]


def secondary_rates_table(pair: VariantComparison) -> RenderableType:
    """Every other rate, those that differ most surely first."""
    from rich.table import Table
    from rich.text import Text

    title = "Exploratory: one of many rates may differ by chance, so p is adjusted for their number"
    table = Table(title=title, title_justify="left", title_style="dim", box=None)
    table.add_column("", no_wrap=True, min_width=26)
    for name in (make_visible(pair.first), make_visible(pair.second), "difference", "p adjusted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for rate in sorted(pair.secondary, key=lambda one: (one.adjusted is None, one.adjusted or 0)):
        bounds = "" if rate.low is None else f" ({rate.low:+.2f} … {rate.high:+.2f})"
        table.add_row(
            rate.metric,
            f"{rate.first:.2f}",
            f"{rate.second:.2f}",
            f"{rate.second - rate.first:+.2f}{bounds}",
            "–" if rate.adjusted is None else f"{rate.adjusted:.3f}",
            Text(rate.word, style=VERDICT_COLOURS.get(rate.word, "dim")),
        )
    return table
