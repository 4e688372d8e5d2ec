"""`closeloop compare`: which variant is better, by how much, how sure, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from closeloop.cli.console import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from closeloop.model.estimate import TwoEstimates
    from closeloop.model.versus import CompareReport, Versus

MOST_TASKS = 30
MOST_DOTS = 10
COLOURS = {"worse": "red", "better": "green"}


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
    from closeloop.cli.console import say_json, show
    from closeloop.cli.numbers import opened, tell_measuring
    from closeloop.cli.typed import demand_margin
    from closeloop.measuring.compare import compare_named

    demand_margin(margin)
    with opened() as (store, book):
        report = compare_named(store, book, names, margin=margin, tell=tell_measuring)
    say_json(report) if json else show(*told(report))
    return 0 if report.refusal is None else 4


def told(report: CompareReport) -> Iterator[RenderableType]:
    """Who is compared; then for each pair the verdict, the tasks, the rest."""
    from rich.text import Text

    yield side_table(report)
    for pair in report.pairs:
        yield Text()
        yield from pair_told(pair)
    for line in report.left_out[:MOST_TASKS]:
        yield Text(f"not compared: {visible(line)}", style="yellow")
    if (more := len(report.left_out) - MOST_TASKS) > 0:
        yield Text(f"… and {more} more that are not compared: --json has all", style="yellow")
    for note in report.notes:
        yield Text(visible(note), style="yellow")
    if report.refusal:
        yield Text(visible(report.refusal), style="bold yellow")


def side_table(report: CompareReport) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("", no_wrap=True)
    for name in ("tasks", "attempts", "scored"):
        table.add_column(name, justify="right")
    for side in report.sides:
        scored = "–" if side.coverage is None else f"{side.coverage:.0%}"
        table.add_row(Text(visible(side.name)), f"{side.tasks:,}", f"{side.attempts:,}", scored)
    return table


def pair_told(pair: Versus) -> Iterator[RenderableType]:
    """The verdict first."""
    from rich.text import Text

    held = pair.comparison
    for line, word in zip(pair.words, (held.here_word, held.alike_word), strict=False):
        yield Text(visible(line), style=f"bold {COLOURS.get(word, 'default')}")
    for line in pair.words[2:]:
        yield Text(visible(line))
    yield Text()
    yield task_table(pair)
    table = pair.table
    yield Text(
        f"both right {table.both}, only {visible(pair.first)} {table.only_first}, only "
        f"{visible(pair.second)} {table.only_second}, both wrong {table.neither}; "
        "right is more than half of the repeats",
        style="dim",
    )
    yield Text()
    yield ratio_table(pair)
    if pair.secondary:
        yield Text()
        yield secondary_table(pair)


def task_table(pair: Versus) -> RenderableType:
    """A row a task, a dot a repeat; those that differ first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("task", no_wrap=True)
    for name in (pair.first, pair.second):
        table.add_column(visible(name), no_wrap=True)
    for one in pair.tasks[:MOST_TASKS]:
        table.add_row(Text(visible(one.task)), dots(one.first), dots(one.second))
    if len(pair.tasks) > MOST_TASKS:
        table.caption = f"… and {len(pair.tasks) - MOST_TASKS} that differ less: --json has all"
    return table


def dots(repeats: Sequence[int]) -> Text:
    """`●●○` for two passes of three; a count where dots would be too many."""
    from rich.text import Text

    text = Text()
    if len(repeats) > MOST_DOTS:
        return text.append(f"{sum(repeats)} of {len(repeats)}")
    for value in repeats:
        text.append("●" if value else "○", style="green" if value else "red")
    return text


def ratio_table(pair: Versus) -> RenderableType:
    """What the second takes for each unit that the first does."""
    from rich.table import Table

    table = Table(box=None)
    table.add_column(f"{visible(pair.second)} takes", no_wrap=True, min_width=26)
    for name in ("times as much", "on these tasks", "on tasks like these"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, held in pair.ratios.items():
        value, here, alike = ratio_cells(held)
        table.add_row(name, value, here, alike)
    return table


def ratio_cells(held: TwoEstimates) -> tuple[str, str, str]:
    known = held.here or held.alike
    bounds = [f"{one.low:.2f}–{one.high:.2f}" if one else "–" for one in (held.here, held.alike)]
    return (f"{known.value:.2f} ×" if known else "not known"), bounds[0], bounds[1]


def secondary_table(pair: Versus) -> RenderableType:
    """Every other rate, those that differ most surely first."""
    from rich.table import Table
    from rich.text import Text

    title = "Exploratory: one of many rates may differ by chance, so p is adjusted for their number"
    table = Table(title=title, title_justify="left", title_style="dim", box=None)
    table.add_column("", no_wrap=True, min_width=26)
    for name in (visible(pair.first), visible(pair.second), "difference", "p adjusted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in sorted(pair.secondary, key=lambda one: (one.adjusted is None, one.adjusted or 0)):
        bounds = "" if one.low is None else f" ({one.low:+.2f} … {one.high:+.2f})"
        table.add_row(
            one.metric,
            f"{one.first:.2f}",
            f"{one.second:.2f}",
            f"{one.second - one.first:+.2f}{bounds}",
            "–" if one.adjusted is None else f"{one.adjusted:.3f}",
            Text(one.word, style=COLOURS.get(one.word, "dim")),
        )
    return table
