"""Hosts that the sandbox refused are notes in the trace."""

from __future__ import annotations

from closeloop.attempts.attempt_execution import with_refusals
from closeloop.records.protocols import Work
from closeloop.records.trace import Lane, Message, Note, Trace

EMPTY = Work(exit="finished", trace=Trace(reader="x", reader_version=1))


def test_each_host_is_one_note_after_what_happened() -> None:
    said = Message(number=1, lane="main", role="agent", text="Done.")
    trace = Trace(reader="x", reader_version=1, lanes=(Lane(id="main"),), events=(said,))
    work = with_refusals(
        Work(exit="finished", trace=trace), {"b.example:443": 2, "a.example:80": 1}
    )
    assert work.trace.events[1:] == (
        Note(number=2, lane="main", about="refused host", text="a.example:80, 1 time"),
        Note(number=3, lane="main", about="refused host", text="b.example:443, 2 times"),
    )


def test_a_trace_without_lanes_gets_one_and_nothing_refused_changes_nothing() -> None:
    assert with_refusals(EMPTY, {}) is EMPTY
    assert with_refusals(EMPTY, {"a.example:443": 1}).trace.lanes == (Lane(id="root"),)
