"""Jobs: who works on what, until when. The only rows that change.

A lease is a promise for some seconds, renewed by a heartbeat. Times are the database's own, so
that machines with differing clocks agree.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from importlib import import_module
from pathlib import Path
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

from closeloop.store.schema import jobs

# Who holds a lease: a process of a machine, told apart from a later one with the same number.


def current_owner() -> str:
    """A name that no other process, now or later, on this machine or another, will have."""
    return f"{_machine_name()}:{os.getpid()}:{_process_start(os.getpid())}"


def is_owner_dead(owner: str) -> bool:
    """Surely gone: a process of this machine that no longer runs. Any other may be alive."""
    machine, _, process = owner.partition(":")
    pid, _, start = process.partition(":")
    return machine == _machine_name() and pid.isdigit() and _process_start(int(pid)) != start


def _machine_name() -> str:
    """Host and process namespace: containers of one host count processes each for itself."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return f"{socket.gethostname()}/{namespace}"


def _process_start(pid: int) -> str | None:
    """When a process began, in the kernel's ticks; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        # Without /proc (macOS) a process can only be asked whether it is there.
        return "?" if not Path("/proc/self").exists() and _is_running(pid) else None
    # The second field is the program's name in parentheses and may hold anything.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state == "Z" else fields[18]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


DATABASE_NOW: dict[str, Any] = {
    "sqlite": literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float),
    "postgresql": literal_column("extract(epoch FROM clock_timestamp())::double precision", Float),
}
CLAIMED_STATE: Any = literal_column("'claimed'")
"""Written out, so that the index of claimed jobs is used."""


def build_insert(dialect: str, table: Table) -> Any:
    """An INSERT that may meet a row, as an engine says it: the words of others are not imported."""
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def claim_job(connection: Connection, key: str, owner: str, seconds: float) -> bool:
    """Take a job that nobody has, whose lease ran out, or that is the owner's already."""
    parameters = {"key": key, "owner": owner, "seconds": seconds}
    return connection.execute(_claim_statement(connection.dialect.name), parameters).rowcount == 1


def find_job_owner(connection: Connection, key: str) -> str | None:
    """Who has claimed a job and not finished it."""
    query = select(jobs.c.owner).where(jobs.c.key == key, jobs.c.state == "claimed")
    return connection.execute(query).scalar()


def list_claimed_jobs(connection: Connection) -> list[str]:
    """The keys of jobs that somebody works on now; who was killed does not."""
    leased = jobs.c.leased_until > DATABASE_NOW[connection.dialect.name]
    query = select(jobs.c.key, jobs.c.owner).where(jobs.c.state == CLAIMED_STATE, leased)
    return [key for key, owner in connection.execute(query) if not is_owner_dead(owner)]


def finish_job(connection: Connection, key: str) -> bool:
    """False when the job was finished before."""
    return (
        connection.execute(_finish_statement(connection.dialect.name), {"key": key}).rowcount == 1
    )


def renew_leases(connection: Connection, owner: str, seconds: float) -> int:
    """Renew an owner's leases; how many it still has."""
    until = DATABASE_NOW[connection.dialect.name] + seconds
    statement = update(jobs).where(_is_claimed_by(owner)).values(leased_until=until)
    return connection.execute(statement).rowcount


def release_jobs(connection: Connection, owner: str, key: str | None) -> int:
    """Give back what an owner has claimed: one job, or all; how many those were."""
    statement = delete(jobs).where(_is_claimed_by(owner))
    if key is not None:
        statement = statement.where(jobs.c.key == key)
    return connection.execute(statement).rowcount


def take_over_job(
    connection: Connection, key: str, holder: str, owner: str, seconds: float
) -> bool:
    """Claim a job whose holder is dead."""
    release_jobs(connection, holder, key)
    return claim_job(connection, key, owner, seconds)


def _is_claimed_by(owner: str) -> Any:
    return (jobs.c.owner == owner) & (jobs.c.state == CLAIMED_STATE)


@cache
def _claim_statement(dialect: str) -> Any:
    now = DATABASE_NOW[dialect]
    insertion = build_insert(dialect, jobs).values(
        key=bindparam("key"),
        owner=bindparam("owner"),
        leased_until=now + bindparam("seconds", type_=Float),
        state="claimed",
    )
    free = or_(jobs.c.leased_until <= now, jobs.c.owner == insertion.excluded.owner)
    return insertion.on_conflict_do_update(
        index_elements=["key"],
        set_={"owner": insertion.excluded.owner, "leased_until": insertion.excluded.leased_until},
        where=(jobs.c.state == "claimed") & free,
    )


@cache
def _finish_statement(dialect: str) -> Any:
    insertion = build_insert(dialect, jobs).values(key=bindparam("key"), state="finished")
    return insertion.on_conflict_do_update(
        index_elements=["key"], set_={"state": "finished"}, where=jobs.c.state == "claimed"
    )
