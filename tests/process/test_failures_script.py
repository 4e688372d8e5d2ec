"""Jest, Vitest, Mocha, TAP and node --test, as they were really printed."""
# ruff: noqa: E501  (what tools print is quoted as they print it)

from __future__ import annotations

import pytest
from parsed import keys, parsed, verdict

JEST = """\
FAIL jest/sum.test.js (5.12 s)
  ● Console

    console.log
      ● nothing

  ● sum › adds two numbers

    expect(received).toBe(expected) // Object.is equality

    Expected: 4
    Received: 0

      1 | const { sum, area } = require("../src/sum");
      2 | describe("sum", () => {
    > 3 |   it("adds two numbers", () => { expect(sum(2, 2)).toBe(4); });
        |                                                    ^

      at Object.toBe (jest/sum.test.js:3:52)

  ● sum › nested › reads width 100

    TypeError: Cannot read properties of undefined (reading 'width')

    > 5 |   return shape.dims.width;
        |                     ^

      at width (src/sum.js:5:21)
      at Object.area (jest/sum.test.js:5:42)

FAIL jest/broken.test.js
  ● Test suite failed to run

    Cannot find module '../src/missing' from 'jest/broken.test.js'

      at Resolver._throwModNotFoundError (../node_modules/jest-resolve/build/index.js:1031:11)
      at Object.require (jest/broken.test.js:1:18)

Test Suites: 2 failed, 2 total
Tests:       2 failed, 1 passed, 3 total
Time:        0.373 s
"""


def test_jest_names_the_file_and_the_path_of_titles() -> None:
    told = parsed("jest", JEST)
    assert dict(told.errors) == {
        "jest/sum.test.js › sum › adds two numbers": (
            "expect(received).toBe(expected) // Object.is equality ← "
            'it("adds two numbers", () => { expect(sum(2, 2)).toBe(4); });'
        ),
        "jest/sum.test.js › sum › nested › reads width 100": (
            "TypeError: Cannot read properties of # (reading 'width')"
        ),
        "jest/broken.test.js › Test suite failed to run": (
            "Cannot find module '../src/missing' from 'jest/broken.test.js'"
        ),
    }
    assert told.paths == ("jest/sum.test.js", "src/sum.js", "jest/broken.test.js")
    assert "width" in told.symbols
    assert verdict("jest", JEST) is False


def test_of_jest_cut_short_the_marked_lines_are_left() -> None:
    assert keys("jest", "  sum\n    ✕ adds two numbers (4 ms)\n    ✓ works\n") == [
        "adds two numbers"
    ]
    assert keys("jest", "bun test v1.1\n\n(fail) sum > adds [0.21ms]\n") == ["sum > adds"]


VITEST = """\
 \x1b[31m❯\x1b[39m vt/sum.spec.js \x1b[2m(\x1b[22m\x1b[2m4 tests\x1b[22m\x1b[2m | \x1b[22m\x1b[31m3 failed\x1b[39m\x1b[2m)\x1b[22m
     \x1b[31m×\x1b[31m adds two numbers\x1b[39m\x1b[32m 6\x1b[2mms\x1b[22m\x1b[39m

⎯⎯⎯⎯⎯⎯ Failed Suites 1 ⎯⎯⎯⎯⎯⎯⎯

 FAIL  vt/broken.spec.js [ vt/broken.spec.js ]
Error: Cannot find module '../src/missing' imported from /proj/vt/broken.spec.js
 ❯ vt/broken.spec.js:1:93

⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯[1/3]⎯

 FAIL  vt/sum.spec.js > sum > adds two numbers
AssertionError: expected +0 to be 4 // Object.is equality

- Expected
+ Received

 ❯ vt/sum.spec.js:3:52

⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯[2/3]⎯

 FAIL  vt/sum.spec.js > sum > nested > reads width 100
TypeError: Cannot read properties of undefined (reading 'width')
 ❯ area src/sum.js:5:21
 ❯ vt/sum.spec.js:5:42

⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯[3/3]⎯

 Test Files  2 failed (2)
      Tests  2 failed | 1 passed (3)
   Duration  369ms (transform 20ms, setup 0ms)
"""


def test_vitest_names_the_path_of_titles() -> None:
    told = parsed("vitest", VITEST)
    assert dict(told.errors) == {
        "vt/broken.spec.js": "Error: Cannot find module '../src/missing' imported from /proj/vt/broken.spec.js",
        "vt/sum.spec.js > sum > adds two numbers": "AssertionError: expected # to be # // Object.is equality",
        "vt/sum.spec.js > sum > nested > reads width 100": "TypeError: Cannot read properties of # (reading 'width')",
    }  # fmt: skip
    assert told.paths == ("vt/broken.spec.js", "vt/sum.spec.js", "src/sum.js")
    assert told.symbols[:2] == ("width", "area")
    assert verdict("vitest", VITEST) is False
    assert keys("vitest", VITEST.partition("⎯")[0]) == ["adds two numbers"]


MOCHA = """\
  sum
    1) adds two numbers
    ✔ works
    nested
      2) reads width

  1 passing (27ms)
  2 failing

  1) sum
       adds two numbers:

      AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:

0 !== 4

      at Context.<anonymous> (mo/sum.js:3:41)

  2) sum
       nested
         reads width:
     TypeError: Cannot read properties of undefined (reading 'width')
      at area (src/sum.js:5:21)
      at Context.<anonymous> (mo/sum.js:4:56)
      at process.processImmediate (node:internal/timers:483:21)
"""


def test_mochas_list_of_failures_gives_whole_titles() -> None:
    told = parsed("mocha", MOCHA)
    assert list(told.errors) == ["sum adds two numbers", "sum nested reads width"]
    assert told.paths == ("mo/sum.js", "src/sum.js")
    assert told.symbols[:2] == ("width", "area")
    assert verdict("mocha", MOCHA) is False


TAP = """\
TAP version 13
# Subtest: adds two numbers
not ok 1 - adds two numbers
  ---
  duration_ms: 1.884547
  location: '/proj/nt/sum.test.js:2:1'
  error: |-
    Expected values to be strictly equal:

    0 !== 4
  stack: |-
    TestContext.<anonymous> (/proj/nt/sum.test.js:2:41)
    Test.run (node:internal/test_runner/test:796:25)
  ...
# Subtest: group
    # Subtest: reads width
    not ok 1 - reads width
      ---
      error: "Cannot read properties of undefined (reading 'width')"
      stack: |-
        area (/proj/src/sum.js:5:21)
      ...
not ok 2 - group
  ---
  failureType: 'subtestsFailed'
  error: '1 subtest failed'
  ...
not ok 3 - later # TODO
# tests 4
# pass 1
# fail 2
"""
SPEC = """\
✖ adds two numbers (2.382596ms)
ℹ pass 1
ℹ fail 1

✖ failing tests:

test at nt/sum.test.js:2:1
✖ adds two numbers (2.382596ms)
  AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:

      at TestContext.<anonymous> (/proj/nt/sum.test.js:2:41)
      at Test.run (node:internal/test_runner/test:796:25)
"""


def test_tap_leaves_out_what_is_to_do_and_what_fails_only_by_its_parts() -> None:
    told = parsed("tap", TAP)
    assert dict(told.errors) == {
        "adds two numbers": "Expected values to be strictly equal:",
        "reads width": "Cannot read properties of # (reading 'width')",
    }
    assert told.paths == ("/proj/nt/sum.test.js", "/proj/src/sum.js")
    assert verdict("tap", TAP) is False


def test_nodes_own_list_names_the_file() -> None:
    assert keys("tap", SPEC) == ["nt/sum.test.js > adds two numbers"]
    assert verdict("tap", SPEC) is False


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("jest", "Test Suites: 1 passed, 1 total\nTests:       3 skipped, 1 passed, 4 total\n"),
        ("vitest", " Test Files  1 passed (1)\n      Tests  1 passed | 3 skipped (4)\n"),
        ("mocha", "  sum\n    ✔ works\n\n\n  1 passing (3ms)\n"),
        ("tap", "ok 1 - a\n1..1\n# tests 1\n# pass 1\n# fail 0\n"),
        ("tap", "ℹ tests 1\nℹ pass 1\nℹ fail 0\n"),
    ],
)
def test_their_last_words_say_that_all_passed(parser: str, text: str) -> None:
    assert verdict(parser, text) is True


@pytest.mark.parametrize("parser", ["jest", "vitest", "mocha", "tap"])
def test_other_output_says_nothing(parser: str) -> None:
    assert verdict(parser, "Compiled in 3s, everything failed to matter\n") is None
