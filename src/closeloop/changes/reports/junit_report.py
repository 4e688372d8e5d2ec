"""A report as JUnit XML, which every build server shows."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from closeloop.changes.reports.report_text import list_active_findings, report_headline
from closeloop.grading.tool_outcomes import tool_outcome
from closeloop.records.change_report import ChangeReport, ToolRun
from closeloop.records.finding import Finding
from closeloop.records.visible_text import make_visible

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
