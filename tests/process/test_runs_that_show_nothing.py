"""empty-check, wrong-copy and left-failing: what ran last says nothing, or says no."""

from __future__ import annotations

import pytest
from rules import edit, found, pytest_run

from closeloop.records.attempt import Attempt

ASK = {"user": "Fix the total of the cart."}
DONE = {"claim": "The total is right now."}
END = {"claim": "finish"}
FIX = edit("shop/cart.py")


def run(command: str, output: str = "", exit: int = 0) -> dict:  # noqa: A002
    return {"run": {"command": command, "exit": exit, "output": output}}


def script(text: str, path: str = "try_cart.py") -> dict:
    return {"edit": {"path": path, "action": "create", "after": text}}


def is_empty(*events: dict, **known: object) -> bool:
    return bool(found("empty-check", events, **known))


def test_a_script_that_the_user_asked_for_is_the_code_of_the_project() -> None:
    product = script("print(1 + 1)\n", "/home/me/sample/myapp/hoge.py")
    ran = run("cd myapp && python3 hoge.py", "2")
    named = {"user": "Create myapp/hoge.py, which prints the result of 1+1."}
    printed = {"claim": "The script printed 2."}
    assert not is_empty(named, product, ran, printed)
    assert not is_empty({"user": "Write a script that prints 1+1."}, product, ran, printed)
    assert not is_empty(named, FIX, product, ran, printed)
    assert is_empty({"user": "Correct the sum."}, FIX, product, ran, printed)
    assert is_empty({"user": "Correct the sum, as in old_hoge.py."}, FIX, product, ran, printed)
    silent = script("def total():\n    return 2\n", "myapp/hoge.py")
    assert is_empty(named, silent, run("python3 myapp/hoge.py"), printed)


def test_a_script_that_imports_nothing_of_the_project_shows_nothing() -> None:
    copied = script(
        "def total(rows):\n    return sum(rows)\nassert total([1, 2]) == 3\nprint('ok')"
    )
    assert is_empty(ASK, FIX, copied, run("python try_cart.py", "ok"), DONE)
    assert is_empty(
        ASK, FIX, run("python -c \"print('All tests passed')\"", "All tests passed"), DONE
    )
    assert is_empty(
        ASK, FIX, run("python3 - <<'EOF'\nimport math\nprint(math.pi)\nEOF", "3.14"), DONE
    )


@pytest.mark.parametrize(
    "code",
    [
        "from shop.cart import total\nprint(total([1]))",
        "import subprocess\nsubprocess.run(['make', 'try'])\nprint('ok')",
        "print(open('shop/cart.py').read())",
        "from .cart import total\nprint(total([1]))",
        "import sys\nprint(sys.argv)",
        "import os\nos.system('make try')",
        "exec('import shop')",
        "print(",
    ],
)
def test_a_script_that_may_reach_the_project_is_a_check(code: str) -> None:
    assert not is_empty(ASK, FIX, script(code), run("python try_cart.py", "3"), DONE)


def test_tests_that_nobody_calls_show_nothing() -> None:
    silent = run("python tests/test_cart.py")
    assert is_empty(ASK, FIX, silent, DONE)
    assert not is_empty(ASK, FIX, run("python tests/test_cart.py", "Ran 3 tests\n\nOK"), DONE)
    assert not is_empty(ASK, FIX, run("python tools/make_cart.py"), DONE)
    own = "from shop.cart import total\n\ndef test_total():\n    assert total([1]) == 1\n"
    assert is_empty(ASK, FIX, script(own, "test_own.py"), run("python test_own.py"), DONE)
    called = own + "\ntest_total()\n"
    assert not is_empty(ASK, FIX, script(called, "test_own.py"), run("python test_own.py"), DONE)


def test_the_same_output_as_before_the_change_shows_nothing() -> None:
    own = script("from shop.cart import total\nprint(total([1]))")
    before, after = (
        run("python try_cart.py", "0 at 12:01:07"),
        run("python try_cart.py", "0 at 12:04:55"),
    )
    assert is_empty(ASK, own, before, FIX, after, DONE)
    assert not is_empty(ASK, own, before, FIX, run("python try_cart.py", "1"), DONE)
    assert not is_empty(ASK, own, before, FIX, after), "the recording ends there"
    tests = run("python try_cart.py", "Ran 12 tests in 0.1s\n\nOK")
    assert not is_empty(ASK, own, tests, FIX, tests, DONE), "what passed is to pass again"
    assert not is_empty(ASK, run("make report", "ok"), FIX, run("make report", "ok"), DONE)


def test_what_else_ran_may_have_shown_it() -> None:
    nothing = run("python -c \"print('ok')\"", "ok")
    assert not is_empty(ASK, FIX, nothing, pytest_run(), DONE)
    assert not is_empty(ASK, FIX, nothing, {"tool": {"name": "browser", "arguments": "/"}}, DONE)
    assert not is_empty(ASK, FIX, nothing, {"say": "I could not run the tests here."})
    assert not is_empty(ASK, FIX, DONE)
    assert not is_empty(ASK, nothing, DONE), "nothing was changed"


CHANGED = edit("/srv/shop/cart/totals.py")
OTHER = 'Traceback (most recent call last):\n  File "/opt/old/cart/totals.py", line 2\nKeyError: 1'
OURS = OTHER.replace("/opt/old", "/srv/shop")


def runs_other_copy(*events: dict) -> bool:
    return bool(found("wrong-copy", events))


def test_the_traceback_names_another_copy() -> None:
    wrong = run("python /srv/try.py", OTHER, 1)
    assert runs_other_copy(ASK, CHANGED, wrong, END)
    assert not runs_other_copy(ASK, CHANGED, run("python /srv/try.py", OURS, 1), END)
    assert not runs_other_copy(ASK, wrong, CHANGED, END), "it ran before the change"
    assert not runs_other_copy(ASK, CHANGED, wrong), "the recording ends there"


def test_another_copy_that_is_seen_to_is_no_mistake() -> None:
    wrong = run("python /srv/try.py", OTHER, 1)
    for repair in (
        run("pip install -e /srv/shop"),
        run("cp /srv/shop/cart/totals.py /opt/old/cart/totals.py"),
        run("PYTHONPATH=/srv/shop python /srv/try.py", "3"),
        run("cd /srv/shop && python -m pytest", "8 passed in 0.1s"),
        run("python /srv/try.py", OURS, 1),
    ):
        assert not runs_other_copy(ASK, CHANGED, wrong, repair, END), repair
    assert not runs_other_copy(ASK, CHANGED, run("docker exec web python try.py", OTHER, 1), END)


def test_folders_of_many_projects_make_no_copy() -> None:
    common = (
        'Traceback (most recent call last):\n  File "/usr/lib/x/utils/core/api.py", line 2\nError'
    )
    changed = edit("/srv/shop/utils/core/totals.py")
    assert not runs_other_copy(ASK, changed, run("python /srv/try.py", common, 1), END)


BROKEN = run("python try.py", "Traceback (most recent call last):\nKeyError: 'sum'", 1)


def is_left(*events: dict, **known: object) -> bool:
    return bool(found("left-failing", events, **known))


def test_to_end_after_a_failing_run_without_a_word_is_to_leave_it() -> None:
    assert is_left(ASK, FIX, BROKEN, END)
    assert is_left(ASK, BROKEN, FIX, BROKEN, END)
    assert is_left(ASK, FIX, pytest_run("tests/test_cart.py::test_total"), END)
    assert not is_left(ASK, FIX, BROKEN), "the recording ends there"
    assert not is_left(ASK, BROKEN, END), "nothing was changed"


def test_a_later_run_or_a_word_settles_it() -> None:
    assert not is_left(ASK, FIX, BROKEN, run("python try.py", "3"), END)
    assert not is_left(ASK, FIX, run("python other.py", "3"), BROKEN, END)
    assert not is_left(ASK, FIX, BROKEN, {"say": "It still fails for empty carts."})
    assert not is_left(ASK, FIX, BROKEN, {"think": "That is expected here."}, END)
    assert not is_left(ASK, FIX, BROKEN, {"ask": "Shall I go on?"})
    stopped = Attempt(id="a", origin="experiment", exit="out_of_budget")
    assert not is_left(ASK, FIX, BROKEN, END, attempt=stopped)


def test_what_failed_before_or_is_meant_to_fail_is_not_left() -> None:
    red = pytest_run("tests/test_net.py::test_dns")
    assert not is_left(ASK, red, FIX, red, END)
    meant = run("echo 'assert 0' > t.py && pytest t.py", "FAILED t.py::t - assert 0\n1 failed", 1)
    assert not is_left(ASK, FIX, meant, END)
    assert not is_left(ASK, FIX, run("grep -c total out.log", "0", 1), END)
    strict = edit("shop/cart.py", "return 0", "raise KeyError(name)")
    assert not is_left(ASK, strict, BROKEN, END), "the error is what was wanted"
    refused = run("pytest", "The user doesn't want to proceed with this tool use.", 1)
    assert not is_left(ASK, FIX, refused, END)
