"""What closeloop's own exports keep of a session that another format has no place for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from closeloop.records.attempt import Attempt, Exit
from closeloop.records.record import Record, Time
from closeloop.records.session import Session
from closeloop.records.trace import AnyEvent

EXPORT_KEY = "closeloop"
"""The name under which our exports keep it."""
_PLACE_FIELDS = frozenset({"number", "lane", "turn"})


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
