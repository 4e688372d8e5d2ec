"""Tags of tasks: what kind of work each is, and which failure modes it has shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from closeloop.records.errors import BadInput
from closeloop.records.task import Task
from closeloop.text.patches import parse_patch

MIN_LIST_ITEMS = 3
_TAG_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_LIST_ITEM = re.compile(r"^\s{0,3}(?:[-*+]|\d{1,2}[.)])\s+\S", re.MULTILINE)


def infer_kind_tags(task: Task) -> tuple[str, ...]:
    """The kinds that a task shows by itself."""
    files = parse_patch(task.reference).files if task.reference else ()
    kind_holds = {
        "ambiguous": task.ambiguous,
        "existing-code": any(file.status == "changed" for file in files),
        "multi-file": len(files) > 1,
        "multi-step": len(_LIST_ITEM.findall(task.prompt)) >= MIN_LIST_ITEMS,
        "needs-a-question": task.ambiguous and bool(task.answers),
    }
    return tuple(tag for tag, holds in kind_holds.items() if holds)


def tag_from_mode(mode: str) -> str:
    """A failure mode as a tag."""
    return re.sub(r"[^a-z0-9]+", "-", mode.lower()).strip("-")


def apply_tag_changes(tags: Sequence[str], changes: Iterable[str]) -> tuple[str, ...]:
    """Tags after `+one` and `-another`."""
    changed_tags = list(tags)
    for change in changes:
        sign, tag = change[:1], change[1:]
        if sign not in "+-" or not _TAG_PATTERN.fullmatch(tag):
            raise BadInput(
                f"{change!r} is no change of tags: write +name or -name, in small letters, "
                "digits and '-'."
            )
        if sign == "-" and tag not in changed_tags:
            raise BadInput(
                f"There is no tag {tag!r} to take away: it has {', '.join(changed_tags)}."
            )
        changed_tags = [one for one in changed_tags if one != tag] + ([tag] if sign == "+" else [])
    return tuple(changed_tags)
