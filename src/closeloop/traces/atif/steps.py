"""The steps of one trajectory as events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from closeloop.model.protocols import Source
from closeloop.model.trace import AnyEvent, Command, Handoff, Message, Thought, Turn
from closeloop.traces.atif.files import references_of, results_of
from closeloop.traces.atif.values import usage_of, words
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.dialogue import handed
from closeloop.traces.results import OWN, restored, result_of
from closeloop.traces.texts import NOTE_CHARACTERS
from closeloop.traces.untrusted import arguments, count, items, mapping, moment
from closeloop.traces.values import text, written

Found = tuple[Mapping[str, Any], Path]


class Run(Protocol):
    """What the steps need of the run that they are part of."""

    source: Source
    builder: Builder
    system: str | None
    models: Counter[str]
    asked: set[str]
    """Lanes whose agent was given its request."""

    def short(self, words: str) -> str: ...

    def resolve(self, reference: Mapping[str, Any], path: Path) -> Found | None: ...

    def child(self, trajectory: Mapping[str, Any], parent: str, path: Path) -> str: ...


class Steps:
    """One trajectory's steps, one after another."""

    def __init__(self, run: Run, trajectory: Mapping[str, Any], lane: str, path: Path) -> None:
        self.run = run
        self.builder = run.builder
        self.lane = lane
        self.path = path
        self.model = text(mapping(trajectory.get("agent")).get("model_name"))
        steps = items(trajectory.get("steps"))
        self.counted = any(mapping(step).get("metrics") for step in steps)
        self.turn: int | None = None
        self.thought: str | None = None

    def add(self, step: Mapping[str, Any]) -> None:
        own = mapping(mapping(step.get("extra")).get(OWN))
        if own.get("empty") is True:
            return
        match step.get("source"):
            case "agent":
                self._agent(step, own)
            case "user":
                self._say(step, own)
            case "system":
                self._system(step, own)
            case other:
                about = f"unknown: {other}"
                self.builder.note(written(step)[:NOTE_CHARACTERS], about=about, lane=self.lane)

    def _say(self, step: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        intent: Any = None if self.lane in self.run.asked else "request"
        self.run.asked.add(self.lane)
        self.turn = None
        event = Message(
            number=self.builder.number, lane=self.lane, at=moment(step.get("timestamp")),
            role="user", text=self.run.short(words(step.get("message"))), intent=intent,
        )  # fmt: skip
        self._keep(event, own)
        self._observe(step, [])

    def _system(self, step: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        said = self.run.short(words(step.get("message")))
        at = moment(step.get("timestamp"))
        first = self.lane == ROOT and self.run.system is None and not self.run.asked
        managed = mapping(mapping(step.get("extra")).get("context_management"))
        if first and not own and self.turn is None:
            self.run.system = said
        elif managed:
            about = text(managed.get("type")) or "context management"
            self.builder.note(said, about=about, lane=self.lane, at=at)
        elif said or own:
            event = Message(
                number=self.builder.number, lane=self.lane, at=at, role="system", text=said
            )
            self._keep(event, own)
        self._observe(step, [])

    def _keep(self, event: Message | Thought, own: Mapping[str, Any]) -> None:
        self.builder.add(restored(event, own.get("event")))

    def _agent(self, step: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        at = moment(step.get("timestamp"))
        fresh_turn = self._count(step, own)
        base: dict[str, Any] = {"lane": self.lane, "turn": self.turn, "at": at}
        thought = text(step.get("reasoning_content"))
        new = bool(thought) and (fresh_turn or thought != self.thought)
        if "thought" in own or (new and not own):
            # Steps of one reply that was cut into several repeat its reasoning.
            known = Thought(number=self.builder.number, **base, text=self.run.short(thought or ""))
            self.builder.add(restored(known, own.get("thought")))
        self.thought = thought
        calls = [call for call in items(step.get("tool_calls")) if isinstance(call, dict)]
        said = words(step.get("message"))
        if (said and not _made_up(said, calls)) or "message" in own:
            message = Message(
                number=self.builder.number, **base, role="agent", text=self.run.short(said)
            )
            self.builder.add(restored(message, own.get("message")))
        events = [self._call(call, base, said) for call in calls]
        self._observe(step, events)
        for event, call in zip(events, calls, strict=True):
            more = mapping(call.get("extra")).get(OWN)
            if isinstance(more, dict):
                whole = restored(self.builder.events[event.number - 1], more)
                self.builder.events[event.number - 1] = whole

    def _count(self, step: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
        """Whether a step begins another reply. One without metrics goes on with the last."""
        metrics = mapping(step.get("metrics"))
        model = text(step.get("model_name")) or self.model
        told = None
        if "turn" in own:
            wanted = count(own["turn"]) or 0
            if wanted <= self.builder.turns(self.lane):
                self.turn = wanted or None
                return True
            told = _reply(own.get("reply"))
        elif step.get("llm_call_count") == 0:
            self.turn = None
            return True
        elif self.counted and not metrics and self.turn is not None:
            return False
        turn = Turn(usage=usage_of(metrics), model=model, at=moment(step.get("timestamp")))
        self.turn = self.builder.turn(self.lane, told or turn)
        if model:
            self.run.models[model] += 1
        return True

    def _call(self, call: Mapping[str, Any], base: Mapping[str, Any], said: str) -> AnyEvent:
        tool = text(call.get("function_name")) or "unknown"
        origin = Origin(number=self.builder.number, **base, call=text(call.get("tool_call_id")))
        given = arguments(call.get("arguments"), self.run.source.skipped)
        if tool == "mark_task_complete":
            return self._claim(origin, said)
        if given and isinstance(given.get("keystrokes"), str):
            typed = Command(
                number=self.builder.number, **base, call=origin.call, command=given["keystrokes"]
            )
            return self.builder.add(typed)
        return self.builder.add(event_of(tool, given, origin))

    def _claim(self, origin: Origin, said: str) -> AnyEvent:
        """The step's message says that the work is done; without one, an empty one does."""
        last = self.builder.events[-1] if self.builder.events else None
        if isinstance(last, Message) and last.text == said and last.turn == origin.turn:
            return self.builder.finish(last, intent="claim", call=origin.call)
        claim = Message(**msgspec.structs.asdict(origin), role="agent", text=said, intent="claim")
        return self.builder.add(claim)

    def _observe(self, step: Mapping[str, Any], events: list[AnyEvent]) -> None:
        """Pair each result with the call it names, or with the last one where it names none."""
        open_calls = list(events)
        results = results_of(step)
        for result in results:
            wanted = text(result.get("source_call_id"))
            event = next((one for one in open_calls if one.call == wanted), None)
            if event is None and wanted is None and open_calls:
                event = open_calls[0 if len(results) == len(events) else -1]
            if event is not None:
                open_calls.remove(event)
            elif wanted is not None:
                # Some write what came of a call into a step of its own.
                event = self.builder.waiting(self.lane, wanted)
            if event is not None:
                event = self._finish(event, result, step, alone=len(events) == 1)
            elif said := words(result.get("content")):
                at = moment(step.get("timestamp"))
                self.builder.note(self.run.short(said), about="observation", lane=self.lane, at=at)
            self._delegate(event, result)

    def _finish(
        self, event: AnyEvent, result: Mapping[str, Any], step: Mapping[str, Any], *, alone: bool
    ) -> AnyEvent:
        content = result.get("content")
        output = None if content is None else words(content)
        extra, more = mapping(result.get("extra")), mapping(step.get("extra")) if alone else {}
        meta = mapping(more.get("tool_result_metadata"))
        raw = mapping(meta.get("raw_tool_result"))
        if isinstance(raw.get("content"), str) and output is not None:
            # Harbor's converter says the output twice in the content, with marks of its own.
            output = written(raw["content"])
        # A raw result is Anthropic's, where what is not said to be an error is none.
        failed = raw.get("is_error", False) if raw else meta.get("is_error")
        flags = (extra.get("is_error"), more.get("tool_result_is_error"), failed)
        ok = False if True in flags else True if False in flags else None
        if output is not None and output.endswith("[error] tool reported failure"):
            ok = False
        done = result_of(event, None if output is None else self.run.short(output), ok)
        if isinstance(event, Command) and ok is True and done["exit_code"] is None:
            done |= _succeeded(meta)
        if isinstance(event, Message) and event.intent == "question" and output:
            self.builder.hear(self.run.short(output), lane=self.lane, at=None, intent="answer")
        return self.builder.finish(event, **done)

    def _delegate(self, event: AnyEvent | None, result: Mapping[str, Any]) -> None:
        """The sub-agents that a result refers to, joined to the call that handed over to them."""
        for reference in references_of(result):
            found = self.run.resolve(reference, self.path)
            if found is None:
                key = "a sub-agent's trajectory that is not there"
                self.run.source.skipped[key] = self.run.source.skipped.get(key, 0) + 1
                continue
            if event is None:
                event = self.builder.add(
                    Handoff(number=self.builder.number, lane=self.lane, brief="")
                )
            place = event.number
            lane = self.run.child(found[0], self.lane, found[1])
            brief, report = _asked(found[0])
            joined = handed(event, lane)
            back = (report or None) if joined.report is None else joined.report
            joined = msgspec.structs.replace(joined, brief=joined.brief or brief, report=back)
            self.builder.events[place - 1] = joined
            event = None


def _asked(trajectory: Mapping[str, Any]) -> tuple[str, str]:
    """What a sub-agent was asked, and what it said last."""
    brief = report = ""
    for step in items(trajectory.get("steps")):
        given = mapping(step)
        if given.get("is_copied_context") is True:
            continue
        if given.get("source") == "user":
            brief = brief or words(given.get("message"))
        elif given.get("source") == "agent":
            report = words(given.get("message")) or report
    return brief, report


def _made_up(said: str, calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message is only what Harbor's converters write where the agent said nothing."""
    if not calls:
        return False
    if said in ("(no assistant text)", "(tool use)", "(tool calls)"):
        return True
    tools = [(call.get("function_name"), call.get("tool_call_id")) for call in calls]
    plain = said.removesuffix(" (no result)")
    return any(plain in (f"Executed {tool}", f"Executed {tool} {key}") for tool, key in tools)


def _succeeded(meta: Mapping[str, Any]) -> dict[str, object]:
    """Claude Code says nothing of an exit code only where it is 0."""
    told = mapping(meta.get("tool_use_result"))
    odd = ("interrupted", "backgroundTaskId", "returnCodeInterpretation")
    if "stdout" not in told or any(told.get(key) for key in odd):
        return {}
    return {"exit_code": 0, "exit_from": "parsed"}


def _reply(value: Any) -> Turn | None:
    try:
        return msgspec.convert(value, Turn) if isinstance(value, dict) else None
    except msgspec.ValidationError:
        return None
