"""The demo, built and run once for all tests of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo_run import make_tried_demo

import small_project


@pytest.fixture(scope="session")
def tried_demo(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    """The demo with its tasks checked, the work of careful as the baseline, and both agents run."""
    return small_project.make_once(tmp_path_factory, "tried-demo", make_tried_demo)
