"""Patches in Codex's own form: which files they touch, and how."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from closeloop.traces.untrusted import mapping

BEGIN, END = "*** Begin Patch", "*** End Patch"
_ACTIONS: dict[str, Literal["create", "change", "delete"]] = {
    "*** Add File: ": "create",
    "*** Update File: ": "change",
    "*** Delete File: ": "delete",
}
_KINDS: dict[str, Literal["create", "change", "delete"]] = {"add": "create", "delete": "delete"}
_BEFORE = re.compile(r"\A\s*(?:cd [^\n&|;]+ && )?apply_patch\b[^\n]*\n?\Z")
_AFTER = re.compile(r"\A\s*['\"]?\w*['\")]?\s*\Z")


class FilePatch(NamedTuple):
    """What a patch does to one file."""

    path: str
    action: Literal["create", "change", "delete", "move"]
    after: str | None = None
    patch: str | None = None


def in_patch(text: str) -> list[FilePatch]:
    """The files of a patch, in its order; none where it is not one."""
    found = []
    for head, path, body in _sections(text):
        if head == "*** Add File: ":
            lines = [line[1:] for line in body if line.startswith("+")]
            found.append(FilePatch(path, "create", after="\n".join(lines) + "\n"))
            continue
        moved = bool(body) and body[0].startswith("*** Move to: ")
        section = "\n".join([head + path, *body])
        found.append(FilePatch(path, "move" if moved else _ACTIONS[head], patch=section))
    return found


def _sections(text: str) -> Iterator[tuple[str, str, list[str]]]:
    place: tuple[str, str] | None = None
    body: list[str] = []
    for line in text.splitlines():
        if not line.startswith("*** ") or line.startswith(("*** Move to: ", "*** End of File")):
            body.append(line)
            continue
        if place is not None:
            yield *place, body
        head = next((head for head in _ACTIONS if line.startswith(head)), None)
        place = (head, line[len(head) :].strip()) if head else None
        body = []
    if place is not None:
        yield *place, body


def in_command(command: str) -> list[FilePatch]:
    """The files of a patch given as a shell line, which Codex applies without a shell."""
    start, end = command.find(BEGIN), command.rfind(END)
    if start < 0 or end < start:
        return []
    before, after = command[:start], command[end + len(END) :]
    if not _BEFORE.match(before.rstrip("'\"")) or not _AFTER.match(after):
        return []
    return in_patch(command[start:end])


def in_changes(changes: Any) -> list[FilePatch]:
    """The files of a change that was made, as Codex tells it afterwards."""
    found = []
    # Codex writes them in no order of its own.
    for path, change in sorted(mapping(changes).items(), key=lambda item: item[0]):
        told = mapping(change)
        kind, content = told.get("type"), told.get("content")
        if kind == "add" and isinstance(content, str):
            found.append(FilePatch(str(path), "create", after=content))
            continue
        diff = told.get("unified_diff")
        action = "move" if told.get("move_path") else _KINDS.get(str(kind), "change")
        patch = diff if isinstance(diff, str) else None
        found.append(FilePatch(str(path), action, patch=patch))
    return found
