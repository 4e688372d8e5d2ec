"""The Test Anything Protocol, and what `node --test` prints."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found, first_line, parts
from closeloop.process.failures.frames import pointed, script_frames

marks = ("TAP version", "\nnot ok ", "# fail ", "ℹ fail ", "✖ failing tests:")

_NOT_OK = re.compile(r"^ *+not ok \d*+(?: -)? ?([^\n]*+)", re.MULTILINE)
_FAILED = re.compile(r"^[#ℹ] fail (\d+)", re.MULTILINE)
_PASSED = re.compile(r"^[#ℹ] pass [1-9]", re.MULTILINE)
_ERROR = re.compile(r"^ *(?:error|message): *(?:\|-\n *)?([^\n]+)", re.MULTILINE)
_AT = re.compile(r"(?:location|at): ['\"]?([^\s'\"]+?):\d+")
_STACK = re.compile(r"\n +([\w.<>]+) \(([^\s:()]++):\d")
_SPEC = re.compile(r"^(?:test at (\S+?):\d+:\d+\n)? *✖ (.+?)(?: \([\d.]+ms\))?$", re.MULTILINE)


def verdict(text: str) -> bool | None:
    failed = _FAILED.findall(text[-4000:])
    if failed:
        return (
            False if any(count != "0" for count in failed) else bool(_PASSED.search(text)) or None
        )
    return None


def gather(text: str, found: Found) -> None:
    for test, body in parts(_NOT_OK, text):
        _failure(test[1], body, found)
    if not found.errors and "✖ " in text:
        _listed(text[max(text.find("✖ failing tests:"), 0) :], found)


def _failure(title: str, body: str, found: Found) -> None:
    name, _, remark = title.partition(" # ")
    if remark[:4].upper() in ("TODO", "SKIP") or title.endswith("{"):
        return
    body = body.partition("\n# Subtest")[0][:4000]
    if "'subtestsFailed'" in body:
        return
    error = _ERROR.search(body)
    found.test(name, error[1].strip("\"'") if error else "")
    pointed([(path, function, "") for function, path in _STACK.findall(body)], found)
    for path in _AT.findall(body):
        found.path(path)
    found.tested(name)


def _listed(text: str, found: Found) -> None:
    for test, body in parts(_SPEC, text):
        path, name = test[1] or "", test[2]
        if name == "failing tests:" or name.endswith("# TODO"):
            continue
        found.test(f"{path} > {name}" if path else name, first_line(body))
        pointed(script_frames(body[:4000]), found)
        found.path(path)
        found.tested(name)
