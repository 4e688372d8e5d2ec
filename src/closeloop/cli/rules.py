"""`closeloop rules`: the catalogue of what is looked for in traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.cli.measure import SEVERITY_COLOURS, format_rate_interval

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.process.rule_quality import GateDecision, RuleQuality
    from closeloop.process.rulebook import ConfiguredDetector
    from closeloop.records.estimate import Rate
    from closeloop.records.finding import Rule


def rules(*, json: JsonFlag = False) -> None:
    """List the rules: what each looks for, whether it gates, and how often it is right."""
    from closeloop import plugins
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.process.rule_quality import (
        describe_readings,
        load_measured_quality,
        quality_by_rule,
    )

    project = load_project(Path.cwd())
    book = project_rulebook(project.settings)
    configured = {one.detector.rule.name: one for one in book.chosen}
    catalogue = [detector.rule for detector in plugins.load_plugins("detectors")]
    rule_quality = quality_by_rule()
    if json:
        print_json(
            [
                {
                    "rule": rule,
                    "enabled": rule.name in configured,
                    "thresholds": one.limits if (one := configured.get(rule.name)) else None,
                    "gate": one.gate if one else None,
                    "quality": rule_quality.get(rule.name),
                }
                for rule in catalogue
            ]
        )
        return
    summary = describe_readings(load_measured_quality().reading_summary)
    print_parts(rule_catalogue_table(catalogue, configured, rule_quality), *summary)


def rule_catalogue_table(
    catalogue: Sequence[Rule],
    configured: Mapping[str, ConfiguredDetector],
    known: Mapping[str, RuleQuality],
) -> Table:
    """Three lines a rule: how often it is right on real sessions and on labelled examples."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 1, 0))
    for name in ("rule", "", "precision", "recall"):
        table.add_column(name, no_wrap=True)
    table.add_column("what it looks for", ratio=1)
    for rule in catalogue:
        one, scores = configured.get(rule.name), known.get(rule.name)
        read = scores.read if scores else None
        numbers = ", ".join(
            f"{key} {value:g}" for key, value in (one.limits if one else {}).items()
        )
        title = Text(rule.name, style=SEVERITY_COLOURS[rule.severity])
        about = Text(make_visible(rule.about))
        about.append(f"\n{format_gate(one.gate)}" if one else "\nswitched off", style="bold")
        table.add_row(
            title.append(f"\n{rule.severity}\n{numbers}", style="dim"),
            "real sessions\nexamples",
            _join_rates(read.precision if read else None, scores.precision if scores else None),
            _join_rates(read.recall if read else None, scores.recall if scores else None),
            about,
        )
    return table


def _join_rates(*rates: Rate | None) -> str:
    return "\n".join(map(format_rate_interval, rates))


def format_gate(gate: GateDecision) -> str:
    """`advises: 12 of 13 right: 7 more have to be read`."""
    return f"{'gates' if gate.gates else 'advises'}: {gate.reason}"
