"""Output of commands: text for people on a terminal or in a pipe, JSON for programs."""

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
    "WaitingLog",
    "describe_waiting",
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
    "unconfirmed_pass_note",
]

JsonFlag = Annotated[bool, Parameter(help="Print one JSON document instead.")]
"""The option `--json`, with the same help for every command."""


PIPE_WIDTH = 140
MAX_NAME_CHARS = 48
"""Characters of a name; a longer one is folded, to keep ids and numbers within the table."""
MIN_TEXT_CHARS = 20
"""Minimum width of a text column."""
COLUMN_PADDING = 2
FOLD_INDENT = 5
COMFORTABLE_TEXT_CHARS = 32
OUTCOME_MARKS = {"pass": ("✓", "green"), "fail": ("✗", "red"), "unscored": ("?", "yellow")}


def failure_reason(row: AttemptRow) -> str:
    """Return in a line why it did not pass, or that an agent without a check crashed."""
    reason = row.reason or row.outcome_cause or row.cause or ""
    if row.is_for_review and row.exit == "crashed":
        reason += f"; the agent crashed: {row.cause or 'unknown reason'}"
    return make_visible(reason)


def unconfirmed_pass_note(row: AttemptRow) -> str:
    """Return how the pass of an attempt is known, if it is not confirmed; else an empty text."""
    if row.outcome != "pass" or row.evidence == "confirmed":
        return ""
    return f"not confirmed: {row.evidence or 'unknown evidence'}"


def open_console(*, stderr: bool = False) -> Console:
    """Open a rich console; wide in a pipe, so that tables are not truncated."""
    from rich.console import Console

    class PipeAwareConsole(Console):
        """A console that raises BrokenPipeError when the reader of a pipe has closed it."""

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
    """Print a line of plain text."""
    print(make_visible(text), flush=True)  # noqa: T201


QUIET, NORMAL, VERBOSE = range(3)
verbosity = NORMAL
"""How much is printed besides the result; set once for each command, by -q and -v."""


def print_warning(text: str) -> None:
    """Print a line that is not part of the result; nothing under --quiet."""
    if verbosity > QUIET:
        print_error(text)


def print_error(text: str) -> None:
    print(f"closeloop: {make_visible(text)}", file=sys.stderr)  # noqa: T201


def print_detail(text: str) -> None:
    """Print a line only under --verbose."""
    if verbosity == VERBOSE:
        print_error(text)


@contextmanager
def show_progress(first: str) -> Iterator[Callable[[str], None]]:
    """Show the current stage and its duration: one line on a terminal, a line per stage in logs.

    A stage that waits for test suites of other processes is shown as such.
    """
    from closeloop.sandbox.admission import report_waiting

    output = open_console(stderr=True)
    current = first
    if not output.is_terminal:
        started_at = time.monotonic()

        def print_stage(text: str) -> None:
            print_warning(f"[{time.monotonic() - started_at:.0f} s] {text}")

        with report_waiting(WaitingLog(print_stage, time.monotonic).note):
            yield print_stage
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=output, transient=True) as progress:
        stage = progress.add_task(first, total=None)

        def show_stage(text: str) -> None:
            nonlocal current
            current = text
            progress.update(stage, description=make_visible(text))

        def show_waiting(suite_count: int) -> None:
            text = make_visible(current)
            progress.update(stage, description=describe_waiting(suite_count, text))

        with report_waiting(show_waiting):
            yield show_stage


RESUMED = "a processor is free: the tests start"


def describe_waiting(suite_count: int, otherwise: str) -> str:
    """Return that tests wait for so many suites of other processes; for none, another text."""
    if not suite_count:
        return otherwise
    suites = (
        "1 other test suite runs" if suite_count == 1 else f"{suite_count:,} other test suites run"
    )
    return f"waiting for a processor: {suites} on this machine"


WAITING_LOG_SECONDS = 60.0


class WaitingLog:
    """Prints in a log that tests wait, and that they go on, at most once a minute."""

    def __init__(self, print_line: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.print_line = print_line
        self.clock = clock
        self.next_line = clock()
        self.is_open = False

    def note(self, suite_count: int) -> None:
        """Note the number of suites of other processes that are waited for."""
        if not suite_count and self.is_open:
            self.is_open = False
            self.print_line(RESUMED)
        elif suite_count and not self.is_open and self.clock() >= self.next_line:
            self.is_open, self.next_line = True, self.clock() + WAITING_LOG_SECONDS
            self.print_line(describe_waiting(suite_count, ""))


def print_in_pager(*parts: RenderableType) -> None:
    """Print the same as `print_parts`, in a pager if on a terminal."""
    output = open_console()
    if not output.is_terminal:
        print_parts(*parts)
        return
    os.environ.setdefault("LESS", "FRX")  # keep colours; do not page what fits on the screen
    with output.pager(styles=True):
        output.print(*parts, sep="\n")


def print_parts(
    *parts: RenderableType,
    optional: Sequence[str] = (),
    below: Sequence[str] = (),
    keys: int | None = None,
) -> None:
    """Print tables and the like. In a pipe a table has one line per record, however long.

    On a narrow terminal the `optional` columns of a table are omitted, the first ones first;
    columns that still do not fit are printed below each row, as those of `below` always are.
    With `keys`, the number of columns that name a row, they form further tables instead, without
    the rows that have no value there.
    """
    from rich.table import Table
    from rich.text import Text

    output = open_console()
    for part in parts:
        if isinstance(part, Text) and output.is_terminal:
            _print_indented(output, part)
        elif isinstance(part, Text) and _needs_no_layout(output, part):
            output.file.write(f"{part.plain}\n")
        elif not isinstance(part, Table) or not all(map(_has_plain_cells, part.columns)):
            output.print(part)
        elif output.is_terminal and keys and _natural_width(part.columns) > output.width:
            _print_blocks(output, part, keys)
        elif output.is_terminal:
            _print_fitted(output, part, optional, below)
        else:
            _print_unwrapped(output, part)
    output.file.flush()


def _needs_no_layout(output: Console, text: Text) -> bool:
    """Whether rich would print a text as it is: rich takes 0.2 ms for a line, of which `show` has
    hundreds."""
    from rich.cells import cell_len

    lines = text.plain.split("\n")
    widest = max(max(len(line), cell_len(line)) for line in lines)
    is_plain = output.color_system is None and not output.is_jupyter and "\t" not in text.plain
    return is_plain and widest <= output.width


def _print_indented(output: Console, text: Text) -> None:
    """Print text; wrapped lines continue at the indentation of their line."""
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
    """Print one line per record, as long as its text; line breaks in cells become spaces."""
    from rich.text import Text

    for column in table.columns:
        column.no_wrap, column.overflow = True, "ignore"
        column._cells[:] = [
            Text("  ").join(_as_text(cell).split("\n")) if "\n" in str(cell) else cell
            for cell in column.cells
        ]
        column.width = _column_width(column)
    needed_width = sum(COLUMN_PADDING + (column.width or 0) for column in table.columns)
    table.caption_justify = "left"
    output.width = max(PIPE_WIDTH, needed_width)
    with output.capture() as printed:
        output.print(table)
    output.width = PIPE_WIDTH
    output.file.write("\n".join(line.rstrip(" ") for line in printed.get().split("\n")))


def _print_fitted(
    output: Console, table: Table, optional: Sequence[str], below: Sequence[str]
) -> None:
    """Print as many columns as fit side by side; the others below each row, by name."""
    columns = [column for column in table.columns if any(map(str, column.cells))]
    side_columns = [column for column in columns if column.header not in below]
    folded_columns = [column for column in columns if column.header in below]
    for name in optional:
        needed_width = sum(_comfortable_width(column) + COLUMN_PADDING for column in side_columns)
        if needed_width <= output.width:
            break
        side_columns = [column for column in side_columns if column.header != name]
    while len(side_columns) > 1 and _least_width(side_columns) > output.width:
        folded_columns.insert(0, side_columns.pop())
    room = output.width - _least_width(side_columns)
    for column in sorted(
        side_columns,
        key=lambda side_column: (not _is_rigid(side_column), -_column_width(side_column)),
    ):
        natural, least = _column_width(column), _least_column_width(column)
        column.width = min(natural, least + max(room, 0))
        room -= column.width - least
        column.no_wrap, column.overflow = column.width >= natural, "fold"
    if not folded_columns:
        table.columns = side_columns
        output.print(table)
        return
    _print_folded(output, table, side_columns, folded_columns)


def _print_folded(
    output: Console, table: Table, side_columns: Sequence[Column], folded_columns: Sequence[Column]
) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def print_row(cells: Iterable[Text]) -> None:
        line = Table(box=None, show_header=False)
        for column in side_columns:
            line.add_column(justify=column.justify, width=column.width, overflow="fold")
        line.add_row(*cells)
        output.print(line)

    if table.title:
        output.print(Text(str(table.title), style="bold"))
    if table.show_header:
        print_row(Text(str(column.header), style="bold") for column in side_columns)
    rows = zip(*(column.cells for column in (*side_columns, *folded_columns)), strict=True)
    for row in rows:
        print_row(_as_text(cell) for cell in row[: len(side_columns)])
        facts = Text(" · ", style="dim").join(
            Text.assemble((f"{column.header} " if column.header else "", "dim"), _as_text(cell))
            for column, cell in zip(folded_columns, row[len(side_columns) :], strict=True)
            if str(cell) not in ("", "–")
        )
        if facts:
            output.print(Padding(facts, (0, 0, 0, FOLD_INDENT)))


def _print_blocks(output: Console, table: Table, keys: int) -> None:
    """Print a wide table as several, each with the key columns and as many others as fit."""
    from rich.table import Table
    from rich.text import Text

    key_columns, others = table.columns[:keys], list(table.columns[keys:])
    if table.title:
        output.print(Text(str(table.title), style="bold"))
    while others:
        block = [others.pop(0)]
        while others and _natural_width([*key_columns, *block, others[0]]) <= output.width:
            block.append(others.pop(0))
        part = Table(box=None)
        for column in (*key_columns, *block):
            part.add_column(column.header, justify=column.justify, overflow="fold")
        for row in zip(*(column.cells for column in (*key_columns, *block)), strict=True):
            if any(str(cell) not in ("", "–") for cell in row[keys:]):
                part.add_row(*(_as_text(cell) for cell in row))
        output.print(part)
    if table.caption:
        output.print(Text(str(table.caption), style="dim"))


def _natural_width(columns: Sequence[Column]) -> int:
    return sum(_column_width(column) + COLUMN_PADDING for column in columns)


def _least_width(columns: Sequence[Column]) -> int:
    return sum(_least_column_width(column) + COLUMN_PADDING for column in columns)


def _least_column_width(column: Column) -> int:
    """Return the minimum width: full for ids and numbers, a few words for a text."""
    natural = _column_width(column)
    if _is_rigid(column):
        return min(natural, MAX_NAME_CHARS)
    return min(natural, column.min_width or MIN_TEXT_CHARS)


def _comfortable_width(column: Column) -> int:
    """Return the width that a column should have before another one is added."""
    if _is_rigid(column):
        return _least_column_width(column)
    return min(_column_width(column), column.max_width or COMFORTABLE_TEXT_CHARS)


def _is_rigid(column: Column) -> bool:
    is_name = column._index == 0 and column.min_width is None
    return column.justify == "right" or is_name or column.no_wrap


def _column_width(column: Column) -> int:
    from rich.cells import cell_len

    lines = (line for cell in (column.header, *column.cells) for line in str(cell).split("\n"))
    return max(map(cell_len, lines), default=0)


def _as_text(cell: Any) -> Text:
    from rich.text import Text

    return cell.copy() if isinstance(cell, Text) else Text(str(cell))


def print_json(value: Any, total: int | None = None) -> None:
    """Print one JSON document with every field of every record; a list as `{"items", "total"}`.

    `total` is the full number of items, if the list has only some of them.
    """
    if isinstance(value, list | tuple):
        value = {"items": value, "total": len(value) if total is None else total}
    print(format_json(value), end="")  # noqa: T201


def format_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(record_to_map(value))).decode() + "\n"


def record_to_map(value: Any) -> Any:
    """Convert records to maps with all fields: programs look fields up by name."""
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


# Files named on the command line.


def read_file_content(file: Path, max_bytes: int = -1) -> bytes:
    """Read a file, or its first `max_bytes` bytes."""
    try:
        with file.open("rb") as stream:
            return stream.read(max_bytes)
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error


@contextmanager
def report_write_errors(file: Path | None) -> Iterator[None]:
    """Raise BadInput if the file cannot be written."""
    try:
        yield
    except OSError as error:
        if file is None:  # a closed pipe ends the command, as everywhere
            raise
        raise BadInput(
            f"{file} cannot be written ({error.strerror}): choose another file."
        ) from error


def write_named_file(file: Path, content: bytes) -> None:
    with report_write_errors(file):
        file.write_bytes(content)


# Validation of arguments before a command does anything.


def refuse_option(argument: str, command: str) -> None:
    """Raise BadInput for an unknown option of a command that accepts `-` as a value."""
    if argument.startswith("-") and argument != "-":
        raise BadInput(f"Unknown option: {argument}. See `closeloop {command} --help`.")


def require_positive_flags(**flags: float | None) -> None:
    """Raise BadInput for a given flag that is not above 0."""
    for name, value in flags.items():
        if value is not None and not value > 0:
            raise BadInput(f"--{name} must be more than 0.")


def require_margin(margin: float | None) -> None:
    if margin is not None and not 0 < margin < 1:
        raise BadInput(f"--margin must be between 0 and 1, such as 0.05, not {margin:g}.")


def require_utf8_text(text: str, name: str) -> None:
    """Raise BadInput for another encoding, which cannot be sent to a model."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{name} is not UTF-8 text: enter it as UTF-8.") from None


def split_list_flag(text: str, separator: str = ",") -> list[str]:
    """Split a value at commas or another mark."""
    return [part.strip() for part in text.split(separator) if part.strip()]
