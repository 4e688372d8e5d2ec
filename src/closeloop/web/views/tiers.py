"""A report of a check as it is shown: tier by tier, and by file and line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from closeloop.changes.reports.telling import (
    first_place,
    is_worse,
    plural,
    state,
    subject,
    surface,
    unmeasured,
)
from closeloop.model.finding import Finding, Unmeasured
from closeloop.model.record import Record
from closeloop.model.report import Report, ReportRow, Risk, ToolRun, Verdict

MOST_FINDINGS = 500
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
    verdict: Verdict
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


def shown(row: ReportRow, report: Report) -> ReportShown:
    told = [one for one in report.findings if one.silenced is None]
    few = told[:MOST_FINDINGS]
    return ReportShown(
        row=row,
        subject=subject(report),
        surface=surface(report),
        verdict=report.verdict,
        reasons=report.reasons,
        tiers=tuple(_tiers(report, told)),
        tools=report.tools,
        files=_by_file(few),
        elsewhere=tuple(one for one in few if not one.places),
        silenced=len(report.findings) - len(told),
        more=len(told) - len(few),
        risk=report.risk,
        unmeasured=tuple(unmeasured(report)),
    )


def _tiers(report: Report, told: Sequence[Finding]) -> Iterator[TierView]:
    if "tools" in report.tiers:
        yield _tools(report.tools)
    if "quality" in report.tiers:
        yield _quality(told)
    if "risk" in report.tiers:
        yield _risk(report)


def _tools(tools: Sequence[ToolRun]) -> TierView:
    if not tools:
        return TierView(name="Tools", state="open", text="none could be run")
    worse = [
        f"{tool.name} ({f'{len(tool.broke)} broke' if tool.broke else state(tool.after)})"
        for tool in tools
        if is_worse(tool)
    ]
    if worse:
        return TierView(name="Tools", state="bad", text=f"worse than before in {', '.join(worse)}")
    return TierView(name="Tools", state="good", text=f"{plural(len(tools), 'tool')}, none worse")


def _quality(told: Sequence[Finding]) -> TierView:
    counts = {name: sum(one.severity == name for one in told) for name in _SEVERITIES}
    nouns = {"error": "error", "warning": "warning", "info": "remark"}
    text = ", ".join(plural(count, nouns[name]) for name, count in counts.items() if count)
    how: Literal["good", "bad", "open"] = "bad" if counts["error"] else "open" if told else "good"
    return TierView(name="Quality", state=how, text=text or "nothing was found")


def _risk(report: Report) -> TierView:
    if report.risk is None:
        return TierView(name="Risk", state="open", text="not assessed")
    level = report.risk.level
    how: Literal["good", "bad", "open"] = "good" if level == "low" else "open"
    if level in ("high", "critical"):
        how = "bad"
    return TierView(name="Risk", state=how, text=level)


def _by_file(findings: Sequence[Finding]) -> tuple[FileSpots, ...]:
    files: dict[str, list[Spot]] = {}
    for one in findings:
        if (place := first_place(one)) is not None:
            files.setdefault(place.path, []).append(Spot(line=place.line, finding=one))
    return tuple(
        FileSpots(path=path, spots=tuple(sorted(spots, key=lambda spot: spot.line or 0)))
        for path, spots in sorted(files.items())
    )
