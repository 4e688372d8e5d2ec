"""What all edits of a file together leave behind, those made in the shell among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from closeloop.process.edit_contents import EditLines, diff_edit, list_file_edits
from closeloop.process.submitted_change import list_submitted_edits
from closeloop.records.inspection import TraceReading, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Edit


class NetChange(Record):
    """What all edits of one file together leave added and removed."""

    path: str
    steps: tuple[TraceStep, ...]
    edits: tuple[Edit, ...]
    lines: tuple[EditLines, ...]
    """Of each edit whose text tells what it replaced."""
    added: tuple[str, ...]
    removed: tuple[str, ...]


def list_net_changes(
    reading: TraceReading, steps_by_path: Mapping[str, Collection[TraceStep]]
) -> Iterator[NetChange]:
    """By file; of the submitted diff where there is one, else of all edits together."""
    submitted = list_submitted_edits(reading) if steps_by_path else None
    for path, steps in steps_by_path.items():
        edits = (
            [edit for edit in submitted if edit.path == path]
            if submitted is not None
            else [edit for step in steps for one, edit in list_file_edits(step) if one == path]
        )
        changing = [edit for edit in edits if edit.action == "change"]
        if changing:
            yield _build_net(path, steps, changing)


def _build_net(path: str, steps: Iterable[TraceStep], edits: Sequence[Edit]) -> NetChange:
    added: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    told = []
    for edit in edits:
        lines = diff_edit(edit)
        if lines is not None and (edit.patch is None or "@@" in edit.patch):
            told.append(lines)
            added.update(lines.added)
            removed.update(lines.removed)
    return NetChange(
        path=path,
        steps=tuple(steps),
        edits=tuple(edits),
        lines=tuple(told),
        added=tuple((added - removed).elements()),
        removed=tuple((removed - added).elements()),
    )
