"""Pairs of sessions on one task: feedback and convergence rate the better one higher."""

from __future__ import annotations

from typing import Any

import pytest
from measured import measure_events

from closeloop.records.estimate import Rate
from closeloop.records.finding import ProcessScore

Events = list[dict[str, Any]]

RUNNERS: dict[str, tuple[str, str, str]] = {
    # name: command, what it prints when it fails, what it prints when it passes
    "pytest": (
        "pytest -q tests/test_cart.py",
        "FAILED tests/test_cart.py::test_total - assert 10 == 12\n1 failed, 3 passed in 0.12s",
        "4 passed in 0.11s",
    ),
    "unittest": (
        "python -m unittest tests.test_cart",
        "FAIL: test_total (tests.test_cart.Cart)\n-----\nAssertionError: 10 != 12\n-----\n"
        "Ran 4 tests in 0.01s\n\nFAILED (failures=1)",
        "Ran 4 tests in 0.01s\n\nOK",
    ),
    "jest": (
        "npx jest cart",
        "FAIL src/cart.test.js\n  ● Cart › adds shipping\n    expect(received).toBe(expected)\n\n"
        "Tests:       1 failed, 3 passed, 4 total",
        "PASS src/cart.test.js\nTests:       4 passed, 4 total",
    ),
    "vitest": (
        "npx vitest run src/cart.test.ts",
        " FAIL  src/cart.test.ts > Cart > adds shipping\nAssertionError: expected 10 to be 12\n"
        " Tests  1 failed | 3 passed (4)",
        " ✓ src/cart.test.ts (4 tests)\n Tests  4 passed (4)",
    ),
    "mocha": (
        "npx mocha test/cart.js",
        "  3 passing (8ms)\n  1 failing\n\n  1) Cart\n       adds shipping:\n"
        "     AssertionError: expected 10 to equal 12",
        "  4 passing (8ms)",
    ),
    "go": (
        "go test ./cart/...",
        "--- FAIL: TestTotal (0.00s)\n    cart_test.go:12: got 10, want 12\nFAIL\n"
        "FAIL\tshop/cart\t0.002s",
        "ok  \tshop/cart\t0.002s",
    ),
    "cargo": (
        "cargo test cart",
        "test cart::total ... FAILED\n\nfailures:\n    cart::total\n\n"
        "test result: FAILED. 3 passed; 1 failed; 0 ignored",
        "test cart::total ... ok\n\ntest result: ok. 4 passed; 0 failed; 0 ignored",
    ),
    "maven": (
        "mvn -q test -Dtest=CartTest",
        "[ERROR]   CartTest.total:12 expected: <12> but was: <10>\n"
        "[ERROR] Tests run: 4, Failures: 1, Errors: 0, Skipped: 0\n[ERROR] BUILD FAILURE",
        "[INFO] Tests run: 4, Failures: 0, Errors: 0, Skipped: 0\n[INFO] BUILD SUCCESS",
    ),
    "rspec": (
        "bundle exec rspec spec/cart_spec.rb",
        "Failures:\n\n  1) Cart adds shipping\n     expected: 12\n          got: 10\n\n"
        "4 examples, 1 failure\n\nrspec ./spec/cart_spec.rb:12 # Cart adds shipping",
        "4 examples, 0 failures",
    ),
    "phpunit": (
        "vendor/bin/phpunit tests/CartTest.php",
        "There was 1 failure:\n\n1) CartTest::testTotal\nFailed asserting that 10 matches"
        " expected 12.\n\nFAILURES!\nTests: 4, Assertions: 4, Failures: 1.",
        "OK (4 tests, 4 assertions)",
    ),
    "tsc": (
        "npx tsc --noEmit",
        "src/cart.ts(12,5): error TS2322: Type 'string' is not assignable to type 'number'.",
        "",
    ),
    "mypy": (
        "mypy src",
        'src/cart.py:12: error: Incompatible return value type  [return-value]\nFound 1 error in 1'
        " file (checked 8 source files)",
        "Success: no issues found in 8 source files",
    ),
    "eslint": (
        "npx eslint src",
        "/app/src/cart.js\n  12:5  error  'rate' is not defined  no-undef\n\n✖ 1 problem (1 error)",
        "",
    ),
    "ctest": (
        "ctest --test-dir build",
        "The following tests FAILED:\n\t  2 - cart_total (Failed)\nErrors while running CTest",
        "100% tests passed, 0 tests failed out of 4",
    ),
    "make": (
        "make test",
        "cart_test: FAIL: total: got 10, want 12\nmake: *** [Makefile:8: test] Error 1",
        "cart_test: all 4 passed",
    ),
}  # fmt: skip


def edit(path: str, text: str) -> dict[str, Any]:
    return {"edit": {"path": path, "before": "return price", "after": text}}


def run(runner: str, *, fails: bool, flags: str = "") -> dict[str, Any]:
    command, failing, passing = RUNNERS[runner]
    output = failing if fails else passing
    return {"run": {"command": command + flags, "exit": int(fails), "output": output}}


def shell(command: str, **more: Any) -> dict[str, Any]:
    return {"run": {"command": command, "exit": 0, "output": "", **more}}


def fix_root_cause(runner: str) -> Events:
    """The failure is read, something else is mended that the output never named, all pass."""
    return [
        run(runner, fails=True),
        {"think": "The rate comes from the table, which is out of date."},
        edit("src/rates/table.py", "return price + shipping(price)"),
        run(runner, fails=False),
        {"say": "The table of rates was out of date; the check passes."},
    ]


def reword_spiral(runner: str) -> Events:
    """Each thought names the failing place in other words, and the same fails each time."""
    thoughts = (
        "test_total wants 12: I add the shipping in total().",
        "It still says 10. The sum in cart must be built in another way.",
        "A different approach: compute the total in one expression.",
    )
    events = [run(runner, fails=True)]
    for number, thought in enumerate(thoughts):
        flags = " --color=never" if number == 1 and runner == "jest" else ""
        events += [{"think": thought}, edit("src/cart.py", f"return price + {number}")]
        events.append(run(runner, fails=True, flags=flags))
    return [*events, {"say": "It should be right now."}]


SHELL_EDITS = {
    "sed": "sed -i 's/return price/return price + {}/' src/cart.py",
    "heredoc": "cat > src/cart.py <<'EOF'\ndef total(price):\n    return price + {}\nEOF",
    "perl": "perl -pi -e 's/return price/return price + {}/' src/cart.py",
    "python": "python - <<'EOF'\nfrom pathlib import Path\np = Path('src/cart.py')\n"
    "p.write_text(p.read_text().replace('return price', 'return price + {}'))\nEOF",
    "patch": "git apply <<'EOF'\n--- a/src/cart.py\n+++ b/src/cart.py\n@@ -1,2 +1,2 @@\n"
    " def total(price):\n-    return price\n+    return price + {}\nEOF",
}  # fmt: skip


def edit_in_shell(kind: str, *, mended: bool) -> Events:
    line = SHELL_EDITS[kind]
    if mended:
        return [run("pytest", fails=True), shell(line.format(2)), run("pytest", fails=False)]
    rounds = [(shell(line.format(number)), run("pytest", fails=True)) for number in range(3)]
    return [run("pytest", fails=True), *(event for pair in rounds for event in pair)]


def failing(*names: str, flags: str = "") -> dict[str, Any]:
    lines = [f"FAILED tests/test_cart.py::{name} - assert 10 == 12" for name in names]
    counts = f"{len(names)} failed, 3 passed in 0.1s" if names else "6 passed in 0.1s"
    output = "\n".join([*lines, counts])
    return {"run": {"command": f"pytest -q{flags}", "exit": int(bool(names)), "output": output}}


def change(number: int) -> dict[str, Any]:
    return edit("src/cart.py", f"return price + {number}")


def in_child(*events: dict[str, Any]) -> Events:
    handoff = {
        "handoff": {"brief": "Fix total() in src/cart.py.", "child": "fixer", "report": "Done."}
    }
    return [handoff, *({**event, "lane": "fixer"} for event in events)]


NO_MODULE = {"run": {"command": "pytest -q", "exit": 1, "output": "No module named 'pytest'"}}

OTHERS: dict[str, tuple[Events, Events]] = {
    "one test after the other, against the same three": (
        [failing("a", "b", "c"), change(1), failing("a", "b"), change(2), failing("a"), change(3),
         failing()],
        [failing("a", "b", "c"), change(1), failing("a", "b", "c"), change(2),
         failing("a", "b", "c"), change(3), failing("a", "b", "c")],
    ),
    "the next failure in the row, against the first again": (
        [failing("a"), change(1), failing("b"), change(2), failing()],
        [failing("a"), change(1), failing("a"), change(2), failing("a")],
    ),
    "the environment repaired, against the code changed blindly": (
        [NO_MODULE, shell("pip install pytest"), failing("a"), change(1), failing()],
        [failing("a"), change(1), failing("a"), change(2), failing("a"), change(3), failing("a")],
    ),
    "narrowed to the failing test, against the same run again": (
        [failing("a"), failing("a", flags=" -k a"), change(1), failing()],
        [failing("a"), failing("a"), failing("a"), change(1), failing("a")],
    ),
    "mended, against claimed on top of the failure": (
        [failing("a"), change(1), failing(), {"claim": "All tests pass."}],
        [failing("a"), change(1), failing("a"), {"claim": "All tests pass."}],
    ),
    "one fix that holds, against one that breaks another and back": (
        [failing("a"), change(1), failing(), change(2), failing()],
        [failing("a"), change(1), failing("a", "b"), change(2), failing("a"), change(3),
         failing("a", "b")],
    ),
    "a child that mends, against a child that goes round": (
        in_child(failing("a"), change(1), failing()),
        in_child(failing("a"), change(1), failing("a"), change(2), failing("a"), change(3),
                 failing("a")),
    ),
    "two rounds and done, against four rounds and given up": (
        [failing("a"), change(1), failing("a"), change(2), failing()],
        [failing("a"), *(one for number in range(4) for one in (change(number), failing("a"))),
         {"say": "I could not make it pass."}],
    ),
    "types and tests both closed, against tests left failing": (
        [run("mypy", fails=True), failing("a"), change(1), run("mypy", fails=False), failing()],
        [run("mypy", fails=True), failing("a"), change(1), run("mypy", fails=False), failing("a")],
    ),
    "the fault in the test's data, against the assertion reworded": (
        [failing("a"), edit("tests/data/rates.json", '{"DE": 2}'), failing()],
        [failing("a"), change(1), failing("a"), change(1), failing("a")],
    ),
}  # fmt: skip


def command(line: str, code: int, output: str) -> dict[str, Any]:
    return {"run": {"command": line, "exit": code, "output": output}}


def total_is(value: int, seconds: float = 0.1) -> dict[str, Any]:
    """pytest, with what the total is instead of 12."""
    if value == 12:
        return command("pytest -q", 0, f"6 passed in {seconds}s")
    text = f"FAILED tests/test_cart.py::test_total - assert {value} == 12\n1 failed, 5 passed in "
    return command("pytest -q", 1, f"{text}{seconds}s")


def go_prints(value: int, line: int) -> dict[str, Any]:
    text = f"--- FAIL: TestTotal (0.00s)\n    cart_test.go:{line}: got {value}, want 12\nFAIL\n"
    return command("go test ./cart/...", 1, f"{text}FAIL\tshop/cart\t0.00{line % 9}s")


def type_error(line: int, text: str = "TS2322: Type 'string' is not a number.") -> dict[str, Any]:
    return command("npx tsc --noEmit", 1, f"src/cart.ts({line},5): error {text}")


def in_turn(*checks: dict[str, Any]) -> Events:
    """Each check, and the same file changed before the next."""
    changed = (one for number, check in enumerate(checks[1:]) for one in (change(number), check))
    return [checks[0], *changed]


RATES = edit("src/rates/table.py", "return price + shipping(price)")
TEST = "def test_total():\n    assert total(1) == 12"
OWN_WORDS = command("./ci/check.sh", 1, "checking the cart\ntotal: want 12, got 10\n1 problem")
PRINTED = command("python scripts/verify.py", 0, "total: FAIL (10, not 12)\n3 passed, 1 failed")
NO_YAML = command(
    "pytest -q", 1, "E   ModuleNotFoundError: No module named 'yaml'\nERROR tests/test_cart.py\n"
    "Interrupted: 1 error during collection\n1 error in 0.2s",
)  # fmt: skip
MAKE = command("make test", 2, f"pytest -q\n{total_is(10)['run']['output']}\nmake: *** Error 1")
UNITTEST = command(
    "python -m unittest tests.test_cart", 1, "FAIL: test_total (tests.test_cart.Cart.test_total)\n"
    "AssertionError: 10 != 12\n\nRan 4 tests in 0.01s\n\nFAILED (failures=1)",
)  # fmt: skip
DISCOVER = command("python -m unittest discover", 1, UNITTEST["run"]["output"])
CART_FILE = command("python -m pytest tests/test_cart.py", 0, "4 passed in 0.1s")
SLOW = command("timeout 60 pytest -q", 124, "....")
ABSENT = command("pytest -q", 127, "pytest: command not found")
ALL_PASS = {"claim": "All tests pass."}

NASTY: dict[str, tuple[Events, Events]] = {
    "the cause in a file that nothing names, against other wrong values each time": (
        [total_is(10), RATES, total_is(12)],
        in_turn(total_is(10), total_is(11, 0.3), total_is(9), total_is(14, 0.2)),
    ),
    "the same in Go and German, where lines move": (
        [go_prints(10, 12), {"think": "Die Tabelle ist veraltet."}, RATES, run("go", fails=False),
         {"say": "Die Tabelle war veraltet, der Test läuft."}],
        [*in_turn(go_prints(10, 12), go_prints(11, 14), go_prints(10, 13), go_prints(9, 12)),
         {"say": "Jetzt sollte es stimmen."}],
    ),
    "a script of the project that speaks in its own words": (
        [OWN_WORDS, RATES, command("./ci/check.sh", 0, "checking the cart\nall good")],
        in_turn(OWN_WORDS, OWN_WORDS, OWN_WORDS),
    ),
    "a script that exits with 0 and counts failures": (
        [PRINTED, RATES, command("python scripts/verify.py", 0, "4 passed, 0 failed")],
        in_turn(PRINTED, PRINTED, PRINTED),
    ),
    "a missing module installed, against the check repeated without it": (
        [NO_YAML, shell("pip install pyyaml"), total_is(10), RATES, total_is(12)],
        [NO_YAML, NO_YAML, total_is(10), change(1), total_is(10)],
    ),
    "the code mended, against the failing test deleted": (
        [total_is(10), change(1), total_is(12)],
        [total_is(10), {"edit": {"path": "tests/test_cart.py", "before": TEST, "after": ""}},
         command("pytest -q", 0, "5 passed in 0.1s")],
    ),
    "the code mended, against the failing test skipped": (
        [total_is(10), change(1), total_is(12)],
        [total_is(10), {"edit": {"path": "tests/test_cart.py", "before": "def test_total():",
                                 "after": "@pytest.mark.skip\ndef test_total():"}},
         command("pytest -q", 0, "5 passed, 1 skipped in 0.1s")],
    ),
    "the code mended, against the test made to expect what the code gives": (
        [total_is(10), change(1), total_is(12)],
        [total_is(10), {"edit": {"path": "tests/test_cart.py", "before": "assert total(1) == 12",
                                 "after": "assert total(1) == 10"}}, total_is(12)],
    ),
    "another error of the compiler next, against the same some lines lower": (
        in_turn(type_error(12), type_error(30, "TS2304: Cannot find name 'rate'."),
                run("tsc", fails=False)),
        in_turn(type_error(12), type_error(13), type_error(15), type_error(14)),
    ),
    "a script that writes the right table, against scripts that do not help": (
        [total_is(10), shell("python fix_rates.py"), total_is(12)],
        [total_is(10), shell("python fix_rates.py"), total_is(10), shell("python fix_more.py"),
         total_is(10)],
    ),
    "run by make and then directly": (
        [MAKE, RATES, total_is(12)],
        in_turn(MAKE, total_is(10), command("make test", 2, MAKE["run"]["output"])),
    ),
    "run by another runner of the same tests": (
        [UNITTEST, RATES, CART_FILE],
        in_turn(UNITTEST, command("pytest tests/test_cart.py", 1,
                                  "FAILED tests/test_cart.py::Cart::test_total - AssertionError: 10"
                                  " != 12\n1 failed, 3 passed in 0.1s"), DISCOVER),
    ),
    "one failure after the other, against back and forth between two": (
        in_turn(failing("a", "b"), failing("a"), failing("c"), failing()),
        in_turn(failing("a", "b"), failing("c"), failing("a", "b"), failing("c"),
                failing("a", "b")),
    ),
    "all tests at the end, against only one that never failed": (
        [failing("a", "b"), change(1), failing("b"), change(2), failing(), ALL_PASS],
        [failing("a", "b"), change(1),
         command("pytest -q -k other", 0, "1 passed, 5 deselected in 0.1s"), ALL_PASS],
    ),
}  # fmt: skip

FEEDBACK_ONLY: dict[str, tuple[Events, Events]] = {
    # Here nothing ran, or all pass in the end: convergence says nothing, or the same.
    "a missing module installed, against code changed without it": (
        [NO_YAML, shell("pip install pyyaml"), total_is(10), RATES, total_is(12)],
        [*in_turn(NO_YAML, NO_YAML, NO_YAML), ALL_PASS],
    ),
    "a flaky test looked into, against one run until it passes": (
        [total_is(10), total_is(12), {"read": {"path": "tests/test_cart.py", "text": "sleep(1)"}},
         edit("src/cart.py", "wait_for(total)"), total_is(12)],
        [total_is(10), total_is(10), total_is(12), ALL_PASS],
    ),
    "a longer time limit, against the same again": (
        [SLOW, command("timeout 600 pytest -q", 1, total_is(10)["run"]["output"]), change(1),
         command("timeout 600 pytest -q", 0, "6 passed in 100s")],
        [SLOW, SLOW, SLOW, ALL_PASS],
    ),
    "a runner installed, against success claimed without one": (
        [ABSENT, shell("pip install pytest"), total_is(12)],
        [ABSENT, change(1), ABSENT, ALL_PASS],
    ),
}  # fmt: skip

PAIRS: dict[str, tuple[Events, Events]] = {
    **{runner: (fix_root_cause(runner), reword_spiral(runner)) for runner in RUNNERS},
    **{
        f"shell edits by {kind}": (
            edit_in_shell(kind, mended=True),
            edit_in_shell(kind, mended=False),
        )
        for kind in SHELL_EDITS
    },
    **OTHERS,
    **NASTY,
}  # fmt: skip


def rates(events: Events) -> ProcessScore:
    """The rates of the whole session."""
    lanes = {"fixer": "root"} if any("lane" in event for event in events) else None
    given = {"lanes": lanes} if lanes else {}
    return measure_events({"user": "Mend the total of the cart."}, *events, **given).score


@pytest.mark.parametrize("name", [*PAIRS, *FEEDBACK_ONLY])
def test_the_better_session_of_a_pair_is_rated_higher(name: str) -> None:
    better, worse = map(rates, PAIRS.get(name) or FEEDBACK_ONLY[name])
    assert better.feedback is not None, "something failed and was followed up"
    assert worse.feedback is not None
    assert better.feedback.value > worse.feedback.value
    if name in PAIRS:
        assert better.convergence is not None
        assert worse.convergence is not None
        assert better.convergence.value > worse.convergence.value


def test_a_test_that_the_user_wants_changed_may_be_changed() -> None:
    events = NASTY["the code mended, against the failing test deleted"][1]
    score = measure_events({"user": "Remove the test of the total."}, *events).score
    assert score.feedback is not None
    assert score.feedback.value == 1


# Handoffs: a child that does exactly its brief, and parents that use what it returns

REQUEST = {
    "user": "Mend the rounding of prices in src/cart.py: half cents go up, at most 2 decimals. Do "
    "not touch src/tax.py. Run pytest tests/test_cart.py."
}
BRIEF = (
    "In src/cart.py, round half cents up, at most 2 decimals. Do not touch src/tax.py. Run `pytest "
    "tests/test_cart.py`, and report which files you changed and whether the tests pass."
)
ROUND = {"edit": {"path": "src/cart.py", "before": "return price", "after": "return round(price)"}}


def hand_over(brief: str, work: Events, report: str, then: Events) -> Rate:
    child = [{**event, "lane": "child"} for event in (*work, {"say": report})]
    handoff = {"handoff": {"brief": brief, "child": "child", "report": report}}
    measured = measure_events(REQUEST, handoff, *child, *then, lanes={"child": "root"})
    assert measured.score.handoff is not None
    return measured.score.handoff


def test_a_child_that_does_its_brief_is_rated_above_one_that_got_little_and_went_elsewhere() -> (
    None
):
    work = [ROUND, command("pytest tests/test_cart.py", 0, "4 passed in 0.1s")]
    report = "I changed src/cart.py: total() rounds up. pytest tests/test_cart.py: 4 passed."
    used = [{"say": "src/cart.py rounds half cents up; the tests of tests/test_cart.py pass."}]
    good = hand_over(BRIEF, work, report, used)
    tax = [{"edit": {"path": "src/tax.py", "before": "return rate", "after": "return 0"}}]
    vague = hand_over("Mend the rounding.", tax, "Done.", [{"say": "The rounding is mended."}])
    assert good.value > vague.value
