"""What every rule must keep to, as a check that its author can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from closeloop.process.trace_reading import build_reading
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.protocols import Detector
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Lane, Message, Read, Trace


def check_detector(detector: Detector, traces: Iterable[Trace] = ()) -> list[Finding]:
    """AssertionError where a rule does not keep to the contract; else all that it finds.

    It is shown the traces given and some odd ones: empty, one event, without exit codes, with a
    lane whose parent is missing.
    """
    rule = detector.rule
    assert rule.name == "-".join(rule.name.lower().split()), "The name is in-small-letters."
    assert rule.version >= 1, "The version counts from 1."
    assert all(value >= 0 for value in rule.thresholds.values()), "Thresholds are from 0 up."
    findings: list[Finding] = []
    for trace in chain(odd_traces(), traces):
        reading = build_reading(trace)
        first, second = (detector.detect(reading, rule.thresholds) for _ in range(2))
        assert first == second, "The same trace gives the same findings."
        if isinstance(first, Unmeasured):
            assert first.rule == rule.name, "What is not measured names its rule."
            assert first.reason, "What is not measured has its reason."
        else:
            _check_findings(detector, first, trace)
            findings += first
    return findings


def _check_findings(detector: Detector, findings: Sequence[Finding], trace: Trace) -> None:
    numbers = {event.number for event in trace.events}
    lanes = {lane.id for lane in trace.lanes} | {event.lane for event in trace.events} | {None}
    for finding in findings:
        rule = detector.rule
        assert (finding.rule, finding.version) == (rule.name, rule.version), "It names its rule."
        assert finding.events, "Every finding cites events."
        assert numbers.issuperset(finding.events), "It cites events that are there."
        assert finding.lane in lanes, "It names a lane that is there."
        assert 0 < finding.confidence <= 1, "Confidence lies between 0 and 1."
        assert finding.message.strip(), "It says in words what is wrong."


def odd_traces() -> list[Trace]:
    """Traces that lack what one would expect of them."""
    root = Lane(id="root")
    lost = Lane(id="lost", parent="gone")
    single_events: list[AnyEvent] = [
        Message(number=1, lane="root", role="user", text="Fix it"),
        Command(number=1, lane="root", command="pytest"),
        Edit(number=1, lane="root", path="a.py"),
        Read(number=1, lane="root", path="a.py", ok=False, error="no such file"),
        Handoff(number=1, lane="root", brief="", child="gone"),
    ]
    return [
        Trace(reader="odd", reader_version=1),
        Trace(reader="odd", reader_version=1, lanes=(root,)),
        *(
            Trace(reader="odd", reader_version=1, lanes=(root,), events=(event,))
            for event in single_events
        ),
        Trace(
            reader="odd",
            reader_version=1,
            lanes=(root, lost),
            events=(
                Edit(number=1, lane="lost", path="a.py", after="x = 1"),
                Command(number=2, lane="lost", command="pytest", output="1 failed"),
                Message(number=3, lane="lost", role="agent", text="Done.", intent="claim"),
            ),
            skipped={"bad line": 9},
        ),
    ]
