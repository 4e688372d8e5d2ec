"""Change a field of a task's file, and leave every other byte of it as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from closeloop.model.errors import BadInput, MachineFailed
from closeloop.tasks.front import read_text, split
from closeloop.tasks.write import yaml_text

Value = str | tuple[str, ...] | None
"""None takes the field out."""


def with_field(text: str, field: str, value: Value, name: str) -> str:
    """The text of a task with one field of its front matter set."""
    before, body = split(text, name)
    wanted = {key: kept for key, kept in before.items() if key != field}
    if value is not None:
        wanted[field] = list(value) if isinstance(value, tuple) else value
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace("\r\n", "\n").split("\n")
    last = next(number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---")
    kept = list(_without(lines[1:last], field))
    if value is not None:
        kept.append(f"{field}: {_written(value)}")
    edited = end.join([lines[0], *kept, *lines[last:]])
    try:
        understood = split(edited, name) == (wanted, body)
    except BadInput:
        understood = False
    if not understood:
        raise BadInput(f"{name}: {field!r} is written in a way that only people can change: do so.")
    return edited


def set_field(path: Path, field: str, value: Value) -> None:
    """Change a field of a file: it is whole before, and whole after."""
    edited = with_field(read_text(path, str(path)), field, value, str(path))
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(edited.encode())
        draft.replace(path)
    except OSError as error:
        raise MachineFailed(f"{path} cannot be written: {error.strerror}.") from error


def _without(lines: Sequence[str], field: str) -> list[str]:
    """The lines that do not belong to a field: not its own, nor those indented below it."""
    kept, inside = [], False
    for line in lines:
        if re.match(rf"{re.escape(field)}[ \t]*:", line):
            inside = True
        elif inside and line.strip() and not line[0].isspace() and not line.startswith("- "):
            inside = False
        if not inside:
            kept.append(line)
    return kept


def _written(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return yaml_text(value)
    return f"[{', '.join(yaml_text(item) for item in value)}]"
