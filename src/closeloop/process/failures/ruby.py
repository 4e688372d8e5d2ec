"""What RSpec and Minitest print."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found, first_line, parts

marks = ("\nrspec ./", " examples, ", " runs, ", "Failure/Error:", "\nFailure:\n", "\nError:\n")

_RSPEC = re.compile(
    r"^rspec (?:'|\")?(\./[^\s:'\"\[]+)(?::\d+|\[[\d:]+\])(?:'|\")? # ([^\n]+)", re.MULTILINE
)
_NUMBERED = re.compile(r"^ {2}\d+\) (?!Failure:|Error:|Skipped:)([^\n]+)\n", re.MULTILINE)
_MINITEST = re.compile(
    r"^(?: *\d+\) )?(?:Failure|Error):\n(\S+#[^\s\[:]+)(?: \[([^\]:]+):\d+\])?:?\n", re.MULTILINE
)
_TOTALS = re.compile(
    r"^(?:(\d+) examples?, (\d+) failures?(?:, \d+ pending)?(?:, (\d+) errors?)?"
    r"|(\d+) (?:runs|tests), \d+ assertions, (\d+) failures, (\d+) errors)", re.MULTILINE,
)  # fmt: skip
_FRAME = re.compile(r"# (\./[^\s:]+):\d+:in [`'](?:[\w:#]*[#.])?([^']+)'")


def verdict(text: str) -> bool | None:
    results = _TOTALS.findall(text[-4000:])
    if any(count not in ("", "0") for result in results for count in (*result[1:3], *result[4:])):
        return False
    return True if any(result[0] or result[3] for result in results) else None


def gather(text: str, found: Found) -> None:
    told = {}
    for header, body in parts(_NUMBERED, text):
        told[header[1].strip()] = body
    for path, name in _RSPEC.findall(text):
        body = told.pop(name.strip(), "")
        _example(f"{path} # {name.strip()}", body, found)
        found.path(path)
    for name, body in told.items():
        if "Failure/Error:" in body:
            _example(name, body, found)
    for header, body in parts(_MINITEST, text):
        found.test(header[1], first_line(body))
        found.path(header[2] or "")
        found.tested(header[1].rpartition("#")[2])


def _example(name: str, body: str, found: Found) -> None:
    source, _, rest = body.partition("Failure/Error:")[2].partition("\n")
    found.test(name, first_line(rest), source)
    for path, function in _FRAME.findall(body[:8000]):
        found.path(path)
        found.symbol(function.rpartition(" in ")[2])
