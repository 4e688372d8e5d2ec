"""A patch and a check's report as pages show them, findings beside their lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import unified_diff
from typing import Literal

from msgspec.structs import replace

from closeloop.changes.reports.report_text import (
    describe_change_size,
    describe_report_grade,
    describe_tool_state,
    first_source_place,
    is_tool_worse,
    plural_phrase,
    report_subject,
    unmeasured_by_reason,
)
from closeloop.records.change import (
    Change,
    ChangeReport,
    FileChange,
    ReportRow,
    ReportVerdict,
    Risk,
    ToolRun,
)
from closeloop.records.finding import SEVERITIES, Finding, Unmeasured
from closeloop.records.record import Record
from closeloop.records.trace import Edit, Trace
from closeloop.text.patches import has_line_counts

MAX_LINES = 4000
MAX_LINE_CHARS = 1000
_HUNK_HEADER = re.compile(r"@@ -(\d{1,9})(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@")


class DiffLine(Record):
    kind: Literal["same", "plus", "minus", "hunk"]
    old: int | None
    new: int | None
    text: str
    findings: tuple[int, ...] = ()
    """Places in the list of findings."""


class DiffFile(Record):
    """One file of a change."""

    path: str
    old_path: str | None
    status: str
    added: int | None
    removed: int | None
    """Lines; None where they were not told, which is not 0."""
    binary: bool
    note: str | None
    marks: tuple[str, ...]
    """What is to be said of the whole file: outside the scope, restored before grading."""
    lines: tuple[DiffLine, ...]
    left_out: int
    """Lines that are not shown."""
    findings: tuple[int, ...] = ()
    """Of the whole file, or of lines that the diff does not show."""


def build_diff_files(
    change: Change, findings: Sequence[Finding], marks: Iterable[tuple[str, str]]
) -> tuple[DiffFile, ...]:
    """Every file of a change, as far as there is room."""
    places = _index_finding_places(findings)
    marks_by_path: dict[str, list[str]] = {}
    for path, mark in marks:
        marks_by_path.setdefault(path, []).append(mark)
    bodies = _split_patch_bodies(change.patch)
    lines_left, files_built = MAX_LINES, []
    for file, body in zip(change.files, [*bodies, *[[]] * len(change.files)], strict=False):
        files_built.append(
            _build_diff_file(
                file, body, lines_left, places.get(file.path, {}), marks_by_path.get(file.path, ())
            )
        )
        lines_left = max(0, lines_left - len(body))
    return tuple(files_built)


def locate_findings(
    findings: Iterable[Finding], trace: Trace, files: Sequence[DiffFile]
) -> tuple[Finding, ...]:
    """Findings that name a place in a file; of those that cite an edit, the line that it made."""
    edits = {event.number: event for event in trace.events if isinstance(event, Edit)}
    located_findings = []
    for finding in findings:
        if finding.places:
            located_findings.append(finding)
            continue
        cited = [edits[number] for number in finding.events if number in edits]
        places = [place for edit in cited if (place := _place_of_edit(edit, files)) is not None]
        if places:
            located_findings.append(replace(finding, places=tuple(dict.fromkeys(places))))
    return tuple(located_findings)


def _place_of_edit(edit: Edit, files: Sequence[DiffFile]) -> str | None:
    """The first line of the change that an edit wrote; its file where none is left of it."""
    edited_path = edit.path.replace("\\", "/")
    file = next((one for one in files if f"/{edited_path}".endswith(f"/{one.path}")), None)
    if file is None:
        return None
    old = set((edit.before or "").splitlines())
    text = edit.after if edit.after is not None else edit.patch or ""
    written_lines = {line.removeprefix("+") for line in text.splitlines()} - old
    line = next(
        (
            one.new
            for one in file.lines
            if one.kind == "plus" and one.text in written_lines and one.text.strip()
        ),
        None,
    )
    return file.path if line is None else f"{file.path}:{line}"


def diff_from_edit(edit: Edit) -> DiffFile | None:
    """An edit as the trace tells it, as a diff of its file; None where it holds no lines."""
    if edit.patch is not None:
        body = edit.patch.split("\n")
        if "@@ " not in edit.patch:
            body = [line for line in body if line[:1] in ("+", "-", " ")]
    elif edit.before is None and edit.after is None:
        return None
    else:
        before, after = (edit.before or "").splitlines(), (edit.after or "").splitlines()
        body = list(unified_diff(before, after, lineterm="", n=2))[2:]
    lines = tuple(_build_diff_lines(body[:MAX_LINES], {}))
    return DiffFile(
        path=edit.path,
        old_path=None,
        status=edit.action,
        added=sum(line.kind == "plus" for line in lines),
        removed=sum(line.kind == "minus" for line in lines),
        binary=False,
        note=None,
        marks=(),
        lines=lines,
        left_out=max(0, len(body) - MAX_LINES),
    )


def _build_diff_file(
    file: FileChange,
    body: list[str],
    room: int,
    findings: dict[int, tuple[int, ...]],
    marks: Sequence[str],
) -> DiffFile:
    lines = tuple(_build_diff_lines(body[:room], findings))
    shown = {place for line in lines for place in line.findings}
    every = {place for there in findings.values() for place in there}
    return DiffFile(
        path=file.path,
        old_path=file.old_path,
        status=file.status,
        added=file.added if has_line_counts(file) else None,
        removed=file.removed if has_line_counts(file) else None,
        binary=file.binary,
        note=file.note,
        marks=tuple(marks),
        lines=lines,
        left_out=max(0, len(body) - room),
        findings=tuple(sorted(every - shown)),
    )


def _split_patch_bodies(patch: str) -> list[list[str]]:
    """The hunks of each file, in the order of the patch."""
    bodies: list[list[str]] = []
    body: list[str] = []
    inside = False
    for line in patch.split("\n"):
        if line.startswith("diff --git ") or (line.startswith("--- ") and not inside):
            if line.startswith("diff --git ") or not bodies or body:
                body = []
                bodies.append(body)
            inside = line.startswith("diff --git ")
        elif line.startswith("@@ ") or (body and line[:1] in ("+", "-", " ", "\\")):
            body.append(line)
            inside = True
    return bodies


def _build_diff_lines(
    body: Iterable[str], findings: dict[int, tuple[int, ...]]
) -> Iterable[DiffLine]:
    old = new = 0
    for whole in body:
        text = whole[:MAX_LINE_CHARS]
        if hunk := _HUNK_HEADER.match(whole):
            old, new = int(hunk[1]), int(hunk[2])
            yield DiffLine(kind="hunk", old=None, new=None, text=text)
        elif whole.startswith("+"):
            yield DiffLine(
                kind="plus", old=None, new=new, text=text[1:], findings=findings.get(new, ())
            )
            new += 1
        elif whole.startswith("-"):
            yield DiffLine(kind="minus", old=old, new=None, text=text[1:])
            old += 1
        elif whole.startswith("\\"):
            yield DiffLine(kind="hunk", old=None, new=None, text=text)
        else:
            yield DiffLine(
                kind="same", old=old, new=new, text=text[1:], findings=findings.get(new, ())
            )
            old, new = old + 1, new + 1


def _index_finding_places(findings: Sequence[Finding]) -> dict[str, dict[int, tuple[int, ...]]]:
    """By path and line, the places of findings in their list; line 0 is the whole file."""
    places_by_path: dict[str, dict[int, tuple[int, ...]]] = {}
    for place, finding in enumerate(findings):
        for where in finding.places:
            path, _, line = where.rpartition(":")
            if not path or not line.isdecimal():
                path, line = where, "0"
            lines = places_by_path.setdefault(path, {})
            lines[int(line)] = (*lines.get(int(line), ()), place)
    return places_by_path


# A report of a check as it is shown: tier by tier, and by file and line.

MAX_FINDINGS = 500


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
    grade: str | None
    """What the acceptance of its own task said, of an attempt's change."""
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
        grade=describe_report_grade(report.grade) if report.grade else None,
        unmeasured=tuple(unmeasured_by_reason(report)),
    )


def _tier_views(report: ChangeReport, told: Sequence[Finding]) -> Iterator[TierView]:
    if "tools" in report.tiers:
        yield _tools_tier(report)
    if "quality" in report.tiers:
        yield _quality_tier(told)
    if "risk" in report.tiers:
        yield _risk_tier(report)


def _tools_tier(report: ChangeReport) -> TierView:
    tools = report.tools
    if not tools:
        return TierView(name="Tools", state="open", text="none was run")
    worse = [
        f"{tool.name}"
        f" ({f'{len(tool.broke)} broke' if tool.broke else describe_tool_state(tool.after)})"
        for tool in tools
        if is_tool_worse(tool)
    ]
    if worse:
        return TierView(name="Tools", state="bad", text=f"worse than before in {', '.join(worse)}")
    text = f"{plural_phrase(len(tools), 'tool')}, none worse"
    if report.verdict == "unverified":
        return TierView(name="Tools", state="open", text=f"{text}, but no test was run")
    return TierView(name="Tools", state="good", text=text)


def _quality_tier(told: Sequence[Finding]) -> TierView:
    counts = {name: sum(one.severity == name for one in told) for name in SEVERITIES}
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
