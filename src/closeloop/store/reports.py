"""What `closeloop check` said of changes: every report as it was, the newest first."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, insert, or_, select

from closeloop.model.errors import BadInput
from closeloop.model.report import Report, ReportRow
from closeloop.store import facts
from closeloop.store.bodies import pack, unpack
from closeloop.store.part import Part
from closeloop.store.report_tables import reports
from closeloop.store.rows import line
from closeloop.store.schema import attempts

_FIELDS = [reports.c[name] for name in ReportRow.__struct_fields__]


class Reports(Part):
    """The part of an open store that is about checks of changes."""

    def add(
        self, report: Report, at: datetime, *, repo: str | None = None, attempt: str | None = None
    ) -> int:
        """The number that it is kept under."""
        columns = {
            "at": at,
            "repo": line(repo),
            "title": line(report.title),
            "base": line(report.change.base),
            "head": line(report.change.head),
            "attempt": attempt,
            "level": report.risk.level if report.risk else None,
            "verdict": report.verdict,
            "findings": sum(one.silenced is None for one in report.findings),
            "body": pack(report),
        }

        def work(on: Connection) -> int:
            if attempt is not None and not facts.has(on, attempt):
                raise BadInput(f"No attempt {attempt!r} that a report could be about.")
            made = on.execute(insert(reports).returning(reports.c.number), columns)
            return int(made.scalar_one())

        number: int = self._write(work)
        return number

    def rows(
        self,
        limit: int,
        *,
        repo: str | None = None,
        attempt: str | None = None,
        head: str | None = None,
        without: Collection[str] = (),
    ) -> list[ReportRow]:
        """The newest first; `without` those about attempts at tasks with these digests."""
        query = select(*_FIELDS).order_by(reports.c.number.desc()).limit(limit)
        if repo is not None:
            query = query.where(reports.c.repo == line(repo))
        if attempt is not None:
            query = query.where(reports.c.attempt == attempt)
        if head is not None:
            query = query.where(reports.c.head == line(head))
        if without:
            query = query.outerjoin(attempts, attempts.c.id == reports.c.attempt)
            known = attempts.c.task_digest
            query = query.where(or_(known.is_(None), known.not_in(list(without))))
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [ReportRow(**row) for row in rows]

    def report(self, number: int) -> tuple[ReportRow, Report] | None:
        """What was said then, and its line in the list."""
        query = select(*_FIELDS, reports.c.body).where(reports.c.number == number)
        row = self._read(lambda on: on.execute(query).mappings().first())
        if row is None:
            return None
        columns = dict(row)
        body = columns.pop("body")
        return ReportRow(**columns), unpack(body, Report)
