"""dead-code: what nothing uses or reaches is told; what somebody may use is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import said

from closeloop.changes.quality import dead_code

START = {"shop/a.py": "def total(lines):\n    return sum(lines)\n"}


def messages(
    tmp_path: Path, after: dict[str, str], before: dict[str, str] | None = None
) -> list[str]:
    found = said(dead_code, tmp_path, before or START, after)
    return [f"{one.places[0]} {one.message}" for one in found]


def test_a_private_function_that_nothing_uses_is_told(tmp_path: Path) -> None:
    after = {
        "shop/b.py": "def _rounded(x):\n    return _rounded(x)\n\n\ndef price(x):\n    return x\n"
    }
    assert messages(tmp_path, after) == ["shop/b.py:1 Nothing uses `_rounded`."]


@pytest.mark.parametrize(
    "after",
    [
        {"shop/b.py": "def _rounded(x):\n    return x\n\n\nprice = _rounded\n"},
        {"shop/b.py": "def _rounded(x):\n    return x\n",
         "shop/c.py": "from shop.b import _rounded as r\nr(1)\n"},
        {"shop/b.py": "def rounded(x):\n    return x\n"},
        {"shop/b.py": "@app.route('/')\ndef _rounded(x):\n    return x\n"},
        {"shop/b.py": "class Visit(Base):\n    def _visit_name(self):\n        return 1\n"},
        {"shop/b.py": "def _do_get(x):\n    return x\n\n\n"
         "def do(x):\n    return globals()[f'_do_{x}'](x)\n"},
        {"shop/b.py": "def __getattr__(name):\n    return name\n"},
        {"tests/test_b.py": "def _rounded(x):\n    return x\n"},
    ],
    ids=["a value", "another file", "public", "decorated", "an override", "put together",
         "dunder", "a test"],
)  # fmt: skip
def test_what_somebody_may_use_is_not_told(tmp_path: Path, after: dict[str, str]) -> None:
    assert messages(tmp_path, after) == []


def test_a_function_that_is_used_by_its_name_in_a_file_that_did_not_change_is_used(
    tmp_path: Path,
) -> None:
    before = {"shop/a.py": "from shop import b\n\nprint(b._rounded(1))\n"}
    assert messages(tmp_path, {"shop/b.py": "def _rounded(x):\n    return x\n"}, before) == []


def test_new_imports_that_nothing_uses_are_told(tmp_path: Path) -> None:
    after = {
        "shop/b.py": "import os\nfrom typing import (\n    Any,\n    Iterator,\n)\n\n\n"
        "def f(x: Any):\n    return x\n",
        "web/c.ts": "import { used, spare } from './x'\nimport './effect'\nexport const y = used\n",
    }
    assert messages(tmp_path, after) == [
        "shop/b.py:1 `os` is imported but not used.",
        "shop/b.py:4 `Iterator` is imported but not used.",
        "web/c.ts:1 `spare` is imported but not used.",
    ]


@pytest.mark.parametrize(
    "after",
    [
        {"shop/__init__.py": "from shop.a import total\n"},
        {"shop/b.py": "from shop.a import total\n\n__all__ = ['total']\n"},
        {"shop/b.py": "from shop.a import total as total\n"},
        {"shop/b.py": "import readline  # noqa: F401\n"},
        {"shop/b.py": "try:\n    import ujson\nexcept ImportError:\n    FAST = False\n"},
        {"shop/b.py": "from __future__ import annotations\n"},
        {"web/c.ts": "export { total, net } from './a'\n"},
        {"web/c.ts": "export {\n  total,\n  net,\n} from './a'\n"},
    ],
)
def test_imports_for_others_are_not_told(tmp_path: Path, after: dict[str, str]) -> None:
    assert messages(tmp_path, after) == []


def test_a_value_that_is_never_read_is_told(tmp_path: Path) -> None:
    code = (
        "def f(a,\n      rate=1):\n    rest = a % 3\n    _spare = 2\n"
        "    for part in a:\n        yield rate\n"
    )
    script = "export function g(a) {\n  const rest = a % 3\n  let more = 1\n  return more\n}\n"
    assert messages(tmp_path, {"shop/b.py": code, "web/c.js": script}) == [
        "shop/b.py:3 `rest` is assigned but not used.",
        "web/c.js:2 `rest` is assigned but not used.",
    ]


def test_fields_of_a_class_inside_a_function_are_not_variables(tmp_path: Path) -> None:
    code = "def f():\n    class Meta:\n        ordering = 1\n\n    return Meta\n"
    assert messages(tmp_path, {"shop/b.py": code}) == []


def test_a_parameter_that_is_added_and_not_used_is_told(tmp_path: Path) -> None:
    after = {"shop/a.py": "def total(lines, rate=0, *more, _spare=1):\n    return sum(lines)\n"}
    assert messages(tmp_path, after) == ["shop/a.py:1 `total` does not use its parameter `rate`."]


def test_parameters_that_a_caller_dictates_are_not_told(tmp_path: Path) -> None:
    code = (
        "def view(request):\n    return 1\n\n\ndef _hook(event, state):\n    return event\n\n\n"
        "register(_hook)\n\n\nclass A:\n    def f(self, x):\n        return 1\n\n\n"
        "def _later(x):\n    raise NotImplementedError\n\n\n_later(1)\n"
    )
    assert messages(tmp_path, {"shop/b.py": code}) == []


def test_what_follows_a_return_is_told(tmp_path: Path) -> None:
    code = "def f(x):\n    return x\n    print(x)\n\n\ndef g():\n    return\n    yield\n"
    script = (
        "export function f(x) {\n  throw x\n  x += 1\n}\n"
        "export function h() {\n  return k()\n  function k() {}\n}\n"
    )
    go = "package a\n\nfunc F() int {\n\treturn 1\n\tprintln(2)\n}\n"
    assert messages(tmp_path, {"shop/b.py": code, "web/c.js": script, "go/a.go": go}) == [
        "go/a.go:5 This is unreachable: the line before it ends with `return`.",
        "shop/b.py:3 This is unreachable: the line before it ends with `return`.",
        "web/c.js:3 This is unreachable: the line before it ends with `throw`.",
    ]


def test_code_that_is_commented_out_is_told_and_prose_is_not(tmp_path: Path) -> None:
    code = "# total = net + tax\n# if total > limit:\n#     warn(total)\nx = 1\n"
    prose = "# A total is net and tax.\n# If it is over the limit,\n# warn() is called.\ny = 1\n"
    go = "package a\n\n// x := 1\n// if x > 2 {\n// \tf(x)\n// }\nvar y = 1\n"
    (one, two) = said(
        dead_code, tmp_path, START, {"shop/b.py": code, "shop/c.py": prose, "go/a.go": go}
    )
    assert (one.places, two.places) == (("go/a.go:3",), ("shop/b.py:1",))
    assert one.severity == two.severity == "info"
    assert two.message == "3 lines of code are commented out: remove them."


def test_lines_that_were_there_before_are_not_told(tmp_path: Path) -> None:
    before = {"shop/a.py": "import os\n\n\ndef _spare():\n    x = 1\n    return 2\n    print(3)\n"}
    assert messages(tmp_path, {"shop/a.py": before["shop/a.py"] + "\n\nNEW = 1\n"}, before) == []


@pytest.mark.parametrize(
    "comment",
    [
        "# Usage:\n#     app = make()\n#     app.run(1)\n#     app.close()\n",
        "# Callers write it this way:\n#     app = make()\n#     app.run(1)\n#     app.close()\n",
        "# >>> app = make()\n# >>> app.run(1)\n# >>> app.close()\n",
    ],
)
def test_an_example_in_a_comment_is_no_dead_code(tmp_path: Path, comment: str) -> None:
    assert said(dead_code, tmp_path, {}, {"a.py": f"{comment}def make():\n    return 1\n"}) == []


def test_an_example_of_the_docs_is_no_dead_code(tmp_path: Path) -> None:
    unused = "import os\n\n\ndef _show():\n    value = 1\n"
    assert said(dead_code, tmp_path, {}, {"documentation/snippets/a.py": unused}) == []
