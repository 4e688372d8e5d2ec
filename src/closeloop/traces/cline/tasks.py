"""What the files of a Roo Code or Cline task say: the conversation, and the rows of its view."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from closeloop.model.trace import AnyEvent, Handoff, Message, Read, Thought, Turn
from closeloop.traces.builder import Builder
from closeloop.traces.calls import Origin
from closeloop.traces.cline import calls
from closeloop.traces.cline.operations import Operation, finished, operations
from closeloop.traces.cline.rows import Rows, usage_of_metrics
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import arguments, label, mapping, millis, raw, text

DEPTH = 20
_UNDONE = re.compile(r"Tool \[(\w{1,60})\] was not executed")
_INNER = re.compile(
    r"<(user_message|feedback|answer|user_input)(?: mode=\"\w{1,20}\")?>\n?(.*?)\n?</\1>", re.DOTALL
)
_THINKING = re.compile(r"<thinking>(.*?)(?:</thinking>|\Z)", re.DOTALL)
_STOPPED = "[Response interrupted by user]"


class Task(NamedTuple):
    """The files of one task, as far as they are there."""

    id: str
    messages: Sequence[Any]
    rows: Sequence[Any]
    children: Sequence[tuple[str, str]]
    """Brief and id of each task it sent off, in order."""


class _Pending(NamedTuple):
    name: str
    numbers: tuple[int, ...]
    call: str | None


class Telling:
    """One task, as a lane, while its conversation is told."""

    def __init__(
        self, builder: Builder, lane: str, tasks: Mapping[str, Task], skipped: dict[str, int]
    ) -> None:
        self.builder = builder
        self.lane = lane
        self.tasks = tasks
        self.skipped = skipped
        self.told: set[str] = set()
        self.depth = 0
        self.pending: list[_Pending] = []
        self.current: _Pending | None = None
        self.words: list[str] = []
        """A result without an id, while its pieces come."""
        self.asked = False
        self.model: str | None = None
        self.models: Counter[str] = Counter()
        self.mode: str | None = None
        self.directory: str | None = None
        self.claim: str | None = None
        self.summaries: set[str] = set()
        self.flavour: str | None = None
        self.tools: set[str] = set()
        self.times: list[datetime] = []
        self.children: list[tuple[str, str]] = []

    def clean(self, value: str) -> str:
        return shortened(value, self.skipped)

    def skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def note(self, words: str, about: str, at: datetime | None) -> None:
        self.builder.note(self.clean(words), about=self.clean(about), lane=self.lane, at=at)

    def tell(self, task: Task) -> None:
        self.told.add(task.id)
        self.children = list(task.children)
        rows = Rows(task.rows, self)
        rows.match(task.messages)
        if not task.messages:
            rows.all()
        for place, one in enumerate(task.messages):
            message = mapping(one)
            at = millis(message.get("ts"))
            if at is not None:
                self.times.append(at)
            if message.get("role") == "assistant" and message.get("isSummary") is True:
                rows.before_summary(place)
                self.shortening(calls.plain_text(message.get("content")), at)
            elif message.get("role") == "assistant":
                rows.before(place)
                self._assistant(message, at, rows.turn(place, self._usage(message)), rows, place)
            elif message.get("role") == "user":
                self._user(message, at)
            else:
                self.note(raw(message), "unknown: message", at)
        if task.messages:
            rows.rest()
        self.times += rows.times

    def _usage(self, message: Mapping[str, Any]) -> Turn:
        info, metrics = mapping(message.get("modelInfo")), mapping(message.get("metrics"))
        if info or metrics:
            self.flavour = self.flavour or "cline"
        self.model = label(info.get("modelId")) or label(info.get("id")) or self.model
        at = millis(message.get("ts"))
        return Turn(usage=usage_of_metrics(metrics), model=self.model, at=at)

    def _assistant(
        self, message: Mapping[str, Any], at: datetime | None, turn: int, rows: Rows, place: int
    ) -> None:
        self.forget()
        thoughts = text(message.get("reasoning_content"))
        blocks = calls.blocks_of(message.get("content"))
        if not any(mapping(block).get("type") in ("thinking", "reasoning") for block in blocks):
            thoughts = thoughts or rows.thoughts(place)
        if thoughts:
            self._add(Thought, turn, at, text=self.clean(thoughts))
        stopped = rows.was_cancelled(place)
        for block in blocks:
            told = mapping(block)
            match told.get("type"):
                case "text":
                    said = text(told.get("text")) or ""
                    stopped = stopped or said.endswith(_STOPPED)
                    self._said(said.removesuffix(_STOPPED), turn, at)
                case "tool_use":
                    given = arguments(told.get("input"), self.skipped)
                    self._call(label(told.get("name")) or "unnamed", given, turn, (at, told))
                case "thinking" | "reasoning":
                    words = text(told.get("thinking")) or text(told.get("text"))
                    if words:
                        self._add(Thought, turn, at, text=self.clean(words))
                case _:
                    self.note(raw(block), f"unknown: {told.get('type')}"[:100], at)
        rows.asides(place)
        if stopped:
            self.interrupted(at)

    def interrupted(self, at: datetime | None) -> None:
        """The user stopped the agent in the middle of an answer."""
        self.builder.hear("The request was cancelled.", lane=self.lane, at=at, intent="interrupt")

    def forget(self) -> None:
        """A call that got no answer keeps none; only sub-tasks answer after the next message."""
        self.pending = [one for one in self.pending if isinstance(self._event(one), Handoff)]

    def await_result(self, name: str, event: AnyEvent) -> None:
        """A result without an id may come for this."""
        self.pending.append(_Pending(name, (event.number,), None))

    def shortening(self, summary: str, at: datetime | None) -> None:
        """The summary that took the place of what was said: both files may hold it."""
        if summary[:1000] not in self.summaries:
            self.summaries.add(summary[:1000])
            self.note(summary, "compaction", at)

    def _add(self, kind: Any, turn: int | None, at: datetime | None, **more: Any) -> AnyEvent:
        return self.builder.add(
            kind(number=self.builder.number, lane=self.lane, turn=turn, at=at, **more)
        )

    def _said(self, words: str, turn: int, at: datetime | None) -> None:
        for segment in calls.segments(words):
            if isinstance(segment, calls.Call):
                given = arguments(segment.parameters, self.skipped)
                self._call(segment.name, given, turn, (at, {}))
                continue
            if self.model:
                self.models[self.model] += len(segment)
            for place, piece in enumerate(_THINKING.split(segment)):
                if piece.strip() and place % 2:
                    self._add(Thought, turn, at, text=self.clean(piece.strip()))
                elif piece.strip():
                    self._add(Message, turn, at, role="agent", text=self.clean(piece.strip()))

    def _call(self, name: str, given: Any, turn: int, place: tuple[Any, Mapping[str, Any]]) -> None:
        at, block = place
        self.tools.add(name)
        call = label(block.get("id"))
        origin = Origin(number=self.builder.number, lane=self.lane, turn=turn, at=at, call=call)
        made = calls.events(name, given, origin)
        for event in made:
            self.builder.add(event)
            if isinstance(event, Message) and event.intent == "claim":
                self.claim = event.text
        self.pending.append(_Pending(name, tuple(event.number for event in made), call))
        if isinstance(made[0], Handoff):
            self.handoff(made[0])

    def handoff(self, event: Handoff) -> None:
        """Tell the task that took the work, where its folder is there."""
        brief = event.brief.strip()
        same = [one for one in self.children if one[0].strip() == brief]
        found = next(iter(same or [one for one in self.children if not one[0]]), None)
        if found is None:
            return
        self.children.remove(found)
        task = self.tasks.get(found[1])
        if task is None or task.id in self.told or self.depth >= DEPTH:
            return
        lane = self.builder.lane(self.clean(task.id), self.lane)
        inner = Telling(self.builder, lane, self.tasks, self.skipped)
        inner.told, inner.depth = self.told, self.depth + 1
        self.builder.finish(event, child=lane)
        inner.tell(task)
        if inner.mode:
            self.builder.lane(lane, agent=inner.mode)
        self.models.update(inner.models)
        self.times += inner.times

    def _event(self, one: _Pending) -> AnyEvent:
        return self.builder.events[one.numbers[0] - 1]

    def _user(self, message: Mapping[str, Any], at: datetime | None) -> None:
        self.current, self.words = None, []
        for block in calls.blocks_of(message.get("content")):
            told = mapping(block)
            kind = told.get("type")
            if kind == "text":
                self._told(text(told.get("text")) or "", at)
            elif kind == "tool_result":
                self._result(told, at)
            elif kind == "image":
                self.note(label(mapping(told.get("source")).get("media_type")) or "", "image", at)
            elif kind == "file":
                self.note(label(told.get("path")) or "", "attachment", at)
            else:
                self.note(raw(block), f"unknown: {kind}"[:100], at)
        self._end(at)

    def _told(self, said: str, at: datetime | None) -> None:
        """One text of a message: the beginning or more of a result, or somebody's words."""
        if said.startswith("<environment_details>"):
            self._surroundings(said, at)
        elif calls.REMINDER.match(said):
            self.skip("a reminder of the client")
        elif said.startswith("Files attached by the user:\n"):
            self.note(said, "attachment", at)
        elif (header := calls.header_of(said)) is not None:
            self._end(at)
            self.current = self._take(header[0]) or _Pending(header[0], (), None)
            self.words = [header[1] if self.current.numbers else said]
        elif self.current is not None and not (_UNDONE.match(said) or _INNER.search(said[:2000])):
            self.words.append(said)
        else:
            if self.current is not None and "denied this operation" in said[:200]:
                self.words.append(said)
            self._spoken(said, at, self.current.name if self.current else None)

    def _end(self, at: datetime | None) -> None:
        """A result that came in pieces is whole."""
        if self.current is not None and not self.current.numbers:
            self.note("\n".join(self.words), "result without a call", at)
        elif self.current is not None:
            self._finish(self.current, "\n".join(self.words).strip("\n"), at, None)
        self.current = None

    def _take(self, name: str) -> _Pending | None:
        """The oldest call of this tool without a result; a result for it has no id."""
        for place, one in enumerate(self.pending):
            if one.name in (name, f"use_{name}"):
                return self.pending.pop(place)
        return None

    def _result(self, told: Mapping[str, Any], at: datetime | None) -> None:
        call = label(told.get("tool_use_id"))
        for place, one in enumerate(self.pending):
            if one.call == call:
                self.pending.pop(place)
                if done := operations(told.get("content")):
                    self._done(one, done)
                    return
                error = told.get("is_error")
                words = calls.plain_text(told.get("content"))
                self._finish(one, words, at, not error if isinstance(error, bool) else None)
                return
        self.note(raw(told), "result without a call", at)

    def _done(self, one: _Pending, done: Sequence[Operation]) -> None:
        """What came of each thing that one call asked for."""
        for number, each in zip(one.numbers, done, strict=False):
            event = self.builder.events[number - 1]
            told = Operation(each.ok, self.clean(each.text))
            self.builder.finish(event, **finished(event, told))

    def _finish(self, one: _Pending, output: str, at: datetime | None, stated: bool | None) -> None:
        said = calls.verdict(output)
        if stated is not None and said.ok is None:
            said = calls.Verdict(stated)
        output = self.clean(output)
        for number in one.numbers:
            event = self.builder.events[number - 1]
            if isinstance(event, Handoff):
                self._report(event, output)
                continue
            if len(one.numbers) > 1 and isinstance(event, Read):
                mine = calls.of_file(output, event.path)
                self.builder.finish(event, **calls.result(event, mine, calls.verdict(mine)))
            else:
                self.builder.finish(event, **calls.result(event, output, said))
        event = self._event(one)
        if isinstance(event, Message) and said.ok is False and event.intent == "claim":
            # The client did not let it stand.
            self.builder.finish(event, intent=None)
            self.claim = None
        elif isinstance(event, Message) and one.name == "ask_question":
            self._message(output, at, "answer")
        elif isinstance(event, Message):
            self._spoken(output, at, one.name)
        elif said.feedback:
            self._spoken(said.feedback, at, "denied" if said.denied else None)
        elif said.denied and not _INNER.search(output):
            self.builder.hear(output, lane=self.lane, at=at, intent="correction")

    def _report(self, event: Handoff, output: str) -> None:
        if event.report is not None or output.startswith("Successfully created new task"):
            return
        words = output.partition("\n\nResult:\n")[2] or output
        self.builder.finish(event, report=words, ok=calls.verdict(output).ok)

    def _surroundings(self, said: str, at: datetime | None) -> None:
        """What the client adds to each message: of it, only changes of model and mode are kept."""
        self.skip("environment details")
        around = calls.surroundings(said)
        self.model = around.model or self.model
        self.directory = self.directory or around.directory
        if around.mode:
            self.flavour = self.flavour or around.flavour
            if self.mode is not None and self.mode != around.mode:
                self.note(around.mode, "mode change", at)
            self.mode = around.mode

    def _spoken(self, said: str, at: datetime | None, context: str | None) -> None:
        """Words of the user, of a sub-task, or of the client in the user's name."""
        if self._of_client(said, at):
            return
        found = list(_INNER.finditer(said))
        if not found:
            if context in (None, "denied") and said.strip():
                self._message(said.strip("\n"), at, "correction" if context else None)
            return
        resumed = "New instructions for task continuation" in said[:200]
        handoff = self._open_handoff() if resumed else None
        if handoff is not None and self._is_report(handoff, found[0][2]):
            self._report(handoff, self.clean(found[0][2]))
            return
        for inner in found:
            answer = inner[1] == "answer" or context == "ask_followup_question"
            told = "denied this operation" in said[:200]
            refused = told or context in ("denied", "attempt_completion")
            self._message(inner[2], at, "answer" if answer else "correction" if refused else None)

    def _of_client(self, said: str, at: datetime | None) -> bool:
        """Whether these are no words of the user's; what they mean is told."""
        if said.startswith("[new_task completed] Result:") and (open_ := self._open_handoff()):
            self._report(open_, self.clean(said.partition("Result:")[2].strip()))
            return True
        if said.startswith("<task>"):
            words = said.removeprefix("<task>").partition("</task>")[0]
            self._message(words.strip("\n"), at, None)
            return True
        if (named := _UNDONE.match(said)) and (one := self._take(named[1])):
            self._finish(one, said, at, False)
            return True
        if said.startswith(("[ERROR]", "The tool execution failed")):
            self.note(said, "error", at)
            return True
        if said.startswith("[TASK RESUMPTION]"):
            self.note(said.partition("\n")[0], "resumed", at)
            return not _INNER.search(said)
        return False

    def _open_handoff(self) -> Handoff | None:
        for one in self.pending:
            event = self._event(one)
            if isinstance(event, Handoff) and event.report is None:
                return event
        return None

    def _is_report(self, event: Handoff, words: str) -> bool:
        """Whether these are the last words of the task that was sent off."""
        claims = [
            other.text
            for other in self.builder.events
            if isinstance(other, Message) and other.lane == event.child and other.intent == "claim"
        ]
        return any(claim.strip()[:200] == words.strip()[:200] for claim in claims[-1:])

    def _message(self, words: str, at: datetime | None, intent: Any) -> None:
        intent = intent or (None if self.asked else "request")
        self.asked = True
        self._add(Message, None, at, role="user", text=self.clean(words), intent=intent)
