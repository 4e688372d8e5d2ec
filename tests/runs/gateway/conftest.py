"""A provider for every test that asks for one, and sockets that can be reached by their paths."""

from __future__ import annotations

import pytest
from provider_server import provider

__all__ = ["provider"]


@pytest.fixture(autouse=True)
def short_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes about a hundred bytes for one, and temporary folders may lie deep."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
