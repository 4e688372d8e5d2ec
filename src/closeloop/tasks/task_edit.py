"""Change a field of a task's file, and leave every other byte of it as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.tasks.front_matter import read_task_text, split_front_matter
from closeloop.tasks.task_writer import yaml_scalar

FieldValue = str | tuple[str, ...] | None
"""None takes the field out."""


def text_with_field(text: str, field: str, value: FieldValue, name: str) -> str:
    """The text of a task with one field of its front matter set."""
    current_fields, body = split_front_matter(text, name)
    expected_fields = {key: kept for key, kept in current_fields.items() if key != field}
    if value is not None:
        expected_fields[field] = list(value) if isinstance(value, tuple) else value
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace("\r\n", "\n").split("\n")
    last = next(number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---")
    kept_lines = list(_drop_field_lines(lines[1:last], field))
    if value is not None:
        kept_lines.append(f"{field}: {_render_value(value)}")
    edited = end.join([lines[0], *kept_lines, *lines[last:]])
    try:
        understood = split_front_matter(edited, name) == (expected_fields, body)
    except BadInput:
        understood = False
    if not understood:
        raise BadInput(f"{name}: {field!r} is written in a way that only people can change: do so.")
    return edited


def set_task_field(path: Path, field: str, value: FieldValue) -> None:
    """Change a field of a file: it is whole before, and whole after."""
    edited = text_with_field(read_task_text(path, str(path)), field, value, str(path))
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(edited.encode())
        draft.replace(path)
    except OSError as error:
        raise MachineFailed(f"{path} cannot be written: {error.strerror}.") from error


def _drop_field_lines(lines: Sequence[str], field: str) -> list[str]:
    """The lines that do not belong to a field: not its own, nor those indented below it."""
    kept_lines, inside = [], False
    for line in lines:
        if re.match(rf"{re.escape(field)}[ \t]*:", line):
            inside = True
        elif inside and line.strip() and not line[0].isspace() and not line.startswith("- "):
            inside = False
        if not inside:
            kept_lines.append(line)
    return kept_lines


def _render_value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return yaml_scalar(value)
    return f"[{', '.join(yaml_scalar(item) for item in value)}]"
