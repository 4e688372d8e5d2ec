"""What RSpec and Minitest print."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import (
    FailureCollector,
    first_text_line,
    split_by_headers,
)

marks = ("\nrspec ./", " examples, ", " runs, ", "Failure/Error:", "\nFailure:\n", "\nError:\n")

_RSPEC_FAILURE = re.compile(
    r"^rspec (?:'|\")?(\./[^\s:'\"\[]+)(?::\d+|\[[\d:]+\])(?:'|\")? # ([^\n]+)", re.MULTILINE
)
_NUMBERED_FAILURE = re.compile(r"^ {2}\d+\) (?!Failure:|Error:|Skipped:)([^\n]+)\n", re.MULTILINE)
_MINITEST_FAILURE = re.compile(
    r"^(?: *\d+\) )?(?:Failure|Error):\n(\S+#[^\s\[:]+)(?: \[([^\]:]+):\d+\])?:?\n", re.MULTILINE
)
_TOTALS = re.compile(
    r"^(?:(\d+) examples?, (\d+) failures?(?:, \d+ pending)?(?:, (\d+) errors?)?"
    r"|(\d+) (?:runs|tests), \d+ assertions, (\d+) failures, (\d+) errors)", re.MULTILINE,
)  # fmt: skip
_STACK_FRAME = re.compile(r"# (\./[^\s:]+):\d+:in [`'](?:[\w:#]*[#.])?([^']+)'")


def read_verdict(text: str) -> bool | None:
    results = _TOTALS.findall(text[-4000:])
    if any(count not in ("", "0") for result in results for count in (*result[1:3], *result[4:])):
        return False
    return True if any(result[0] or result[3] for result in results) else None


def collect_failures(text: str, found: FailureCollector) -> None:
    bodies_by_name = {}
    for header, body in split_by_headers(_NUMBERED_FAILURE, text):
        bodies_by_name[header[1].strip()] = body
    for path, name in _RSPEC_FAILURE.findall(text):
        body = bodies_by_name.pop(name.strip(), "")
        _add_example(f"{path} # {name.strip()}", body, found)
        found.add_path(path)
    for name, body in bodies_by_name.items():
        if "Failure/Error:" in body:
            _add_example(name, body, found)
    for header, body in split_by_headers(_MINITEST_FAILURE, text):
        found.add_test(header[1], first_text_line(body))
        found.add_path(header[2] or "")
        found.add_test_name(header[1].rpartition("#")[2])


def _add_example(name: str, body: str, found: FailureCollector) -> None:
    source, _, rest = body.partition("Failure/Error:")[2].partition("\n")
    found.add_test(name, first_text_line(rest), source)
    for path, function in _STACK_FRAME.findall(body[:8000]):
        found.add_path(path)
        found.add_symbol(function.rpartition(" in ")[2])
