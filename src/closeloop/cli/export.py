"""`closeloop export`: attempts in formats that other tools read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from closeloop.records.plural import count_with_noun

if TYPE_CHECKING:
    from closeloop.records.attempt import Attempt
    from closeloop.records.session import Session
    from closeloop.records.trace import Trace
    from closeloop.store import Store


def export(
    *attempts: str,
    atif: bool = False,
    otlp: bool = False,
    jsonl: bool = False,
    parquet: bool = False,
    out: Path | None = None,
) -> None:
    """Write attempts in a format that other tools read.

    Parameters
    ----------
    attempts
        Ids, or the beginnings of them; all attempts when none is named.
    atif
        Harbor's Agent Trajectory Interchange Format: one JSON document an attempt.
    otlp
        OpenTelemetry spans with GenAI attributes: one JSON line an attempt.
    jsonl
        One JSON line an event.
    parquet
        One table, a row an event.
    out
        The file to write, or for several attempts in ATIF the folder; else standard output.
    """
    from closeloop import flow
    from closeloop.cli.argument_files import report_write_errors
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_warning
    from closeloop.records.errors import BadInput
    from closeloop.tasks.sealed_tasks import require_unsealed

    chosen = {"atif": atif, "otlp": otlp, "jsonl": jsonl, "parquet": parquet}
    kinds = [name for name, wanted in chosen.items() if wanted]
    if len(kinds) != 1:
        raise BadInput("Choose one format: --atif, --otlp, --jsonl or --parquet.")
    project = load_project(Path.cwd())
    with flow.open_existing_store(project.settings, project.root) as store:
        chosen_attempts = [store.load_attempt(name) for name in attempts]
        for chosen_attempt in chosen_attempts:
            require_unsealed(
                store.load_task(chosen_attempt.task_digest) if chosen_attempt.task_digest else None
            )
        sealed = store.held_out.list_sealed_digests()
        ids = [one.id for one in chosen_attempts]
        ids = ids or [row.id for row in store.list_attempts() if row.task_digest not in sealed]
        if not ids:
            raise BadInput("There is nothing to export: `closeloop import` or `run` makes some.")
        with report_write_errors(out):
            left_out = write_attempts(kinds[0], ids, store, out)
    if left_out:
        print_warning(f"{count_with_noun(left_out, 'attempt')} without a trace left out.")


def write_attempts(kind: str, ids: list[str], store: Store, out: Path | None) -> int:
    """Write them, one at a time; how many had no trace."""
    from closeloop.records.errors import BadInput
    from closeloop.traces import atif_export, otlp_export, trace_export

    traces = ExportedTraces(ids, store)
    if kind == "atif" and len(ids) > 1:
        if out is None:
            raise BadInput("ATIF has one file for each attempt: name a folder with --out.")
        out.mkdir(parents=True, exist_ok=True)
        for name, of, trace in traces:
            (out / f"{name}.json").write_bytes(atif_export.export_atif(of, trace))
        return traces.left_out
    if kind == "parquet" and out is None and sys.stdout.isatty():
        raise BadInput("Parquet is not for a terminal: name a file with --out.")
    with open_output_file(out) as file:
        if kind == "parquet":
            trace_export.write_parquet(((of, trace) for _, of, trace in traces), file)
            return traces.left_out
        for _, of, trace in traces:
            match kind:
                case "atif":
                    file.write(atif_export.export_atif(of, trace) + b"\n")
                case "otlp":
                    file.write(otlp_export.export_otlp(of, trace) + b"\n")
                case _:
                    file.writelines(trace_export.export_jsonl(of, trace))
    return traces.left_out


class ExportedTraces:
    """Attempts with their traces, each read when it is written."""

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
                # What an agent recorded says more of itself than an attempt does.
                yield name, self.store.load_session(name) or self.store.load_attempt(name), trace


@contextmanager
def open_output_file(out: Path | None) -> Iterator[BinaryIO]:
    """A file that is whole or not there, or standard output."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    draft = out.with_name(f".{out.name}.part")
    with draft.open("wb") as file:
        yield file
    draft.replace(out)
