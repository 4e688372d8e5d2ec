"""`closeloop metrics`: what is known of all work, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.records.metric_values import Metric, MetricsReport, MetricValue

MAX_GROUPS = 60


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
    from closeloop.cli.console import print_json, print_parts
    from closeloop.cli.flag_checks import split_list_flag
    from closeloop.cli.metrics_store import open_metrics_store, print_measuring_progress
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.metric_figures import compute_metrics, select_metrics

    if define:
        chosen_metrics = select_metrics(metric or ())
        print_json(chosen_metrics) if json else print_parts(*definitions_table(chosen_metrics))
        return
    with open_metrics_store() as (store, book):
        result = compute_metrics(
            load_attempt_table(store, book, tell=print_measuring_progress),
            split_list_flag(by),
            metric or (),
        )
    print_json(result) if json else print_parts(*render_metrics(result))


def definitions_table(chosen: list[Metric]) -> Iterator[RenderableType]:
    """A line a metric."""
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name in ("metric", "definition"):
        table.add_column(name, no_wrap=name == "metric")
    for metric in chosen:
        table.add_row(metric.name, metric.says)
    yield table


def render_metrics(found: MetricsReport) -> Iterator[RenderableType]:
    """A table a family; what nobody recorded is said once, and is not zero."""
    from rich.text import Text

    if not found.attempts:
        yield Text("No attempts yet: `closeloop run` and `closeloop import` bring them.")
        return
    by_name = {metric.name: metric for metric in found.definitions}
    known_figures = [figure for figure in found.figures if figure.value is not None]
    missing_names = dict.fromkeys(
        figure.metric for figure in found.figures if figure.value is None
    ).keys() - {figure.metric for figure in known_figures}
    table = _grouped_family_table if found.by else _family_table
    for family, figures in groupby(known_figures, key=lambda figure: by_name[figure.metric].family):
        yield Text()
        yield table(family, list(figures), by_name)
    yield Text()
    if missing_names:
        names = ", ".join(name for name in by_name if name in missing_names)
        yield Text(f"not known, as nothing of it is recorded: {names}", style="dim")
    for note in found.notes:
        yield Text(note, style="yellow")
    yield Text("closeloop metrics --define   # what each means", style="cyan")


def _family_table(
    family: str, figures: list[MetricValue], by_name: dict[str, Metric]
) -> RenderableType:
    from rich.table import Table

    from closeloop.metrics.figure_wording import format_bounds, format_metric_value

    table = Table(box=None)
    table.add_column(family, no_wrap=True, min_width=30)
    for name in ("", "95 % interval", "tasks", "attempts", "coverage"):
        table.add_column(name, justify="right", no_wrap=True)
    for figure in figures:
        metric = by_name[figure.metric]
        table.add_row(
            figure.metric,
            format_metric_value(figure.value, metric),
            format_bounds(figure, metric),
            f"{figure.n:,}",
            f"{figure.attempts:,}",
            "–" if figure.coverage is None else f"{figure.coverage:.0%}",
        )
    return table


def _grouped_family_table(
    family: str, figures: list[MetricValue], by_name: dict[str, Metric]
) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible
    from closeloop.metrics.figure_wording import format_metric_value
    from closeloop.records.metric_values import SHARE_KINDS

    names = list(dict.fromkeys(figure.metric for figure in figures))
    groups: dict[tuple[str, ...], dict[str, MetricValue]] = {}
    for figure in figures:
        groups.setdefault(tuple(figure.group.values()), {})[figure.metric] = figure
    table = Table(title=family, title_justify="left", title_style="bold", box=None)
    for name in figures[0].group:
        table.add_column(name, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    sorted_groups = sorted(groups)
    for group in sorted_groups[-MAX_GROUPS:]:
        cells = []
        for name in names:
            group_figure = groups[group].get(name)
            text = Text(
                format_metric_value(group_figure.value, by_name[name]) if group_figure else "–",
                justify="right",
            )
            if (
                group_figure
                and group_figure.low is not None
                and group_figure.high is not None
                and by_name[name].kind in SHARE_KINDS
            ):
                text.append(f" ({group_figure.low:.2f}–{group_figure.high:.2f})", style="dim")
            cells.append(text.append(f" /{group_figure.n:,}" if group_figure else "", style="dim"))
        table.add_row(*(Text(make_visible(part)) for part in group), *cells)
    if len(sorted_groups) > MAX_GROUPS:
        table.caption = f"… and {len(sorted_groups) - MAX_GROUPS} before them: --json has all"
    return table
