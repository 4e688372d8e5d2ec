"""OpenHands 0.x: a list of events, its folder of event files, or an evaluation's output lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces.openhands.files import first_value
from closeloop.traces.openhands.stream import Stream
from closeloop.traces.results import mark_claim, mark_corrections
from closeloop.traces.telling import identity
from closeloop.traces.untrusted import items, mapping, text

name = "openhands-events"
version = 2

SIGNS = (b'"action"', b'"observation"', b'"instance_id"', b'"instruction"')


def recognises(source: Source) -> bool:
    if not any(sign in source.head for sign in SIGNS):
        return False
    first = first_value(source)
    if isinstance(first, dict):
        return _is_output(first) or _is_stored(first)
    return isinstance(first, list) and bool(first) and _is_list(first)


def _is_event(told: object) -> bool:
    event = mapping(told)
    kind = event.get("action", event.get("observation"))
    return isinstance(kind, str) and not {"role", "type", "kind"} & event.keys()


def _is_list(told: list[Any]) -> bool:
    return all(
        _is_event(event) and "timestamp" in event and "source" in event for event in told[:3]
    )


def _is_stored(told: Mapping[str, Any]) -> bool:
    """One event of a session's folder."""
    whole = "args" in told or "extras" in told
    return whole and isinstance(told.get("id"), int) and _is_list([told])


def _is_output(told: Mapping[str, Any]) -> bool:
    """A line of an evaluation: one instance."""
    history = items(told.get("history"))
    first = history[0] if history else None
    first = first[0] if isinstance(first, list) and first else first
    return _is_event(first) and ("instruction" in told or "instance_id" in told)


def parts(source: Source) -> Sequence[Path]:
    if not _is_stored(mapping(first_value(source))):
        return ()
    return [path for path in _siblings(source.path.parent) if path != source.path]


def owner(source: Source) -> Path | None:
    if not _is_stored(mapping(first_value(source))):
        return None
    first = next(iter(_siblings(source.path.parent)), source.path)
    return first if first != source.path and source.path.stem.isdecimal() else None


def _siblings(folder: Path) -> list[Path]:
    """Event files are named by their number."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".json")]
    except OSError:
        return []
    numbered = [(int(stem), name) for name in names if (stem := name[:-5]).isdecimal()]
    return [folder / name for _, name in sorted(numbered)]


def read(source: Source) -> Iterator[Session]:
    told = first_value(source)
    if isinstance(told, list):
        yield _session(Stream(name, version, source), _flat(told), {})
    elif isinstance(told, dict) and _is_stored(told):
        numbered = source.path.stem.isdecimal()
        paths = _siblings(source.path.parent) if numbered else [source.path]
        events = (told if path == source.path else _event(source, path) for path in paths)
        yield _session(Stream(name, version, source), events, {})
    else:
        for line in source.records():
            if isinstance(line, dict) and _is_output(line):
                stream, history = Stream(name, version, source), [*_flat(items(line["history"]))]
                if (asked := text(line.get("instruction"))) and not any(map(_is_request, history)):
                    given = {"content": asked}
                    stream.tell({"source": "user", "action": "message", "args": given})
                yield _session(stream, iter(history), line)
            else:
                why = "a line that is no instance"
                source.skipped[why] = source.skipped.get(why, 0) + 1


def _is_request(event: Any) -> bool:
    told = mapping(event)
    return told.get("action") == "message" and told.get("source", "user") == "user"


def _event(source: Source, path: Path) -> Any:
    return source.beside(path).document


def _flat(history: list[Any]) -> Iterator[Any]:
    """Old files pair each action with its observation."""
    for event in history:
        if isinstance(event, list):
            yield from event
        else:
            yield event


def _session(stream: Stream, events: Iterator[Any], line: Mapping[str, Any]) -> Session:
    first: Any = None
    for event in events:
        first = first or event
        stream.tell(event)
    teller = stream.teller
    ended, cause = stream.ended(text(line.get("error")))
    mark_corrections(teller.builder)
    summary = mark_claim(teller.builder) if ended == "finished" else stream.summary
    metrics, metadata = mapping(line.get("metrics")), mapping(line.get("metadata"))
    patch = mapping(line.get("test_result")).get("git_patch") or line.get("git_patch")
    if isinstance(patch, str) and patch:
        teller.turn = None
        teller.note(patch, "submission")
    instance = teller.known(line.get("instance_id"))
    return Session(
        id=identity(
            name, first, instance, metadata.get("start_time"), metrics.get("accumulated_cost")
        ),
        agent="openhands",
        agent_version=stream.version,
        model=stream.model or teller.known(mapping(metadata.get("llm_config")).get("model")),
        system=stream.system,
        started=stream.started,
        ended=stream.last,
        exit=ended,
        cause=cause and teller.clean(cause),
        usage=stream.usage(metrics),
        summary=summary,
        commit=teller.known(line.get("base_commit")),
        links={"instance": instance} if instance else {},
        trace=teller.trace(),
    )
