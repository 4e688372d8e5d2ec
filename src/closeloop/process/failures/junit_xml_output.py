"""JUnit's XML, read as text: it may be cut short, and it is not to be trusted."""

from __future__ import annotations

import re
from html import unescape

from closeloop.process.failures.failure_collector import FailureCollector, split_by_headers

marks = ("<testcase", "<testsuite")

_TEST_CASE = re.compile(r"<testcase\b([^>]{0,1000})>")
_FAILURE_ELEMENT = re.compile(
    r"\s*(?:<properties>.{0,4000}?</properties>\s*)?<(?:failure|error)\b([^>]{0,4000})", re.DOTALL
)
_SUITE_ELEMENT = re.compile(r"<testsuite\b[^>]{0,2000}")


def read_verdict(text: str) -> bool | None:
    suites = _SUITE_ELEMENT.findall(text)
    counts = [_attribute_value(suite, name) for suite in suites for name in ("failures", "errors")]
    if any(count not in ("", "0") for count in counts):
        return False
    return True if suites and any(counts) else None


def collect_failures(text: str, found: FailureCollector) -> None:
    for case, body in split_by_headers(_TEST_CASE, text):
        failed = _FAILURE_ELEMENT.match(body) if not case[1].endswith("/") else None
        if failed is not None:
            name = ".".join(
                filter(
                    None,
                    (_attribute_value(case[1], "classname"), _attribute_value(case[1], "name")),
                )
            )
            found.add_test(name, _attribute_value(failed[1], "message"))
            found.add_path(_attribute_value(case[1], "file"))
            found.add_test_name(_attribute_value(case[1], "name").partition("[")[0])


def _attribute_value(attributes: str, name: str) -> str:
    match = re.search(rf'\b{name}="([^"]*)"', attributes)
    return unescape(match[1]).partition("\n")[0] if match else ""
