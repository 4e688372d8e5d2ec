"""Findings as GitLab's code quality report, which merge requests show beside the lines."""

from __future__ import annotations

from typing import Any

from closeloop.changes.reports.report_text import (
    SourcePlace,
    finding_fingerprints,
    first_source_place,
    list_active_findings,
)
from closeloop.records.change_report import ChangeReport
from closeloop.records.visible_text import make_visible

GITLAB_SEVERITIES = {"error": "major", "warning": "minor", "info": "info"}


def build_code_quality(report: ChangeReport) -> list[dict[str, Any]]:
    """Every finding. One without a place of its own stands at the first file of the change."""
    findings = list_active_findings(report)
    files = report.change.files
    elsewhere = SourcePlace(path=files[0].path if files else "README.md")
    return [
        {
            "description": make_visible(finding.message),
            "check_name": finding.rule,
            "fingerprint": print_,
            "severity": GITLAB_SEVERITIES[finding.severity],
            "location": {"path": make_visible(place.path), "lines": {"begin": place.line or 1}},
        }
        for finding, print_ in zip(findings, finding_fingerprints(findings), strict=True)
        for place in [first_source_place(finding) or elsewhere]
    ]
