"""Thirty pairs of sessions on one task: feedback and convergence rate the better one higher."""

from __future__ import annotations

from typing import Any

import pytest
from measured import measure_events

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
}  # fmt: skip


def rate(events: Events) -> tuple[float, float]:
    """Feedback and convergence of the whole session."""
    lanes = {"fixer": "root"} if any("lane" in event for event in events) else None
    given = {"lanes": lanes} if lanes else {}
    score = measure_events({"user": "Mend the total of the cart."}, *events, **given).score
    assert score.feedback is not None, "something failed and was followed up"
    assert score.convergence is not None
    return score.feedback.value, score.convergence.value


@pytest.mark.parametrize("name", PAIRS)
def test_the_better_session_of_a_pair_is_rated_higher(name: str) -> None:
    better, worse = (rate(events) for events in PAIRS[name])
    assert better[0] > worse[0], "feedback"
    assert better[1] > worse[1], "convergence"


def test_there_are_thirty_pairs() -> None:
    assert len(PAIRS) == 30
