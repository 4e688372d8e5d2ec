"""How records are kept whole: zstd over msgpack."""

from __future__ import annotations

import hashlib
import threading
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import zstandard

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record, resolving_types

Kept = TypeVar("Kept", bound=Record)
Blob = tuple[str, bytes]
"""The digest of some content, and its body."""

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[Record], msgspec.msgpack.Decoder[Any]] = {}


class _Codecs(threading.local):
    """zstd contexts are costly to make and not safe to share between threads."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=1).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codecs = _Codecs()


def pack_record(record: Record) -> bytes:
    """A record as a body."""
    return compress_content(encode_record(record))


def compress_content(content: bytes) -> bytes:
    """Encoded content as a body."""
    return _codecs.compress(content)


def decompress_body(body: bytes) -> bytes:
    """What was compressed."""
    return _codecs.decompress(body)


def pack_with_digest(record: Record | None) -> Blob | None:
    """A record as a body, under the digest of its content."""
    if record is None:
        return None
    content = encode_record(record)
    return hashlib.sha256(content).hexdigest(), _codecs.compress(content)


def unpack_record(body: bytes, kind: type[Kept]) -> Kept:
    """The record a body was made of."""
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


def is_same_body(one: bytes | None, other: bytes | None) -> bool:
    """Whether two bodies hold the same, whichever release of zstd packed them."""
    if one is None or other is None:
        return one is other
    return one == other or _codecs.decompress(one) == _codecs.decompress(other)


def encode_record(record: Record) -> bytes:
    """A record as bytes, whatever it holds."""
    try:
        return _encoder.encode(record)
    except (UnicodeEncodeError, OverflowError):
        builtin_values = msgspec.to_builtins(record, builtin_types=(datetime, bytes))
        return _encoder.encode(_storable_value(builtin_values))
    except RecursionError as error:
        kind = type(record).__name__
        raise BadInput(f"A {kind} is nested too deeply to be stored; flatten it.") from error


def _storable_value(value: Any) -> Any:
    """What agents and models send may be no text, number or time that any format can hold."""
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
            return {_storable_value(key): _storable_value(each) for key, each in value.items()}
        case list() | tuple():
            return [_storable_value(each) for each in value]
    return value


def nearest_utc(time: datetime) -> datetime:
    """The same moment in UTC; at the edges of the calendar, the nearest that exists."""
    try:
        return time.astimezone(UTC)
    except OverflowError:
        edge = datetime.min if time.year == 1 else datetime.max
        return edge.replace(tzinfo=UTC)
