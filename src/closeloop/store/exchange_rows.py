"""What went between attempts and their models, and what the rules said of attempts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from msgspec.structs import replace
from sqlalchemy import Connection, select

from closeloop.providers.provider_streams import split_into_pieces
from closeloop.records.estimate import Rate
from closeloop.records.finding import Measurement
from closeloop.records.record import Record
from closeloop.records.session import Exchange
from closeloop.store import fact_rows, schema
from closeloop.store.attempt_rows import (
    column_integer,
    column_number,
    join_modes,
    short_column_text,
)
from closeloop.store.fact_rows import insert_new_rows, split_values
from closeloop.store.record_bodies import (
    compress_content,
    decompress_body,
    pack_record,
    unpack_record,
)
from closeloop.store.schema import measurements

_DIGEST_BYTES = hashlib.sha256().digest_size


class PackedExchanges(Record):
    """Exchanges of one attempt as rows; every piece once."""

    rows: tuple[dict[str, Any], ...]
    blobs: dict[str, bytes]


def exchanges_to_rows(attempt: str, exchanges: Iterable[Exchange]) -> PackedExchanges:
    """Ready to be saved."""
    blobs: dict[str, bytes] = {}

    def add_piece(piece: bytes) -> bytes:
        digest = hashlib.sha256(piece).digest()
        if digest.hex() not in blobs:
            blobs[digest.hex()] = compress_content(piece)
        return digest

    rows = tuple(
        {
            **_exchange_columns(exchange),
            "attempt": attempt,
            "request": b"".join(map(add_piece, split_into_pieces(exchange.request))),
            "response": add_piece(exchange.response).hex(),
            "body": pack_record(replace(exchange, request=b"", response=b"")),
        }
        for exchange in exchanges
    )
    return PackedExchanges(rows=rows, blobs=blobs)


class LazyExchanges(Sequence[Exchange]):
    """What was packed; each exchange is put together when it is read."""

    def __init__(self, made: PackedExchanges) -> None:
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
        return _join_exchange(self._made.rows[index], self._made.blobs)


def _join_exchange(row: Mapping[Any, Any], content: Mapping[str, bytes]) -> Exchange:
    request = b"".join(decompress_body(content[each]) for each in _split_digests(row["request"]))
    response = decompress_body(content[row["response"]])
    return replace(unpack_record(row["body"], Exchange), request=request, response=response)


def _exchange_columns(exchange: Exchange) -> dict[str, Any]:
    usage = exchange.usage
    return {
        "number": exchange.number,
        "at": exchange.at,
        "path": short_column_text(exchange.path),
        "status": exchange.status,
        "seconds": exchange.seconds,
        "first_byte_seconds": exchange.first_byte_seconds,
        "retries": exchange.retries,
        "model": short_column_text(exchange.model),
        "input_tokens": column_integer(usage.input_tokens),
        "output_tokens": column_integer(usage.output_tokens),
        "cache_read_tokens": column_integer(usage.cache_read_tokens),
        "cache_write_tokens": column_integer(usage.cache_write_tokens),
        "cost": column_number(usage.cost),
        "cause": short_column_text(exchange.cause),
    }


def insert_exchanges(connection: Connection, made: PackedExchanges) -> None:
    """Save exchanges; what is known already stays as it is."""
    fact_rows.save_blobs(connection, *made.blobs.items())
    fact_rows.insert_new_rows(connection, schema.exchanges, made.rows)


def load_exchanges(connection: Connection, attempt: str) -> Iterator[Exchange]:
    """The exchanges of an attempt in order; each is put together when its turn comes."""
    table = schema.exchanges.c
    query = select(table.body, table.request, table.response).where(table.attempt == attempt)
    rows = connection.execute(query.order_by(table.number)).mappings().all()
    digests = {
        digest for row in rows for digest in (*_split_digests(row["request"]), row["response"])
    }
    content = _load_blobs(connection, sorted(digests))
    return (_join_exchange(row, content) for row in rows)


def _split_digests(request: bytes) -> list[str]:
    return [
        request[place : place + _DIGEST_BYTES].hex()
        for place in range(0, len(request), _DIGEST_BYTES)
    ]


def _load_blobs(connection: Connection, digests: list[str]) -> dict[str, bytes]:
    table, blobs_by_digest = schema.blobs.c, {}
    for part in fact_rows.split_values(digests):
        query = select(table.digest, table.body).where(table.digest.in_(part))
        blobs_by_digest.update({row.digest: row.body for row in connection.execute(query)})
    return blobs_by_digest


# What the rules said of attempts: asked for by attempt and by what they said it from.


def measurement_columns(attempt: str, basis: str, measurement: Measurement) -> dict[str, Any]:
    """A row of `measurements`: what lists and sums are made of, and the body."""
    counted_rules = [finding.rule for finding in measurement.findings if finding.silenced is None]
    score = measurement.score
    return {
        "attempt": attempt,
        "basis": basis,
        "findings": len(counted_rules),
        "found": " ".join(sorted(set(counted_rules))),
        "category": measurement.ending.category if measurement.ending else None,
        "modes": join_modes((tag.mode, tag.source) for tag in measurement.modes),
        "examined": join_modes(measurement.examined),
        "modules": measurement.modules,
        "opened_precision": column_number(measurement.opened_precision),
        "opened_recall": column_number(measurement.opened_recall),
        "context_tokens": column_integer(measurement.whole.context_tokens),
        "drift_slope": column_number(measurement.whole.drift_slope),
        "iterations": measurement.whole.iterations,
        "converged_after": measurement.whole.converged_after,
        **_rate_columns("handoff", score.handoff),
        **_rate_columns("feedback", score.feedback),
        **_rate_columns("recovery", score.recovery),
        **_rate_columns("convergence", score.convergence),
        "body": pack_record(measurement),
    }


def _rate_columns(name: str, rate: Rate | None) -> dict[str, float | None]:
    return {
        f"{name}_hits": rate.hits if rate else None,
        f"{name}_of": rate.of if rate else None,
    }


def insert_measurements(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Save rows; what is known already stays as it is."""
    insert_new_rows(connection, measurements, rows)


def last(connection: Connection, attempt: str) -> Measurement | None:
    """The one that was made last, on whatever basis."""
    table = measurements.c
    query = select(table.body).where(table.attempt == attempt).order_by(table.number.desc())
    body = connection.execute(query.limit(1)).scalar()
    return None if body is None else unpack_record(body, Measurement)


def load_measurements(connection: Connection, wanted: Mapping[str, str]) -> dict[str, Measurement]:
    """By attempt, those that were made on that basis."""
    by_attempt, table = {}, measurements.c
    for part in split_values(list(wanted)):
        query = select(table.attempt, table.basis, table.body).where(table.attempt.in_(part))
        for row in connection.execute(query):
            if wanted[row.attempt] == row.basis:
                by_attempt[row.attempt] = unpack_record(row.body, Measurement)
    return by_attempt
