"""What people answered in the review queue, and whose turn an item is."""

from __future__ import annotations

from sqlalchemy import case, func, insert, select

from closeloop.records.team_rules import HumanReview, ReviewAssignment
from closeloop.store import fact_rows
from closeloop.store.attempt_rows import short_column_text
from closeloop.store.memory_tables import human_reviews, review_assignments
from closeloop.store.record_bodies import pack_record
from closeloop.store.store_section import StoreSection


class ReviewSection(StoreSection):
    """The part of an open store that is the review queue."""

    def save_review(self, review: HumanReview) -> None:
        """Add answers, whole or as far as they go; of one person and item the newest count.

        A draft that is late, and kept after the answers were, changes nothing.
        """
        columns = {
            "item": short_column_text(review.item),
            "reviewer": short_column_text(review.reviewer),
            "state": review.state,
            "merge": review.merge,
            "at": review.at,
            "body": pack_record(review),
        }
        self._write(
            lambda on: fact_rows.append_fact(on, human_reviews, ("item", "reviewer"), columns)
        )

    def list_reviews(
        self, *, item: str | None = None, reviewer: str | None = None
    ) -> list[HumanReview]:
        """Those that count, in the order they were given: answers, and drafts of who has none."""
        table = human_reviews
        filters = {
            table.c.item: short_column_text(item),
            table.c.reviewer: short_column_text(reviewer),
        }
        where = [column == value for column, value in filters.items() if value is not None]
        last_done = func.max(case((table.c.state == "done", table.c.number)))
        last = (
            select(func.coalesce(last_done, func.max(table.c.number)))
            .where(*where)
            .group_by(*filters)
        )
        query = select(table.c.body).where(table.c.number.in_(last)).order_by(table.c.number)
        return self._load_records(query, HumanReview)

    def add_assignment(self, one: ReviewAssignment) -> None:
        """From now on it is this person's turn as well."""
        columns = {
            "item": short_column_text(one.item),
            "reviewer": short_column_text(one.reviewer),
            "at": one.at,
            "asked": one.asked,
        }
        self._write(lambda on: on.execute(insert(review_assignments), columns) and None)

    def list_assignments(self) -> list[ReviewAssignment]:
        """All that ever were, in the order they were made."""
        table = review_assignments
        fields = [table.c[name] for name in ReviewAssignment.__struct_fields__]
        query = select(*fields).order_by(table.c.number)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [ReviewAssignment(**row) for row in rows]
