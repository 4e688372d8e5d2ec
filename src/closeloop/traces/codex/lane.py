"""One thread of a rollout as a lane: its turns, its messages, its calls and what came back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.trace import AnyEvent, Command, Edit, Intent, Message, Thought, ToolUse, Turn
from closeloop.traces.builder import Builder
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.codex import patches
from closeloop.traces.codex.handoffs import Handoffs
from closeloop.traces.codex.usage import Meter
from closeloop.traces.results import is_action
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import items, label, mapping, moment, safe

_HANDED = ("spawn_agent", "send_input", "followup_task")


class Lane:
    """What is known while a thread is being read, record by record."""

    def __init__(
        self, builder: Builder, name: str, skipped: dict[str, int], lanes: Mapping[str, str]
    ) -> None:
        self.builder = builder
        self.name = name
        self.skipped = skipped
        self.handoffs = Handoffs(builder, lanes)
        self.time: Any = None
        """Of the record that is being read, as it is told."""
        self._parsed: tuple[Any, datetime | None] = (None, None)
        self.model: str | None = None
        self.mode: str | None = None
        self.models: Counter[str] = Counter()
        self.requested = False
        self.stopped: str | None = None
        """Why the last task did not."""
        self.last_words: int | None = None
        self.turn = 0
        self._turn = Turn()
        self._told = True
        self._listening = True
        self._meter = Meter()
        self._open: dict[str, deque[list[int]]] = {}
        self._done: dict[str, list[int]] = {}
        self._streams: dict[int, list[str]] = {}
        self._sessions: dict[str, int] = {}

    @property
    def at(self) -> datetime | None:
        """The time of the record that is being read."""
        if self._parsed[0] is not self.time:
            self._parsed = (self.time, moment(self.time))
        return self._parsed[1]

    # Turns

    def speaks(self) -> int:
        """The provider message that what comes now is part of: a new one once it was answered."""
        if self._listening:
            self._listening = False
            self._begin()
        return self.turn

    def hears(self) -> None:
        """Something came for the model: what it says next is another message."""
        self._listening = True

    def counts(self, total: Any, last: Any) -> None:
        """Tokens as the file tells them; a total that was told before adds nothing."""
        usage = self._meter.used(total, last)
        if usage is None:
            return
        if self._told:
            # A message of which nothing else is on record, such as a summary.
            self._begin()
        self._told = True
        self._turn = msgspec.structs.replace(self._turn, usage=usage)
        self.builder.turn(self.name, self._turn, str(self.turn))

    def forgets(self, total: Any, last: Any) -> None:
        """Tokens of a thread that this one was forked from: where its own totals start."""
        self._meter.used(total, last)

    def _begin(self) -> None:
        self.turn = self.builder.turns(self.name) + 1
        self._turn = Turn(usage=Usage(), model=self.model, at=self.at)
        self._told = False
        if self.model is not None:
            self.models[self.model] += 1
        self.builder.turn(self.name, self._turn, str(self.turn))

    # What is said

    def text(self, value: str) -> str:
        """A text as it is kept."""
        return shortened(value, self.skipped)

    def says(self, text: str) -> int:
        """The agent says something."""
        turn = self.speaks()
        self.last_words = self._message("agent", text, turn)
        return self.last_words

    def claims(self) -> None:
        """A task came to its end: what the agent said, and did nothing after, says so."""
        if self.last_words is None:
            return
        words, *later = self.builder.events[self.last_words - 1 :]
        if isinstance(words, Message) and not any(
            event.lane == self.name and is_action(event) for event in later
        ):
            self.builder.finish(words, intent="claim")

    def told(self, text: str, role: Literal["user", "system"], intent: Intent | None = None) -> int:
        """The agent is told something."""
        self.hears()
        return self._message(role, text, None, intent)

    def _message(
        self,
        role: Literal["user", "agent", "system"],
        text: str,
        turn: int | None,
        intent: Intent | None = None,
    ) -> int:
        message = Message(
            number=self.builder.number,
            lane=self.name,
            turn=turn,
            at=self.at,
            role=role,
            text=self.text(text),
            intent=intent,
        )
        return self.builder.add(message).number

    def thinks(self, text: str) -> None:
        turn = self.speaks()
        number = self.builder.number
        self.builder.add(
            Thought(number=number, lane=self.name, turn=turn, at=self.at, text=self.text(text))
        )

    def note(self, text: str, about: str) -> None:
        self.builder.note(self.text(text), about=about, lane=self.name, at=self.at)

    # Calls

    def calls(self, name: str, arguments: dict[str, Any] | None, call: Any) -> list[int]:
        """A tool is used: one event, or one for every file of a patch."""
        return self._added(name, arguments, call, self.speaks())

    def did(self, name: str, arguments: dict[str, Any] | None, call: Any) -> list[int]:
        """Something that a script of the agent did, told only when it was done."""
        return self._added(name, arguments, call, self.turn or None)

    def _added(
        self, name: str, arguments: dict[str, Any] | None, call: Any, turn: int | None
    ) -> list[int]:
        kept = None if arguments is None else safe(arguments, self.skipped)
        known = label(call)
        files = _files(name, kept)
        origin = Origin(
            number=self.builder.number, lane=self.name, turn=turn, at=self.at, call=known
        )
        event = None if files else _event(name, kept, origin)
        if isinstance(event, Command) and "apply_patch" in event.command[:500]:
            files = patches.in_command(event.command)
        if files or event is None:
            group = self._patched(files, origin)
        else:
            group = [self.builder.add(event).number]
        self._open.setdefault(known or "", deque()).append(group)
        if name in _HANDED and isinstance(target := (kept or {}).get("target"), str):
            self.handoffs.named(group[0], target)
        return group

    def changed(self, files: list[patches.FilePatch], call: Any) -> list[int]:
        """Files that a script of the agent changed."""
        origin = Origin(
            number=0, lane=self.name, turn=self.turn or None, at=self.at, call=label(call)
        )
        return self._patched(files, origin)

    def _patched(self, files: list[patches.FilePatch], origin: Origin) -> list[int]:
        return [
            self.builder.add(
                Edit(
                    number=self.builder.number,
                    lane=origin.lane,
                    turn=origin.turn,
                    at=origin.at,
                    call=origin.call,
                    path=self.text(file.path),
                    action=file.action,
                    after=None if file.after is None else self.text(file.after),
                    patch=None if file.patch is None else self.text(file.patch),
                )
            ).number
            for file in files
        ]

    def group(self, call: Any) -> list[int] | None:
        """The events of a call, whether its result has come or not."""
        known = label(call) or ""
        queue = self._open.get(known)
        return queue[0] if queue else self._done.get(known)

    def closed(self, call: Any) -> tuple[list[int] | None, bool]:
        """The events that a result is for, oldest first, and whether there was one before."""
        known = label(call) or ""
        queue = self._open.get(known)
        if queue:
            self._done[known] = queue.popleft()
            return self._done[known], False
        return self._done.get(known), True

    def event(self, number: int) -> AnyEvent:
        return self.builder.events[number - 1]

    # Processes that go on after their call came back

    def runs(self, number: int, session: str, output: str) -> None:
        """A process is still there: more of its output is to come."""
        self._sessions[session] = number
        self._streams.setdefault(number, []).append(output)

    def running(self, session: Any) -> int | None:
        """The command of a process, by the number that Codex gave it."""
        return self._sessions.get(str(session))

    def streams(self, number: int, output: str) -> None:
        self._streams.setdefault(number, []).append(output)

    def ends(self, number: int, output: str | None = None) -> None:
        """A process is gone; its output is what came, or what is told of it in the end."""
        parts = self._streams.pop(number, None)
        for session in [key for key, value in self._sessions.items() if value == number]:
            del self._sessions[session]
        whole = output or (None if parts is None else "".join(parts))
        if whole is not None:
            self.builder.finish(self.event(number), output=self.text(whole))

    def finish(self) -> None:
        """Nothing more comes."""
        for number in list(self._streams):
            self.ends(number)


def _files(name: str, arguments: dict[str, Any] | None) -> list[patches.FilePatch]:
    text = (arguments or {}).get("input") if name == "apply_patch" else None
    return patches.in_patch(text) if isinstance(text, str) else []


def _event(name: str, arguments: dict[str, Any] | None, origin: Origin) -> AnyEvent:
    given = arguments or {}
    if name.startswith("request_user_input"):
        name = "request_user_input"
        for one in items(given.get("questions")):
            if isinstance(one, dict) and "question" not in one:
                one["question"] = one.get("title")
    if name in _HANDED:
        if not isinstance(given.get("message"), str):
            given["message"] = _briefs(given)
        return event_of("delegate", {"brief": given["message"]}, origin)
    if name == "write_stdin":
        # Not `event_of`: to write to a process is no command of its own.
        return ToolUse(**_place(origin), name=name, arguments=given)
    return event_of(name, arguments, origin)


def _place(origin: Origin) -> dict[str, Any]:
    return {name: getattr(origin, name) for name in ("number", "lane", "turn", "at", "call")}


def _briefs(given: Mapping[str, Any]) -> str:
    words = [mapping(one).get("text") for one in items(given.get("items"))]
    brief = "\n".join(word for word in words if isinstance(word, str))
    return brief or str(given.get("task_name") or "")
