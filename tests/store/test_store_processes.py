"""Several processes at one store, some of them killed: nothing finished is lost."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import store_worker

from closeloop.store import open_store
from patience import PATIENCE


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, store_worker.__file__, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    said, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complained
    return said


def check_integrity(url: str) -> None:
    if not url.startswith("postgresql:"):
        with sqlite3.connect(url) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_writer_killed_at_any_moment_loses_nothing_finished(store_url: str) -> None:
    open_store(store_url).close()
    told = int(output(start("kill", store_url, "40", "7")))
    assert told >= 30
    check_integrity(store_url)


def test_a_writer_killed_while_it_makes_the_store_leaves_a_usable_one(tmp_path: Path) -> None:
    output(start("kill_while_opening", str(tmp_path), "30", "7"))
    for file in tmp_path.glob("*.db"):
        check_integrity(str(file))


def test_two_processes_write_at_once_and_do_each_common_job_once(bare_store_url: str) -> None:
    writers = [start("share", bare_store_url, owner, "80") for owner in ("one", "two")]
    for writer in writers:
        output(writer)
    with open_store(bare_store_url) as store:
        ids = [row.id for row in store.list_attempts()]
        assert Counter(name.split("-")[0] for name in ids) == {"own": 160, "common": 80}
        assert len({name.split("-")[1] for name in ids if name.startswith("common")}) == 80
        assert all(
            store.load_grade(name) == store_worker.belongings(name)[2]
            for name in ids
            if "own" in name
        )
    check_integrity(bare_store_url)


@pytest.mark.parametrize("again", range(3))
def test_many_processes_make_one_store_together(bare_store_url: str, again: int) -> None:
    output(start("crowd", bare_store_url, "6"))
    with open_store(bare_store_url) as store:
        assert len(store.list_attempts()) == 6
    check_integrity(bare_store_url)
