"""OpenHands 0.x: a list of events, its folder of event files, or an evaluation's output lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.traces.readers.openhands_sdk import read_first_value
from closeloop.traces.readers.openhands_stream import OpenhandsStream
from closeloop.traces.session_builder import count_skip, derive_id
from closeloop.traces.untrusted_json import as_list, as_mapping, as_text

name = "openhands-events"
version = 2

FORMAT_MARKERS = (b'"action"', b'"observation"', b'"instance_id"', b'"instruction"')


def recognises(source: RecordingSource) -> bool:
    if not any(sign in source.head for sign in FORMAT_MARKERS):
        return False
    first = read_first_value(source)
    if isinstance(first, dict):
        return _is_output(first) or _is_folder_event(first)
    return isinstance(first, list) and bool(first) and _is_list(first)


def _is_event(told: object) -> bool:
    event = as_mapping(told)
    kind = event.get("action", event.get("observation"))
    return isinstance(kind, str) and not {"role", "type", "kind"} & event.keys()


def _is_list(told: list[Any]) -> bool:
    return all(
        _is_event(event) and "timestamp" in event and "source" in event for event in told[:3]
    )


def _is_folder_event(told: Mapping[str, Any]) -> bool:
    """One event of a session's folder."""
    whole = "args" in told or "extras" in told
    return whole and isinstance(told.get("id"), int) and _is_list([told])


def _is_output(told: Mapping[str, Any]) -> bool:
    """A line of an evaluation: one instance."""
    history = as_list(told.get("history"))
    first = history[0] if history else None
    first = first[0] if isinstance(first, list) and first else first
    return _is_event(first) and ("instruction" in told or "instance_id" in told)


def parts(source: RecordingSource) -> Sequence[Path]:
    if not _is_folder_event(as_mapping(read_first_value(source))):
        return ()
    return [path for path in _list_event_files(source.path.parent) if path != source.path]


def owner(source: RecordingSource) -> Path | None:
    if not _is_folder_event(as_mapping(read_first_value(source))):
        return None
    first = next(iter(_list_event_files(source.path.parent)), source.path)
    return first if first != source.path and source.path.stem.isdecimal() else None


def _list_event_files(folder: Path) -> list[Path]:
    """Event files are named by their number."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".json")]
    except OSError:
        return []
    numbered = [(int(stem), name) for name in names if (stem := name[:-5]).isdecimal()]
    return [folder / name for _, name in sorted(numbered)]


def read(source: RecordingSource) -> Iterator[Session]:
    first_document = read_first_value(source)
    if isinstance(first_document, list):
        yield _build_session(
            OpenhandsStream(name, version, source), _flatten_history(first_document), {}
        )
    elif isinstance(first_document, dict) and _is_folder_event(first_document):
        numbered = source.path.stem.isdecimal()
        paths = _list_event_files(source.path.parent) if numbered else [source.path]
        events = (
            first_document if path == source.path else _load_event(source, path) for path in paths
        )
        yield _build_session(OpenhandsStream(name, version, source), events, {})
    else:
        for line in source.records():
            if isinstance(line, dict) and _is_output(line):
                stream, history = (
                    OpenhandsStream(name, version, source),
                    [*_flatten_history(as_list(line["history"]))],
                )
                if (instruction := as_text(line.get("instruction"))) and not any(
                    map(_is_request, history)
                ):
                    message_fields = {"content": instruction}
                    stream.add_event(
                        {"source": "user", "action": "message", "args": message_fields}
                    )
                yield _build_session(stream, iter(history), line)
            else:
                why = "a line that is no instance"
                count_skip(source.skipped, why)


def _is_request(event: Any) -> bool:
    fields = as_mapping(event)
    return fields.get("action") == "message" and fields.get("source", "user") == "user"


def _load_event(source: RecordingSource, path: Path) -> Any:
    return source.beside(path).document


def _flatten_history(history: list[Any]) -> Iterator[Any]:
    """Old files pair each action with its observation."""
    for event in history:
        if isinstance(event, list):
            yield from event
        else:
            yield event


def _build_session(
    stream: OpenhandsStream, events: Iterator[Any], line: Mapping[str, Any]
) -> Session:
    first: Any = None
    for event in events:
        first = first or event
        stream.add_event(event)
    builder = stream.builder
    outcome, cause = stream.session_outcome(as_text(line.get("error")))
    builder.mark_corrections()
    summary = builder.mark_claim() if outcome == "finished" else stream.summary
    metrics, metadata = as_mapping(line.get("metrics")), as_mapping(line.get("metadata"))
    patch = as_mapping(line.get("test_result")).get("git_patch") or line.get("git_patch")
    if isinstance(patch, str) and patch:
        builder.turn = None
        builder.add_note(patch, "submission")
    instance = builder.text_or_none(line.get("instance_id"))
    return builder.build_session(
        id=derive_id(
            name, first, instance, metadata.get("start_time"), metrics.get("accumulated_cost")
        ),
        agent="openhands",
        agent_version=stream.version,
        model=stream.model
        or builder.text_or_none(as_mapping(metadata.get("llm_config")).get("model")),
        system=stream.system,
        exit=outcome,
        cause=cause and builder.truncate_text(cause),
        usage=stream.total_usage(metrics),
        summary=summary,
        commit=builder.text_or_none(line.get("base_commit")),
        links={"instance": instance} if instance else {},
    )
