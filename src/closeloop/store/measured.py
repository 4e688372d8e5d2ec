"""What the rules said of attempts: asked for by attempt and by what they said it from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from closeloop.model.measurement import Measurement
from closeloop.model.rates import Rate
from closeloop.store.bodies import pack, unpack
from closeloop.store.facts import add_new, pieces
from closeloop.store.schema import measurements


def columns(attempt: str, basis: str, measurement: Measurement) -> dict[str, Any]:
    """A row of `measurements`: what lists and sums are made of, and the body."""
    counted = [finding.rule for finding in measurement.findings if finding.silenced is None]
    score = measurement.score
    return {
        "attempt": attempt,
        "basis": basis,
        "findings": len(counted),
        "found": " ".join(sorted(set(counted))),
        "category": measurement.ending.category if measurement.ending else None,
        "modes": ", ".join(tag.mode for tag in measurement.modes),
        "iterations": measurement.whole.iterations,
        "converged_after": measurement.whole.converged_after,
        **_rate("handoff", score.handoff),
        **_rate("feedback", score.feedback),
        **_rate("recovery", score.recovery),
        **_rate("convergence", score.convergence),
        "body": pack(measurement),
    }


def _rate(name: str, rate: Rate | None) -> dict[str, float | None]:
    return {
        f"{name}_hits": rate.hits if rate else None,
        f"{name}_of": rate.of if rate else None,
    }


def add(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Save rows; what is known already stays as it is."""
    add_new(connection, measurements, rows)


def last(connection: Connection, attempt: str) -> Measurement | None:
    """The one that was made last, on whatever basis."""
    table = measurements.c
    query = select(table.body).where(table.attempt == attempt).order_by(table.number.desc())
    body = connection.execute(query.limit(1)).scalar()
    return None if body is None else unpack(body, Measurement)


def known(connection: Connection, wanted: Mapping[str, str]) -> dict[str, Measurement]:
    """By attempt, those that were made on that basis."""
    found, table = {}, measurements.c
    for part in pieces(list(wanted)):
        query = select(table.attempt, table.basis, table.body).where(table.attempt.in_(part))
        for row in connection.execute(query):
            if wanted[row.attempt] == row.basis:
                found[row.attempt] = unpack(row.body, Measurement)
    return found
