"""A report of a check as it is shown: tier by tier, and by file and line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from closeloop.changes.reports.report_text import (
    describe_change_size,
    describe_tool_state,
    first_source_place,
    is_tool_worse,
    plural_phrase,
    report_subject,
    unmeasured_by_reason,
)
from closeloop.records.change_report import ChangeReport, ReportRow, ReportVerdict, Risk, ToolRun
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import Record

MAX_FINDINGS = 500
_SEVERITIES = ("error", "warning", "info")


class TierView(Record):
    """One tier in a line."""

    name: str
    state: Literal["good", "bad", "open"]
    """Open: it was not looked at, or found something that only advises."""
    text: str


class Spot(Record):
    """A finding, and the line that it is about."""

    line: int | None
    finding: Finding


class FileSpots(Record):
    """What was found in one file, from its top to its end."""

    path: str
    spots: tuple[Spot, ...]


class ReportShown(Record):
    """One report that was kept."""

    row: ReportRow
    subject: str
    surface: str
    verdict: ReportVerdict
    reasons: tuple[str, ...]
    tiers: tuple[TierView, ...]
    tools: tuple[ToolRun, ...]
    files: tuple[FileSpots, ...]
    elsewhere: tuple[Finding, ...]
    """Those that are about no place."""
    silenced: int
    more: int
    """Findings that are not shown."""
    risk: Risk | None
    unmeasured: tuple[Unmeasured, ...]


def build_report_view(row: ReportRow, report: ChangeReport) -> ReportShown:
    counted_findings = [one for one in report.findings if one.silenced is None]
    shown_findings = counted_findings[:MAX_FINDINGS]
    return ReportShown(
        row=row,
        subject=report_subject(report),
        surface=describe_change_size(report),
        verdict=report.verdict,
        reasons=report.reasons,
        tiers=tuple(_tier_views(report, counted_findings)),
        tools=report.tools,
        files=_findings_by_file(shown_findings),
        elsewhere=tuple(one for one in shown_findings if not one.places),
        silenced=len(report.findings) - len(counted_findings),
        more=len(counted_findings) - len(shown_findings),
        risk=report.risk,
        unmeasured=tuple(unmeasured_by_reason(report)),
    )


def _tier_views(report: ChangeReport, told: Sequence[Finding]) -> Iterator[TierView]:
    if "tools" in report.tiers:
        yield _tools_tier(report.tools)
    if "quality" in report.tiers:
        yield _quality_tier(told)
    if "risk" in report.tiers:
        yield _risk_tier(report)


def _tools_tier(tools: Sequence[ToolRun]) -> TierView:
    if not tools:
        return TierView(name="Tools", state="open", text="none could be run")
    worse = [
        f"{tool.name}"
        f" ({f'{len(tool.broke)} broke' if tool.broke else describe_tool_state(tool.after)})"
        for tool in tools
        if is_tool_worse(tool)
    ]
    if worse:
        return TierView(name="Tools", state="bad", text=f"worse than before in {', '.join(worse)}")
    return TierView(
        name="Tools", state="good", text=f"{plural_phrase(len(tools), 'tool')}, none worse"
    )


def _quality_tier(told: Sequence[Finding]) -> TierView:
    counts = {name: sum(one.severity == name for one in told) for name in _SEVERITIES}
    nouns = {"error": "error", "warning": "warning", "info": "remark"}
    text = ", ".join(plural_phrase(count, nouns[name]) for name, count in counts.items() if count)
    how: Literal["good", "bad", "open"] = "bad" if counts["error"] else "open" if told else "good"
    return TierView(name="Quality", state=how, text=text or "nothing was found")


def _risk_tier(report: ChangeReport) -> TierView:
    if report.risk is None:
        return TierView(name="Risk", state="open", text="not assessed")
    level = report.risk.level
    how: Literal["good", "bad", "open"] = "good" if level == "low" else "open"
    if level in ("high", "critical"):
        how = "bad"
    return TierView(name="Risk", state=how, text=level)


def _findings_by_file(findings: Sequence[Finding]) -> tuple[FileSpots, ...]:
    files: dict[str, list[Spot]] = {}
    for one in findings:
        if (place := first_source_place(one)) is not None:
            files.setdefault(place.path, []).append(Spot(line=place.line, finding=one))
    return tuple(
        FileSpots(path=path, spots=tuple(sorted(spots, key=lambda spot: spot.line or 0)))
        for path, spots in sorted(files.items())
    )
