"""Findings as GitLab's code quality report, which merge requests show beside the lines."""

from __future__ import annotations

from typing import Any

from closeloop.changes.reports.telling import Place, counted, fingerprints, first_place
from closeloop.model.report import Report
from closeloop.model.visible import visible

SEVERITIES = {"error": "major", "warning": "minor", "info": "info"}


def code_quality(report: Report) -> list[dict[str, Any]]:
    """Every finding. One without a place of its own stands at the first file of the change."""
    findings = counted(report)
    files = report.change.files
    elsewhere = Place(path=files[0].path if files else "README.md")
    return [
        {
            "description": visible(finding.message),
            "check_name": finding.rule,
            "fingerprint": print_,
            "severity": SEVERITIES[finding.severity],
            "location": {"path": visible(place.path), "lines": {"begin": place.line or 1}},
        }
        for finding, print_ in zip(findings, fingerprints(findings), strict=True)
        for place in [first_place(finding) or elsewhere]
    ]
