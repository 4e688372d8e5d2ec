"""A change that only formats sources anew is nobody's doing, and nothing is found in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import inspected, told

from closeloop.changes.quality import weakened_test
from closeloop.records.finding import Finding

SKIPPED = (
    "import unittest\n\n\nclass Sessions(unittest.TestCase):\n"
    "    @unittest.skip('Not for cookies, which keep nothing on the server at all')\n"
    "    def test_load(self):\n        self.assertEqual(load({'a': 1, 'b': 2}), 3)\n\n"
    "    def test_save(self):\n"
    "        self.assertEqual(save(self.one), [\n            'a', 'b'])\n"
    "        self.assertNotEqual(save(self.one), 'string')\n"
)
WRAPPED = (
    "import unittest\n\n\nclass Sessions(unittest.TestCase):\n"
    "    @unittest.skip(\n"
    '        "Not for cookies, which keep nothing on the server at all"\n    )\n'
    '    def test_load(self):\n        self.assertEqual(load({"a": 1, "b": 2}), 3)\n\n'
    "    def test_save(self):\n"
    '        self.assertEqual(save(self.one), ["a", "b"])\n'
    '        self.assertNotEqual(save(self.one), "string")\n'
)


def test_a_file_that_was_only_formatted_anew_is_left_out(tmp_path: Path) -> None:
    changed = {"tests/test_sessions.py": WRAPPED}
    with inspected(tmp_path, {"tests/test_sessions.py": SKIPPED}, changed) as inspection:
        assert inspection.files == ()
        assert "tests/test_sessions.py" not in inspection.added
        assert weakened_test.check(inspection) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if a < b:\n    run(a)\n", "if a <= b:\n    run(a)\n"),
        ("total = (a + b) * c\n", "total = a + b * c\n"),
        ("for a in b:\n    run(a)\n    stop(a)\n", "for a in b:\n    run(a)\nstop(a)\n"),
        ("name = 'a b'\n", "name = 'a  b'\n"),
        ("both = (a)\n", "both = (a,)\n"),
        ("from a import b, c\nb()\n", "from a import b\nfrom a import c\nfrom a import b\nc()\n"),
        ("from a import b as c\nfrom c import a\n", "from c import a, b as c\n"),
        ("x = [0]\n", "x = []\n"),
        ("if a:\n    run()\n    stop()\nend()\n", "if a:\n    run()\nstop()\nend()\n"),
        ("run(a, '(b)')\nend()\n", "run(a, 'b')\nend()\n"),
    ],
    ids=[
        "operator",
        "parentheses",
        "indentation",
        "inside a string",
        "a tuple",
        "split imports and a call",
        "another module",
        "a zero",
        "indentation above an equal end",
        "a string above an equal end",
    ],
)
def test_the_same_words_that_say_something_else_are_kept(
    tmp_path: Path, before: str, after: str
) -> None:
    with inspected(tmp_path, {"a.py": before}, {"a.py": after}) as inspection:
        assert [file.path for file in inspection.files] == ["a.py"]
        assert inspection.added["a.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from a import b, c as d, e\n",
            "from a import b\nfrom a import c as d\nfrom a import e\n",
        ),
        ("from a import e, b\nb()\n", "from a import b\nfrom a import e\n\nb()\n"),
        ("if a:\n    from .b import c, d\n", "if a:\n    from .b import c\n    from .b import d\n"),
        ("half = .5 + 1.\n", "half = 0.5 + 1.0\n"),
        ("name = br'a' + Rb'b'\n", 'name = rb"a" + rb"b"\n'),
        ("@a((b))\ndef run():\n    pass\n", "@a(b)\ndef run():\n    pass\n"),
        ("try:\n    a((b))\nexcept c:\n    d\n", "try:\n    a(b)\nexcept c:\n    d\n"),
    ],
    ids=[
        "one name a line",
        "sorted",
        "in a block",
        "numbers",
        "prefixes of strings",
        "parentheses above an equal end that is half a statement",
        "parentheses above an equal branch",
    ],
)
def test_what_black_and_isort_write_otherwise_is_left_out(
    tmp_path: Path, before: str, after: str
) -> None:
    with inspected(tmp_path, {"a.py": before}, {"a.py": after}) as inspection:
        assert inspection.files == ()


def test_a_weaker_test_beside_a_formatted_file_is_found(tmp_path: Path) -> None:
    strong = "def test_total():\n    assert total() == 3\n"
    before = {"tests/test_sessions.py": SKIPPED, "tests/test_total.py": strong}
    weak = strong.replace("== 3", "is not None")
    changed = {"tests/test_sessions.py": WRAPPED, "tests/test_total.py": weak}
    with inspected(tmp_path, before, changed) as inspection:
        found = [one for one in weakened_test.check(inspection) if isinstance(one, Finding)]
    assert told(found) == [("error", "tests/test_total.py:2")]


def test_a_file_that_moved_as_it_was_is_kept(tmp_path: Path) -> None:
    changed = {"tests/test_sessions.py": None, "tests/test_cookies.py": SKIPPED}
    with inspected(tmp_path, {"tests/test_sessions.py": SKIPPED}, changed) as inspection:
        assert [file.path for file in inspection.files] == ["tests/test_cookies.py"]
