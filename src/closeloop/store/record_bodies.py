"""Encoding of whole records: msgpack compressed with zstd."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import zstandard

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record, resolving_types

Kept = TypeVar("Kept", bound=Record)
Blob = tuple[str, bytes]
"""The digest of some content, and its compressed body."""

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[Record], msgspec.msgpack.Decoder[Any]] = {}


class _Codecs(threading.local):
    """Per-thread zstd contexts: costly to create and not thread-safe."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=1).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codecs = _Codecs()
_recent_blobs: deque[tuple[Record, Blob]] = deque(maxlen=8)


def pack_record(record: Record) -> bytes:
    """Encode and compress a record."""
    return compress_content(encode_record(record))


def compress_content(content: bytes) -> bytes:
    """Compress encoded content."""
    return _codecs.compress(content)


def decompress_body(body: bytes) -> bytes:
    """Decompress a body."""
    return _codecs.decompress(body)


def pack_with_digest(record: Record | None) -> Blob | None:
    """Encode and compress a record; return it with the digest of its content."""
    if record is None:
        return None
    # All grades of a task contain the same test run before the change.
    for recent_record, blob in tuple(_recent_blobs):
        if recent_record is record:
            return blob
    content = encode_record(record)
    blob = hashlib.sha256(content).hexdigest(), _codecs.compress(content)
    _recent_blobs.append((record, blob))
    return blob


def unpack_record(body: bytes, kind: type[Kept]) -> Kept:
    """Decode a body into a record."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with resolving_types:
            decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        record: Kept = decoder.decode(_codecs.decompress(body))
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError) as error:
        raise MachineFailed(
            f"A stored {kind.__name__} cannot be read: {error}. Upgrade closeloop if a "
            "newer version wrote it, else restore the store from a backup."
        ) from error
    return record


def is_same_body(first: bytes | None, second: bytes | None) -> bool:
    """Whether two bodies have the same content, whichever zstd release compressed them."""
    if first is None or second is None:
        return first is second
    return first == second or _codecs.decompress(first) == _codecs.decompress(second)


def encode_record(record: Record) -> bytes:
    """Encode a record as msgpack, whatever it contains."""
    try:
        return _encoder.encode(record)
    except (UnicodeEncodeError, OverflowError):
        builtin_values = msgspec.to_builtins(record, builtin_types=(datetime, bytes))
        return _encoder.encode(_storable_value(builtin_values))
    except RecursionError as error:
        kind = type(record).__name__
        raise BadInput(f"A {kind} is nested too deeply to be stored; flatten it.") from error


def _storable_value(value: Any) -> Any:
    """Replace text, numbers and times that msgpack cannot hold; agents and models may send them."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case bool():
            return value
        case int():
            return min(max(value, -(2**63)), 2**64 - 1)
        case datetime():
            return nearest_utc(value)
        case dict():
            return {_storable_value(key): _storable_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_storable_value(item) for item in value]
    return value


def nearest_utc(time: datetime) -> datetime:
    """Convert to UTC; at the limits of the calendar, return the nearest time that exists."""
    try:
        return time.astimezone(UTC)
    except OverflowError:
        edge = datetime.min if time.year == 1 else datetime.max
        return edge.replace(tzinfo=UTC)
