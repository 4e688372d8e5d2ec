"""`closeloop trends`: how metrics went over time, and what became worse."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from closeloop.cli.console import make_visible
from closeloop.records.plural import count_with_noun

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.records.trend_report import (
        MetricRegression,
        MetricSeries,
        PeriodShift,
        TrendReport,
    )

BAR_LEVELS = "▁▂▃▄▅▆▇█"
MAX_REGRESSIONS = 20


def trends(
    *,
    by: str = "",
    metric: list[str] | None = None,
    weeks: int = 4,
    baseline: datetime | None = None,
    alert: str | None = None,
    json: bool = False,
) -> None:
    """Rolling windows, turns with the versions first seen near them, and what became worse.

    Parameters
    ----------
    by
        One or more of repo, user, agent, model, prompt, variant, tag and task, with commas.
    metric
        Only this one; may be given again.
    weeks
        How wide the rolling windows are.
    baseline
        The day on which the baseline ends; halfway when not given.
    alert
        A file to append new regressions to, or an address to send them to. Each is told once.
    json
        Print one JSON document instead of tables.
    """
    from closeloop.cli.console import print_json, print_parts
    from closeloop.cli.flag_checks import split_list_flag
    from closeloop.cli.metrics_store import open_metrics_store, print_measuring_progress
    from closeloop.metrics.attempt_table import load_attempt_table
    from closeloop.metrics.metric_trends import compute_trends
    from closeloop.records.errors import BadInput

    if weeks < 1:
        raise BadInput(f"A window of {weeks} weeks holds nothing: give 1 or more.")
    since = baseline if baseline is None or baseline.tzinfo else baseline.replace(tzinfo=UTC)
    with open_metrics_store() as (store, book):
        work = load_attempt_table(store, book, tell=print_measuring_progress)
        result = compute_trends(
            work, split_list_flag(by), metric or (), weeks=weeks, baseline=since
        )
    print_json(result) if json else print_parts(*render_trends(result))
    if alert is not None:
        from closeloop.cli.regression_alerts import send_regression_alerts

        send_regression_alerts(result, alert, datetime.now(UTC))


def render_trends(found: TrendReport) -> Iterator[RenderableType]:
    """What became worse first; then each course as a line of bars."""
    from rich.table import Table
    from rich.text import Text

    if not found.courses:
        yield Text("Nothing to follow yet: `closeloop run` and `closeloop import` bring attempts.")
        return
    for regression_found in found.regressions[:MAX_REGRESSIONS]:
        yield render_regression(regression_found)
    if not found.regressions:
        yield Text("Nothing became clearly worse.", style="bold green")
    yield Text()
    table = Table(box=None)
    for name in (
        "metric",
        f"{count_with_noun(found.weeks, 'week')}, rolling",
        "last week",
        "since the baseline",
    ):
        table.add_column(name, no_wrap=True)
    for course in found.courses[: 3 * MAX_REGRESSIONS]:
        name = " ".join((course.metric, *course.group.values()))
        table.add_row(
            Text(make_visible(name)),
            render_series_bars(course),
            format_shift(course.week),
            format_shift(course.since),
        )
    yield table
    for mark in found.marks[-MAX_REGRESSIONS:]:
        yield Text(f"{mark.at:%Y-%m-%d}  {make_visible(mark.what)} first seen", style="dim")
    for note in found.notes:
        yield Text(note, style="yellow")


def render_regression(one: MetricRegression) -> RenderableType:
    from rich.text import Text

    turn = one.turn
    name = make_visible(" ".join((one.metric, *one.group.values())))
    text = Text(f"worse since {turn.at:%Y-%m-%d}: {name} ", style="bold red")
    text.append(
        f"{turn.before.value:.3g} → {turn.after.value:.3g}, p {format_p_value(one.adjusted)}"
        " adjusted"
    )
    if turn.near:
        text.append(f"; first seen about then: {make_visible(', '.join(turn.near))}", "dim")
    return text


def format_p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def render_series_bars(course: MetricSeries) -> RenderableType:
    """A bar a week, from 0 to the highest; weeks with few items are faint."""
    from rich.text import Text

    recent_stretches = course.stretches[-26:]
    highest = max((one.estimate.value for one in recent_stretches), default=0.0)
    text = Text()
    for one in recent_stretches:
        share = max(0.0, one.estimate.value) / highest if highest > 0 else 0.0
        text.append(
            BAR_LEVELS[round(share * (len(BAR_LEVELS) - 1))], style="dim" if one.faint else "cyan"
        )
    last = recent_stretches[-1].estimate if recent_stretches else None
    return text.append(f" {last.value:.3g} of {last.n:,}" if last else "–")


def format_shift(held: PeriodShift | None) -> str:
    if held is None:
        return "–"
    value = held.after.value - held.before.value
    return f"{value:+.3g} ({held.low:+.2g} … {held.high:+.2g})"
