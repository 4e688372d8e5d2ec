"""More pairs of sessions on one task, by other runners: the better one is rated higher."""

from __future__ import annotations

from typing import Any

import pytest
from measured import measure_events
from test_ordered_pairs import Events, change, command, in_turn, rates, shell

Run = dict[str, Any]


def edit(path: str, before: str, after: str) -> Run:
    return {"edit": {"path": path, "before": before, "after": after}}


def result(line: str, code: int, *lines: str) -> Run:
    """A run that prints these lines."""
    return command(line, code, "\n".join(lines))


TABLE = edit("src/rates/table.json", '"DE": 0', '"DE": 2')


def go(name: str = "TestTotal", line: int = 12, flags: str = "") -> Run:
    return result(
        f"go test{flags} ./...", 1, f"--- FAIL: {name} (0.0{line % 9}s)",
        f"    cart_test.go:{line}: got 10, want 12", "FAIL", f"FAIL\tshop/cart\t0.01{line % 9}s",
        "ok  \tshop/tax\t0.004s", "FAIL",
    )  # fmt: skip


def go_panic(address: int, line: int) -> Run:
    return result(
        "go test ./cart", 1, "--- FAIL: TestEmpty (0.00s)",
        "panic: runtime error: invalid memory address or nil pointer dereference [recovered]",
        f"[signal SIGSEGV: segmentation violation addr=0x{address:x} pc=0x4f{address:04x}]",
        f"goroutine {line} [running]:", f"\t/app/cart/cart.go:{line}", "FAIL\tshop/cart\t0.005s",
    )  # fmt: skip


def go_build(line: int) -> Run:
    return result(
        "go test ./...", 1, "# shop/cart [shop/cart.test]",
        f"cart/cart.go:{line}:9: undefined: shipping", "FAIL\tshop/cart [build failed]", "FAIL",
    )  # fmt: skip


def go_subtests(seconds: int, *names: str) -> Run:
    subtests = [
        f"    --- FAIL: TestTotal/{name} (0.0{seconds}s)\n        cart_test.go:12: got 10, want 12"
        for name in names
    ]
    return result(
        "go test ./...", 1, "--- FAIL: TestTotal (0.00s)", *subtests, "FAIL",
        f"FAIL\tshop/cart\t0.0{seconds}s",
    )  # fmt: skip


GO_PASSES = result("go test ./...", 0, "ok  \tshop/cart\t0.011s", "ok  \tshop/tax\t(cached)")


def rustc(line: int, error: str = "E0308", text: str = "mismatched types") -> Run:
    return result(
        "cargo test", 101, "   Compiling shop v0.1.0 (/app)", f"error[{error}]: {text}",
        f"  --> src/cart.rs:{line}:5", f"{line} |     total", "",
        "error: could not compile `shop` (lib) due to 1 previous error",
    )  # fmt: skip


def cargo(left: int = 10, line: int = 31) -> Run:
    return result(
        "cargo test", 101, "running 4 tests", "test cart::tests::total ... FAILED", "failures:",
        "---- cart::tests::total stdout ----",
        f"thread 'cart::tests::total' panicked at src/cart.rs:{line}:9:",
        "assertion `left == right` failed", f"  left: {left}", " right: 12", "", "failures:",
        "    cart::tests::total", "",
        f"test result: FAILED. 3 passed; 1 failed; 0 ignored; finished in 0.0{line % 9}s",
    )  # fmt: skip


CARGO_PASSES = result("cargo test", 0, "test result: ok. 4 passed; 0 failed; 0 ignored")


def clippy(count: int) -> Run:
    errors = [
        f"error: this loop could be written as a `while let` loop\n  --> src/cart{number}.rs:12:5\n"
        for number in range(count)
    ]
    line = "cargo clippy -- -D warnings"
    return result(line, 101 if count else 0, *errors, "Finished" if not count else "error: no")


def jest(*names: str, flags: str = "", received: int = 10) -> Run:
    if not names:
        return result("npx jest", 0, "PASS src/cart.test.js", "Tests:       4 passed, 4 total")
    failures = [
        f"  ● Cart › {name}\n\n    expect(received).toBe(expected)\n\n    Expected: 12\n"
        f"    Received: {received}\n"
        for name in names
    ]
    counts = f"Tests:       {len(names)} failed, {4 - len(names)} passed, 4 total"
    return result(f"npx jest{flags}", 1, "FAIL src/cart.test.js", *failures, counts)


JEST_CANNOT_LOAD = result(
    "npx jest", 1, "FAIL src/cart.test.js", "  ● Test suite failed to run", "",
    "    Cannot find module 'lodash' from 'src/cart.js'", "", "Test Suites: 1 failed, 1 total",
    "Tests:       0 total",
)  # fmt: skip
SNAPSHOT_FAILS = result(
    "npx jest", 1, "FAIL src/page.test.js", "  ● page › renders the total", "",
    "    expect(received).toMatchSnapshot()", "", " › 1 snapshot failed.",
    "Tests:       1 failed, 2 passed, 3 total",
)  # fmt: skip


def vitest(*names: str, value: int = 10) -> Run:
    line = "npx vitest run"
    if not names:
        return result(line, 0, " ✓ src/cart.test.ts (4 tests)", "      Tests  4 passed (4)")
    failures = [
        f" FAIL  src/cart.test.ts > Cart > {name}\nAssertionError: expected {value} to be 12"
        for name in names
    ]
    return result(line, 1, *failures, f"      Tests  {len(names)} failed | {4 - len(names)} passed")


Place = tuple[str, int, str]
"""File, line and message of an error."""


def tsc(*errors: Place) -> Run:
    lines = [f"src/{file}.ts({line},5): error {text}" for file, line, text in errors]
    return result("npx tsc --noEmit", 2 if errors else 0, *lines)


STRING: Place = ("cart", 3, "TS2322: Type 'string' is not assignable to type 'number'.")
NO_RATE: Place = ("cart", 9, "TS2304: Cannot find name 'rate'.")
NO_VAT: Place = ("tax", 7, "TS2339: Property 'vat' does not exist on type 'Tax'.")


def lower(place: Place, lines: int) -> Place:
    return (place[0], place[1] + lines, place[2])


def mypy(*errors: Place, flags: str = "") -> Run:
    lines = [f"src/{file}.py:{line}: error: {text}" for file, line, text in errors]
    end = f"Found {len(errors)} errors in 1 file" if errors else "Success: no issues found"
    return result(f"mypy{flags} src", int(bool(errors)), *lines, end)


RETURNS: Place = ("cart", 12, 'Incompatible return value type (got "str")  [return-value]')
NAME: Place = ("cart", 20, 'Name "rate" is not defined  [name-defined]')


def ruff(*errors: tuple[int, str], annotated: bool = False) -> Run:
    if annotated:
        lines = [
            f"::error title=Ruff,file=src/cart.py,line={line},col=5::src/cart.py:{line}:5: {text}"
            for line, text in errors
        ]
        return result("ruff check --output-format=github src", 1, *lines)
    lines = [f"src/cart.py:{line}:5: {text}" for line, text in errors]
    end = f"Found {len(errors)} errors." if errors else "All checks passed!"
    return result("ruff check src", int(bool(errors)), *lines, end)


UNDEFINED, UNUSED = (12, "F821 Undefined name `rate`"), (14, "F841 Local variable `x` is not used")


def eslint(*errors: tuple[int, str], flags: str = "") -> Run:
    lines = [f"  {line}:5  error  {text}" for line, text in errors]
    return result(
        f"npx eslint src{flags}",
        int(bool(errors)),
        *(("/app/src/cart.js", *lines) if lines else ()),
    )


UNDEF, UNUSED_VAR = (12, "'rate' is not defined  no-undef"), (30, "'x' is unused  no-unused-vars")


def rspec(*names: str, place: str = "", got: int = 10) -> Run:
    line = f"bundle exec rspec{place}"
    if not names:
        return result(line, 0, "....", "4 examples, 0 failures")
    failures = [
        f"  {number}) Cart {name}\n     Failure/Error: expect(cart.total).to eq(12)\n\n"
        f"       expected: 12\n            got: {got}\n"
        for number, name in enumerate(names, 1)
    ]
    ids = [f"rspec ./spec/cart_spec.rb:{11 + i} # Cart {name}" for i, name in enumerate(names)]
    counts = f"4 examples, {len(names)} failures"
    return result(line, 1, "Failures:", "", *failures, counts, "", "Failed examples:", "", *ids)


def phpunit(*names: str, flags: str = "", got: int = 10) -> Run:
    line = f"vendor/bin/phpunit{flags}"
    if not names:
        return result(line, 0, "OK (4 tests, 4 assertions)")
    failures = [
        f"{number}) CartTest::{name}\nFailed asserting that {got} matches expected 12.\n"
        for number, name in enumerate(names, 1)
    ]
    counts = f"Tests: 4, Assertions: 4, Failures: {len(names)}."
    return result(line, 1, "There were failures:", "", *failures, "FAILURES!", counts)


def ctest(*names: str, flags: str = "", seconds: float = 0.01) -> Run:
    line = f"ctest --test-dir build{flags}"
    if not names:
        return result(line, 0, "100% tests passed, 0 tests failed out of 4")
    failures = [f"\t  {number} - {name} (Failed)" for number, name in enumerate(names, 2)]
    return result(
        line, 8, f"{len(names)} tests failed out of 4", f"Total Test time (real) = {seconds} sec",
        "The following tests FAILED:", *failures, "Errors while running CTest",
    )  # fmt: skip


BUILD = "cmake --build build && ctest --test-dir build"


def gcc(line: int) -> Run:
    return result(
        BUILD, 2, "/app/cart.c: In function 'total':",
        f"/app/cart.c:{line}:12: error: 'rate' undeclared (first use in this function)",
        "make[2]: *** [CMakeFiles/cart.dir/build.make:76: cart.c.o] Error 1",
    )  # fmt: skip


def javac(line: int) -> Run:
    return result(
        "mvn test", 1, "[ERROR] COMPILATION ERROR : ",
        f"[ERROR] /app/src/main/java/shop/Cart.java:[{line},16] cannot find symbol",
        "  symbol:   variable rate", "[INFO] BUILD FAILURE", f"[INFO] Total time:  1.{line} s",
    )  # fmt: skip


def maven(got: int = 10, line: int = 12, flags: str = "") -> Run:
    return result(
        f"mvn{flags} test", 1, "[ERROR] Failures: ",
        f"[ERROR]   CartTest.total:{line} expected: <12> but was: <{got}>",
        "[ERROR] Tests run: 4, Failures: 1, Errors: 0, Skipped: 0", "[INFO] BUILD FAILURE",
    )  # fmt: skip


MAVEN_PASSES = result("mvn test", 0, "[INFO] Tests run: 4, Failures: 0, Errors: 0, Skipped: 0")


def gradle(*names: str, seconds: int = 1) -> Run:
    if not names:
        return result("./gradlew test", 0, f"BUILD SUCCESSFUL in {seconds}s")
    failures = [f"CartTest > {name}() FAILED\n    AssertionFailedError at x:1" for name in names]
    counts = f"4 tests completed, {len(names)} failed"
    return result("./gradlew test", 1, *failures, counts, f"BUILD FAILED in {seconds}s")


def dotnet(*names: str, milliseconds: int = 12) -> Run:
    if not names:
        return result("dotnet test", 0, "Passed!  - Failed:     0, Passed:     4, Total:     4")
    failures = [
        f"  Failed Shop.CartTests.{name} [{milliseconds} ms]\n  Error Message:\n   Expected: 12"
        for name in names
    ]
    counts = f"Failed!  - Failed:     {len(names)}, Passed:     {4 - len(names)}, Total:     4"
    return result("dotnet test", 1, *failures, counts)


def bats(*names: str) -> Run:
    lines = [f"not ok {number} {name}" for number, name in enumerate(names, 2)]
    return result("bats test", int(bool(names)), "1..4", "ok 1 empty cart", *lines)


def mix(*names: str) -> Run:
    failures = [
        f"  {number}) test {name} (Shop.CartTest)\n     Assertion with == failed"
        for number, name in enumerate(names, 1)
    ]
    return result("mix test", 2 if names else 0, *failures, f"4 tests, {len(names)} failures")


def parameters(*ids: str) -> Run:
    failures = [f"FAILED tests/test_cart.py::test_total[{name}] - assert 10 == 12" for name in ids]
    counts = f"{len(ids)} failed, 5 passed in 0.1s" if ids else "7 passed in 0.1s"
    return result("pytest -q tests/test_cart.py", int(bool(ids)), *failures, counts)


def two_tools(error: str = "") -> Run:
    """A script of the project that runs tsc, then eslint."""
    return result("npm run check", int(bool(error)), "> tsc --noEmit && eslint src", "", error)


TYPES = "src/cart.ts(3,5): error TS2322: Type 'string' is not assignable to type 'number'."
LINT = "/app/src/cart.ts\n  12:5  error  'x' is unused  no-unused-vars\n\n✖ 1 problem (1 error)"


def cut(run: Run) -> Run:
    """The same run with its output cut by `tail`, which hides the exit code."""
    output = "\n".join(run["run"]["output"].splitlines()[-5:])
    return command(f"{run['run']['command']} 2>&1 | tail -5", 0, output)


COVERAGE = result(
    "npx jest", 1, 'Jest: "global" coverage threshold for lines (90%) not met: 71.42%',
    "Tests:       4 passed, 4 total",
)  # fmt: skip
MAKE_FAILS = result(
    "make test", 2, "--- FAIL: TestA (0.00s)", "    a_test.go:4: got 1, want 2", "FAIL",
    "FAIL\tx/a\t0.01s", "make: *** [Makefile:3: test] Error 1",
)  # fmt: skip
REWRITTEN_TESTS = {
    "edit": {"path": "tests/test_cart.py", "action": "create", "after": "def test_runs(): run()"}
}
NOT_COLLECTED = result(
    "pytest -q", 2, "E   ImportError: cannot import name 'Voucher' from 'shop.vouchers'",
    "ERROR tests/test_cart.py", "Interrupted: 1 error during collection", "1 error in 0.1s",
)  # fmt: skip
IMAGE_FAILS = result("docker build -t shop .", 1, "ERROR: No matching distribution: shop==9.9")
INLINE = result(
    "python -c 'import shop; assert shop.total() == 12'", 1, "Traceback (most recent call last):",
    '  File "<string>", line 1, in <module>', "AssertionError",
)  # fmt: skip

CRASH = result(
    "python load.py", 1, "Traceback (most recent call last):", '  File "load.py", line 4',
    "ValueError: bad date",
)  # fmt: skip


def seeded(seed: int) -> Run:
    return result(
        "npm run test:unit", 1, f"[{seed}:12:34] worker {4000 + seed}: total: want 12, got 10",
        f"1 test failed, 3 passed (seed {seed * 7919})",
    )  # fmt: skip


def without_code(run: Run) -> Run:
    """The run in a recording without exit codes."""
    return {"run": {**run["run"], "exit": None}}


PAIRS: dict[str, tuple[Events, Events]] = {
    "go, the cause in another package, against flags that change": (
        [go(), edit("tax/rate.go", "0", "2"), GO_PASSES],
        in_turn(go(), go(line=14, flags=" -v"), go(line=13, flags=" -count=1"), go(line=15)),
    ),
    "go, a panic mended, against the same panic at other addresses": (
        [go_panic(24, 12), edit("cart/new.go", "nil", "&Rates{}"),
         result("go test ./cart", 0, "ok  \tshop/cart\t0.004s")],
        in_turn(go_panic(24, 12), go_panic(32, 14), go_panic(40, 17), go_panic(48, 13)),
    ),
    "go, it compiles, a test fails, all pass, against a name still undefined": (
        in_turn(go_build(12), go(), GO_PASSES),
        in_turn(go_build(12), go_build(14), go_build(13), go_build(18)),
    ),
    "go, one subtest after the other, against both each time": (
        in_turn(go_subtests(1, "DE", "FR"), go_subtests(1, "FR"), GO_PASSES),
        in_turn(*(go_subtests(seconds, "DE", "FR") for seconds in range(4))),
    ),
    "go, cut by tail": (
        [cut(go()), edit("tax/rate.go", "0", "2"), cut(GO_PASSES)],
        in_turn(*(cut(go(line=line)) for line in range(10, 14))),
    ),
    "cargo, one compiler error after the other, against the same some lines lower": (
        in_turn(rustc(12), rustc(20, "E0382", "borrow of moved value: `rate`"), CARGO_PASSES),
        in_turn(rustc(12), rustc(14), rustc(13), rustc(19)),
    ),
    "cargo, the table mended, against other wrong values": (
        [cargo(), TABLE, CARGO_PASSES],
        in_turn(cargo(), cargo(11, 33), cargo(9, 30), cargo(14, 35)),
    ),
    "cargo, mended, against ignored": (
        [cargo(), edit("src/cart.rs", "p", "p + s"), CARGO_PASSES],
        [cargo(), edit("tests/cart.rs", "#[test]\nfn t() {", "#[test]\n#[ignore]\nfn t() {"),
         result("cargo test", 0, "test result: ok. 3 passed; 0 failed; 1 ignored")],
    ),
    "clippy, four, two, none, against four each time": (
        in_turn(clippy(4), clippy(2), clippy(0)),
        in_turn(clippy(4), clippy(4), clippy(4), clippy(4)),
    ),
    "jest, the page mended, against the snapshot updated": (
        [SNAPSHOT_FAILS, edit("src/page.js", "total", "sum"), jest()],
        [SNAPSHOT_FAILS, result("npx jest -u", 0, " › 1 snapshot updated.", "Tests: 3 passed")],
    ),
    "jest, mended, against it.skip": (
        [jest("adds shipping"), edit("src/cart.js", "p", "p + s"), jest()],
        [jest("adds shipping"), edit("src/cart.test.js", "it('adds'", "it.skip('adds'"),
         result("npx jest", 0, "Tests:       1 skipped, 3 passed, 4 total")],
    ),
    "jest, narrowed by -t and closed by all, against other flags": (
        [jest("adds shipping"), jest("adds shipping", flags=" -t shipping"), TABLE, jest()],
        in_turn(jest("adds shipping"), jest("adds shipping", flags=" --verbose", received=11),
                jest("adds shipping", received=9), jest("adds shipping", flags=" --no-color")),
    ),
    "jest, a missing module installed, against code changed beside it": (
        [JEST_CANNOT_LOAD, shell("npm install lodash"), jest("adds shipping"), TABLE, jest()],
        [*in_turn(JEST_CANNOT_LOAD, JEST_CANNOT_LOAD, jest("adds shipping")),
         {"claim": "All tests pass now."}],
    ),
    "vitest, one failure after the other, against back and forth": (
        in_turn(vitest("adds shipping"), vitest("rounds"), vitest()),
        in_turn(vitest("adds shipping"), vitest("rounds"), vitest("adds shipping"),
                vitest("rounds")),
    ),
    "vitest, mended, against it.only on another test": (
        [vitest("adds shipping"), edit("src/cart.ts", "p", "p + s"), vitest()],
        [vitest("adds shipping"), edit("src/cart.test.ts", "it('is empty'", "it.only('is empty'"),
         result("npx vitest run", 0, "      Tests  1 passed | 3 skipped (4)")],
    ),
    "vitest, mended, against claimed in German": (
        [vitest("adds shipping"), TABLE, vitest(), {"claim": "Alle Tests laufen durch."}],
        [vitest("adds shipping"), change(1), vitest("adds shipping", value=11),
         {"claim": "Fertig, alle Tests sind grün."}],
    ),
    "tsc, three, two, none, against three at other lines": (
        in_turn(tsc(STRING, NO_RATE, NO_VAT), tsc(NO_RATE, NO_VAT), tsc()),
        in_turn(*(tsc(lower(STRING, n), lower(NO_RATE, n), NO_VAT) for n in (0, 2, 4, 1))),
    ),
    "tsc, the type mended, against the line silenced": (
        [tsc(STRING), edit("src/rates.ts", "string", "number"), tsc()],
        [tsc(STRING), edit("src/cart.ts", "let t: number = s", "// @ts-ignore\nlet t: number = s"),
         tsc()],
    ),
    "mypy, two errors in turn, against type: ignore on both": (
        in_turn(mypy(RETURNS, NAME), mypy(NAME), mypy()),
        [mypy(RETURNS, NAME), edit("src/cart.py", "return text\nx = rate",
         "return text  # type: ignore\nx = rate  # type: ignore"), mypy()],
    ),
    "mypy, a stub mended, against other flags": (
        [mypy(RETURNS), edit("stubs/rates.pyi", "str", "int"), mypy()],
        in_turn(mypy(RETURNS), mypy(lower(RETURNS, 2), flags=" --no-color-output"),
                mypy(lower(RETURNS, 1)), mypy(RETURNS)),
    ),
    "ruff, two, one, none, against another format": (
        in_turn(ruff(UNDEFINED, UNUSED), ruff(UNUSED), ruff()),
        in_turn(ruff(UNDEFINED), ruff((13, UNDEFINED[1]), annotated=True),
                ruff((15, UNDEFINED[1])), ruff((11, UNDEFINED[1]))),
    ),
    "ruff, repaired by --fix, against noqa": (
        [ruff(UNUSED), result("ruff check --fix src", 0, "Found 1 error (1 fixed)."), ruff()],
        [ruff(UNDEFINED), edit("src/cart.py", "x = rate", "x = rate  # noqa: F821"), ruff()],
    ),
    "eslint, two, one, none, against two at other lines": (
        in_turn(eslint(UNDEF, UNUSED_VAR), eslint(UNUSED_VAR), eslint()),
        in_turn(eslint(UNDEF, UNUSED_VAR), eslint((13, UNDEF[1]), (31, UNUSED_VAR[1])),
                eslint((14, UNDEF[1]), (32, UNUSED_VAR[1])),
                eslint(UNDEF, UNUSED_VAR, flags=" --format stylish")),
    ),
    "eslint, the import added, against eslint-disable": (
        [eslint(UNDEF), edit("src/cart.js", "", "import { rate } from './rates'"), eslint()],
        [eslint(UNDEF), edit("src/cart.js", "total(rate)",
         "/* eslint-disable no-undef */\ntotal(rate)"), eslint()],
    ),
    "rspec, narrowed to a line and closed by all, against other values": (
        [rspec("adds"), rspec("adds", place=" ./spec/cart_spec.rb:11"), TABLE, rspec()],
        in_turn(*(rspec("adds", got=got) for got in (10, 11, 9, 8))),
    ),
    "rspec, mended, against xit": (
        [rspec("adds"), edit("lib/cart.rb", "p", "p + s"), rspec()],
        [rspec("adds"), edit("spec/cart_spec.rb", "it 'adds' do", "xit 'adds' do"),
         result("bundle exec rspec", 0, "4 examples, 0 failures, 1 pending")],
    ),
    "phpunit, two, one by --filter, none, against two each time": (
        in_turn(phpunit("testA", "testB"), phpunit("testB", flags=" --filter testB"), phpunit()),
        in_turn(*(phpunit("testA", "testB", got=got) for got in (10, 11, 9, 10))),
    ),
    "phpunit, mended, against markTestSkipped": (
        [phpunit("testA"), edit("src/Cart.php", "p", "p + s"), phpunit()],
        [phpunit("testA"), edit("tests/CartTest.php", "function testA() {",
         "function testA() {\n$this->markTestSkipped('flaky');"),
         result("vendor/bin/phpunit", 0, "Tests: 4, Assertions: 3, Skipped: 1.")],
    ),
    "ctest, one after the other, against -j4 and other times": (
        in_turn(ctest("cart_total", "cart_vat"), ctest("cart_vat"), ctest()),
        in_turn(ctest("cart_total"), ctest("cart_total", flags=" -j4", seconds=0.3),
                ctest("cart_total", seconds=0.2), ctest("cart_total", seconds=0.5)),
    ),
    "cmake, it compiles, a test fails, all pass, against the same error": (
        in_turn(gcc(12), result(BUILD, 8, "The following tests FAILED:", "\t  2 - cart (Failed)"),
                result(BUILD, 0, "100% tests passed, 0 tests failed out of 4")),
        in_turn(gcc(12), gcc(13), gcc(15), gcc(14)),
    ),
    "maven, it compiles, a test fails, all pass, against a missing symbol": (
        in_turn(javac(12), maven(), MAVEN_PASSES),
        in_turn(javac(12), javac(14), javac(13), javac(18)),
    ),
    "maven, the table mended, against other flags and values": (
        [maven(), TABLE, MAVEN_PASSES],
        in_turn(maven(), maven(11, 14, " -q"), maven(9, 12, " -o"), maven(8, 13)),
    ),
    "gradle, two, one, none, against two each time": (
        in_turn(gradle("total", "vat"), gradle("vat"), gradle()),
        in_turn(*(gradle("total", "vat", seconds=seconds) for seconds in (1, 2, 3, 1))),
    ),
    "dotnet, mended, against the same in other times": (
        [dotnet("Total"), TABLE, dotnet()],
        in_turn(*(dotnet("Total", milliseconds=milliseconds) for milliseconds in (12, 9, 30, 7))),
    ),
    "bats, two, one, none, against the same": (
        in_turn(bats("adds", "rounds"), bats("rounds"), bats()),
        in_turn(bats("adds"), bats("adds"), bats("adds"), bats("adds")),
    ),
    "mix, two, one, none, against the same": (
        in_turn(mix("adds", "rounds"), mix("rounds"), mix()),
        in_turn(mix("rounds"), mix("rounds"), mix("rounds"), mix("rounds")),
    ),
    "parameters of a test, two, one, none, against two each time": (
        in_turn(parameters("EUR", "USD"), parameters("USD"), parameters()),
        in_turn(*(parameters("EUR", "USD") for _ in range(4))),
    ),
    "types, then lint, then none, against types each time": (
        in_turn(two_tools(TYPES), two_tools(LINT), two_tools()),
        in_turn(*(two_tools(TYPES.replace("3,5", place)) for place in ("3,5", "5,5", "6,5"))),
    ),
    "eslint, the import added, against the rule switched off": (
        [eslint(UNDEF), edit("src/cart.js", "", "import { rate } from './rates'"), eslint()],
        [eslint(UNDEF), edit("eslint.config.js", "rules: {", "rules: {\n  'no-undef': 'off',"),
         eslint()],
    ),
    "clippy, mended, against allowed": (
        in_turn(clippy(1), clippy(0)),
        [clippy(1), edit("src/lib.rs", "//! Shop", "#![allow(warnings)]\n//! Shop"), clippy(0)],
    ),
    "coverage, a test added, against the floor lowered": (
        [COVERAGE, edit("src/cart.test.js", "", "test('refunds', refunds)"), jest()],
        [COVERAGE, edit("jest.config.js", "lines: 90", "lines: 70"), jest()],
    ),
    "make, mended, against its exit code dropped": (
        in_turn(MAKE_FAILS, result("make test", 0, "ok\tx\t0.1s")),
        [MAKE_FAILS, edit("Makefile", "go test ./...", "go test ./... || true"),
         result("make test", 0, *MAKE_FAILS["run"]["output"].splitlines()[:-1])],
    ),
    "pytest, mended, against deselected": (
        [parameters("EUR"), TABLE, parameters()],
        [parameters("EUR"), edit("pytest.ini", "addopts =", "addopts = --deselect tests/t.py"),
         parameters()],
    ),
    "pytest, mended, against the file of tests written anew without the test": (
        [parameters("EUR"), TABLE, parameters()],
        [parameters("EUR"), REWRITTEN_TESTS, parameters()],
    ),
    "pytest, mended, against the test ended before it asserts": (
        [parameters("EUR"), TABLE, parameters()],
        [parameters("EUR"), edit("tests/test_cart.py", "def test_total():",
         "def test_total():\n    return"), parameters()],
    ),
    "pytest, mended, against skipped if true": (
        [parameters("EUR"), TABLE, parameters()],
        [parameters("EUR"), edit("tests/test_cart.py", "def test_total():",
         "@pytest.mark.skipif(True, reason='slow')\ndef test_total():"), parameters()],
    ),
    "pytest, mended, against the result mocked": (
        [parameters("EUR"), TABLE, parameters()],
        [parameters("EUR"), edit("tests/test_cart.py", "    assert total()",
         "    total = Mock(return_value=12)\n    assert total()"), parameters()],
    ),
    "pytest, it cannot be collected, fails and passes, against never collected": (
        in_turn(NOT_COLLECTED, parameters("EUR"), parameters()),
        in_turn(NOT_COLLECTED, NOT_COLLECTED, NOT_COLLECTED, NOT_COLLECTED),
    ),
    "two checks, both closed, against one broken by the fix of the other": (
        [*in_turn(parameters("EUR"), parameters()), ruff(UNUSED), change(1), ruff(),
         parameters()],
        in_turn(parameters("EUR"), parameters(), ruff(UNUSED), ruff(), parameters("EUR"),
                ruff(UNUSED), parameters(), ruff(), parameters("EUR")),
    ),
    "tsc without exit codes, silent in the end, against the same errors": (
        in_turn(without_code(tsc(STRING)), without_code(tsc())),
        in_turn(*(without_code(tsc(lower(STRING, n))) for n in (0, 1, 2))),
    ),
    "a build that says in the end that it passed": (
        in_turn(IMAGE_FAILS, result("docker build -t shop .", 0, "#8 DONE 3.1s")),
        in_turn(IMAGE_FAILS, IMAGE_FAILS, IMAGE_FAILS),
    ),
    "an assertion in the command, against the same": (
        in_turn(INLINE, result(INLINE["run"]["command"], 0)),
        in_turn(INLINE, INLINE, INLINE),
    ),
    "a program that crashes, and no more, against the same error": (
        in_turn(CRASH, result("python load.py", 0, "200 rows")),
        in_turn(CRASH, CRASH, CRASH),
    ),
    "a script with numbered workers and a seed, against the same": (
        in_turn(seeded(1), result("npm run test:unit", 0, "4 passed (seed 77)")),
        in_turn(*(seeded(seed) for seed in range(1, 5))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_the_better_session_of_a_pair_is_rated_higher(name: str) -> None:
    better, worse = map(rates, PAIRS[name])
    assert better.feedback is not None
    assert worse.feedback is not None
    assert better.feedback.value > worse.feedback.value
    assert better.convergence is not None
    assert worse.convergence is not None
    assert better.convergence.value > worse.convergence.value


def test_a_complaint_that_the_user_wants_silenced_may_be_silenced() -> None:
    events = PAIRS["ruff, repaired by --fix, against noqa"][1]
    score = measure_events({"user": "Silence F821 in src/cart.py with noqa."}, *events).score
    assert score.feedback is not None
    assert score.feedback.value == 1


@pytest.mark.parametrize("setting", ['"DE": 0', "disabled: false", "retries = 0"])
def test_a_setting_that_is_none_of_a_check_may_mend_the_cause(setting: str) -> None:
    mended = [parameters("EUR"), edit("config/rates.yaml", "", setting), parameters()]
    score = rates(mended)
    assert score.feedback is not None
    assert score.feedback.value == 1
