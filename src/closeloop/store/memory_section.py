"""Corrections, team rules, vectors, agent context, repeated remarks and the review queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.records.pull_request import Correction
from closeloop.records.team_rules import (
    ContextRecord,
    HumanReview,
    RepeatedRemark,
    ReviewAssignment,
    RuleExample,
    RuleState,
    TeamRule,
)
from closeloop.store import fact_rows, schema
from closeloop.store.attempt_rows import short_column_text
from closeloop.store.engine import Connection
from closeloop.store.evaluation_section import add_review_scores
from closeloop.store.fact_rows import StoreSection
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.schema import (
    deliveries,
    evaluations,
    events,
    human_reviews,
    inbox,
    pull_facts,
    pulls,
    reports,
    review_assignments,
)
from closeloop.store.sql_expressions import case, func
from closeloop.store.sql_statements import insert, select

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MAX_QUERIED_DIGESTS = 10_000
"""For more texts than this, reading all vectors is faster."""


class MemorySection(StoreSection):
    """The store's section for team rules."""

    def learning_marker(self) -> tuple[object, ...]:
        """Return a marker that changes when there may be more to learn.

        Facts are saved a moment before the pull requests they change: all of it can be read only
        when these are written and the inbox is cleared.
        """
        source_tables = (events, pull_facts, schema.human_reviews, evaluations, reports)
        newest = (func.max(table.c.number) for table in source_tables)
        marker_columns = (*newest, func.max(pulls.c.told), func.min(inbox.c.number))
        query = select(*(select(column).scalar_subquery() for column in marker_columns))
        return tuple(self._read(lambda connection: connection.execute(query).one()))

    def finding_markers(self) -> dict[str, str]:
        """Return, by attempt, a marker of its latest judge and check results."""

        def work(connection: Connection) -> dict[str, str]:
            markers: dict[str, str] = {}
            for table in (evaluations, reports):
                query = select(table.c.attempt, func.max(table.c.number))
                query = query.where(table.c.attempt.is_not(None)).group_by(table.c.attempt)
                for attempt, number in connection.execute(query):
                    markers[attempt] = f"{markers.get(attempt, '')} {table.name}{number}"
            return markers

        return self._read(work)

    def fact_markers(self) -> dict[tuple[str, int], str]:
        """Return, by pull request, a marker of the facts received about it so far."""
        table = pull_facts
        query = select(table.c.repo, table.c.pull, func.count(), func.max(table.c.number))
        query = query.where(table.c.pull.is_not(None)).group_by(table.c.repo, table.c.pull)
        rows = self._read(lambda connection: connection.execute(query).all())
        return {(repo, pull): f"{count}.{newest}" for repo, pull, count, newest in rows}

    def save_rule(self, rule: TeamRule) -> None:
        """Save a rule or its new version; its examples are added to the existing ones."""

        def work(connection: Connection) -> None:
            fact_rows.append_fact(connection, schema.learned_rules, ("id",), _rule_columns(rule))
            _add_examples(connection, rule)

        self._write(work)

    def save_examples(self, rule: TeamRule) -> None:
        """Add a rule's examples; an existing rule stays as people last edited it."""
        self._write(lambda connection: _add_examples(connection, rule))

    def save_learned_rule(self, rule: TeamRule) -> None:
        """Save a learned rule and its examples; a version edited by a person stays."""
        stored_rule = fact_rows.select_newest(schema.learned_rules, "id", id=rule.id)

        def work(connection: Connection) -> None:
            body = connection.execute(stored_rule).scalar()
            if body is None or unpack_record(body, TeamRule).by is None:
                fact_rows.append_fact(
                    connection, schema.learned_rules, ("id",), _rule_columns(rule)
                )
            _add_examples(connection, rule)

        self._write(work)

    def list_rules(
        self, *, repo: str | None = None, state: RuleState | None = None
    ) -> list[TeamRule]:
        """List current rules with examples, oldest first; with those of every repository."""

        def work(connection: Connection) -> tuple[Sequence[bytes], Sequence[Any]]:
            query = fact_rows.select_newest(schema.learned_rules, "id")
            rules = schema.learned_rules
            if repo is not None:
                query = query.where(
                    (rules.c.repo == short_column_text(repo)) | rules.c.repo.is_(None)
                )
            if state is not None:
                query = query.where(rules.c.state == state)
            bodies = connection.execute(query).scalars().all()
            table = schema.rule_examples
            last = select(func.max(table.c.number)).group_by(table.c.rule, table.c.key)
            example_query = select(table.c.rule, table.c.body).where(table.c.number.in_(last))
            return bodies, connection.execute(example_query.order_by(table.c.at, table.c.key)).all()

        bodies, example_rows = self._read(work)
        examples: dict[str, list[RuleExample]] = {}
        for rule_id, body in example_rows:
            example = unpack_record(body, RuleExample)
            if not example.withdrawn:
                examples.setdefault(rule_id, []).append(example)
        learned_rules = [unpack_record(body, TeamRule) for body in bodies]
        return [replace(rule, examples=tuple(examples.get(rule.id, ()))) for rule in learned_rules]

    # Vectors

    def save_vectors(self, encoder: str, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        """Save vectors by the digest of their texts; each once."""
        rows = [
            {"encoder": encoder, "digest": digest, "body": vector.astype("<f4").tobytes()}
            for digest, vector in vectors.items()
        ]
        self._write(lambda connection: fact_rows.insert_new_rows(connection, schema.vectors, rows))

    def load_vectors(self, encoder: str, digests: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Load an encoder's vectors of some texts, by digest."""
        import numpy as np

        table = schema.vectors
        query = select(table.c.digest, table.c.body).where(table.c.encoder == encoder)

        def work(connection: Connection) -> list[Any]:
            if len(digests) > MAX_QUERIED_DIGESTS:
                return list(connection.execute(query).all())
            parts = fact_rows.split_values(digests)
            results = (
                connection.execute(query.where(table.c.digest.in_(part))).all() for part in parts
            )
            return [row for rows in results for row in rows]

        wanted_digests = {*digests}
        rows = self._read(work)
        return {
            digest: np.frombuffer(body, "<f4") for digest, body in rows if digest in wanted_digests
        }

    # Repeated remarks, and what models said about them

    def save_remark_answer(self, model: str, digest: str, body: bytes) -> None:
        """Save a model's answer to a question about a remark, by the question's digest."""
        row = {"model": short_column_text(model), "digest": digest, "body": body}
        self._write(
            lambda connection: fact_rows.insert_new_rows(connection, schema.remark_answers, [row])
        )

    def load_remark_answer(self, model: str, digest: str) -> bytes | None:
        """Load a model's answer to a question about a remark."""
        table = schema.remark_answers
        query = select(table.c.body).where(
            table.c.model == short_column_text(model), table.c.digest == digest
        )
        body = self._read(lambda connection: connection.execute(query).scalar())
        return None if body is None else bytes(body)

    def save_repeats(self, repeats: Sequence[RepeatedRemark]) -> None:
        """Save repeated remarks in their current state; unchanged ones are not added again."""
        rows = [
            {
                "key": short_column_text(repeat.key),
                "rule": repeat.rule,
                "repo": short_column_text(repeat.repo),
                "pull": repeat.pull,
                "attempt": repeat.attempt,
                "state": repeat.state,
                "body": pack_record(repeat),
            }
            for repeat in repeats
        ]
        self._write(
            lambda connection: fact_rows.append_facts(
                connection, schema.repeats, ("key", "rule"), rows
            )
        )

    def list_repeats(
        self, *, repo: str | None = None, pull: int | None = None
    ) -> list[RepeatedRemark]:
        """List repeated remarks in their current state, in the order they were found."""
        table = schema.repeats
        query = fact_rows.select_newest(
            table, "key", "rule", repo=short_column_text(repo), pull=pull
        )
        return self._load_records(query, RepeatedRemark)

    def count_compared(self, repo: str | None = None) -> int:
        """Count agents' pull requests whose remarks were compared with earlier ones."""
        last = select(func.max(deliveries.c.number)).group_by(deliveries.c.attempt)
        query = select(func.count()).select_from(pulls)
        query = query.join(deliveries, deliveries.c.attempt == pulls.c.attempt)
        query = query.where(deliveries.c.number.in_(last), deliveries.c.repeated.is_not(None))
        if repo is not None:
            query = query.where(pulls.c.repo == short_column_text(repo))
        return int(self._read(lambda connection: connection.execute(query).scalar_one()))

    # Context given to agents

    def save_context_record(self, offer: ContextRecord) -> ContextRecord:
        """Save which rules some work was given; they are merged with those given before."""
        table = schema.offers
        query = fact_rows.select_newest(
            table,
            "repo",
            "key",
            repo=short_column_text(offer.repo),
            key=short_column_text(offer.key),
        )

        def work(connection: Connection) -> ContextRecord:
            body = connection.execute(query).scalar()
            earlier_offer = offer if body is None else unpack_record(body, ContextRecord)
            rules = tuple(dict.fromkeys((*earlier_offer.rules, *offer.rules)))
            if body is not None and rules == earlier_offer.rules:
                return earlier_offer
            merged_offer = replace(offer, rules=rules)
            columns = {
                "key": short_column_text(offer.key),
                "repo": short_column_text(offer.repo),
                "arm": offer.arm,
                "at": offer.at,
                "body": pack_record(merged_offer),
            }
            connection.execute(insert(table), columns)
            return merged_offer

        return self._write(work)

    def list_context_records(
        self, repo: str | None = None, keys: Sequence[str] | None = None
    ) -> list[ContextRecord]:
        """List the current agent context records, in order; `keys` selects some work."""
        query = fact_rows.select_newest(schema.offers, "repo", "key", repo=short_column_text(repo))
        if keys is not None:
            query = query.where(schema.offers.c.key.in_([short_column_text(key) for key in keys]))
        return self._load_records(query, ContextRecord)

    # Corrections

    def save_corrections(self, corrections: Sequence[Correction]) -> None:
        """Save corrections or their new state."""
        rows = [
            {
                "id": correction.id,
                "repo": short_column_text(correction.repo),
                "pull": correction.pull,
                "attempt": correction.attempt,
                "kind": correction.kind,
                "at": correction.at,
                "body": pack_record(correction),
            }
            for correction in corrections
        ]
        self._write(
            lambda connection: fact_rows.append_facts(connection, schema.corrections, ("id",), rows)
        )

    def list_corrections(
        self, *, repo: str | None = None, pull: int | None = None
    ) -> list[Correction]:
        """List current corrections, oldest first, without withdrawn ones."""
        table = schema.corrections
        query = fact_rows.select_newest(table, "id", repo=short_column_text(repo), pull=pull)
        return [record for record in self._load_records(query, Correction) if not record.withdrawn]


def _rule_columns(rule: TeamRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "repo": short_column_text(rule.repo),
        "state": rule.state,
        "body": pack_record(replace(rule, examples=())),
    }


def _add_examples(connection: Connection, rule: TeamRule) -> None:
    rows = [
        {
            "rule": rule.id,
            "key": short_column_text(example.key),
            "at": example.at,
            "body": pack_record(example),
        }
        for example in rule.examples
    ]
    fact_rows.append_facts(connection, schema.rule_examples, ("rule", "key"), rows)


# Reviewers' answers, and who claimed which item.


class ReviewSection(StoreSection):
    """The store's section for the review queue."""

    def save_review(self, review: HumanReview) -> None:
        """Save finished answers or a draft; the newest of a person and item count.

        A draft that arrives after the finished answers changes nothing.
        """
        columns = {
            "item": short_column_text(review.item),
            "reviewer": short_column_text(review.reviewer),
            "state": review.state,
            "merge": review.merge,
            "at": review.at,
            "body": pack_record(review),
        }

        def work(connection: Connection) -> None:
            fact_rows.append_fact(connection, human_reviews, ("item", "reviewer"), columns)
            add_review_scores(connection, review)

        self._write(work)

    def list_reviews(
        self, *, item: str | None = None, reviewer: str | None = None
    ) -> list[HumanReview]:
        """List the reviews that count, in order: finished answers, else the person's draft."""
        table = human_reviews
        filters = {
            table.c.item: short_column_text(item),
            table.c.reviewer: short_column_text(reviewer),
        }
        conditions = [column == value for column, value in filters.items() if value is not None]
        last_done = func.max(case((table.c.state == "done", table.c.number)))
        last = (
            select(func.coalesce(last_done, func.max(table.c.number)))
            .where(*conditions)
            .group_by(*filters)
        )
        query = select(table.c.body).where(table.c.number.in_(last)).order_by(table.c.number)
        return self._load_records(query, HumanReview)

    def add_assignment(self, assignment: ReviewAssignment) -> None:
        """Assign an item to one more reviewer."""
        columns = {
            "item": short_column_text(assignment.item),
            "reviewer": short_column_text(assignment.reviewer),
            "at": assignment.at,
            "asked": assignment.asked,
        }
        self._write(
            lambda connection: connection.execute(insert(review_assignments), columns) and None
        )

    def list_assignments(self) -> list[ReviewAssignment]:
        """List all assignments ever made, in order."""
        table = review_assignments
        fields = [table.c[name] for name in ReviewAssignment.__struct_fields__]
        query = select(*fields).order_by(table.c.number)
        rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [ReviewAssignment(**row) for row in rows]
