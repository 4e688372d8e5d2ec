"""`closeloop show` of a trace that nobody reads from end to end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from closeloop.cli.show import (
    MAX_SHOWN_EVENTS,
    parse_event_range,
    render_story,
    render_trace_events,
)
from closeloop.metrics.attempt_measuring import load_story, project_rulebook
from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import Settings
from closeloop.records.trace import Lane, Message, Trace
from closeloop.store import make_store


def build_trace(count: int) -> Trace:
    events = tuple(
        Message(number=number, lane="root", role="agent", text=f"said {number}.")
        for number in range(1, count + 1)
    )
    return Trace(reader="x", reader_version=1, lanes=(Lane(id="root"),), events=events)


def show_lines(trace: Trace, wanted: str | None = None) -> list[str]:
    span = None if wanted is None else parse_event_range(wanted, trace)
    return [str(line) for line in render_trace_events(trace, full=False, span=span)]


def test_a_short_trace_is_shown_whole() -> None:
    lines = show_lines(build_trace(MAX_SHOWN_EVENTS))
    assert sum("said" in line for line in lines) == MAX_SHOWN_EVENTS
    assert not any("left out" in line for line in lines)


def test_of_a_long_trace_the_beginning_and_the_end_are_shown() -> None:
    lines = show_lines(build_trace(300_000))
    assert sum("said" in line for line in lines) == MAX_SHOWN_EVENTS
    assert "said 200." in "\n".join(lines)
    assert "said 201." not in "\n".join(lines)
    assert "said 299801." in "\n".join(lines)
    (gap,) = [line for line in lines if "omitted" in line]
    assert "299,600 events omitted: --events 201-600 shows a range" in gap


@pytest.mark.parametrize(
    ("wanted", "first", "last"),
    [("3-5", 3, 5), ("998-", 998, 1000), ("-2", 1, 2), ("17", 17, 17), ("990-5000", 990, 1000)],
)
def test_a_range_of_events_is_shown(wanted: str, first: int, last: int) -> None:
    said = [line.strip() for line in show_lines(build_trace(1000), wanted) if "said" in line]
    assert said == [f"said {number}." for number in range(first, last + 1)]


def test_all_shows_all() -> None:
    assert sum("said" in line for line in show_lines(build_trace(1000), "all")) == 1000


@pytest.mark.parametrize("wanted", ["", "-", "x", "5-3", "1001", "0x1", "1-2-3", "٣"])
def test_what_is_no_range_is_refused(wanted: str) -> None:
    with pytest.raises(BadInput, match=r"--events|No event is in"):
        parse_event_range(wanted, build_trace(1000))


def test_an_attempt_without_a_trace_has_no_events_to_choose() -> None:
    with pytest.raises(BadInput, match="has 0 events"):
        parse_event_range("1-2", None)


def test_a_long_trace_is_shown_without_measuring_it_and_a_short_one_is_measured_once() -> None:
    rulebook = project_rulebook(Settings())
    now = datetime(2026, 11, 19, tzinfo=UTC)
    attempt = Attempt(id="a1", origin="production", exit="finished", started=now, ended=now)
    with make_store(":memory:") as store:
        store.save_attempt(AttemptResult(attempt=attempt, trace=build_trace(10)))
        unmeasured = load_story(store, "a1", rulebook, max_events=9)
        shown = "\n".join(map(str, render_story(unmeasured, full=False)))
        assert "not measured: the trace has 10 events. `closeloop measure a1`" in shown
        assert "said 10." in shown
        measured = load_story(store, "a1", rulebook, max_events=10).measurement
        assert measured.rules
        # What was measured once is stored, so that a long trace has its findings too.
        assert load_story(store, "a1", rulebook, max_events=9).measurement == measured
