"""The demo, built and run once for all tests of it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from demo_run import make_tried_demo


@pytest.fixture(scope="session")
def tried_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo with its tasks checked, the closer's work as the baseline, and both agents run.

    Only one worker process makes it, while the others wait: it is to be read, or copied.
    """
    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    folder = place / "tried-demo"
    with (place / "tried-demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make_tried_demo(place / "making-demo")
            (place / "making-demo").rename(folder)
    return folder
