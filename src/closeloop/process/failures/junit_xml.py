"""JUnit's XML, read as text: it may be cut short, and it is not to be trusted."""

from __future__ import annotations

import re
from html import unescape

from closeloop.process.failures.found import Found, parts

marks = ("<testcase", "<testsuite")

_CASE = re.compile(r"<testcase\b([^>]{0,1000})>")
_FAILED = re.compile(
    r"\s*(?:<properties>.{0,4000}?</properties>\s*)?<(?:failure|error)\b([^>]{0,4000})", re.DOTALL
)
_TOTALS = re.compile(r"<testsuite\b[^>]{0,2000}")


def verdict(text: str) -> bool | None:
    suites = _TOTALS.findall(text)
    counts = [_value(suite, name) for suite in suites for name in ("failures", "errors")]
    if any(count not in ("", "0") for count in counts):
        return False
    return True if suites and any(counts) else None


def gather(text: str, found: Found) -> None:
    for case, body in parts(_CASE, text):
        failed = _FAILED.match(body) if not case[1].endswith("/") else None
        if failed is not None:
            name = ".".join(filter(None, (_value(case[1], "classname"), _value(case[1], "name"))))
            found.test(name, _value(failed[1], "message"))
            found.path(_value(case[1], "file"))
            found.tested(_value(case[1], "name").partition("[")[0])


def _value(attributes: str, name: str) -> str:
    match = re.search(rf'\b{name}="([^"]*)"', attributes)
    return unescape(match[1]).partition("\n")[0] if match else ""
