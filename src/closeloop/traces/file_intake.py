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
from functools import lru_cache
from hashlib import sha256
from multiprocessing import parent_process
from pathlib import Path

import msgspec
from msgspec.structs import replace

from closeloop.providers.model_prices import ModelPrices, add_cost, find_model_prices
from closeloop.records.attempt import Attempt, Usage, sum_usage
from closeloop.records.protocols import Reader
from closeloop.records.record import Record, content_digest
from closeloop.records.session import FormatCounts, Session, SessionFilter
from closeloop.records.settings import ModelSettings
from closeloop.records.trace import Note, Trace
from closeloop.store.record_bodies import compress_content, encode_record
from closeloop.store.session_rows import PackedSession, build_packed_session, session_key
from closeloop.text.redaction import redact_path, redact_record
from closeloop.text.untrusted import MAX_SESSION_CHARS
from closeloop.traces.file_source import FileSource
from closeloop.traces.recording_files import (
    RecordingFile,
    find_owner,
    find_reader,
    list_parts,
    stat_recording,
)
from closeloop.traces.session_builder import UNPAIRED_RESULT, count_skip
from closeloop.traces.tool_calls import has_result

_JSON_START = re.compile(rb'\s*(?:\{|\[\s*\{)\s*"')
_CONVERSATION_KEY = re.compile(
    rb'"(?:messages|history|trajectory|steps|events|samples|observations|role)"\s*:'
)
UNKNOWN_NOTE = "unknown, kept as a note"
LARGE_BYTES = 8 << 20
SPILL_BYTES = 32 << 20
"""More than this of one recording goes to the parent by way of a file."""
_ORIGIN = re.compile(r'^\[remote "origin"\]\s*\n(?:[^\[]*\n)?\s*url\s*=\s*(\S+)', re.MULTILINE)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
MAX_CONFIG_CHARS = 1 << 20


class FileOutcome(Record):
    """What came of one file."""

    file: RecordingFile
    reader: str | None = None
    """None where nobody knew it."""
    version: int = 0
    owner: str | None = None
    """The recording that it is only a part of."""
    parts: tuple[tuple[str, int, int], ...] = ()
    sessions: tuple[PackedSession, ...] = ()
    spilled: str | None = None
    """A file with more sessions."""
    unwanted: int = 0
    count: FormatCounts = FormatCounts()
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
def without_garbage_collection() -> Iterator[None]:
    """Traces hold no cycles, and looking for some costs a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # First, or else it would look through everything that was ever made.
            gc.collect(1)
            gc.enable()


def read_recordings(
    files: Sequence[RecordingFile], wish: SessionFilter, folder: str
) -> list[FileOutcome]:
    """Every file, whatever happens: one that cannot be read is named, and the rest goes on."""
    with without_garbage_collection():
        outcomes = []
        for file in files:
            with _lock_large_file(file, folder):
                outcomes.append(_read_recording(file, wish, folder))
    return outcomes


@contextmanager
def _lock_large_file(file: RecordingFile, folder: str) -> Iterator[None]:
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


def _read_recording(file: RecordingFile, wish: SessionFilter, folder: str) -> FileOutcome:
    try:
        source = FileSource(Path(file.path))
        if not source.head:
            # Empty, or else this says why not.
            os.close(os.open(file.path, os.O_RDONLY))
        reader = find_reader(source)
        if reader is None:
            return FileOutcome(file=file, trouble=_describe_damage(source))
        owner = find_owner(reader, source)
        if owner is not None and str(owner) != file.path and stat_recording(str(owner)) is not None:
            return FileOutcome(
                file=file,
                reader=reader.name,
                version=reader.version,
                owner=str(owner),
                count=FormatCounts(files=1),
            )
        return _read_sessions(file, source, reader, wish, folder)
    except OSError as error:
        return FileOutcome(file=file, trouble=error.strerror or str(error))
    except Exception as error:  # a reader is a plug-in and may raise anything
        return FileOutcome(file=file, trouble=f"{type(error).__name__}: {error}")


def _describe_damage(source: FileSource) -> str | None:
    """What is wrong with a file that nobody knew but that begins as recordings do."""
    if source.skipped:
        return next(iter(source.skipped))
    if not _JSON_START.match(source.head) or source.lines or source.document is not None:
        return None
    return (
        "JSON that is broken or ends in the middle"
        if _CONVERSATION_KEY.search(source.head)
        else None
    )


def _read_sessions(
    file: RecordingFile, source: FileSource, reader: Reader, wish: SessionFilter, folder: str
) -> FileOutcome:
    parts = [stat_recording(str(part)) for part in list_parts(reader, source)]
    packed_sessions: list[PackedSession] = []
    counts: dict[str, int] = {"files": 1}
    unknown: dict[str, int] = {}
    redacted: dict[str, int] = {}
    size = unwanted = 0
    spilled: str | None = None
    for raw_session in reader.read(source):
        source.skipped.room = MAX_SESSION_CHARS
        session, redactions = redact_record(raw_session)
        repo = repository_address(session.directory)
        if not _matches_query(session, repo, file, wish):
            unwanted += 1
            continue
        add_counts(redacted, redactions)
        _count_events(session.trace, counts, unknown)
        packed_sessions.append(
            pack_session(session, repo, session_key(session, storable_path(file.path)))
        )
        size += len(packed_sessions[-1].trace)
        if size > SPILL_BYTES:
            spilled, size = _spill_sessions(packed_sessions, spilled, folder), 0
            packed_sessions.clear()
    return FileOutcome(
        file=file,
        reader=reader.name,
        version=reader.version,
        parts=tuple((storable_path(part.path), part.size, part.changed) for part in parts if part),
        sessions=tuple(packed_sessions),
        spilled=spilled,
        unwanted=unwanted,
        count=FormatCounts(**counts, skipped=source.skipped | unknown),
        redacted=redacted,
    )


def storable_path(path: str) -> str:
    """A path as any database can hold it, without secrets; a digest tells such paths apart."""
    name = path.encode("utf-8", "backslashreplace").decode()
    redacted = redact_path(name)
    return name if redacted == name else f"{redacted}#{content_digest(name)[:16]}"


def pack_session(session: Session, repo: str | None, key: str) -> PackedSession:
    """A session as the store keeps it: an attempt that nobody asked us for."""
    trace = session.trace
    encoded = encode_record(trace)
    bare = Trace(reader=trace.reader, reader_version=trace.reader_version)
    content_hash = sha256(
        encode_record(replace(session, trace=Trace(reader=trace.reader, reader_version=0)))
    )
    # The same content read by a newer reader is the same: what is said of the reader is cut off.
    content_hash.update(memoryview(encoded)[len(encode_record(bare)) :])
    attempt = Attempt(
        id=content_hash.hexdigest()[:12],
        origin="production",
        started=session.started,
        ended=session.ended,
        exit=session.exit,
        cause=session.cause,
        usage=usage_with_cost(session),
        summary=session.summary,
        branch=session.branch,
        repo=repo,
        user=session.user,
        links=session.links,
    )
    return build_packed_session(attempt, session, key, compress_content(encoded))


def _matches_query(
    session: Session, repo: str | None, file: RecordingFile, wish: SessionFilter
) -> bool:
    if wish.since is not None:
        last = session.ended or session.started
        if last is not None and last < wish.since:
            return False
    if wish.repo is None or repo == wish.repo:
        return True
    inside = Path(session.directory or "/nowhere").is_relative_to(wish.repo)
    return session.directory is not None and inside


def _count_events(trace: Trace, counts: dict[str, int], unknown: dict[str, int]) -> None:
    calls = paired = 0
    notes: dict[str, int] = {}
    for event in trace.events:
        if (done := has_result(event)) is not None:
            calls += 1
            paired += done
        elif type(event) is Note and event.about:
            if event.about.startswith("unknown"):
                count_skip(notes, UNKNOWN_NOTE)
            elif event.about == UNPAIRED_RESULT:
                count_skip(notes, UNPAIRED_RESULT)
    add_counts(unknown, notes)
    session_counts = {
        "sessions": 1,
        "events": len(trace.events),
        "calls": calls,
        "paired": paired,
        "callless_sessions": int(UNPAIRED_RESULT in notes and not calls),
    }
    add_counts(counts, session_counts)


def add_counts(counts: dict[str, int], more: dict[str, int]) -> None:
    """Count on."""
    for name, number in more.items():
        counts[name] = counts.get(name, 0) + number


def _spill_sessions(kept: Sequence[PackedSession], name: str | None, folder: str) -> str:
    if name is None:
        handle, name = tempfile.mkstemp(dir=folder)
        os.close(handle)
    with open(name, "ab") as file:  # noqa: PTH123
        for each in kept:
            body = encode_record(each)
            file.write(len(body).to_bytes(8) + body)
    return name


def read_spilled_sessions(name: str) -> Iterator[PackedSession]:
    """What was put aside, one at a time; the file is gone afterwards."""
    path = Path(name)
    with path.open("rb") as file:
        while size := file.read(8):
            yield msgspec.msgpack.decode(file.read(int.from_bytes(size)), type=PackedSession)
    path.unlink()


@lru_cache(maxsize=1000)
def published_prices(model: str) -> ModelPrices | None:
    """The published prices of a model, whichever provider it was had from."""
    return find_model_prices(ModelSettings(provider="openai", model=model.rpartition("/")[2]))


def usage_with_cost(session: Session) -> Usage:
    """The session's usage with its cost: reported, or by the price of every model in it."""
    usage = session.usage
    if usage.cost is not None:
        return usage
    by_model: dict[str | None, list[Usage]] = {}
    for lane in session.trace.lanes:
        for turn in lane.turns:
            by_model.setdefault(turn.model or session.model, []).append(turn.usage)
    usage_by_model = {model: sum_usage(usages) for model, usages in by_model.items()}
    if sum_usage(usage_by_model.values()).input_tokens != usage.input_tokens:
        usage_by_model = {session.model: usage}
    cost = 0.0
    for model, used in usage_by_model.items():
        if used.input_tokens is None and used.output_tokens is None:
            continue
        priced_usage = add_cost(used, published_prices(model)) if model else used
        if priced_usage.cost is None:
            return usage
        cost += priced_usage.cost
    return replace(usage, cost=cost, cost_from="prices") if cost else usage


@lru_cache(maxsize=10_000)
def repository_address(directory: str | None) -> str | None:
    """The address of its origin, else its top folder, else the directory itself."""
    if not directory or not directory.startswith("/"):
        return directory or None
    folder = Path(directory)
    try:
        for place in (folder, *folder.parents):
            git = place / ".git"
            if git.exists():
                return _origin_url(git) or str(place)
    except (OSError, ValueError):
        pass
    return directory


def _origin_url(git: Path) -> str | None:
    try:
        if git.is_file():  # a worktree, whose own folder is inside the repository's
            gitdir_line = git.read_text(encoding="utf-8", errors="replace")[:4096]
            git = Path(git.parent, gitdir_line.removeprefix("gitdir:").strip()).parent.parent
        with (git / "config").open(encoding="utf-8", errors="replace") as file:
            match = _ORIGIN.search(file.read(MAX_CONFIG_CHARS))
    except (OSError, ValueError):
        return None
    return _CREDENTIALS.sub("", match[1]) if match else None
