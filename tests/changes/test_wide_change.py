"""wide-change: more files or modules than the settings allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import inspected

from closeloop.changes import scope
from closeloop.records.finding import Finding
from closeloop.records.settings import CheckSettings

AFTER = {f"src/{name}/x.py": "x = 1\n" for name in "abc"}


@pytest.mark.parametrize(
    ("limits", "messages"),
    [
        ({}, []),
        ({"max_files": 3, "max_modules": 3}, []),
        ({"max_files": 2}, ["The change touches 3 files; the limit is 2"]),
        ({"max_modules": 1}, ["The change touches 3 modules; the limit is 1"]),
    ],
)
def test_a_change_is_as_wide_as_the_limits_allow(
    tmp_path: Path, limits: dict[str, int], messages: list[str]
) -> None:
    with inspected(tmp_path, {}, AFTER, settings=CheckSettings(**limits)) as inspection:
        found = [one for one in scope.check(inspection) if isinstance(one, Finding)]
    assert [one.message.partition(": split")[0] for one in found] == messages
    assert {one.mode for one in found} <= {"scope creep"}
