"""A report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from closeloop.changes.reports.report_text import (
    describe_change_size,
    describe_mending,
    describe_tool_state,
    is_tool_worse,
    list_active_findings,
    plural_phrase,
    report_headline,
    report_subject,
    unmeasured_by_reason,
)
from closeloop.records.change_report import ChangeReport, Risk, ToolRun
from closeloop.records.finding import Finding
from closeloop.records.visible_text import make_visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MAX_FINDINGS = 40
MAX_BROKEN = 20
MAX_REASONS = 5
MAX_OUTPUT_LINES = 15
VERDICT_STYLES = {"pass": "green", "warn": "yellow", "block": "red"}
LEVEL_STYLES = {"low": "green", "medium": "yellow", "high": "red", "critical": "bold red"}
SEVERITY_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}
STATE_STYLES = {
    "passed": "green",
    "failed": "red",
    "timed out": "red",
    "not set up": "red",
    "inert": "yellow",
}


def render_terminal_report(report: ChangeReport) -> Iterator[RenderableType]:
    """The verdict, then its reasons, the most telling first."""
    from rich.text import Text

    yield Text(
        make_visible(report_headline(report)), style=f"bold {VERDICT_STYLES[report.verdict]}"
    )
    yield Text(
        f"{make_visible(report_subject(report))} ({describe_change_size(report)})", style="dim"
    )
    if report.mending:
        yield Text(f"{make_visible(describe_mending(report.mending))}.")
    if report.risk:
        yield from _render_risk(report.risk)
    if report.tools:
        yield from _render_tools(report.tools)
    yield from _render_findings(list_active_findings(report))
    silenced = sum(finding.silenced is not None for finding in report.findings)
    if silenced:
        yield Text(f"{plural_phrase(silenced, 'finding')} silenced.", style="dim")
    for one in unmeasured_by_reason(report):
        yield Text(
            f"not looked at: {make_visible(one.rule)}: {make_visible(one.reason)}", style="dim"
        )


def _render_risk(risk: Risk) -> Iterator[Text]:
    from rich.text import Text

    line = Text("\nRisk ", style="bold").append(risk.level, style=LEVEL_STYLES[risk.level])
    if one := risk.chance:
        line.append(
            f"   {one.value:.0%} ({one.low:.0%}–{one.high:.0%}) of changes like it were reverted "
            f"or repaired, learned from {one.of}",
            style="not bold dim",
        )
    yield line
    for reason in risk.reasons[:MAX_REASONS]:
        yield Text(f"  {make_visible(reason)}")


def _render_tools(tools: Sequence[ToolRun]) -> Iterator[RenderableType]:
    """A row a tool, then what the change broke and what the tool said of it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="\nTools", title_justify="left", title_style="bold", box=None)
    for name in ("", "before", "after", "", ""):
        table.add_column(name)
    for tool in tools:
        facts = [f"{len(tool.already)} failing before too"] if tool.already else []
        facts += [f"{len(tool.mended)} mended"] if tool.mended else []
        facts += [f"{plural_phrase(len(tool.removed), 'test')} removed"] if tool.removed else []
        facts += [make_visible(text) for text in (tool.selected, tool.note) if text]
        table.add_row(
            Text(make_visible(tool.name)),
            Text(
                describe_tool_state(tool.before), style=STATE_STYLES.get(tool.before or "", "dim")
            ),
            Text(describe_tool_state(tool.after), style=STATE_STYLES.get(tool.after, "dim")),
            f"{tool.seconds:.1f} s" if tool.seconds is not None else "",
            Text("; ".join(facts), style="dim"),
        )
    yield table
    for tool in tools:
        for name in tool.broke[:MAX_BROKEN]:
            yield Text(f"  broke  {make_visible(name)}", style="red")
        if len(tool.broke) > MAX_BROKEN:
            yield Text(f"  … and {len(tool.broke) - MAX_BROKEN} more", style="dim")
        if is_tool_worse(tool) and tool.output.strip():
            lines = make_visible(tool.output).strip().splitlines()[-MAX_OUTPUT_LINES:]
            yield Text("\n".join(f"    {line}" for line in lines), style="dim")


def _render_findings(findings: Sequence[Finding]) -> Iterator[Text]:
    from rich.text import Text

    if findings:
        yield Text("\nFindings", style="bold")
    for finding in findings[:MAX_FINDINGS]:
        place = f"{finding.places[0]}  " if finding.places else ""
        line = Text(f"  {make_visible(place)}").append(
            finding.rule, style=SEVERITY_STYLES[finding.severity]
        )
        yield line.append(f"  {make_visible(finding.message)}")
    if len(findings) > MAX_FINDINGS:
        yield Text(f"… and {len(findings) - MAX_FINDINGS} more: --json has all", style="dim")
