"""Tags of tasks: what kind of work each is, and which failure modes it has shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from closeloop.model.errors import BadInput
from closeloop.model.patches import parse
from closeloop.model.task import Task

LONG_LIST = 3
_TAG = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_ITEM = re.compile(r"^\s{0,3}(?:[-*+]|\d{1,2}[.)])\s+\S", re.MULTILINE)


def kinds(task: Task) -> tuple[str, ...]:
    """The kinds that a task shows by itself."""
    files = parse(task.reference).files if task.reference else ()
    shown = {
        "ambiguous": task.ambiguous,
        "existing-code": any(file.status == "changed" for file in files),
        "multi-file": len(files) > 1,
        "multi-step": len(_ITEM.findall(task.prompt)) >= LONG_LIST,
        "needs-a-question": task.ambiguous and bool(task.answers),
    }
    return tuple(tag for tag, holds in shown.items() if holds)


def tag_of(mode: str) -> str:
    """A failure mode as a tag."""
    return re.sub(r"[^a-z0-9]+", "-", mode.lower()).strip("-")


def changed(tags: Sequence[str], changes: Iterable[str]) -> tuple[str, ...]:
    """Tags after `+one` and `-another`."""
    found = list(tags)
    for change in changes:
        sign, tag = change[:1], change[1:]
        if sign not in "+-" or not _TAG.fullmatch(tag):
            raise BadInput(
                f"{change!r} is no change of tags: write +name or -name, in small letters, "
                "digits and '-'."
            )
        if sign == "-" and tag not in found:
            raise BadInput(f"There is no tag {tag!r} to take away: it has {', '.join(found)}.")
        found = [one for one in found if one != tag] + ([tag] if sign == "+" else [])
    return tuple(found)
