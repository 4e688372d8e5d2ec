"""Messages of a rollout: told twice by most versions, and mixed with what Codex tells its model."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, MutableSequence
from typing import Any, Literal

from closeloop.model.trace import Message
from closeloop.traces.codex.lane import Lane
from closeloop.traces.codex.outputs import spoken
from closeloop.traces.untrusted import decoded, items, mapping

_TAG = re.compile(r"<([A-Za-z_][\w -]{0,40})>")
_RECENT = 16


class Talk:
    """The messages of one lane, each kept once."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._items: deque[tuple[str, int]] = deque(maxlen=_RECENT)
        """What the user said by the model's input, until the event says it again."""
        self._events: deque[str] = deque(maxlen=_RECENT)
        self._said: deque[str] = deque(maxlen=_RECENT)
        self._pending: list[str] = []
        """What the agent said by an event, until the model's output says it again."""
        self._sort: str | None = None
        self.interrupted = False
        self.system: str | None = None

    def item(self, payload: Mapping[str, Any]) -> None:
        """A message as the model had it."""
        text = spoken(payload.get("content"))
        role = payload.get("role")
        if role == "assistant":
            if not _drop(self._pending, text):
                self._said.append(text)
            if text:
                self._lane.says(text)
        elif role == "user":
            self._user(text, payload)
        elif text:
            self._instructions(text, payload)

    def _instructions(self, text: str, payload: Mapping[str, Any]) -> None:
        if "model.base_instructions" in _kinds(payload) and self.system is None:
            self.system = self._lane.text(text)
        elif text.startswith("<turn_aborted>"):
            self.interrupted = True
            self._lane.note(text, "turn aborted")
        else:
            self._lane.told(text, "system")

    def _user(self, text: str, payload: Mapping[str, Any]) -> None:
        if text in self._events:
            self._events.remove(text)
            return
        if not text:
            self._lane.note("[image]", "image")
            return
        kinds = _kinds(payload)
        tag = None if any(kind.startswith("user.") for kind in kinds) else _tag(text)
        if tag is None:
            self._items.append((text, self._request(text)))
        elif tag == "turn_aborted":
            self.interrupted = True
            self._lane.told(text, "user", "interrupt")
        elif tag == "subagent_notification":
            told = mapping(decoded(text.partition(">")[2].rpartition("<")[0].strip()))
            self._lane.handoffs.returned(told.get("agent_path"), told.get("status"))
            self._lane.hears()
            self._lane.note(text, "a sub-agent's state")
        elif tag == "user_shell_command":
            self._lane.hears()
            self._lane.note(text, "the user's own command")
        else:
            self._items.append((text, self._lane.told(text, "system")))

    def _request(self, text: str) -> int:
        first, self._lane.requested = not self._lane.requested, True
        return self._lane.told(text, "user", "request" if first else None)

    def heard(self, text: Any) -> None:
        """What the user said, told by an event."""
        if not isinstance(text, str) or not text:
            return
        same = (pair for pair in self._items if pair[0] == text)
        # Codex may put words before the user's; short ones are in many texts, so the last counts.
        longer = (pair for pair in reversed(self._items) if text in pair[0])
        pair = next(same, None) or next(longer, None)
        if pair is None:
            self._events.append(text)
            self._request(text)
            return
        self._items.remove(pair)
        event = self._lane.event(pair[1])
        if isinstance(event, Message) and event.role == "system":
            # It only looked like something that Codex had put there.
            first, self._lane.requested = not self._lane.requested, True
            self._lane.builder.finish(event, role="user", intent="request" if first else None)

    def said(self, text: Any, sort: Literal["event", "item"] = "event") -> None:
        """What the agent said, told by an event; where two sorts of them do, by the first."""
        if not isinstance(text, str) or not text:
            return
        self._sort = self._sort or sort
        if sort == self._sort and not _drop(self._said, text):
            self._pending.append(text)

    def settle(self) -> None:
        """Keep what only events told."""
        pending, self._pending = self._pending, []
        for text in pending:
            self._lane.says(text)
        self._said.clear()
        self._sort = None


def _drop(texts: MutableSequence[str], text: str) -> bool:
    """Take out the same text, which may have lost the spaces around it; whether it was there."""
    plain = text.strip()
    for place, one in enumerate(texts):
        if one == text or one.strip() == plain:
            del texts[place]
            return True
    return False


def _kinds(payload: Mapping[str, Any]) -> list[str]:
    about = mapping(payload.get("internal_chat_message_metadata_passthrough"))
    return [kind for kind in items(about.get("content_item_kinds")) if isinstance(kind, str)]


def _tag(text: str) -> str | None:
    """What Codex calls a text that it put among the user's; None for the user's own."""
    if text.startswith("# AGENTS.md instructions"):
        return "AGENTS.md"
    found = _TAG.match(text)
    if found is None or not text.rstrip().endswith(f"</{found[1]}>"):
        return None
    return found[1]
