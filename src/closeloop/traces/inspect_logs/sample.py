"""One sample of an Inspect log: its events as a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from closeloop.model.attempt import Exit, Usage
from closeloop.model.record import Record
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Command, Intent, Message, Turn
from closeloop.traces.builder import ROOT, Builder, since
from closeloop.traces.dialogue import Dialogue, handed
from closeloop.traces.inspect_logs.values import last_solver, usage_of, words
from closeloop.traces.otel.said import Role, Said
from closeloop.traces.results import mark_claim
from closeloop.traces.texts import NOTE_CHARACTERS, shortened
from closeloop.traces.untrusted import amount, count, exit_code, items, mapping, moment
from closeloop.traces.values import text, written

SCORERS = "an event of scoring or set-up"
ATTACHED = "attachment://"
_OUTSIDE = frozenset({"scorers", "scorer", "init"})
_STRUCTURE = frozenset({"sample_init", "state", "store", "span_end", "score", "score_edit"})
_ROLES: dict[str, Role] = {"user": "user", "assistant": "agent", "system": "system"}
_LIMITS: dict[str, Exit] = {"time": "out_of_time", "working": "out_of_time"}


class Place(Record):
    """A span of the log: where what happens in it belongs."""

    lane: str = ROOT
    outside: bool = False
    """Whether it is no part of the agent's work."""
    agent: bool = False
    """Whether an agent is at work in it."""
    number: int | None = None
    """The event of the call that it carries out."""
    handoff: str | None = None
    """The span around it, where it only wraps a call that hands over."""


class Sample:
    """A sample while it is read."""

    def __init__(
        self, sample: Mapping[str, Any], builder: Builder, skipped: dict[str, int]
    ) -> None:
        self.sample = sample
        self.builder = builder
        self.skipped = skipped
        self.before = dict(skipped)
        self.dialogue = Dialogue(builder, skipped)
        self.places: dict[str, Place] = {}
        self.steps: list[bool] = []
        self.seen: set[str] = set()
        self.renamed = False
        self.pooled: set[tuple[str, int]] = set()
        self.models: Counter[str] = Counter()
        self.agent: str | None = None
        self.tool_span: dict[str, str] = {}
        """Which span was opened last in another for a call whose event comes next."""
        given = sample.get("attachments")
        self.attached = given if isinstance(given, dict) else dict(enumerate(items(given)))
        data = mapping(sample.get("events_data"))
        self.pool = items(data.get("messages") or sample.get("message_pool"))

    def session(self, header: Mapping[str, Any]) -> Session:
        events = items(self.sample.get("events"))
        for event in events:
            if isinstance(event, dict):
                self._event(event)
        if not any(mapping(event).get("event") == "model" for event in events):
            self._messages()
        self._scores()
        told = mapping(header.get("eval"))
        ident, epoch = written(self.sample.get("id")), written(self.sample.get("epoch"))
        run = text(told.get("eval_id")) or text(told.get("run_id")) or "inspect"
        finish, cause = self._exit()
        times = [time for event in events if (time := moment(mapping(event).get("timestamp")))]
        summary = mark_claim(self.builder)
        return Session(
            id=text(self.sample.get("uuid")) or f"{run}/{ident}/{epoch}",
            agent=self.agent or text(told.get("solver")) or last_solver(header) or "inspect",
            agent_version=text(mapping(told.get("packages")).get("inspect_ai")),
            trace=self.builder.trace(since(self.before, self.skipped)),
            model=max(self.models, key=lambda model: self.models[model], default=None)
            or text(told.get("model")),
            system=self.dialogue.system,
            started=moment(self.sample.get("started_at")) or min(times, default=None),
            ended=moment(self.sample.get("completed_at")) or max(times, default=None),
            exit=finish,
            cause=cause,
            usage=self.builder.usage(),
            summary=summary,
            links={"task": text(told.get("task")) or "unknown", "sample": ident, "epoch": epoch},
        )

    def _exit(self) -> tuple[Exit, str | None]:
        limit, error = mapping(self.sample.get("limit")), mapping(self.sample.get("error"))
        if error:
            return "crashed", self._text(error.get("message"))
        if limit:
            kind = written(limit.get("type"))
            return _LIMITS.get(kind, "out_of_budget"), f"{kind} limit of {limit.get('limit')}"
        return "finished", None

    def _place(self, event: Mapping[str, Any]) -> Place:
        place = self.places.get(written(event.get("span_id")), Place())
        return Place(outside=True) if any(self.steps) else place

    def _event(self, event: Mapping[str, Any]) -> None:
        kind = written(event.get("event"))
        if kind == "span_begin":
            return self._begin(event)
        if kind == "step":
            return self._step(event)
        if kind in _STRUCTURE or event.get("pending") is True:
            return None
        place = self._place(event)
        if place.outside:
            self.skipped[SCORERS] = self.skipped.get(SCORERS, 0) + 1
            return None
        at = moment(event.get("timestamp"))
        match kind:
            case "model":
                self._model(event, place.lane, at)
            case "tool":
                self._tool(event, place.lane, at)
            case "sandbox":
                self._sandbox(event, place, at)
            case "subtask":
                self._inner(event)
            case _:
                self._aside(event, place, at)
        return None

    def _begin(self, event: Mapping[str, Any]) -> None:
        around, own = written(event.get("parent_id")), written(event.get("id"))
        above, kind = self.places.get(around, Place()), written(event.get("type"))
        place = msgspec.structs.replace(above, handoff=around if kind == "handoff" else None)
        if above.outside or kind in _OUTSIDE:
            place = msgspec.structs.replace(place, outside=True)
        elif kind == "agent":
            place = Place(lane=self._agent(event, own, above), agent=True)
        elif kind == "tool":
            self.tool_span[above.handoff or around] = own
        self.places[own] = place

    def _agent(self, event: Mapping[str, Any], own: str, above: Place) -> str:
        """The first agent has the root lane; one inside it works in a lane of its own."""
        name = text(event.get("name"))
        if self.agent is None and above.number is None:
            self.agent = name or "agent"
            return self.builder.lane(agent=name)
        if own in self.places:
            return self.builder.lane(self.places[own].lane, agent=name)
        lane = self.builder.lane(own, above.lane, name)
        if above.number is not None:
            called = self.builder.events[above.number - 1]
            self.dialogue.replace(handed(called, lane))
        return lane

    def _step(self, event: Mapping[str, Any]) -> None:
        """How old logs mark what spans mark now."""
        if event.get("action") == "begin":
            kind = written(event.get("type"))
            self.steps.append(kind in _OUTSIDE or event.get("name") == "init")
        elif self.steps:
            self.steps.pop()

    def _model(self, event: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        self._hear(list(self._input(event)), lane, at)
        output = mapping(event.get("output"))
        model = text(output.get("model")) or text(event.get("model"))
        usage = Usage() if event.get("cache") == "read" else usage_of(mapping(output.get("usage")))
        seconds = amount(event.get("working_time")) or amount(output.get("time"))
        turn = self.builder.turn(lane, Turn(usage=usage, model=model, at=at, seconds=seconds))
        if model:
            self.models[model] += 1
        choices = items(output.get("choices"))
        message = mapping(mapping(choices[0]).get("message")) if choices else {}
        self.seen.add(written(message.get("id")))
        ended = moment(event.get("completed")) or at
        for part in self._parts(message):
            self.dialogue.speak(part, lane, ended, turn)
        if error := text(event.get("error")):
            self.builder.note(self._text(error), about="model error", lane=lane, at=at)

    def _input(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Messages not met before: kept in the event, or in a pool that events refer to."""
        for message in items(event.get("input")):
            if isinstance(message, dict):
                yield message
        for pair in items(event.get("input_refs")):
            first, last = (count(one) for one in (*items(pair), None, None)[:2])
            for place in range(first or 0, min(last or 0, len(self.pool))):
                if ("pool", place) not in self.pooled:
                    self.pooled.add(("pool", place))
                    yield mapping(self.pool[place])

    def _hear(self, messages: list[Mapping[str, Any]], lane: str, at: datetime | None) -> None:
        new = [one for one in messages if text(one.get("id")) not in self.seen]
        self.renamed = self.renamed or any(map(self._is_renamed, new))
        if self.renamed or any(text(one.get("id")) is None for one in new):
            self.dialogue.hear((part for one in messages for part in self._parts(one)), lane, at)
            return
        for message in new:
            own = text(message.get("id")) or ""
            if own not in self.seen:
                self.seen.add(own)
                for part in self._parts(message):
                    self.dialogue.knows(part)
                    self.dialogue.add(part, lane, at)

    def _is_renamed(self, message: Mapping[str, Any]) -> bool:
        """Whether it is known under another id: some writers give a new one each time."""
        if not message.get("tool_calls") or text(message.get("id")) is None:
            return False
        calls = (part for part in self._parts(message) if part.kind == "call" and part.id)
        return any(map(self.dialogue.heard, calls))

    def _messages(self) -> None:
        """A log without events still has its messages."""
        for message in items(self.sample.get("messages")):
            turn = None
            if mapping(message).get("role") == "assistant":
                turn = self.builder.turn(ROOT, Turn(model=text(message.get("model"))))
            for part in self._parts(mapping(message)):
                self.dialogue.speak(part, ROOT, None, turn)

    def _parts(self, message: Mapping[str, Any]) -> Iterator[Said]:
        content, role = self._expand(message.get("content")), message.get("role")
        if role == "tool":
            error = mapping(self._expand(message.get("error")))
            said = words(content) or written(error.get("message") or "")
            called, ok = text(message.get("tool_call_id")), False if error else None
            yield Said("tool", "result", said, text(message.get("function")), called, ok=ok)
            return
        speaker = _ROLES.get(written(role), "user")
        for part in content if isinstance(content, list) else [content]:
            given = mapping(part)
            if given.get("type") == "reasoning":
                thought = given.get("reasoning") or given.get("summary")
                yield Said("agent", "thought", written(thought or ""))
            elif given.get("type") == "tool_use":
                name = text(given.get("name"))
                yield Said("agent", "call", "", name, text(given.get("id")), given.get("arguments"))
            else:
                yield Said(speaker, "text", words(part))
        for call in items(message.get("tool_calls")):
            given = mapping(call)
            arguments = self._expand(given.get("arguments"))
            name, called = text(given.get("function")), text(given.get("id"))
            yield Said("agent", "call", "", name or "unknown", called, arguments)

    def _tool(self, event: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        name = text(event.get("function")) or "unknown"
        arguments = self._expand(event.get("arguments"))
        call = Said("agent", "call", "", name, text(event.get("id")), arguments)
        found = self.dialogue.called(lane, call)
        if found is None:
            self.dialogue.knows(call)
            found = self.dialogue.add(call, lane, at, self.builder.turns(lane) or None)
        assert found is not None
        self.seen.add(written(event.get("message_id")))
        self._within(event, found)
        done = self._finish(event, found)
        seconds = amount(event.get("working_time"))
        done = msgspec.structs.replace(done, at=at or done.at, seconds=seconds)
        child = text(event.get("agent_span_id"))
        if child and child not in self.places:
            # The agent's own span comes later: the lane is opened for it here.
            self.places[child] = Place(lane=self.builder.lane(child, lane), agent=True)
            done = handed(done, child)
        self.dialogue.replace(done)
        self._inner(event)

    def _within(self, event: Mapping[str, Any], called: AnyEvent) -> None:
        """What happens in the span that was opened for the call belongs to the call."""
        span = self.tool_span.pop(written(event.get("span_id")), None)
        if span in self.places:
            place = self.places[span]
            self.places[span] = msgspec.structs.replace(place, number=called.number)

    def _finish(self, event: Mapping[str, Any], called: AnyEvent) -> AnyEvent:
        error = mapping(self._expand(event.get("error")))
        if event.get("completed") is None and not error and not event.get("result"):
            return called
        output = words(self._expand(event.get("result")))
        if error:
            output = "\n".join(one for one in (output, written(error.get("message") or "")) if one)
        failed = bool(error) or event.get("failed") is True
        done = self.dialogue.finish(called, output, not failed)
        if isinstance(done, Command) and error.get("type") == "timeout":
            done = msgspec.structs.replace(done, stopped="out of time")
        return done

    def _sandbox(self, event: Mapping[str, Any], place: Place, at: datetime | None) -> None:
        """What really ran: it tells the exit code of a call, or is a command of the agent's own."""
        code = exit_code(event.get("result"))
        if event.get("action") != "exec":
            return
        if place.number is None and not place.agent:
            self.skipped[SCORERS] = self.skipped.get(SCORERS, 0) + 1
            return
        if place.number is not None:
            called = self.builder.events[place.number - 1]
            if isinstance(called, Command) and called.exit_from != "stated" and code is not None:
                told: dict[str, Any] = {"exit_code": code, "exit_from": "stated"}
                self.dialogue.replace(msgspec.structs.replace(called, **told))
            return
        self.builder.add(
            Command(
                number=self.builder.number,
                lane=place.lane,
                at=at,
                command=self._text(event.get("cmd")),
                output=self._text(event.get("output")) if event.get("output") else None,
                exit_code=code,
                exit_from=None if code is None else "stated",
            )
        )

    def _inner(self, event: Mapping[str, Any]) -> None:
        """Old logs keep a call's events inside the call."""
        for inner in items(event.get("events")):
            if isinstance(inner, dict):
                self._event({**inner, "span_id": event.get("span_id")})

    def _aside(self, event: Mapping[str, Any], place: Place, at: datetime | None) -> None:
        lane, kind = place.lane, written(event.get("event"))
        if kind == "input" and place.number is None:
            self._asked(event, lane, at)
        elif kind == "approval" and event.get("decision") in ("reject", "terminate"):
            by_user = event.get("approver") == "human"
            # Its `message` is what the agent said with the call, not what was said to that.
            said = self._text(event.get("explanation"))
            intent: Intent | None = "correction" if by_user else None
            self.builder.hear(said or "rejected", lane=lane, at=at, intent=intent, asks=False)
        elif kind == "interrupt" and event.get("source") == "user_cancel":
            self.builder.hear("interrupted", lane=lane, at=at, intent="interrupt")
        elif kind in ("approval", "input"):
            return
        elif kind in ("compaction", "error", "info", "interrupt", "logger", "sample_limit"):
            told = {key: one for key, one in event.items() if key not in _COMMON}
            about = {"sample_limit": "limit", "logger": "log"}.get(kind, kind)
            self.builder.note(self._text(told)[:NOTE_CHARACTERS], about=about, lane=lane, at=at)
        else:
            raw = self._text(event)[:NOTE_CHARACTERS]
            self.builder.note(raw, about=f"unknown: {kind}", lane=lane, at=at)

    def _asked(self, event: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        if question := text(event.get("message")):
            self.builder.add(
                Message(
                    number=self.builder.number,
                    lane=lane,
                    at=at,
                    role="agent",
                    text=self._text(question),
                    intent="question",
                )
            )
        answer = self._text(event.get("content") or event.get("input"))
        intent: Intent | None = "answer" if event.get("message") else None
        self.builder.hear(answer, lane=lane, at=at, intent=intent, asks=False)

    def _scores(self) -> None:
        for scorer, score in mapping(self.sample.get("scores")).items():
            value = mapping(score).get("value")
            self.builder.note(f"{scorer}: {written(value)}"[:NOTE_CHARACTERS], about="score")

    def _text(self, value: Any) -> str:
        return shortened(written("" if value is None else self._expand(value)), self.skipped)

    def _expand(self, value: Any) -> Any:
        """With what is attached in the place of references to it."""
        if isinstance(value, str):
            if not value.startswith(ATTACHED):
                return value
            key = value.removeprefix(ATTACHED)
            place = count(key)
            return self.attached.get(key, self.attached.get(place, value))
        if isinstance(value, list):
            return [self._expand(one) for one in value]
        if isinstance(value, dict):
            return {key: self._expand(one) for key, one in value.items()}
        return value


_COMMON = frozenset({"uuid", "span_id", "timestamp", "working_start", "event", "metadata"})
