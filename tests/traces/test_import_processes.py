"""Processes that an import starts end with it, even when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from patience import until

FILES = 600
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
