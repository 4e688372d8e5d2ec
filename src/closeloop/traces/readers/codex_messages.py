"""Messages of a rollout: told twice by most versions, and mixed with what Codex tells its model."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, MutableSequence
from typing import Any, Literal

from closeloop.records.trace import Message
from closeloop.traces.readers.codex_lane import CodexLane
from closeloop.traces.readers.codex_results import codex_content_text
from closeloop.traces.untrusted_json import as_list, as_mapping, try_decode_json

_TAG = re.compile(r"<([A-Za-z_][\w -]{0,40})>")
_MAX_RECENT_TEXTS = 16


class CodexMessages:
    """The messages of one lane, each kept once."""

    def __init__(self, lane: CodexLane) -> None:
        self._lane = lane
        self._items: deque[tuple[str, int]] = deque(maxlen=_MAX_RECENT_TEXTS)
        """What the user said by the model's input, until the event says it again."""
        self._events: deque[str] = deque(maxlen=_MAX_RECENT_TEXTS)
        self._said: deque[str] = deque(maxlen=_MAX_RECENT_TEXTS)
        self._pending: list[str] = []
        """What the agent said by an event, until the model's output says it again."""
        self._sort: str | None = None
        self.interrupted = False
        self.system: str | None = None

    def add_model_message(self, payload: Mapping[str, Any]) -> None:
        """A message as the model had it."""
        text = codex_content_text(payload.get("content"))
        role = payload.get("role")
        if role == "assistant":
            if not _remove_text(self._pending, text):
                self._said.append(text)
            if text:
                self._lane.add_agent_message(text)
        elif role == "user":
            self._add_user_message(text, payload)
        elif text:
            self._add_instructions(text, payload)

    def _add_instructions(self, text: str, payload: Mapping[str, Any]) -> None:
        if "model.base_instructions" in _content_kinds(payload) and self.system is None:
            self.system = self._lane.builder.truncate_text(text)
        elif text.startswith("<turn_aborted>"):
            self.interrupted = True
            self._lane.add_note(text, "turn aborted")
        else:
            self._lane.add_incoming_message(text, "system")

    def _add_user_message(self, text: str, payload: Mapping[str, Any]) -> None:
        if text in self._events:
            self._events.remove(text)
            return
        if not text:
            self._lane.add_note("[image]", "image")
            return
        kinds = _content_kinds(payload)
        tag = None if any(kind.startswith("user.") for kind in kinds) else _client_tag(text)
        if tag is None:
            self._items.append((text, self._add_request(text)))
        elif tag == "turn_aborted":
            self.interrupted = True
            self._lane.add_incoming_message(text, "user", "interrupt")
        elif tag == "subagent_notification":
            notification = as_mapping(
                try_decode_json(text.partition(">")[2].rpartition("<")[0].strip())
            )
            self._lane.handoffs.add_status(
                notification.get("agent_path"), notification.get("status")
            )
            self._lane.end_turn()
            self._lane.add_note(text, "a sub-agent's state")
        elif tag == "user_shell_command":
            self._lane.end_turn()
            self._lane.add_note(text, "the user's own command")
        else:
            self._items.append((text, self._lane.add_incoming_message(text, "system")))

    def _add_request(self, text: str) -> int:
        first, self._lane.requested = not self._lane.requested, True
        return self._lane.add_incoming_message(text, "user", "request" if first else None)

    def add_user_event(self, text: Any) -> None:
        """What the user said, told by an event."""
        if not isinstance(text, str) or not text:
            return
        same = (pair for pair in self._items if pair[0] == text)
        # Codex may put words before the user's; short ones are in many texts, so the last counts.
        longer = (pair for pair in reversed(self._items) if text in pair[0])
        pair = next(same, None) or next(longer, None)
        if pair is None:
            self._events.append(text)
            self._add_request(text)
            return
        self._items.remove(pair)
        event = self._lane.event_at(pair[1])
        if isinstance(event, Message) and event.role == "system":
            # It only looked like something that Codex had put there.
            first, self._lane.requested = not self._lane.requested, True
            self._lane.builder.finish(event, role="user", intent="request" if first else None)

    def add_agent_event(self, text: Any, sort: Literal["event", "item"] = "event") -> None:
        """What the agent said, told by an event; where two sorts of them do, by the first."""
        if not isinstance(text, str) or not text:
            return
        self._sort = self._sort or sort
        if sort == self._sort and not _remove_text(self._said, text):
            self._pending.append(text)

    def flush_pending(self) -> None:
        """Keep what only events told."""
        pending, self._pending = self._pending, []
        for text in pending:
            self._lane.add_agent_message(text)
        self._said.clear()
        self._sort = None


def _remove_text(texts: MutableSequence[str], text: str) -> bool:
    """Take out the same text, which may have lost the spaces around it; whether it was there."""
    plain = text.strip()
    for place, one in enumerate(texts):
        if one == text or one.strip() == plain:
            del texts[place]
            return True
    return False


def _content_kinds(payload: Mapping[str, Any]) -> list[str]:
    about = as_mapping(payload.get("internal_chat_message_metadata_passthrough"))
    return [kind for kind in as_list(about.get("content_item_kinds")) if isinstance(kind, str)]


def _client_tag(text: str) -> str | None:
    """What Codex calls a text that it put among the user's; None for the user's own."""
    if text.startswith("# AGENTS.md instructions"):
        return "AGENTS.md"
    match = _TAG.match(text)
    if match is None or not text.rstrip().endswith(f"</{match[1]}>"):
        return None
    return match[1]
