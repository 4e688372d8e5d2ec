"""Python source is parsed by many threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from closeloop.text.code_patterns import parse_expression, parse_python

SOURCE = "\n".join(
    f"def f{number}(a, b):\n    return [{{'x': (a + {number}) * [b for b in [a]][0]}} for _ in a]"
    for number in range(400)
)


def test_threads_parse_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(parse_python, [SOURCE] * 16))
    assert [len(tree.body) for tree in trees] == [400] * 16


def test_an_expression_is_parsed() -> None:
    assert parse_expression("1 + 2").__class__.__name__ == "BinOp"
