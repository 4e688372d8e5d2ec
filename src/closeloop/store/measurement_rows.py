"""What the rules said of attempts: asked for by attempt and by what they said it from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from closeloop.records.estimate import Rate
from closeloop.records.finding import Measurement
from closeloop.store.fact_rows import insert_new_rows, split_values
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.schema import measurements


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
        "modes": ", ".join(tag.mode for tag in measurement.modes),
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
