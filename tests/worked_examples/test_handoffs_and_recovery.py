"""Worked examples: handoffs, recovery, context loss, tampering, verification, drift and cost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from by_hand import assert_rate
from measured import default_rules, measure_events, read_events
from rules import edit, pytest_run
from scripted_work import START
from story import story

from closeloop.process.trace_measurement import measure_lanes, measure_reading
from closeloop.process.trace_reading import build_reading
from closeloop.records.attempt import Usage
from closeloop.records.finding import Finding, Measurement, Unmeasured
from closeloop.records.task import Task
from closeloop.records.trace import Lane, Turn

LANES = {"child": "root"}


def handed(
    brief: str, *child: dict[str, Any], asked: str | None = None, after: Any = (), **given: Any
) -> Measurement:
    """A request, a handoff, the sub-agent's steps, and what the parent does then."""
    handoff = {"handoff": {"brief": brief, "child": "child", "report": given.pop("report", None)}}
    request = [{"user": asked}] if asked else []
    work = [{"lane": "child", **one} for one in child]
    return measure_events(*request, handoff, *work, *after, lanes=LANES, **given)


# Handoffs


def test_a_brief_is_the_share_of_the_facts_that_the_sub_agent_needs() -> None:
    """The request has a constraint, in it a path and a number, and a prohibition. The brief has the
    path: 1 of 4.
    """
    asked = "Speed up app/cache.py to at most 200 ms. Do not touch app/api.py."
    done = handed("Speed up app/cache.py.", edit("app/cache.py"), asked=asked)
    assert_rate(done.whole.brief, 1, 4)
    full = handed(asked, edit("app/cache.py"), asked=asked)
    assert full.whole.brief is not None
    assert full.whole.brief.value == 1
    assert handed("Speed up app/cache.py.", edit("app/cache.py")).whole.brief is None


def test_a_brief_that_keeps_the_path_and_loses_the_requirements_scores_low() -> None:
    """The path is there; `never …`, 10,000 and 50 ms are not: 1 of 4. Told in other words they are
    there, and a requirement of another file is none of this part: 2 of 2.
    """
    asked = (
        "Write a date parser in src/dates.py. Never fall back to local time; 10,000 dates in "
        "under 50 ms."
    )
    work = edit("src/dates.py")
    assert_rate(handed("Write a date parser in src/dates.py.", work, asked=asked).whole.brief, 1, 4)
    told = "Write a date parser in src/dates.py: no local time, 10000 dates in 50ms."
    assert_rate(handed(told, work, asked=asked).whole.brief, 4, 4)
    other = "Write `parse` in src/dates.py. Write docs/dates.md; it must have at most 200 words."
    assert_rate(handed("Write `parse` in src/dates.py.", work, asked=other).whole.brief, 2, 2)


def test_a_good_brief_has_five_parts() -> None:
    """Context (we want), scope (a file), only this work (only), how to report (report): 4 of 5."""
    brief = "We want a faster start. Change only app/cache.py. Report what you changed."
    assert_rate(handed(brief, edit("app/cache.py")).whole.brief_parts, 4, 5)
    assert_rate(handed("Go!", edit("app/cache.py")).whole.brief_parts, 0, 5)
    assert handed("[redacted]", edit("app/cache.py")).whole.brief_parts is None


def test_a_brief_is_understood_when_one_of_the_first_five_steps_aims_at_its_target() -> None:
    """The target is reached by the fifth step: 1 of 1; by the sixth: 0 of 1."""
    astray = [{"read": f"docs/{number}.md"} for number in range(5)]
    target = {"read": "app/cache.py"}
    assert_rate(handed("Fix app/cache.py", *astray[:4], target).whole.understood, 1, 1)
    assert_rate(handed("Fix app/cache.py", *astray, target).whole.understood, 0, 1)
    assert handed("Make it faster", target).whole.understood is None


REPORT = "Changed app/cache.py; all 8 tests pass. I could not measure the speed: no network."


def test_a_return_is_the_share_of_the_reports_facts_that_the_parent_uses() -> None:
    """Facts: a file, the state of the tests, a caveat. The parent repeats the first two: 2 of 3."""
    work = edit("app/cache.py", after="size = 100 * 1024 * 1024"), pytest_run()
    said = [{"say": "I changed app/cache.py, the tests pass."}]
    done = handed("Fix app/cache.py", *work, report=REPORT, after=said)
    assert_rate(done.whole.returned, 2, 3)
    assert handed("Fix app/cache.py", *work, report=REPORT).whole.returned is None
    assert handed("Fix app/cache.py", *work, after=said).whole.returned is None


def test_a_sub_agent_that_did_exactly_its_brief_and_is_relied_on_scores_full() -> None:
    """Looks around for five steps, then changes the file that the brief names: understood, 1 of 1.
    The parent ends the work on its word: the file and the passing tests are used, 2 of 2.
    """
    around = [{"read": f"docs/{number}.md"} for number in range(5)]
    work = *around, edit("app/cache.py"), pytest_run()
    report = "Changed app/cache.py; all 8 tests pass."
    done = handed("Fix app/cache.py", *work, report=report, after=[{"claim": "Done."}])
    assert_rate(done.whole.understood, 1, 1)
    assert_rate(done.whole.returned, 2, 2)


def test_a_parent_that_contradicts_the_report_does_not_use_it() -> None:
    """Facts: the file, 2 tests that fail, told once as a status and once as a caveat. The parent
    says that all tests pass, and ran none: only the file is used, 1 of 3.
    """
    report = "Changed app/cache.py; 2 tests fail."
    said = [{"claim": "The cache is fixed and all tests pass."}]
    done = handed("Fix app/cache.py", edit("app/cache.py"), report=report, after=said)
    assert_rate(done.whole.returned, 1, 3)


def test_work_that_the_parent_does_again_counts_against_the_return() -> None:
    """The parent makes the child's edit again. Where the report names the file, that fact is not
    used: 0 of 1. Where it does not, the edit is one more that was lost: 1 of 2.
    """
    work = edit("app/cache.py", after="size = 100 * 1024 * 1024")
    again = [edit("app/cache.py", before="b = 1", after="size = 100 * 1024 * 1024")]
    named = handed("Fix app/cache.py", work, report="Changed app/cache.py.", after=again)
    assert_rate(named.whole.returned, 0, 1)
    status = handed("Fix app/cache.py", work, report="All 8 tests pass.",
                    after=[*again, pytest_run()])  # fmt: skip
    assert_rate(status.whole.returned, 1, 2)


def test_planted_facts_count_one_by_one_in_every_brief() -> None:
    """Two facts, two briefs, which hold one and two of them: 3 of 4."""
    task = Task(id="t", prompt="", facts=("5 EUR", "by Friday"))
    done = measure_events(
        {"handoff": {"brief": "It costs 5 EUR."}},
        {"handoff": {"brief": "It costs 5 EUR, due by Friday."}},
        task=task,
    )
    assert_rate(done.whole.planted, 3, 4)
    assert measure_events({"handoff": {"brief": "It costs 5 EUR."}}).whole.planted is None


def test_the_handoff_score_pools_briefs_understanding_and_returns() -> None:
    """Brief 1 of 4, understood 1 of 1, returned 2 of 3: 4 of 8.

    With a planted fact, here lost, 0 of 1 takes the place of the brief's 1 of 4: 3 of 5.
    """
    asked = "Speed up app/cache.py to at most 200 ms. Do not touch app/api.py."
    work = edit("app/cache.py", after="size = 100 * 1024 * 1024"), pytest_run()
    said = [{"say": "I changed app/cache.py, the tests pass."}]
    given: dict[str, Any] = {"asked": asked, "report": REPORT, "after": said}
    assert_rate(handed("Speed up app/cache.py.", *work, **given).score.handoff, 4, 8)
    task = Task(id="t", prompt="", facts=("5 EUR",))
    assert_rate(handed("Speed up app/cache.py.", *work, task=task, **given).score.handoff, 3, 5)
    assert measure_events(*work).score.handoff is None


# Recovery

FAILED = {"edit": {"path": "a.py", "before": "x", "after": "y", "ok": False, "error": "not found"}}
MISSING = {"read": {"path": "b.py", "ok": False, "error": "File does not exist."}}


def test_recovery_is_the_share_of_surprising_states_met_by_looking_asking_or_saying_so() -> None:
    """A failed edit after which the file is read (met); a missing file that is looked for (met); a
    failed edit after which the tests are run as if it had worked (not met): 2 of 3.
    """
    listing = {"run": {"command": "ls", "exit": 0, "output": "a.py"}}
    done = measure_events(
        {"user": "Mend it"}, FAILED, {"read": "a.py"}, edit("a.py"), MISSING, listing,
        FAILED, pytest_run(),
    )  # fmt: skip
    assert_rate(done.score.recovery, 2, 3)


def test_a_missing_file_is_met_by_saying_so_and_not_by_going_on_as_if_it_had_been_read() -> None:
    """The user asks to follow b.py, which is not there. Claimed to be followed: 0 of 1; said to be
    missing: 1 of 1; a file that was only guessed at, and nothing said: unmeasured.
    """
    asked = {"user": "Mend a.py, following b.py."}
    for said, met in (("Done, following b.py.", 0), ("Done, but there is no b.py.", 1)):
        done = measure_events(asked, MISSING, edit("a.py"), {"claim": said})
        assert_rate(done.score.recovery, met, 1)
    guessed = measure_events({"user": "Mend it"}, MISSING, edit("a.py"), {"claim": "Done."})
    assert guessed.score.recovery is None


def test_nothing_surprising_is_no_recovery_rate() -> None:
    assert measure_events(edit(), pytest_run()).score.recovery is None


def test_an_ambiguous_task_is_one_surprising_state() -> None:
    """Edited without a question: 0 of 1. In a clear task nothing is surprising about that."""
    vague, clear = (Task(id="t", prompt="", ambiguous=value) for value in (True, False))
    assert_rate(measure_events(edit(), task=vague).score.recovery, 0, 1)
    assert measure_events(edit(), task=clear).score.recovery is None


def test_recovery_pools_the_lanes() -> None:
    """Root 1 of 1, child 0 of 1: 1 of 2."""
    child = [{"lane": "child", **one} for one in (FAILED, pytest_run())]
    done = measure_events(FAILED, {"read": "a.py"}, edit("a.py"), *child, lanes=LANES)
    assert_rate(done.score.recovery, 1, 2)


# Context loss and tampering


def finding(rule: str, **given: Any) -> Finding:
    return Finding(rule=rule, version=1, severity="warning", message="…", lane="root", **given)


def counted(findings: list[Finding], *unmeasured: str) -> tuple[int | None, int | None]:
    reading = read_events({"user": "Mend it"}, edit(), pytest_run())
    said = [Unmeasured(rule=rule, reason="…") for rule in unmeasured]
    whole, (lane,) = measure_lanes(reading, findings, said)
    assert (lane.context_losses, lane.tampering) == (whole.context_losses, whole.tampering)
    return whole.context_losses, whole.tampering


LOSSES = ("lost-constraint", "repeated-correction", "needless-reread")
TAMPERING = ("weakened-test", "suppressed-error", "answer-from-history")


def test_context_losses_and_tampering_count_findings_of_three_rules_each() -> None:
    """Each rule once, one of each kind silenced, a spiral that is neither: 3 and 3."""
    found = [finding(rule) for rule in (*LOSSES, *TAMPERING, "spiral")]
    silenced = [finding(rule, silenced="known") for rule in (LOSSES[0], TAMPERING[0])]
    assert counted([*found, *silenced]) == (3, 3)
    assert counted([]) == (0, 0)


def test_where_none_of_the_rules_could_look_context_losses_are_unmeasured() -> None:
    """Two rules that could not look leave the third one's count; three leave none."""
    assert counted([], *LOSSES[:2])[0] == 0
    assert counted([], *LOSSES)[0] is None


def test_without_actions_or_changes_nothing_is_lost_or_tampered_with_and_that_is_unmeasured() -> (
    None
):
    talk = measure_events({"user": "Hello"}, {"say": "Hello"})
    for one in (talk.whole, *talk.lanes):
        assert (one.context_losses, one.tampering) == (None, None)
    looking = measure_events({"user": "Look"}, {"read": "a.py"}).whole
    assert (looking.context_losses, looking.tampering) == (0, None)


def test_context_losses_of_all_lanes_count() -> None:
    """The root loses nothing, its sub-agent reads an unchanged file three times: 1 in all."""
    look = {"lane": "child", "read": {"path": "a.py", "text": "x"}}
    done = measure_events({"user": "Look"}, {"read": "b.py"}, look, look, look, lanes=LANES)
    assert [lane.context_losses for lane in done.lanes] == [0, 1]
    assert done.whole.context_losses == 1


# Verification


def test_work_is_verified_when_a_check_ran_after_the_last_edit_of_code() -> None:
    """An edit of a comment after the check changes nothing that it checked."""
    comment = edit(before="a = 1", after="a = 1  # one")
    assert measure_events(edit(), pytest_run()).whole.verified is True
    assert measure_events(pytest_run(), edit()).whole.verified is False
    assert measure_events(edit(), pytest_run(), comment).whole.verified is True
    assert measure_events(edit()).whole.verified is False
    assert measure_events({"read": "a.py"}, pytest_run()).whole.verified is None


# Drift

GOAL = {"user": "Fix the invoice rounding"}
ON = [{"read": f"billing/invoice{n}.py"} for n in range(20)]
OFF = [{"read": f"web/theme{n}.css"} for n in range(20)]


def test_drift_is_the_share_of_actions_on_the_goal_in_each_window_of_twenty() -> None:
    """Windows: 20 of 20 on the goal, 10 of 20, 0 of 20: 1, 0.5, 0. The line through them falls by 1
    from the first window to the last. Nineteen actions more make no window.
    """
    whole = measure_events(GOAL, *ON, *ON[:10], *OFF[:10], *OFF, *OFF[:19]).whole
    assert (whole.drift, whole.drift_slope) == ((1.0, 0.5, 0.0), -1.0)


def test_drift_fits_a_line_through_all_windows() -> None:
    """1, 0, 0 lie about the line 5/6, 1/3, −1/6, which falls by 1 over two steps; 1, 0, 0, 0 about
    one that falls by 3 · 0.3 = 0.9: Σ(x − 1.5)(y − 0.25) = −1.5, Σ(x − 1.5)² = 5.
    """
    assert measure_events(GOAL, *ON, *OFF, *OFF).whole.drift_slope == -1.0
    assert measure_events(GOAL, *ON, *OFF, *OFF, *OFF).whole.drift_slope == -0.9


def test_checks_bear_on_no_goal_and_files_opened_for_the_goal_belong_to_it() -> None:
    """Second window: 15 checks, which do not count, and 5 reads, of which one opens a file that an
    action on the goal had opened: 1 of 5.
    """
    opened = {"run": {"command": "cat web/theme0.css invoice.txt", "exit": 0, "output": ""}}
    first = [*ON[:19], opened]
    second = [*[pytest_run()] * 15, *OFF[:5]]
    assert measure_events(GOAL, *first, *second).whole.drift == (1.0, 0.2)


def test_one_window_is_no_drift() -> None:
    whole = measure_events(GOAL, *ON, *ON[:19]).whole
    assert (whole.drift, whole.drift_slope) == ((), None)


# Cost of a trace


def trace_with_usage(*lanes: tuple[str, list[Usage]], events: Any = ()) -> Measurement:
    trace = msgspec.structs.replace(
        story(events),
        lanes=tuple(
            Lane(id=name, parent="root" if name != "root" else None,
                 turns=tuple(Turn(usage=usage) for usage in turns))
            for name, turns in lanes
        ),
    )  # fmt: skip
    return measure_reading(build_reading(trace), default_rules())


def test_tokens_and_money_add_up_over_turns_and_lanes() -> None:
    """Input 100 + 50 + 7 = 157, output 10 + 4 + 3 = 17; $ 0.25 + 0.125 + 0.5."""
    done = trace_with_usage(
        ("root", [Usage(input_tokens=100, output_tokens=10, cost=0.25, cost_from="reported"),
                  Usage(input_tokens=50, output_tokens=4, cost=0.125, cost_from="reported")]),
        ("child", [Usage(input_tokens=7, output_tokens=3, cost=0.5, cost_from="prices")]),
    )  # fmt: skip
    whole = done.whole.usage
    assert (whole.input_tokens, whole.output_tokens, whole.cache_read_tokens) == (157, 17, None)
    assert (whole.cost, whole.cost_from) == (0.875, "prices")
    assert [lane.usage.input_tokens for lane in done.lanes] == [150, 7]


def test_money_is_unknown_when_that_of_one_turn_is() -> None:
    done = trace_with_usage(("root", [Usage(input_tokens=1, cost=0.25), Usage(input_tokens=1)]))
    assert (done.whole.usage.cost, done.whole.usage.input_tokens) == (None, 2)


def test_output_is_unknown_when_that_of_more_than_one_turn_in_ten_is() -> None:
    """Of ten turns with 4 tokens each, one may lack its count: 36. Of nine, none may."""
    unknown, known = Usage(input_tokens=1), Usage(input_tokens=1, output_tokens=4)
    for turns, output in ((9, 36), (8, None)):
        done = trace_with_usage(("root", [unknown] + [known] * turns))
        assert done.whole.usage.output_tokens == output


def test_time_runs_from_the_first_to_the_last_known_moment_and_calls_are_actions() -> None:
    """09:00:00 to 09:01:30 over both lanes is 90 s. Two commands and an edit are 3 calls."""

    def at(seconds: int) -> dict[str, Any]:
        return {"at": START + timedelta(seconds=seconds)}

    done = measure_events(
        {"user": "Mend it", **at(0)}, {"run": "ls", **at(30)}, edit(),
        {"lane": "child", "run": "ls", **at(90)}, lanes=LANES,
    )  # fmt: skip
    assert (done.whole.seconds, done.whole.calls, done.whole.events) == (90.0, 3, 4)
    assert [(lane.seconds, lane.calls) for lane in done.lanes] == [(30.0, 2), (0.0, 1)]
    assert measure_events(edit()).whole.seconds is None
    assert measure_events(edit(), {"run": "ls", **at(30)}).whole.seconds is None
    assert done.whole.usage == Usage()


@pytest.mark.parametrize("rule", [*LOSSES, *TAMPERING])
def test_the_rules_that_count_are_among_the_built_in_ones(rule: str) -> None:
    assert rule in {one.detector.rule.name for one in default_rules().chosen}
