"""OpenHands' `llm_completions`: one file per model call, the last with the whole dialogue."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import Record
from closeloop.records.trace import AnyEvent, Command, Edit, Message, Read, Session, Thought, Turn
from closeloop.text.untrusted import clean_unicode
from closeloop.traces.file_source import FileSource
from closeloop.traces.session_builder import UNPAIRED_RESULT, SessionBuilder, derive_id
from closeloop.traces.untrusted_json import (
    as_amount,
    as_list,
    as_mapping,
    as_text,
    content_text,
    json_excerpt,
    time_from_seconds,
    try_decode_json,
    usage_from_openai,
)

name = "openhands-completions"
version = 4

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
_NOT_EXECUTED_PREFIXES = (
    "ERROR: Cannot execute multiple commands at once",
    "ERROR: No previous command to continue from",
)
_TRACEBACK = "Traceback (most recent call last)"
_SUCCESS_MARKERS = ("has been edited.", "File created successfully", "Last edit to ", "[File ")


def recognises(source: RecordingSource) -> bool:
    return b'"messages"' in source.head and is_completion_log(source.document)


def parts(source: RecordingSource) -> Sequence[Path]:
    attempt = list_attempt_calls(source)
    if attempt[-1].path != source.path:
        return ()
    return [call.path for call in attempt[:-1]]


def owner(source: RecordingSource) -> Path | None:
    last = list_attempt_calls(source)[-1].path
    return last if last != source.path else None


def read(source: RecordingSource) -> Iterator[Session]:
    attempt = list_attempt_calls(source)
    if attempt[-1].path != source.path:
        attempt = attempt[: [call.path for call in attempt].index(source.path) + 1]
    stretches = list(_split_stretches(attempt))
    dialogue = _CompletionLog(
        SessionBuilder(name, version, source.skipped, several=True), several=len(stretches) > 1
    )
    for number, stretch in enumerate(stretches):
        last = stretch[-1].path
        document = source.document if last == source.path else source.beside(last).document
        if number:
            dialogue.builder.turn = None
            dialogue.builder.add_note("The dialogue was shortened.", "compaction")
        dialogue.add_logged_call(as_mapping(document), {call.messages: call for call in stretch})
    yield _build_session(dialogue, attempt)


def _split_stretches(attempt: list[LoggedCall]) -> Iterator[list[LoggedCall]]:
    """Yield the calls between two compactions, within which the dialogue only grows."""
    stretch: list[LoggedCall] = []
    for call in attempt:
        if stretch and call.messages < stretch[-1].messages:
            yield stretch
            stretch = []
        stretch.append(call)
    yield stretch


def _build_session(dialogue: _CompletionLog, attempt: list[LoggedCall]) -> Session:
    builder, first = dialogue.builder, attempt[0]
    summary = builder.mark_claim() if dialogue.finished else dialogue.summary
    times = [call.at for call in attempt if call.at is not None]
    models = [call.model for call in attempt if call.model is not None]
    # Logged calls are not the full usage of a dialogue if other calls are missing.
    is_whole = first.opening and builder.count_turns(builder.lane) <= len(attempt)
    return builder.build_session(
        id=derive_id(name, first.request, first.known, first.at),
        agent="openhands",
        model=models[-1] if models else None,
        system=dialogue.system,
        started=min(times, default=None),
        ended=max(times, default=None),
        usage=builder.total_usage() if is_whole else Usage(),
        exit="finished" if dialogue.finished else "crashed",
        cause=None if dialogue.finished else "the log ends with a call",
        summary=summary,
    )


class _CompletionLog:
    """The messages of an attempt, each added once."""

    def __init__(self, builder: SessionBuilder, *, several: bool) -> None:
        self.builder = builder
        self.several = several
        self.seen: set[tuple[str, ...]] = set()
        self.unnamed: deque[AnyEvent] = deque()
        self.system: str | None = None
        self.requested = False
        self.finished = False
        self.summary: str | None = None

    def add_logged_call(self, call: Mapping[str, Any], logs: Mapping[int, LoggedCall]) -> None:
        """Add a call's request and answer without what earlier parts contained."""
        messages = [*request_messages(call), reply_message(call)]
        earlier = self.seen
        current: set[tuple[str, ...]] = set()
        for index, raw_message in enumerate(messages):
            message = as_mapping(raw_message)
            if self.several:
                current.add(message_key := _message_key(message))
                if message_key in earlier:
                    continue
            if message:
                self._add_message(message, logs.get(index))
        self.seen = earlier | current

    def _add_message(self, message: dict[str, Any], log: LoggedCall | None) -> None:
        role, text = message.get("role"), content_text(message.get("content"))
        self.builder.at = None
        if role == "system":
            self.system = self.system or self.builder.text_or_none(text)
        elif role == "assistant":
            self._add_assistant_message(message, text, log)
        elif role == "tool" or _RESULT_HEADER.match(text):
            self._add_result(message, text)
        elif role == "user":
            self.builder.add_user_message(text, None if self.requested else "request")
            self.requested = True
        else:
            self.builder.add_note(json_excerpt(message), f"unknown: {role}")

    def _add_assistant_message(
        self, message: dict[str, Any], text: str, log: LoggedCall | None
    ) -> None:
        turn = Turn()
        if log is not None:
            self.builder.at = log.at
            turn = Turn(usage=log.usage, model=log.model, at=log.at, seconds=log.seconds)
        self.builder.begin_turn(turn)
        if isinstance(reasoning := message.get("reasoning_content"), str):
            self.builder.add_thought(reasoning)
        calls = [_parse_native_call(call) for call in as_list(message.get("tool_calls"))]
        if not calls and (function_tag := _FUNCTION_TAG.search(text)):
            # Calls in text, for models without tool support.
            calls = [(function_tag[1].strip(), dict(_PARAMETER_TAG.findall(function_tag[2])), None)]
            text = text[: function_tag.start()]
        self.finished = not calls
        if not calls:
            self.builder.add_agent_message(text)
            self.summary = self.builder.truncate_text(text)
        elif text and any(tool == "finish" and not arguments for tool, arguments, _ in calls):
            # Older versions end with an empty call.
            calls = [
                (tool, arguments or {"message": text}, call_id)
                for tool, arguments, call_id in calls
            ]
        else:
            self.builder.add_thought(text)
        for tool, call_arguments, call_id in calls:
            self._add_call(tool, call_arguments, call_id)

    def _add_call(self, tool: str, arguments: dict[str, Any] | None, call_id: str | None) -> None:
        if tool == "finish":
            arguments = arguments or {"message": "finish"}
        if tool == "think":
            text = self.builder.truncate_text(as_text(as_mapping(arguments).get("thought")) or "")
            event: AnyEvent = self.builder.add(
                Thought(**self.builder.event_fields(call_id), text=text)
            )
        else:
            event = self.builder.add_call(tool, arguments, call_id)
        if event.call is None:
            self.unnamed.append(event)
        if tool == "finish":
            self.finished = True
            if isinstance(event, Message):
                self.summary = event.text

    def _add_result(self, message: dict[str, Any], text: str) -> None:
        call_id = as_text(message.get("tool_call_id"))
        event = self.builder.find_open_call(self.builder.lane, call_id)
        if event is None and self.unnamed:
            event = self.unnamed.popleft()
        text = _RESULT_HEADER.sub("", text, count=1)
        if event is None:
            self.builder.add_note(text, UNPAIRED_RESULT)
            return
        if isinstance(event, Command) and text.startswith(_NOT_EXECUTED_PREFIXES):
            finished_event = self.builder.add_refusal(event, text)
        else:
            finished_event = self.builder.add_result(event, text, _result_success(event, text))
        if isinstance(finished_event, Command) and finished_event.exit_code == -1:
            # It was still running.
            self.builder.update_event(finished_event, exit_code=None, exit_from=None)


def _message_key(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what identifies a message in another call's log."""
    calls = [as_mapping(call).get("function") for call in as_list(message.get("tool_calls"))]
    facts = (message.get("role"), message.get("tool_call_id"), calls)
    return (content_text(message.get("content")), *map(str, facts))


def _parse_native_call(record: object) -> tuple[str, dict[str, Any] | None, str | None]:
    call = as_mapping(record)
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


def _result_success(event: AnyEvent, text: str) -> bool | None:
    """Return what the text of a result says about success; None for most tools."""
    start = text.lstrip()[:2000]
    if start.startswith(_REFUSAL_PREFIXES):
        return False
    if isinstance(event, Edit | Read) and start.startswith("-----") and _TRACEBACK in start:
        # The editor itself failed.
        return False
    if isinstance(event, Edit | Read) and any(sign in start for sign in _SUCCESS_MARKERS):
        return True
    return True if isinstance(event, Read) and start.startswith("Here's the result") else None


class LoggedCall(Record):
    """One model call, by its place in the dialogue."""

    path: Path
    request: str
    """Digest of the user's first request."""
    messages: int
    opening: bool
    """Whether nothing was answered before: an attempt begins here."""
    at: datetime | None
    seconds: float | None
    known: str | None
    model: str | None
    usage: Usage


def is_completion_log(record: object) -> bool:
    """Whether a document is one call: its request and its answer."""
    call = as_mapping(record)
    answer = as_mapping(call.get("response"))
    first = as_mapping(next(iter(as_list(call.get("messages"))), None))
    has_own_keys = "fncall_messages" in call or "kwargs" in call or "raw_messages" in call
    return (
        "role" in first
        and has_own_keys
        and isinstance(answer.get("choices"), list)
        and "timestamp" in call
        and "cost" in call
    )


def request_messages(call: Mapping[str, Any]) -> list[Any]:
    """Return the dialogue with its tool calls, if text calls were made from them."""
    for key in ("fncall_messages", "raw_messages", "messages"):
        if isinstance(messages := call.get(key), list) and messages:
            return messages
    return []


def reply_message(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer, with its tool calls if there is such a form."""
    for key in ("fncall_response", "response"):
        choices = as_list(as_mapping(call.get(key)).get("choices"))
        if choices and (message := as_mapping(as_mapping(choices[0]).get("message"))):
            return message
    return {}


def parse_logged_call(path: Path, record: object) -> LoggedCall:
    """Parse the facts of one call."""
    call = as_mapping(record)
    messages = [as_mapping(message) for message in request_messages(call)]
    first_request = next(
        (
            content_text(message.get("content"))
            for message in messages
            if message.get("role") == "user"
        ),
        "",
    )
    answer = as_mapping(call.get("response"))
    response_id, model = as_text(answer.get("id")), as_text(answer.get("model"))
    return LoggedCall(
        path=path,
        request=derive_id(first_request),
        messages=len(messages),
        opening=all(message.get("role") != "assistant" for message in messages),
        at=time_from_seconds(call.get("timestamp")),
        seconds=as_amount(call.get("latency_sec")),
        known=clean_unicode(response_id) if response_id else None,
        model=clean_unicode(model) if model else None,
        usage=usage_from_openai(answer.get("usage"), call.get("cost")),
    )


def list_attempt_calls(source: RecordingSource) -> list[LoggedCall]:
    """Return the calls of a file's attempt, in order; the last one contains the most."""
    own_call = parse_logged_call(source.path, source.document)
    try:
        changed = source.path.parent.stat().st_mtime_ns
    except OSError:
        return [own_call]
    attempt_calls: list[LoggedCall] = []
    for call in _calls_in_folder(source.path.parent, changed).get(own_call.request, ()):
        if call.opening and attempt_calls:
            if any(logged_call.path == source.path for logged_call in attempt_calls):
                return attempt_calls
            attempt_calls = []
        attempt_calls.append(call)
    return (
        attempt_calls
        if any(logged_call.path == source.path for logged_call in attempt_calls)
        else [own_call]
    )


@lru_cache(maxsize=8)
def _calls_in_folder(folder: Path, changed: int) -> dict[str, list[LoggedCall]]:
    """Return the calls in a folder by request, in order; read once."""
    calls: dict[str, list[LoggedCall]] = {}
    try:
        with os.scandir(folder) as entries:
            paths = sorted(folder / entry.name for entry in entries if entry.is_file())
    except OSError:
        return calls
    for path in paths:
        file = FileSource(path)
        document = file.document if b'"messages"' in file.head else None
        if is_completion_log(document):
            logged_call = parse_logged_call(path, document)
            calls.setdefault(logged_call.request, []).append(logged_call)
    for group in calls.values():
        group.sort(key=lambda call: (call.at.timestamp() if call.at else 0.0, call.messages))
    return calls
