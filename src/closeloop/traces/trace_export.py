"""What all exports share: lanes, calls and our own extras; and events as JSON lines or a table."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, BinaryIO, cast, get_args

import msgspec

from closeloop.records.attempt import Attempt, Exit
from closeloop.records.errors import BadInput
from closeloop.records.record import Record, Time
from closeloop.records.session import Session
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    Read,
    ToolUse,
    Trace,
)
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields

ExportSource = Attempt | Session

_MESSAGE_TOOLS = {"question": ("ask_user", "question"), "claim": ("finish", "summary")}
EXPORT_KEY = "closeloop"
"""The name under which our exports keep it."""
_PLACE_FIELDS = frozenset({"number", "lane", "turn"})
MAX_INDENT = 8
_INTEGERS = frozenset({"number", "turn", "exit_code", "first_line", "last_line"})


class ExportedCall(Record):
    """A call as formats with tools have it."""

    id: str
    name: str
    arguments: dict[str, Any]
    result: str | None
    ok: bool | None
    more: dict[str, Any]
    """What a reader of the rest would not know of the event."""


def is_call_event(event: AnyEvent) -> bool:
    """Whether an event is told as a call: something done, or said by way of a tool."""
    if isinstance(event, Message):
        return event.role == "agent" and event.call is not None
    return isinstance(event, Command | Edit | Read | ToolUse | Handoff)


def call_from_event(event: AnyEvent, at: datetime | None) -> ExportedCall:
    """The call that an event is, in a message of the time `at`."""
    name, arguments = _tool_and_arguments(event)
    call_arguments = {key: value for key, value in arguments.items() if value is not None}
    call_id = event.call or f"closeloop-{event.number}"
    result = _result_text(event)
    ok = getattr(event, "ok", None)
    origin = CallOrigin(number=event.number, lane=event.lane, turn=event.turn, at=at, call=call_id)
    bare_event = event_from_call(name, call_arguments, origin)
    if result is not None or ok is not None:
        bare_event = msgspec.structs.replace(bare_event, **result_fields(bare_event, result, ok))
    return ExportedCall(
        id=call_id,
        name=name,
        arguments=call_arguments,
        result=result,
        ok=ok,
        more=extra_fields(event, bare_event),
    )


def _tool_and_arguments(event: AnyEvent) -> tuple[str, dict[str, Any]]:
    match event:
        case Command():
            return "bash", {"command": event.command, "workdir": event.directory}
        case Edit(action="create"):
            return "write", {"path": event.path, "content": event.after}
        case Edit():
            texts = {"old_string": event.before, "new_string": event.after, "patch": event.patch}
            return "edit", {"path": event.path, **texts}
        case Read():
            lines = {"first_line": event.first_line, "last_line": event.last_line}
            return "read", {"path": event.path, **lines}
        case Handoff():
            return "task", {"prompt": event.brief}
        case ToolUse():
            return event.name, event.arguments or {}
        case Message():
            name, argument = _MESSAGE_TOOLS.get(event.intent or "", ("say", "text"))
            return name, {argument: event.text}
    raise TypeError(type(event).__name__)


def _result_text(event: AnyEvent) -> str | None:
    match event:
        case Command() | ToolUse():
            return event.output
        case Edit():
            return event.error
        case Read():
            return event.text if event.error is None else event.error
        case Handoff():
            return event.report
    return None


def source_agent(of: ExportSource, trace: Trace) -> str:
    """The agent's name."""
    if isinstance(of, Session):
        return of.agent
    return next((lane.agent for lane in trace.lanes if lane.agent), trace.reader)


def source_agent_version(of: ExportSource) -> str | None:
    return of.agent_version if isinstance(of, Session) else None


def source_model(of: ExportSource, trace: Trace) -> str | None:
    if isinstance(of, Session) and of.model:
        return of.model
    return next((turn.model for lane in trace.lanes for turn in lane.turns if turn.model), None)


def source_system_prompt(of: ExportSource) -> str | None:
    return of.system if isinstance(of, Session) else None


def lanes_in_order(trace: Trace) -> Iterator[tuple[Lane, str | None]]:
    """Each lane with its parent: parents first, the root first of all."""
    lanes_by_id = {lane.id: lane for lane in trace.lanes}
    children: dict[str | None, list[Lane]] = {}
    for lane in trace.lanes:
        parent = lane.parent if lane.parent in lanes_by_id and lane.parent != lane.id else None
        children.setdefault(parent, []).append(lane)
    tops = children.get(None, []) or list(trace.lanes[:1])
    root, *others = tops or [Lane(id="root")]
    # A trace has one root; what else stands at the top is put below it.
    waiting: list[tuple[Lane, str | None]] = [(root, None), *((one, root.id) for one in others)]
    seen: set[str] = set()
    while waiting:
        lane, parent = waiting.pop(0)
        if lane.id not in seen:
            seen.add(lane.id)
            yield lane, parent
            waiting.extend((child, lane.id) for child in children.get(lane.id, []))


def events_by_lane(trace: Trace) -> dict[str, list[AnyEvent]]:
    """The events of each lane, in order."""
    by_lane: dict[str, list[AnyEvent]] = {}
    for event in trace.events:
        by_lane.setdefault(event.lane, []).append(event)
    return by_lane


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


def lane_depths(lanes: Iterable[Lane]) -> dict[str, int]:
    """How far each lane is indented: one step more than the lane that started it."""
    parents = {lane.id: lane.parent for lane in lanes}
    depth_by_lane: dict[str, int] = {}
    for name, parent in parents.items():
        above, steps = parent, 0
        while above is not None and steps < MAX_INDENT:
            above, steps = parents.get(above), steps + 1
        depth_by_lane[name] = steps
    return depth_by_lane


def export_jsonl(of: ExportSource, trace: Trace) -> Iterator[bytes]:
    """Lines, each with the id of what the event belongs to."""
    for event in trace.events:
        yield msgspec.json.encode({"attempt": of.id, **msgspec.to_builtins(event)}) + b"\n"


def export_parquet(of: ExportSource, trace: Trace) -> bytes:
    """One table of one trace."""
    file = io.BytesIO()
    write_parquet([(of, trace)], file)
    return file.getvalue()


def write_parquet(traces: Iterable[tuple[ExportSource, Trace]], file: BinaryIO) -> int:
    """One table of many traces, each written when it comes; how many rows there are."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise BadInput("Parquet needs pyarrow: pip install 'closeloop[parquet]'.") from None
    schema = _make_schema(pyarrow)
    rows = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for of, trace in traces:
            trace_rows = [_event_row(of, event) for event in trace.events]
            writer.write_table(pyarrow.Table.from_pylist(trace_rows, schema=schema))
            rows += len(trace_rows)
    return rows


def parquet_columns() -> list[str]:
    """Every field that any event has, those of all events first."""
    fields = (name for event in get_args(AnyEvent) for name in event.__struct_fields__)
    return ["attempt", "kind", *dict.fromkeys(fields)]


def _make_schema(pyarrow: Any) -> Any:
    kinds = {"at": pyarrow.timestamp("us", "UTC"), "seconds": pyarrow.float64(),
             "ok": pyarrow.bool_()}  # fmt: skip
    kinds |= dict.fromkeys(_INTEGERS, pyarrow.int64())
    return pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in parquet_columns()])


def _event_row(of: ExportSource, event: AnyEvent) -> dict[str, Any]:
    row = {"attempt": of.id, "kind": type(event).__struct_config__.tag}
    row |= msgspec.structs.asdict(event)
    arguments = row.get("arguments")
    if arguments is not None:
        row["arguments"] = msgspec.json.encode(arguments).decode()
    return row
