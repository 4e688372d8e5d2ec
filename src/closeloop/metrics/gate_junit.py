"""A gate's report as JUnit XML, which every build server shows."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

from closeloop.changes.reports.junit_report import serialise_xml, set_case_counts, to_xml_text
from closeloop.metrics.gate_demands import describe_rate_change, describe_threshold_value
from closeloop.records.baseline import GateReport


def gate_to_junit(report: GateReport, refusal: str | None = None) -> str:
    """A case a metric, a task and a threshold; what fails the gate fails there too."""
    root = Element("testsuites", name="closeloop gate")
    suite = SubElement(root, "testsuite", name="metrics")
    for one in report.differences:
        case = _add_case(
            suite,
            one.metric,
            one.variant,
            f"worse: {describe_rate_change(one)}",
            one.verdict == "worse",
        )
        if one.verdict == "not enough data":
            SubElement(case, "skipped", message=one.verdict)
    suite = SubElement(root, "testsuite", name="tasks")
    for task in report.tasks:
        _add_case(
            suite,
            task.task,
            task.variant,
            f"worse: {describe_rate_change(task)}",
            task.verdict == "worse",
        )
    suite = SubElement(root, "testsuite", name="thresholds")
    for demand in report.thresholds:
        name = f"{demand.metric} at least {demand.least:g}"
        _add_case(suite, name, demand.variant, describe_threshold_value(demand), not demand.holds)
    suite = SubElement(root, "testsuite", name="verdict")
    is_failed = not report.passed and not refusal
    verdict = _add_case(suite, "gate", "closeloop", "; ".join(report.reasons), is_failed)
    if refusal:
        SubElement(verdict, "error", message=to_xml_text(refusal), type="coverage")
    for element in (root, *root):
        set_case_counts(element)
    return serialise_xml(root)


def _add_case(suite: Element, name: str, group: str, why: str, failed: bool) -> Element:
    case = SubElement(suite, "testcase", name=to_xml_text(name), classname=to_xml_text(group))
    if failed:
        SubElement(case, "failure", message=to_xml_text(why), type="worse")
    return case
