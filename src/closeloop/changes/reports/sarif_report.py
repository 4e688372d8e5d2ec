"""Findings as SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from closeloop import __version__
from closeloop.changes.reports.report_text import (
    finding_fingerprints,
    parse_place,
    unmeasured_by_reason,
)
from closeloop.records.change_report import ChangeReport
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.visible_text import make_visible

SARIF_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
MAX_PLACES = 100


def sarif_from_report(report: ChangeReport, rules: Sequence[Rule] = ()) -> dict[str, Any]:
    """What a check found, with what it could not look at."""
    document = build_sarif(
        [(None, finding) for finding in report.findings], rules, unmeasured_by_reason(report)
    )
    (run,) = document["runs"]
    facts: dict[str, Any] = {
        "verdict": report.verdict,
        "reasons": [make_visible(reason) for reason in report.reasons],
    }
    facts |= {"risk": report.risk.level} if report.risk else {}
    mended = report.mending.patch if report.mending else None
    run["properties"] = facts | ({"mended": make_visible(mended)} if mended else {})
    return document


def build_sarif(
    found: Iterable[tuple[str | None, Finding]],
    rules: Sequence[Rule],
    missed: Sequence[Unmeasured] = (),
) -> dict[str, Any]:
    """One run: findings in files, or with the attempt in whose events they are."""
    pairs = list(found)
    known = {rule.name: _sarif_rule(rule) for rule in rules}
    for _, finding in pairs:
        known.setdefault(finding.rule, {"id": finding.rule})
    index = {name: number for number, name in enumerate(known)}
    prints = finding_fingerprints(finding for _, finding in pairs)
    driver = {"name": "closeloop", "version": __version__, "rules": list(known.values())}
    notes = [
        {"level": "note", "message": {"text": make_visible(f"{one.rule}: {one.reason}")}}
        for one in missed
    ]
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "results": [
            _sarif_result(attempt, finding, index[finding.rule], print_)
            for (attempt, finding), print_ in zip(pairs, prints, strict=True)
        ],
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.about},
        "defaultConfiguration": {"level": SARIF_LEVELS[rule.severity]},
        "properties": {"version": rule.version, "gates": rule.gates},
    }


def _sarif_result(attempt: str | None, finding: Finding, rule: int, print_: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"confidence": finding.confidence, "mode": finding.mode}
    if attempt is not None:
        facts |= {"attempt": attempt, "events": list(finding.events)}
        print_ = f"{attempt}/{finding.rule}/{finding.events[:1]}"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": SARIF_LEVELS[finding.severity],
        "message": {"text": make_visible(finding.message)},
        "locations": _sarif_locations(attempt, finding),
        "partialFingerprints": {"closeloop/v1": print_},
        "properties": facts,
    }
    if finding.silenced is not None:
        result["suppressions"] = [{"kind": "external", "justification": finding.silenced}]
    return result


def _sarif_locations(attempt: str | None, finding: Finding) -> list[dict[str, Any]]:
    """Events have no place in a file: they are named as the attempt's own places."""
    if attempt is not None:
        names = [f"{attempt}#{number}" for number in finding.events[:20]] or [attempt]
        events = [{"fullyQualifiedName": name, "kind": "event"} for name in names]
        return [{**_file_location(f"attempts/{attempt}", None), "logicalLocations": events}]
    places = [parse_place(text) for text in finding.places[:MAX_PLACES]]
    return [_file_location(place.path, place.line) for place in places]


def _file_location(path: str, line: int | None) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": quote(path, errors="replace")}}
    if line is not None:
        location["region"] = {"startLine": line}
    return {"physicalLocation": location}
