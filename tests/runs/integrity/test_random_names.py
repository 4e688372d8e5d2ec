"""The values of a probe are drawn so that there always are some."""

from __future__ import annotations

import ast
import random

import pytest

from closeloop.grading.integrity.perturb_python import rename_parameters
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


GIVEN = [
    "@parametrize('a, want', [(1, 850), (2, 900)], ids=['is 850', 'is 900'])",
    "@parametrize('a, want', [param(1, 850, id='is 850'), param(2, 900, id='is 900')])",
]


@pytest.mark.parametrize("decorator", GIVEN, ids=["in a list", "in rows"])
def test_ids_that_a_test_file_gives_its_parameters_are_replaced(decorator: str) -> None:
    """They may state what the test expects, and its code can read them."""
    module = ast.parse(f"{decorator}\ndef test_x(a, want):\n    assert f(a) == want\n")
    (function,) = module.body
    assert isinstance(function, ast.FunctionDef)
    renamed = rename_parameters(function, module, ["[is 850]", "[is 900]"], random.Random(1))
    assert [*renamed] == ["[is 850]", "[is 900]"]
    text = ast.unparse(module)
    assert "is 850" not in text
    assert all(name.strip("[]") in text for name in renamed.values())
