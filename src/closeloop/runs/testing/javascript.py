"""Results of jest and of vitest, which writes jest's format."""

from __future__ import annotations

from typing import Any

import msgspec

from closeloop.runs.testing.sheet import Reading, Sheet, Status, number

_STATUS: dict[str, Status] = {
    "passed": "passed",
    "failed": "failed",
    "pending": "skipped",
    "skipped": "skipped",
    "todo": "skipped",
    "disabled": "skipped",
}


def read_jest(report: bytes, root: str) -> Reading:
    """Ids are `path/to/file.test.ts > describe > name`."""
    sheet = Sheet()
    try:
        document = msgspec.json.decode(report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return sheet.reading(False)
    files = document.get("testResults") if isinstance(document, dict) else None
    if not isinstance(files, list):
        return sheet.reading(False)
    for file in files:
        if isinstance(file, dict) and isinstance(file.get("name"), str):
            _add_file(sheet, file, root)
        else:
            sheet.unread += 1
    return sheet.reading(True)


def _add_file(sheet: Sheet, file: dict[str, Any], root: str) -> None:
    path = file["name"].replace("\\", "/").removeprefix(root.rstrip("/") + "/")
    tests = file.get("assertionResults")
    if not isinstance(tests, list):
        tests = []
        sheet.unread += 1
    failed = False
    for test in tests:
        titles = _titles(test)
        if titles is None:
            sheet.unread += 1
            continue
        status = _STATUS[test["status"]]
        failed = failed or status == "failed"
        milliseconds = number(test.get("duration"))
        sheet.add(
            " > ".join((path, *titles)),
            status,
            seconds=None if milliseconds is None else milliseconds / 1000,
            message=_text(test.get("failureMessages")),
        )
    if file.get("status") == "failed" and not failed:
        sheet.add(path, "error", message=_text(file.get("message")), begun=False)


def _titles(test: Any) -> tuple[str, ...] | None:
    """Describes and name of a test; None where this is no test."""
    if not isinstance(test, dict) or test.get("status") not in _STATUS:
        return None
    above, title = test.get("ancestorTitles"), test.get("title")
    if not isinstance(above, list) or not isinstance(title, str):
        return None
    return (*map(str, above), title)


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        return "\n".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else None
