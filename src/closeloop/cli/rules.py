"""`closeloop rules`: the catalogue of what is looked for in traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.process.rule_quality import RuleQuality
    from closeloop.records.finding import Rule


def rules(*, json: bool = False) -> None:
    """List the rules: what each looks for, whether it may gate, and how often it is right.

    Parameters
    ----------
    json
        Print one JSON document instead of a table.
    """
    from closeloop import plugins
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.process.rule_quality import quality_by_rule

    project = load_project(Path.cwd())
    book = project_rulebook(project.settings)
    limits = {one.detector.rule.name: one.limits for one in book.chosen}
    catalogue = [detector.rule for detector in plugins.load_plugins("detectors")]
    rule_quality = quality_by_rule()
    if json:
        print_json(
            [
                {
                    "rule": rule,
                    "enabled": rule.name in limits,
                    "thresholds": limits.get(rule.name),
                    "quality": rule_quality.get(rule.name),
                }
                for rule in catalogue
            ]
        )
        return
    print_parts(rule_catalogue_table(catalogue, limits, rule_quality))


def rule_catalogue_table(
    catalogue: Sequence[Rule],
    limits: Mapping[str, Mapping[str, float]],
    known: Mapping[str, RuleQuality],
) -> Table:
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible
    from closeloop.cli.measure import SEVERITY_COLOURS, format_rate_interval

    table = Table(box=None)
    for name in ("rule", "severity", "may gate", "precision", "recall", "thresholds"):
        table.add_column(name, no_wrap=name != "thresholds")
    table.add_column("what it looks for", ratio=1)
    for rule in catalogue:
        scores = known.get(rule.name)
        numbers = ", ".join(f"{key} {value:g}" for key, value in limits.get(rule.name, {}).items())
        table.add_row(
            Text(rule.name, style=SEVERITY_COLOURS[rule.severity]),
            rule.severity,
            "yes" if rule.gates else "advises",
            format_rate_interval(scores.precision if scores else None),
            format_rate_interval(scores.recall if scores else None),
            numbers if rule.name in limits else "switched off",
            make_visible(rule.about),
        )
    return table
