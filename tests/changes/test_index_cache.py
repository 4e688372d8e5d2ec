"""The index of a repository: built once, kept by content, whatever happens to what is kept."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest
from inspected import git, write

from closeloop.changes import outline_worker
from closeloop.changes.change_check import CheckRequest
from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.repository_index import ParseCache, RepositoryIndex, open_index
from closeloop.flow import check_change
from closeloop.records.settings import CheckSettings, SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool

BODY = """
def work_{n}(items, limit):
    kept = []
    for item in items:
        if item.size > limit and item.name:
            kept.append(item.name.strip().lower())
    return sorted(kept, key=len)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    write(folder, {f"shop/m{n}.py": f"import m{n - 1}\n" + BODY.format(n=n) for n in range(20)})
    write(folder, {"tests/test_shop.py": BODY.format(n=100), "vendor/lib.py": BODY.format(n=200)})
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "All")
    write(folder, {"shop/new.py": "def fresh(): pass\n"})
    return folder


@contextmanager
def indexed(repository: Path, cache: Path) -> Iterator[RepositoryIndex]:
    with (
        open_sides(repository, ChangeQuery()) as sides,
        open_index(sides, cache, CheckSettings()) as index,
    ):
        yield index


def told(repository: Path, cache: Path) -> tuple[object, ...]:
    """Everything that an index answers."""
    with indexed(repository, cache) as index:
        module = index.module("shop/m3.py")
        assert module
        return (
            sorted(index.paths()),
            {path: sorted(one.module for one in got) for path, got in index.imports().items()},
            sorted(index.defined("work_7")),
            index.known("work_100"),
            index.known("fresh"),
            {key: sorted(spots) for key, spots in index.copies(module.prints).items()},
        )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are read anew, in this process."""
    paths: list[str] = []
    read = outline_worker.outline_batch

    def counted(jobs: list[outline_worker.OutlineJob]) -> list[outline_worker.OutlineRow]:
        paths.extend(job.source.path for job in jobs)
        return read(jobs)

    monkeypatch.setattr(outline_worker, "outline_batch", counted)
    return paths


def test_a_cold_index_knows_every_source(repository: Path, tmp_path: Path) -> None:
    paths, imports, defined, tested, fresh, copies = told(repository, tmp_path / "cache")

    assert paths == sorted(
        [*(f"shop/m{n}.py" for n in range(20)), "shop/new.py", "tests/test_shop.py"]
    )
    assert isinstance(imports, dict)
    assert imports["shop/m3.py"] == ["m2"]
    assert defined == [("shop/m7.py", 3)]
    assert tested
    assert not fresh, "what the change adds is not known yet"
    assert isinstance(copies, dict)
    assert copies
    # Of tests and of others' code there are no prints.
    assert {path for spots in copies.values() for path, _ in spots} == {
        f"shop/m{n}.py" for n in range(20)
    }


def test_a_warm_index_says_the_same_and_reads_nothing(
    repository: Path, tmp_path: Path, reads: list[str]
) -> None:
    cold = told(repository, tmp_path / "cache")
    assert len(reads) == 23
    reads.clear()

    assert told(repository, tmp_path / "cache") == cold
    assert reads == []


def test_only_a_file_with_other_content_is_read_again(
    repository: Path, tmp_path: Path, reads: list[str]
) -> None:
    told(repository, tmp_path / "cache")
    reads.clear()
    (repository / "shop/m4.py").rename(repository / "shop/moved.py")
    write(repository, {"shop/m5.py": "def other(): pass\n"})

    with indexed(repository, tmp_path / "cache") as index:
        assert index.defined("other") == [("shop/m5.py", 1)]
        assert index.defined("work_4") == [("shop/moved.py", 3)]

    assert reads == ["shop/m5.py"]


@pytest.mark.parametrize("garbage", [b"", b"no database", b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_cache_is_made_again(repository: Path, tmp_path: Path, garbage: bytes) -> None:
    cold = told(repository, tmp_path / "cache")
    (database,) = (tmp_path / "cache").glob("syntax-*.db")
    for ending in ("-wal", "-shm"):
        Path(f"{database}{ending}").unlink(missing_ok=True)
    database.write_bytes(garbage)

    assert told(repository, tmp_path / "cache") == cold
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM outlines").fetchone() == (23,)


def test_damage_inside_a_row_is_read_around(repository: Path, tmp_path: Path) -> None:
    cold = told(repository, tmp_path / "cache")
    (database,) = (tmp_path / "cache").glob("syntax-*.db")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE modules SET module = x'00ff'")

    assert told(repository, tmp_path / "cache") == cold


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE modules SET module = 7",
        "UPDATE outlines SET defined_lines = x'00'",
        "UPDATE outlines SET defined = 'text', names = 3",
        "UPDATE outlines SET prints = x'0011', print_lines = x''",
        "UPDATE outlines SET imports = x'ff0909'",
        "UPDATE outlines SET imports = x'61'",
        "UPDATE outlines SET generated = 'yes'",
    ],
)
def test_values_that_closeloop_does_not_write_are_read_anew(
    repository: Path, tmp_path: Path, change: str
) -> None:
    cold = told(repository, tmp_path / "cache")
    (database,) = (tmp_path / "cache").glob("syntax-*.db")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(change)

    assert told(repository, tmp_path / "cache") == cold


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE more (content)",
        "CREATE TRIGGER hidden AFTER INSERT ON outlines BEGIN DELETE FROM modules; END",
        "CREATE INDEX by_names ON outlines (abs(names))",
        "DROP TABLE outlines; CREATE TABLE outlines (key TEXT)",
        "DROP TABLE outlines; CREATE VIEW outlines AS WITH RECURSIVE n(key) AS "
        "(SELECT 1 UNION ALL SELECT key + 1 FROM n) SELECT * FROM n",
    ],
)
def test_a_cache_with_another_schema_is_dropped_with_a_line(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, statements: str
) -> None:
    cold = told(repository, tmp_path / "cache")
    (database,) = (tmp_path / "cache").glob("syntax-*.db")
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(statements)

    assert told(repository, tmp_path / "cache") == cold
    assert [record.message for record in caplog.records] == [
        f"{database} was damaged (it has tables that closeloop does not make) and is rebuilt."
    ]


def test_a_check_leaves_its_cache_in_one_file(repository: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    order = CheckRequest(root=repository, wanted=ChangeQuery(), cache=cache, tiers=("risk",))
    workspaces = WorkspacePool(cache / "workspaces", SandboxSettings(kind="none"))
    anyio.run(check_change, order, workspaces)

    assert [path.name for path in cache.glob("syntax-*")] == [ParseCache(cache).path.name]
    with indexed(repository, cache) as index:
        assert index.parse_cache.read_module(f"python:{index.sources['shop/new.py'].blob}")


def test_a_cache_that_cannot_be_written_is_done_without(repository: Path, tmp_path: Path) -> None:
    cold = told(repository, tmp_path / "cache")
    (tmp_path / "file").write_text("in the way")

    assert told(repository, tmp_path / "file") == cold
    with indexed(repository, tmp_path / "file") as index:
        assert "cannot be saved" in index.notes[0]


def test_an_index_that_was_killed_midway_is_finished_the_next_time(
    repository: Path, tmp_path: Path
) -> None:
    write(repository, {f"shop/more/n{n}.py": BODY.format(n=1000 + n) * 10 for n in range(300)})
    cache = tmp_path / "cache"
    script = (
        "import sys; from pathlib import Path\n"
        "from test_index_cache import indexed\n"
        "with indexed(Path(sys.argv[1]), Path(sys.argv[2])): pass\n"
    )
    command = [sys.executable, "-c", script, str(repository), str(cache)]
    path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    building = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    while building.poll() is None and not list(cache.glob("syntax-*.db-wal")):
        time.sleep(0.005)
    time.sleep(0.05)
    building.send_signal(signal.SIGKILL)
    building.wait()

    with indexed(repository, cache) as index:
        assert len(index.paths()) == 322
        assert index.defined("work_1299") == [("shop/more/n299.py", n) for n in range(2, 72, 7)]
        assert not index.notes


def test_many_files_are_read_by_several_processes_to_the_same_end(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = told(repository, tmp_path / "alone")
    monkeypatch.setattr("closeloop.changes.repository_index.MIN_PARALLEL_FILES", 5)
    monkeypatch.setattr("closeloop.changes.repository_index.BATCH_FILES", 2)

    assert told(repository, tmp_path / "shared") == alone
