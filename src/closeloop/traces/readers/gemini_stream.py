"""What Gemini CLI prints with `--output-format stream-json`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from closeloop.model.attempt import Exit, Usage
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import Command, Message, Read, Turn
from closeloop.traces import single
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin
from closeloop.traces.contents import asked, settle, shell_exit
from closeloop.traces.results import mark_claim
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import (
    arguments,
    between,
    count,
    decoded,
    label,
    mapping,
    moment,
    raw,
    text,
)

name = "gemini-stream"
version = 2
parts, owner = single.parts, single.owner

_NOTHING_ELSE = re.compile(r"Command exited with code: (-?\d{1,9})")
_EXITS: dict[str, Exit] = {
    "FatalTurnLimitedError": "out_of_budget",
    "FatalCancellationError": "gave_up",
}


def recognises(source: Source) -> bool:
    return any(_is_own(record) for record in source.lines or _printed(source))


def read(source: Source) -> Iterator[Session]:
    """One session for each run that was written into the file."""
    stream, runs = _Stream(source), 0
    for record in source.records():
        found = mapping(record)
        if stream.is_over(found):
            yield _session(stream, source, runs)
            stream, runs = _Stream(source), runs + 1
        stream.take(found, record)
    yield _session(stream, source, runs)


def _session(stream: _Stream, source: Source, place: int) -> Session:
    stream.close_words()
    builder = stream.builder
    digest = hashlib.sha256(source.head).hexdigest()[:16]
    return Session(
        id=stream.session or (f"{digest}-{place + 1}" if place else digest),
        agent="gemini-cli",
        model=stream.model,
        started=stream.first,
        ended=stream.last,
        exit=stream.exit,
        cause=stream.cause,
        usage=stream.usage,
        summary=mark_claim(builder),
        copy="printed",
        trace=builder.trace(source.skipped),
    )


def _is_own(record: object) -> bool:
    found = mapping(record)
    if not isinstance(found.get("timestamp"), str):
        return False
    needed = {"init": ("session_id", "model"), "tool_use": ("tool_name", "tool_id")}
    names = needed.get(str(found.get("type")))
    return names is not None and all(isinstance(found.get(key), str) for key in names)


def _printed(source: Source) -> Iterator[Any]:
    """The first records of a terminal's log: warnings stand before them."""
    if b'"session_id"' not in source.head or b'"init"' not in source.head:
        return
    for line in source.head.splitlines()[:40]:
        if line.startswith(b'{"type"'):
            yield decoded(line)


def _exit_code(printed: str, *, failed: bool) -> int | None:
    """Stated where a command printed nothing, or failed; else all of it is its own output."""
    if found := _NOTHING_ELSE.fullmatch(printed):
        return int(found[1])
    return shell_exit(printed) if failed else None


class _Stream:
    """Events as they come; a message comes in pieces."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.builder = Builder(name, version)
        self.session: str | None = None
        self.model: str | None = None
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.exit: Exit = "crashed"
        self.cause: str | None = "The output ends before its result."
        self.usage = Usage()
        self.ended = False
        self._pieces: list[str] = []
        self._begun: datetime | None = None
        self._turn: int | None = None

    def is_over(self, found: Mapping[str, Any]) -> bool:
        """Whether a record is of another run: each has an id, and ends with its result."""
        kind, session = found.get("type"), label(found.get("session_id"))
        if kind == "init" and self.session is not None:
            return session != self.session
        return self.ended and kind in ("init", "message")

    def take(self, found: Mapping[str, Any], record: object) -> None:
        at = moment(found.get("timestamp"))
        if at is not None:
            self.first = self.first or at
            self.last = at
        kind = found.get("type")
        if kind == "message" and found.get("role") == "assistant":
            self._say(found, at)
            return
        self.close_words()
        if kind == "message" and found.get("role") == "user":
            self._user(found, at)
        elif kind == "tool_use":
            self._call(found, at)
        elif kind == "tool_result":
            self._result(found)
        elif kind == "init":
            self.session = label(found.get("session_id")) or self.session
            self.model = label(found.get("model")) or self.model
        elif kind == "result":
            self._end(found)
        elif kind == "error":
            severity = label(found.get("severity")) or "error"
            self.builder.note(shortened(text(found.get("message")) or ""), about=severity, at=at)
        else:
            self.builder.note(raw(record), about=f"unknown: {raw(kind)}", at=at)

    def _open_turn(self, at: datetime | None) -> int:
        """Results end a turn: what the model says and calls next is another message of it."""
        if self._turn is None:
            self._turn = self.builder.turn(ROOT, Turn(model=self.model, at=at))
        return self._turn

    def _say(self, found: Mapping[str, Any], at: datetime | None) -> None:
        if found.get("delta") is not True:
            self.close_words()
        self._open_turn(at)
        if not self._pieces:
            self._begun = at
        self._pieces.append(text(found.get("content")) or "")

    def close_words(self) -> None:
        said = shortened("".join(self._pieces), self.source.skipped)
        self._pieces.clear()
        if said:
            self.builder.add(
                Message(
                    number=self.builder.number,
                    lane=ROOT,
                    turn=self._turn,
                    at=self._begun,
                    role="agent",
                    text=said,
                )
            )

    def _user(self, found: Mapping[str, Any], at: datetime | None) -> None:
        self._turn = None
        said = shortened(text(found.get("content")) or "", self.source.skipped)
        self.builder.hear(said, lane=ROOT, at=at)

    def _call(self, found: Mapping[str, Any], at: datetime | None) -> None:
        origin = Origin(
            number=self.builder.number,
            lane=ROOT,
            turn=self._open_turn(at),
            at=at,
            call=label(found.get("tool_id")),
        )
        given = arguments(found.get("parameters"), self.source.skipped)
        self.builder.add(asked(label(found.get("tool_name")) or "unknown", given, origin))

    def _result(self, found: Mapping[str, Any]) -> None:
        self._turn = None
        event = self.builder.waiting(ROOT, label(found.get("tool_id")))
        if event is None:
            self.builder.note(raw(found), about="result without a call")
            return
        status = found.get("status")
        ok = {"success": True, "error": False}.get(status) if isinstance(status, str) else None
        printed = text(found.get("output"))
        why = text(mapping(found.get("error")).get("message")) if ok is False else None
        words = "\n".join(dict.fromkeys(one for one in (printed, why) if one))
        output = shortened(words, self.source.skipped) if words else None
        more: dict[str, object] = {
            "seconds": between(event.at, moment(found.get("timestamp"))),
        }
        if isinstance(event, Command):
            output = output or ("" if ok is not None else None)
            code = _exit_code(printed or "", failed=ok is False)
            more |= {"exit_code": code, "exit_from": None if code is None else "parsed"}
        elif isinstance(event, Read) and ok:
            # A remark for the eye, not what was read.
            more["text"] = None
        # That a sub-agent came back says nothing of how.
        settle(self.builder, event, output, ok, {"state": "unknown"}, **more)

    def _end(self, found: Mapping[str, Any]) -> None:
        self.ended = True
        error = mapping(found.get("error"))
        if found.get("status") == "success":
            self.exit, self.cause = "finished", None
        else:
            self.exit = _EXITS.get(str(error.get("type")), "crashed")
            self.cause = label(error.get("message")) or label(error.get("type"))
        stats = mapping(found.get("stats"))
        into, total = count(stats.get("input_tokens")), count(stats.get("total_tokens"))
        if not into or not total:
            return
        cached = count(stats.get("cached"))
        # Thoughts are in the total and nowhere else.
        said = max(total - into, count(stats.get("output_tokens")) or 0)
        fresh = max(into - (cached or 0), 0)
        self.usage = Usage(input_tokens=fresh, output_tokens=said, cache_read_tokens=cached)
        spoken = {
            model: count(mapping(used).get("total_tokens")) or 0
            for model, used in mapping(stats.get("models")).items()
        }
        if any(spoken.values()):
            self.model = label(max(spoken, key=lambda key: spoken[key]))
