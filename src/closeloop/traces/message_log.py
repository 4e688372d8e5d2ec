"""A session whose file has one message a line, in the shape of a provider's own messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from closeloop.records.trace import AnyEvent, Command, Turn
from closeloop.text.client_markup import strip_client_markup
from closeloop.traces.message_parts import MessagePart, parse_message_parts
from closeloop.traces.request_history import RequestHistory
from closeloop.traces.session_builder import CUT_OFF, ROOT_LANE, SessionBuilder

PartChange = Callable[[MessagePart], MessagePart]
ExitCodeParser = Callable[[str], int | None]


class MessageLog:
    """Takes messages in order; calls are paired with their results by id, else in order."""

    def __init__(
        self,
        builder: SessionBuilder,
        *,
        change_call: PartChange = lambda part: part,
        parse_exit_code: ExitCodeParser = lambda text: None,
    ) -> None:
        """`change_call`: a call under the name and arguments that other agents use for it."""
        self.builder = builder
        self.model: str | None = None
        self._dialogue = RequestHistory(builder)
        self._change_call = change_call
        self._parse_exit_code = parse_exit_code
        self._ids_are_stated = False
        """Whether calls have ids: then a result belongs to the one that it names, or to none."""

    def add_message(
        self, message: Mapping[str, Any], at: datetime | None = None, *, ok: bool | None = None
    ) -> None:
        """A message of the user, of the model, or of tools; `ok` where it says how they went."""
        self.builder.record_time(at)
        turn = None
        if message.get("role") == "assistant":
            turn = self.builder.add_turn(ROOT_LANE, Turn(model=self.model, at=at))
        for part in parse_message_parts(dict(message), "user"):
            if part.kind == "call":
                self._ids_are_stated = self._ids_are_stated or part.id is not None
                self._dialogue.add_reply_part(self._change_call(part), ROOT_LANE, at, turn)
            elif part.kind == "result":
                self._add_result(part if ok is None else part._replace(ok=ok), at)
            elif part.role == "user":
                words = strip_client_markup(part.text) or part.text
                self._dialogue.add_part(part._replace(text=words), ROOT_LANE, at)
            else:
                self._dialogue.add_part(part, ROOT_LANE, at, turn)

    def _add_result(self, part: MessagePart, at: datetime | None) -> None:
        event = self._dialogue.find_open_call(ROOT_LANE, part)
        if event is None and not self._ids_are_stated:
            in_order = part._replace(id=None, name=None)
            event = self._dialogue.find_open_call(ROOT_LANE, in_order)
        if event is None:
            self._dialogue.add_part(part, ROOT_LANE, at)
            return
        finished_event: AnyEvent = self._dialogue.finish_call(event, part.text, part.ok)
        if isinstance(finished_event, Command) and finished_event.exit_code is None:
            code = self._parse_exit_code(part.text)
            if code is not None:
                self.builder.update_event(finished_event, exit_code=code, exit_from="parsed")

    def session_facts(self) -> dict[str, Any]:
        """How it ended, and what it claims: facts of the session."""
        cut_off = self.builder.ends_inside_call()
        return {
            "exit": "crashed" if cut_off else "finished",
            "cause": CUT_OFF if cut_off else None,
            "model": self.model,
            "summary": self.builder.mark_claim(),
        }
