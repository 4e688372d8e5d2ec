"""Probes of few rounds, where a test does not need more."""

from __future__ import annotations

import pytest

from closeloop.grading.integrity import confirm


@pytest.fixture(autouse=True)
def one_round(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe once, but for tests with the mark `all_rounds`: chance alone decides on the others."""
    if request.node.get_closest_marker("all_rounds") is None:
        monkeypatch.setattr(confirm, "ENOUGH", ())
