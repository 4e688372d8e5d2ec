"""`closeloop metrics`: what is known of all work, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.model.figure import Figure, Metric, Metrics

MOST_GROUPS = 60


def metrics(
    *,
    by: str = "",
    metric: list[str] | None = None,
    define: bool = False,
    json: bool = False,
) -> None:
    """Every metric, with its n, its interval and how much of the work it covers.

    Parameters
    ----------
    by
        With commas: repo, user, agent, model, prompt, variant, tag, task, week, risk or arm.
    metric
        Only this one; may be given again.
    define
        Print what each metric means, and no number.
    json
        Print one JSON document instead of tables.
    """
    from closeloop.cli.console import say_json, show
    from closeloop.cli.numbers import opened, tell_measuring
    from closeloop.cli.typed import split
    from closeloop.measuring.metrics import definitions, metrics_of
    from closeloop.measuring.work import work_of

    if define:
        chosen = definitions(metric or ())
        say_json(chosen) if json else show(*defined(chosen))
        return
    with opened() as (store, book):
        found = metrics_of(work_of(store, book, tell=tell_measuring), split(by), metric or ())
    say_json(found) if json else show(*told(found))


def defined(chosen: list[Metric]) -> Iterator[RenderableType]:
    """A line a metric."""
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name in ("metric", "definition"):
        table.add_column(name, no_wrap=name == "metric")
    for metric in chosen:
        table.add_row(metric.name, metric.says)
    yield table


def told(found: Metrics) -> Iterator[RenderableType]:
    """A table a family; what nobody recorded is said once, and is not zero."""
    from rich.text import Text

    if not found.attempts:
        yield Text("No attempts yet: `closeloop run` and `closeloop import` bring them.")
        return
    by_name = {metric.name: metric for metric in found.definitions}
    known = [figure for figure in found.figures if figure.value is not None]
    missing = dict.fromkeys(
        figure.metric for figure in found.figures if figure.value is None
    ).keys() - {figure.metric for figure in known}
    table = _by_group if found.by else _all
    for family, figures in groupby(known, key=lambda figure: by_name[figure.metric].family):
        yield Text()
        yield table(family, list(figures), by_name)
    yield Text()
    if missing:
        names = ", ".join(name for name in by_name if name in missing)
        yield Text(f"not known, as nothing of it is recorded: {names}", style="dim")
    for note in found.notes:
        yield Text(note, style="yellow")
    yield Text("closeloop metrics --define   # what each means", style="cyan")


def _all(family: str, figures: list[Figure], by_name: dict[str, Metric]) -> RenderableType:
    from rich.table import Table

    from closeloop.measuring.wording import bounds, number

    table = Table(box=None)
    table.add_column(family, no_wrap=True, min_width=30)
    for name in ("", "95 % interval", "tasks", "attempts", "coverage"):
        table.add_column(name, justify="right", no_wrap=True)
    for figure in figures:
        metric = by_name[figure.metric]
        table.add_row(
            figure.metric,
            number(figure.value, metric),
            bounds(figure, metric),
            f"{figure.n:,}",
            f"{figure.attempts:,}",
            "–" if figure.coverage is None else f"{figure.coverage:.0%}",
        )
    return table


def _by_group(family: str, figures: list[Figure], by_name: dict[str, Metric]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import visible
    from closeloop.measuring.wording import number
    from closeloop.model.figure import SHARES

    names = list(dict.fromkeys(figure.metric for figure in figures))
    groups: dict[tuple[str, ...], dict[str, Figure]] = {}
    for figure in figures:
        groups.setdefault(tuple(figure.group.values()), {})[figure.metric] = figure
    table = Table(title=family, title_justify="left", title_style="bold", box=None)
    for name in figures[0].group:
        table.add_column(name, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    shown = sorted(groups)
    for group in shown[-MOST_GROUPS:]:
        cells = []
        for name in names:
            held = groups[group].get(name)
            text = Text(number(held.value, by_name[name]) if held else "–", justify="right")
            if (
                held
                and held.low is not None
                and held.high is not None
                and by_name[name].kind in SHARES
            ):
                text.append(f" ({held.low:.2f}–{held.high:.2f})", style="dim")
            cells.append(text.append(f" /{held.n:,}" if held else "", style="dim"))
        table.add_row(*(Text(visible(part)) for part in group), *cells)
    if len(shown) > MOST_GROUPS:
        table.caption = f"… and {len(shown) - MOST_GROUPS} before them: --json has all"
    return table
