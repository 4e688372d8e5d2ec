"""Every rule, on any trace: it never raises, says the same twice, cites what is there, scales."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, cycle, islice
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from story import labelled, story

from closeloop import plugins
from closeloop.contracts import check_detector
from closeloop.process.trace_reading import build_reading
from closeloop.records.change import TraceReading
from closeloop.records.finding import Rule, make_finding
from closeloop.records.protocols import Detector
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Lane, Message, Trace
from example_counts import scale_examples
from record_strategies import records

DETECTORS = plugins.load_plugins("detectors")
CASES = labelled()
EVENTS = [event for case in CASES for event in case.trace.events]
OTHER = Rule(name="other", version=2, about="It is another.", severity="info")
LANES = (Lane(id="root"), Lane(id="child", parent="root"), Lane(id="lost", parent="gone"))


def renumbered(events: list[AnyEvent], lanes: list[str] | None = None) -> Trace:
    """Those events as one trace, in this order."""
    placed = [
        msgspec.structs.replace(event, number=number, **({"lane": lane} if lane else {}))
        for number, (event, lane) in enumerate(zip(events, cycle(lanes or [""])), 1)
    ]
    return Trace(reader="mixed", reader_version=1, lanes=LANES, events=tuple(placed))


def damaged(events: list[AnyEvent], chance: Random) -> Trace:
    """Events of real stories: some twice, some gone, some elsewhere, some without their results."""
    left = [event for event in events for _ in range(chance.choice((0, 1, 1, 1, 1, 1, 2)))]
    if chance.random() < 0.2:
        chance.shuffle(left)
    lanes = chance.choice((None, None, ["root"] * 4 + ["child"], ["child", "lost", "other"]))
    return renumbered([_stripped(event, chance) for event in left], lanes)


def _stripped(event: AnyEvent, chance: Random) -> AnyEvent:
    empty = [name for name in LOSABLE if hasattr(event, name) and chance.random() < 0.1]
    return msgspec.structs.replace(event, **dict.fromkeys(empty))


LOSABLE = (
    "exit_code", "output", "ok", "error", "before", "after", "patch", "child", "report",
    "arguments", "intent",
)  # fmt: skip
stories = st.lists(st.sampled_from([case.trace.events for case in CASES]), min_size=1, max_size=3)
torn = st.builds(damaged, stories.map(lambda told: list(chain(*told))), st.randoms())


def mixed(size: int) -> Trace:
    return renumbered(list(islice(cycle(EVENTS), size)))


def handed_on(size: int) -> Trace:
    """A lane for every four events."""
    events: list[AnyEvent] = []
    for number in range(1, size, 4):
        lane = {"lane": f"child{number}"}
        brief = f"Fix f{number}.py, never touch g{number}.py, keep 50 rows."
        report = f"Changed f{number}.py; test_{number} fails."
        failing = f"FAILED t.py::test_{number} - TypeError: x{number}\n1 failed"
        events += [
            Handoff(number=number, lane="root", brief=brief, child=lane["lane"], report=report),
            Edit(number=number + 1, **lane, path=f"f{number}.py", after=f"x = {number}", ok=True),
            Command(number=number + 2, **lane, command="pytest -q", exit_code=1, output=failing),
            Message(number=number + 3, **lane, role="agent", text="Done.", intent="claim"),
        ]
    names = dict.fromkeys(event.lane for event in events)
    lanes = (Lane(id=name, parent=None if name == "root" else "root") for name in names)
    return Trace(reader="long", reader_version=1, lanes=tuple(lanes), events=tuple(events))


def claimed(size: int) -> Trace:
    turns = [
        {"edit": {"path": "a.py", "before": "x", "after": "y = 1"}},
        {"claim": "Done, all tests pass."},
        {"user": "Go on."},
    ]
    return story(list(islice(cycle(turns), size)))


def corrected(size: int) -> Trace:
    said = "No, I said use logging in module{}.py, don't print {}"
    return story(
        [{"user": said.format(at % 977, at), "intent": "correction"} for at in range(size)]
    )


def repaired(size: int) -> Trace:
    """Edits of one file that never help, each followed by a failing check."""
    events = []
    for at in range(size // 2):
        lines = f"if value_{at % 300} is None:\n    return default_{at % 300}"
        failing = f"FAILED t.py::test_{at % 50} - TypeError: bad {at}\n1 failed"
        events += [
            {"edit": {"path": "f.py", "before": f"a{at}", "after": lines}},
            {"run": {"command": "pytest -q", "exit": 1, "output": failing}},
        ]
    return story(events)


class BadDetector:
    """A rule that returns what it is told to."""

    rule = Rule(name="bad", version=1, about="It is bad.", severity="info")

    def __init__(self, findings: Callable[[Rule], Any]) -> None:
        self.findings = findings

    def detect(self, reading: TraceReading, limits: Mapping[str, float]) -> Any:
        return self.findings(self.rule)


@pytest.mark.parametrize(
    ("findings", "fault"),
    [
        (lambda rule: (one for one in ()), "returns a list .* not generator"),
        (lambda rule: [make_finding(rule, "It is so.", [99])], r"not in the trace: \[99\]"),
        (lambda rule: [make_finding(rule, "It is so.", [])], "cites no events: It is so."),
        (lambda rule: [make_finding(OTHER, "It is so.", [1])], "A finding of bad 1 .* other 2"),
    ],
)
def test_the_contract_says_what_is_wrong_with_a_rule(
    findings: Callable[[Rule], Any], fault: str
) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_detector(BadDetector(findings))


def test_the_contract_refuses_the_name_of_another_rule() -> None:
    detector = BadDetector(lambda rule: [])
    detector.rule = msgspec.structs.replace(OTHER, name="spiral")
    with pytest.raises(AssertionError, match="Another installed rule is named 'spiral'"):
        check_detector(detector)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.rule.name)
def test_a_rule_keeps_to_the_contract_on_all_labelled_traces(detector: Detector) -> None:
    check_detector(detector, [case.trace for case in CASES])


@settings(max_examples=scale_examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(trace=records(Trace))
def test_no_rule_stumbles_over_a_trace_of_arbitrary_content(trace: Trace) -> None:
    for detector in DETECTORS:
        check_detector(detector, [trace])


@settings(max_examples=scale_examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(trace=torn)
def test_no_rule_stumbles_over_stories_that_are_torn_and_mixed(trace: Trace) -> None:
    for detector in DETECTORS:
        check_detector(detector, [trace])


LONG = {mixed: 20_000, handed_on: 16_000, claimed: 40_000, corrected: 8_000, repaired: 16_000}
"""So many events that bounded windows and memories are full."""
ROUNDS = 6
"""A busy machine slows some of them, but what grows too fast does so in each."""


@pytest.mark.parametrize("made", LONG, ids=[made.__name__ for made in LONG])
def test_twice_the_events_cost_little_more_than_twice_the_time(
    made: Callable[[int], Trace],
) -> None:
    short, long = made(LONG[made]), made(2 * LONG[made])
    quick: dict[str, float] = {}
    slow: dict[str, float] = {}
    for _ in range(ROUNDS):
        quick, slow = _quicker(quick, _seconds(short)), _quicker(slow, _seconds(long))
        # What takes next to no time is measured too roughly to compare.
        slower = {name for name in slow if slow[name] > 3.3 * max(quick[name], 0.03)}
        if not slower and sum(slow.values()) < 2.8 * sum(quick.values()):
            return
    pytest.fail(f"twice the events: {quick} became {slow}")


def _quicker(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: min(one.get(name, spent), spent) for name, spent in other.items()}


def _seconds(trace: Trace) -> dict[str, float]:
    """Of a reading, and of every rule on one that nobody has asked anything yet."""
    told = {"reading": _spent(lambda: build_reading(trace))}
    reading = build_reading(trace)
    for detector in DETECTORS:
        work = partial(detector.detect, reading, detector.rule.thresholds)
        told[detector.rule.name] = _spent(work)
    return told


def _spent(work: Callable[[], object]) -> float:
    """The collector looks at all that lives, whoever made it: it is kept out."""
    gc.disable()
    begun = time.process_time()
    work()
    spent = time.process_time() - begun
    gc.enable()
    return spent
