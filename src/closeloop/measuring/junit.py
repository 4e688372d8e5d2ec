"""A gate's report as JUnit XML, which every build server shows."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

from closeloop.changes.reports.junit import count, document, safe
from closeloop.measuring.demands import fell, seen
from closeloop.model.baseline import GateReport


def junit(report: GateReport, refusal: str | None = None) -> str:
    """A case a metric, a task and a threshold; what fails the gate fails there too."""
    root = Element("testsuites", name="closeloop gate")
    suite = SubElement(root, "testsuite", name="metrics")
    for one in report.differences:
        case = _case(suite, one.metric, one.variant, f"worse: {fell(one)}", one.verdict == "worse")
        if one.verdict == "not enough data":
            SubElement(case, "skipped", message=one.verdict)
    suite = SubElement(root, "testsuite", name="tasks")
    for task in report.tasks:
        _case(suite, task.task, task.variant, f"worse: {fell(task)}", task.verdict == "worse")
    suite = SubElement(root, "testsuite", name="thresholds")
    for demand in report.thresholds:
        name = f"{demand.metric} at least {demand.least:g}"
        _case(suite, name, demand.variant, seen(demand), not demand.holds)
    suite = SubElement(root, "testsuite", name="verdict")
    said = not report.passed and not refusal
    verdict = _case(suite, "gate", "closeloop", "; ".join(report.reasons), said)
    if refusal:
        SubElement(verdict, "error", message=safe(refusal), type="coverage")
    for element in (root, *root):
        count(element)
    return document(root)


def _case(suite: Element, name: str, group: str, why: str, failed: bool) -> Element:
    case = SubElement(suite, "testcase", name=safe(name), classname=safe(group))
    if failed:
        SubElement(case, "failure", message=safe(why), type="worse")
    return case
