"""A report as a check run of GitHub: its conclusion, a summary, and notes beside the lines."""

from __future__ import annotations

from typing import Any, Literal

from closeloop.changes.reports.escaping import one_line
from closeloop.changes.reports.markdown import comment
from closeloop.changes.reports.telling import counted, headline, place_of
from closeloop.model.finding import Finding
from closeloop.model.record import Record
from closeloop.model.report import Report
from closeloop.model.visible import visible

Conclusion = Literal["success", "neutral", "failure"]
CONCLUSIONS: dict[str, Conclusion] = {"pass": "success", "warn": "neutral", "block": "failure"}
LEVELS = {"error": "failure", "warning": "warning", "info": "notice"}
BATCH = 50
"""Annotations in one request."""
MOST_TITLE = 255
MOST_MESSAGE = 16_000
"""Characters; in bytes never more than the 64 KB that are allowed."""


class CheckRun(Record):
    """What is to be said of a commit."""

    conclusion: Conclusion
    title: str
    summary: str
    annotations: tuple[dict[str, Any], ...] = ()


def check_run(report: Report, *, blobs: str | None = None) -> CheckRun:
    """What GitHub shall show."""
    return CheckRun(
        conclusion=CONCLUSIONS[report.verdict],
        title=one_line(headline(report), MOST_TITLE),
        summary=comment(report, blobs=blobs),
        annotations=tuple(note for one in counted(report) if (note := _annotation(one))),
    )


def output(run: CheckRun, first: int = 0) -> dict[str, Any]:
    """The part of a request that shows it, with one batch of annotations from `first` on."""
    notes = list(run.annotations[first : first + BATCH])
    return {"title": run.title, "summary": run.summary, "annotations": notes}


def _annotation(finding: Finding) -> dict[str, Any] | None:
    """None where it has no line to stand at: then it is in the summary only."""
    place = place_of(finding.places[0]) if finding.places else None
    if place is None or place.line is None:
        return None
    others = "\n".join(finding.places[1:20])
    return {
        "path": visible(place.path),
        "start_line": place.line,
        "end_line": place.line,
        "annotation_level": LEVELS[finding.severity],
        "title": one_line(finding.rule, MOST_TITLE),
        "message": visible(finding.message)[:MOST_MESSAGE],
        **({"raw_details": visible(others)[:MOST_MESSAGE]} if others else {}),
    }
