"""A report in the formats of other tools: SARIF, JUnit XML and GitLab's code quality."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from closeloop import __version__
from closeloop.changes.reports.report_text import (
    SourcePlace,
    finding_fingerprints,
    first_source_place,
    list_active_findings,
    parse_place,
    report_headline,
    unmeasured_by_reason,
)
from closeloop.grading.tool_outcomes import tool_outcome
from closeloop.records.change import ChangeReport, ToolRun
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.text.untrusted import make_visible

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
    facts |= {"grade": report.grade.result} if report.grade else {}
    if report.verdict == "unverified":
        (invocation,) = run["invocations"]
        text = make_visible(report_headline(report))
        warning = {"level": "warning", "message": {"text": text}}
        invocation["toolExecutionNotifications"].insert(0, warning)
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


# A report as JUnit XML, which every build server shows.

_NOT_XML = re.compile("[\ufffe\uffff]")


def render_junit(report: ChangeReport) -> str:
    """A suite a tool, one for the findings, one for the verdict; red is what the change did."""
    root = Element("testsuites", name="closeloop")
    for tool in report.tools:
        _add_tool_suite(root, tool)
    findings = SubElement(root, "testsuite", name="findings")
    for finding in list_active_findings(report):
        _add_finding(findings, finding)
    verdict = SubElement(root, "testsuite", name="verdict")
    if report.mending and report.mending.patch:
        properties = SubElement(verdict, "properties")
        SubElement(properties, "property", name="mended", value=to_xml_text(report.mending.patch))
    case = _add_case(verdict, report.title, "closeloop")
    if report.verdict == "block":
        _add_result(case, "failure", report_headline(report), "\n".join(report.reasons))
    elif report.verdict == "unverified":
        _add_result(case, "skipped", report_headline(report))
    for suite in root:
        set_case_counts(suite)
        suite.set("skipped", str(sum(1 for _ in suite.iter("skipped"))))
    set_case_counts(root)
    return serialise_xml(root)


def serialise_xml(root: Element) -> str:
    indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}\n'


def _add_tool_suite(root: Element, tool: ToolRun) -> None:
    """What it broke fails; what was red before is skipped; what did not run is an error."""
    suite = SubElement(root, "testsuite", name=to_xml_text(tool.name))
    if tool.seconds is not None:
        suite.set("time", f"{tool.seconds:.3f}")
    for name in tool.broke:
        _add_result(
            _add_case(suite, name, tool.name), "failure", "fails since this change", tool.output
        )
    for name in tool.already:
        _add_result(_add_case(suite, name, tool.name), "skipped", "failed before this change too")
    for name in tool.mended:
        _add_case(suite, name, tool.name)
    if tool.broke:
        return
    case = _add_case(suite, tool.command, tool.name)
    note = tool.note or tool.after
    if tool.after != "passed" and tool_outcome(tool) == "no worse":
        _add_result(case, "skipped", f"{note}, before this change too")
    elif tool.after == "failed":
        _add_result(case, "failure", note, tool.output)
    elif tool.after != "passed":
        _add_result(case, "error", note, tool.output)


def _add_finding(suite: Element, finding: Finding) -> None:
    """Errors fail; warnings and notes are told."""
    place = finding.places[0] if finding.places else finding.rule
    case = _add_case(suite, f"{finding.rule} {place}", finding.rule)
    if finding.severity == "error":
        _add_result(case, "failure", finding.message, "\n".join(finding.places))
    else:
        SubElement(case, "system-out").text = to_xml_text(f"{finding.severity}: {finding.message}")


def _add_case(suite: Element, name: str, group: str) -> Element:
    return SubElement(suite, "testcase", name=to_xml_text(name), classname=to_xml_text(group))


def _add_result(case: Element, kind: str, message: str, text: str = "") -> None:
    element = SubElement(case, kind, message=to_xml_text(message))
    if kind != "skipped":
        element.set("type", kind)
        element.text = to_xml_text(text) or None


def set_case_counts(element: Element) -> None:
    """Say how many cases are in it, and how many of them are red."""
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        element.set(name, str(sum(1 for _ in element.iter(tag))))


def to_xml_text(text: str) -> str:
    """Text that XML can hold."""
    return _NOT_XML.sub("\ufffd", make_visible(text))


# Findings as GitLab's code quality report, which merge requests show beside the lines.

GITLAB_SEVERITIES = {"error": "major", "warning": "minor", "info": "info"}


def build_code_quality(report: ChangeReport) -> list[dict[str, Any]]:
    """Every finding. One without a place of its own stands at the first file of the change."""
    findings = list_active_findings(report)
    files = report.change.files
    elsewhere = SourcePlace(path=files[0].path if files else "README.md")
    if report.verdict == "unverified":
        message = f"{report_headline(report)}."
        findings.append(
            Finding(
                rule="unverified", version=1, severity="warning", message=message, source="check"
            )
        )
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
