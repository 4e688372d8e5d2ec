"""The result of a call, as its event tells it; and what closeloop's own exports add to a call."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

import msgspec

from closeloop.records.attempt import Attempt, Exit
from closeloop.records.record import Record, Time
from closeloop.records.session import Session
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Note,
    Read,
    Thought,
    ToolUse,
)
from closeloop.traces.tool_calls import find_exit_code
from closeloop.traces.trace_builder import ROOT_LANE, TraceBuilder
from closeloop.traces.untrusted_json import as_exit_code, as_mapping, try_decode_json

EXPORT_KEY = "closeloop"
"""The name under which our exports keep what another format has no place for."""
_CONTINUE_PHRASES = (
    "continue",
    "go on",
    "go ahead",
    "proceed",
    "resume",
    "carry on",
    "try again",
    "retry",
)
_SPOKEN_TYPES = frozenset({Message, Thought, Note})
_PLACE_FIELDS = frozenset({"number", "lane", "turn"})
_MAX_WRAPPED_CHARS = 1 << 20
_ERROR_PREFIXES = ("Error", "ERROR", "error", "Failed", "failed")
_FAILURE_WORDS = re.compile(
    r"\b(?:error|fail|unsuccessful|not found|no replacement)", re.IGNORECASE
)
_SUCCESS_WORDS = re.compile(
    r"\bsuccess|\bhas been (?:created|edited|overwritten|replaced|updated|written)\b", re.IGNORECASE
)


def result_fields(event: AnyEvent, output: str | None, ok: bool | None = None) -> dict[str, object]:
    """What a result says of its action: the fields to finish the event with."""
    if output and ok is None and isinstance(event, Edit):
        ok = _edit_success(output)
    failed = output if ok is False else None
    match event:
        case Command():
            code = find_exit_code(output)
            if code is None and output and output.startswith('{"') and '"exit_code"' in output:
                output, code = _unwrap_output(output)
            exit_from = None if code is None else "parsed"
            return {"output": output, "exit_code": code, "exit_from": exit_from}
        case Edit():
            return {"ok": ok, "error": failed}
        case Read():
            return {"ok": ok, "error": failed, "text": None if failed else output}
        case ToolUse():
            return {"output": output, "ok": ok}
        case Handoff():
            return {"report": output, "ok": ok}
    return {}


def _edit_success(output: str) -> bool | None:
    """Whether an edit was made, where the first words of its result say so."""
    if output.startswith('{"success":'):
        return output[11:].lstrip().startswith("true")
    first = output.lstrip().partition("\n")[0][:300]
    if _FAILURE_WORDS.search(first):
        return False if first.startswith(_ERROR_PREFIXES) else None
    return True if _SUCCESS_WORDS.search(first) else None


def _unwrap_output(output: str) -> tuple[str, int | None]:
    """What a command printed and how it ended, where a tool says both in an object."""
    fields = as_mapping(try_decode_json(output)) if len(output) < _MAX_WRAPPED_CHARS else {}
    code = as_exit_code(
        fields.get("exit_code", as_mapping(fields.get("metadata")).get("exit_code"))
    )
    printed = fields.get("output")
    if code is None or not isinstance(printed, str):
        # It may be what the command itself printed.
        return output, None
    return printed, code


def is_action(event: AnyEvent) -> bool:
    """Whether it is something done, not something said."""
    return type(event) not in _SPOKEN_TYPES


def mark_claim(builder: TraceBuilder) -> str | None:
    """The agent's last words; with nothing done after them, they claim that the work is done."""
    for event in reversed(builder.events):
        if event.lane != ROOT_LANE:
            continue
        answered = isinstance(event, Message) and event.intent in ("interrupt", "answer")
        if is_action(event) or answered:
            break
        if isinstance(event, Message) and event.role == "agent":
            if event.intent is None:
                builder.events[event.number - 1] = msgspec.structs.replace(event, intent="claim")
            break
    for event in reversed(builder.events):
        if event.lane == ROOT_LANE and isinstance(event, Message) and event.role == "agent":
            return event.text
    return None


def mark_corrections(builder: TraceBuilder) -> None:
    """What the user says after stopping an agent sets it right, unless it is to go on as before."""
    stopped: set[str] = set()
    for place, event in enumerate(builder.events):
        if not isinstance(event, Message):
            continue
        if event.intent == "interrupt":
            stopped.add(event.lane)
        elif event.role == "user" and event.lane in stopped:
            stopped.discard(event.lane)
            if event.intent is None and event.text.strip(" .!\n").lower() not in _CONTINUE_PHRASES:
                builder.events[place] = msgspec.structs.replace(event, intent="correction")


def drop_unknown_children(builder: TraceBuilder, lanes: Collection[str]) -> None:
    """Handoffs may only name lanes that are there, whatever a file says."""
    for event in builder.events:
        if isinstance(event, Handoff) and event.child is not None and event.child not in lanes:
            builder.events[event.number - 1] = msgspec.structs.replace(event, child=None)


def extra_fields(event: AnyEvent, plain: AnyEvent) -> dict[str, Any]:
    """What `plain`, as another format would tell it, does not say of an event."""
    same = type(event) is type(plain)
    plain_fields = msgspec.structs.asdict(plain) if same else {}
    more = {
        name: msgspec.to_builtins(value)
        for name, value in msgspec.structs.asdict(event).items()
        if name not in _PLACE_FIELDS and (name not in plain_fields or plain_fields[name] != value)
    }
    return more if same else {"kind": type(event).__struct_config__.tag, **more}


class SessionExtras(Record):
    """What our exports keep of a session besides its trace."""

    exit: Exit = "finished"
    cause: str | None = None
    started: Time | None = None
    ended: Time | None = None
    summary: str | None = None
    directory: str | None = None
    branch: str | None = None
    commit: str | None = None
    user: str | None = None
    parent: str | None = None
    links: dict[str, str] = {}


def session_extras(of: Attempt | Session) -> dict[str, Any]:
    """What `parse_session_extras` reads again."""
    names = (name for name in SessionExtras.__struct_fields__ if name in of.__struct_fields__)
    return cast(
        dict[str, Any],
        msgspec.to_builtins(SessionExtras(**{name: getattr(of, name) for name in names})),
    )


def parse_session_extras(value: Any) -> SessionExtras | None:
    """None where closeloop did not write it."""
    try:
        return msgspec.convert(value, SessionExtras) if isinstance(value, Mapping) else None
    except msgspec.ValidationError:
        return None


def restore_event(event: AnyEvent, more: Any) -> AnyEvent:
    """The event with what `facts` kept of it; as it is where they do not fit."""
    if not isinstance(more, Mapping):
        return event
    place = {name: getattr(event, name) for name in _PLACE_FIELDS}
    try:
        merged_fields = {**msgspec.to_builtins(event), **more, **place}
        return cast(AnyEvent, msgspec.convert(merged_fields, AnyEvent))
    except (msgspec.ValidationError, TypeError):
        return event
