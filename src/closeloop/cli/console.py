"""Where commands write: text for people on a terminal or in a pipe, JSON for programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec

from closeloop.model.visible import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["console", "json_of", "say", "say_json", "show", "visible", "warn", "whole"]

PIPE_WIDTH = 140
LONGEST_NAME = 48
"""A longer one is folded: in one line it would push ids and numbers out of its table."""


def console(*, stderr: bool = False) -> Console:
    """A rich console; wide in a pipe, so that tables are not cut where nobody asked for it."""
    from rich.console import Console

    class Output(Console):
        """Lets whoever called it know that nobody reads any more."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    return Output(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if stream.isatty() else PIPE_WIDTH,
    )


def say(text: str) -> None:
    """A line of plain text."""
    print(visible(text), flush=True)  # noqa: T201


def warn(text: str) -> None:
    """A line for people that is no part of the answer."""
    print(f"closeloop: {visible(text)}", file=sys.stderr)  # noqa: T201


def show(*parts: RenderableType) -> None:
    """Tables and the like."""
    from rich.table import Table

    output = console()
    for part in parts:
        for column in part.columns if isinstance(part, Table) else ():
            if column.no_wrap and any(len(str(cell)) > LONGEST_NAME for cell in column.cells):
                column.no_wrap, column.overflow = False, "fold"
        output.print(part)


def say_json(value: Any) -> None:
    """One JSON document, with every field of every record."""
    print(json_of(value), end="")  # noqa: T201


def json_of(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(whole(value))).decode() + "\n"


def whole(value: Any) -> Any:
    """Records as maps that leave nothing out: programs look fields up by name."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        kind = {value.__struct_config__.tag_field or "": tag} if tag else {}
        return kind | {name: whole(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [whole(item) for item in value]
    return value
