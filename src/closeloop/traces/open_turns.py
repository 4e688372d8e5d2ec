"""Provider messages that files split over several records: one turn until a result comes."""

from __future__ import annotations

from closeloop.records.attempt import Usage
from closeloop.records.trace import Turn
from closeloop.traces.trace_builder import TraceBuilder


class OpenTurns:
    """The open turn of every lane."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._open: dict[str, Turn] = {}

    def close_turn(self, lane: str) -> None:
        """What the model says next is another message."""
        self._open.pop(lane, None)

    def add_turn(self, lane: str, turn: Turn) -> int:
        """The number of the turn that a record belongs to; its tokens are counted once."""
        open_turn = self._open.get(lane)
        if open_turn is None or (open_turn.usage != Usage() and turn.usage != Usage()):
            self._open[lane] = turn
            return self._builder.add_turn(lane, turn, str(self._builder.count_turns(lane) + 1))
        number = self._builder.count_turns(lane)
        if turn.usage != Usage():
            self._open[lane] = turn
            self._builder.add_turn(lane, turn, str(number))
        return number
