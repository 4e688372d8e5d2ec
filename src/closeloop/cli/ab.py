"""`closeloop ab`: let variants share the work in production by lot, and see which is better."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from closeloop.cli.console import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.model.trial import Trial, TrialReport
    from closeloop.store import Store

COLOURS = {"better": "green", "worse": "red", "hopeless": "yellow"}


def ab(  # noqa: PLR0913 - one parameter for each flag
    action: Literal["start", "assign", "status"],
    name: str,
    key: str | None = None,
    *,
    variants: str | None = None,
    metric: str = "task completion rate",
    horizon: int | None = None,
    json: bool = False,
) -> int:
    """Start a trial, ask which variant a piece of work falls to, or see how the trial stands.

    Parameters
    ----------
    action
        `start`, `assign` or `status`.
    name
        Of the trial.
    key
        What is assigned: a task's id, a branch or an attempt's id.
    variants
        Who shares the work, such as `a=0.5,b=0.5`; the others are held against the first.
    metric
        The rate that decides.
    horizon
        Look once, after so many outcomes; without it, look as often as you like.
    json
        Print one JSON document.
    """
    from closeloop.cli.console import say, say_json, show
    from closeloop.cli.numbers import opened, tell_measuring
    from closeloop.measuring.trials import assign, status

    with opened(make=action == "start") as (store, book):
        if action == "start":
            started = begin(store, name, variants, metric, horizon)
            say_json(started) if json else say(f"Trial {name!r} is on: {started.metric} decides.")
            return 0
        trial = known(store, name)
        if action == "assign":
            one = assign(store, trial, key or "", datetime.now(UTC))
            say_json(one) if json else say(one.variant)
            return 0
        report = status(store, book, trial, tell_measuring)
    say_json(report) if json else show(*told(report))
    return 1 if report.refusal else 0


def begin(store: Store, name: str, variants: str | None, metric: str, horizon: int | None) -> Trial:
    """Written once: a trial that is changed while it runs shows nothing."""
    from msgspec.structs import replace

    from closeloop.measuring.trials import demand_rate, shares_of
    from closeloop.model.errors import BadInput
    from closeloop.model.trial import Trial

    if variants is None or len(shares := shares_of(variants)) < 2:
        raise BadInput("A trial needs two variants or more: add --variants a=0.5,b=0.5.")
    if horizon is not None and horizon < 2:
        raise BadInput(f"A horizon of {horizon} shows nothing: give the number of outcomes.")
    demand_rate(metric)
    wanted = Trial(
        name=name, shares=shares, metric=metric, horizon=horizon, started=datetime.now(UTC)
    )
    kept = store.trials.start(wanted)
    if replace(kept, started=wanted.started) != wanted:
        raise BadInput(f"Trial {name!r} was started otherwise and stays so: choose another name.")
    return kept


def known(store: Store, name: str) -> Trial:
    from closeloop.model.errors import unknown

    found = store.trials.named(name)
    if found is None:
        raise unknown("trial", name, store.trials.names())
    return found


def told(report: TrialReport) -> Iterator[RenderableType]:
    """A row a variant, then what may be called."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.measuring.trials import LOOKED_AT

    names = dict.fromkeys((report.trial.metric, *LOOKED_AT))
    table = Table(box=None)
    table.add_column("")
    for title in ("share", "assigned", "outcomes", *names):
        table.add_column(title, justify="right")
    for arm in report.arms:
        cells = [arm.rates.get(name) for name in names]
        table.add_row(
            Text(visible(arm.variant)),
            f"{arm.share:.0%}",
            f"{arm.assigned:,}",
            f"{arm.outcomes:,}",
            *("not known" if cell is None else f"{cell:.3g}" for cell in cells),
        )
    yield table
    if report.ratio is not None:
        yield Text(f"shares: {report.ratio.method}, p {report.ratio.p:.3g}", style="dim")
    for one in report.standings:
        seen = one.difference
        bounds = f" {seen.value:+.2f} ({seen.low:+.2f} … {seen.high:+.2f})" if seen else ""
        text = Text(f"{visible(one.variant)}{bounds}: ")
        yield text.append(one.why, style=f"bold {COLOURS.get(one.call, 'default')}")
    if report.refusal:
        yield Text(visible(report.refusal), style="bold yellow")
