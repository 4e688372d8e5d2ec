"""Processes that an import or a measurement starts: same results, and they end with it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from closeloop.metrics.attempt_measuring import (
    MIN_PARALLEL_EVENTS,
    measure_attempts,
    project_rulebook,
)
from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import Settings
from closeloop.records.trace import Command, Lane, Message, Trace
from closeloop.store import Store, make_store
from patience import until

FILES = 600
ATTEMPTS = 120
MARK = "CLOSELOOP_TEST_MARK"


def write_sessions(folder: Path) -> None:
    """Sessions of pi, enough of them for an import that does not end at once."""
    folder.mkdir(parents=True)
    at = "2026-11-15T05:46:00.000Z"
    said = {"role": "user", "content": [{"type": "text", "text": "api_key = " * 20_000}]}
    message = {"type": "message", "id": "m1", "parentId": None, "timestamp": at, "message": said}
    for number in range(FILES):
        head = {"type": "session", "version": 3, "id": f"s{number}", "timestamp": at, "cwd": "/a"}
        lines = (json.dumps(head), json.dumps({**message, "id": f"m{number}"}))
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


def marked(mark: str) -> list[int]:
    """The processes that have this mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ, state = (entry / "environ").read_bytes(), (entry / "stat").read_text()
            except OSError:
                continue
            if f"{MARK}={mark}".encode() in environ and state.rpartition(")")[2].split()[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
def test_workers_end_with_an_import_that_is_killed(tmp_path: Path) -> None:
    write_sessions(tmp_path / "recorded")
    mark = uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "import", "--jobs", "2", "recorded"],
        cwd=tmp_path,
        env={**os.environ, MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        # Itself, the tracker and the server of multiprocessing, and two workers.
        assert until(lambda: process.poll() is not None or len(marked(mark)) == 5)
        assert process.poll() is None
        process.kill()
        process.wait()
        assert until(lambda: not marked(mark))
    finally:
        for leftover in marked(mark):
            os.kill(leftover, signal.SIGKILL)
        process.wait()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("everybody", [True, False])
def test_ctrl_c_while_the_workers_start_prints_no_traceback(
    tmp_path: Path, *, everybody: bool
) -> None:
    write_sessions(tmp_path / "recorded")
    mark = uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "import", "--jobs", "2", "recorded"],
        cwd=tmp_path,
        env={**os.environ, MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        # Itself, the tracker, and the server, which imports what the workers need.
        assert until(lambda: process.poll() is not None or _is_server_importing(mark))
        (os.killpg if everybody else os.kill)(process.pid, signal.SIGINT)
        _, said = process.communicate()
        assert until(lambda: not marked(mark))
    finally:
        for leftover in marked(mark):
            os.kill(leftover, signal.SIGKILL)
        process.wait()
    assert process.returncode == 130, said
    assert said == b"closeloop: Stopped. Run the same command again to continue.\n"


def _is_server_importing(mark: str) -> bool:
    """Whether the server of the workers has loaded a library of Python's that is no start-up."""
    for number in marked(mark):
        try:
            command = Path(f"/proc/{number}/cmdline").read_bytes()
            maps = Path(f"/proc/{number}/maps").read_text()
        except OSError:
            continue
        if b"forkserver" in command and "_socket" in maps:
            return True
    return False


def save_attempts(store: Store) -> None:
    """Enough events to be measured in several processes."""
    asked = Message(number=1, lane="root", role="user", text="Make the tests pass.")
    for number in range(ATTEMPTS):
        checks = [
            Command(
                number=place,
                lane="root",
                command=f"pytest tests/test_{place % 7}.py",
                exit_code=(place + number) % 3 // 2,
                output="1 failed" if (place + number) % 3 == 2 else "4 passed in 0.1s",
            )
            for place in range(2, MIN_PARALLEL_EVENTS // ATTEMPTS + 3)
        ]
        trace = Trace(
            reader="test", reader_version=1, lanes=(Lane(id="root"),), events=(asked, *checks)
        )
        attempt = Attempt(id=f"{number:012x}", origin="production", exit="finished")
        store.save_attempt(AttemptResult(attempt=attempt, trace=trace))


def test_several_processes_measure_the_same_as_one(tmp_path: Path) -> None:
    measured = []
    book = project_rulebook(Settings())
    for jobs in (1, 2):
        told: list[int] = []
        with make_store(str(tmp_path / f"{jobs}.db")) as store:
            save_attempts(store)
            rows = store.list_attempts()
            measured.append(list(measure_attempts(store, rows, book, told.append, jobs=jobs)))
            bases = dict(_stored_bases(tmp_path / f"{jobs}.db"))
            assert store.list_measured(bases) == {row.id for row in rows}
        assert sum(told) == ATTEMPTS
        assert len(told) > 1
    assert measured[0] == measured[1]
    assert any(one.measurement.findings for one in measured[0])


def _stored_bases(file: Path) -> list[tuple[str, str]]:
    with sqlite3.connect(file) as base:
        return base.execute("SELECT attempt, basis FROM measurements").fetchall()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
def test_an_interrupted_measurement_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / ".closeloop" / "closeloop.db"
    file.parent.mkdir()
    with make_store(str(file)) as store:
        save_attempts(store)
    mark = uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "measure", "--all"],
        cwd=tmp_path,
        env={**os.environ, MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert until(lambda: process.poll() is not None or _stored_bases(file))
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate()
        assert until(lambda: not marked(mark))
    finally:
        for leftover in marked(mark):
            os.kill(leftover, signal.SIGKILL)
        process.wait()
    assert process.returncode in (0, 130), said
    assert b"Traceback" not in said
    again = subprocess.run(
        [sys.executable, "-m", "closeloop", "measure", "--all", "--json"],
        cwd=tmp_path, capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(again.stdout)["total"] == len(_stored_bases(file)) == ATTEMPTS
