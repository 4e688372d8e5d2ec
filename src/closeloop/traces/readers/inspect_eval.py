"""Logs of Inspect: `.eval` archives, also of runs that crashed, and logs written as JSON.

Every sample is a session. What scorers and the set-up of the sandbox did is not the agent's work
and is left out, and counted.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard

from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.traces.file_source import MAX_DOCUMENT_BYTES, is_heavy
from closeloop.traces.readers.inspect_session import InspectSample
from closeloop.traces.session_builder import SessionBuilder, count_skip
from closeloop.traces.untrusted_json import as_count, as_list, as_mapping, decode_json

name = "inspect-eval"
version = 2
MAX_MEMBER_BYTES = MAX_DOCUMENT_BYTES
MAX_RATIO = 400
"""No honest member this large unpacks to so many times its size: a bomb does."""
MIN_RATIO_BYTES = 16 << 20
ZSTD_METHOD = 93
TOO_LARGE = "a member that unpacks to too much"
DAMAGED = "a member that cannot be read"
_READ_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    zstandard.ZstdError,
    EOFError,
    RecursionError,
    msgspec.DecodeError,
)


def recognises(source: RecordingSource) -> bool:
    if is_log_archive(source):
        return True
    head = source.head
    return b'"eval"' in head and b'"task"' in head and is_inspect_log(source.document)


def read(source: RecordingSource) -> Iterator[Session]:
    for header, sample in iter_samples(source):
        yield InspectSample(
            sample, SessionBuilder(name, version, source.skipped, several=True)
        ).build_session(header)


def is_log_archive(source: RecordingSource) -> bool:
    """Whether a file is a ZIP with the members of a log."""
    if source.head[:4] != b"PK\x03\x04":
        return False
    names = member_names(source.path)
    return any(name in names for name in ("header.json", "_journal/start.json")) and any(
        name.startswith(("samples/", "_journal/")) for name in names
    )


def is_inspect_log(value: Any) -> bool:
    """Whether a JSON value is a whole log."""
    eval_fields = as_mapping(as_mapping(value).get("eval"))
    return isinstance(as_mapping(value).get("version"), int) and {"task", "model"} <= {*eval_fields}


def member_names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except _READ_ERRORS:
        return []


def iter_samples(source: RecordingSource) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each sample, with the log's header: one sample at a time is unpacked."""
    if source.head[:4] != b"PK\x03\x04":
        log = as_mapping(source.document)
        for sample in as_list(log.get("samples")):
            if isinstance(sample, dict):
                yield log, sample
        return
    try:
        with source.path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield from _iter_archive_samples(source, file, archive)
    except _READ_ERRORS:
        count_skip(source.skipped, DAMAGED)


def _iter_archive_samples(
    source: RecordingSource, file: BinaryIO, archive: zipfile.ZipFile
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    # A member that was written again stands twice; the last one counts.
    members = archive.NameToInfo
    header = as_mapping(_read_member(source, file, archive, "header.json"))
    header = header or as_mapping(_read_member(source, file, archive, "_journal/start.json"))
    for name in members:
        if not name.startswith("samples/") or not name.endswith(".json"):
            continue
        below = name.split("/")[1:]
        if len(below) == 1:
            sample = _read_member(source, file, archive, name)
        elif below[1:] == ["sample.json"]:
            sample = _read_chunked_sample(source, file, archive, name.removesuffix("sample.json"))
        else:
            continue
        if isinstance(sample, dict):
            yield header, sample


def _read_chunked_sample(
    source: RecordingSource, file: BinaryIO, archive: zipfile.ZipFile, prefix: str
) -> dict[str, Any]:
    """A large sample, kept as a shell and sequences in chunks named by their first item."""
    sample = dict(as_mapping(_read_member(source, file, archive, f"{prefix}sample.json")))
    for sequence_name, key in (("events", "events"), ("messages", "message_pool"),
                               ("attachments", "attachments")):  # fmt: skip
        start = f"{prefix}{sequence_name}/"
        chunks = [
            (first, name)
            for name in archive.NameToInfo
            if name.startswith(start)
            and (first := as_count(name.removeprefix(start).removesuffix(".json"))) is not None
        ]
        sequence_items: list[Any] = []
        for _, name in sorted(chunks):
            sequence_items.extend(as_list(_read_member(source, file, archive, name)))
        if chunks:
            sample[key] = sequence_items
    return sample


def _read_member(
    source: RecordingSource, file: BinaryIO, archive: zipfile.ZipFile, name: str
) -> Any:
    """A member's JSON; None, and counted, where it is too large or damaged."""
    info = archive.NameToInfo.get(name)
    if info is None:
        return None
    packed = info.compress_size
    if info.file_size > MAX_MEMBER_BYTES or _is_bomb(info.file_size, packed):
        return count_skip(source.skipped, TOO_LARGE)
    try:
        if info.compress_type == ZSTD_METHOD:
            content = _unpack_zstd(file, info)
        else:
            with archive.open(info) as member:
                content = member.read(MAX_MEMBER_BYTES + 1)
        large = len(content) > MAX_MEMBER_BYTES or is_heavy(content)
        if large or _is_bomb(len(content), packed):
            return count_skip(source.skipped, TOO_LARGE)
        return decode_json(content)
    except _READ_ERRORS:
        return count_skip(source.skipped, DAMAGED)


def _is_bomb(size: int, packed: int) -> bool:
    return size > MIN_RATIO_BYTES and size > MAX_RATIO * packed


def _unpack_zstd(file: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    """A member packed with zstd, which Python's zipfile does not know before 3.14."""
    file.seek(info.header_offset)
    header = file.read(30)
    if header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("no member where one should begin")
    # The lengths of its name and its extra field, which may differ from the directory's.
    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    file.seek(info.header_offset + 30 + lengths)
    packed = file.read(info.compress_size)
    reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    max_bytes = min(MAX_MEMBER_BYTES, max(MIN_RATIO_BYTES, MAX_RATIO * len(packed)))
    return reader.read(max_bytes + 1)
