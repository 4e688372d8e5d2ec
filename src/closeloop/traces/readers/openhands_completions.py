"""OpenHands' `llm_completions`: a file for each model call, the last with the whole dialogue."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Command, Edit, Message, Read, Thought, Turn
from closeloop.traces.openhands.completions import (
    Logged,
    answered,
    attempt_of,
    is_logged,
    sent,
)
from closeloop.traces.results import mark_claim
from closeloop.traces.telling import Teller, identity, text_of
from closeloop.traces.untrusted import decoded, items, mapping, raw, text

name = "openhands-completions"
version = 2

_FUNCTION = re.compile(r"<function=([^>\n]{1,100})>(.*?)(?:</function|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,100})>(.*?)</parameter>", re.DOTALL)
_RESULT = re.compile(r"\AEXECUTION RESULT of \[[^\]\n]{1,100}\]:\n?")
_REFUSED = ("ERROR:", "Error validating", "No replacement was performed", "Invalid `", "Ran into ")
_DONE = ("has been edited.", "File created successfully", "Last edit to ", "[File ")


def recognises(source: Source) -> bool:
    return b'"messages"' in source.head and is_logged(source.document)


def parts(source: Source) -> Sequence[Path]:
    attempt = attempt_of(source)
    if attempt[-1].path != source.path:
        return ()
    return [one.path for one in attempt[:-1]]


def owner(source: Source) -> Path | None:
    last = attempt_of(source)[-1].path
    return last if last != source.path else None


def read(source: Source) -> Iterator[Session]:
    attempt = attempt_of(source)
    if attempt[-1].path != source.path:
        attempt = attempt[: [one.path for one in attempt].index(source.path) + 1]
    stretches = list(_stretches(attempt))
    dialogue = _Dialogue(Teller(name, version, source), several=len(stretches) > 1)
    for number, stretch in enumerate(stretches):
        last = stretch[-1].path
        told = source.document if last == source.path else source.beside(last).document
        if number:
            dialogue.teller.turn = None
            dialogue.teller.note("The dialogue was shortened.", "compaction")
        dialogue.tell(mapping(told), {one.messages: one for one in stretch})
    yield _session(dialogue, attempt)


def _stretches(attempt: list[Logged]) -> Iterator[list[Logged]]:
    """Calls between two compactions: within, the dialogue only grows."""
    stretch: list[Logged] = []
    for one in attempt:
        if stretch and one.messages < stretch[-1].messages:
            yield stretch
            stretch = []
        stretch.append(one)
    yield stretch


def _session(dialogue: _Dialogue, attempt: list[Logged]) -> Session:
    teller, first = dialogue.teller, attempt[0]
    summary = mark_claim(teller.builder) if dialogue.finished else dialogue.summary
    times = [one.at for one in attempt if one.at is not None]
    models = [one.model for one in attempt if one.model is not None]
    return Session(
        id=identity(name, first.request, first.known, first.at),
        agent="openhands",
        model=models[-1] if models else None,
        system=dialogue.system,
        started=min(times, default=None),
        ended=max(times, default=None),
        exit="finished" if dialogue.finished else "crashed",
        cause=None if dialogue.finished else "the log ends with a call",
        usage=teller.builder.usage(),
        summary=summary,
        trace=teller.trace(),
    )


class _Dialogue:
    """The messages of an attempt, each told once."""

    def __init__(self, teller: Teller, *, several: bool) -> None:
        self.teller = teller
        self.several = several
        self.seen: set[tuple[str, ...]] = set()
        self.unnamed: deque[AnyEvent] = deque()
        self.system: str | None = None
        self.requested = False
        self.finished = False
        self.summary: str | None = None

    def tell(self, call: Mapping[str, Any], logs: Mapping[int, Logged]) -> None:
        """What a call was sent and answered, but for what earlier stretches told."""
        messages = [*sent(call), answered(call)]
        earlier = self.seen
        now: set[tuple[str, ...]] = set()
        for place, told in enumerate(messages):
            message = mapping(told)
            if self.several:
                now.add(known := _identity(message))
                if known in earlier:
                    continue
            if message:
                self._message(message, logs.get(place))
        self.seen = earlier | now

    def _message(self, message: dict[str, Any], log: Logged | None) -> None:
        role, said = message.get("role"), text_of(message.get("content"))
        self.teller.at = None
        if role == "system":
            self.system = self.system or self.teller.known(said)
        elif role == "assistant":
            self._assistant(message, said, log)
        elif role == "tool" or _RESULT.match(said):
            self._result(message, said)
        elif role == "user":
            self.teller.user(said, None if self.requested else "request")
            self.requested = True
        else:
            self.teller.note(raw(message), f"unknown: {role}")

    def _assistant(self, message: dict[str, Any], said: str, log: Logged | None) -> None:
        turn = Turn()
        if log is not None:
            self.teller.at = log.at
            turn = Turn(usage=log.usage, model=log.model, at=log.at, seconds=log.seconds)
        self.teller.provider(turn)
        if isinstance(reasoning := message.get("reasoning_content"), str):
            self.teller.thought(reasoning)
        calls = [_native(call) for call in items(message.get("tool_calls"))]
        if not calls and (found := _FUNCTION.search(said)):
            # Calls in text, for models that know no tools.
            calls = [(found[1].strip(), dict(_PARAMETER.findall(found[2])), None)]
            said = said[: found.start()]
        self.finished = not calls
        if not calls:
            self.teller.agent(said)
            self.summary = self.teller.clean(said)
        elif said and any(tool == "finish" and not given for tool, given, _ in calls):
            # Older versions end with a call that says nothing.
            calls = [(tool, given or {"message": said}, known) for tool, given, known in calls]
        else:
            self.teller.thought(said)
        for tool, given, known in calls:
            self._call(tool, given, known)

    def _call(self, tool: str, given: dict[str, Any] | None, known: str | None) -> None:
        if tool == "finish":
            given = given or {"message": "finish"}
        if tool == "think":
            said = self.teller.clean(text(mapping(given).get("thought")) or "")
            event: AnyEvent = self.teller.add(Thought(**self.teller.place(known), text=said))
        else:
            event = self.teller.call(tool, given, known)
        if event.call is None:
            self.unnamed.append(event)
        if tool == "finish":
            self.finished = True
            if isinstance(event, Message):
                self.summary = event.text

    def _result(self, message: dict[str, Any], said: str) -> None:
        known = text(message.get("tool_call_id"))
        event = self.teller.builder.waiting(self.teller.lane, known)
        if event is None and self.unnamed:
            event = self.unnamed.popleft()
        said = _RESULT.sub("", said, count=1)
        if event is None:
            self.teller.note(said, "result without a call")
            return
        done = self.teller.result(event, said, _ok(event, said))
        if isinstance(done, Command) and done.exit_code == -1:
            # It was still running.
            self.teller.more(done, exit_code=None, exit_from=None)


def _identity(message: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes a message the same one in another call's log."""
    calls = [mapping(call).get("function") for call in items(message.get("tool_calls"))]
    facts = (message.get("role"), message.get("tool_call_id"), calls)
    return (text_of(message.get("content")), *map(str, facts))


def _native(told: object) -> tuple[str, dict[str, Any] | None, str | None]:
    call = mapping(told)
    function = mapping(call.get("function"))
    given = function.get("arguments")
    given = decoded(given) if isinstance(given, str) else given
    tool = text(function.get("name")) or "unknown"
    return tool, given if isinstance(given, dict) else None, text(call.get("id"))


def _ok(event: AnyEvent, said: str) -> bool | None:
    """What the text of a result says of it; for most tools nothing."""
    start = said.lstrip()[:2000]
    if start.startswith(_REFUSED):
        return False
    if isinstance(event, Edit | Read) and any(sign in start for sign in _DONE):
        return True
    return True if isinstance(event, Read) and start.startswith("Here's the result") else None
