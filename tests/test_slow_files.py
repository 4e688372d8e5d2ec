"""Tests that take long are begun first, by every worker process."""

from __future__ import annotations

from pathlib import Path

import pytest

from slow_files import SLOW_FILES, order_tests

ROOT = Path(__file__).parent.parent
SLOW = [*SLOW_FILES][:4]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_every_test_is_run_once_and_every_share_begins_with_a_slow_file(workers: int) -> None:
    files = [f"tests/test_quick_{number // 5}.py" for number in range(100)]
    for position, file in zip((7, 33, 60, 99), SLOW, strict=True):
        files[position:position] = [file, file]
    order = order_tests(files, workers)
    assert sorted(order) == [*range(len(files))]
    begun, rest = [], order
    for number in range(workers, 0, -1):  # as xdist deals them out
        begun.append(files[rest[0]])
        rest = rest[len(rest) // number :]
    assert {file for file in begun if file in SLOW_FILES} == {*SLOW[:workers]}
    quick = [position for position in order if files[position] not in SLOW_FILES]
    assert quick == sorted(quick)


def test_tests_of_one_file_stay_together() -> None:
    files = [SLOW[0], "tests/test_quick.py", SLOW[1], SLOW[0], "tests/test_quick.py", SLOW[1]]
    assert order_tests(files, 2) == [0, 3, 1, 2, 5, 4]


def test_slow_files_are_there() -> None:
    assert [file for file in SLOW_FILES if not (ROOT / file).is_file()] == []
