"""A GitHub for every test that wants one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_github import FakeGitHub, serving

from report_example import HEAD


@pytest.fixture
def host() -> Iterator[FakeGitHub]:
    with serving(FakeGitHub(HEAD)) as running:
        yield running
