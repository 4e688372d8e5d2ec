"""Jobs: who works on what, until when. The only rows that change.

A lease is a promise for some seconds, renewed by a heartbeat. Times are the database's own, so
that machines with differing clocks agree.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from sqlalchemy import (
    Connection,
    Float,
    Table,
    bindparam,
    delete,
    literal_column,
    or_,
    select,
    update,
)

from closeloop.store.owners import is_dead
from closeloop.store.schema import jobs

NOW: dict[str, Any] = {
    "sqlite": literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float),
    "postgresql": literal_column("extract(epoch FROM clock_timestamp())::double precision", Float),
}
CLAIMED: Any = literal_column("'claimed'")
"""Written out, so that the index of claimed jobs is used."""


def upsert(dialect: str, table: Table) -> Any:
    """An INSERT that may meet a row, as an engine says it: the words of others are not imported."""
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def claim(connection: Connection, key: str, owner: str, seconds: float) -> bool:
    """Take a job that nobody has, whose lease ran out, or that is the owner's already."""
    given = {"key": key, "owner": owner, "seconds": seconds}
    return connection.execute(_claim(connection.dialect.name), given).rowcount == 1


def holder(connection: Connection, key: str) -> str | None:
    """Who has claimed a job and not finished it."""
    found = select(jobs.c.owner).where(jobs.c.key == key, jobs.c.state == "claimed")
    return connection.execute(found).scalar()


def in_hand(connection: Connection) -> list[str]:
    """The keys of jobs that somebody works on now; who was killed does not."""
    leased = jobs.c.leased_until > NOW[connection.dialect.name]
    query = select(jobs.c.key, jobs.c.owner).where(jobs.c.state == CLAIMED, leased)
    return [key for key, owner in connection.execute(query) if not is_dead(owner)]


def finish(connection: Connection, key: str) -> bool:
    """False when the job was finished before."""
    return connection.execute(_finish(connection.dialect.name), {"key": key}).rowcount == 1


def heartbeat(connection: Connection, owner: str, seconds: float) -> int:
    """Renew an owner's leases; how many it still has."""
    until = NOW[connection.dialect.name] + seconds
    renewed = update(jobs).where(_held_by(owner)).values(leased_until=until)
    return connection.execute(renewed).rowcount


def release(connection: Connection, owner: str, key: str | None) -> int:
    """Give back what an owner has claimed: one job, or all; how many those were."""
    given_back = delete(jobs).where(_held_by(owner))
    if key is not None:
        given_back = given_back.where(jobs.c.key == key)
    return connection.execute(given_back).rowcount


def take_over(connection: Connection, key: str, holder: str, owner: str, seconds: float) -> bool:
    """Claim a job whose holder is dead."""
    release(connection, holder, key)
    return claim(connection, key, owner, seconds)


def _held_by(owner: str) -> Any:
    return (jobs.c.owner == owner) & (jobs.c.state == CLAIMED)


@cache
def _claim(dialect: str) -> Any:
    now = NOW[dialect]
    wanted = upsert(dialect, jobs).values(
        key=bindparam("key"),
        owner=bindparam("owner"),
        leased_until=now + bindparam("seconds", type_=Float),
        state="claimed",
    )
    free = or_(jobs.c.leased_until <= now, jobs.c.owner == wanted.excluded.owner)
    return wanted.on_conflict_do_update(
        index_elements=["key"],
        set_={"owner": wanted.excluded.owner, "leased_until": wanted.excluded.leased_until},
        where=(jobs.c.state == "claimed") & free,
    )


@cache
def _finish(dialect: str) -> Any:
    done = upsert(dialect, jobs).values(key=bindparam("key"), state="finished")
    return done.on_conflict_do_update(
        index_elements=["key"], set_={"state": "finished"}, where=jobs.c.state == "claimed"
    )
