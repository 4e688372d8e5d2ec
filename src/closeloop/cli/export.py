"""`closeloop export`: attempts in formats that other tools read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from closeloop.model.plural import plural

if TYPE_CHECKING:
    from closeloop.model.attempt import Attempt
    from closeloop.model.session import Session
    from closeloop.model.trace import Trace
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
    from closeloop.cli.config import load
    from closeloop.cli.console import warn
    from closeloop.cli.files import writing
    from closeloop.model.errors import BadInput
    from closeloop.tasks.seal import demand_open

    chosen = {"atif": atif, "otlp": otlp, "jsonl": jsonl, "parquet": parquet}
    kinds = [name for name, wanted in chosen.items() if wanted]
    if len(kinds) != 1:
        raise BadInput("Choose one format: --atif, --otlp, --jsonl or --parquet.")
    found = load(Path.cwd())
    with flow.open_kept_store(found.settings, found.root) as store:
        named = [store.attempt(name) for name in attempts]
        for one in named:
            demand_open(store.task(one.task_digest) if one.task_digest else None)
        sealed = store.held_out.sealed()
        ids = [one.id for one in named]
        ids = ids or [row.id for row in store.attempts() if row.task_digest not in sealed]
        if not ids:
            raise BadInput("There is nothing to export: `closeloop import` or `run` makes some.")
        with writing(out):
            left_out = write(kinds[0], ids, store, out)
    if left_out:
        warn(f"{plural(left_out, 'attempt')} without a trace left out.")


def write(kind: str, ids: list[str], store: Store, out: Path | None) -> int:
    """Write them, one at a time; how many had no trace."""
    from closeloop.model.errors import BadInput
    from closeloop.traces.export import atif, jsonl, otlp, parquet

    told = Told(ids, store)
    if kind == "atif" and len(ids) > 1:
        if out is None:
            raise BadInput("ATIF has one file for each attempt: name a folder with --out.")
        out.mkdir(parents=True, exist_ok=True)
        for name, of, trace in told:
            (out / f"{name}.json").write_bytes(atif.export(of, trace))
        return told.left_out
    if kind == "parquet" and out is None and sys.stdout.isatty():
        raise BadInput("Parquet is not for a terminal: name a file with --out.")
    with opened(out) as file:
        if kind == "parquet":
            parquet.write(((of, trace) for _, of, trace in told), file)
            return told.left_out
        for _, of, trace in told:
            match kind:
                case "atif":
                    file.write(atif.export(of, trace) + b"\n")
                case "otlp":
                    file.write(otlp.export(of, trace) + b"\n")
                case _:
                    file.writelines(jsonl.export(of, trace))
    return told.left_out


class Told:
    """Attempts with their traces, each read when it is written."""

    def __init__(self, ids: list[str], store: Store) -> None:
        self.ids = ids
        self.store = store
        self.left_out = 0

    def __iter__(self) -> Iterator[tuple[str, Attempt | Session, Trace]]:
        for name in self.ids:
            trace = self.store.trace(name)
            if trace is None:
                self.left_out += 1
            else:
                # What an agent recorded says more of itself than an attempt does.
                yield name, self.store.session(name) or self.store.attempt(name), trace


@contextmanager
def opened(out: Path | None) -> Iterator[BinaryIO]:
    """A file that is whole or not there, or standard output."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    draft = out.with_name(f".{out.name}.part")
    with draft.open("wb") as file:
        yield file
    draft.replace(out)
