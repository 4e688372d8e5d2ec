"""Processes that use a store, for tests that watch, crowd or kill them: worker.py WHAT URL …"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg

from closeloop.records.attempt import Attempt, Grade, Outcome, TestRun
from closeloop.records.change import Change
from closeloop.records.errors import Fault
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.trace import Lane, Message, Trace
from closeloop.store import Store, open_store


def belongings(name: str) -> tuple[Trace, Change, Grade]:
    """What is saved with an attempt, some of it large, all of it known from the name."""
    noise = random.Random(name)
    text = noise.randbytes(noise.choice([10, 1_000, 60_000])).hex()
    event = Message(number=1, lane="root", role="agent", text=text)
    trace = Trace(reader=name, reader_version=1, lanes=(Lane(id="root"),), events=(event,))
    run = TestRun(when="before", trouble=noise.choice(["a", "b"]))
    outcome = Outcome(result="pass")
    grade = Grade(attempt=name, grading="g", version=1, outcome=outcome, before=run)
    return trace, Change(patch=text[:500], base=name), grade


def save(store: Store, name: str, job: str | None = None) -> bool:
    trace, change, grade = belongings(name)
    attempt = Attempt(id=name, origin="experiment", exit="finished", experiment="e")
    return store.save_attempt(
        AttemptResult(attempt=attempt, trace=trace, change=change, grade=grade), job or name
    )


def whole(store: Store, name: str) -> bool:
    """Whether an attempt is there with all that belongs to it."""
    kept = (store.load_trace(name), store.load_change(name), store.load_grade(name))
    return kept == belongings(name) and not store.claim_job(name, "anybody", 60)


def kill(url: str, rounds: str, seed: str) -> None:
    """Kill a saving process again and again: what it called saved is there, the rest is not."""
    chance = random.Random(seed)
    told: set[str] = set()
    for number in range(int(rounds)):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            save_for_ever(url, f"{number:03d}", writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            saved = [pipe.readline()] if chance.random() < 0.9 else []
            time.sleep(chance.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            saved += pipe.readlines()
        told |= {line.decode().strip() for line in saved if line.endswith(b"\n")}
        wait_for_server(url)
        check_after_kill(url, told, f"{number:03d}")
    print(len(told))


def save_for_ever(url: str, prefix: str, pipe: int) -> None:
    with open_store(url) as store:
        for number in range(10**9):
            name = f"{prefix}-{number:05d}"
            store.claim_job(name, prefix, 60)
            save(store, name)
            os.write(pipe, f"{name}\n".encode())


def wait_for_server(url: str) -> None:
    """What a killed process has sent to PostgreSQL is still carried out, sometimes later."""
    if url.startswith("postgresql:"):
        here = "backend_type = 'client backend' AND datname = current_database()"
        clients = f"SELECT count(*) FROM pg_stat_activity WHERE {here}"
        with psycopg.connect(url, autocommit=True) as asking:
            while asking.execute(clients).fetchone() != (1,):
                time.sleep(0.002)


def check_after_kill(url: str, told: set[str], latest: str) -> None:
    with open_store(url) as store:
        kept = {row.id for row in store.list_attempts()}
        assert told <= kept, f"lost {told - kept}"
        assert len(kept - told) <= int(latest) + 1, "more than the last of each process"
        new = [name for name in kept if name.startswith(latest)]
        assert all(whole(store, name) for name in new), f"half-saved among {new}"
        # The one it died with is free again once its lease is.
        half = f"{latest}-{len(new):05d}"
        assert store.claim_job(half, "heir", 60, lambda owner: owner == latest)


def kill_while_opening(folder: str, rounds: str, seed: str) -> None:
    """A process killed while it makes a store leaves one that the next can make."""
    chance = random.Random(seed)
    open_store(":memory:").close()
    for number in range(int(rounds)):
        url = f"{folder}/{number}.db"
        child = os.fork()
        if child == 0:
            open_store(url).close()
            os._exit(0)
        time.sleep(chance.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open_store(url) as store:
            assert save(store, "one")
            assert whole(store, "one")


def share(url: str, owner: str, count: str) -> None:
    """Do what of the common jobs nobody else does, and some of one's own."""
    with open_store(url) as store:
        for number in range(int(count)):
            save(store, f"own-{owner}-{number}")
            if store.claim_job(f"job-{number}", owner, 60):
                assert save(store, f"common-{number}-{owner}", job=f"job-{number}")


def crowd(url: str, count: str) -> None:
    """Open a new store from many processes at the same moment."""
    start = time.time() + 0.2
    children = []
    for number in range(int(count)):
        child = os.fork()
        if child == 0:
            time.sleep(max(0.0, start - time.time()))
            try:
                with open_store(url) as store:
                    save(store, f"crowd-{number}")
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)


def drop_rights() -> None:
    """Become somebody whom permissions bind."""
    open_store(":memory:").close()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def read_without_rights(url: str, name: str) -> None:
    """Read an attempt as somebody who may not write, and try to save another."""
    # What saving loads: without rights it may not be readable.
    import closeloop.providers.provider_streams
    import closeloop.text.redaction  # noqa: F401

    drop_rights()
    with open_store(url, may_be_read_only=True) as store:
        assert (
            store.load_trace(name),
            store.load_change(name),
            store.load_grade(name),
        ) == belongings(name)
        try:
            save(store, "another")
        except Fault as fault:
            print(f"read {name}; {fault}")


def without_rights(url: str) -> None:
    """Open a store as somebody whom its permissions bind."""
    drop_rights()
    try:
        open_store(url)
    except Fault as fault:
        print(type(fault).__name__, fault)


def fill(url: str, limit: str = "") -> None:
    """Save until the disk is full, then free some space and go on; nothing saved is lost."""
    ballast = Path(f"{url}.ballast")
    open_store(url).close()
    if limit:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), hard))
        fill_up(url, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))
    else:
        ballast.write_bytes(bytes(1 << 20))
        fill_up(url, ballast.unlink)


def fill_postgres(disk: str) -> None:
    """The same with a database of PostgreSQL that lies on a small disk of its own."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import postgres_server

    binaries = postgres_server.system_binaries() or postgres_server.wheel_binaries()
    assert binaries is not None
    ballast = Path(disk) / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    space = Path(disk) / "space"
    space.mkdir()
    with postgres_server.serving(binaries) as server:
        owner = server.folder.stat()
        os.chown(space, owner.st_uid, owner.st_gid)
        Path(disk).chmod(0o755)
        folder = str(server.folder)
        with psycopg.connect(postgres_server.address(folder), autocommit=True) as admin:
            admin.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
            admin.execute("CREATE DATABASE small TABLESPACE small")
        fill_up(postgres_server.address(folder, "small"), ballast.unlink)


def fill_wal(disk: str) -> None:
    """Fill the disk that holds PostgreSQL's write-ahead log: the server dies of that."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import postgres_server

    binaries = postgres_server.system_binaries() or postgres_server.wheel_binaries()
    assert binaries is not None
    with postgres_server.serving(binaries) as server:
        server.stop()
        log, moved = server.folder / "data/pg_wal", Path(disk) / "wal"
        shutil.move(log, moved)
        log.symlink_to(moved)
        owner = server.folder.stat()
        for path in (moved, *moved.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        Path(disk).chmod(0o755)
        server.start()
        url = postgres_server.address(str(server.folder))
        saved, store = list[str](), open_store(url, 2.0)
        try:
            for number in range(10_000):
                save(store, f"{number:05d}")
                saved.append(f"{number:05d}")
        except Fault as fault:
            print(type(fault).__name__, fault)
        finally:
            with suppress(Fault):
                store.close()
        subprocess.run(["mount", "-o", "remount,size=256m", disk], check=True)
        (server.folder / "data/postmaster.pid").unlink(missing_ok=True)
        server.start()
        with open_store(url) as store:
            kept = {row.id for row in store.list_attempts()}
            assert kept >= set(saved)
            assert all(whole(store, name) for name in kept)
            assert save(store, "later")


def fill_up(url: str, make_room: Callable[[], object]) -> None:
    with open_store(url) as store:
        saved = []
        try:
            for number in range(10_000):
                save(store, f"{number:05d}")
                saved.append(f"{number:05d}")
        except Fault as fault:
            print(type(fault).__name__, fault)
        assert sorted(row.id for row in store.list_attempts()) == saved
        make_room()
        for name in (f"{len(saved):05d}", "later"):
            assert save(store, name)
            saved.append(name)
    with open_store(url) as store:
        assert sorted(row.id for row in store.list_attempts()) == saved
        assert all(whole(store, name) for name in saved)


if __name__ == "__main__":
    {
        each.__name__: each
        for each in (
            kill,
            kill_while_opening,
            share,
            crowd,
            without_rights,
            read_without_rights,
            fill,
            fill_postgres,
            fill_wal,
        )
    }[sys.argv[1]](*sys.argv[2:])
