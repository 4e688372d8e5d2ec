"""The shares of a handoff: brief, parts, understood, returned, planted."""

from __future__ import annotations

from typing import Any

import msgspec
from rules import edit, pytest_run
from story import story

from closeloop.process.trace_measurement import HandoffRates, handoff_rates_by_lane
from closeloop.process.trace_reading import build_reading
from closeloop.records.estimate import Rate
from closeloop.records.task import Task

LANES = {"child": "root"}
GOOD = (
    "Context: the export in app/export.py lacks a column. Add `total`. Only change that file. "
    "Report what `pytest -q` says. This supersedes what you were told before."
)


def rates(events: list[Any], facts: tuple[str, ...] = (), **known: Any) -> dict[Any, HandoffRates]:
    reading = build_reading(story(events, known.get("lanes", LANES)))
    return handoff_rates_by_lane(
        msgspec.structs.replace(reading, task=Task(id="t", prompt="", facts=facts))
    )


def share(rate: Rate | None) -> tuple[float, int] | None:
    return (rate.hits, rate.of) if rate else None


def test_without_a_handoff_there_is_no_rate() -> None:
    assert rates([{"user": "Hello"}]) == {}
    assert rates([]) == {}


def test_planted_facts_are_counted_for_each_handoff() -> None:
    events = [
        {"handoff": {"brief": "It is 5 EUR."}},
        {"handoff": {"brief": "It is 5 EUR, on hold."}},
    ]
    assert share(rates(events, ("5 EUR", "on hold"))[None].planted) == (3, 4)
    assert rates(events)[None].planted is None


def test_the_five_parts_of_a_brief_are_counted() -> None:
    assert share(rates([{"handoff": {"brief": GOOD}}])[None].brief_parts) == (5, 5)
    assert share(rates([{"handoff": {"brief": "Run it."}}])[None].brief_parts) == (0, 5)


def test_the_brief_is_measured_by_what_was_asked() -> None:
    asked = "Add `total` to app/export.py, within 30 seconds. Do not touch app/ledger.py."
    brief = "Add `total` to app/export.py. Leave app/ledger.py alone."
    events = [
        {"user": asked},
        {"handoff": {"brief": brief, "child": "child"}},
        {"lane": "child", **edit("app/export.py")},
    ]
    # total, both files, the prohibition; not the 30 seconds
    assert share(rates(events)[None].brief) == (4, 5)


def test_what_the_parent_does_itself_the_child_does_not_need() -> None:
    asked = "Add `total_sum` to app/export.py and set `export_name` in app/export_names.py."
    brief = "Add `total_sum` to app/export.py, for the export."
    work = {"lane": "child", **edit("app/export.py")}
    events = [{"user": asked}, {"handoff": {"brief": brief, "child": "child"}}, work]
    mine = edit("app/export_names.py", after="export_name = 'x'")
    assert share(rates([*events, mine])[None].brief) == (2, 2)


def test_files_that_the_parent_knew_and_the_child_changes_belong_into_the_brief() -> None:
    events = [
        {"user": "Make it faster."},
        {"read": "app/cache.py"},
        {"handoff": {"brief": "Make it faster.", "child": "child"}},
        {"lane": "child", **edit("app/cache.py")},
    ]
    assert share(rates(events)[None].brief) == (0, 1)
    events[2] = {"handoff": {"brief": "Make app/cache.py faster.", "child": "child"}}
    assert share(rates(events)[None].brief) == (1, 1)


def test_the_failing_test_that_the_parent_saw_belongs_into_the_brief() -> None:
    events = [
        {"user": "Make it faster."},
        pytest_run("tests/test_cache.py::test_speed"),
        {"handoff": {"brief": "Fix what fails.", "child": "child"}},
    ]
    assert share(rates(events)[None].brief) == (0, 1)
    events[2] = {"handoff": {"brief": "Fix test_speed.", "child": "child"}}
    assert share(rates(events)[None].brief) == (1, 1)


def test_without_a_request_the_brief_is_not_measured() -> None:
    assert rates([{"handoff": {"brief": GOOD}}])[None].brief is None


def understood(brief: str, *work: dict[str, Any]) -> tuple[float, int] | None:
    child = [{"lane": "child", **one} for one in work]
    return share(rates([{"handoff": {"brief": brief, "child": "child"}}, *child])[None].understood)


def test_the_first_steps_show_whether_the_brief_was_understood() -> None:
    astray = [{"read": f"docs/{number}.md"} for number in range(6)]
    assert understood("Fix app/cache.py", {"read": "app/cache.py"}) == (1, 1)
    assert understood("Fix app/cache.py", *astray, {"read": "app/cache.py"}) == (0, 1)
    assert understood("Fix `load_cache`", {"run": "grep -rn load_cache ."}) == (1, 1)


def test_a_plan_counts_when_the_work_follows_it() -> None:
    astray = [{"read": f"docs/{number}.md"} for number in range(6)]
    plan = {"say": "First the documents, then app/cache.py."}
    assert understood("Fix app/cache.py", plan, *astray, {"read": "app/cache.py"}) == (1, 1)
    assert understood("Fix app/cache.py", plan, *astray) == (0, 1)


def test_without_targets_or_steps_understanding_is_not_measured() -> None:
    assert understood("Make it faster", {"read": "app/cache.py"}) is None
    assert understood("Fix app/cache.py") is None


def returned(report: str, *after: dict[str, Any]) -> tuple[float, int] | None:
    events = [
        {"handoff": {"brief": "Fix app/cache.py", "child": "child", "report": report}},
        {"lane": "child", **edit("app/cache.py", after="size = 100 * 1024 * 1024")},
        {"lane": "child", **pytest_run()},
        *after,
    ]
    return share(rates(events)[None].returned)


REPORT = "Changed app/cache.py; all 8 tests pass. I could not measure the speed: no network."


def test_the_facts_of_a_report_count_when_the_parent_uses_them() -> None:
    assert returned(REPORT, pytest_run(), {"say": "The speed is not measured: no network."}) == (
        3,
        3,
    )
    assert returned(REPORT, {"say": "I changed app/cache.py, the tests pass."}) == (2, 3)
    assert returned(REPORT, {"say": "Hello."}) == (0, 3)


def test_a_report_after_which_nothing_follows_is_not_measured() -> None:
    assert returned(REPORT) is None


def test_doing_the_work_again_counts_against_the_return() -> None:
    again = edit("app/cache.py", before="b = 1", after="size = 100 * 1024 * 1024")
    assert returned("Changed app/cache.py.", again) == (0, 1)


def test_rates_are_told_for_each_lane_that_hands_work_on() -> None:
    events = [
        {"handoff": {"brief": "It is 5 EUR.", "child": "child"}},
        {"lane": "child", "handoff": {"brief": "Do it."}},
    ]
    by_lane = rates(events, ("5 EUR",))
    assert {lane: share(one.planted) for lane, one in by_lane.items()} == {
        "root": (1, 1),
        "child": (0, 1),
        None: (1, 2),
    }
