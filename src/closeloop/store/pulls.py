"""What is told of pull requests: as it came, as facts, and what the facts say now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypedDict, Unpack

from msgspec.structs import asdict
from sqlalchemy import Connection, Select, delete, func, insert, or_, select

from closeloop.model.attempt import Attempt
from closeloop.model.delivery import Delivery
from closeloop.model.event import Event
from closeloop.model.record import Record
from closeloop.model.review import Fact, PullRow
from closeloop.model.session import Session
from closeloop.store import schema
from closeloop.store.bodies import compress, decompress, pack, unpack
from closeloop.store.events import add_events, one_at_a_time
from closeloop.store.facts import add_new, append, has, insert_once, pieces
from closeloop.store.jobs import upsert
from closeloop.store.part import Part
from closeloop.store.pull_tables import arrivals, inbox, links, pull_facts, pulls
from closeloop.store.rows import attempt_columns, line
from closeloop.store.sessions import key_of

SHORT = 7
"""Digits of a commit that are searched by: people shorten them."""
AT_ONCE = 400
UNREAD_BYTES = 32 << 20
_SHOWN = ("repo", "title", "url", "author", "agent", "task", "prompt", "branch")
_COLUMNS = Delivery.__struct_fields__


class Arrival(Record):
    """One delivery of a webhook, as it came."""

    source: str
    delivery: str
    event: str
    at: datetime
    body: bytes | None = None
    """None where it is only counted."""


class Unread(Record):
    """An arrival that nobody has read yet."""

    number: int
    source: str
    event: str
    at: datetime
    body: bytes


class Wanted(TypedDict, total=False):
    """Which pull requests to list."""

    repo: str | None
    state: str | None
    agent: bool | None
    limit: int | None


class Pulls(Part):
    """The part of an open store that is about pull requests."""

    # As it came

    def arrive(self, new: Sequence[Arrival]) -> int:
        """Keep deliveries, each once however often it is sent; how many were new."""
        given = {(one.source, one.delivery): one for one in new}
        bodies = {key: compress(one.body) for key, one in given.items() if one.body is not None}

        def work(on: Connection) -> int:
            fresh = [given[key] for key in given.keys() - _arrived(on, [*given])]
            add_new(on, arrivals, [_arrival(one) for one in fresh])
            unread = [
                {"source": one.source, "event": one.event, "at": one.at, "body": body}
                for one in fresh
                if (body := bodies.get((one.source, one.delivery))) is not None
            ]
            if unread:
                on.execute(insert(inbox), unread)
            return len(fresh)

        return int(self._write(work))

    def unread(self, limit: int = AT_ONCE) -> list[Unread]:
        """The oldest arrivals that wait to be read, fewer where they are large."""
        query = select(inbox).order_by(inbox.c.number).limit(limit)

        def work(on: Connection) -> list[Unread]:
            found: list[Unread] = []
            size = 0
            for row in on.execute(query).mappings():
                found.append(Unread(**{**row, "body": decompress(row["body"])}))
                size += len(found[-1].body)
                if size > UNREAD_BYTES:
                    break
            return found

        kept: list[Unread] = self._read(work)
        return kept

    def has_read(self, numbers: Sequence[int]) -> None:
        """Let go of arrivals: what they say is kept."""
        self._write(
            lambda on: on.execute(delete(inbox).where(inbox.c.number.in_(numbers))) and None
        )

    def arrived(self) -> dict[tuple[str, str], int]:
        """How many deliveries came, by source and event."""
        query = select(arrivals.c.source, arrivals.c.event, func.count())
        query = query.group_by(arrivals.c.source, arrivals.c.event)
        rows = self._read(lambda on: on.execute(query).all())
        return {(row[0], row[1]): row[2] for row in rows}

    # Facts

    def add_facts(
        self, new: Sequence[Fact], tell: Callable[[Fact], Sequence[Event]] = lambda fact: ()
    ) -> list[Fact]:
        """Keep what is not known yet, with the events that it tells; those that were new."""

        def work(on: Connection) -> list[Fact]:
            statement = insert_once(pull_facts, on.dialect.name)
            added = [one for one in new if on.execute(statement, _fact(one)).rowcount == 1]
            add_events(on, [event for one in added for event in tell(one)])
            return added

        found: list[Fact] = self._write(work)
        return found

    def facts(self, repo: str, pull: int) -> list[Fact]:
        """All that was told of a pull request: by its number, its commits or its branch."""
        table = pull_facts
        within = table.c.repo == repo

        def work(on: Connection) -> list[Fact]:
            query = select(table.c.body).where(within)
            own = [unpack(body, Fact) for body in on.execute(_in_order(query, pull)).scalars()]
            shas = sorted({sha[:SHORT] for one in own for sha in shas_of(one)})
            branches = {one.branch for one in own} - {None}
            others = query.where(table.c.pull.is_(None))
            found = list(own)
            for part in pieces(shas):
                some = others.where(table.c.sha.in_(part))
                found += [unpack(body, Fact) for body in on.execute(some).scalars()]
            if branches:
                some = others.where(table.c.branch.in_(sorted(map(str, branches))))
                found += [unpack(body, Fact) for body in on.execute(some).scalars()]
            return list({one.key: one for one in found}.values())

        kept: list[Fact] = self._read(work)
        return kept

    def touched(self, new: Sequence[Fact]) -> list[tuple[str, int]]:
        """The pull requests that facts may be about."""
        found = {(one.repo, one.pull): None for one in new if one.pull is not None}

        def work(on: Connection) -> None:
            for one in new:
                if one.pull is None:
                    for query in _abouts(one):
                        found.update(
                            ((one.repo, number), None) for number in on.execute(query).scalars()
                        )

        self._read(work)
        return [key for key in found if key[1] is not None]

    # What they say now

    def save(
        self, row: PullRow, tell: Callable[[PullRow | None], Sequence[Event]]
    ) -> PullRow | None:
        """Keep what the facts say now, with the events that that tells; the row before."""
        columns = {**asdict(row), **{name: line(getattr(row, name)) for name in _SHOWN}}
        for name in ("head", "merge_commit"):
            columns[name] = columns[name] and columns[name][:SHORT]

        def work(on: Connection) -> PullRow | None:
            one_at_a_time(on)
            old = _row(on.execute(_one(row.repo, row.pull)).mappings().first())
            if old is not None and old.told > row.told:
                # Another process knew more.
                return old
            if old is None or any(getattr(old, name) != columns[name] for name in columns):
                on.execute(_upsert(on.dialect.name), columns)
            add_events(on, tell(old))
            return old

        before: PullRow | None = self._write(work)
        return before

    def row(self, repo: str, pull: int) -> PullRow | None:
        return _row(self._read(lambda on: on.execute(_one(repo, pull)).mappings().first()))

    def rows(self, **wanted: Unpack[Wanted]) -> list[PullRow]:
        """Pull requests, the latest first."""
        query = select(pulls).order_by(pulls.c.opened.desc(), pulls.c.repo, pulls.c.pull.desc())
        if (repo := wanted.get("repo")) is not None:
            query = query.where(pulls.c.repo == repo)
        if (state := wanted.get("state")) is not None:
            query = query.where(pulls.c.state == state)
        if (agent := wanted.get("agent")) is not None:
            query = query.where(pulls.c.agent.is_not(None) if agent else pulls.c.agent.is_(None))
        query = query.limit(wanted.get("limit"))
        found = self._read(lambda on: on.execute(query).mappings().all())
        return [PullRow(**row) for row in found]

    # The attempts behind them

    def keep_attempt(self, attempt: Attempt, session: Session) -> None:
        """Save a piece of production work of which there is no recording, once."""
        columns = attempt_columns(attempt, None, None)
        bodies = {"attempt": attempt.id, "body": pack(attempt), "change": None, "trace": None}
        told = {
            "attempt": attempt.id,
            "key": key_of(session, attempt.id),
            "agent": line(session.agent),
            "model": line(session.model),
            "repo": line(attempt.repo),
            "branch": line(attempt.branch),
            "body": pack(session),
        }

        def work(on: Connection) -> None:
            if not has(on, attempt.id):
                on.execute(insert(schema.attempts), columns)
                on.execute(insert(schema.attempt_bodies), bodies)
                on.execute(insert(schema.sessions), told)

        self._write(work)

    def attempts_on(self, branch: str) -> list[tuple[str, str | None, datetime | None]]:
        """Recorded work on a branch, latest first: its id, its repository and when it began."""
        table, session = schema.attempts, schema.sessions
        query = select(table.c.id, session.c.repo, table.c.started)
        query = query.join(session, session.c.attempt == table.c.id)
        # What only stands for a pull request has no recording.
        query = query.where(session.c.branch == line(branch), table.c.events.is_not(None))
        query = query.order_by(table.c.started.desc().nulls_last(), session.c.number.desc())
        rows = self._read(lambda on: on.execute(query.limit(AT_ONCE)).all())
        return [tuple(row) for row in rows]

    def attempts_naming(self, address: str) -> list[str]:
        """Recorded work that names an address, latest stored first."""
        query = select(links.c.attempt).where(links.c.address == line(address))
        query = query.order_by(links.c.number.desc()).limit(AT_ONCE)
        found: list[str] = self._read(lambda on: list(on.execute(query).scalars()))
        return found

    def has_attempt(self, attempt: str) -> bool:
        return bool(self._read(lambda on: has(on, attempt)))

    def delivery(self, attempt: str) -> Delivery | None:
        """What is known of what became of an attempt's change."""
        table = schema.deliveries
        query = select(*(table.c[name] for name in _COLUMNS)).where(table.c.attempt == attempt)
        query = query.order_by(table.c.number.desc()).limit(1)
        row = self._read(lambda on: on.execute(query).mappings().first())
        return None if row is None else Delivery(**row)

    def deliver(self, delivery: Delivery) -> None:
        """Say what became of a change, unless that is what is known."""
        self._write(lambda on: append(on, schema.deliveries, ("attempt",), asdict(delivery)))


def shas_of(fact: Fact) -> list[str]:
    """The commits by which a fact may be found, or finds others."""
    what: Any = fact.what
    named = [
        fact.sha,
        *(getattr(what, name, None) for name in ("head", "merge_commit", "after", "before")),
    ]
    return [sha for sha in (*named, *(getattr(what, "commits", None) or ())) if sha]


def _in_order(query: Select[Any], pull: int) -> Select[Any]:
    return query.where(pull_facts.c.pull == pull).order_by(pull_facts.c.number)


def _arrived(connection: Connection, keys: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for part in pieces(keys):
        named = [delivery for _, delivery in part]
        query = select(arrivals.c.source, arrivals.c.delivery)
        rows = connection.execute(query.where(arrivals.c.delivery.in_(named)))
        found.update((row[0], row[1]) for row in rows)
    return found


def _arrival(one: Arrival) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("source", "delivery", "event", "at")}


def _fact(fact: Fact) -> dict[str, Any]:
    return {
        "source": fact.source,
        "repo": line(fact.repo),
        "key": line(fact.key),
        "pull": fact.pull,
        "sha": fact.sha and line(fact.sha[:SHORT]),
        "branch": line(fact.branch),
        "at": fact.at,
        "body": pack(fact),
    }


def _abouts(fact: Fact) -> list[Select[Any]]:
    """How to find the pull requests of a fact that names none."""
    named = pulls.c.repo == fact.repo
    found: list[Select[Any]] = []
    if fact.branch is not None:
        found.append(select(pulls.c.pull).where(named, pulls.c.branch == line(fact.branch)))
    if fact.sha is not None:
        sha = fact.sha[:SHORT]
        same = (pull_facts.c.repo == fact.repo, pull_facts.c.sha == sha)
        found.append(
            select(pull_facts.c.pull).where(*same, pull_facts.c.pull.is_not(None)).distinct()
        )
        at = or_(pulls.c.merge_commit == sha, pulls.c.head == sha)
        found.append(select(pulls.c.pull).where(named, at))
    return found


@cache
def _upsert(dialect: str) -> Any:
    new = upsert(dialect, pulls)
    said = {column.name: new.excluded[column.name] for column in pulls.c}
    return new.on_conflict_do_update(index_elements=["repo", "pull"], set_=said)


def _one(repo: str, pull: int) -> Select[Any]:
    return select(pulls).where(pulls.c.repo == repo, pulls.c.pull == pull)


def _row(row: Any) -> PullRow | None:
    return None if row is None else PullRow(**row)
