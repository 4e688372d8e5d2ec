"""Kill `closeloop run` at any moment: what is finished stays, the next run goes on from there.

For a longer campaign set CLOSELOOP_TEST_KILLS.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import small_project

KILLS = int(os.environ.get("CLOSELOOP_TEST_KILLS", "6"))
REPEATS = 2 if "CLOSELOOP_TEST_KILLS" in os.environ else 1
EARLIEST, LATEST = 0.1, 0.6
"""When it is killed, as a share of the time that it takes undisturbed."""


def start(project: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "closeloop", "run", "--json", "--repeats", str(REPEATS)],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def table(printed: str) -> list[tuple[object, ...]]:
    """What a run is for: everything in its result but when it was."""
    document = json.loads(printed)
    fields = ("id", "task", "variant_name", "number", "retry", "exit", "outcome", "reason", "turns")
    return [tuple(row.get(field) for field in fields) for row in document["attempts"]]


def in_time(seconds: float, process: subprocess.Popen[str]) -> str | None:
    """What it printed when it ended in time; None when it had to be killed."""
    try:
        printed, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    assert process.returncode == 0, errors
    return printed


def test_kills_at_random_moments_change_nothing(tmp_path):
    undisturbed = small_project.build(tmp_path / "undisturbed", runner="unittest")
    began = time.monotonic()
    printed = in_time(600, start(undisturbed))
    longest = time.monotonic() - began
    assert printed is not None
    expected = table(printed)
    assert len(expected) == 6 * REPEATS

    moments = random.Random(20)
    kills = rounds = 0
    while kills < KILLS:
        rounds += 1
        project = small_project.build(tmp_path / f"round-{rounds}", runner="unittest")
        printed = None
        while printed is None:
            seconds = longest * moments.uniform(EARLIEST, LATEST) if kills < KILLS else 600
            printed = in_time(seconds, start(project))
            kills += printed is None
        assert table(printed) == expected
    # Each attempt was made once, or once more when it was killed: none twice into the results.
    assert len({row[0] for row in expected}) == len(expected)
