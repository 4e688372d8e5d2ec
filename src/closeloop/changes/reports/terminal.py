"""A report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from closeloop.changes.reports.telling import (
    counted,
    headline,
    is_worse,
    mended,
    plural,
    state,
    subject,
    surface,
    unmeasured,
)
from closeloop.model.finding import Finding
from closeloop.model.report import Report, Risk, ToolRun
from closeloop.model.visible import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MOST_FINDINGS = 40
MOST_BROKEN = 20
MOST_REASONS = 5
OUTPUT_LINES = 15
VERDICTS = {"pass": "green", "warn": "yellow", "block": "red"}
LEVELS = {"low": "green", "medium": "yellow", "high": "red", "critical": "bold red"}
SEVERITIES = {"error": "red", "warning": "yellow", "info": "dim"}
STATES = {
    "passed": "green",
    "failed": "red",
    "timed out": "red",
    "not set up": "red",
    "inert": "yellow",
}


def told(report: Report) -> Iterator[RenderableType]:
    """The verdict, then its reasons, the most telling first."""
    from rich.text import Text

    yield Text(visible(headline(report)), style=f"bold {VERDICTS[report.verdict]}")
    yield Text(f"{visible(subject(report))} ({surface(report)})", style="dim")
    if report.mending:
        yield Text(f"{visible(mended(report.mending))}.")
    if report.risk:
        yield from _risk(report.risk)
    if report.tools:
        yield from _tools(report.tools)
    yield from _findings(counted(report))
    silenced = sum(finding.silenced is not None for finding in report.findings)
    if silenced:
        yield Text(f"{plural(silenced, 'finding')} silenced.", style="dim")
    for one in unmeasured(report):
        yield Text(f"not looked at: {visible(one.rule)}: {visible(one.reason)}", style="dim")


def _risk(risk: Risk) -> Iterator[Text]:
    from rich.text import Text

    line = Text("\nRisk ", style="bold").append(risk.level, style=LEVELS[risk.level])
    if one := risk.chance:
        line.append(
            f"   {one.value:.0%} ({one.low:.0%}–{one.high:.0%}) of changes like it were reverted "
            f"or repaired, learned from {one.of}",
            style="not bold dim",
        )
    yield line
    for reason in risk.reasons[:MOST_REASONS]:
        yield Text(f"  {visible(reason)}")


def _tools(tools: Sequence[ToolRun]) -> Iterator[RenderableType]:
    """A row a tool, then what the change broke and what the tool said of it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="\nTools", title_justify="left", title_style="bold", box=None)
    for name in ("", "before", "after", "", ""):
        table.add_column(name)
    for tool in tools:
        facts = [f"{len(tool.already)} failing before too"] if tool.already else []
        facts += [f"{len(tool.mended)} mended"] if tool.mended else []
        facts += [f"{plural(len(tool.removed), 'test')} removed"] if tool.removed else []
        facts += [visible(text) for text in (tool.selected, tool.note) if text]
        table.add_row(
            Text(visible(tool.name)),
            Text(state(tool.before), style=STATES.get(tool.before or "", "dim")),
            Text(state(tool.after), style=STATES.get(tool.after, "dim")),
            f"{tool.seconds:.1f} s" if tool.seconds is not None else "",
            Text("; ".join(facts), style="dim"),
        )
    yield table
    for tool in tools:
        for name in tool.broke[:MOST_BROKEN]:
            yield Text(f"  broke  {visible(name)}", style="red")
        if len(tool.broke) > MOST_BROKEN:
            yield Text(f"  … and {len(tool.broke) - MOST_BROKEN} more", style="dim")
        if is_worse(tool) and tool.output.strip():
            lines = visible(tool.output).strip().splitlines()[-OUTPUT_LINES:]
            yield Text("\n".join(f"    {line}" for line in lines), style="dim")


def _findings(findings: Sequence[Finding]) -> Iterator[Text]:
    from rich.text import Text

    if findings:
        yield Text("\nFindings", style="bold")
    for finding in findings[:MOST_FINDINGS]:
        place = f"{finding.places[0]}  " if finding.places else ""
        line = Text(f"  {visible(place)}").append(finding.rule, style=SEVERITIES[finding.severity])
        yield line.append(f"  {visible(finding.message)}")
    if len(findings) > MOST_FINDINGS:
        yield Text(f"… and {len(findings) - MOST_FINDINGS} more: --json has all", style="dim")
