"""A report as a check run of GitHub: its conclusion, a summary, and notes beside the lines."""

from __future__ import annotations

from typing import Any, Literal

from closeloop.changes.reports.markdown_escape import truncate_to_line
from closeloop.changes.reports.markdown_report import render_comment
from closeloop.changes.reports.report_text import list_active_findings, parse_place, report_headline
from closeloop.records.change_report import ChangeReport
from closeloop.records.finding import Finding
from closeloop.records.record import Record
from closeloop.records.visible_text import make_visible

Conclusion = Literal["success", "neutral", "failure"]
VERDICT_CONCLUSIONS: dict[str, Conclusion] = {
    "pass": "success",
    "warn": "neutral",
    "block": "failure",
}
ANNOTATION_LEVELS = {"error": "failure", "warning": "warning", "info": "notice"}
BATCH_ANNOTATIONS = 50
"""Annotations in one request."""
MAX_TITLE_CHARS = 255
MAX_MESSAGE_CHARS = 16_000
"""Characters; in bytes never more than the 64 KB that are allowed."""


class CheckRun(Record):
    """What is to be said of a commit."""

    conclusion: Conclusion
    title: str
    summary: str
    annotations: tuple[dict[str, Any], ...] = ()


def build_check_run(report: ChangeReport, *, blobs: str | None = None) -> CheckRun:
    """What GitHub shall show."""
    return CheckRun(
        conclusion=VERDICT_CONCLUSIONS[report.verdict],
        title=truncate_to_line(report_headline(report), MAX_TITLE_CHARS),
        summary=render_comment(report, blobs=blobs),
        annotations=tuple(
            note for one in list_active_findings(report) if (note := _build_annotation(one))
        ),
    )


def check_run_output(run: CheckRun, first: int = 0) -> dict[str, Any]:
    """The part of a request that shows it, with one batch of annotations from `first` on."""
    notes = list(run.annotations[first : first + BATCH_ANNOTATIONS])
    return {"title": run.title, "summary": run.summary, "annotations": notes}


def _build_annotation(finding: Finding) -> dict[str, Any] | None:
    """None where it has no line to stand at: then it is in the summary only."""
    place = parse_place(finding.places[0]) if finding.places else None
    if place is None or place.line is None:
        return None
    others = "\n".join(finding.places[1:20])
    return {
        "path": make_visible(place.path),
        "start_line": place.line,
        "end_line": place.line,
        "annotation_level": ANNOTATION_LEVELS[finding.severity],
        "title": truncate_to_line(finding.rule, MAX_TITLE_CHARS),
        "message": make_visible(finding.message)[:MAX_MESSAGE_CHARS],
        **({"raw_details": make_visible(others)[:MAX_MESSAGE_CHARS]} if others else {}),
    }
