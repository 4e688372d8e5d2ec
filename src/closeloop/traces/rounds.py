"""Provider messages that files split over several records: one turn until a result comes."""

from __future__ import annotations

from closeloop.model.attempt import Usage
from closeloop.model.trace import Turn
from closeloop.traces.builder import Builder


class Rounds:
    """The open turn of every lane."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._open: dict[str, Turn] = {}

    def close(self, lane: str) -> None:
        """What the model says next is another message."""
        self._open.pop(lane, None)

    def turn(self, lane: str, turn: Turn) -> int:
        """The number of the turn that a record belongs to; its tokens are counted once."""
        known = self._open.get(lane)
        if known is None or (known.usage != Usage() and turn.usage != Usage()):
            self._open[lane] = turn
            return self._builder.turn(lane, turn, str(self._builder.turns(lane) + 1))
        number = self._builder.turns(lane)
        if turn.usage != Usage():
            self._open[lane] = turn
            self._builder.turn(lane, turn, str(number))
        return number
