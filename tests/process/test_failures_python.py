"""pytest, unittest and Python's tracebacks, as they were really printed."""
# ruff: noqa: E501  (what tools print is quoted as they print it)

from __future__ import annotations

import pytest
from parsed import keys, parsed, verdict

from closeloop.process.failure_collector import failures_from_tail, is_same_message

SECTIONS = """\
FF.F                                                                     [100%]
=================================== FAILURES ===================================
___________________________________ test_add ___________________________________

    def test_add():
>       assert add(2, 2) == 4
E       assert 0 == 4
E        +  where 0 = add(2, 2)

tests/test_calc.py:10: AssertionError
_____________________________ test_add_many[1-2-3] _____________________________

a = 1, b = 2, total = 3

    @pytest.mark.parametrize("a,b,total", [(1, 2, 3), (0, 0, 0), (5, 5, 10)])
    def test_add_many(a, b, total):
>       assert add(a, b) == total
E       assert -1 == 3
E        +  where -1 = add(1, 2)

tests/test_calc.py:15: AssertionError
____________________________ TestShape.test_area _______________________________

    def test_area():
>       assert area(Shape()) == 3
               ^^^^^^^^^^^^^

tests/test_calc.py:19:
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _

shape = <test_calc.Shape object at 0x7f2d1fecd090>, scale = 1

    def area(shape, *, scale=1):
>       return shape.widht * scale
E       AttributeError: 'Shape' object has no attribute 'widht'

pkg/calc.py:6: AttributeError
----------------------------- Captured stdout call -----------------------------
ERROR    root:calc.py:5 FAILED to start x.py::nothing
"""
SUMMARY = """\
=========================== short test summary info ============================
FAILED tests/test_calc.py::test_add - assert 0 == 4
FAILED tests/test_calc.py::test_add_many[1-2-3] - assert -1 == 3
FAILED tests/test_calc.py::TestShape::test_area - AttributeError: 'Shape' object has no ...
3 failed, 1 passed in 0.04s
"""
IDS = [
    "tests/test_calc.py::test_add",
    "tests/test_calc.py::test_add_many[1-2-3]",
    "tests/test_calc.py::TestShape::test_area",
]
SHORT = """\
=================================== FAILURES ===================================
___________________________________ test_add ___________________________________
tests/test_calc.py:10: in test_add
    assert add(2, 2) == 4
E   assert 0 == 4
E    +  where 0 = add(2, 2)
__________________________________ test_area ___________________________________
tests/test_calc.py:19: in test_area
    assert area(Shape()) == 3
pkg/calc.py:6: in area
    return shape.widht * scale
E   AttributeError: 'Shape' object has no attribute 'widht'
"""
COLLECTION = """\
collected 11 items / 2 errors

==================================== ERRORS ====================================
____________________ ERROR collecting tests/test_import.py _____________________
ImportError while importing test module '/tmp/fx/py/tests/test_import.py'.
Hint: make sure your test modules/packages have valid Python names.
Traceback:
/home/dev/.pyenv/versions/3.11.7/lib/python3.11/importlib/__init__.py:126: in import_module
    return _bootstrap._gcd_import(name[level:], package, level)
tests/test_import.py:1: in <module>
    from pkg.calc import subtract
E   ImportError: cannot import name 'subtract' from 'pkg.calc' (/tmp/fx/py/pkg/calc.py)
____________________ ERROR collecting tests/test_syntax.py _____________________
/home/dev/.pyenv/versions/3.11.7/lib/python3.11/ast.py:50: in parse
    return compile(source, filename, mode, flags,
E     File "/tmp/fx/py/tests/test_syntax.py", line 1
E       def test_x(:
E                  ^
E   SyntaxError: invalid syntax
=========================== short test summary info ============================
ERROR tests/test_import.py
ERROR tests/test_syntax.py
!!!!!!!!!!!!!!!!!!! Interrupted: 2 errors during collection !!!!!!!!!!!!!!!!!!!!
============================== 2 errors in 0.15s ===============================
"""


def test_the_summary_names_the_tests_and_the_sections_say_why() -> None:
    told = parsed("pytest", SECTIONS + SUMMARY)
    assert list(told.errors) == IDS
    assert told.errors[IDS[0]] == "assert # == # ← assert add(2, 2) == 4"
    assert told.errors[IDS[2]].startswith("AttributeError: 'Shape' object has no attribute 'widht'")
    assert set(told.paths) == {"tests/test_calc.py", "pkg/calc.py"}
    assert told.symbols == ("Shape", "widht", "area", "test_add", "test_add_many", "test_area")
    assert verdict("pytest", SECTIONS + SUMMARY) is False


def test_only_the_tail_or_only_the_head_tells_the_same_failures() -> None:
    whole = parsed("pytest", SECTIONS + SUMMARY).errors
    head, tail = parsed("pytest", SECTIONS).errors, parsed("pytest", SUMMARY).errors
    assert head.keys() == tail.keys() == whole.keys()
    for key, message in whole.items():
        assert is_same_message(message, head[key])
        assert is_same_message(message, tail[key])


def test_the_short_style_says_the_same_as_the_long_one() -> None:
    told = parsed("pytest", SHORT)
    assert told.errors[IDS[0]] == "assert # == # ← assert add(2, 2) == 4"
    assert told.paths == ("tests/test_calc.py", "pkg/calc.py")
    assert told.symbols[:3] == ("Shape", "widht", "area")


def test_native_tracebacks_are_read_past_the_frames_of_pytest() -> None:
    told = parsed(
        "pytest",
        "=== FAILURES ===\n____ test_missing ____\nTraceback (most recent call last):\n"
        '  File "/venv/lib/python3.11/site-packages/_pytest/runner.py", line 361, in from_call\n'
        "    result = func()\n"
        '  File "/proj/tests/test_calc.py", line 28, in test_missing\n'
        "    assert load(name) == 'x'\n"
        '  File "/proj/pkg/calc.py", line 10, in load\n'
        "    with open(name) as f:\n"
        "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/pytest-of-x/pytest-4/a.txt'\n",
    )
    assert told.errors == {
        "/proj/tests/test_calc.py::test_missing": "FileNotFoundError: [Errno #] No such file or "
        "directory: '' ← assert load(name) == 'x'"
    }
    assert told.paths == ("/proj/pkg/calc.py", "/proj/tests/test_calc.py")
    assert told.symbols == ("load", "test_missing")


def test_verbose_lines_name_failures_before_any_summary() -> None:
    text = (
        "tests/test_calc.py::test_ok PASSED                         [  9%]\n"
        "tests/test_calc.py::test_add FAILED                        [ 18%]\n"
        "tests/test_calc.py::test_uses ERROR                        [ 27%]\n"
        "[gw1] [ 36%] FAILED tests/test_calc.py::test_area \n"
        "[gw1] [ 81%] XFAIL tests/test_calc.py::test_expected \n"
    )
    assert keys("pytest", text) == [
        "tests/test_calc.py::test_add",
        "tests/test_calc.py::test_uses",
        "tests/test_calc.py::test_area",
    ]


def test_a_file_that_cannot_be_collected_fails_as_a_whole() -> None:
    told = parsed("pytest", COLLECTION)
    assert told.errors["tests/test_import.py"].startswith(
        "ImportError: cannot import name 'subtract'"
    )
    assert told.errors["tests/test_syntax.py"] == "SyntaxError: invalid syntax"
    assert told.symbols[:2] == ("subtract", "pkg.calc")
    assert verdict("pytest", COLLECTION) is False


def test_an_error_in_a_fixture_is_the_error_of_its_test() -> None:
    text = (
        "==== ERRORS ====\n_____ ERROR at setup of test_uses_fixture ______\n\n"
        "    def broken():\n>       raise RuntimeError('no database at 0x7f12 port 5432')\n"
        "E       RuntimeError: no database at 0x7f12 port 5432\n\ntests/test_calc.py:36: RuntimeError\n"
    )
    told = parsed("pytest", text)
    assert list(told.errors) == ["tests/test_calc.py::test_uses_fixture"]
    assert told.symbols == ("broken", "test_uses_fixture")


@pytest.mark.parametrize(
    ("line", "key", "message"),
    [
        ("FAILED a.py::t[x - y] - assert 1 == 2", "a.py::t[x - y]", "assert # == #"),
        ("FAILED a.py::t[a b]", "a.py::t[a b]", ""),
        ("ERROR a.py - ModuleNotFoundError: No module named 'x'", "a.py", "ModuleNotFoundError: No module named 'x'"),
        ("ERROR: file or directory not found: tests/nope.py", "ERROR: file or directory not found: tests/nope.py", ""),
    ],
)  # fmt: skip
def test_summary_lines_are_cut_at_the_right_place(line: str, key: str, message: str) -> None:
    assert parsed("pytest", line).errors == {key: message}


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("====== 12 passed, 1 skipped in 0.01s ======", True),
        ("1 passed, 10 deselected in 0.01s", True),
        ("7 failed, 2 passed, 1 xfailed, 1 error in 0.05s", False),
        ("==== 2 errors in 0.15s ====", False),
        ("==== no tests ran in 0.01s ====", None),
        ("==== 205 deselected in 0.58s ====", None),
        ("3 failed, 1 passed in 1s\n4 passed in 2s", False),
        ("...s..x [ 50%]\n....... [100%]\n", True),
        ("...F... [ 50%]\n....... [100%]\n", False),
        ("......", None),
        ("nothing of the kind", None),
    ],
)
def test_pytests_last_words(text: str, passed: bool | None) -> None:
    assert verdict("pytest", text) is passed


UNITTEST = """\
FFE.
======================================================================
ERROR: test_err (tests.test_uni.AddTests.test_err)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/proj/tests/test_uni.py", line 14, in test_err
    add(2)
TypeError: add() missing 1 required positional argument: 'second'

======================================================================
FAIL: test_doc (tests.test_uni.AddTests)
Adds things.
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/proj/tests/test_uni.py", line 11, in test_doc
    self.assertEqual(add(2, 1), 3)
AssertionError: 1 != 3

======================================================================
FAIL: test_sub (tests.test_uni.AddTests.test_sub) (n=1)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/proj/tests/test_uni.py", line 19, in test_sub
    self.assertEqual(add(n, n), n + n)
AssertionError: 0 != 2

----------------------------------------------------------------------
Ran 5 tests in 0.001s

FAILED (failures=2, errors=1)
"""


def test_unittest_and_django_name_tests_by_their_dotted_names() -> None:
    told = parsed("unittest", UNITTEST)
    assert dict(told.errors) == {
        "tests.test_uni.AddTests.test_err": (
            "TypeError: add() missing # required positional argument: 'second' ← add(2)"
        ),
        "tests.test_uni.AddTests.test_doc": (
            "AssertionError: # != # ← self.assertEqual(add(2, 1), 3)"
        ),
        "tests.test_uni.AddTests.test_sub (n=1)": (
            "AssertionError: # != # ← self.assertEqual(add(n, n), n + n)"
        ),
    }
    assert told.paths == ("/proj/tests/test_uni.py",)
    assert told.symbols[:2] == ("add", "second")
    assert verdict("unittest", UNITTEST) is False


def test_verbose_unittest_names_failures_before_it_explains_them() -> None:
    text = (
        "test_add (tests.test_uni.AddTests.test_add) ... FAIL\n"
        "test_doc (tests.test_uni.AddTests.test_doc)\nAdds things. ... FAIL\n"
        "test_ok (tests.test_uni.AddTests.test_ok) ... ok\n"
    )
    assert keys("unittest", text) == [
        "tests.test_uni.AddTests.test_add",
        "tests.test_uni.AddTests.test_doc",
    ]


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        (".\n-----\nRan 1 test in 0.000s\n\nOK\n", True),
        ("Ran 3 tests in 1.2s\n\nOK (skipped=1)\nDestroying test database for alias 'default'...", True),
        ("Ran 3 tests in 1.2s\n\nFAILED (failures=1)\n", False),
        ("Ran 0 tests in 0.000s\n\nOK\n", None),
    ],
)  # fmt: skip
def test_unittests_last_words(text: str, passed: bool | None) -> None:
    assert verdict("unittest", text) is passed


def test_a_traceback_is_told_by_its_last_error_and_deepest_own_frame() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/proj/script.py", line 5, in main\n'
        '    json.loads("{")\n  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads\n'
        "    return _default_decoder.decode(s)\njson.decoder.JSONDecodeError: Expecting property\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/proj/script.py", line 8, in <module>\n'
        '    main()\n  File "/proj/script.py", line 7, in main\n    raise RuntimeError("x") from e\n'
        "RuntimeError: cannot read settings at 2024-01-02 10:11:12\n"
    )
    told = parsed("traceback", text)
    assert list(told.errors) == ["/proj/script.py: RuntimeError in main"]
    assert (told.paths, told.symbols) == (("/proj/script.py",), ("main",))


def test_a_message_may_begin_on_its_own_line_and_a_syntax_error_has_no_traceback() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x\nValueError: \nno rows\n'
    assert list(parsed("traceback", text).errors.values()) == ["ValueError: no rows"]
    text = '  File "tests/test_syntax.py", line 1\n    def test_x(:\n               ^\nSyntaxError: invalid syntax\n'
    assert parsed("traceback", text).errors == {
        "tests/test_syntax.py: SyntaxError": "SyntaxError: invalid syntax"
    }


def test_a_stack_of_node_points_at_the_projects_own_file() -> None:
    text = (
        "/proj/src/sum.js:5\n  return shape.dims.width;\n                    ^\n\n"
        "TypeError: Cannot read properties of undefined (reading 'width')\n"
        "    at Object.area (/proj/src/sum.js:5:21)\n"
        "    at runScript (node:internal/process/execution:101:62)\n\nNode.js v20.20.2\n"
    )
    told = parsed("traceback", text)
    assert list(told.errors) == ["/proj/src/sum.js: TypeError in Object.area"]
    assert (told.paths, told.symbols) == (("/proj/src/sum.js",), ("width", "area"))


SYMPY = """\
============================= test process starts ==============================
sympy/printing/tests/test_mathematica.py[2]
test_Integer ok
test_Pow F                                                                [FAIL]


________________________________________________________________________________
______________ sympy/printing/tests/test_mathematica.py:test_Pow _______________
  File "/home/me/sympy/printing/tests/test_mathematica.py", line 35, in test_Pow
    assert mcode(x) == 1
AssertionError

============= tests finished: 1 passed, 1 failed, in 0.05 seconds ==============
DO *NOT* COMMIT!
/home/me/sympy/vector/coordsysrect.py:171: SyntaxWarning: "is" with a literal. Did you mean "=="?
  if transformation.name is 'spherical':
"""


def test_failures_of_sympys_runner_are_named_by_test_and_not_by_a_warning() -> None:
    assert keys("sympy", SYMPY) == ["sympy/printing/tests/test_mathematica.py::test_Pow"]
    assert verdict("sympy", SYMPY) is False
    passed = "=== test process starts ===\n== tests finished: 2 passed, in 0.05 seconds ==\n"
    assert verdict("sympy", passed) is True


def test_warnings_of_python_are_no_part_of_an_unknown_failure() -> None:
    text = "a.py:3: SyntaxWarning: invalid escape\n  x = '\\d'\nwidget broke\n"
    assert list(failures_from_tail(text).errors) == ["widget broke"]
