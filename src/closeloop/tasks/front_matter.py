"""Markdown with front matter: YAML between `---` lines, then the body."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from closeloop.records.errors import BadInput

MAX_FILE_BYTES = 4 << 20
MAX_NESTING = 8

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_QUOTE_HINT = "put a value that begins with '*' or '&' in quotes"
_NODE_EVENTS = (yaml.NodeEvent, yaml.CollectionEndEvent)
_YAML_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_task_text(path: Path, name: str, limit: int = MAX_FILE_BYTES) -> str:
    """A file's text; `name` is what faults call it."""
    try:
        with path.open("rb") as opened:
            content = opened.read(limit + 1)
        if len(content) > limit:
            raise BadInput(f"{name} is larger than {limit >> 20} MB: too large for a task.")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{name} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        ) from error


def split_front_matter(text: str, name: str) -> tuple[dict[str, Any], str]:
    """The front matter's fields, every scalar as text, and the body."""
    # A checkout with other line ends must not be another task.
    text = text.replace("\r\n", "\n")
    fenced = _FRONT_MATTER.match(text)
    if fenced is None:
        raise BadInput(
            f"{name}: front matter is missing: start with fields between two '---' lines."
        )
    try:
        value = _YamlBuilder(name).build_document(yaml.parse(fenced[1], Loader=_YAML_LOADER))
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 2}" if error.problem_mark else ""
        problem = (
            _QUOTE_HINT if "alias" in (error.context or "") else error.problem or error.context
        )
        raise BadInput(f"{name}: invalid YAML{line}: {problem}.") from error
    except yaml.YAMLError as error:
        raise BadInput(f"{name}: invalid YAML: {' '.join(str(error).split())}.") from error
    return value, text[fenced.end() :].strip()


class _YamlBuilder:
    """Plain values from YAML events.

    Not a yaml loader: those turn `no` into False and 1e7 into a number, let the last of two
    equal keys win, and let aliases grow a small file to any size.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def build_document(self, events: Iterator[Any]) -> dict[str, Any]:
        nodes = (event for event in events if isinstance(event, _NODE_EVENTS))
        first = next(nodes, None)
        value = {} if first is None else self._build_value(first, nodes, 0)
        if not isinstance(value, dict):
            raise BadInput(f"{self.name}: the front matter must be fields, such as `id: NAME`.")
        if (more := next(nodes, None)) is not None:
            raise self._make_fault(more, "the front matter must be one document")
        return value

    def _build_value(self, event: Any, events: Iterator[Any], depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._make_fault(event, f"no aliases or anchors here: {_QUOTE_HINT}")
        if depth > MAX_NESTING:
            raise self._make_fault(event, "values are nested too deeply")
        if isinstance(event, yaml.ScalarEvent):
            absent = not event.style and event.value in ("", "~", "null")
            return None if absent else event.value
        if isinstance(event, yaml.MappingStartEvent):
            return self._build_fields(events, depth)
        items = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(self._build_value(item, events, depth + 1))
        return items

    def _build_fields(self, events: Iterator[Any], depth: int) -> dict[str, Any]:
        """Fields without a value are left out: absent is not empty."""
        fields: dict[str, Any] = {}
        seen: set[str] = set()
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise self._make_fault(key, "a field's name must be plain text")
            if key.value in seen:
                raise self._make_fault(key, f"the field {key.value!r} is there twice")
            seen.add(key.value)
            value = self._build_value(next(events), events, depth + 1)
            if value is not None:
                fields[key.value] = value
        return fields

    def _make_fault(self, event: Any, what: str) -> BadInput:
        return BadInput(f"{self.name}: line {event.start_mark.line + 2}: {what}.")
