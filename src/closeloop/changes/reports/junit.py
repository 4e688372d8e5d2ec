"""A report as JUnit XML, which every build server shows."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from closeloop.changes.reports.telling import counted, headline
from closeloop.changes.tool_outcomes import outcome_of
from closeloop.model.finding import Finding
from closeloop.model.report import Report, ToolRun
from closeloop.model.visible import visible

_NO_XML = re.compile("[\ufffe\uffff]")


def junit(report: Report) -> str:
    """A suite a tool, one for the findings, one for the verdict; red is what the change did."""
    root = Element("testsuites", name="closeloop")
    for tool in report.tools:
        _tool(root, tool)
    findings = SubElement(root, "testsuite", name="findings")
    for finding in counted(report):
        _finding(findings, finding)
    verdict = SubElement(root, "testsuite", name="verdict")
    if report.mending and report.mending.patch:
        properties = SubElement(verdict, "properties")
        SubElement(properties, "property", name="mended", value=safe(report.mending.patch))
    case = _case(verdict, report.title, "closeloop")
    if report.verdict == "block":
        _told(case, "failure", headline(report), "\n".join(report.reasons))
    for suite in root:
        count(suite)
        suite.set("skipped", str(sum(1 for _ in suite.iter("skipped"))))
    count(root)
    return document(root)


def document(root: Element) -> str:
    indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}\n'


def _tool(root: Element, tool: ToolRun) -> None:
    """What it broke fails; what was red before is skipped; what did not run is an error."""
    suite = SubElement(root, "testsuite", name=safe(tool.name))
    if tool.seconds is not None:
        suite.set("time", f"{tool.seconds:.3f}")
    for name in tool.broke:
        _told(_case(suite, name, tool.name), "failure", "fails since this change", tool.output)
    for name in tool.already:
        _told(_case(suite, name, tool.name), "skipped", "failed before this change too")
    for name in tool.mended:
        _case(suite, name, tool.name)
    if tool.broke:
        return
    case = _case(suite, tool.command, tool.name)
    note = tool.note or tool.after
    if tool.after != "passed" and outcome_of(tool) == "no worse":
        _told(case, "skipped", f"{note}, before this change too")
    elif tool.after == "failed":
        _told(case, "failure", note, tool.output)
    elif tool.after != "passed":
        _told(case, "error", note, tool.output)


def _finding(suite: Element, finding: Finding) -> None:
    """Errors fail; warnings and notes are told."""
    place = finding.places[0] if finding.places else finding.rule
    case = _case(suite, f"{finding.rule} {place}", finding.rule)
    if finding.severity == "error":
        _told(case, "failure", finding.message, "\n".join(finding.places))
    else:
        SubElement(case, "system-out").text = safe(f"{finding.severity}: {finding.message}")


def _case(suite: Element, name: str, group: str) -> Element:
    return SubElement(suite, "testcase", name=safe(name), classname=safe(group))


def _told(case: Element, kind: str, message: str, text: str = "") -> None:
    made = SubElement(case, kind, message=safe(message))
    if kind != "skipped":
        made.set("type", kind)
        made.text = safe(text) or None


def count(element: Element) -> None:
    """Say how many cases are in it, and how many of them are red."""
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        element.set(name, str(sum(1 for _ in element.iter(tag))))


def safe(text: str) -> str:
    """Text that XML can hold."""
    return _NO_XML.sub("\ufffd", visible(text))
