"""Data that leaves the store: `closeloop export`, `admin events` and `admin purge`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from cyclopts import Parameter

from closeloop.cli.console import JsonFlag
from closeloop.records.attempt import TableName
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.attempts.attempt_saving import PurgeResult
    from closeloop.process.rulebook import Rulebook
    from closeloop.records.attempt import Attempt, AttemptRow
    from closeloop.records.trace import LogEvent, Purge, Session, Trace
    from closeloop.reviews.authorship import AgentSignsByName
    from closeloop.store import Store


def export(
    *attempts: str,
    atif: bool = False,
    otlp: bool = False,
    log: bool = False,
    table: TableName | None = None,
    out: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
) -> None:
    """Export attempts or a table in a format that other tools read.

    Parameters
    ----------
    attempts
        Ids of attempts, or prefixes of them; all attempts by default.
    atif
        Write Harbor's Agent Trajectory Interchange Format: one JSON document per attempt.
    otlp
        Write OpenTelemetry spans with GenAI attributes: one JSON line per attempt.
    log
        Write one JSON line per attempt: request, change, tests, corrections and merge decision.
    table
        Write one table: attempts, findings, events, scores or pulls. The suffix of --out sets the
        format: .csv, .jsonl or .parquet.
    out
        The file to write, or the folder for several ATIF documents; `-` is standard output, where
        tables are JSON lines.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_warning, refuse_option, report_write_errors
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.records.errors import BadInput
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.store.store import open_existing_store
    from closeloop.tasks.task_sets import require_unsealed

    refuse_option(str(out or "-"), "export")
    out = None if out == Path("-") else out
    flags_by_kind = {"atif": atif, "otlp": otlp, "log": log, "table": table is not None}
    kinds = [name for name, is_chosen in flags_by_kind.items() if is_chosen]
    if len(kinds) != 1:
        raise BadInput("Choose one: --atif, --otlp, --log or --table NAME.")
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        chosen_attempts = [store.load_attempt(name) for name in attempts]
        for chosen_attempt in chosen_attempts:
            require_unsealed(
                store.load_task(chosen_attempt.task_digest) if chosen_attempt.task_digest else None
            )
        sealed = store.held_out.list_sealed_digests()
        exported_rows: Sequence[Attempt | AttemptRow] = chosen_attempts or [
            row for row in store.list_attempts() if row.task_digest not in sealed
        ]
        ids = [row.id for row in exported_rows]
        if not ids and table != "pulls":
            raise BadInput(
                "There is nothing to export: add attempts with `closeloop import` or "
                "`closeloop run`."
            )
        with report_write_errors(out):
            if table is not None:
                write_named_table(table, attempts, store, project_rulebook(project.settings), out)
                return
            if log:
                write_task_logs(ids, store, merge_known_agents(project.settings.pulls.agents), out)
                return
            left_out = write_attempts(kinds[0], ids, store, out)
    if left_out:
        print_warning(f"{count_with_noun(left_out, 'attempt')} without a trace skipped.")
    if any(row.task for row in exported_rows):
        print_warning(
            "The format has no place for tasks, grades and scores: imported again, these are "
            "sessions of unknown success."
        )


def write_task_logs(
    ids: Sequence[str], store: Store, agents: AgentSignsByName, out: Path | None
) -> None:
    """Write one line per attempt, each built when it is written."""
    import msgspec

    from closeloop.cli.console import record_to_map
    from closeloop.metrics.task_log import load_task_log

    with open_output_file(out) as file:
        for name in ids:
            log = record_to_map(load_task_log(store, name, agents))
            file.write(msgspec.json.encode(log) + b"\n")


def write_attempts(kind: str, ids: list[str], store: Store, out: Path | None) -> int:
    """Write attempts, one at a time; return how many had no trace."""
    from closeloop.records.errors import BadInput
    from closeloop.traces import otlp_export, trace_export

    traces = ExportedTraces(ids, store)
    if kind == "atif" and len(ids) > 1:
        if out is None:
            raise BadInput("ATIF writes one file per attempt: give a folder with --out.")
        out.mkdir(parents=True, exist_ok=True)
        for name, source, trace in traces:
            (out / f"{name}.json").write_bytes(trace_export.export_atif(source, trace))
        return traces.left_out
    with open_output_file(out) as file:
        encode = trace_export.export_atif if kind == "atif" else otlp_export.export_otlp
        for _, export_source, trace in traces:
            file.write(encode(export_source, trace) + b"\n")
    return traces.left_out


def write_named_table(
    name: TableName, attempts: Sequence[str], store: Store, rulebook: Rulebook, out: Path | None
) -> None:
    """Write a table in the format of the file's extension."""
    from closeloop.metrics.data_tables import TABLE_WRITERS, list_table_rows, table_columns
    from closeloop.records.errors import BadInput

    suffix = out.suffix.lower() if out else ".jsonl"
    if suffix not in TABLE_WRITERS:
        raise BadInput(f"Choose a file name that ends in {', '.join(TABLE_WRITERS)}, not {out}.")
    rows = list_table_rows(name, store, rulebook, attempts)
    with open_output_file(out) as file:
        TABLE_WRITERS[suffix](table_columns(name), rows, file)


class ExportedTraces:
    """Attempts with their traces, each loaded when it is written."""

    def __init__(self, ids: list[str], store: Store) -> None:
        self.ids = ids
        self.store = store
        self.left_out = 0

    def __iter__(self) -> Iterator[tuple[str, Attempt | Session, Trace]]:
        for name in self.ids:
            trace = self.store.load_trace(name)
            if trace is None:
                self.left_out += 1
            else:
                # An agent's recording contains more about itself than an attempt does.
                yield name, self.store.load_session(name) or self.store.load_attempt(name), trace


@contextmanager
def open_output_file(out: Path | None) -> Iterator[BinaryIO]:
    """Open a file that is written completely or not at all, or standard output."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    draft = out.with_name(f".{out.name}.part")
    try:
        with draft.open("wb") as file:
            yield file
        draft.replace(out)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


# `closeloop admin events`: the event log, once or followed.

POLL_SECONDS = 0.5


def events(
    *kinds: str,
    follow: bool = False,
    after: int | None = None,
    limit: int = 100,
    json: bool = False,
) -> None:
    """Print the log of events, oldest first.

    Parameters
    ----------
    kinds
        Only these kinds, such as pull.merged or 'review.*'.
    follow
        Keep printing new events until stopped.
    after
        Start after the event with this number; by default the last events are printed.
    limit
        Maximum number of events; with --follow, of past events.
    json
        Print one JSON object per line.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_warning
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_existing_store, open_project_store
    from closeloop.text.wording import matches_wildcards

    if limit < 0 or (after is not None and after < 0):
        raise BadInput("--limit and --after must not be negative.")
    project = load_project(Path.cwd())
    # Following waits for events that other processes write to the store.
    store_opener = open_project_store if follow else open_existing_store
    with store_opener(project.settings, project.root) as store:
        if not follow and not store.events.last_number():
            print_warning("No events yet: `closeloop run` and `closeloop import` record events.")
        last_number = max(store.events.last_number() - limit, 0) if after is None else after
        remaining = limit
        while True:
            new_events = store.events.list_after(last_number)
            last_number = new_events[-1].number or last_number if new_events else last_number
            matching_events = [
                new_event
                for new_event in new_events
                if not kinds or matches_wildcards(new_event.kind, kinds)
            ]
            print_events(matching_events if follow else matching_events[:remaining], json=json)
            remaining -= len(matching_events)
            if not follow and (not new_events or remaining <= 0):
                return
            if not new_events:
                time.sleep(POLL_SECONDS)


def print_events(events: Sequence[LogEvent], *, json: bool) -> None:
    import msgspec

    from closeloop.cli.console import print_line, record_to_map

    for event in events:
        print_line(
            msgspec.json.encode(record_to_map(event)).decode() if json else format_event_line(event)
        )


def format_event_line(event: LogEvent) -> str:
    """Format an event: `17  2026-01-05 09:00  pull.merged  ann/tally#7  rounds=1`."""
    subject = event.repo or event.task or event.attempt or ""
    number = f"#{event.pull}" if event.pull is not None else ""
    details_text = " ".join(
        f"{name}={value}" for name, value in event.details.items() if value is not None
    )
    time_text = event.at.strftime("%Y-%m-%d %H:%M:%S")
    head = f"{event.number:>6}  {time_text}  {event.kind:24}"
    return f"{head}  {subject}{number}  {details_text}".rstrip()


# `closeloop admin purge`: remove a leaked secret from the store.


def purge(
    *,
    file: Path | None = None,
    variable: str | None = None,
    all_known: bool = False,
    list: bool = False,  # noqa: A002 - what people type
    yes: bool = False,
    json: JsonFlag = False,
) -> None:
    """Remove a secret from all stored records. Without --yes, matching records are only counted.

    The secret is read from standard input, a file or a variable, never from an argument, which
    other users and the shell's history could see.

    Parameters
    ----------
    file
        A file that contains only the secret.
    variable
        The environment variable that contains the secret.
    all_known
        Remove all secrets that redaction recognises today, except from tasks.
    list
        List earlier purges: who, when, and from how many records.
    yes
        Remove the secret. Without this, records are only counted.
    """
    import getpass
    import platform

    from msgspec.structs import replace

    from closeloop.attempts.attempt_saving import (
        ATTEMPTS_FOLDER,
        files_with_secret,
        purge_known_forms,
        purge_secret,
        recover_batches,
    )
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.orchestration.orchestration_run import UNSAVED_PLANS
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_existing_store

    if sum((file is not None, variable is not None, all_known, list)) > 1:
        raise BadInput("Choose one: --file, --variable, --all-known or --list.")
    secret = None if all_known or list else read_secret(file, variable)
    project = load_project(Path.cwd())
    purged_by = f"{getpass.getuser()}@{platform.node()}"
    with open_existing_store(project.settings, project.root) as store:
        if list:
            tombstones = store.purges.list_purges()
            print_json(tombstones) if json else print_parts(*render_tombstones(tombstones))
            return
        if yes:  # results that could not be saved are in files, and are purged too
            for folder in (ATTEMPTS_FOLDER, UNSAVED_PLANS):
                recover_batches(store, project.root / folder)
        if secret is None:
            result = purge_known_forms(store, purged_by=purged_by, apply=yes)
        else:
            result = purge_secret(store, secret, purged_by=purged_by, apply=yes)
            files_left = tuple(files_with_secret(secret, project.root / ".closeloop"))
            result = replace(result, files=files_left)
    print_json(result) if json else print_parts(*render_purge_result(result))


def read_secret(file: Path | None, variable: str | None) -> str:
    """Read the secret, without the final line break that editors add."""
    import getpass
    import os

    from closeloop.records.errors import BadInput

    if file is not None:
        try:
            secret = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise BadInput(f"{file} cannot be read ({reason}): choose another file.") from error
    elif variable is not None:
        if variable not in os.environ:
            raise BadInput(f"The variable {variable} is not set: set it to the secret.")
        secret = os.environ[variable]
    elif sys.stdin.isatty():
        secret = getpass.getpass("The secret: ")
    else:
        secret = sys.stdin.read()
    if not secret.strip():
        raise BadInput(
            "The secret is empty: pass it on standard input, or with --file or --variable."
        )
    return secret.rstrip("\r\n")


def render_purge_result(result: PurgeResult) -> Iterator[RenderableType]:
    """Render what was removed, or would be."""
    from rich.text import Text

    records = count_with_noun(result.records, "record")
    counts_text = ", ".join(f"{count} in {table}" for table, count in result.places.items())
    counts_suffix = f" ({counts_text})" if counts_text else ""
    if not result.records:
        yield Text("No stored record contains it." + (" Old bytes are erased." * result.done))
    elif result.done:
        yield Text(
            f"Removed from {records}{counts_suffix}. Revoke the secret: others may have read it."
        )
    else:
        yield Text(
            f"Found in {records}{counts_suffix}. Remove it with `closeloop admin purge --yes`."
        )
    for table, count in result.left.items():
        left_records = count_with_noun(count, "record")
        yield Text(f"{left_records} of {table} not searched: give a secret to remove it there too.")
    for name in result.files:
        yield Text(f"Still in {name}: delete this file yourself.", style="yellow")


def render_tombstones(tombstones: list[Purge]) -> Iterator[RenderableType]:
    """Render one line per purge."""
    from rich.text import Text

    if not tombstones:
        yield Text("Nothing has been purged.")
    for tombstone in tombstones:
        purged_what = "a secret" if tombstone.kind == "secret" else "all known kinds"
        records = count_with_noun(tombstone.records, "record")
        yield Text(
            f"{tombstone.at:%Y-%m-%d %H:%M} {tombstone.who} removed {purged_what} from {records}"
        )
