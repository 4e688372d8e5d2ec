"""Worked examples: iterations, convergence, standstill, feedback use and the loop rules."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import assert_rate
from measured import measure_events, read_events
from rules import edit, found, pytest_run

from closeloop.records.finding import Measurement

A, B, C = "tests/test_cart.py::test_a1", "tests/test_cart.py::test_b", "tests/test_cart.py::test_c"
SUM = "assert total(items) == 4"


def measured(*events: dict[str, Any], **given: Any) -> Measurement:
    return measure_events({"user": "Mend the cart"}, *events, **given)


def test_a_rate_carries_its_count_and_its_wilson_interval() -> None:
    """2 of 3: (2 + 1.9207 ∓ 1.96·√(2·1/3 + 0.9604)) / (3 + 3.8415) = 0.2077 and 0.9385."""
    rate = measured(
        pytest_run(A), edit(), pytest_run(), edit(), pytest_run(B), edit(), pytest_run(), edit(),
        pytest_run(C), {"claim": "Done."},
    ).score.convergence  # fmt: skip
    assert_rate(rate, 2, 3)
    assert rate is not None
    assert (rate.low, rate.high) == pytest.approx((0.2077, 0.9385), abs=1e-4)


# Iterations and convergence


def test_an_iteration_is_one_or_more_changes_and_then_a_check() -> None:
    """Two edits and a check, that check again unchanged, one edit and a check: 2 iterations.

    A check before any change belongs to none. An edit after the last check begins none.
    """
    whole = measured(
        pytest_run(A), edit(after="a = 2"), edit(after="a = 3"), pytest_run(A), pytest_run(A),
        {"read": "cart.py"}, edit(after="a = 4"), pytest_run(A), edit(after="a = 5"),
    ).whole  # fmt: skip
    assert (whole.iterations, whole.checks, whole.edits) == (2, 4, 4)


def test_iterations_to_convergence_count_until_nothing_fails_for_good() -> None:
    """Iterations fail, pass, fail, pass, pass: nothing fails for good from the fourth on."""
    outcomes = [(A,), (), (B,), (), ()]
    events = [one for number, failing in enumerate(outcomes)
              for one in (edit(after=f"a = {number}"), pytest_run(*failing))]  # fmt: skip
    whole = measured(*events).whole
    assert (whole.iterations, whole.converged_after, whole.converged) == (5, 4, True)


def test_work_that_never_converges_has_no_count_and_is_not_zero() -> None:
    whole = measured(edit(), pytest_run(), edit(after="a = 3"), pytest_run(A)).whole
    assert (whole.iterations, whole.converged_after, whole.converged) == (2, None, False)


def test_work_in_which_nothing_failed_has_nothing_to_converge_from() -> None:
    done = measured(edit(), pytest_run())
    assert (done.whole.converged_after, done.whole.converged) == (1, None)
    assert done.score.convergence is None


def test_a_check_without_an_exit_code_neither_passes_nor_fails() -> None:
    """Iterations unknown, pass: the unknown one neither converges nor breaks convergence."""
    silent = {"run": {"command": "pytest -q", "output": "…"}}
    unknown = measured(edit(), silent)
    assert (unknown.whole.converged_after, unknown.score.convergence) == (None, None)
    after = measured(pytest_run(A), edit(), pytest_run(), edit(after="a = 3"), silent)
    assert after.whole.converged_after == 1
    assert_rate(after.score.convergence, 1, 1)


def test_a_check_that_collected_no_test_neither_passes_nor_fails() -> None:
    """pytest's exit code 5: no test ran, so that no episode begins, and none ends."""
    nothing = {"run": {"command": "pytest -q", "exit": 5, "output": "no tests ran in 0.01s"}}
    assert measured(edit(), nothing).score.convergence is None
    assert_rate(measured(pytest_run(A), edit(), nothing).score.convergence, 0, 1)


def test_a_check_of_which_nothing_could_be_parsed_fails_by_its_exit_code() -> None:
    """Exit code 2 and no test named: one episode, which stays open. 0 of 1."""
    odd = {"run": {"command": "make test", "exit": 2, "output": "something went wrong"}}
    assert_rate(measured(edit(), odd).score.convergence, 0, 1)


def test_convergence_is_the_share_of_episodes_of_failure_that_ended_with_everything_passing() -> (
    None
):
    """Four episodes, keyed by what was checked: tests fail and pass, types fail and pass, tests
    fail and pass again (closed), tests fail to the end (open). 3 of 4.
    """
    mypy = {"run": {"command": "mypy src", "exit": 1, "output": "src/a.py:1: error: No [misc]"}}
    typed = {"run": {"command": "mypy src", "exit": 0, "output": "Success"}}
    events = [
        pytest_run(A), mypy, edit(), pytest_run(), edit(after="a = 3"), typed,
        edit(after="a = 4"), pytest_run(B), edit(after="a = 5"), pytest_run(),
        edit(after="a = 6"), pytest_run(C), edit(after="a = 7"), pytest_run(C),
    ]  # fmt: skip
    assert_rate(measured(*events).score.convergence, 3, 4)
    assert measured(*events).whole.converged_after is None


def test_an_episode_is_keyed_by_what_was_checked_not_by_the_command() -> None:
    """One episode, closed after two iterations, although no two commands are the same."""
    events = [
        pytest_run(A, command="pytest tests/test_cart.py -x"), edit(),
        pytest_run(A, command=f"python -m pytest -q {A}"), edit(after="a = 3"),
        pytest_run(command="pytest tests/ --tb=short | cat"),
    ]  # fmt: skip
    done = measured(*events)
    assert_rate(done.score.convergence, 1, 1)
    assert done.whole.converged_after == 2


def test_a_check_that_nobody_ran_again_while_others_passed_is_no_episode() -> None:
    """A script shows the bug, the tests then pass, the script is never run again: unknown."""
    script = {"run": {"command": "python repro.py", "exit": 1, "output": "ValueError: x"}}
    done = measured(script, edit(), pytest_run())
    assert done.score.convergence is None
    assert_rate(measured(pytest_run(), edit(), script).score.convergence, 0, 1)


def test_a_pass_of_other_tests_is_no_answer_to_a_failure() -> None:
    """test_a fails; only test_b is run again, and success is claimed: 0 of 1 in both rates."""
    fails = pytest_run("tests/test_a.py::test_1", command="pytest tests/test_a.py")
    other = pytest_run(command="pytest tests/test_b.py")
    done = measured(fails, edit(), other, {"claim": "Done, all tests pass."})
    assert_rate(done.score.convergence, 0, 1)
    assert_rate(done.score.feedback, 0, 1)


def test_convergence_counts_the_episodes_of_all_lanes() -> None:
    """The root closes its only episode, a sub-agent leaves its own open: 1 of 2."""
    child = [{"lane": "child", **one} for one in (pytest_run(A), edit(), pytest_run(A))]
    events = [pytest_run(B), edit(), pytest_run(), *child]
    assert_rate(measured(*events, lanes={"child": "root"}).score.convergence, 1, 2)


def test_what_a_sub_agent_changes_is_a_change_of_its_parent_too() -> None:
    """The child edits, the parent checks: one iteration of the parent, none of the child."""
    child = {"lane": "child", **edit()}
    reading = read_events(child, pytest_run(A), lanes={"child": "root"})
    assert {name: len(lane.iterations) for name, lane in reading.lanes.items()} == {
        "root": 1,
        "child": 0,
    }


def test_a_standstill_is_the_longest_row_of_iterations_with_the_same_failures() -> None:
    """A, A, then the same test with another error, three times: rows of 2 and 3. The longest: 3.

    A pass between ends a row: the same failure on either side of it is 1 and 1.
    """
    other = "TypeError: total() takes 1 argument"
    same = [edit(after="1"), pytest_run(A, error=SUM), edit(after="2"), pytest_run(A, error=SUM)]
    then = [one for n in range(3) for one in (edit(after=f"b{n}"), pytest_run(A, error=other))]
    assert measured(*same, *then).whole.standstill == 3
    broken = [edit(after="1"), pytest_run(A), edit(after="2"), pytest_run(),
              edit(after="3"), pytest_run(A)]  # fmt: skip
    assert measured(*broken).whole.standstill == 1
    assert measured(edit(), pytest_run()).whole.standstill == 0


def test_the_standstill_of_a_trace_is_that_of_its_worst_lane() -> None:
    row = [one for n in range(2) for one in (edit(after=f"{n}"), pytest_run(A))]
    child = [{"lane": "child", **one} for one in row]
    assert measured(edit(after="x"), *child, lanes={"child": "root"}).whole.standstill == 2


# Feedback use

VAT = "tests/test_vat.py::test_greek_prefix"


def test_feedback_is_the_share_of_failing_checks_after_which_something_else_fails_or_nothing() -> (
    None
):
    """Five failing checks: the failure returns after an edit of the named file, and after one of
    a page (twice returned); the check is run again unchanged (repeated); the failure is gone
    (used); success is claimed on top of a failure (claimed). 1 of 5.
    """
    rate = measured(
        pytest_run(VAT), edit("src/vat.py"),
        pytest_run(VAT), edit("README.md", after="words"),
        pytest_run(VAT),
        pytest_run(VAT), edit("src/vat.py", after="a = 3"), pytest_run(), edit(),
        pytest_run(A), {"claim": "All done."},
    ).score.feedback  # fmt: skip
    assert_rate(rate, 1, 5)


def test_feedback_that_is_open_at_the_end_is_not_counted() -> None:
    """One used; the last failure is followed by nothing and no claim: 1 of 1, not of 2."""
    rate = measured(pytest_run(VAT, B), edit("src/vat.py"), pytest_run(VAT)).score.feedback
    assert_rate(rate, 1, 1)


def test_a_root_cause_fix_is_used_and_a_reworded_spiral_is_not() -> None:
    """A fix in a file that the output never named: 1 of 1. Three edits of the named file after
    which the same test fails: 0 of 3.
    """
    assert_rate(measured(pytest_run(VAT), edit("src/cache.py"), pytest_run()).score.feedback, 1, 1)
    spiral = [one for n in range(3) for one in (pytest_run(VAT), edit("src/vat.py", after=f"{n}"))]
    assert_rate(measured(*spiral, pytest_run(VAT)).score.feedback, 0, 3)


def test_without_a_failing_check_there_is_no_feedback_rate() -> None:
    assert measured(edit(), pytest_run()).score.feedback is None


def test_a_closer_look_at_the_same_state_is_not_a_turn_of_the_loop() -> None:
    """The failing test is run alone, nothing changed between: what counts comes after. 1 of 1."""
    wide, narrow = pytest_run(VAT, B), pytest_run(VAT, command=f"pytest {VAT}")
    assert measured(wide, narrow).score.feedback is None
    assert_rate(measured(wide, narrow, edit(), pytest_run()).score.feedback, 1, 1)


def test_a_check_that_could_not_run_is_neither_pass_nor_fail() -> None:
    """Exit codes 127 and 4 and a collection error begin no episode; that the environment was
    repaired, so that the check ran, is use. 1 of 1.
    """
    for code, output in (
        (127, "sh: pytest: not found"),
        (4, "ERROR: file or directory not found: tests"),
        (2, "ERROR tests/test_a.py\nInterrupted: 1 error during collection\n1 error in 0.1s"),
    ):
        blocked = {"run": {"command": "pytest -q", "exit": code, "output": output}}
        assert measured(edit(), blocked).score.convergence is None
        repaired = {"run": {"command": "pip install pytest", "exit": 0, "output": "ok"}}
        assert_rate(measured(edit(), blocked, repaired, pytest_run()).score.feedback, 1, 1)


def test_feedback_of_a_trace_pools_its_lanes() -> None:
    """Root: 1 of 1. Child: 0 of 1. Together 1 of 2."""
    child = [pytest_run(VAT), edit("README.md", after="words"), pytest_run(VAT)]
    events = [pytest_run(VAT), edit("src/vat.py"), pytest_run(),
              *({"lane": "child", **one} for one in child)]  # fmt: skip
    assert_rate(measured(*events, lanes={"child": "root"}).score.feedback, 1, 2)


# Rules of the loop


def _rounds(number: int, *failing: str) -> list[dict[str, Any]]:
    return [one for n in range(number) for one in (edit(after=f"x = {n}"), pytest_run(*failing))]


def test_three_iterations_with_the_same_failures_are_a_spiral_and_two_are_none() -> None:
    assert found("spiral", _rounds(2, A)) == []
    (finding,) = found("spiral", _rounds(3, A))
    assert finding.events == (2, 4, 6)


def test_failures_that_come_back_twice_after_being_left_are_an_oscillation() -> None:
    """A, B, A returns once: none. A, B, A, B returns twice: one finding, citing the two returns."""
    states = [A, B, A, B]
    events = [one for n, test in enumerate(states)
              for one in (edit(after=f"x = {n}"), pytest_run(test))]  # fmt: skip
    assert found("oscillation", events[:6]) == []
    (finding,) = found("oscillation", events)
    assert finding.events == (6, 8)


def test_the_same_failing_action_three_times_in_one_state_is_a_repeated_failure() -> None:
    """Twice is none; with a change between, three times are none either."""
    fails = {"run": {"command": "./deploy", "exit": 1, "output": "refused"}}
    assert found("repeated-failure", [fails, fails]) == []
    assert found("repeated-failure", [fails, fails, edit(), fails]) == []
    (finding,) = found("repeated-failure", [fails, fails, fails])
    assert finding.events == (1, 2, 3)


def test_a_fix_whose_lines_are_nine_tenths_those_of_one_that_did_not_help_is_the_same_fix() -> None:
    """Lines are compared as sets. The nine of the first fix and one more: 9 of 10, the same fix.
    With two more: 9 of 11, another one.
    """

    def again(more: int) -> list[Any]:
        lines = [f"total = price + {n}" for n in range(9 + more)]
        first = edit(before="a = 1", after="\n".join(lines[:9]))
        taken_back = edit(before="\n".join(lines[:9]), after="a = 1")
        second = edit(before="a = 1", after="\n".join(lines))
        check = pytest_run(A)
        events = [check, first, check, taken_back, check, second, check]
        return list(found("same-fix-again", events))

    (finding,) = again(1)
    assert finding.events == (6, 2, 3)
    assert again(2) == []


def test_an_unchanged_file_read_three_times_or_twice_at_once_is_a_needless_reread() -> None:
    look, other = ({"read": {"path": path, "text": "x"}} for path in ("a.py", "b.py"))
    assert found("needless-reread", [look, other, look]) == []
    assert found("needless-reread", [look, edit("a.py"), look]) == []
    (twice,) = found("needless-reread", [look, look])
    assert twice.events == (1, 2)
    (thrice,) = found("needless-reread", [look, other, look, other, look])
    assert thrice.events == (1, 3, 5)


# Runs and edits that come to nothing


def test_four_edits_of_a_file_in_vain_are_a_struggle_and_three_are_none() -> None:
    """A run in between begins a new count; the same edit four times is a repeated failure."""
    misses = [
        {"edit": {"path": "a.py", "before": text, "after": "b", "ok": False, "error": "not found"}}
        for text in "wxyz"
    ]
    assert found("edit-struggle", misses[:3]) == []
    assert found("edit-struggle", [*misses[:2], pytest_run(), *misses[2:]]) == []
    assert found("edit-struggle", misses[:1] * 4) == []
    (finding,) = found("edit-struggle", misses)
    assert finding.events == (1, 2, 3, 4)


def test_a_run_that_prints_the_same_before_and_after_the_only_change_is_an_empty_check() -> None:
    """One more line of output, or a check beside it, and it is none."""
    script = {"edit": {"path": "repro.py", "action": "create", "after": "import cart\ncart.show()"}}
    shows, more = (
        {"run": {"command": "python repro.py", "exit": 0, "output": text}} for text in ("3", "3\n4")
    )
    end = {"claim": "Done."}
    assert found("empty-check", [script, shows, edit(), more, end]) == []
    assert found("empty-check", [script, shows, edit(), shows, pytest_run(), end]) == []
    (finding,) = found("empty-check", [script, shows, edit(), shows, end])
    assert finding.events == (3, 4)


def test_a_run_that_names_files_of_another_copy_than_the_changed_one_runs_the_wrong_copy() -> None:
    """/srv/shop is changed and /opt/shop is loaded; where both are named, nothing is said."""
    change, end = edit("/srv/shop/cart/sums.py"), {"claim": "Done."}

    def run(*roots: str) -> dict[str, Any]:
        output = "".join(f'  File "{root}/shop/cart/sums.py", line 1, in add\n' for root in roots)
        return {"run": {"command": "python /tmp/try.py", "exit": 1, "output": output}}

    assert found("wrong-copy", [change, run("/srv"), end]) == []
    assert found("wrong-copy", [change, run("/srv", "/opt"), end]) == []
    (finding,) = found("wrong-copy", [change, run("/opt"), end])
    assert finding.events == (1, 2)


def test_to_end_without_a_word_when_all_runs_since_the_last_change_fail_is_left_failing() -> None:
    """A run that went well since then, or one word of the failure, and it is not."""
    fails, end = pytest_run(A), {"claim": "finish"}
    well = {"run": {"command": "python try.py", "exit": 0, "output": "4"}}
    assert found("left-failing", [edit(), well, fails, end]) == []
    assert found("left-failing", [edit(), fails, {"say": "test_a1 still fails."}]) == []
    (finding,) = found("left-failing", [edit(), fails, end])
    assert finding.events == (3, 2, 1)
