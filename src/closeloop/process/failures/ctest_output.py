"""What CTest and GoogleTest print."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import FailureCollector

marks = ("The following tests FAILED:", "% tests passed", "[  FAILED  ] ", "***Failed")

_LISTED_FAILURE = re.compile(r"^[ \t]+\d+ - (\S+) \((\w[^)]*)\)", re.MULTILINE)
_FAILED_RUN = re.compile(r"^ *\d+/\d+ +Test +#\d+: (\S+) \.*\*\*\*(\w+)", re.MULTILINE)
_GOOGLE_FAILURE = re.compile(r"^\[  FAILED  \] (\S+\.\S+?)(?:,|\s|$)", re.MULTILINE)
_FAILURE = re.compile(r"^(\S+?):\d+: Failure\n([^\n]*)", re.MULTILINE)
_TOTAL = re.compile(r"\b\d{1,3}% tests passed, (\d++) tests? failed out of (\d++)")


def read_verdict(text: str) -> bool | None:
    total = _TOTAL.search(text[-4000:])
    if total:
        return None if total[2] == "0" else total[1] == "0"
    if "[  FAILED  ] " in text:
        return False
    return True if "[  PASSED  ] " in text else None


def collect_failures(text: str, found: FailureCollector) -> None:
    begin = text.find("The following tests FAILED:")
    for name, cause in (
        _LISTED_FAILURE.findall(text[begin:]) if begin >= 0 else _FAILED_RUN.findall(text)
    ):
        found.add_test(name, cause)
        found.add_test_name(name)
    failures = _FAILURE.findall(text)
    for name in _GOOGLE_FAILURE.findall(text):
        found.add_test(name)
        found.add_test_name(name.rpartition(".")[2])
    for path, message in failures:
        found.add_path(path)
        found.add_quoted_names(message)
