"""Where commands write: text for people on a terminal or in a pipe, JSON for programs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from closeloop.records.errors import BadInput
from closeloop.text.untrusted import make_visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Column, Table
    from rich.text import Text

    from closeloop.records.attempt import AttemptRow

__all__ = [
    "OUTCOME_MARKS",
    "JsonFlag",
    "failure_reason",
    "format_json",
    "make_visible",
    "open_console",
    "print_detail",
    "print_error",
    "print_in_pager",
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
MIN_TEXT_CHARS = 20
"""A column of text is not made narrower than this."""
COLUMN_PADDING = 2
FOLD_INDENT = 5
COMFORTABLE_TEXT_CHARS = 32
OUTCOME_MARKS = {"pass": ("✓", "green"), "fail": ("✗", "red"), "unscored": ("?", "yellow")}


def failure_reason(row: AttemptRow) -> str:
    """Why it did not pass, in a line; nothing but this says that an unchecked agent crashed."""
    reason = row.reason or row.outcome_cause or row.cause or ""
    if row.is_for_review and row.exit == "crashed":
        reason += f"; the agent crashed: {row.cause or 'unknown reason'}"
    return make_visible(reason)


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
        quiet=stderr and verbosity == QUIET,
        width=None if stream.isatty() else PIPE_WIDTH,
    )


def print_line(text: str) -> None:
    """A line of plain text."""
    print(make_visible(text), flush=True)  # noqa: T201


QUIET, NORMAL, VERBOSE = range(3)
verbosity = NORMAL
"""How much is printed besides the answer; set once for each command, by -q and -v."""


def print_warning(text: str) -> None:
    """A line for people that is no part of the answer; nothing under --quiet."""
    if verbosity > QUIET:
        print_error(text)


def print_error(text: str) -> None:
    print(f"closeloop: {make_visible(text)}", file=sys.stderr)  # noqa: T201


def print_detail(text: str) -> None:
    """A line that is only printed under --verbose."""
    if verbosity == VERBOSE:
        print_error(text)


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


def print_in_pager(*parts: RenderableType) -> None:
    """The same, read in a pager where somebody reads it on a terminal."""
    output = open_console()
    if not output.is_terminal:
        print_parts(*parts)
        return
    os.environ.setdefault("LESS", "FRX")  # with colours, and not for what fits on the screen
    with output.pager(styles=True):
        output.print(*parts, sep="\n")


def print_parts(
    *parts: RenderableType, optional: Sequence[str] = (), below: Sequence[str] = ()
) -> None:
    """Tables and the like. In a pipe a table has a line a record, however long.

    On a terminal that is too narrow the `optional` columns of a table go, the first ones first;
    what does not fit even then stands below each row, as those of `below` always do.
    """
    from rich.table import Table
    from rich.text import Text

    output = open_console()
    for part in parts:
        if isinstance(part, Text) and output.is_terminal:
            _print_indented(output, part)
        elif not isinstance(part, Table) or not all(map(_has_plain_cells, part.columns)):
            output.print(part)
        elif output.is_terminal:
            _print_fitted(output, part, optional, below)
        else:
            _print_unwrapped(output, part)


def _print_indented(output: Console, text: Text) -> None:
    """Lines that are too long go on below their own beginning."""
    from rich.padding import Padding

    for line in text.split("\n", allow_blank=True):
        indent = len(line.plain) - len(line.plain.lstrip(" "))
        if line.cell_len <= output.width or indent > output.width // 2:
            output.print(line)
        else:
            output.print(Padding(line[indent:], (0, 0, 0, indent)))


def _has_plain_cells(column: Column) -> bool:
    from rich.text import Text

    return all(isinstance(cell, str | Text) for cell in column.cells)


def _print_unwrapped(output: Console, table: Table) -> None:
    """A line a record; what a cell says in several lines stands in one."""
    from rich.text import Text

    for column in table.columns:
        column.no_wrap, column.overflow = True, "ignore"
        column._cells[:] = [
            Text("  ").join(_as_text(cell).split("\n")) if "\n" in str(cell) else cell
            for cell in column.cells
        ]
        column.width = _column_width(column)
    needed = sum(COLUMN_PADDING + (column.width or 0) for column in table.columns)
    output.width = max(PIPE_WIDTH, needed)
    output.print(table)
    output.width = PIPE_WIDTH


def _print_fitted(
    output: Console, table: Table, optional: Sequence[str], below: Sequence[str]
) -> None:
    """As many columns as fit side by side; the others below each row, by their names."""
    columns = [column for column in table.columns if any(map(str, column.cells))]
    beside = [column for column in columns if column.header not in below]
    under = [column for column in columns if column.header in below]
    for name in optional:
        wanted = sum(_comfortable_width(column) + COLUMN_PADDING for column in beside)
        if wanted <= output.width:
            break
        beside = [column for column in beside if column.header != name]
    while len(beside) > 1 and _least_width(beside) > output.width:
        under.insert(0, beside.pop())
    room = output.width - _least_width(beside)
    for column in sorted(beside, key=lambda one: (not _is_rigid(one), -_column_width(one))):
        natural, least = _column_width(column), _least_column_width(column)
        column.width = min(natural, least + max(room, 0))
        room -= column.width - least
        column.no_wrap, column.overflow = column.width >= natural, "fold"
    if not under:
        table.columns = beside
        output.print(table)
        return
    _print_folded(output, table, beside, under)


def _print_folded(
    output: Console, table: Table, beside: Sequence[Column], under: Sequence[Column]
) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def print_row(cells: Iterable[Text]) -> None:
        line = Table(box=None, show_header=False)
        for column in beside:
            line.add_column(justify=column.justify, width=column.width, overflow="fold")
        line.add_row(*cells)
        output.print(line)

    if table.title:
        output.print(Text(str(table.title), style="bold"))
    if table.show_header:
        print_row(Text(str(column.header), style="bold") for column in beside)
    rows = zip(*(column.cells for column in (*beside, *under)), strict=True)
    for row in rows:
        print_row(_as_text(cell) for cell in row[: len(beside)])
        facts = Text(" · ", style="dim").join(
            Text.assemble((f"{column.header} " if column.header else "", "dim"), _as_text(cell))
            for column, cell in zip(under, row[len(beside) :], strict=True)
            if str(cell) not in ("", "–")
        )
        if facts:
            output.print(Padding(facts, (0, 0, 0, FOLD_INDENT)))


def _least_width(columns: Sequence[Column]) -> int:
    return sum(_least_column_width(column) + COLUMN_PADDING for column in columns)


def _least_column_width(column: Column) -> int:
    """How narrow it may get: ids and numbers not at all, a text to a few words."""
    natural = _column_width(column)
    if _is_rigid(column):
        return min(natural, MAX_NAME_CHARS)
    return min(natural, column.min_width or MIN_TEXT_CHARS)


def _comfortable_width(column: Column) -> int:
    """How wide it should be before another column takes its place."""
    if _is_rigid(column):
        return _least_column_width(column)
    return min(_column_width(column), column.max_width or COMFORTABLE_TEXT_CHARS)


def _is_rigid(column: Column) -> bool:
    return column.justify == "right" or column._index == 0 or column.no_wrap


def _column_width(column: Column) -> int:
    from rich.cells import cell_len

    lines = (line for cell in (column.header, *column.cells) for line in str(cell).split("\n"))
    return max(map(cell_len, lines), default=0)


def _as_text(cell: Any) -> Text:
    from rich.text import Text

    return cell.copy() if isinstance(cell, Text) else Text(str(cell))


def print_json(value: Any, total: int | None = None) -> None:
    """One JSON document, with every field of every record; a list as `{"items", "total"}`.

    `total` is how many there are in all, where a list has only some of them.
    """
    if isinstance(value, list | tuple):
        value = {"items": value, "total": len(value) if total is None else total}
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
        raise BadInput(
            f"{file} cannot be written ({error.strerror}): choose another file."
        ) from error


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
        raise BadInput(f"--margin must be between 0 and 1, such as 0.05, not {margin:g}.")


def require_utf8_text(text: str, name: str) -> None:
    """BadInput for another encoding: no model could be sent it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{name} is not UTF-8 text: enter it as UTF-8.") from None


def split_list_flag(text: str, mark: str = ",") -> list[str]:
    """The parts of what is one word to a shell."""
    return [part.strip() for part in text.split(mark) if part.strip()]
