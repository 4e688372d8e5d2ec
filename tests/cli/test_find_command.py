"""`closeloop find` and `attempts`: what is listed, and that it fits where it is read."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import termios
import threading
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

import pytest
import rich.console
from rich.table import Table

from closeloop.cli import main
from closeloop.cli.console import print_parts
from closeloop.cli.show import render_trace_events
from closeloop.records.attempt import Attempt, Usage
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.finding import Finding, Measurement
from closeloop.records.trace import Command, Message, Trace
from closeloop.store import open_store
from command_line import typed

IDS = tuple(f"{number:012x}" for number in range(0xA0, 0xA6))
LONG_TITLE = "Move every rounding of refunds, credits and invoices to one place and keep the cents"
_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / ".closeloop").mkdir()
    with open_store(str(root / ".closeloop/closeloop.db")) as store:
        for number, name in enumerate(IDS):
            title = LONG_TITLE if number == 0 else f"Task {number}"
            said = f"{title}\nThe sum of invoice {number} is wrong [and so is the tax]."
            attempt = Attempt(
                id=name,
                origin="production",
                exit="finished",
                started=datetime(2026, 3, 1 + number, 14, 2, tzinfo=UTC),
                usage=Usage(cost=0.25 * number),
            )
            events = (Message(number=1, lane="r", role="user", text=said, intent="request"),)
            trace = Trace(reader="x", reader_version=1, events=events)
            store.save_attempt(AttemptResult(attempt=attempt, trace=trace))
        rules = ("missing-verification", "repeated-failure", "spiral")
        findings = tuple(
            Finding(rule=rule, version=1, severity="warning", message="so") for rule in rules
        )
        store.save_measurements([(IDS[0], "b", Measurement(rules="r", findings=findings))])
    return root


def on_terminal(columns: int, folder: Path, *arguments: str) -> list[str]:
    """What a command prints on a terminal so wide, without its colours."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    printed: list[bytes] = []

    def read() -> None:
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                return
            printed.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    with pytest.MonkeyPatch.context() as patch, os.fdopen(follower, "w") as terminal:
        patch.delenv("COLUMNS", raising=False)
        patch.setenv("TERM", "xterm")
        # Where rich looks for the width; it remembers what there was when it was loaded.
        patch.setattr(rich.console, "_STD_STREAMS", (terminal.fileno(),))
        patch.chdir(folder)
        with redirect_stdout(terminal), pytest.raises(SystemExit):
            main(arguments)
    reader.join()
    os.close(leader)
    return _STYLE.sub("", b"".join(printed).decode()).replace("\r", "").splitlines()


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "command", [("list", "attempts"), ("find", "invoice"), ("find", "rounding tax")]
)
def test_a_list_fits_its_terminal_and_cuts_no_id(
    folder: Path, columns: int, command: tuple[str, ...]
) -> None:
    lines = on_terminal(columns, folder, *command)
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    shown = IDS if "rounding tax" not in command else IDS[:1]
    assert all(name in text for name in shown)
    for name in ("attempt", "when", "what", "cost", "findings"):
        assert name in lines[0]
    assert "missing-verification" in text
    assert re.search(r"\$1\.25|\$0", text)


def test_more_columns_are_shown_where_there_is_room(folder: Path) -> None:
    narrow, wide = (on_terminal(columns, folder, "list", "attempts")[0] for columns in (80, 200))
    assert "seconds" not in narrow
    assert "seconds" in wide


def test_in_a_pipe_a_record_is_a_line_with_all_of_it(folder: Path) -> None:
    lines = typed(folder, "list", "attempts").stdout.splitlines()
    assert len(lines) == 1 + len(IDS)
    assert [line.split()[0] for line in lines[1:]] == list(reversed(IDS))
    first = lines[-1]
    assert LONG_TITLE in first
    assert "2026-03-01 14:02" in first
    assert "missing-verification, repeated-failure, spiral" in first
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_limit_does_not_change_how_many_there_are(folder: Path) -> None:
    answer = json.loads(typed(folder, "list", "attempts", "--limit", "2", "--json").stdout)
    assert (len(answer["items"]), answer["total"]) == (2, len(IDS))
    scored = ("list", "attempts", "--limit", "2", "--json", "--score", "cost")
    answer = json.loads(typed(folder, *scored).stdout)
    assert (len(answer["items"]), answer["total"]) == (2, len(IDS))
    lines = typed(folder, "list", "attempts", "--limit", "2").stdout.splitlines()
    assert lines[-1] == f"2 of {len(IDS)} shown: --limit shows more."


def test_a_list_is_narrowed_by_what_its_attempts_have_in_common(folder: Path) -> None:
    answer = json.loads(typed(folder, "list", "attempts", "rule:spiral", "--json").stdout)
    assert [one["id"] for one in answer["items"]] == [IDS[0]]
    assert typed(folder, "list", "attempts", "rule:spiral").stdout.splitlines()[0].endswith("found")
    assert "remove a filter" in typed(folder, "list", "attempts", "agent:nobody").stdout


def test_what_is_found_is_marked_and_counted(folder: Path) -> None:
    result = typed(folder, "find", "invoice", "--limit", "2", "--sort", "cost")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == [IDS[5], IDS[4]]
    assert "The sum of [invoice] 5 is wrong" in lines[1]
    assert lines[3].startswith("2 of 6")
    answer = json.loads(typed(folder, "find", "invoice", "--json", "--since", "2026-03-05").stdout)
    assert answer["total"] == 2
    shown = on_terminal(110, folder, "find", "invoice", "--limit", "1", "--sort", "cost")
    assert any(line.strip().startswith("match ") and "[invoice]" in line for line in shown)
    assert [one["id"] for one in answer["items"]] == [IDS[5], IDS[4]]
    assert answer["items"][0]["snippet"]["match"] == "invoice"
    until = json.loads(typed(folder, "find", "invoice", "--json", "--until", "2026-03-02").stdout)
    assert until["total"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("find", "!?"), "at least one word"),
        (("find", "a" * 201), "at most 200 characters"),
        (("list", "attempts", "codex"), "'codex' is not a filter: write FIELD:VALUE"),
        (("list", "attempts", "prompt:v9"), "No prompt named 'v9'"),
        (("list", "attempts", "arm:a"), "No arm named 'a'"),
        (("find", "a", "--since", "yesterday"), "a date such as"),
        (("find", "a", "--limit", "0"), "--limit must be more than 0"),
    ],
)
def test_what_cannot_be_found_is_refused(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = typed(folder, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr


def test_nothing_found_says_what_to_try(folder: Path) -> None:
    result = typed(folder, "find", "zebra")
    assert result.returncode == 0
    assert "Try fewer" in result.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()])
def test_a_table_that_fits_nowhere_folds_and_loses_nothing(
    out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(box=None)
    for name in ("id", "one", "two", "three"):
        table.add_column(name, no_wrap=True)
    cells = ["abcdef012345", "x" * 40, "y" * 40, "z" * 40]
    table.add_row(*cells)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stdout(out):
        print_parts(table)
    lines = _STYLE.sub("", out.getvalue()).splitlines()
    words = " ".join(lines[1:]).split()
    assert [word for word in words if len(word) > 5] == cells
    if out.isatty():
        assert max(map(len, lines)) <= 80
    else:
        assert len(lines) == 2


def test_a_long_name_may_wrap_so_that_results_stay_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table(box=None)
    table.add_column("task", min_width=24)
    table.add_column("noop")
    table.add_column("reference")
    table.add_row("add-support-user-specific-replacements-646761e5", "nothing was changed", "ok")
    out = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stdout(out):
        print_parts(table)
    heading, first, *_ = _STYLE.sub("", out.getvalue()).splitlines()
    assert heading.split() == ["task", "noop", "reference"]
    assert first.split()[-1] == "ok"
    assert "".join(out.getvalue().split()).count("646761e5") == 1


def test_a_wide_table_of_groups_becomes_several_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(title="process", box=None)
    for name in ("agent", "handoff", "feedback", "recovery"):
        table.add_column(name)
    table.add_row("codex", "80 % (20–99 %)", "–", "–")
    table.add_row("aider", "–", "27 % (9–54 %)", "50 % (26–74 %)")
    monkeypatch.setenv("COLUMNS", "44")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with redirect_stdout(out):
        print_parts(table, keys=1)
    lines = [line.split() for line in _STYLE.sub("", out.getvalue()).splitlines()]
    assert lines[0] == ["process"]
    assert lines[1] == ["agent", "handoff", "feedback"]
    assert [line[0] for line in lines[2:]] == ["codex", "aider", "agent", "aider"]
    assert lines[4] == ["agent", "recovery"]
    assert "50" in lines[5]
    in_a_pipe = io.StringIO()
    with redirect_stdout(in_a_pipe):
        print_parts(table, keys=1)
    assert len(in_a_pipe.getvalue().splitlines()) == 4


def test_a_line_separator_in_a_cell_does_not_end_a_row_in_a_pipe() -> None:
    table = Table(box=None)
    table.add_column("what")
    table.add_column("why")
    table.add_row("one\u2028title", "slow")
    in_a_pipe = io.StringIO()
    with redirect_stdout(in_a_pipe):
        print_parts(table)
    header, row, end = in_a_pipe.getvalue().split("\n")
    assert (header.split(), end) == (["what", "why"], "")
    assert "one\u2028title" in row
    assert row.endswith("slow")


def test_show_keeps_the_head_of_a_request_and_the_end_of_an_output() -> None:
    lines = "\n".join(f"line {number}" for number in range(20))
    trace = Trace(
        reader="x",
        reader_version=1,
        events=(
            Message(number=1, lane="r", role="user", text=lines, intent="request"),
            Command(number=2, lane="r", command="make", output=lines, exit_code=1),
        ),
    )
    shown = [str(line) for line in render_trace_events(trace, full=False)]
    said, printed = "\n".join(shown[:9]), "\n".join(shown[9:])
    assert "line 0" in said
    assert "line 19" not in said
    assert "line 19" in printed
    assert "line 0\n" not in printed


def test_a_session_that_still_runs_did_not_give_up(tmp_path: Path) -> None:
    (tmp_path / ".closeloop").mkdir()
    with open_store(str(tmp_path / ".closeloop/closeloop.db")) as store:
        for name, cause in (("aa", "The recording ends within a turn."), ("bb", "It refused.")):
            attempt = Attempt(id=name * 6, origin="production", exit="gave_up", cause=cause)
            trace = Trace(reader="x", reader_version=1)
            store.save_attempt(AttemptResult(attempt=attempt, trace=trace))
    listed = typed(tmp_path, "list", "attempts").stdout
    running, refusing = (typed(tmp_path, "show", name).stdout for name in ("aa", "bb"))
    assert "recording incomplete: The recording ends within a turn." in running
    assert "gave_up" not in running
    assert "exit gave_up: It refused." in refusing
    assert listed.count("incomplete") == listed.count("gave_up") == 1


def test_a_search_without_a_result_repeats_what_was_sought(folder: Path) -> None:
    one = typed(folder, "find", "zebra").stdout
    assert one.startswith("No session contains zebra. Try fewer words")
    two = typed(folder, "find", 'zebra "of refunds"').stdout
    assert two.startswith('No session contains all of the 2 words and phrases zebra "of refunds".')
