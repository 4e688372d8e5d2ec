"""Results of jest, of vitest, which writes jest's format, and of mocha."""

from __future__ import annotations

from typing import Any

import msgspec

from closeloop.grading.testing.suite_report import (
    ResultCollector,
    Status,
    SuiteReport,
    parse_seconds,
)

_STATUS: dict[str, Status] = {
    "passed": "passed",
    "failed": "failed",
    "pending": "skipped",
    "skipped": "skipped",
    "todo": "skipped",
    "disabled": "skipped",
}
_MOCHA_START = b'{\n  "stats": {'
_MOCHA_STATUS: dict[str, Status] = {"passes": "passed", "failures": "failed", "pending": "skipped"}


def read_jest(report: bytes, root: str) -> SuiteReport:
    """Ids are `path/to/file.test.ts > describe > name`."""
    sheet = ResultCollector()
    try:
        document = msgspec.json.decode(report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return sheet.build_report(False)
    files = document.get("testResults") if isinstance(document, dict) else None
    if not isinstance(files, list):
        return sheet.build_report(False)
    for file in files:
        if isinstance(file, dict) and isinstance(file.get("name"), str):
            _add_jest_file(sheet, file, root)
        else:
            sheet.unread += 1
    return sheet.build_report(True)


def read_mocha(report: bytes, root: str) -> SuiteReport:
    """Ids are `path/to/file.js > describe name`. Printed, it may come after other output."""
    sheet = ResultCollector()
    start = report.rfind(_MOCHA_START)
    try:
        document = msgspec.json.Decoder(strict=False).decode(report[max(start, 0) :].rstrip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return sheet.build_report(False)
    if not isinstance(document, dict) or not isinstance(document.get("stats"), dict):
        return sheet.build_report(False)
    for kind, status in _MOCHA_STATUS.items():
        tests = document.get(kind)
        for test in tests if isinstance(tests, list) else ():
            if isinstance(test, dict) and isinstance(test.get("fullTitle"), str):
                _add_mocha(sheet, test, status, root)
            else:
                sheet.unread += 1
    return sheet.build_report(True)


def _add_mocha(sheet: ResultCollector, test: dict[str, Any], status: Status, root: str) -> None:
    file, error = test.get("file"), test.get("err")
    path = _relative_path(file, root) if isinstance(file, str) else ""
    milliseconds = parse_seconds(test.get("duration"))
    sheet.add_result(
        " > ".join(filter(None, (path, test["fullTitle"]))),
        status,
        seconds=None if milliseconds is None else milliseconds / 1000,
        message=_join_text(error.get("stack") or error.get("message"))
        if isinstance(error, dict)
        else None,
    )


def _relative_path(file: str, root: str) -> str:
    return file.replace("\\", "/").removeprefix(root.rstrip("/") + "/")


def _add_jest_file(sheet: ResultCollector, file: dict[str, Any], root: str) -> None:
    path = _relative_path(file["name"], root)
    tests = file.get("assertionResults")
    if not isinstance(tests, list):
        tests = []
        sheet.unread += 1
    failed = False
    for test in tests:
        titles = _test_titles(test)
        if titles is None:
            sheet.unread += 1
            continue
        status = _STATUS[test["status"]]
        failed = failed or status == "failed"
        milliseconds = parse_seconds(test.get("duration"))
        sheet.add_result(
            " > ".join((path, *titles)),
            status,
            seconds=None if milliseconds is None else milliseconds / 1000,
            message=_join_text(test.get("failureMessages")),
        )
    if file.get("status") == "failed" and not failed:
        sheet.add_result(path, "error", message=_join_text(file.get("message")), begun=False)


def _test_titles(test: Any) -> tuple[str, ...] | None:
    """Describes and name of a test; None where this is no test."""
    if not isinstance(test, dict) or test.get("status") not in _STATUS:
        return None
    above, title = test.get("ancestorTitles"), test.get("title")
    if not isinstance(above, list) or not isinstance(title, str):
        return None
    return (*map(str, above), title)


def _join_text(value: Any) -> str | None:
    if isinstance(value, list):
        return "\n".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else None
