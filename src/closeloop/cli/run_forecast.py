"""What is said before a run begins, and the question whether it may cost what it costs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from closeloop.cli.console import make_visible, print_warning
from closeloop.records.errors import BadInput

if TYPE_CHECKING:
    from closeloop.records.experiment_plan import ExperimentForecast


def print_forecast(forecast: ExperimentForecast, several: bool) -> None:
    """One line: how many attempts, what they can show, how long and how much."""
    parts = [f"{forecast.missing} of {forecast.attempts} attempts to make"]
    if several:
        parts.append(
            "too few tasks and repeats to show any difference between variants"
            if forecast.effect is None
            else f"differences between variants show from about {forecast.effect:.2f} in pass rate"
        )
    duration_text = (
        "not known" if forecast.seconds is None else f"about {describe_duration(forecast.seconds)}"
    )
    parts.append(f"time {duration_text}")
    if forecast.cost is None or forecast.cost > 0:
        parts.append(f"cost {describe_cost(forecast)}")
    print_warning(" · ".join(parts))


def confirm_cost(forecast: ExperimentForecast, *, yes: bool) -> None:
    """Ask before money is spent; BadInput where nobody can answer, or answers no."""
    if not forecast.paid or forecast.missing == 0 or yes:
        return
    models = ", ".join(make_visible(model) for model in forecast.paid)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(f"This asks {models}, which costs money: add --yes to go on.")
    print(  # noqa: T201
        f"This asks {models}. Go on? [y/N] ", end="", file=sys.stderr, flush=True
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BadInput("Nothing was run.")


def describe_cost(forecast: ExperimentForecast) -> str:
    return "not known" if forecast.cost is None else f"about ${forecast.cost:.2f}"


def describe_duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
