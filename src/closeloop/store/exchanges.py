"""What went between attempts and their models: columns to add up, and bodies kept in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from msgspec.structs import replace
from sqlalchemy import Connection, select

from closeloop.model.exchange import Exchange
from closeloop.model.pieces import pieces
from closeloop.model.record import Record
from closeloop.store import facts, schema
from closeloop.store.bodies import compress, decompress, pack, unpack
from closeloop.store.rows import amount, count, line

_DIGEST = hashlib.sha256().digest_size


class Packed(Record):
    """Exchanges of one attempt as rows; every piece once."""

    rows: tuple[dict[str, Any], ...]
    blobs: dict[str, bytes]


def packed(attempt: str, exchanges: Iterable[Exchange]) -> Packed:
    """Ready to be saved."""
    blobs: dict[str, bytes] = {}

    def shared(piece: bytes) -> bytes:
        digest = hashlib.sha256(piece).digest()
        if digest.hex() not in blobs:
            blobs[digest.hex()] = compress(piece)
        return digest

    rows = tuple(
        {
            **_columns(exchange),
            "attempt": attempt,
            "request": b"".join(map(shared, pieces(exchange.request))),
            "response": shared(exchange.response).hex(),
            "body": pack(replace(exchange, request=b"", response=b"")),
        }
        for exchange in exchanges
    )
    return Packed(rows=rows, blobs=blobs)


class Unpacked(Sequence[Exchange]):
    """What was packed; each exchange is put together when it is read."""

    def __init__(self, made: Packed) -> None:
        self._made = made

    def __len__(self) -> int:
        return len(self._made.rows)

    @overload
    def __getitem__(self, index: int) -> Exchange: ...
    @overload
    def __getitem__(self, index: slice) -> list[Exchange]: ...
    def __getitem__(self, index: int | slice) -> Exchange | list[Exchange]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return _whole(self._made.rows[index], self._made.blobs)


def _whole(row: Mapping[Any, Any], content: Mapping[str, bytes]) -> Exchange:
    request = b"".join(decompress(content[each]) for each in _digests(row["request"]))
    response = decompress(content[row["response"]])
    return replace(unpack(row["body"], Exchange), request=request, response=response)


def _columns(exchange: Exchange) -> dict[str, Any]:
    usage = exchange.usage
    return {
        "number": exchange.number,
        "at": exchange.at,
        "path": line(exchange.path),
        "status": exchange.status,
        "seconds": exchange.seconds,
        "first_byte_seconds": exchange.first_byte_seconds,
        "retries": exchange.retries,
        "model": line(exchange.model),
        "input_tokens": count(usage.input_tokens),
        "output_tokens": count(usage.output_tokens),
        "cache_read_tokens": count(usage.cache_read_tokens),
        "cache_write_tokens": count(usage.cache_write_tokens),
        "cost": amount(usage.cost),
        "cause": line(exchange.cause),
    }


def add(connection: Connection, made: Packed) -> None:
    """Save exchanges; what is known already stays as it is."""
    facts.share(connection, *made.blobs.items())
    facts.add_new(connection, schema.exchanges, made.rows)


def kept(connection: Connection, attempt: str) -> Iterator[Exchange]:
    """The exchanges of an attempt in order; each is put together when its turn comes."""
    table = schema.exchanges.c
    query = select(table.body, table.request, table.response).where(table.attempt == attempt)
    rows = connection.execute(query.order_by(table.number)).mappings().all()
    wanted = {digest for row in rows for digest in (*_digests(row["request"]), row["response"])}
    content = _content(connection, sorted(wanted))
    return (_whole(row, content) for row in rows)


def _digests(request: bytes) -> list[str]:
    return [request[place : place + _DIGEST].hex() for place in range(0, len(request), _DIGEST)]


def _content(connection: Connection, digests: list[str]) -> dict[str, bytes]:
    table, found = schema.blobs.c, {}
    for part in facts.pieces(digests):
        query = select(table.digest, table.body).where(table.digest.in_(part))
        found.update({row.digest: row.body for row in connection.execute(query)})
    return found
