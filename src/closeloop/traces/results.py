"""The result of a call, as its event tells it; and what closeloop's own exports add to a call."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

import msgspec

from closeloop.model.attempt import Attempt, Exit
from closeloop.model.record import Record, Time
from closeloop.model.session import Session
from closeloop.model.trace import (
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
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import exit_code_in
from closeloop.traces.untrusted import decoded, exit_code, mapping

OWN = "closeloop"
"""The name under which our exports keep what another format has no place for."""
_GO_ON = ("continue", "go on", "go ahead", "proceed", "resume", "carry on", "try again", "retry")
_WORDS = frozenset({Message, Thought, Note})
_PLACE = frozenset({"number", "lane", "turn"})
_MOST = 1 << 20
_FAULTS = ("Error", "ERROR", "error", "Failed", "failed")
_FAILED = re.compile(r"\b(?:error|fail|unsuccessful|not found|no replacement)", re.IGNORECASE)
_MADE = re.compile(
    r"\bsuccess|\bhas been (?:created|edited|overwritten|replaced|updated|written)\b", re.IGNORECASE
)


def result_of(event: AnyEvent, output: str | None, ok: bool | None = None) -> dict[str, object]:
    """What a result says of its action: the fields to finish the event with."""
    if output and ok is None and isinstance(event, Edit):
        ok = _edited(output)
    failed = output if ok is False else None
    match event:
        case Command():
            code = exit_code_in(output)
            if code is None and output and output.startswith('{"') and '"exit_code"' in output:
                output, code = _unwrapped(output)
            found = None if code is None else "parsed"
            return {"output": output, "exit_code": code, "exit_from": found}
        case Edit():
            return {"ok": ok, "error": failed}
        case Read():
            return {"ok": ok, "error": failed, "text": None if failed else output}
        case ToolUse():
            return {"output": output, "ok": ok}
        case Handoff():
            return {"report": output, "ok": ok}
    return {}


def _edited(output: str) -> bool | None:
    """Whether an edit was made, where the first words of its result say so."""
    if output.startswith('{"success":'):
        return output[11:].lstrip().startswith("true")
    first = output.lstrip().partition("\n")[0][:300]
    if _FAILED.search(first):
        return False if first.startswith(_FAULTS) else None
    return True if _MADE.search(first) else None


def _unwrapped(output: str) -> tuple[str, int | None]:
    """What a command printed and how it ended, where a tool says both in an object."""
    told = mapping(decoded(output)) if len(output) < _MOST else {}
    code = exit_code(told.get("exit_code", mapping(told.get("metadata")).get("exit_code")))
    printed = told.get("output")
    if code is None or not isinstance(printed, str):
        # It may be what the command itself printed.
        return output, None
    return printed, code


def is_action(event: AnyEvent) -> bool:
    """Whether it is something done, not something said."""
    return type(event) not in _WORDS


def mark_claim(builder: Builder) -> str | None:
    """The agent's last words; with nothing done after them, they claim that the work is done."""
    for event in reversed(builder.events):
        if event.lane != ROOT:
            continue
        answered = isinstance(event, Message) and event.intent in ("interrupt", "answer")
        if is_action(event) or answered:
            break
        if isinstance(event, Message) and event.role == "agent":
            if event.intent is None:
                builder.events[event.number - 1] = msgspec.structs.replace(event, intent="claim")
            break
    for event in reversed(builder.events):
        if event.lane == ROOT and isinstance(event, Message) and event.role == "agent":
            return event.text
    return None


def mark_corrections(builder: Builder) -> None:
    """What the user says after stopping an agent sets it right, unless it is to go on as before."""
    stopped: set[str] = set()
    for place, event in enumerate(builder.events):
        if not isinstance(event, Message):
            continue
        if event.intent == "interrupt":
            stopped.add(event.lane)
        elif event.role == "user" and event.lane in stopped:
            stopped.discard(event.lane)
            if event.intent is None and event.text.strip(" .!\n").lower() not in _GO_ON:
                builder.events[place] = msgspec.structs.replace(event, intent="correction")


def drop_unknown_children(builder: Builder, lanes: Collection[str]) -> None:
    """Handoffs may only name lanes that are there, whatever a file says."""
    for event in builder.events:
        if isinstance(event, Handoff) and event.child is not None and event.child not in lanes:
            builder.events[event.number - 1] = msgspec.structs.replace(event, child=None)


def facts(event: AnyEvent, plain: AnyEvent) -> dict[str, Any]:
    """What `plain`, as another format would tell it, does not say of an event."""
    same = type(event) is type(plain)
    told = msgspec.structs.asdict(plain) if same else {}
    more = {
        name: msgspec.to_builtins(value)
        for name, value in msgspec.structs.asdict(event).items()
        if name not in _PLACE and (name not in told or told[name] != value)
    }
    return more if same else {"kind": type(event).__struct_config__.tag, **more}


class Kept(Record):
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


def kept(of: Attempt | Session) -> dict[str, Any]:
    """What `kept_in` reads again."""
    names = (name for name in Kept.__struct_fields__ if name in of.__struct_fields__)
    return cast(
        dict[str, Any], msgspec.to_builtins(Kept(**{name: getattr(of, name) for name in names}))
    )


def kept_in(value: Any) -> Kept | None:
    """None where closeloop did not write it."""
    try:
        return msgspec.convert(value, Kept) if isinstance(value, Mapping) else None
    except msgspec.ValidationError:
        return None


def restored(event: AnyEvent, more: Any) -> AnyEvent:
    """The event with what `facts` kept of it; as it is where they do not fit."""
    if not isinstance(more, Mapping):
        return event
    place = {name: getattr(event, name) for name in _PLACE}
    try:
        whole = {**msgspec.to_builtins(event), **more, **place}
        return cast(AnyEvent, msgspec.convert(whole, AnyEvent))
    except (msgspec.ValidationError, TypeError):
        return event
