"""`closeloop risk fit`: how well the repository's own past foretells which changes go wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.records.plural import count_with_noun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from closeloop.changes.risk.risk_model import RiskFit


def fit(*, json: bool = False) -> None:
    """Learn from this repository's past which changes had to be reverted or repaired.

    Parameters
    ----------
    json
        Print one JSON document instead of tables.
    """
    from closeloop.changes.risk.change_history import read_history
    from closeloop.changes.risk.risk_model import fit_risk_model as learn
    from closeloop.cli.check import cache_folder
    from closeloop.cli.config import load_project
    from closeloop.cli.console import open_console, print_json, print_parts, print_warning
    from closeloop.sandbox.workspaces import resolve_commit

    project = load_project(Path.cwd())
    head = resolve_commit(Path.cwd(), "HEAD")
    with open_console(stderr=True).status("reading the history"):
        history = read_history(Path.cwd(), head, cache_folder(project, os.environ))
        risk_fit = learn(history)
    if history.cut:
        print_warning(f"Not all of the history is read: {history.cut}.")
    if json:
        print_json(risk_fit)
    else:
        print_parts(*render_risk_fit(risk_fit))


def render_risk_fit(learned: RiskFit) -> Iterator[RenderableType]:
    """The calibration curve, the area under it, and what each level would have held."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.measure import format_rate_interval

    yield Text(f"{count_with_noun(learned.changes, 'past change')}, {learned.wrong:,} went wrong "
               f"({learned.reverted:,} reverted): {learned.note}.")  # fmt: skip
    if learned.auc is not None and learned.baseline is not None:
        yield Text(
            f"AUC {learned.auc:.3f} on {learned.tested:,} later changes, against "
            f"{learned.baseline:.3f} by lines added alone."
        )
    if learned.calibration:
        curve = Table(title="What was foretold, and what came", title_justify="left", box=None)
        curve.add_column("foretold", justify="right")
        curve.add_column("went wrong", justify="right")
        curve.add_column("")
        for calibration_bin in learned.calibration:
            bar = "█" * round(40 * calibration_bin.came.value)
            curve.add_row(
                f"{calibration_bin.foretold:.2f}", format_rate_interval(calibration_bin.came), bar
            )
        yield curve
    levels = Table(title="What each level would have held", title_justify="left", box=None)
    levels.add_column("level")
    levels.add_column("went wrong", justify="right")
    for level_result in learned.held:
        levels.add_row(level_result.level, format_rate_interval(level_result.wrong))
    yield levels
