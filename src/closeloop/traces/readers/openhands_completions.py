"""OpenHands' `llm_completions`: a file for each model call, the last with the whole dialogue."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.records.trace import AnyEvent, Command, Edit, Message, Read, Thought, Turn
from closeloop.traces.openhands.completion_log import (
    LoggedCall,
    is_completion_log,
    list_attempt_calls,
    reply_message,
    request_messages,
)
from closeloop.traces.provider_values import openai_content_text
from closeloop.traces.session_builder import SessionBuilder, derive_id
from closeloop.traces.untrusted_json import (
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    try_decode_json,
)

name = "openhands-completions"
version = 2

_FUNCTION_TAG = re.compile(r"<function=([^>\n]{1,100})>(.*?)(?:</function|\Z)", re.DOTALL)
_PARAMETER_TAG = re.compile(r"<parameter=([^>\n]{1,100})>(.*?)</parameter>", re.DOTALL)
_RESULT_HEADER = re.compile(r"\AEXECUTION RESULT of \[[^\]\n]{1,100}\]:\n?")
_REFUSAL_PREFIXES = (
    "ERROR:",
    "Error validating",
    "No replacement was performed",
    "Invalid `",
    "Ran into ",
)
_SUCCESS_MARKERS = ("has been edited.", "File created successfully", "Last edit to ", "[File ")


def recognises(source: RecordingSource) -> bool:
    return b'"messages"' in source.head and is_completion_log(source.document)


def parts(source: RecordingSource) -> Sequence[Path]:
    attempt = list_attempt_calls(source)
    if attempt[-1].path != source.path:
        return ()
    return [one.path for one in attempt[:-1]]


def owner(source: RecordingSource) -> Path | None:
    last = list_attempt_calls(source)[-1].path
    return last if last != source.path else None


def read(source: RecordingSource) -> Iterator[Session]:
    attempt = list_attempt_calls(source)
    if attempt[-1].path != source.path:
        attempt = attempt[: [one.path for one in attempt].index(source.path) + 1]
    stretches = list(_split_stretches(attempt))
    builder = _CompletionLogBuilder(
        SessionBuilder(name, version, source.skipped, several=True), several=len(stretches) > 1
    )
    for number, stretch in enumerate(stretches):
        last = stretch[-1].path
        document = source.document if last == source.path else source.beside(last).document
        if number:
            builder.teller.turn = None
            builder.teller.add_note("The dialogue was shortened.", "compaction")
        builder.add_logged_call(as_mapping(document), {one.messages: one for one in stretch})
    yield _build_session(builder, attempt)


def _split_stretches(attempt: list[LoggedCall]) -> Iterator[list[LoggedCall]]:
    """Calls between two compactions: within, the dialogue only grows."""
    stretch: list[LoggedCall] = []
    for one in attempt:
        if stretch and one.messages < stretch[-1].messages:
            yield stretch
            stretch = []
        stretch.append(one)
    yield stretch


def _build_session(dialogue: _CompletionLogBuilder, attempt: list[LoggedCall]) -> Session:
    teller, first = dialogue.teller, attempt[0]
    summary = teller.mark_claim() if dialogue.finished else dialogue.summary
    times = [one.at for one in attempt if one.at is not None]
    models = [one.model for one in attempt if one.model is not None]
    return Session(
        id=derive_id(name, first.request, first.known, first.at),
        agent="openhands",
        model=models[-1] if models else None,
        system=dialogue.system,
        started=min(times, default=None),
        ended=max(times, default=None),
        exit="finished" if dialogue.finished else "crashed",
        cause=None if dialogue.finished else "the log ends with a call",
        usage=teller.total_usage(),
        summary=summary,
        trace=teller.build_trace(),
    )


class _CompletionLogBuilder:
    """The messages of an attempt, each told once."""

    def __init__(self, teller: SessionBuilder, *, several: bool) -> None:
        self.teller = teller
        self.several = several
        self.seen: set[tuple[str, ...]] = set()
        self.unnamed: deque[AnyEvent] = deque()
        self.system: str | None = None
        self.requested = False
        self.finished = False
        self.summary: str | None = None

    def add_logged_call(self, call: Mapping[str, Any], logs: Mapping[int, LoggedCall]) -> None:
        """What a call was sent and answered, but for what earlier stretches told."""
        messages = [*request_messages(call), reply_message(call)]
        earlier = self.seen
        current: set[tuple[str, ...]] = set()
        for place, raw_message in enumerate(messages):
            message = as_mapping(raw_message)
            if self.several:
                current.add(message_key := _message_key(message))
                if message_key in earlier:
                    continue
            if message:
                self._add_message(message, logs.get(place))
        self.seen = earlier | current

    def _add_message(self, message: dict[str, Any], log: LoggedCall | None) -> None:
        role, said = message.get("role"), openai_content_text(message.get("content"))
        self.teller.at = None
        if role == "system":
            self.system = self.system or self.teller.text_or_none(said)
        elif role == "assistant":
            self._add_assistant_message(message, said, log)
        elif role == "tool" or _RESULT_HEADER.match(said):
            self._add_result(message, said)
        elif role == "user":
            self.teller.add_user_message(said, None if self.requested else "request")
            self.requested = True
        else:
            self.teller.add_note(json_excerpt(message), f"unknown: {role}")

    def _add_assistant_message(
        self, message: dict[str, Any], said: str, log: LoggedCall | None
    ) -> None:
        turn = Turn()
        if log is not None:
            self.teller.at = log.at
            turn = Turn(usage=log.usage, model=log.model, at=log.at, seconds=log.seconds)
        self.teller.begin_turn(turn)
        if isinstance(reasoning := message.get("reasoning_content"), str):
            self.teller.add_thought(reasoning)
        calls = [_parse_native_call(call) for call in as_list(message.get("tool_calls"))]
        if not calls and (function_tag := _FUNCTION_TAG.search(said)):
            # Calls in text, for models that know no tools.
            calls = [(function_tag[1].strip(), dict(_PARAMETER_TAG.findall(function_tag[2])), None)]
            said = said[: function_tag.start()]
        self.finished = not calls
        if not calls:
            self.teller.add_agent_message(said)
            self.summary = self.teller.truncate_text(said)
        elif said and any(tool == "finish" and not given for tool, given, _ in calls):
            # Older versions end with a call that says nothing.
            calls = [(tool, given or {"message": said}, known) for tool, given, known in calls]
        else:
            self.teller.add_thought(said)
        for tool, call_arguments, call_id in calls:
            self._add_call(tool, call_arguments, call_id)

    def _add_call(self, tool: str, given: dict[str, Any] | None, known: str | None) -> None:
        if tool == "finish":
            given = given or {"message": "finish"}
        if tool == "think":
            said = self.teller.truncate_text(as_text(as_mapping(given).get("thought")) or "")
            event: AnyEvent = self.teller.add(Thought(**self.teller.event_fields(known), text=said))
        else:
            event = self.teller.add_call(tool, given, known)
        if event.call is None:
            self.unnamed.append(event)
        if tool == "finish":
            self.finished = True
            if isinstance(event, Message):
                self.summary = event.text

    def _add_result(self, message: dict[str, Any], said: str) -> None:
        call_id = as_text(message.get("tool_call_id"))
        event = self.teller.find_open_call(self.teller.lane, call_id)
        if event is None and self.unnamed:
            event = self.unnamed.popleft()
        said = _RESULT_HEADER.sub("", said, count=1)
        if event is None:
            self.teller.add_note(said, "result without a call")
            return
        finished_event = self.teller.add_result(event, said, _result_success(event, said))
        if isinstance(finished_event, Command) and finished_event.exit_code == -1:
            # It was still running.
            self.teller.update_event(finished_event, exit_code=None, exit_from=None)


def _message_key(message: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes a message the same one in another call's log."""
    calls = [as_mapping(call).get("function") for call in as_list(message.get("tool_calls"))]
    facts = (message.get("role"), message.get("tool_call_id"), calls)
    return (openai_content_text(message.get("content")), *map(str, facts))


def _parse_native_call(told: object) -> tuple[str, dict[str, Any] | None, str | None]:
    call = as_mapping(told)
    function = as_mapping(call.get("function"))
    call_arguments = function.get("arguments")
    call_arguments = (
        try_decode_json(call_arguments) if isinstance(call_arguments, str) else call_arguments
    )
    tool = as_text(function.get("name")) or "unknown"
    return (
        tool,
        call_arguments if isinstance(call_arguments, dict) else None,
        as_text(call.get("id")),
    )


def _result_success(event: AnyEvent, said: str) -> bool | None:
    """What the text of a result says of it; for most tools nothing."""
    start = said.lstrip()[:2000]
    if start.startswith(_REFUSAL_PREFIXES):
        return False
    if isinstance(event, Edit | Read) and any(sign in start for sign in _SUCCESS_MARKERS):
        return True
    return True if isinstance(event, Read) and start.startswith("Here's the result") else None
