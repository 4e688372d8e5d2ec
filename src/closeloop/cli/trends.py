"""`closeloop trends`: how metrics went over time, and what became worse."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from closeloop.cli.console import visible
from closeloop.model.plural import plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.model.trend import Course, Regression, Shift, Trends

BARS = "▁▂▃▄▅▆▇█"
MOST = 20


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
    from closeloop.cli.console import say_json, show
    from closeloop.cli.numbers import opened, tell_measuring
    from closeloop.cli.typed import split
    from closeloop.measuring.trends import trends_of
    from closeloop.measuring.work import work_of
    from closeloop.model.errors import BadInput

    if weeks < 1:
        raise BadInput(f"A window of {weeks} weeks holds nothing: give 1 or more.")
    since = baseline if baseline is None or baseline.tzinfo else baseline.replace(tzinfo=UTC)
    with opened() as (store, book):
        work = work_of(store, book, tell=tell_measuring)
        found = trends_of(work, split(by), metric or (), weeks=weeks, baseline=since)
    say_json(found) if json else show(*told(found))
    if alert is not None:
        from closeloop.cli.alerts import send

        send(found, alert, datetime.now(UTC))


def told(found: Trends) -> Iterator[RenderableType]:
    """What became worse first; then each course as a line of bars."""
    from rich.table import Table
    from rich.text import Text

    if not found.courses:
        yield Text("Nothing to follow yet: `closeloop run` and `closeloop import` bring attempts.")
        return
    for one in found.regressions[:MOST]:
        yield regression(one)
    if not found.regressions:
        yield Text("Nothing became clearly worse.", style="bold green")
    yield Text()
    table = Table(box=None)
    for name in (
        "metric",
        f"{plural(found.weeks, 'week')}, rolling",
        "last week",
        "since the baseline",
    ):
        table.add_column(name, no_wrap=True)
    for course in found.courses[: 3 * MOST]:
        name = " ".join((course.metric, *course.group.values()))
        table.add_row(Text(visible(name)), bars(course), shift(course.week), shift(course.since))
    yield table
    for mark in found.marks[-MOST:]:
        yield Text(f"{mark.at:%Y-%m-%d}  {visible(mark.what)} first seen", style="dim")
    for note in found.notes:
        yield Text(note, style="yellow")


def regression(one: Regression) -> RenderableType:
    from rich.text import Text

    turn = one.turn
    name = visible(" ".join((one.metric, *one.group.values())))
    text = Text(f"worse since {turn.at:%Y-%m-%d}: {name} ", style="bold red")
    text.append(f"{turn.before.value:.3g} → {turn.after.value:.3g}, p {p(one.adjusted)} adjusted")
    if turn.near:
        text.append(f"; first seen about then: {visible(', '.join(turn.near))}", "dim")
    return text


def p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def bars(course: Course) -> RenderableType:
    """A bar a week, from 0 to the highest; weeks with few items are faint."""
    from rich.text import Text

    shown = course.stretches[-26:]
    most = max((one.estimate.value for one in shown), default=0.0)
    text = Text()
    for one in shown:
        share = max(0.0, one.estimate.value) / most if most > 0 else 0.0
        text.append(BARS[round(share * (len(BARS) - 1))], style="dim" if one.faint else "cyan")
    last = shown[-1].estimate if shown else None
    return text.append(f" {last.value:.3g} of {last.n:,}" if last else "–")


def shift(held: Shift | None) -> str:
    if held is None:
        return "–"
    value = held.after.value - held.before.value
    return f"{value:+.3g} ({held.low:+.2g} … {held.high:+.2g})"
