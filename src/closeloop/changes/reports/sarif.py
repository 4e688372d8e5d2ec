"""Findings as SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from closeloop import __version__
from closeloop.changes.reports.telling import fingerprints, place_of, unmeasured
from closeloop.model.finding import Finding, Rule, Unmeasured
from closeloop.model.report import Report
from closeloop.model.visible import visible

LEVELS = {"error": "error", "warning": "warning", "info": "note"}
MOST_PLACES = 100


def of_report(report: Report, rules: Sequence[Rule] = ()) -> dict[str, Any]:
    """What a check found, with what it could not look at."""
    made = sarif([(None, finding) for finding in report.findings], rules, unmeasured(report))
    (run,) = made["runs"]
    facts: dict[str, Any] = {
        "verdict": report.verdict,
        "reasons": [visible(reason) for reason in report.reasons],
    }
    facts |= {"risk": report.risk.level} if report.risk else {}
    mended = report.mending.patch if report.mending else None
    run["properties"] = facts | ({"mended": visible(mended)} if mended else {})
    return made


def sarif(
    found: Iterable[tuple[str | None, Finding]],
    rules: Sequence[Rule],
    missed: Sequence[Unmeasured] = (),
) -> dict[str, Any]:
    """One run: findings in files, or with the attempt in whose events they are."""
    pairs = list(found)
    known = {rule.name: _rule(rule) for rule in rules}
    for _, finding in pairs:
        known.setdefault(finding.rule, {"id": finding.rule})
    index = {name: number for number, name in enumerate(known)}
    prints = fingerprints(finding for _, finding in pairs)
    driver = {"name": "closeloop", "version": __version__, "rules": list(known.values())}
    notes = [
        {"level": "note", "message": {"text": visible(f"{one.rule}: {one.reason}")}}
        for one in missed
    ]
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "results": [
            _result(attempt, finding, index[finding.rule], print_)
            for (attempt, finding), print_ in zip(pairs, prints, strict=True)
        ],
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.about},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"version": rule.version, "gates": rule.gates},
    }


def _result(attempt: str | None, finding: Finding, rule: int, print_: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"confidence": finding.confidence, "mode": finding.mode}
    if attempt is not None:
        facts |= {"attempt": attempt, "events": list(finding.events)}
        print_ = f"{attempt}/{finding.rule}/{finding.events[:1]}"
    made: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": LEVELS[finding.severity],
        "message": {"text": visible(finding.message)},
        "locations": _locations(attempt, finding),
        "partialFingerprints": {"closeloop/v1": print_},
        "properties": facts,
    }
    if finding.silenced is not None:
        made["suppressions"] = [{"kind": "external", "justification": finding.silenced}]
    return made


def _locations(attempt: str | None, finding: Finding) -> list[dict[str, Any]]:
    """Events have no place in a file: they are named as the attempt's own places."""
    if attempt is not None:
        names = [f"{attempt}#{number}" for number in finding.events[:20]] or [attempt]
        events = [{"fullyQualifiedName": name, "kind": "event"} for name in names]
        return [{**_location(f"attempts/{attempt}", None), "logicalLocations": events}]
    places = [place_of(text) for text in finding.places[:MOST_PLACES]]
    return [_location(place.path, place.line) for place in places]


def _location(path: str, line: int | None) -> dict[str, Any]:
    made: dict[str, Any] = {"artifactLocation": {"uri": quote(path, errors="replace")}}
    if line is not None:
        made["region"] = {"startLine": line}
    return {"physicalLocation": made}
