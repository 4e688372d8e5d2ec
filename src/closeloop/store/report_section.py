"""What `closeloop check` said of changes: every report as it was, the newest first."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, insert, or_, select

from closeloop.records.change import ChangeReport, ReportRow
from closeloop.records.errors import BadInput
from closeloop.store import fact_rows
from closeloop.store.attempt_rows import short_column_text
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.report_tables import reports
from closeloop.store.schema import attempts
from closeloop.store.store_section import StoreSection

_ROW_COLUMNS = [reports.c[name] for name in ReportRow.__struct_fields__]


class ReportSection(StoreSection):
    """The part of an open store that is about checks of changes."""

    def save_report(
        self,
        report: ChangeReport,
        at: datetime,
        *,
        repo: str | None = None,
        attempt: str | None = None,
    ) -> int:
        """The number that it is kept under."""
        columns = {
            "at": at,
            "repo": short_column_text(repo),
            "title": short_column_text(report.title),
            "base": short_column_text(report.change.base),
            "head": short_column_text(report.change.head),
            "attempt": attempt,
            "level": report.risk.level if report.risk else None,
            "verdict": report.verdict,
            "findings": sum(one.silenced is None for one in report.findings),
            "body": pack_record(report),
        }

        def work(on: Connection) -> int:
            if attempt is not None and not fact_rows.attempt_exists(on, attempt):
                raise BadInput(f"No attempt {attempt!r} that a report could be about.")
            inserted = on.execute(insert(reports).returning(reports.c.number), columns)
            return int(inserted.scalar_one())

        number: int = self._write(work)
        return number

    def list_reports(
        self,
        limit: int,
        *,
        repo: str | None = None,
        attempt: str | None = None,
        head: str | None = None,
        without: Collection[str] = (),
    ) -> list[ReportRow]:
        """The newest first; `without` those about attempts at tasks with these digests."""
        query = select(*_ROW_COLUMNS).order_by(reports.c.number.desc()).limit(limit)
        if repo is not None:
            query = query.where(reports.c.repo == short_column_text(repo))
        if attempt is not None:
            query = query.where(reports.c.attempt == attempt)
        if head is not None:
            query = query.where(reports.c.head == short_column_text(head))
        if without:
            query = query.outerjoin(attempts, attempts.c.id == reports.c.attempt)
            task_digest = attempts.c.task_digest
            query = query.where(or_(task_digest.is_(None), task_digest.not_in(list(without))))
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [ReportRow(**row) for row in rows]

    def load_report(self, number: int) -> tuple[ReportRow, ChangeReport] | None:
        """What was said then, and its line in the list."""
        query = select(*_ROW_COLUMNS, reports.c.body).where(reports.c.number == number)
        row = self._read(lambda on: on.execute(query).mappings().first())
        if row is None:
            return None
        columns = dict(row)
        body = columns.pop("body")
        return ReportRow(**columns), unpack_record(body, ChangeReport)
