"""A store that cannot be had, or not any more: one sentence, the right blame, nothing lost."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import store_worker

from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import Settings, has_store
from closeloop.store import open_store
from closeloop.store.store import open_existing_store, open_store_if_any
from patience import PATIENCE


def refused(url: str, kind: type[Fault] = BadInput) -> str:
    with pytest.raises(kind) as caught:
        open_store(url)
    return sentence(str(caught.value))


def sentence(message: str) -> str:
    assert re.fullmatch(r"[A-Z/p].{10,300}\.", message), message
    return message


def run_worker(*words: str, before: tuple[str, ...] = ()) -> str:
    command = [*before, sys.executable, store_worker.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


GARBAGE = {
    "nothing but a line": b"hello",
    "text": b"# Read me\n" * 1000,
    "a cut header": b"SQLite format 3\0",
    "noise": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    assert "is not a database" in refused(str(path))
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    open_store(str(tmp_path / "a.db")).close()


def test_missing_folders_are_made(tmp_path: Path) -> None:
    open_store(str(tmp_path / "a" / "b" / "c.db")).close()
    assert (tmp_path / "a" / "b" / "c.db").exists()


def test_a_folder_or_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refused(str(tmp_path))
    (tmp_path / "file").write_text("x")
    assert "cannot be created" in refused(str(tmp_path / "file" / "deep" / "a.db"))


def test_those_who_only_look_make_no_store_and_take_no_folder_for_none(tmp_path: Path) -> None:
    assert not has_store(Settings(), tmp_path)
    with pytest.raises(BadInput, match="There is no store"):
        open_existing_store(Settings(), tmp_path)
    open_store_if_any(Settings(), tmp_path).close()
    assert not list(tmp_path.iterdir())
    assert has_store(Settings(store="."), tmp_path)
    with pytest.raises(BadInput, match="is a folder"):
        open_existing_store(Settings(store="."), tmp_path)


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "music.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    assert "'songs'" in refused(str(path))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]


def test_a_postgresql_database_with_tables_of_our_names_is_refused(bare_postgres_url: str) -> None:
    with psycopg.connect(bare_postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE tasks (title TEXT)")
        assert "'tasks'" in refused(bare_postgres_url)
        connection.execute("ALTER TABLE tasks RENAME TO chores")
    open_store(bare_postgres_url).close()


def test_a_damaged_store_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with open_store(str(path)) as store:
        for number in range(50):
            store_worker.save(store, str(number))
    content = bytearray(path.read_bytes())
    content[4096:] = random.Random(7).randbytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(MachineFailed) as caught, open_store(str(path)) as store:
        store.list_attempts()
    assert "damaged" in sentence(str(caught.value))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody can reach, as pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="closeloop-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["file", "folder", "both", "secret"])
def test_a_store_that_may_not_be_written_is_bad_input(open_folder: Path, what: str) -> None:
    path = open_folder / "a.db"
    with open_store(str(path)) as store:
        store_worker.save(store, "one")
    path.chmod({"folder": 0o666, "secret": 0o000}.get(what, 0o444))
    open_folder.chmod(0o777 if what in ("file", "secret") else 0o555)
    said = run_worker("without_rights", str(path)).strip()
    open_folder.chmod(0o755)
    for file in open_folder.iterdir():
        file.chmod(0o644)
    assert said.startswith("ReadOnlyStore ")
    why = sentence(said.removeprefix("ReadOnlyStore "))
    assert re.search("is read-only|cannot be opened", why)
    with open_store(str(path)) as store:
        assert store_worker.whole(store, "one")


@pytest.mark.parametrize("what", ["file", "folder", "both"])
def test_a_store_that_may_not_be_written_can_be_read(open_folder: Path, what: str) -> None:
    path = open_folder / "a.db"
    with open_store(str(path)) as store:
        store_worker.save(store, "one")
    path.chmod(0o666 if what == "folder" else 0o444)
    open_folder.chmod(0o777 if what == "file" else 0o555)
    said = run_worker("read_without_rights", str(path), "one").strip()
    open_folder.chmod(0o755)
    assert re.fullmatch("read one; .* is read-only: make it writable.", said)


def test_a_folder_that_may_not_be_made_is_bad_input(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    said = run_worker("without_rights", str(open_folder / "new" / "a.db"))
    assert "cannot be created (Permission denied)" in said
    said = run_worker("without_rights", str(open_folder / "a.db"))
    assert "ReadOnlyStore" in said
    assert "cannot be opened" in said


def test_a_file_that_may_not_grow_is_the_machines_fault_and_loses_nothing(tmp_path: Path) -> None:
    said = run_worker("fill", str(tmp_path / "a.db"), str(3 << 20))
    assert said.startswith("MachineFailed The disk of ")


def small_disk(folder: Path, size: str) -> tuple[str, ...]:
    """What stands before a command that sees a small disk at a folder."""
    root = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "-U", "-r", "--mount")
    shell = ("sh", "-c", f'mount -t tmpfs -o size={size} none {folder} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.call([*root, *shell, "true"]):
        pytest.skip("this machine lets nobody mount a small disk")
    return (*root, *shell)


def test_a_full_disk_of_postgresql_is_the_machines_fault_and_loses_nothing(
    open_folder: Path, postgres_folder: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a small disk to the user of PostgreSQL")
    said = run_worker("fill_postgres", str(open_folder), before=small_disk(open_folder, "24m"))
    assert re.match("MachineFailed The disk of .* full: free some space", said)


def test_a_full_disk_for_the_log_of_postgresql_loses_nothing(
    open_folder: Path, postgres_folder: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a small disk to the user of PostgreSQL")
    said = run_worker("fill_wal", str(open_folder), before=small_disk(open_folder, "40m"))
    assert said.startswith("MachineFailed "), said


def test_a_full_disk_is_the_machines_fault_and_loses_nothing(tmp_path: Path) -> None:
    said = run_worker("fill", str(tmp_path / "a.db"), before=small_disk(tmp_path, "6m"))
    assert re.match("MachineFailed The disk of .* full: free some space", said)


def test_an_unknown_or_unreadable_address_is_bad_input(tmp_path: Path) -> None:
    assert "'mysql'" in refused("mysql://root:secret@localhost/db")
    said = refused("postgresql://me:secret@host:port/db")
    assert "secret" not in said
    assert "postgresql://user@host" in said


def test_a_server_that_does_not_answer_is_the_machines_fault(tmp_path: Path) -> None:
    said = refused("postgresql://me:secret@127.0.0.1:1/db", MachineFailed)
    assert "cannot be reached" in said
    assert "secret" not in said
    refused(f"postgresql://me@/db?host={tmp_path}", MachineFailed)


def test_a_database_that_does_not_exist_is_bad_input(postgres_folder: str) -> None:
    url = f"postgresql://postgres@/nowhere?host={postgres_folder}"
    assert 'database "nowhere" does not exist' in refused(url)


def test_a_role_that_may_not_enter_or_write_is_bad_input(
    postgres_url: str, postgres_folder: str
) -> None:
    name = postgres_url.split("?", maxsplit=1)[0].rsplit("/", 1)[1]
    stranger = f"postgresql://stranger_{name}@/{name}?host={postgres_folder}"
    assert "denies access" in refused(stranger)
    open_store(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE stranger_{name} LOGIN")
        assert "use a role with write access" in refused(stranger)
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        assert "denies write access" in refused(postgres_url)
        connection.execute(f"DROP ROLE stranger_{name}")


def test_a_connection_that_breaks_is_made_anew_and_nothing_is_lost(postgres_url: str) -> None:
    with open_store(postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as admin:
        for number in range(5):
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            assert store_worker.save(store, str(number))
        assert all(store_worker.whole(store, str(number)) for number in range(5))


def test_a_server_that_is_gone_is_the_machines_fault_until_it_is_back(postgres_url: str) -> None:
    name = postgres_url.split("?", maxsplit=1)[0].rsplit("/", 1)[1]
    elsewhere = postgres_url.replace(f"/{name}?", "/postgres?")
    attempt = Attempt(id="one", origin="experiment", exit="finished")
    with open_store(postgres_url) as store, psycopg.connect(elsewhere, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        admin.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname='{name}'"
        )
        with pytest.raises(Fault) as caught:
            store.save_attempt(AttemptResult(attempt=attempt))
        sentence(str(caught.value))
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert store.save_attempt(AttemptResult(attempt=attempt))
        assert store.load_attempt("one") == attempt


def test_a_store_held_by_another_process_is_the_machines_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeloop.store.engine.BUSY_SECONDS", 0.1)
    path = str(tmp_path / "a.db")
    with open_store(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MachineFailed, match=r"Another process locks .*a\.db"):
            store_worker.save(store, "one")
        assert store.list_attempts() == []
        other.execute("ROLLBACK")
        other.close()
        assert store_worker.save(store, "one")
