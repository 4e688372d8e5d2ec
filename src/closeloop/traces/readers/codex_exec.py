"""What `codex exec --json` prints: items as they begin and end, without times or a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from closeloop.model.attempt import Exit, Usage
from closeloop.model.protocols import Source
from closeloop.model.record import digest
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Message, Thought, ToolUse, Turn
from closeloop.traces import single
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.codex.outputs import reply_in
from closeloop.traces.codex.usage import Meter
from closeloop.traces.shells import words as shell_words
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import exit_code, items, label, mapping, raw, safe

name = "codex-exec"
version = 2
parts, owner = single.parts, single.owner

Item = Mapping[str, Any]
_STARTS = ("thread.started", "session.created")
_TYPES = frozenset({
    *_STARTS, "turn.started", "turn.completed", "turn.failed",
    "item.started", "item.updated", "item.completed", "error",
})  # fmt: skip
_SHELL = re.compile(r"(?:/\S*/)?(?:ba|z|da)?sh -l?c ", re.ASCII)
_ESCAPED = re.compile(r'["\\]')
_LONG = 10_000
_DONE = {"completed": True, "failed": False, "declined": False}


def recognises(source: Source) -> bool:
    lines = source.lines
    if not lines:
        # A warning may come before the first line.
        return b'\n{"type":"thread.started","thread_id":' in source.head
    return any(_starts(line) for line in lines[:3]) or (
        len(lines) > 1 and all(_told(line) for line in lines[:4])
    )


def _starts(line: Any) -> bool:
    if not isinstance(line, dict) or line.get("type") not in _STARTS:
        return False
    return isinstance(line.get("thread_id") or line.get("session_id"), str)


def _told(line: Any) -> bool:
    """A later line: the file's beginning may be lost."""
    if not isinstance(line, dict) or not isinstance(line.get("type"), str):
        return False
    if line["type"] not in _TYPES or line["type"] == "error":
        return False
    item = mapping(line.get("item"))
    if line["type"].startswith("item."):
        return isinstance(item.get("id"), str) and "type" in item
    return line.keys() <= {"type", "usage", "error"}


def read(source: Source) -> Iterator[Session]:
    printed: _Printed | None = None
    for record in source.records():
        told = mapping(record)
        kind = told.get("type")
        if kind in _STARTS:
            thread = label(told.get("thread_id")) or label(told.get("session_id"))
            if printed is not None and printed.thread != thread:
                yield printed.session(source)
                printed = None
            printed = printed or _Printed(source.skipped, thread)
            continue
        printed = printed or _Printed(source.skipped, None)
        printed.take(kind, told, record)
    if printed is not None:
        yield printed.session(source)


class _Printed:
    """One thread as far as it is printed."""

    def __init__(self, skipped: dict[str, int], thread: str | None) -> None:
        self.thread = thread
        self.skipped = skipped
        self.builder = Builder(name, version)
        self._meter = Meter()
        self._turn = 0
        self._running = False
        self._failure: str | None = None
        self._last_words: int | None = None
        self._plan: Any = None
        self._agents: dict[str, int] = {}

    def take(self, kind: Any, told: Item, record: Any) -> None:
        item = mapping(told.get("item"))
        if isinstance(kind, str) and kind.startswith("item."):
            self._item(item, ended=kind == "item.completed")
        elif kind == "turn.started":
            self._running, self._failure = True, None
            self._begin()
        elif kind == "turn.completed":
            self._running = False
            self._claim()
            usage = self._meter.used(told.get("usage"), told.get("usage"))
            if usage is not None:
                self._begin_if_none()
                self.builder.turn(ROOT, Turn(usage=usage), str(self._turn))
        elif kind == "turn.failed":
            self._running = False
            self._failure = self._words(mapping(told.get("error")), told)
            self._note(self._failure, "turn failed")
        elif kind == "error":
            # Often only a connection that is tried again.
            self._note(self._words(told, told), "error")
        else:
            self._note(raw(record), f"unknown: {label(kind) or 'record'}")

    def _claim(self) -> None:
        """A turn came to its end: the agent's last words say that it is done."""
        words = None if self._last_words is None else self.builder.events[self._last_words - 1]
        if isinstance(words, Message):
            self.builder.finish(words, intent="claim")

    def _begin(self) -> None:
        self._turn = self.builder.turns() + 1
        self.builder.turn(ROOT, Turn(), str(self._turn))

    def _begin_if_none(self) -> None:
        if not self._turn:
            self._begin()

    def _item(self, item: Item, *, ended: bool) -> None:
        kind = item.get("type") or item.get("item_type")
        take = _ITEMS.get(kind) if isinstance(kind, str) else None
        self._begin_if_none()
        if take is None:
            if ended:
                self._note(raw(item), f"unknown: {label(kind) or 'item'}")
            return
        take(self, item, ended)

    # What is said

    def _said(self, item: Item, ended: bool) -> None:
        words = item.get("text")
        if ended and isinstance(words, str):
            place = self._place(None)
            message = Message(**place, role="agent", text=self._text(words))
            self._last_words = self.builder.add(message).number

    def _thought(self, item: Item, ended: bool) -> None:
        words = item.get("text")
        if ended and isinstance(words, str):
            self.builder.add(Thought(**self._place(None), text=self._text(words)))

    def _error(self, item: Item, ended: bool) -> None:
        if ended:
            self._note(self._words(item, item), "error")

    def _planned(self, item: Item, ended: bool) -> None:
        """A list that is told again with every step that is done, and once more at the end."""
        plan = item.get("items")
        if plan != self._plan:
            self._plan = plan
            given = safe({"items": plan}, self.skipped)
            self.builder.add(ToolUse(**self._place(None), name="todo_list", arguments=given))

    # What is done

    def _command(self, item: Item, ended: bool) -> None:
        given = item.get("command")
        line = _unwrapped(given) if isinstance(given, str) else raw(given)
        event = self._waiting(item) or self._added(
            Command(**self._place(item), command=self._text(line))
        )
        if ended:
            code, output = exit_code(item.get("exit_code")), item.get("aggregated_output")
            self.builder.finish(
                event,
                output=self._text(output) if isinstance(output, str) else None,
                exit_code=code,
                exit_from=None if code is None else "stated",
                stopped="rejected" if item.get("status") == "declined" else None,
            )

    def _changed(self, item: Item, ended: bool) -> None:
        if self._waiting(item) is None:
            for change in items(item.get("changes")):
                path, kind = mapping(change).get("path"), mapping(change).get("kind")
                if isinstance(path, str):
                    action = {"add": "create", "delete": "delete"}.get(str(kind), "change")
                    place = self._place(item)
                    self._added(Edit(**place, path=self._text(path), action=action))  # type: ignore[arg-type]
        while ended and (event := self._waiting(item)) is not None:
            self.builder.finish(event, ok=_DONE.get(str(item.get("status"))))

    def _tool(self, item: Item, ended: bool) -> None:
        tool, server = label(item.get("tool")) or "tool", label(item.get("server")) or ""
        event = self._waiting(item)
        if event is None:
            given = item.get("arguments")
            arguments = safe(given, self.skipped) if isinstance(given, dict) else None
            event = self._added(event_of(f"mcp__{server}__{tool}", arguments, self._origin(item)))
        if not ended:
            return
        reply = reply_in(item.get("result")) or reply_in(item.get("error"))
        if isinstance(event, Message):
            self.builder.finish(event)
            if reply:
                self.builder.hear(self._text(reply), lane=ROOT, at=None, intent="answer")
            return
        self._returned(event, reply, _DONE.get(str(item.get("status"))))

    def _returned(self, event: AnyEvent, reply: str | None, ok: bool | None) -> None:
        output = None if reply is None else self._text(reply)
        fields = event.__struct_fields__
        known: dict[str, Any] = {"ok": ok} if "ok" in fields else {}
        for field in ("output", "report", "text"):
            if field in fields:
                known[field] = output
                break
        if ok is False and "error" in fields:
            known["error"] = output
        self.builder.finish(event, **known)

    def _agent(self, item: Item, ended: bool) -> None:
        """Work for another agent, or word from it; its own thread is not printed."""
        event, tool = self._waiting(item), label(item.get("tool")) or "agent"
        if event is None and tool in ("spawn_agent", "send_input"):
            brief = item.get("prompt")
            text = self._text(brief) if isinstance(brief, str) else ""
            event = self._added(Handoff(**self._place(item), brief=text))
        elif event is None:
            given = {"receiver_thread_ids": item.get("receiver_thread_ids")}
            arguments = safe(given, self.skipped)
            event = self._added(ToolUse(**self._place(item), name=tool, arguments=arguments))
        if not ended:
            return
        ok = _DONE.get(str(item.get("status")))
        states = mapping(item.get("agents_states"))
        if isinstance(event, Handoff):
            self.builder.finish(event, ok=False if ok is False else None)
            for thread in items(item.get("receiver_thread_ids")):
                self._agents[str(thread)] = event.number
        else:
            self.builder.finish(event, ok=ok, output=self._text(raw(states)) if states else None)
        for thread, state in states.items():
            self._reported(thread, mapping(state))

    def _reported(self, thread: str, state: Item) -> None:
        words, status = state.get("message"), state.get("status")
        number = self._agents.get(thread)
        if number is not None and isinstance(words, str) and status in ("completed", "errored"):
            handoff = self.builder.events[number - 1]
            self.builder.finish(handoff, report=self._text(words), ok=status == "completed")

    def _searched(self, item: Item, ended: bool) -> None:
        event = self._waiting(item)
        if event is None:
            event = self._added(ToolUse(**self._place(item), name="web_search"))
        if ended:
            given = {key: item.get(key) for key in ("query", "action") if key in item}
            self.builder.finish(event, arguments=safe(given, self.skipped))

    # How it is kept

    def _origin(self, item: Item) -> Origin:
        return Origin(**self._place(item))

    def _place(self, item: Item | None) -> dict[str, Any]:
        call = None if item is None else label(item.get("id"))
        return {"number": self.builder.number, "lane": ROOT, "turn": self._turn, "call": call}

    def _waiting(self, item: Item) -> AnyEvent | None:
        return self.builder.waiting(ROOT, label(item.get("id")))

    def _added(self, event: AnyEvent) -> AnyEvent:
        return self.builder.add(event)

    def _text(self, value: str) -> str:
        return shortened(value, self.skipped)

    def _words(self, told: Item, record: Any) -> str:
        message = told.get("message")
        return self._text(message) if isinstance(message, str) else raw(record)

    def _note(self, text: str, about: str) -> None:
        self.builder.note(text, about=about)

    def session(self, source: Source) -> Session:
        ending, cause = self._exit()
        words = None if self._last_words is None else self.builder.events[self._last_words - 1]
        return Session(
            id=self.thread or digest(source.head),
            agent="codex",
            exit=ending,
            cause=cause,
            usage=self.builder.usage() if self.builder.turns() else Usage(),
            summary=words.text if isinstance(words, Message) else None,
            copy="printed",
            trace=self.builder.trace(source.skipped),
        )

    def _exit(self) -> tuple[Exit, str | None]:
        if self._failure is not None:
            return "crashed", self._failure
        if self._running:
            return "gave_up", "The recording ends within a turn."
        return "finished", None


def _unwrapped(command: str) -> str:
    """The line that the agent meant: Codex prints it with the shell around it, quoted."""
    found = _SHELL.match(command)
    if found is None:
        return command
    line = command[found.end() :]
    if line[:1] == line[-1:] == "'" and len(line) > 1 and "'" not in line[1:-1]:
        return line[1:-1]
    if (
        line[:1] == line[-1:] == '"'
        and len(line) > 1
        and not _ESCAPED.search(line, 1, len(line) - 1)
    ):
        return line[1:-1]
    if len(command) > _LONG:
        return command
    try:
        words = shell_words(command)
    except ValueError:
        return command
    return words[2] if len(words) == 3 else command


_ITEMS: dict[str, Callable[[_Printed, Item, bool], None]] = {
    "agent_message": _Printed._said,
    "assistant_message": _Printed._said,
    "reasoning": _Printed._thought,
    "command_execution": _Printed._command,
    "file_change": _Printed._changed,
    "mcp_tool_call": _Printed._tool,
    "collab_tool_call": _Printed._agent,
    "web_search": _Printed._searched,
    "todo_list": _Printed._planned,
    "error": _Printed._error,
}
