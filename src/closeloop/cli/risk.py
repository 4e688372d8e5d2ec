"""`closeloop risk fit`: how well the repository's own past foretells which changes go wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.model.plural import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from closeloop.changes.risk.fit import Fit


def fit(*, json: bool = False) -> None:
    """Learn from this repository's past which changes had to be reverted or repaired.

    Parameters
    ----------
    json
        Print one JSON document instead of tables.
    """
    from closeloop.changes.risk.fit import fit as learn
    from closeloop.changes.risk.history import read_history
    from closeloop.cli.check import cache_of
    from closeloop.cli.config import load
    from closeloop.cli.console import console, say_json, show, warn
    from closeloop.runs.workspaces import resolve_commit

    found = load(Path.cwd())
    head = resolve_commit(Path.cwd(), "HEAD")
    with console(stderr=True).status("reading the history"):
        history = read_history(Path.cwd(), head, cache_of(found, os.environ))
        learned = learn(history)
    if history.cut:
        warn(f"Not all of the history is read: {history.cut}.")
    if json:
        say_json(learned)
    else:
        show(*told(learned))


def told(learned: Fit) -> Iterator[RenderableType]:
    """The calibration curve, the area under it, and what each level would have held."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.measure import interval

    yield Text(f"{plural(learned.changes, 'past change')}, {learned.wrong:,} went wrong "
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
        for one in learned.calibration:
            bar = "█" * round(40 * one.came.value)
            curve.add_row(f"{one.foretold:.2f}", interval(one.came), bar)
        yield curve
    levels = Table(title="What each level would have held", title_justify="left", box=None)
    levels.add_column("level")
    levels.add_column("went wrong", justify="right")
    for held in learned.held:
        levels.add_row(held.level, interval(held.wrong))
    yield levels
