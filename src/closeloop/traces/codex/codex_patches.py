"""Patches in Codex's own form: which files they touch, and how."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from closeloop.traces.untrusted_json import as_mapping

BEGIN, END = "*** Begin Patch", "*** End Patch"
_ACTION_BY_HEADER: dict[str, Literal["create", "change", "delete"]] = {
    "*** Add File: ": "create",
    "*** Update File: ": "change",
    "*** Delete File: ": "delete",
}
_ACTION_BY_CHANGE_TYPE: dict[str, Literal["create", "change", "delete"]] = {
    "add": "create",
    "delete": "delete",
}
_SHELL_BEFORE_PATCH = re.compile(r"\A\s*(?:cd [^\n&|;]+ && )?apply_patch\b[^\n]*\n?\Z")
_SHELL_AFTER_PATCH = re.compile(r"\A\s*['\"]?\w*['\")]?\s*\Z")


class FilePatch(NamedTuple):
    """What a patch does to one file."""

    path: str
    action: Literal["create", "change", "delete", "move"]
    after: str | None = None
    patch: str | None = None


def files_in_patch(text: str) -> list[FilePatch]:
    """The files of a patch, in its order; none where it is not one."""
    files = []
    for head, path, body in _iter_sections(text):
        if head == "*** Add File: ":
            lines = [line[1:] for line in body if line.startswith("+")]
            files.append(FilePatch(path, "create", after="\n".join(lines) + "\n"))
            continue
        moved = bool(body) and body[0].startswith("*** Move to: ")
        section = "\n".join([head + path, *body])
        files.append(FilePatch(path, "move" if moved else _ACTION_BY_HEADER[head], patch=section))
    return files


def _iter_sections(text: str) -> Iterator[tuple[str, str, list[str]]]:
    place: tuple[str, str] | None = None
    body: list[str] = []
    for line in text.splitlines():
        if not line.startswith("*** ") or line.startswith(("*** Move to: ", "*** End of File")):
            body.append(line)
            continue
        if place is not None:
            yield *place, body
        head = next((head for head in _ACTION_BY_HEADER if line.startswith(head)), None)
        place = (head, line[len(head) :].strip()) if head else None
        body = []
    if place is not None:
        yield *place, body


def files_in_command(command: str) -> list[FilePatch]:
    """The files of a patch given as a shell line, which Codex applies without a shell."""
    start, end = command.find(BEGIN), command.rfind(END)
    if start < 0 or end < start:
        return []
    before, after = command[:start], command[end + len(END) :]
    if not _SHELL_BEFORE_PATCH.match(before.rstrip("'\"")) or not _SHELL_AFTER_PATCH.match(after):
        return []
    return files_in_patch(command[start:end])


def files_in_changes(changes: Any) -> list[FilePatch]:
    """The files of a change that was made, as Codex tells it afterwards."""
    files = []
    # Codex writes them in no order of its own.
    for path, change in sorted(as_mapping(changes).items(), key=lambda item: item[0]):
        change_fields = as_mapping(change)
        kind, content = change_fields.get("type"), change_fields.get("content")
        if kind == "add" and isinstance(content, str):
            files.append(FilePatch(str(path), "create", after=content))
            continue
        diff = change_fields.get("unified_diff")
        action = (
            "move"
            if change_fields.get("move_path")
            else _ACTION_BY_CHANGE_TYPE.get(str(kind), "change")
        )
        patch = diff if isinstance(diff, str) else None
        files.append(FilePatch(str(path), action, patch=patch))
    return files
