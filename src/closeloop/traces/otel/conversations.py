"""Spans of conversations, in whatever order they came, as sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Handoff, Message, Turn
from closeloop.traces.builder import ROOT, Builder, since
from closeloop.traces.dialogue import Dialogue, handed
from closeloop.traces.otel.said import Said, identity, result_text
from closeloop.traces.otel.spans import (
    Kind,
    Span,
    agent_of,
    call_of,
    conversation_of,
    first,
    inputs,
    kind_of,
    model_of,
    outputs,
    result_in,
    usage_of,
)
from closeloop.traces.results import (
    OWN,
    Kept,
    drop_unknown_children,
    kept_in,
    mark_claim,
    restored,
)
from closeloop.traces.untrusted import count
from closeloop.traces.values import text, unfolded

NO_AGENT = "a trace without an agent's spans"
OTHER = "a span of something else than an agent"
_EARLIEST = datetime.min.replace(tzinfo=UTC)
_LATEST = datetime.max.replace(tzinfo=UTC)


def sessions_of(
    spans: Iterable[Span], reader: str, version: int, skipped: dict[str, int]
) -> Iterator[Session]:
    """One session a conversation; or a trace, where no conversation is named or we wrote it."""
    traces: dict[str, dict[str, Span]] = {}
    for span in spans:
        # A span that is sent again, as exporters do, is the same span.
        traces.setdefault(span.trace, {})[span.id] = span
    groups: dict[tuple[str, str], list[Span]] = {}
    for trace, found in traces.items():
        named = {name for span in found.values() if (name := conversation_of(span))}
        group = named.pop() if len(named) == 1 else trace
        apart = trace if _is_own(found.values()) else ""
        groups.setdefault((group or "unknown", apart), []).extend(found.values())
    for (name, _), members in groups.items():
        kinds = {span.id: kind for span in members if (kind := kind_of(span))}
        if kinds:
            yield _Conversation(members, kinds, Builder(reader, version), skipped).session(name)
        else:
            skipped[NO_AGENT] = skipped.get(NO_AGENT, 0) + 1


def _is_own(spans: Iterable[Span]) -> bool:
    """Whether closeloop wrote them."""
    return all(f"{OWN}.order" in span.attributes for span in spans)


class _Conversation:
    """One conversation while it is put together."""

    def __init__(
        self, spans: list[Span], kinds: dict[str, Kind], builder: Builder, skipped: dict[str, int]
    ) -> None:
        self.spans = {span.id: span for span in spans}
        self.kinds = kinds
        self.skipped = skipped
        self.before = dict(skipped)
        self.builder = builder
        self.dialogue = Dialogue(builder, skipped)
        self.own = _is_own(spans)
        """Then nothing in it is told twice, and it says more."""
        self.root: Span | None = None
        self.lanes: dict[str, str] = {}
        self.names: dict[str, str | None] = {ROOT: None}
        self.tools: dict[str, int] = {}
        self.models: Counter[str] = Counter()
        self.usages: dict[tuple[str, str], tuple[int, Usage]] = {}
        self._leave_out()

    def _leave_out(self) -> None:
        """A model's span around another's says the same again; other spans are not an agent's."""
        others = len(self.spans) - len(self.kinds)
        if others:
            self.skipped[OTHER] = self.skipped.get(OTHER, 0) + others
        models = [span for span in self.spans.values() if self.kinds.get(span.id) == "model"]
        for span in models:
            above = self._above(span)
            if above is not None and self.kinds[above.id] == "model":
                del self.kinds[above.id]

    def session(self, name: str) -> Session:
        for _, span, begins in sorted(self._moments(), key=lambda moment: moment[0]):
            if not begins:
                self.dialogue.hear(outputs(span), self._lane(span), span.end)
            elif self.kinds[span.id] == "agent":
                self._agent(span)
            elif self.kinds[span.id] == "model":
                self._reply(span)
            else:
                self._use(span)
        self._close()
        root, spans = self.root, self.spans.values()
        times = [time for span in spans for time in (span.start, span.end) if time]
        failed = root is not None and root.failed
        known = kept_in(unfolded(root.attributes.get(f"{OWN}.session"))) if root else None
        known = known or Kept(
            exit="crashed" if failed else "finished",
            cause=root.error if root and failed else None,
            started=min(times, default=None),
            ended=max(times, default=None),
            summary=mark_claim(self.builder),
            user=self._attribute("user.id", "enduser.id", "langfuse.user.id"),
        )
        return Session(
            id=name,
            agent=self._name(),
            agent_version=self._attribute("gen_ai.agent.version", "service.version"),
            trace=self.builder.trace(since(self.before, self.skipped)),
            model=max(self.models, key=lambda model: self.models[model], default=None),
            system=self.dialogue.system,
            usage=self.builder.usage(),
            **msgspec.structs.asdict(known),
        )

    def _close(self) -> None:
        """Where no model's reply was recorded, what agents counted themselves is all there is."""
        if "model" not in self.kinds.values():
            for span in self.spans.values():
                usage = usage_of(span)
                if usage != Usage() and self.kinds.get(span.id) and self._above(span) is None:
                    self.builder.turn(self._lane(span), _turn(span, usage))
        self._report()
        drop_unknown_children(self.builder, self.names)

    def _report(self) -> None:
        """What agents were asked and said last, where only their own lanes tell it."""
        asked: dict[str, str] = {}
        said: dict[str, str] = {}
        for event in self.builder.events:
            if isinstance(event, Message) and event.role == "user":
                asked.setdefault(event.lane, event.text)
            elif isinstance(event, Message) and event.role == "agent":
                said[event.lane] = event.text
        for event in self.builder.events if not self.own else ():
            if isinstance(event, Handoff) and event.child and event.report is None:
                brief = event.brief or asked.get(event.child, "")
                more = {"brief": brief, "report": said.get(event.child)}
                self.dialogue.replace(msgspec.structs.replace(event, **more))

    def _name(self) -> str:
        found = agent_of(self.root) if self.root else None
        scopes = (span.scope for span in self.spans.values() if span.scope)
        found = found or self._attribute("service.name", "langfuse.trace.name")
        return found or next(scopes, "unknown")

    def _attribute(self, *names: str) -> str | None:
        """The first of these that any span, or what emitted it, says."""
        spans = [self.root] if self.root else []
        for span in (*spans, *self.spans.values()):
            found = text(first(span.attributes, *names)) or text(first(span.resource, *names))
            if found and not found.startswith("unknown_service"):
                return found
        return None

    def _moments(self) -> Iterator[tuple[tuple[int, datetime, int], Span, bool]]:
        """Where each span begins and each agent ends, with its place in time."""
        for place, span in enumerate(self._tree()):
            kind = self.kinds.get(span.id)
            order = count(span.attributes.get(f"{OWN}.order")) if self.own else None
            start = None if self.own else span.start
            if kind is not None:
                yield (order or 0, start or _EARLIEST, place), span, True
            if kind == "agent" and not self.own:
                yield (0, span.end or _LATEST, place + len(self.spans)), span, False

    def _tree(self) -> Iterator[Span]:
        """Parents before children: files have spans in the order in which they ended."""
        children: dict[str, list[Span]] = {}
        for span in self.spans.values():
            children.setdefault(span.parent if span.parent in self.spans else "", []).append(span)
        seen: set[str] = set()
        # Spans that are around each other, which only a damaged file has, come last.
        waiting = [*reversed(self.spans.values()), *reversed(children.get("", []))]
        while waiting:
            span = waiting.pop()
            if span.id not in seen:
                seen.add(span.id)
                yield span
                waiting.extend(reversed(children.get(span.id, [])))

    def _above(self, span: Span) -> Span | None:
        """The nearest span around it that is an agent's, a model's or a tool's."""
        seen = {span.id}
        parent = self.spans.get(span.parent or "")
        while parent is not None and parent.id not in seen:
            if parent.id in self.kinds:
                return parent
            seen.add(parent.id)
            parent = self.spans.get(parent.parent or "")
        return None

    def _lane(self, span: Span) -> str:
        """The lane of the agent around it."""
        seen: set[str] = set()
        above: Span | None = span
        while above is not None and above.id not in seen:
            if above.id in self.lanes:
                return self.lanes[above.id]
            seen.add(above.id)
            above = self._above(above)
        return ROOT

    def _agent(self, span: Span) -> None:
        """An agent begins, or goes on where one span of it is inside another."""
        above = self._above(span)
        seen: set[str] = set()
        while above is not None and self.kinds[above.id] == "model" and above.id not in seen:
            seen.add(above.id)
            above = self._above(above)
        around, name = self._lane(span), agent_of(span)
        called = above is not None and self.kinds[above.id] == "tool"
        if self.root is None and not called:
            self.root = span
        same = not self.own and name in (None, self.names[around])
        if not called and (self.root is span or same):
            self.names[around] = self.names[around] or name
            self.lanes[span.id] = self.builder.lane(around, agent=name)
        else:
            self._child(span, around, above)
        self.dialogue.hear(inputs(span), self.lanes[span.id], span.start)

    def _child(self, span: Span, around: str, above: Span | None) -> None:
        """Another agent, called by a tool, by an agent, or by nobody in sight."""
        wanted = text(span.attributes.get(f"{OWN}.lane")) or span.id
        lane = span.id if wanted in self.names else wanted
        self.names[lane] = agent_of(span)
        self.lanes[span.id] = self.builder.lane(lane, around, self.names[lane])
        if self.own or above is None:
            return
        asked = "\n".join(part.text for part in inputs(span) if part[:2] == ("user", "text"))
        if above.id in self.tools:
            event = self.builder.events[self.tools[above.id] - 1]
            self.dialogue.replace(handed(event, lane, asked))
        elif self.kinds[above.id] == "agent":
            said = "\n".join(part.text for part in outputs(span) if part.kind == "text")
            self.builder.add(
                Handoff(
                    number=self.builder.number,
                    lane=around,
                    at=span.start,
                    brief=asked,
                    seconds=_seconds(span),
                    child=lane,
                    report=said or None,
                    ok=_ok(span),
                )
            )

    def _reply(self, span: Span) -> None:
        """One message of a model, and what it was an answer to."""
        lane = self._lane(span)
        if self.own:
            for part in inputs(span):
                self.dialogue.add(part, lane, span.start)
        else:
            self.dialogue.hear(inputs(span), lane, span.start)
        turn = self._turn(span, lane)
        for part in outputs(span):
            self.dialogue.speak(part, lane, span.end or span.start, turn)
        if span.failed:
            self.builder.note(span.error or "", about="model error", lane=lane, at=span.end)

    def _turn(self, span: Span, lane: str) -> int | None:
        """Spans that name the same reply, and count nothing else, are one."""
        if self.own and count(span.attributes.get(f"{OWN}.turn")) == 0:
            return None
        turn = self._told(span) or _turn(span, usage_of(span))
        model, usage = turn.model, turn.usage
        named = identity(first(span.attributes, "gen_ai.response.id", "ai.response.id"))
        if named and (lane, named) in self.usages:
            number, before = self.usages[lane, named]
            if usage in (before, Usage()):
                return number
        number = self.builder.turn(lane, turn)
        if named:
            self.usages[lane, named] = (number, usage)
        if model:
            self.models[model] += 1
        return number

    def _told(self, span: Span) -> Turn | None:
        try:
            value = unfolded(span.attributes.get(f"{OWN}.reply")) if self.own else None
            return msgspec.convert(value, Turn) if isinstance(value, dict) else None
        except msgspec.ValidationError:
            return None

    def _use(self, span: Span) -> None:
        """A tool at work: what a model asked for, or something that no model's words tell of."""
        lane, call = self._lane(span), call_of(span)
        event = self.dialogue.called(lane, call)
        if event is None:
            self.dialogue.knows(call)
            event = self.dialogue.add(call, lane, span.start, self.builder.turns(lane) or None)
            assert event is not None
        given = result_in(span)
        output = span.error if given is None else result_text(given)
        if output is not None or span.failed is not None:
            event = self.dialogue.finish(event, output, _ok(span))
            self.dialogue.knows(Said("tool", "result", output or "", call.name, call.id))
        event = self._timed(event, span)
        self.dialogue.replace(event)
        self.tools[span.id] = event.number

    def _timed(self, event: AnyEvent, span: Span) -> AnyEvent:
        if self.own:
            self.dialogue.settle(event)
            return restored(event, unfolded(span.attributes.get(f"{OWN}.event")))
        return msgspec.structs.replace(event, at=span.start or event.at, seconds=_seconds(span))


def _turn(span: Span, usage: Usage) -> Turn:
    return Turn(usage=usage, model=model_of(span), at=span.start, seconds=_seconds(span))


def _seconds(span: Span) -> float | None:
    if span.start is None or span.end is None or span.end < span.start:
        return None
    return (span.end - span.start).total_seconds()


def _ok(span: Span) -> bool | None:
    return None if span.failed is None else not span.failed
