"""foreign-name and odd-one-out: new code follows what the code around it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import said

from closeloop.changes.quality import foreign_name, odd_one_out

SNAKE = "".join(
    f"def count_all_{n}(first_one):\n    last_one = first_one\n    return last_one\n\n\n"
    for n in range(12)
)
CAMEL = "".join(
    f"export function countAll{n}(firstOne) {{\n  return firstOne\n}}\n" for n in range(12)
)
GO = "package a\n\n" + "".join(
    f"func countAll{n}() {{\n\tlastOne := {n}\n\t_ = lastOne\n}}\n" for n in range(12)
)


@pytest.mark.parametrize(
    ("path", "before", "added", "message"),
    [
        ("a.py", SNAKE, "def countMore(x):\n    return x\n",
         "`countMore` is camelCase; 12 of 12 function names here are snake_case."),
        ("a.py", SNAKE, "def more(x):\n    theSum = x\n    return theSum\n",
         "`theSum` is camelCase; 24 of 24 variable names here are snake_case."),
        ("a.js", CAMEL, "export function count_more(x) {\n  return x\n}\n",
         "`count_more` is snake_case; 12 of 12 function names here are camelCase."),
        ("a.go", GO, "func Count_more() {\n\tthe_sum := 1\n\t_ = the_sum\n}\n",
         "`the_sum` is snake_case; 12 of 12 variable names here are camelCase."),
    ],
)  # fmt: skip
def test_a_new_name_in_another_style_is_told(
    tmp_path: Path, path: str, before: str, added: str, message: str
) -> None:
    (one,) = said(foreign_name, tmp_path, {path: before}, {path: before + added})
    assert (one.message, one.severity) == (message, "warning")


@pytest.mark.parametrize(
    "added",
    [
        "def more(x):\n    return x\n",
        "class Parser(HTMLParser):\n    def handleData(self, x):\n        return x\n",
        "@app.hook\ndef onStart(x):\n    return x\n",
        "def setUp():\n    return 1\n",
        "call(maxWidth=3)\n",
        "x.maxWidth = 3\n",
        "def more(x):\n    maxWidth = x['maxWidth']\n    return maxWidth\n",
        "LIMIT_OF_ALL = 3\n",
        "class CountMore:\n    pass\n",
    ],
    ids=["a word", "override", "hook", "known", "keyword", "attribute", "key", "constant", "class"],
)  # fmt: skip
def test_names_that_are_given_or_fit_anywhere_are_fine(tmp_path: Path, added: str) -> None:
    before = {"a.py": SNAKE, "b.py": "# setUp is what unittest calls\n"}
    assert said(foreign_name, tmp_path, before, {"a.py": SNAKE + added}) == []


def test_without_a_clear_majority_nothing_is_foreign(tmp_path: Path) -> None:
    mixed = SNAKE[:300] + "".join(f"def countAll{n}(x):\n    return x\n\n\n" for n in range(4))
    after = {"a.py": mixed + "def countMore(x):\n    return x\n"}
    assert said(foreign_name, tmp_path, {"a.py": mixed}, after) == []


def test_a_new_file_is_held_against_the_files_beside_it(tmp_path: Path) -> None:
    after = {"shop/b.py": "def countMore(x):\n    return x\n"}
    (one,) = said(foreign_name, tmp_path, {"shop/a.py": SNAKE}, after)
    assert one.places == ("shop/b.py:1",)


def command(name: str, end: str = "    say_json(found)\n") -> str:
    return f"from shop.console import say_json\n\n\ndef {name}(found):\n{end}"


NAMES = ("add", "list", "show", "drop", "sum", "pay")
COMMANDS = {f"shop/cli/{name}.py": command(name) for name in NAMES}


def test_a_new_command_that_lacks_what_all_others_call_is_told(tmp_path: Path) -> None:
    after = {"shop/cli/refund.py": "def refund(found):\n    print(found)\n"}
    (one,) = said(odd_one_out, tmp_path, COMMANDS, after)
    assert (
        one.message
        == "Nearly all 6 files in this folder call `say_json`: is the difference intended?"
    )
    assert (one.severity, one.places) == ("info", ("shop/cli/refund.py:1",))


def test_a_new_command_like_the_others_is_fine(tmp_path: Path) -> None:
    assert said(odd_one_out, tmp_path, COMMANDS, {"shop/cli/refund.py": command("refund")}) == []


def test_a_folder_without_a_custom_has_no_odd_one(tmp_path: Path) -> None:
    few = dict(list(COMMANDS.items())[:3])
    assert (
        said(odd_one_out, tmp_path, few, {"shop/cli/refund.py": "def refund(x):\n    x()\n"}) == []
    )


def test_a_new_handler_without_the_decorator_of_all_others_is_told(tmp_path: Path) -> None:
    before = "".join(f"@signed_in\ndef page_{n}(request):\n    return {n}\n\n\n" for n in range(6))
    after = before + "def page_new(request):\n    return 7\n"
    (one,) = said(odd_one_out, tmp_path, {"views.py": before}, {"views.py": after})
    assert one.message == (
        "Nearly all 6 functions beside `page_new` bear `@signed_in`: is the difference intended?"
    )


def test_what_a_language_asks_for_is_no_custom(tmp_path: Path) -> None:
    before = "class A extends B {\n" + "".join(
        f"  @Override\n  public int m{n}() {{ return {n}; }}\n" for n in range(6)
    )
    after = before + "  public int other() { return 7; }\n}\n"
    assert said(odd_one_out, tmp_path, {"A.java": before + "}\n"}, {"A.java": after}) == []
