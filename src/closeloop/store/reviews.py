"""What people answered in the review queue, and whose turn an item is."""

from __future__ import annotations

from sqlalchemy import case, func, insert, select

from closeloop.model.queue import Assigned, HumanReview
from closeloop.store import facts
from closeloop.store.bodies import pack
from closeloop.store.memory_tables import human_reviews, review_assignments
from closeloop.store.part import Part
from closeloop.store.rows import line


class Reviews(Part):
    """The part of an open store that is the review queue."""

    def save(self, review: HumanReview) -> None:
        """Add answers, whole or as far as they go; of one person and item the newest count.

        A draft that is late, and kept after the answers were, changes nothing.
        """
        columns = {
            "item": line(review.item),
            "reviewer": line(review.reviewer),
            "state": review.state,
            "merge": review.merge,
            "at": review.at,
            "body": pack(review),
        }
        self._write(lambda on: facts.append(on, human_reviews, ("item", "reviewer"), columns))

    def all(self, *, item: str | None = None, reviewer: str | None = None) -> list[HumanReview]:
        """Those that count, in the order they were given: answers, and drafts of who has none."""
        table = human_reviews
        asked = {table.c.item: line(item), table.c.reviewer: line(reviewer)}
        where = [column == value for column, value in asked.items() if value is not None]
        done = func.max(case((table.c.state == "done", table.c.number)))
        last = select(func.coalesce(done, func.max(table.c.number))).where(*where).group_by(*asked)
        query = select(table.c.body).where(table.c.number.in_(last)).order_by(table.c.number)
        return self._records(query, HumanReview)

    def assign(self, one: Assigned) -> None:
        """From now on it is this person's turn as well."""
        columns = {
            "item": line(one.item),
            "reviewer": line(one.reviewer),
            "at": one.at,
            "asked": one.asked,
        }
        self._write(lambda on: on.execute(insert(review_assignments), columns) and None)

    def assigned(self) -> list[Assigned]:
        """All that ever were, in the order they were made."""
        table = review_assignments
        fields = [table.c[name] for name in Assigned.__struct_fields__]
        query = select(*fields).order_by(table.c.number)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [Assigned(**row) for row in rows]
