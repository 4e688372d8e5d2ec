"""What one file holds: detected, read, rid of secrets and packed. Done in worker processes."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from multiprocessing import parent_process
from pathlib import Path

import msgspec
from msgspec.structs import replace

from closeloop.intake.pricing import costed
from closeloop.model.attempt import Attempt
from closeloop.model.intake import Count, Wish
from closeloop.model.patch_redaction import redact_path
from closeloop.model.protocols import Reader
from closeloop.model.record import Record, digest
from closeloop.model.session import Session
from closeloop.model.trace import Note, Trace
from closeloop.store.bodies import compress, encode
from closeloop.store.sessions import Packed, key_of, packed
from closeloop.traces.calls import is_done
from closeloop.traces.detect import reader_of
from closeloop.traces.find import File, file_at
from closeloop.traces.redact import redact
from closeloop.traces.repositories import repository_of
from closeloop.traces.source import FileSource
from closeloop.traces.texts import ROOM

_BEGINNING = re.compile(rb'\s*(?:\{|\[\s*\{)\s*"')
_TALK = re.compile(rb'"(?:messages|history|trajectory|steps|events|samples|observations|role)"\s*:')
UNKNOWN = "unknown, kept as a note"
LARGE_BYTES = 8 << 20
SPILL_BYTES = 32 << 20
"""More than this of one recording goes to the parent by way of a file."""


class Outcome(Record):
    """What came of one file."""

    file: File
    reader: str | None = None
    """None where nobody knew it."""
    version: int = 0
    owner: str | None = None
    """The recording that it is only a part of."""
    parts: tuple[tuple[str, int, int], ...] = ()
    sessions: tuple[Packed, ...] = ()
    spilled: str | None = None
    """A file with more sessions."""
    unwanted: int = 0
    count: Count = Count()
    redacted: dict[str, int] = {}
    trouble: str | None = None


def end_with_parent() -> None:
    """End this worker process when the one that uses it ends, even by SIGKILL."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def without_collector() -> Iterator[None]:
    """Traces hold no cycles, and looking for some costs a third of the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            # First, or else it would look through everything that was ever made.
            gc.collect(1)
            gc.enable()


def look(files: Sequence[File], wish: Wish, folder: str) -> list[Outcome]:
    """Every file, whatever happens: one that cannot be read is named, and the rest goes on."""
    with without_collector():
        outcomes = []
        for file in files:
            with _alone(file, folder):
                outcomes.append(_look_at(file, wish, folder))
    return outcomes


@contextmanager
def _alone(file: File, folder: str) -> Iterator[None]:
    """One worker at a time has a large file in memory."""
    if file.size < LARGE_BYTES:
        yield
        return
    with open(Path(folder) / "large", "ab") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        # Before the next one takes as much; only some C libraries can be told to.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _look_at(file: File, wish: Wish, folder: str) -> Outcome:
    try:
        source = FileSource(Path(file.path))
        if not source.head:
            # Empty, or else this says why not.
            os.close(os.open(file.path, os.O_RDONLY))
        reader = reader_of(source)
        if reader is None:
            return Outcome(file=file, trouble=_damage(source))
        owner = reader.owner(source)
        if owner is not None and str(owner) != file.path and file_at(str(owner)) is not None:
            return Outcome(
                file=file,
                reader=reader.name,
                version=reader.version,
                owner=str(owner),
                count=Count(files=1),
            )
        return _read(file, source, reader, wish, folder)
    except OSError as error:
        return Outcome(file=file, trouble=error.strerror or str(error))
    except Exception as error:  # a reader is a plug-in and may raise anything
        return Outcome(file=file, trouble=f"{type(error).__name__}: {error}")


def _damage(source: FileSource) -> str | None:
    """What is wrong with a file that nobody knew but that begins as recordings do."""
    if source.skipped:
        return next(iter(source.skipped))
    if not _BEGINNING.match(source.head) or source.lines or source.document is not None:
        return None
    return "JSON that is broken or ends in the middle" if _TALK.search(source.head) else None


def _read(file: File, source: FileSource, reader: Reader, wish: Wish, folder: str) -> Outcome:
    parts = [file_at(str(part)) for part in reader.parts(source)]
    kept: list[Packed] = []
    counts: dict[str, int] = {"files": 1}
    unknown: dict[str, int] = {}
    redacted: dict[str, int] = {}
    size = unwanted = 0
    spilled: str | None = None
    for read in reader.read(source):
        source.skipped.room = ROOM
        session, found = redact(read)
        repo = repository_of(session.directory)
        if not _is_wanted(session, repo, file, wish):
            unwanted += 1
            continue
        add(redacted, found)
        _count(session.trace, counts, unknown)
        kept.append(pack_session(session, repo, key_of(session, name_of(file.path))))
        size += len(kept[-1].trace)
        if size > SPILL_BYTES:
            spilled, size = _spill(kept, spilled, folder), 0
            kept.clear()
    return Outcome(
        file=file,
        reader=reader.name,
        version=reader.version,
        parts=tuple((name_of(part.path), part.size, part.changed) for part in parts if part),
        sessions=tuple(kept),
        spilled=spilled,
        unwanted=unwanted,
        count=Count(**counts, skipped=source.skipped | unknown),
        redacted=redacted,
    )


def name_of(path: str) -> str:
    """A path as any database can hold it, without secrets; a digest tells such paths apart."""
    name = path.encode("utf-8", "backslashreplace").decode()
    redacted = redact_path(name)
    return name if redacted == name else f"{redacted}#{digest(name)[:16]}"


def pack_session(session: Session, repo: str | None, key: str) -> Packed:
    """A session as the store keeps it: an attempt that nobody asked us for."""
    trace = session.trace
    encoded = encode(trace)
    bare = Trace(reader=trace.reader, reader_version=trace.reader_version)
    known = sha256(encode(replace(session, trace=Trace(reader=trace.reader, reader_version=0))))
    # The same content read by a newer reader is the same: what is said of the reader is cut off.
    known.update(memoryview(encoded)[len(encode(bare)) :])
    attempt = Attempt(
        id=known.hexdigest()[:12],
        origin="production",
        started=session.started,
        ended=session.ended,
        exit=session.exit,
        cause=session.cause,
        usage=costed(session),
        summary=session.summary,
        branch=session.branch,
        repo=repo,
        user=session.user,
        links=session.links,
    )
    return packed(attempt, session, key, compress(encoded))


def _is_wanted(session: Session, repo: str | None, file: File, wish: Wish) -> bool:
    if wish.since is not None:
        last = session.ended or session.started
        if last is not None and last < wish.since:
            return False
    if wish.repo is None or repo == wish.repo:
        return True
    inside = Path(session.directory or "/nowhere").is_relative_to(wish.repo)
    return session.directory is not None and inside


def _count(trace: Trace, counts: dict[str, int], unknown: dict[str, int]) -> None:
    calls = paired = kept = 0
    for event in trace.events:
        if (done := is_done(event)) is not None:
            calls += 1
            paired += done
        elif type(event) is Note and event.about and event.about.startswith("unknown"):
            kept += 1
    if kept:
        add(unknown, {UNKNOWN: kept})
    add(counts, {"sessions": 1, "events": len(trace.events), "calls": calls, "paired": paired})


def add(counts: dict[str, int], more: dict[str, int]) -> None:
    """Count on."""
    for name, number in more.items():
        counts[name] = counts.get(name, 0) + number


def _spill(kept: Sequence[Packed], name: str | None, folder: str) -> str:
    if name is None:
        handle, name = tempfile.mkstemp(dir=folder)
        os.close(handle)
    with open(name, "ab") as file:  # noqa: PTH123
        for each in kept:
            body = encode(each)
            file.write(len(body).to_bytes(8) + body)
    return name


def spilled_sessions(name: str) -> Iterator[Packed]:
    """What was put aside, one at a time; the file is gone afterwards."""
    path = Path(name)
    with path.open("rb") as file:
        while size := file.read(8):
            yield msgspec.msgpack.decode(file.read(int.from_bytes(size)), type=Packed)
    path.unlink()
