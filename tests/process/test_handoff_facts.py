"""Which facts a handoff's score counts: the lists and the score say the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from rules import edit, pytest_run
from story import labelled, story

from closeloop.process.trace_measurement import handoff_rates_by_lane, list_handoff_facts
from closeloop.process.trace_reading import build_reading
from closeloop.records.estimate import Rate

CASES = [case for case in labelled() if build_reading(case.trace).handoffs]


def share(rate: Rate | None) -> tuple[float, int]:
    return (rate.hits, rate.of) if rate else (0, 0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_facts_add_up_to_the_rates_of_every_labelled_trace(case) -> None:
    planted = case.task.facts if case.task else ()
    reading = replace(build_reading(case.trace), task=case.task)
    rates = handoff_rates_by_lane(reading)[None]
    facts = list_handoff_facts(reading, planted)
    arrived, lost, used, unused = (
        sum(len(getattr(one, name)) for one in facts)
        for name in ("arrived", "lost", "used", "unused")
    )
    assert (arrived, arrived + lost) == share(rates.planted or rates.brief)
    assert (used, used + unused) == share(rates.returned)
    told = [one.understood for one in facts if one.understood is not None]
    assert (sum(told), len(told)) == share(rates.understood)


def test_each_fact_is_told_by_what_became_of_it() -> None:
    events = [
        {"user": "Speed up app/cache.py to at most 200 ms. Do not touch app/api.py."},
        {
            "handoff": {
                "brief": "Speed up app/cache.py.",
                "child": "child",
                "report": "Changed app/cache.py. All 8 tests pass. I could not test it on Windows.",
            }
        },
        {"lane": "child", **edit("app/cache.py", after="size = 100 * 1024 * 1024")},
        {"lane": "child", **pytest_run()},
        {"say": "I changed app/cache.py, the tests pass."},
    ]
    [one] = list_handoff_facts(build_reading(story(events, {"child": "root"})))
    assert (one.event, one.child, one.understood) == (2, "child", True)
    assert one.arrived == ("app/cache.py",)
    assert any("200 ms" in fact for fact in one.lost)
    assert any("app/api.py" in fact for fact in one.lost)
    assert "app/cache.py" in one.used
    assert one.unused == ("I could not test it on Windows.",)
    [planted] = list_handoff_facts(
        build_reading(story(events, {"child": "root"})), ("200 ms", "app/cache.py")
    )
    assert (planted.arrived, planted.lost) == (("app/cache.py",), ("200 ms",))


def test_without_a_handoff_there_are_no_facts() -> None:
    assert list_handoff_facts(build_reading(story([{"user": "Hello"}])), ("x",)) == ()
