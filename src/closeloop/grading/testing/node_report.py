"""Results of Node's own runner: the reporter that it is handed, and what that writes."""

from __future__ import annotations

import urllib.parse
from typing import Any

import msgspec

from closeloop.grading.testing.suite_report import (
    ResultCollector,
    Status,
    SuiteReport,
    parse_seconds,
)

# Its own reports do not say which file a test is in. A line for each event, and one at the end.
# A file whose failed test leaves a server behind would never end: files are told to, where they
# understand it. Node itself must not be: then it forgets the end of its report.
_REPORTER_SOURCE = """\
const [major, minor] = process.versions.node.split(".").map(Number)
if (major > 20 || (major === 20 && minor > 13)) process.execArgv.push("--test-force-exit")
export default async function* (events) {
  for await (const { type, data } of events) {
    if (!["test:start", "test:pass", "test:fail"].includes(type)) continue
    const { name, nesting, file, skip, todo, details } = data
    const { duration_ms, error, type: kind } = details ?? {}
    const told = [error?.cause?.stack, error?.cause?.message, error?.cause, error?.message]
    yield JSON.stringify({
      type, name, nesting, file, kind, skipped: (skip ?? todo) !== undefined,
      milliseconds: duration_ms, failure: error?.failureType,
      message: told.find((text) => typeof text === "string")?.slice(0, 8000),
    }) + "\\n"
  }
  yield JSON.stringify({ type: "end" }) + "\\n"
}
"""
REPORTER_URL = f"data:text/javascript,{urllib.parse.quote(_REPORTER_SOURCE, safe='')}"
"""As Node imports it: no file is needed, and no shell sees anything in it."""
_MAX_NESTING = 100


def read_node(report: bytes, root: str) -> SuiteReport:
    """Ids are `path/to/file.js > describe > name`; of a file that does not load, its path."""
    sheet, complete = ResultCollector(), False
    titles: list[str] = []
    for line in report.splitlines():
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            event = None
        if isinstance(event, dict) and event.get("type") == "end":
            complete = True
        elif not _is_test_event(event):
            sheet.unread += 1
        else:
            titles = [*titles[: event["nesting"]], event["name"]]
            if event["type"] != "test:start":
                _add_event(sheet, event, titles, root)
    return sheet.build_report(complete)


def _is_test_event(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("type") in ("test:start", "test:pass", "test:fail")
        and isinstance(event.get("name"), str)
        and isinstance(event.get("nesting"), int)
        and 0 <= event["nesting"] < _MAX_NESTING
    )


def _add_event(sheet: ResultCollector, event: dict[str, Any], titles: list[str], root: str) -> None:
    """A suite counts only where it broke by itself, as when a hook fails."""
    is_suite, is_failed = event.get("kind") == "suite", event["type"] == "test:fail"
    if is_suite and (not is_failed or event.get("failure") == "subtestsFailed"):
        return
    file, message = event.get("file"), event.get("message")
    path = _relative_path(file, root) if isinstance(file, str) else ""
    milliseconds = parse_seconds(event.get("milliseconds"))
    is_whole_file = len(titles) == 1 and _relative_path(titles[0], root) == path
    status: Status = (
        "error"
        if is_failed and (is_suite or is_whole_file)
        else "failed"
        if is_failed
        else "passed"
    )
    sheet.add_result(
        path if is_whole_file else " > ".join(filter(None, (path, *titles))),
        "skipped" if event.get("skipped") is True else status,
        seconds=None if milliseconds is None else milliseconds / 1000,
        message=message if isinstance(message, str) else None,
        begun=status != "error",
    )


def _relative_path(file: str, root: str) -> str:
    return file.removeprefix("file://").replace("\\", "/").removeprefix(root.rstrip("/") + "/")
