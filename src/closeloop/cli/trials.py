"""`closeloop ab`: assign work in production to variants at random, and see which is better."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.cli.console import make_visible
from closeloop.text.wording import format_percent, format_points_estimate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.metrics.score_definitions import ScoreCatalogue
    from closeloop.records.experiment_plan import Trial, TrialReport
    from closeloop.store import Store

CALL_COLOURS = {"better": "green", "worse": "red", "hopeless": "yellow"}


def ab(  # noqa: PLR0913 - one parameter for each flag
    action: Literal["start", "assign", "status"],
    name: str,
    key: str | None = None,
    *,
    variants: str | None = None,
    score: str = "task completion rate",
    horizon: int | None = None,
    json: bool = False,
) -> int:
    """Start a trial, ask which variant a piece of work falls to, or see how the trial stands.

    Parameters
    ----------
    action
        `start`, `assign` or `status`.
    name
        Of the trial; `memory` is that of the control arm of memory, by `memory.control`.
    key
        What is assigned: a task's id, a branch or an attempt's id.
    variants
        Who shares the work, such as `a=0.5,b=0.5`; the others are held against the first.
    score
        The rate that decides: any that `closeloop scores` lists.
    horizon
        Look once, after so many outcomes; without it, look as often as you like.
    json
        Print one JSON document.
    """
    from closeloop.cli.config import (
        load_project_scores,
        open_metrics_store,
        print_measuring_progress,
    )
    from closeloop.cli.console import print_json, print_line, print_parts
    from closeloop.metrics.variant_trials import assign_variant, report_trial

    catalogue = load_project_scores()
    with open_metrics_store(make=action == "start") as (store, book):
        if action == "start":
            started = start_trial(store, name, variants, score, horizon, catalogue)
            print_json(started) if json else print_line(
                f"Trial {name!r} is on: {started.metric} decides."
            )
            return 0
        trial = find_trial(store, name, score)
        if action == "assign":
            assignment = assign_variant(store, trial, key or "", datetime.now(UTC))
            print_json(assignment) if json else print_line(assignment.variant)
            return 0
        report = report_trial(store, book, trial, print_measuring_progress, catalogue)
    print_json(report) if json else print_parts(*render_trial_report(report))
    return 1 if report.refusal else 0


def start_trial(
    store: Store,
    name: str,
    variants: str | None,
    score: str,
    horizon: int | None,
    catalogue: ScoreCatalogue,
) -> Trial:
    """Written once: a trial that is changed while it runs shows nothing."""
    from msgspec.structs import replace

    from closeloop.metrics.variant_trials import MEMORY_TRIAL, parse_shares, require_rate
    from closeloop.records.errors import BadInput
    from closeloop.records.experiment_plan import Trial

    if variants is None or len(shares := parse_shares(variants)) < 2:
        raise BadInput("A trial needs two variants or more: add --variants a=0.5,b=0.5.")
    if name == MEMORY_TRIAL:
        raise BadInput(f"{name!r} is the trial of the control arm of memory: choose another name.")
    if horizon is not None and horizon < 2:
        raise BadInput(f"A horizon of {horizon} shows nothing: give the number of outcomes.")
    require_rate(score, catalogue)
    new_trial = Trial(
        name=name, shares=shares, metric=score, horizon=horizon, started=datetime.now(UTC)
    )
    saved_trial = store.trials.start_trial(new_trial)
    if replace(saved_trial, started=new_trial.started) != new_trial:
        raise BadInput(f"Trial {name!r} was started otherwise and stays so: choose another name.")
    return saved_trial


def find_trial(store: Store, name: str, score: str) -> Trial:
    """A trial that runs; of memory's, the score that decides is chosen when one looks."""
    from closeloop.cli.config import load_project
    from closeloop.metrics.variant_trials import list_trials
    from closeloop.records.errors import unknown_name_error

    memory = load_project(Path.cwd()).settings.memory
    trials = {one.name: one for one in list_trials(store, memory, score)}
    if name not in trials:
        raise unknown_name_error("trial", name, sorted(trials))
    return trials[name]


def render_trial_report(report: TrialReport) -> Iterator[RenderableType]:
    """A row a variant, then what may be called."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.variant_trials import REPORTED_METRICS, describe_needed

    names = dict.fromkeys((report.trial.metric, *REPORTED_METRICS))
    table = Table(box=None)
    table.add_column("")
    for title in ("share", "assigned", "outcomes", *names):
        table.add_column(title, justify="right")
    for arm in report.arms:
        cells = [arm.rates.get(name) for name in names]
        table.add_row(
            Text(make_visible(arm.variant)),
            format_percent(arm.share),
            f"{arm.assigned:,}",
            f"{arm.outcomes:,}",
            *("not known" if cell is None else f"{cell:.3g}" for cell in cells),
        )
    yield table
    if report.ratio is not None:
        yield Text(f"shares: {report.ratio.method}, p {report.ratio.p:.3g}", style="dim")
    for standing in report.standings:
        difference = standing.difference
        bounds = (
            f" {format_points_estimate(difference.value, difference.low, difference.high)}"
            if difference
            else ""
        )
        text = Text(f"{make_visible(standing.variant)}{bounds}: {standing.comparison.verdict}; ")
        yield text.append(standing.why, style=f"bold {CALL_COLOURS.get(standing.call, 'default')}")
        if needed := describe_needed(standing.comparison):
            yield Text(f"  {needed}", style="dim")
    if report.refusal:
        yield Text(make_visible(report.refusal), style="bold yellow")
