"""The samples of an Inspect log: a ZIP whose members may be packed with zstd, or one JSON file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard

from closeloop.model.protocols import Source
from closeloop.traces.source import DOCUMENT_BYTES, is_heavy
from closeloop.traces.untrusted import count, decode, items, mapping

MEMBER_BYTES = DOCUMENT_BYTES
RATIO = 400
"""No honest member this large unpacks to so many times its size: a bomb does."""
RATIO_BYTES = 16 << 20
ZSTD = 93
TOO_LARGE = "a member that unpacks to too much"
DAMAGED = "a member that cannot be read"

_BROKEN = (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error,
           zstandard.ZstdError, EOFError, RecursionError, msgspec.DecodeError)  # fmt: skip


def is_archive(source: Source) -> bool:
    """Whether a file is a ZIP with the members of a log."""
    if source.head[:4] != b"PK\x03\x04":
        return False
    names = names_of(source.path)
    return any(name in names for name in ("header.json", "_journal/start.json")) and any(
        name.startswith(("samples/", "_journal/")) for name in names
    )


def is_log(value: Any) -> bool:
    """Whether a JSON value is a whole log."""
    told = mapping(mapping(value).get("eval"))
    return isinstance(mapping(value).get("version"), int) and {"task", "model"} <= {*told}


def names_of(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except _BROKEN:
        return []


def samples_of(source: Source) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each sample, with the log's header: one sample at a time is unpacked."""
    if source.head[:4] != b"PK\x03\x04":
        log = mapping(source.document)
        for sample in items(log.get("samples")):
            if isinstance(sample, dict):
                yield log, sample
        return
    try:
        with source.path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield from _of_archive(source, file, archive)
    except _BROKEN:
        _skip(source, DAMAGED)


def _of_archive(
    source: Source, file: BinaryIO, archive: zipfile.ZipFile
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    # A member that was written again stands twice; the last one counts.
    members = archive.NameToInfo
    header = mapping(_member(source, file, archive, "header.json"))
    header = header or mapping(_member(source, file, archive, "_journal/start.json"))
    for name in members:
        if not name.startswith("samples/") or not name.endswith(".json"):
            continue
        below = name.split("/")[1:]
        if len(below) == 1:
            sample = _member(source, file, archive, name)
        elif below[1:] == ["sample.json"]:
            sample = _chunked(source, file, archive, name.removesuffix("sample.json"))
        else:
            continue
        if isinstance(sample, dict):
            yield header, sample


def _chunked(
    source: Source, file: BinaryIO, archive: zipfile.ZipFile, prefix: str
) -> dict[str, Any]:
    """A large sample, kept as a shell and sequences in chunks named by their first item."""
    sample = dict(mapping(_member(source, file, archive, f"{prefix}sample.json")))
    for sequence_name, key in (("events", "events"), ("messages", "message_pool"),
                               ("attachments", "attachments")):  # fmt: skip
        start = f"{prefix}{sequence_name}/"
        chunks = [
            (first, name)
            for name in archive.NameToInfo
            if name.startswith(start)
            and (first := count(name.removeprefix(start).removesuffix(".json"))) is not None
        ]
        found: list[Any] = []
        for _, name in sorted(chunks):
            found.extend(items(_member(source, file, archive, name)))
        if chunks:
            sample[key] = found
    return sample


def _member(source: Source, file: BinaryIO, archive: zipfile.ZipFile, name: str) -> Any:
    """A member's JSON; None, and counted, where it is too large or damaged."""
    info = archive.NameToInfo.get(name)
    if info is None:
        return None
    packed = info.compress_size
    if info.file_size > MEMBER_BYTES or _is_bomb(info.file_size, packed):
        return _skip(source, TOO_LARGE)
    try:
        if info.compress_type == ZSTD:
            content = _unpacked(file, info)
        else:
            with archive.open(info) as member:
                content = member.read(MEMBER_BYTES + 1)
        large = len(content) > MEMBER_BYTES or is_heavy(content)
        if large or _is_bomb(len(content), packed):
            return _skip(source, TOO_LARGE)
        return decode(content)
    except _BROKEN:
        return _skip(source, DAMAGED)


def _is_bomb(size: int, packed: int) -> bool:
    return size > RATIO_BYTES and size > RATIO * packed


def _unpacked(file: BinaryIO, info: zipfile.ZipInfo) -> bytes:
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
    most = min(MEMBER_BYTES, max(RATIO_BYTES, RATIO * len(packed)))
    return reader.read(most + 1)


def _skip(source: Source, why: str) -> None:
    source.skipped[why] = source.skipped.get(why, 0) + 1
