"""`closeloop rules`: the catalogue of what is looked for in traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.model.finding import Rule
    from closeloop.process.quality import Quality


def rules(*, json: bool = False) -> None:
    """List the rules: what each looks for, whether it may gate, and how often it is right.

    Parameters
    ----------
    json
        Print one JSON document instead of a table.
    """
    from closeloop import plugins
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json, show
    from closeloop.measuring.attempts import book_of
    from closeloop.process.quality import quality

    found = load(Path.cwd())
    book = book_of(found.settings)
    limits = {one.detector.rule.name: one.limits for one in book.chosen}
    catalogue = [detector.rule for detector in plugins.every("detectors")]
    known = quality()
    if json:
        say_json(
            [
                {
                    "rule": rule,
                    "enabled": rule.name in limits,
                    "thresholds": limits.get(rule.name),
                    "quality": known.get(rule.name),
                }
                for rule in catalogue
            ]
        )
        return
    show(table_of(catalogue, limits, known))


def table_of(
    catalogue: Sequence[Rule],
    limits: Mapping[str, Mapping[str, float]],
    known: Mapping[str, Quality],
) -> Table:
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import visible
    from closeloop.cli.measure import COLOURS, interval

    table = Table(box=None)
    for name in ("rule", "severity", "may gate", "precision", "recall", "thresholds"):
        table.add_column(name, no_wrap=name != "thresholds")
    table.add_column("what it looks for", ratio=1)
    for rule in catalogue:
        scores = known.get(rule.name)
        numbers = ", ".join(f"{key} {value:g}" for key, value in limits.get(rule.name, {}).items())
        table.add_row(
            Text(rule.name, style=COLOURS[rule.severity]),
            rule.severity,
            "yes" if rule.gates else "advises",
            interval(scores.precision if scores else None),
            interval(scores.recall if scores else None),
            numbers if rule.name in limits else "switched off",
            visible(rule.about),
        )
    return table
