"""Record what an orchestrator of your own does: `with closeloop.record("planner") as run: …`.

The outermost recording becomes a session; one that is opened inside another is a handoff to a
lane of its own. Which one is open is known per thread and per task; the object itself may be
handed to other threads.
"""

from __future__ import annotations

import inspect
import threading
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from closeloop.records import trace as trace_records
from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput
from closeloop.records.trace import Session, Turn
from closeloop.text.untrusted import clean_unicode, truncate_middle
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder

Function = TypeVar("Function", bound=Callable[..., Any])
_open_recording: ContextVar[SessionRecording | None] = ContextVar(
    "closeloop_recording", default=None
)
READER, VERSION = "recording", 1
MAX_VALUE_DEPTH = 12
"""Deeper values, which may contain themselves, are stored as Python prints them."""


def record(
    agent: str, request: str | None = None, *, system: str | None = None, folder: str | Path = ""
) -> SessionRecording:
    """Open a recording, by `with` or as a decorator; `folder` receives it as ATIF at the end."""
    return SessionRecording(agent, request, system, Path(folder) if folder else None)


def recording() -> SessionRecording:
    """Return the innermost open recording, for code that is called inside it."""
    if (open_recording := _open_recording.get()) is None:
        raise BadInput("No recording is open: open one with closeloop.record().")
    return open_recording


class SessionRecording:
    """One agent's work: record its input, messages and actions as they happen."""

    def __init__(
        self, agent: str, request: str | None, system: str | None, folder: Path | None
    ) -> None:
        self.agent, self.request, self.system, self.folder = agent, request, system, folder
        self.session: Session | None = None
        """The session, once the outermost recording has ended."""
        self.lane = ROOT_LANE
        self._above: SessionRecording | None = None
        self._live: _LiveSession | None = None
        self._token: Token[SessionRecording | None] | None = None
        self._turn: int | None = None
        self._handoff = 0
        self._last: str | None = None

    def __enter__(self) -> Self:
        if self._live is not None:
            raise BadInput("A recording can be opened once: call closeloop.record() for another.")
        self._above = self._above or _open_recording.get()
        self._live = self._above._open_session if self._above else _LiveSession()
        if self._above is None:
            self._live.builder.open_lane(agent=self.agent)
        else:
            self._handoff, self.lane = self._live.open_handoff(
                self._above._event_place, self.agent, self.request or ""
            )
        if self.request:
            self.user(self.request, intent="request")
        self._token = _open_recording.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        assert self._token is not None
        _open_recording.reset(self._token)
        cause = None if error is None else f"{type(error).__name__}: {error}"
        if self._above is not None:
            self._open_session.close_handoff(self._handoff, self._last or cause, error is None)
            return
        self.session = self._open_session.build_session(self.agent, self.system, self._last, cause)
        if self.folder is not None:
            write_session_file(self.session, self.folder)

    def __call__(self, function: Function) -> Function:
        """Record every call: a first text argument is the request, a returned text the claim."""

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> SessionRecording:
            texts = (value for value in (*args, *kwargs.values()) if isinstance(value, str))
            request = next(texts, None)
            return SessionRecording(self.agent, self.request or request, self.system, self.folder)

        def end(run: SessionRecording, result: Any) -> Any:
            if isinstance(result, str):
                run.claim(result)
            return result

        @wraps(function)
        def plain(*given: Any, **named: Any) -> Any:
            with begin(given, named) as run:
                return end(run, function(*given, **named))

        @wraps(function)
        async def waiting(*given: Any, **named: Any) -> Any:
            with begin(given, named) as run:
                return end(run, await function(*given, **named))

        return cast(Function, waiting if inspect.iscoroutinefunction(function) else plain)

    def handoff(self, agent: str, brief: str) -> SessionRecording:
        """Record a handoff to another agent in its own lane; for `with`, also in a thread."""
        child = SessionRecording(agent, brief, None, None)
        child._above = self
        return child

    def turn(self, model: str | None = None, **usage: Any) -> None:
        """Record a model reply with its usage: the fields of `Usage`, and `seconds`."""
        seconds = usage.pop("seconds", None)
        if usage.get("cost") is not None:
            usage.setdefault("cost_from", "reported")
        reply = Turn(usage=Usage(**usage), model=model, at=utc_now(), seconds=seconds)
        self._turn = self._open_session.add_turn(self.lane, reply)

    def user(self, text: str, intent: Any = None) -> None:
        """Record a user message."""
        self._add_event(trace_records.Message, role="user", text=text, intent=intent, turn=None)

    def say(self, text: str) -> None:
        """Record an agent message."""
        self._last = text
        self._add_event(trace_records.Message, role="agent", text=text)

    def think(self, text: str) -> None:
        self._add_event(trace_records.Thought, text=text)

    def ask(self, question: str, answer: str | None = None) -> None:
        """Record a question to the user, and the answer if there is one."""
        self._add_event(trace_records.Message, role="agent", text=question, intent="question")
        if answer is not None:
            self.user(answer, intent="answer")

    def claim(self, text: str) -> None:
        """Record that the agent claims to be done; for a lane, its report."""
        self._last = text
        self._add_event(trace_records.Message, role="agent", text=text, intent="claim")

    def command(self, command: str, output: str | None = None, **more: Any) -> None:
        """Record a command; `exit_code`, `directory`, `seconds` if known."""
        more["exit_from"] = None if more.get("exit_code") is None else "stated"
        self._add_event(trace_records.Command, command=command, output=output, **more)

    def edit(self, path: str, **more: Any) -> None:
        """Record an edit of a file: `before` and `after`, or a `patch`; `action`, `ok`, `error`."""
        self._add_event(trace_records.Edit, path=path, **more)

    def read(self, path: str, text: str | None = None, **more: Any) -> None:
        self._add_event(trace_records.Read, path=path, text=text, **more)

    def tool(
        self, name: str, arguments: Mapping[str, Any], output: str | None = None, **more: Any
    ) -> None:
        """Record any other tool call; `ok` and `seconds` if known."""
        self._add_event(
            trace_records.ToolUse, name=name, arguments=arguments, output=output, **more
        )

    def note(self, text: str, about: str) -> None:
        """Record a note."""
        self._add_event(trace_records.Note, text=text, about=about, turn=None)

    def _add_event(self, kind: Any, **fields: Any) -> None:
        self._open_session.add_event(kind, {**self._event_place, **fields})

    @property
    def _event_place(self) -> dict[str, Any]:
        return {"lane": self.lane, "turn": self._turn, "at": utc_now()}

    @property
    def _open_session(self) -> _LiveSession:
        if self._live is None:
            raise BadInput("Nothing is recorded yet: open the recording using `with`.")
        return self._live


class _LiveSession:
    """The builder of a recording, shared by threads under its lock."""

    def __init__(self) -> None:
        self.builder = SessionBuilder(READER, VERSION)
        self.lock = threading.Lock()
        self.started = utc_now()

    def add_event(self, kind: Any, fields: dict[str, Any]) -> int:
        safe = {name: _normalise_field(value) for name, value in fields.items()}
        with self.lock:
            number = self.builder.next_number
            self.builder.events.append(kind(number=number, **safe))
            return number

    def add_turn(self, lane: str, turn: Turn) -> int:
        with self.lock:
            return self.builder.add_turn(lane, turn)

    def open_handoff(self, event_fields: dict[str, Any], agent: str, brief: str) -> tuple[int, str]:
        """Open a lane for another agent; return the handoff's number and the lane."""
        number = self.add_event(trace_records.Handoff, {**event_fields, "brief": brief})
        lane = f"{agent} {number}"
        with self.lock:
            self.builder.open_lane(lane, event_fields["lane"], agent)
            self.builder.finish(self.builder.events[number - 1], child=lane)
        return number, lane

    def close_handoff(self, number: int, report: str | None, ok: bool) -> None:
        with self.lock:
            event = self.builder.events[number - 1]
            seconds = (utc_now() - event.at).total_seconds() if event.at else None
            self.builder.finish(event, report=report, ok=ok, seconds=seconds)

    def build_session(
        self, agent: str, system: str | None, summary: str | None, cause: str | None
    ) -> Session:
        """Build the session; `cause` is what ended it early."""
        with self.lock:
            turns = [turn for lane in self.builder.build_trace().lanes for turn in lane.turns]
            models = [turn.model for turn in turns if turn.model]
            return self.builder.build_session(
                id=uuid.uuid4().hex,
                agent=agent,
                model=max(models, key=models.count, default=None),
                system=system,
                started=self.started,
                ended=utc_now(),
                exit="finished" if cause is None else "crashed",
                cause=cause,
                summary=summary,
            )


def write_session_file(session: Session, folder: Path) -> Path:
    """Write the session to a file for `closeloop import`, atomically."""
    from closeloop.text.redaction import redact_record
    from closeloop.traces import trace_export

    session, _ = redact_record(session)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{session.id}.json"
    draft = path.with_suffix(".part")
    draft.write_bytes(trace_export.export_atif(session, session.trace))
    return draft.replace(path)


def _normalise_field(value: Any) -> Any:
    """Normalise a field: callers' values are stored, whatever they are, and never raise."""
    if isinstance(value, list | tuple):
        return truncate_middle(" ".join(str(_to_json_value(item)) for item in value))
    return value if isinstance(value, datetime) else _to_json_value(value)


def _to_json_value(value: Any, depth: int = 0) -> Any:
    """Convert any Python value to a JSON value."""
    match value:
        case None | bool() | float():
            return value
        case int() if abs(value) < 1 << 63:
            return value
        case bytes():
            return truncate_middle(value.decode(errors="replace"))
        case Mapping() if depth < MAX_VALUE_DEPTH:
            return {
                clean_unicode(str(name)): _to_json_value(item, depth + 1)
                for name, item in value.items()
            }
        case list() | tuple() | set() if depth < MAX_VALUE_DEPTH:
            return [_to_json_value(item, depth + 1) for item in value]
    return truncate_middle(str(value))


def utc_now() -> datetime:
    return datetime.now(UTC)
