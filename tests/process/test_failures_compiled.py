"""go, cargo, JUnit, RSpec, PHPUnit, CTest and their like."""
# ruff: noqa: E501  (what tools print is quoted as they print it)

from __future__ import annotations

import pytest
from parsed import keys, parsed, verdict

GO = """\
# example.com/calc/broken [example.com/calc/broken.test]
broken/b.go:3:23: undefined: undefinedThing
broken/b_test.go:5:30: too many arguments in call to F
\thave (number)
\twant ()
--- FAIL: TestAdd (0.00s)
    calc_test.go:7: Add(2, 2) = 0, want 4
--- FAIL: TestTable (0.00s)
    --- FAIL: TestTable/one (0.00s)
        calc_test.go:18: got 0
FAIL
FAIL\texample.com/calc\t0.003s
FAIL\texample.com/calc/broken [build failed]
--- FAIL: TestP (0.00s)
panic: runtime error: invalid memory address or nil pointer dereference [recovered]
\tpanic: runtime error: invalid memory address or nil pointer dereference
[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x4f4fe2]

goroutine 19 [running]:
panic({0x508da0, 0x5fda90})
\t/usr/lib/go-1.19/src/runtime/panic.go:884 +0x212
example.com/calc.Area(...)
\t/proj/calc.go:7
FAIL\texample.com/calc/pan\t0.007s
ok  \texample.com/calc/sub\t0.006s
FAIL
"""
GO_VERBOSE = """\
=== RUN   TestAdd
    calc_test.go:7: Add(2, 2) = 0, want 4
--- FAIL: TestAdd (0.00s)
=== RUN   TestTable
=== RUN   TestTable/one
    calc_test.go:18: got 0
--- FAIL: TestTable (0.00s)
    --- FAIL: TestTable/one (0.00s)
=== RUN   TestOK
--- PASS: TestOK (0.00s)
FAIL
FAIL\texample.com/calc\t0.003s
FAIL
"""
GO_JSON = """\
{"Time":"2026-11-15T07:19:48.48Z","Action":"run","Package":"example.com/calc","Test":"TestAdd"}
{"Action":"output","Package":"example.com/calc","Test":"TestAdd","Output":"=== RUN   TestAdd\\n"}
{"Action":"output","Package":"example.com/calc","Test":"TestAdd","Output":"    calc_test.go:7: Add(2, 2) = 0, want 4\\n"}
{"Action":"output","Package":"example.com/calc","Test":"TestAdd","Output":"--- FAIL: TestAdd (0.00s)\\n"}
{"Action":"output","Package":"example.com/calc","Output":"FAIL\\texample.com/calc\\t0.004s\\n"}
{"Action":"fail","Package":"example.com/calc","Ela
"""


def test_go_tells_tests_subtests_panics_and_packages_that_do_not_build() -> None:
    told = parsed("go", GO)
    assert dict(told.errors) == {
        "broken/b.go: undefined: undefinedThing": "",
        "broken/b_test.go: too many arguments in call to F": "",
        "example.com/calc.TestAdd": "Add(#) = #, want #",
        "example.com/calc.TestTable/one": "got #",
        "example.com/calc/pan.TestP": (
            "panic: runtime error: invalid memory address or nil pointer dereference"
        ),
    }
    assert told.paths == ("broken/b.go", "broken/b_test.go", "calc_test.go", "/proj/calc.go")
    assert told.symbols == ("undefinedThing", "TestAdd", "TestTable", "TestP")
    assert verdict("go", GO) is False


def test_go_says_the_same_in_all_its_formats() -> None:
    quiet = parsed("go", GO).errors
    for text in (GO_VERBOSE, GO_JSON):
        for key, message in parsed("go", text).errors.items():
            assert quiet[key] == message
        assert verdict("go", text) is False
    assert len(parsed("go", GO_VERBOSE).errors) == 2


def test_a_package_of_go_that_ends_before_its_tests_fails_as_a_whole() -> None:
    text = "fork/exec /tmp/go-build27/b320/auth.test.exe: exec format error\nFAIL\tx/auth\t0.001s\nFAIL\n"
    assert keys("go", text) == ["x/auth"]


CARGO = """\
running 3 tests
test tests::checks ... FAILED
test tests::ok ... ok
test tests::adds ... FAILED

failures:

---- tests::checks stdout ----
Error: "bad thing"

---- tests::adds stdout ----

thread 'tests::adds' (13428) panicked at src/lib.rs:10:17:
assertion `left == right` failed
  left: 0
 right: 4
stack backtrace:
   0: core::panicking::panic_fmt
             at /rustc/5980/library/core/src/panicking.rs:80:14
   1: calc::tests::adds
             at ./src/lib.rs:10:17


failures:
    tests::adds
    tests::checks

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.12s
"""


def test_cargo_tells_tests_and_why_they_panic() -> None:
    told = parsed("cargo", CARGO)
    assert dict(told.errors) == {
        "tests::checks": "Error: ''",
        "tests::adds": "assertion `left == right` failed",
    }
    assert told.paths == ("src/lib.rs",)
    assert verdict("cargo", CARGO) is False


def test_the_panic_of_older_rust_is_read_too() -> None:
    text = (
        "---- tests::a stdout ----\nthread 'tests::a' panicked at 'index out of bounds: the len is 3', src/lib.rs:4:9\n"
        "note: run with `RUST_BACKTRACE=1`\n"
    )
    assert parsed("cargo", text).errors == {"tests::a": "index out of bounds: the len is #"}


def test_what_does_not_compile_is_told_by_its_places() -> None:
    text = (
        "   Compiling calc v0.1.0 (/work)\nerror[E0425]: cannot find function `undefined_fn` in this scope\n"
        " --> src/lib.rs:2:30\n  |\n2 | undefined_fn(2);\n  | ^^^^ not found in this scope\n\n"
        "error: could not compile `calc` (lib) due to 1 previous error\n"
    )
    told = parsed("cargo", text)
    assert list(told.errors) == [
        "src/lib.rs: E0425 cannot find function `undefined_fn` in this scope"
    ]
    assert told.symbols == ("undefined_fn",)
    assert verdict("cargo", text) is False


SUREFIRE = """\
[INFO] Running app.CalcTest
[ERROR] Tests run: 3, Failures: 1, Errors: 1, Skipped: 0, Time elapsed: 0.051 s <<< FAILURE! -- in app.CalcTest
[ERROR] app.CalcTest.adds -- Time elapsed: 0.012 s <<< FAILURE!
org.opentest4j.AssertionFailedError: expected: <4> but was: <0>
\tat org.junit.jupiter.api.AssertionUtils.fail(AssertionUtils.java:55)
\tat app.CalcTest.adds(CalcTest.java:6)

[ERROR] app.CalcTest.nulls -- Time elapsed: 0.002 s <<< ERROR!
java.lang.NullPointerException: Cannot invoke "String.length()" because "s" is null
\tat app.Calc.len(Calc.java:3)
\tat app.CalcTest.nulls(CalcTest.java:7)

[INFO] Results:
[ERROR] Failures:
[ERROR]   CalcTest.adds:6 expected: <4> but was: <0>
[ERROR] Tests run: 3, Failures: 1, Errors: 1, Skipped: 0
[INFO] BUILD FAILURE
"""
GRADLE = """\
> Task :test FAILED

CalcTest > adds() FAILED
    org.opentest4j.AssertionFailedError: expected: <4> but was: <0>
        at app.CalcTest.adds(CalcTest.java:6)

3 tests completed, 1 failed

BUILD FAILED in 2s
"""


def test_surefire_and_gradle() -> None:
    told = parsed("java", SUREFIRE)
    assert dict(told.errors) == {
        "app.CalcTest.adds": "org.opentest4j.AssertionFailedError: expected: <#> but was: <#>",
        "app.CalcTest.nulls": "java.lang.NullPointerException: Cannot invoke '' because '' is #",
    }
    assert told.paths == ("CalcTest.java", "Calc.java")
    assert "len" in told.symbols
    assert keys("java", GRADLE) == ["CalcTest > adds()"]
    assert verdict("java", SUREFIRE) is verdict("java", GRADLE) is False


def test_what_maven_lists_at_the_end_is_enough() -> None:
    tail = SUREFIRE[SUREFIRE.index("[INFO] Results") :]
    assert parsed("java", tail).errors == {"CalcTest.adds": "expected: <#> but was: <#>"}


def test_what_maven_cannot_compile() -> None:
    text = "[ERROR] COMPILATION ERROR : \n[ERROR] /proj/src/main/java/app/Bad.java:[1,40] incompatible types: String cannot be converted to int\n[INFO] BUILD FAILURE\n"
    assert keys("java", text) == [
        "/proj/src/main/java/app/Bad.java: incompatible types: String cannot be converted to int"
    ]


def test_dotnet_names_the_failed_tests() -> None:
    text = (
        "  Failed App.Tests.CalcTests.Adds [12 ms]\n  Error Message:\n   Assert.Equal() Failure: Values differ\n"
        "  Stack Trace:\n     at App.Tests.CalcTests.Adds() in /proj/CalcTests.cs:line 9\n\n"
        "Failed!  - Failed:     1, Passed:     2, Skipped:     0, Total:     3\n"
    )
    assert parsed("java", text).errors == {
        "App.Tests.CalcTests.Adds": "Assert.Equal() Failure: Values differ"
    }
    assert verdict("java", text) is False


JUNIT = """\
<?xml version="1.0"?><testsuites><testsuite name="pytest" errors="0" failures="1" tests="3">
<testcase classname="tests.test_calc" name="test_add[1-2]" file="tests/test_calc.py" time="0.001">
<failure message="assert 0 == 4&#10; +  where 0 = add(2, 2)">def test_add(): &lt;x&gt;</failure></testcase>
<testcase classname="tests.test_calc" name="test_ok" time="0.000" />
<testcase classname="tests.test_calc" name="test_skip"><skipped message="x"/></testcase>
</testsuite></testsuites>
"""


def test_junit_xml() -> None:
    told = parsed("junit-xml", JUNIT)
    assert told.errors == {"tests.test_calc.test_add[1-2]": "assert # == #"}
    assert (told.paths, told.symbols) == (("tests/test_calc.py",), ("test_add",))
    assert verdict("junit-xml", JUNIT) is False
    assert verdict("junit-xml", JUNIT.replace('failures="1"', 'failures="0"')) is True


RSPEC = """\
Failures:

  1) Calc adds numbers
     Failure/Error: expect(calc.add(2, 2)).to eq(4)

       expected: 4
            got: 0

       (compared using ==)
     # ./lib/calc.rb:3:in `add'
     # ./spec/calc_spec.rb:5:in `block (2 levels) in <top (required)>'

Finished in 0.01 seconds (files took 0.05 seconds to load)
2 examples, 1 failure

Failed examples:

rspec ./spec/calc_spec.rb:5 # Calc adds numbers
"""
MINITEST = """\
  1) Failure:
CalcTest#test_add [test/calc_test.rb:6]:
Expected: 4
  Actual: 0

  2) Error:
CalcTest#test_name:
NameError: undefined local variable or method 'nope' for main

2 runs, 1 assertions, 1 failures, 1 errors, 0 skips
"""


def test_rspec_and_minitest() -> None:
    told = parsed("ruby", RSPEC)
    assert told.errors == {
        "./spec/calc_spec.rb # Calc adds numbers": "expected: # ← expect(calc.add(2, 2)).to eq(4)"
    }
    assert told.paths == ("./lib/calc.rb", "./spec/calc_spec.rb")
    assert keys("ruby", MINITEST) == ["CalcTest#test_add", "CalcTest#test_name"]
    assert verdict("ruby", RSPEC) is verdict("ruby", MINITEST) is False


PHPUNIT = """\
There was 1 failure:

1) Tests\\CalcTest::testAdd
Failed asserting that 0 matches expected 4.

/proj/tests/CalcTest.php:12

FAILURES!
Tests: 3, Assertions: 3, Failures: 1.
"""


def test_phpunit_and_pest() -> None:
    told = parsed("php", PHPUNIT)
    assert told.errors == {
        "Tests\\CalcTest::testAdd": "Failed asserting that # matches expected #."
    }
    assert (told.paths, told.symbols) == (("/proj/tests/CalcTest.php",), ("testAdd",))
    pest = "   FAILED  Tests\\CalcTest > it adds\n  Failed asserting that 0 is 4.\n\n  Tests:    1 failed, 2 passed (3 assertions)\n"
    assert keys("php", pest) == ["Tests\\CalcTest > it adds"]
    assert verdict("php", PHPUNIT) is verdict("php", pest) is False


CTEST = """\
1/3 Test #1: good .............................   Passed    0.00 sec
2/3 Test #2: bad_one ..........................***Failed    0.00 sec
3/3 Test #3: slow .............................***Timeout   1.00 sec

33% tests passed, 2 tests failed out of 3

The following tests FAILED:
\t  2 - bad_one (Failed)
\t  3 - slow (Timeout)
"""
GTEST = """\
[ RUN      ] CalcTest.Adds
/proj/calc_test.cc:7: Failure
Expected equality of these values:
[  FAILED  ] CalcTest.Adds (0 ms)
[  PASSED  ] 1 test.
[  FAILED  ] 1 test, listed below:
[  FAILED  ] CalcTest.Adds
"""


def test_ctest_and_googletest() -> None:
    assert dict(parsed("ctest", CTEST).errors) == {"bad_one": "Failed", "slow": "Timeout"}
    assert keys("ctest", CTEST.partition("33%")[0]) == ["bad_one", "slow"]
    told = parsed("ctest", GTEST)
    assert (list(told.errors), told.paths) == (["CalcTest.Adds"], ("/proj/calc_test.cc",))
    assert verdict("ctest", CTEST) is verdict("ctest", GTEST) is False


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("go", "ok  \texample.com/calc/sub\t(cached)\n"),
        ("go", "=== RUN   TestOK\n--- PASS: TestOK (0.00s)\nPASS\n"),
        ("cargo", "test tests::ok ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n"),
        ("java", "[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 0\n[INFO] BUILD SUCCESS\n"),
        ("java", "BUILD SUCCESSFUL in 2s\n"),
        ("java", "Passed!  - Failed:     0, Passed:     3\n"),
        ("ruby", "2 examples, 0 failures\n"),
        ("ruby", "3 runs, 3 assertions, 0 failures, 0 errors, 0 skips\n"),
        ("php", "OK (3 tests, 3 assertions)\n"),
        ("ctest", "100% tests passed, 0 tests failed out of 1\n"),
    ],
)
def test_their_last_words_say_that_all_passed(parser: str, text: str) -> None:
    assert verdict(parser, text) is True
