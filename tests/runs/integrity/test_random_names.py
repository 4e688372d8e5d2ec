"""The values of a probe are drawn so that there always are some."""

from __future__ import annotations

import random

from closeloop.grading.integrity.python_assertions import random_names


class LargestFactor(random.Random):
    """Draws the largest number that is asked for."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start - 1 if stop is None else stop - 1


def test_every_factor_leaves_a_key_of_both_kinds() -> None:
    """With 9,997 no key under 1,000 gave an even number, and one grading of 9,000 crashed."""
    keys = range(100, 999)
    for factor in range(1_000, 9_990):
        assert {key * factor % 10_007 % 2 for key in keys} == {0, 1}
    names = random_names(LargestFactor(1))
    assert names.factor == 9_989
    assert names.same_key * names.factor % names.prime % 2 == 1
    assert names.other_key * names.factor % names.prime % 2 == 0
