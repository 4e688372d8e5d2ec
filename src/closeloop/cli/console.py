"""Where commands write: text for people on a terminal or in a pipe, JSON for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from closeloop.records.errors import BadInput
from closeloop.text.untrusted import make_visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = [
    "JsonFlag",
    "format_json",
    "make_visible",
    "open_console",
    "print_json",
    "print_line",
    "print_parts",
    "print_warning",
    "record_to_map",
    "show_progress",
]

JsonFlag = Annotated[bool, Parameter(help="Print one JSON document instead.")]
"""The option `--json`, which every command explains alike."""


PIPE_WIDTH = 140
MAX_NAME_CHARS = 48
"""A longer one is folded: in one line it would push ids and numbers out of its table."""


def open_console(*, stderr: bool = False) -> Console:
    """A rich console; wide in a pipe, so that tables are not cut where nobody asked for it."""
    from rich.console import Console

    class PipeAwareConsole(Console):
        """Lets whoever called it know that nobody reads any more."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    return PipeAwareConsole(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if stream.isatty() else PIPE_WIDTH,
    )


def print_line(text: str) -> None:
    """A line of plain text."""
    print(make_visible(text), flush=True)  # noqa: T201


def print_warning(text: str) -> None:
    """A line for people that is no part of the answer."""
    print(f"closeloop: {make_visible(text)}", file=sys.stderr)  # noqa: T201


@contextmanager
def show_progress(first: str) -> Iterator[Callable[[str], None]]:
    """Say what is going on and since when: on a terminal in one line, in logs in a line a stage."""
    output = open_console(stderr=True)
    if not output.is_terminal:
        began = time.monotonic()
        yield lambda text: print_warning(f"[{time.monotonic() - began:.0f} s] {text}")
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=output, transient=True) as progress:
        stage = progress.add_task(first, total=None)
        yield lambda text: progress.update(stage, description=make_visible(text))


def print_parts(*parts: RenderableType) -> None:
    """Tables and the like."""
    from rich.table import Table

    output = open_console()
    for part in parts:
        for column in part.columns if isinstance(part, Table) else ():
            if column.no_wrap and any(len(str(cell)) > MAX_NAME_CHARS for cell in column.cells):
                column.no_wrap, column.overflow = False, "fold"
        output.print(part)


def print_json(value: Any) -> None:
    """One JSON document, with every field of every record."""
    print(format_json(value), end="")  # noqa: T201


def format_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(record_to_map(value))).decode() + "\n"


def record_to_map(value: Any) -> Any:
    """Records as maps that leave nothing out: programs look fields up by name."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        kind = {value.__struct_config__.tag_field or "": tag} if tag else {}
        return kind | {
            name: record_to_map(getattr(value, name)) for name in value.__struct_fields__
        }
    if isinstance(value, dict):
        return {name: record_to_map(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [record_to_map(item) for item in value]
    return value


# Files that somebody names on the command line.


def read_file_content(file: Path, most: int = -1) -> bytes:
    """What a file holds: all of it, or so many bytes at the most."""
    try:
        with file.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error


@contextmanager
def report_write_errors(file: Path | None) -> Iterator[None]:
    """BadInput where the file cannot be written."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{file} cannot be written ({error.strerror}): name another.") from error


def write_named_file(file: Path, made: bytes) -> None:
    with report_write_errors(file):
        file.write_bytes(made)


# What somebody typed after a command, looked at before anything is done with it.


def refuse_option(word: str, command: str) -> None:
    """BadInput for an unknown option where `-`, and so a hyphen, may be typed."""
    if word.startswith("-") and word != "-":
        raise BadInput(f"Unknown option: {word}. See `closeloop {command} --help`.")


def require_positive_flags(**flags: float | None) -> None:
    """BadInput for a flag that is given and counts nothing."""
    for name, value in flags.items():
        if value is not None and not value > 0:
            raise BadInput(f"--{name} must be more than 0.")


def require_margin(margin: float | None) -> None:
    if margin is not None and not 0 < margin < 1:
        raise BadInput(f"A margin of {margin:g} is none: give one between 0 and 1, such as 0.05.")


def require_utf8_text(text: str, name: str) -> None:
    """BadInput for another encoding: no model could be sent it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{name} is not UTF-8 text: type it as UTF-8.") from None


def split_list_flag(text: str, mark: str = ",") -> list[str]:
    """The parts of what is one word to a shell."""
    return [part.strip() for part in text.split(mark) if part.strip()]
