"""What went between a program and its model, as the program's trace.

Every request tells the whole conversation again, so each thing is taken once: what the model said
from its answers, everything else from the first request that has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from closeloop.model.answers import heard
from closeloop.model.exchange import Exchange
from closeloop.model.session import Session
from closeloop.model.trace import Handoff, Turn
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.codex.patches import in_patch
from closeloop.traces.dialogue import Dialogue, handed
from closeloop.traces.otel.said import Said, said
from closeloop.traces.results import mark_claim
from closeloop.traces.telling import identity
from closeloop.traces.texts import clean
from closeloop.traces.untrusted import decoded, items, mapping

READER, VERSION = "gateway", 2
AGENT = "unknown"
OTHER = "an exchange that is no turn"
UNREADABLE = "an exchange that cannot be read"
OWN = "reply"
"""The path of what an agent of ours asked, in our own records."""
_TOLD_BY_PROGRAM = (
    "<system-reminder>",
    "<environment_context>",
    "<user_instructions>",
    "<permissions",
    "# AGENTS.md instructions",
)
"""How texts begin that agents put before what the user said, as if it were the user's."""
_ENVELOPES = ('{"output":', '{"error":')
_SYSTEM = ("system", "instructions", "systemInstruction", "system_instruction")


def session_of(exchanges: Sequence[Exchange], skipped: dict[str, int]) -> Session:
    """All exchanges of one attempt, in the order they were asked."""
    # Beside the work itself, programs ask for titles and summaries, without tools.
    talk = _Talk(skipped, with_tools=any(map(_offers_tools, exchanges)))
    for exchange in exchanges:
        talk.take(exchange)
    return talk.session()


class _Lane:
    """One conversation: all requests that begin alike."""

    def __init__(self, name: str, dialogue: Dialogue) -> None:
        self.name = name
        self.dialogue = dialogue
        self.begun = False


class _Talk:
    """A program's conversations while they are put together."""

    def __init__(self, skipped: dict[str, int], *, with_tools: bool) -> None:
        self.skipped = skipped
        self.with_tools = with_tools
        self.builder = Builder(READER, VERSION)
        self.lanes: dict[tuple[Any, ...], _Lane] = {}
        self.models: Counter[str] = Counter()
        self.times: list[Any] = []
        self.first: str | None = None
        self.trouble: str | None = None
        self.patched: dict[str, list[str | None]] = {}
        self._known: dict[bytes, list[Said]] = {}
        """What messages tell: most of them come again with every request."""

    def take(self, exchange: Exchange) -> None:
        """One request and its answer."""
        if exchange.path.endswith(("count_tokens", ":countTokens")):
            self._skip(OTHER)
            return
        payload = mapping(decoded(exchange.request))
        own = exchange.path == OWN
        told = self._request(payload, own=own)
        if not told:
            self._skip(UNREADABLE)
            return
        self.times.append(exchange.at)
        lane = self._lane(payload, told)
        # What the model said is known from its answers; a client may tell it in other words.
        news = told if not lane.begun else [part for part in told if part.role in ("user", "tool")]
        lane.begun = True
        lane.dialogue.hear(news, lane.name, exchange.at)
        self.trouble = exchange.cause
        if exchange.cause is not None:
            about = "out of budget" if exchange.status == 400 else "model"
            self.builder.note(clean(exchange.cause), about=about, lane=lane.name, at=exchange.at)
        if exchange.status < 300:
            self._answer(exchange, lane)

    def _answer(self, exchange: Exchange, lane: _Lane) -> None:
        turn = Turn(
            usage=exchange.usage, model=exchange.model, at=exchange.at, seconds=exchange.seconds
        )
        number = self.builder.turn(lane.name, turn)
        if exchange.model:
            self.models[exchange.model] += 1
        answer = heard(exchange.response).answer or {}
        for part in self._parts(_answer(answer, own=exchange.path == OWN)):
            lane.dialogue.speak(part, lane.name, exchange.at, number)

    def _lane(self, payload: dict[str, Any], told: list[Said]) -> _Lane:
        """The conversation that a request goes on with, by what it began with."""
        first = next((part.text for part in told if part.role == "user"), "")
        key = (first, bool(payload.get("tools")))
        if key in self.lanes:
            return self.lanes[key]
        name = ROOT
        if self.first is None and key[1] == self.with_tools:
            self.first = first
        else:
            name = f"conversation {len(self.lanes) + 1}"
            self.builder.lane(name, ROOT)
            self._hand_over(name, first)
        lane = self.lanes[key] = _Lane(name, Dialogue(self.builder, self.skipped))
        return lane

    def _hand_over(self, child: str, first: str) -> None:
        """A call that gave its brief to another agent is where that one's conversation began."""
        for event in reversed(self.builder.events):
            if isinstance(event, Handoff) and event.child is None and event.brief in first:
                self.builder.events[event.number - 1] = handed(event, child)
                return

    def _request(self, payload: dict[str, Any], *, own: bool) -> list[Said]:
        """What a request of any format tells, the system prompt first."""
        found: list[Said] = []
        for name in _SYSTEM:
            if name in payload:
                found += self._parts(said(payload[name], "system"))
        for name in ("messages", "contents", "input"):
            told = payload.get(name)
            if isinstance(told, list):
                for message in told:
                    found += self._message(message, own=own)
            elif told is not None and not own:
                found += self._parts(said(told, "user"))
        return found

    def _message(self, message: Any, *, own: bool) -> list[Said]:
        try:
            key = msgspec.json.encode(message)
        except (ValueError, OverflowError, RecursionError):
            key = b""
        found = self._known.get(key)
        if found is None:
            shaped = _shaped(mapping(message)) if own else message
            found = self._parts(said(shaped, "user", 1))
            if key:
                self._known[key] = found
        return found

    def _parts(self, parts: Iterable[Said]) -> list[Said]:
        """What is the user's; and patches of several files as a call for each of them."""
        found: list[Said] = []
        for part in parts:
            if part.role == "user" and part.text.lstrip().startswith(_TOLD_BY_PROGRAM):
                found.append(part._replace(role="system"))
            elif part.kind == "call" and part.name == "apply_patch" and part.id:
                found += self._patch(part)
            elif part.kind == "result":
                result = _unwrapped(part)
                ids = self.patched.get(part.id or "")
                found += [result._replace(id=each) for each in ids] if ids else [result]
            else:
                found.append(part)
        return found

    def _patch(self, part: Said) -> Iterator[Said]:
        given = part.arguments
        written = given.get("input") or given.get("patch") if isinstance(given, dict) else given
        files = in_patch(written) if isinstance(written, str) else []
        if not files or part.id is None:
            yield part
            return
        ids = [f"{part.id}/{place}" for place in range(1, len(files) + 1)]
        if self.patched.get(part.id) != ids:
            self.patched[part.id] = [*ids]
            # A result is told for each of them.
            self._known.clear()
        for known, file in zip(ids, files, strict=True):
            if file.action == "create":
                name, more = "create_file", {"content": file.after}
            else:
                name, more = "apply_patch", {"patch": file.patch}
            yield part._replace(id=known, name=name, arguments={"path": file.path, **more})

    def session(self) -> Session:
        """All of it."""
        finished = self.trouble is None
        summary = mark_claim(self.builder) if finished else None
        lanes = self.lanes.values()
        system = next((lane.dialogue.system for lane in lanes if lane.name == ROOT), None)
        return Session(
            id=identity(READER, self.first, *self.times[:1]),
            agent=AGENT,
            model=max(self.models, key=self.models.__getitem__, default=None),
            system=system,
            started=min(self.times, default=None),
            ended=max(self.times, default=None),
            exit="finished" if finished else "crashed",
            cause=None if self.trouble is None else clean(self.trouble),
            usage=self.builder.usage(),
            summary=summary,
            trace=self.builder.trace(self.skipped),
        )

    def _skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1


def _unwrapped(result: Said) -> Said:
    """A result without the object that Gemini's clients put around its text."""
    inner = decoded(result.text) if result.text.startswith(_ENVELOPES) else None
    if not isinstance(inner, dict) or len(inner) != 1:
        return result
    ((name, told),) = inner.items()
    ok = False if name == "error" else result.ok
    return result._replace(text=told, ok=ok) if isinstance(told, str) else result


def _offers_tools(exchange: Exchange) -> bool:
    return b'"tools"' in exchange.request and bool(mapping(decoded(exchange.request)).get("tools"))


def _answer(answer: dict[str, Any], *, own: bool) -> list[Said]:
    """What an answer of any format says."""
    if own:
        answer = _shaped(answer)
    elif isinstance(answer.get("output"), list):
        answer = {"role": "assistant", "content": answer["output"]}
    return [part for part in said(answer, "agent") if part.role == "agent"]


def _shaped(message: dict[str, Any]) -> dict[str, Any]:
    """A message in our own records, in a shape that others use."""
    if message.get("role") == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": message.get("call"),
            "content": message.get("text") or "",
            "is_error": bool(message.get("failed")),
        }
        return {"role": "tool", "content": [result]}
    words = [{"type": "text", "text": message["text"]}] if message.get("text") else []
    calls = [{"type": "tool_use", **mapping(call)} for call in items(message.get("calls"))]
    return {"role": message.get("role") or "assistant", "content": [*words, *calls]}
