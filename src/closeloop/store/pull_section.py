"""Pull requests: webhook deliveries as received, facts, and the current state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypedDict, Unpack

from msgspec.structs import asdict

from closeloop.records.attempt import Attempt
from closeloop.records.change import Change
from closeloop.records.pull_request import Delivery, Fact, PullRow
from closeloop.records.record import Record, Time
from closeloop.records.trace import LogEvent, Session
from closeloop.store import schema
from closeloop.store.attempt_rows import attempt_columns, select_counted_attempts, short_column_text
from closeloop.store.engine import Connection
from closeloop.store.event_section import add_events, lock_event_numbers
from closeloop.store.fact_rows import (
    StoreSection,
    append_fact,
    attempt_exists,
    insert_new_rows,
    insert_or_ignore,
    split_values,
)
from closeloop.store.record_bodies import (
    compress_content,
    decompress_body,
    pack_record,
    unpack_record,
)
from closeloop.store.schema import arrivals, inbox, links, pull_changes, pull_facts, pulls
from closeloop.store.session_rows import insert_work_texts, session_key
from closeloop.store.sql_expressions import func, or_
from closeloop.store.sql_statements import Select, delete, insert, select
from closeloop.text.patches import sum_line_counts
from closeloop.text.search_text import collect_search_text

SHORT_SHA_DIGITS = 7
"""Digits of a commit id used for searching: people abbreviate them."""
MAX_PULL_ROWS = 400
MAX_UNREAD_BYTES = 32 << 20
_TEXT_COLUMNS = (
    "repo", "title", "url", "author", "asked_by", "agent", "task", "prompt", "branch",
)  # fmt: skip
_DELIVERY_COLUMNS = Delivery.__struct_fields__


class WebhookArrival(Record):
    """One webhook delivery as received."""

    source: str
    delivery: str
    event: str
    at: datetime
    body: bytes | None = None
    """None if the delivery is only counted."""


class UnreadArrival(Record):
    """A delivery that is not processed yet."""

    number: int
    source: str
    event: str
    at: datetime
    body: bytes


class BranchWork(Record):
    """A recorded attempt, with its repository and branch."""

    attempt: str
    repo: str | None
    branch: str | None
    started: Time | None
    cost: float | None


class PullQuery(TypedDict, total=False):
    """Which pull requests to list."""

    repo: str | None
    state: str | None
    agent: bool | None
    attempt: str | None
    has_change: bool | None
    attempts: Sequence[str] | None
    """Only pull requests that came from one of these attempts."""
    limit: int | None


class PullSection(StoreSection):
    """The store's section for pull requests."""

    # Deliveries as received

    def save_arrivals(self, received: Sequence[WebhookArrival]) -> int:
        """Save deliveries, each once however often it is sent; return how many were new."""
        arrivals_by_key = {(arrival.source, arrival.delivery): arrival for arrival in received}
        bodies = {
            key: compress_content(arrival.body)
            for key, arrival in arrivals_by_key.items()
            if arrival.body is not None
        }

        def work(connection: Connection) -> int:
            new_arrivals = [
                arrivals_by_key[key]
                for key in arrivals_by_key.keys() - _known_arrivals(connection, [*arrivals_by_key])
            ]
            insert_new_rows(
                connection,
                arrivals,
                [_arrival_columns(new_arrival) for new_arrival in new_arrivals],
            )
            unread = [
                {
                    "source": new_arrival.source,
                    "event": new_arrival.event,
                    "at": new_arrival.at,
                    "body": body,
                }
                for new_arrival in new_arrivals
                if (body := bodies.get((new_arrival.source, new_arrival.delivery))) is not None
            ]
            if unread:
                connection.execute(insert(inbox), unread)
            return len(new_arrivals)

        return int(self._write(work))

    def list_unread(self, limit: int = MAX_PULL_ROWS) -> list[UnreadArrival]:
        """List the oldest unprocessed deliveries; fewer if they are large."""
        query = select(inbox).order_by(inbox.c.number).limit(limit)

        def work(connection: Connection) -> list[UnreadArrival]:
            loaded: list[UnreadArrival] = []
            size = 0
            for row in connection.execute(query).mappings():
                loaded.append(UnreadArrival(**{**row, "body": decompress_body(row["body"])}))
                size += len(loaded[-1].body)
                if size > MAX_UNREAD_BYTES:
                    break
            return loaded

        return self._read(work)

    def delete_arrivals(self, numbers: Sequence[int]) -> None:
        """Delete processed deliveries from the inbox; their facts are stored."""
        self._write(
            lambda connection: (
                connection.execute(delete(inbox).where(inbox.c.number.in_(numbers))) and None
            )
        )

    def count_arrivals(self) -> dict[tuple[str, str], int]:
        """Count the deliveries by source and event."""
        query = select(arrivals.c.source, arrivals.c.event, func.count())
        query = query.group_by(arrivals.c.source, arrivals.c.event)
        rows = self._read(lambda connection: connection.execute(query).all())
        return {(row[0], row[1]): row[2] for row in rows}

    # Facts

    def add_facts(
        self,
        facts: Sequence[Fact],
        make_events: Callable[[Fact], Sequence[LogEvent]] = lambda fact: (),
    ) -> list[Fact]:
        """Save facts that are new, with their events; return the new ones."""

        def work(connection: Connection) -> list[Fact]:
            statement = insert_or_ignore(pull_facts)
            added = [
                fact
                for fact in facts
                if connection.execute(statement, _fact_columns(fact)).rowcount == 1
            ]
            add_events(connection, [event for fact in added for event in make_events(fact)])
            return added

        return self._write(work)

    def list_facts(self, repo: str, pull: int) -> list[Fact]:
        """List all facts of a pull request: by its number, its commits or its branch."""
        table = pull_facts
        within = table.c.repo == repo

        def work(connection: Connection) -> list[Fact]:
            query = select(table.c.body).where(within)
            own_facts = [
                unpack_record(body, Fact)
                for body in connection.execute(_select_pull_facts(query, pull)).scalars()
            ]
            shas = sorted({sha[:SHORT_SHA_DIGITS] for fact in own_facts for sha in fact_shas(fact)})
            branches = {fact.branch for fact in own_facts} - {None}
            unnumbered = query.where(table.c.pull.is_(None))
            collected = list(own_facts)
            for part in split_values(shas):
                query_part = unnumbered.where(table.c.sha.in_(part))
                collected += [
                    unpack_record(body, Fact) for body in connection.execute(query_part).scalars()
                ]
            if branches:
                query_part = unnumbered.where(table.c.branch.in_(sorted(map(str, branches))))
                collected += [
                    unpack_record(body, Fact) for body in connection.execute(query_part).scalars()
                ]
            return list({fact.key: fact for fact in collected}.values())

        return self._read(work)

    def find_touched_pulls(self, facts: Sequence[Fact]) -> list[tuple[str, int]]:
        """Return the pull requests that these facts may be about."""
        pull_keys = {(fact.repo, fact.pull): None for fact in facts if fact.pull is not None}

        def work(connection: Connection) -> None:
            for fact in facts:
                if fact.pull is None:
                    for query in _pull_queries(fact):
                        pull_keys.update(
                            ((fact.repo, number), None)
                            for number in connection.execute(query).scalars()
                        )

        self._read(work)
        return [key for key in pull_keys if key[1] is not None]

    # Current state

    def save_pull(
        self, row: PullRow, make_events: Callable[[PullRow | None], Sequence[LogEvent]]
    ) -> PullRow | None:
        """Save the current state with the events it causes; return the previous row."""
        columns = {
            **asdict(row),
            **{name: short_column_text(getattr(row, name)) for name in _TEXT_COLUMNS},
        }
        for name in ("head", "merge_commit"):
            columns[name] = columns[name] and columns[name][:SHORT_SHA_DIGITS]

        def work(connection: Connection) -> PullRow | None:
            lock_event_numbers(connection)
            old = _pull_from_row(
                connection.execute(_select_pull(row.repo, row.pull)).mappings().first()
            )
            if old is not None and old.told > row.told:
                # Another process stored a newer state.
                return old
            if old is None or any(getattr(old, name) != columns[name] for name in columns):
                connection.execute(_upsert_statement(), columns)
            add_events(connection, make_events(old))
            return old

        return self._write(work)

    def load_pull(self, repo: str, pull: int) -> PullRow | None:
        return _pull_from_row(
            self._read(
                lambda connection: connection.execute(_select_pull(repo, pull)).mappings().first()
            )
        )

    def list_pulls(self, **wanted: Unpack[PullQuery]) -> list[PullRow]:
        """List pull requests, latest first."""
        query = select(pulls).order_by(pulls.c.opened.desc(), pulls.c.repo, pulls.c.pull.desc())
        if (repo := wanted.get("repo")) is not None:
            query = query.where(pulls.c.repo == repo)
        if (state := wanted.get("state")) is not None:
            query = query.where(pulls.c.state == state)
        if (agent := wanted.get("agent")) is not None:
            query = query.where(pulls.c.agent.is_not(None) if agent else pulls.c.agent.is_(None))
        if (attempt := wanted.get("attempt")) is not None:
            query = query.where(pulls.c.attempt == attempt)
        if (attempts := wanted.get("attempts")) is not None:
            query = query.where(pulls.c.attempt.in_(attempts))
        if (has_change := wanted.get("has_change")) is not None:
            query = query.where(pulls.c.has_change.is_(has_change))
        query = query.limit(wanted.get("limit"))
        pull_rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [PullRow(**row) for row in pull_rows]

    # Diffs

    def save_change(
        self, repo: str, pull: int, head: str, change: Change, fetched_at: datetime
    ) -> None:
        """Save the diff of a pull request at its newest commit, redacted, once."""
        from closeloop.text.redaction import redact_change

        lines_added, lines_removed = sum_line_counts(change.files)
        columns = {
            "repo": short_column_text(repo),
            "pull": pull,
            "head": head,
            "at": fetched_at,
            "files": len(change.files),
            "added": lines_added,
            "removed": lines_removed,
            "body": pack_record(redact_change(change)),
        }
        self._write(lambda connection: insert_new_rows(connection, pull_changes, [columns]))

    def load_change(self, repo: str, pull: int, head: str) -> Change | None:
        """Load the diff of a pull request at a commit; None if it was not fetched."""
        query = _select_change(pull_changes.c.body, repo, pull, head)
        body = self._read(lambda connection: connection.execute(query).scalar())
        return None if body is None else unpack_record(body, Change)

    def load_change_size(
        self, repo: str, pull: int, head: str
    ) -> tuple[int, int | None, int | None] | None:
        """Return files, lines added and lines removed of that diff; None if it was not fetched."""
        table = pull_changes.c
        query = _select_change(table.files, repo, pull, head).add_columns(
            table.added, table.removed
        )
        row = self._read(lambda connection: connection.execute(query).first())
        return None if row is None else (row[0], row[1], row[2])

    # Attempts behind pull requests

    def save_pull_attempt(self, attempt: Attempt, session: Session, title: str | None) -> None:
        """Save production work without a recording, once."""
        columns = attempt_columns(attempt, None, None, title)
        bodies = {
            "attempt": attempt.id,
            "body": pack_record(attempt),
            "change": None,
            "trace": None,
        }
        session_columns = {
            "attempt": attempt.id,
            "key": session_key(session, attempt.id),
            "agent": short_column_text(session.agent),
            "model": short_column_text(session.model),
            "repo": short_column_text(attempt.repo),
            "branch": short_column_text(attempt.branch),
            "body": pack_record(session),
        }

        search_text = collect_search_text(attempt, None, title)

        def work(connection: Connection) -> None:
            if not attempt_exists(connection, attempt.id):
                connection.execute(insert(schema.attempts), columns)
                connection.execute(insert(schema.attempt_bodies), bodies)
                connection.execute(insert(schema.sessions), session_columns)
                insert_work_texts(connection, {attempt.id: search_text})

        self._write(work)

    def list_branch_work(
        self, branches: Collection[str], attempts: Collection[str]
    ) -> list[BranchWork]:
        """List recorded work on these branches plus these attempts on any branch, each once."""
        table, session = schema.attempts.c, schema.sessions.c
        columns = (
            table.id.label("attempt"), session.repo, session.branch, table.started, table.cost,
        )  # fmt: skip
        query = select_counted_attempts().with_only_columns(*columns, maintain_column_froms=True)
        # A placeholder for a pull request has neither.
        is_recorded = table.events.is_not(None) | table.cost.is_not(None)
        query = query.where(is_recorded).order_by(None)
        parts = [session.branch.in_(part) for part in split_values([*branches])]
        parts += [table.id.in_(part) for part in split_values([*attempts])]

        def work(connection: Connection) -> list[BranchWork]:
            rows = [
                row for part in parts for row in connection.execute(query.where(part)).mappings()
            ]
            by_attempt = {row["attempt"]: BranchWork(**row) for row in rows}
            return [by_attempt[name] for name in sorted(by_attempt)]

        return self._read(work)

    def attempts_on_branch(self, branch: str) -> list[tuple[str, str | None, datetime | None]]:
        """List recorded work on a branch, latest first: id, repository and start."""
        table, session = schema.attempts, schema.sessions
        query = select(table.c.id, session.c.repo, table.c.started)
        query = query.join(session, session.c.attempt == table.c.id)
        # A placeholder for a pull request has no recording.
        query = query.where(
            session.c.branch == short_column_text(branch), table.c.events.is_not(None)
        )
        query = query.order_by(table.c.started.desc().nulls_last(), session.c.number.desc())
        rows = self._read(lambda connection: connection.execute(query.limit(MAX_PULL_ROWS)).all())
        return [tuple(row) for row in rows]

    def attempts_naming(self, address: str) -> list[str]:
        """List recorded attempts that mention an address, latest stored first."""
        query = select(links.c.attempt).where(links.c.address == short_column_text(address))
        query = query.order_by(links.c.number.desc()).limit(MAX_PULL_ROWS)
        return self._read(lambda connection: list(connection.execute(query).scalars()))

    def has_attempt(self, attempt: str) -> bool:
        return bool(self._read(lambda connection: attempt_exists(connection, attempt)))

    def load_delivery(self, attempt: str) -> Delivery | None:
        """Load what is known about the delivery of an attempt's change; None if nothing."""
        table = schema.deliveries
        query = select(*(table.c[name] for name in _DELIVERY_COLUMNS)).where(
            table.c.attempt == attempt
        )
        query = query.order_by(table.c.number.desc()).limit(1)
        row = self._read(lambda connection: connection.execute(query).mappings().first())
        return None if row is None else Delivery(**row)

    def save_delivery(self, delivery: Delivery) -> None:
        """Save what became of a change, unless it is unchanged."""
        self._write(
            lambda connection: append_fact(
                connection, schema.deliveries, ("attempt",), asdict(delivery)
            )
        )


def fact_shas(fact: Fact) -> list[str]:
    """Return the commits by which a fact can be matched with others."""
    content: Any = fact.what
    direct_shas = [
        fact.sha,
        *(getattr(content, name, None) for name in ("head", "merge_commit", "after", "before")),
    ]
    return [sha for sha in (*direct_shas, *(getattr(content, "commits", None) or ())) if sha]


def _select_pull_facts(query: Select, pull: int) -> Select:
    return query.where(pull_facts.c.pull == pull).order_by(pull_facts.c.number)


def _known_arrivals(
    connection: Connection, keys: Sequence[tuple[str, str]]
) -> set[tuple[str, str]]:
    known_keys: set[tuple[str, str]] = set()
    for part in split_values(keys):
        delivery_ids = [delivery for _, delivery in part]
        query = select(arrivals.c.source, arrivals.c.delivery)
        rows = connection.execute(query.where(arrivals.c.delivery.in_(delivery_ids)))
        known_keys.update((row[0], row[1]) for row in rows)
    return known_keys


def _arrival_columns(arrival: WebhookArrival) -> dict[str, Any]:
    return {name: getattr(arrival, name) for name in ("source", "delivery", "event", "at")}


def _fact_columns(fact: Fact) -> dict[str, Any]:
    return {
        "source": fact.source,
        "repo": short_column_text(fact.repo),
        "key": short_column_text(fact.key),
        "pull": fact.pull,
        "sha": fact.sha and short_column_text(fact.sha[:SHORT_SHA_DIGITS]),
        "branch": short_column_text(fact.branch),
        "at": fact.at,
        "body": pack_record(fact),
    }


def _pull_queries(fact: Fact) -> list[Select]:
    """Return queries for the pull requests of a fact that names none."""
    same_repo = pulls.c.repo == fact.repo
    queries: list[Select] = []
    if fact.branch is not None:
        queries.append(
            select(pulls.c.pull).where(same_repo, pulls.c.branch == short_column_text(fact.branch))
        )
    if fact.sha is not None:
        sha = fact.sha[:SHORT_SHA_DIGITS]
        same_commit = (pull_facts.c.repo == fact.repo, pull_facts.c.sha == sha)
        queries.append(
            select(pull_facts.c.pull).where(*same_commit, pull_facts.c.pull.is_not(None)).distinct()
        )
        ends_at_commit = or_(pulls.c.merge_commit == sha, pulls.c.head == sha)
        queries.append(select(pulls.c.pull).where(same_repo, ends_at_commit))
    return queries


@cache
def _upsert_statement() -> Any:
    new = insert(pulls)
    updates = {column.name: new.excluded[column.name] for column in pulls.c}
    return new.on_conflict_do_update(index_elements=["repo", "pull"], set_=updates)


def _select_pull(repo: str, pull: int) -> Select:
    return select(pulls).where(pulls.c.repo == repo, pulls.c.pull == pull)


def _select_change(column: Any, repo: str, pull: int, head: str) -> Select:
    table = pull_changes.c
    conditions = (table.repo == short_column_text(repo), table.pull == pull, table.head == head)
    return select(column).where(*conditions)


def _pull_from_row(row: Any) -> PullRow | None:
    return None if row is None else PullRow(**row)
