"""What reviewers taught: corrections, rules, vectors, what agents were told and what came again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from sqlalchemy import Connection, func, insert, select

from closeloop.model.memory import Example, LearnedRule, Offer, Repeat, RuleState
from closeloop.model.review import Correction
from closeloop.store import facts
from closeloop.store import memory_tables as tables
from closeloop.store.bodies import pack, unpack
from closeloop.store.judged_tables import evaluations
from closeloop.store.part import Part
from closeloop.store.pull_tables import events, inbox, pull_facts, pulls
from closeloop.store.report_tables import reports
from closeloop.store.rows import line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_NAMED = 10_000
"""Of more texts than this, it takes less time to read all vectors."""


class Memory(Part):
    """The part of an open store that is about rules."""

    def news(self) -> tuple[object, ...]:
        """Changes when there may be more to be learned.

        Facts are kept a moment before the pull requests they change: only when these are written,
        and the inbox is let go, is all of it there to be read.
        """
        told = (events, pull_facts, tables.human_reviews, evaluations, reports)
        newest = (func.max(table.c.number) for table in told)
        marks = (*newest, func.max(pulls.c.told), func.min(inbox.c.number))
        query = select(*(select(mark).scalar_subquery() for mark in marks))
        return tuple(self._read(lambda on: on.execute(query).one()))

    def findings(self) -> dict[str, str]:
        """By attempt, a name for what judges and checks said of it last."""

        def work(on: Connection) -> dict[str, str]:
            found: dict[str, str] = {}
            for table in (evaluations, reports):
                query = select(table.c.attempt, func.max(table.c.number))
                query = query.where(table.c.attempt.is_not(None)).group_by(table.c.attempt)
                for attempt, number in on.execute(query):
                    found[attempt] = f"{found.get(attempt, '')} {table.name}{number}"
            return found

        return self._read(work)  # type: ignore[no-any-return]

    def save_rule(self, rule: LearnedRule) -> None:
        """Say a rule, or say it anew; its examples are added to those that are known."""

        def work(on: Connection) -> None:
            facts.append(on, tables.learned_rules, ("id",), _rule_columns(rule))
            _add_examples(on, rule)

        self._write(work)

    def save_examples(self, rule: LearnedRule) -> None:
        """Add a rule's examples; a rule that is known stays as people last put it."""
        known = select(tables.learned_rules.c.number).where(tables.learned_rules.c.id == rule.id)

        def work(on: Connection) -> None:
            if on.execute(known.limit(1)).first() is None:
                on.execute(insert(tables.learned_rules), _rule_columns(rule))
            _add_examples(on, rule)

        self._write(work)

    def rules(
        self, *, repo: str | None = None, state: RuleState | None = None
    ) -> list[LearnedRule]:
        """As they are now, with their examples, oldest first; those of every repository too."""

        def work(on: Connection) -> tuple[Sequence[bytes], Sequence[Any]]:
            query = facts.newest(tables.learned_rules, "id")
            rules = tables.learned_rules
            if repo is not None:
                query = query.where((rules.c.repo == line(repo)) | rules.c.repo.is_(None))
            if state is not None:
                query = query.where(rules.c.state == state)
            bodies = on.execute(query).scalars().all()
            said = select(tables.rule_examples.c.rule, tables.rule_examples.c.body)
            said = said.order_by(tables.rule_examples.c.at, tables.rule_examples.c.number)
            return bodies, on.execute(said).all()

        bodies, said = self._read(work)
        examples: dict[str, list[bytes]] = {}
        for rule, body in said:
            examples.setdefault(rule, []).append(body)
        found = [unpack(body, LearnedRule) for body in bodies]
        return [
            replace(
                rule, examples=tuple(unpack(body, Example) for body in examples.get(rule.id, ()))
            )
            for rule in found
        ]

    # Vectors

    def save_vectors(self, encoder: str, made: Mapping[str, NDArray[np.float32]]) -> None:
        """By the digest of their texts; each once."""
        rows = [
            {"encoder": encoder, "digest": digest, "body": vector.astype("<f4").tobytes()}
            for digest, vector in made.items()
        ]
        self._write(lambda on: facts.add_new(on, tables.vectors, rows))

    def vectors(self, encoder: str, digests: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Those that an encoder made of some texts."""
        import numpy as np

        table = tables.vectors
        query = select(table.c.digest, table.c.body).where(table.c.encoder == encoder)

        def work(on: Connection) -> list[Any]:
            if len(digests) > MOST_NAMED:
                return list(on.execute(query).all())
            parts = facts.pieces(digests)
            found = (on.execute(query.where(table.c.digest.in_(part))).all() for part in parts)
            return [row for rows in found for row in rows]

        wanted = {*digests}
        rows = self._read(work)
        return {digest: np.frombuffer(body, "<f4") for digest, body in rows if digest in wanted}

    # What came again

    def save_repeats(self, found: Sequence[Repeat]) -> None:
        """Add what is held now; what is held already is not said twice."""
        rows = [
            {
                "key": line(one.key),
                "rule": one.rule,
                "repo": line(one.repo),
                "pull": one.pull,
                "attempt": one.attempt,
                "state": one.state,
                "body": pack(one),
            }
            for one in found
        ]
        self._write(lambda on: facts.append_each(on, tables.repeats, ("key", "rule"), rows))

    def repeats(self, *, repo: str | None = None, pull: int | None = None) -> list[Repeat]:
        """As they are held now, in the order they were found."""
        table = tables.repeats
        query = facts.newest(table, "key", "rule", repo=line(repo), pull=pull)
        return self._records(query, Repeat)

    # What agents were told

    def offer(self, made: Offer) -> Offer:
        """Say what was told of some work: it counts with all that was told of it before."""
        table = tables.offers
        query = facts.newest(table, "repo", "key", repo=line(made.repo), key=line(made.key))

        def work(on: Connection) -> Offer:
            body = on.execute(query).scalar()
            before = made if body is None else unpack(body, Offer)
            rules = tuple(dict.fromkeys((*before.rules, *made.rules)))
            if body is not None and rules == before.rules:
                return before
            whole = replace(made, rules=rules)
            columns = {
                "key": line(made.key),
                "repo": line(made.repo),
                "arm": made.arm,
                "at": made.at,
                "body": pack(whole),
            }
            on.execute(insert(table), columns)
            return whole

        kept: Offer = self._write(work)
        return kept

    def offers(self, repo: str | None = None, keys: Sequence[str] | None = None) -> list[Offer]:
        """As they count now, in the order they were made; those of some work by its keys."""
        query = facts.newest(tables.offers, "repo", "key", repo=line(repo))
        if keys is not None:
            query = query.where(tables.offers.c.key.in_([line(key) for key in keys]))
        return self._records(query, Offer)

    # Corrections

    def save_corrections(self, found: Sequence[Correction]) -> None:
        """Add corrections, or what is newly said of them."""
        rows = [
            {
                "id": one.id,
                "repo": line(one.repo),
                "pull": one.pull,
                "attempt": one.attempt,
                "kind": one.kind,
                "at": one.at,
                "body": pack(one),
            }
            for one in found
        ]
        self._write(lambda on: facts.append_each(on, tables.corrections, ("id",), rows))

    def corrections(self, *, repo: str | None = None, pull: int | None = None) -> list[Correction]:
        """As they are now, oldest first."""
        table = tables.corrections
        query = facts.newest(table, "id", repo=line(repo), pull=pull)
        return self._records(query, Correction)


def _rule_columns(rule: LearnedRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "repo": line(rule.repo),
        "state": rule.state,
        "body": pack(replace(rule, examples=())),
    }


def _add_examples(on: Connection, rule: LearnedRule) -> None:
    rows = [
        {"rule": rule.id, "key": line(one.key), "at": one.at, "body": pack(one)}
        for one in rule.examples
    ]
    facts.add_new(on, tables.rule_examples, rows)
