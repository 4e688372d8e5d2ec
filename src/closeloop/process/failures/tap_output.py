"""The Test Anything Protocol, and what `node --test` prints."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import (
    FailureCollector,
    first_text_line,
    split_by_headers,
)
from closeloop.process.failures.stack_frames import add_frames, parse_script_frames

marks = ("TAP version", "\nnot ok ", "# fail ", "ℹ fail ", "✖ failing tests:")

_NOT_OK_LINE = re.compile(r"^ *+not ok \d*+(?: -)? ?([^\n]*+)", re.MULTILINE)
_FAILED_TOTAL = re.compile(r"^[#ℹ] fail (\d+)", re.MULTILINE)
_PASSED_TOTAL = re.compile(r"^[#ℹ] pass [1-9]", re.MULTILINE)
_ERROR_MESSAGE = re.compile(r"^ *(?:error|message): *(?:\|-\n *)?([^\n]+)", re.MULTILINE)
_LOCATION = re.compile(r"(?:location|at): ['\"]?([^\s'\"]+?):\d+")
_STACK_FRAME = re.compile(r"\n +([\w.<>]+) \(([^\s:()]++):\d")
_SPEC_FAILURE = re.compile(
    r"^(?:test at (\S+?):\d+:\d+\n)? *✖ (.+?)(?: \([\d.]+ms\))?$", re.MULTILINE
)


def read_verdict(text: str) -> bool | None:
    failed = _FAILED_TOTAL.findall(text[-4000:])
    if failed:
        return (
            False
            if any(count != "0" for count in failed)
            else bool(_PASSED_TOTAL.search(text)) or None
        )
    return None


def collect_failures(text: str, found: FailureCollector) -> None:
    for test, body in split_by_headers(_NOT_OK_LINE, text):
        _add_failure(test[1], body, found)
    if not found.errors and "✖ " in text:
        _add_listed_failures(text[max(text.find("✖ failing tests:"), 0) :], found)


def _add_failure(title: str, body: str, found: FailureCollector) -> None:
    name, _, remark = title.partition(" # ")
    if remark[:4].upper() in ("TODO", "SKIP") or title.endswith("{"):
        return
    body = body.partition("\n# Subtest")[0][:4000]
    if "'subtestsFailed'" in body:
        return
    error = _ERROR_MESSAGE.search(body)
    found.add_test(name, error[1].strip("\"'") if error else "")
    add_frames([(path, function, "") for function, path in _STACK_FRAME.findall(body)], found)
    for path in _LOCATION.findall(body):
        found.add_path(path)
    found.add_test_name(name)


def _add_listed_failures(text: str, found: FailureCollector) -> None:
    for test, body in split_by_headers(_SPEC_FAILURE, text):
        path, name = test[1] or "", test[2]
        if name == "failing tests:" or name.endswith("# TODO"):
            continue
        found.add_test(f"{path} > {name}" if path else name, first_text_line(body))
        add_frames(parse_script_frames(body[:4000]), found)
        found.add_path(path)
        found.add_test_name(name)
