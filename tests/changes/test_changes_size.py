"""tangled-function, oversized-function, oversized-class: only where the change made it worse."""

from __future__ import annotations

from pathlib import Path

from inspected import said, told

from closeloop.changes.quality import oversized, tangled_function
from closeloop.records.settings import CheckSettings


def tangle(branches: int, name: str = "decide") -> str:
    lines = [f"def {name}(a, b):"]
    for number in range(branches):
        lines += [
            f"    if a > {number}:",
            f"        if b > {number}:",
            f"            a += {number}",
        ]
    return "\n".join([*lines, "    return a", ""])


def long(lines: int, name: str = "work") -> str:
    return f"def {name}(x):\n" + "".join(f"    x += {n}\n" for n in range(lines)) + "    return x\n"


def crowd(methods: int) -> str:
    text = "class Shop:\n"
    for number in range(methods):
        part = "stock" if number % 2 else "bills"
        text += f"    def do_{number}(self):\n        return self.{part}[{number}]\n"
    return text


def test_a_new_function_with_too_many_nested_paths_is_told(tmp_path: Path) -> None:
    (one,) = said(tangled_function, tmp_path, {"a.py": "x = 1\n"}, {"b.py": tangle(8)})
    assert one.places == ("b.py:1",)
    assert "`decide` has 17 paths with a cognitive complexity of 24 (limit 10)" in one.message


def test_a_flat_list_of_cases_is_not_tangled(tmp_path: Path) -> None:
    cases = "".join(f"    if kind == {n}:\n        return {n}\n" for n in range(15))
    assert not said(tangled_function, tmp_path, {}, {"b.py": f"def of(kind):\n{cases}"})


def test_the_limit_is_ten_paths_unless_the_team_sets_another(tmp_path: Path) -> None:
    before, after = {"a.py": tangle(4)}, {"a.py": tangle(5)}
    assert told(said(tangled_function, tmp_path, before, after)) == [("warning", "a.py:14")]
    loose = tmp_path / "loose"
    loose.mkdir()
    assert not said(tangled_function, loose, before, after, CheckSettings(complexity=15))


def test_what_was_tangled_is_told_only_when_it_grew_much(tmp_path: Path) -> None:
    assert not said(tangled_function, tmp_path, {"a.py": tangle(20)}, {"a.py": tangle(21)})


def test_what_was_tangled_and_grew_much_is_told_with_what_it_was(tmp_path: Path) -> None:
    (one,) = said(tangled_function, tmp_path, {"a.py": tangle(8)}, {"a.py": tangle(12)})
    assert "25 paths, 17 before," in one.message


def test_a_tangled_function_that_only_moved_is_not_told(tmp_path: Path) -> None:
    assert not said(
        tangled_function, tmp_path, {"a.py": tangle(9)}, {"a.py": None, "b.py": tangle(9)}
    )


def test_an_overload_is_not_the_function_before(tmp_path: Path) -> None:
    stub = "def decide(a: int, b: int): ...\n"
    before = f"{stub}{tangle(9)}"
    after = f"{stub}\n{tangle(9).replace('a += 1', 'a += 11')}"
    assert not said(tangled_function, tmp_path, {"a.py": before}, {"a.py": after})


def test_the_limit_is_a_setting(tmp_path: Path) -> None:
    settings = CheckSettings(complexity=4)
    assert said(tangled_function, tmp_path, {}, {"b.py": tangle(3)}, settings)


def test_a_function_that_grew_over_the_limit_is_told(tmp_path: Path) -> None:
    (one,) = said(oversized, tmp_path, {"a.py": long(70)}, {"a.py": long(90)})
    assert one.rule == "oversized-function"
    assert "`work` has 92 lines of code (72 before), more than 80" in one.message
    assert one.places == ("a.py:72",)


def test_comments_docstrings_and_tables_make_no_function_oversized(tmp_path: Path) -> None:
    words = "\n".join(f"    word {n}" for n in range(90))
    after = {
        "a.py": f'def a(x):\n    """Much to say.\n{words}\n    """\n' + "    x += 1\n" * 30,
        "b.py": "def b(x):\n" + "    # why\n    x += 1\n" * 45,
        "c.py": "def c():\n    return {\n"
        + "".join(f"        {n}: {n},\n" for n in range(95))
        + "    }\n",
    }
    assert not said(oversized, tmp_path, {}, after)


def test_a_long_function_that_grew_a_little_is_not_told_again(tmp_path: Path) -> None:
    assert not said(oversized, tmp_path, {"a.py": long(100)}, {"a.py": long(103)})


def test_a_class_with_too_many_methods_is_told_with_its_jobs(tmp_path: Path) -> None:
    (one,) = said(oversized, tmp_path, {"a.py": crowd(24)}, {"a.py": crowd(28)})
    assert one.rule == "oversized-class"
    assert one.message == (
        "`Shop` has 28 methods (24 before), more than 25: methods around `do_0` and methods around"
        " `do_1` share nothing."
    )


def test_tests_may_be_long(tmp_path: Path) -> None:
    after = {"tests/test_a.py": long(200, "test_all") + crowd(60)}
    assert told(said(oversized, tmp_path, {}, after)) == []


def wrapped(lines: int) -> str:
    call = "    x = call(\n        x,\n        [\n            1,\n        ],\n    )\n"
    return "def f(x):\n" + call * lines + "    return x\n"


def test_a_line_that_is_wrapped_is_still_one_line(tmp_path: Path) -> None:
    plain = "def f(x):\n" + "    x = call(x, [1])\n" * 60 + "    return x\n"
    assert said(oversized, tmp_path, {"a.py": plain}, {"a.py": wrapped(60)}) == []


def test_a_function_of_many_wrapped_lines_is_told_by_how_many_they_are(tmp_path: Path) -> None:
    (one,) = said(oversized, tmp_path, {}, {"a.py": wrapped(90)})
    assert "`f` has 92 lines of code" in one.message


def test_the_body_of_a_callback_is_not_wrapped(tmp_path: Path) -> None:
    body = "".join(f"    total += {number};\n" for number in range(90))
    script = f"export function run(items) {{\n  items.each((one) => {{\n{body}  }});\n}}\n"
    assert {one.rule for one in said(oversized, tmp_path, {}, {"a.js": script})} == {
        "oversized-function"
    }
