"""What CTest and GoogleTest print."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found

marks = ("The following tests FAILED:", "% tests passed", "[  FAILED  ] ", "***Failed")

_LISTED = re.compile(r"^[ \t]+\d+ - (\S+) \((\w[^)]*)\)", re.MULTILINE)
_RAN = re.compile(r"^ *\d+/\d+ +Test +#\d+: (\S+) \.*\*\*\*(\w+)", re.MULTILINE)
_GOOGLE = re.compile(r"^\[  FAILED  \] (\S+\.\S+?)(?:,|\s|$)", re.MULTILINE)
_FAILURE = re.compile(r"^(\S+?):\d+: Failure\n([^\n]*)", re.MULTILINE)
_TOTAL = re.compile(r"\b\d{1,3}% tests passed, (\d++) tests? failed out of (\d++)")


def verdict(text: str) -> bool | None:
    total = _TOTAL.search(text[-4000:])
    if total:
        return None if total[2] == "0" else total[1] == "0"
    if "[  FAILED  ] " in text:
        return False
    return True if "[  PASSED  ] " in text else None


def gather(text: str, found: Found) -> None:
    begin = text.find("The following tests FAILED:")
    for name, cause in _LISTED.findall(text[begin:]) if begin >= 0 else _RAN.findall(text):
        found.test(name, cause)
        found.tested(name)
    failures = _FAILURE.findall(text)
    for name in _GOOGLE.findall(text):
        found.test(name)
        found.tested(name.rpartition(".")[2])
    for path, message in failures:
        found.path(path)
        found.names(message)
