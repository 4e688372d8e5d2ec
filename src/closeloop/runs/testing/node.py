"""Results of Node's own runner: the reporter that it is handed, and what that writes."""

from __future__ import annotations

import urllib.parse
from typing import Any

import msgspec

from closeloop.runs.testing.sheet import Reading, Sheet, Status, number

# Its own reports do not say which file a test is in. A line for each event, and one at the end.
# A file whose failed test leaves a server behind would never end: files are told to, where they
# understand it. Node itself must not be: then it forgets the end of its report.
_REPORTER = """\
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
REPORTER = f"data:text/javascript,{urllib.parse.quote(_REPORTER, safe='')}"
"""As Node imports it: no file is needed, and no shell sees anything in it."""
_DEEPEST = 100


def read_node(report: bytes, root: str) -> Reading:
    """Ids are `path/to/file.js > describe > name`; of a file that does not load, its path."""
    sheet, complete = Sheet(), False
    above: list[str] = []
    for line in report.splitlines():
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            event = None
        if isinstance(event, dict) and event.get("type") == "end":
            complete = True
        elif not _is_about_a_test(event):
            sheet.unread += 1
        else:
            above = [*above[: event["nesting"]], event["name"]]
            if event["type"] != "test:start":
                _add(sheet, event, above, root)
    return sheet.reading(complete)


def _is_about_a_test(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("type") in ("test:start", "test:pass", "test:fail")
        and isinstance(event.get("name"), str)
        and isinstance(event.get("nesting"), int)
        and 0 <= event["nesting"] < _DEEPEST
    )


def _add(sheet: Sheet, event: dict[str, Any], titles: list[str], root: str) -> None:
    """A suite counts only where it broke by itself, as when a hook fails."""
    suite, failed = event.get("kind") == "suite", event["type"] == "test:fail"
    if suite and (not failed or event.get("failure") == "subtestsFailed"):
        return
    file, message = event.get("file"), event.get("message")
    path = _path(file, root) if isinstance(file, str) else ""
    milliseconds = number(event.get("milliseconds"))
    whole = len(titles) == 1 and _path(titles[0], root) == path
    status: Status = "error" if failed and (suite or whole) else "failed" if failed else "passed"
    sheet.add(
        path if whole else " > ".join(filter(None, (path, *titles))),
        "skipped" if event.get("skipped") is True else status,
        seconds=None if milliseconds is None else milliseconds / 1000,
        message=message if isinstance(message, str) else None,
        begun=status != "error",
    )


def _path(file: str, root: str) -> str:
    return file.removeprefix("file://").replace("\\", "/").removeprefix(root.rstrip("/") + "/")
