"""Reads session files of Claude Code, including those of sub-agents."""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.trace import Handoff, Message, Note, Session
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers.claude_conversation import (
    CLIENT_COMMANDS,
    ClaudeConversation,
    claude_content_text,
    is_tool_result,
    join_child_lanes,
    mark_final_claim,
    session_outcome,
)
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder, count_skip
from closeloop.traces.untrusted_json import json_excerpt

# One session of Claude Code, built from the records of its files.


_FRAME_KEYS = frozenset(
    [
        "cwd",
        "entrypoint",
        "gitBranch",
        "isMeta",
        "isSidechain",
        "logicalParentUuid",
        "parentUuid",
        "sessionId",
        "slug",
        "timestamp",
        "type",
        "userType",
        "uuid",
        "version",
    ]
)
_REDUNDANT_TYPES = ("last-prompt", "agent-name", "agent-color", "agent-setting", "bridge-session")
_TITLE_KEYS = {"ai-title": "aiTitle", "custom-title": "customTitle", "tag": "tag"}
_CLIENT_QUEUE_PREFIXES = ('{"task_id"', "<task-notification>")
"""Beginnings of what the client itself puts in the queue: that a task has begun or ended."""
_MAX_NEARBY_RECORDS = 1000
_MODE_KEYS = {"mode": "mode", "permission-mode": "permissionMode"}


class ClaudeSession:
    """Collects the records of one session id, from any file."""

    def __init__(self, name: str, source: RecordingSource, reader: str, version: int) -> None:
        self.id = name
        self.copied = False
        """Whether another file has this session, so that nothing is added again."""
        self.alone = False
        """Whether the file belongs to a sub-agent whose parent's file is missing."""
        self.files: set[str] = set()
        """Sub-agents with a file; other records about them are copies."""
        self.conversation = ClaudeConversation(reader, version, source.skipped)
        self.after: dict[str, int] = {}
        """By record id, the number of the last event when it had been read."""
        self.links: dict[str, str] = {}
        self._answered: set[str] = set()
        self._messages: dict[str, str] = {}
        self._side: dict[str, str] = {}
        self._early: dict[str, list[tuple[str | None, dict[str, Any]]]] = {}
        """Results written before the message that requests them, by its id."""
        self._titles: list[tuple[str, Any]] = []
        self._title: str | None = None
        self._queued: dict[str, datetime | None] = {}
        self._queue: deque[str] = deque()
        self._steering: dict[str, datetime | None] = {}
        """What the user said while the agent worked, which the model received before it continued.
        """
        self._steered: set[str] = set()
        self._modes: dict[str, str] = {}
        self._first: dict[str, Any] = {}
        self._branch: str | None = None
        self._release: str | None = None

    def add_record(self, lane: str | None, record: dict[str, Any]) -> None:
        """Add one record of the session's own file, or of a sub-agent's."""
        if self.copied:
            return
        uuid = record.get("uuid")
        has_id = isinstance(uuid, str)
        if has_id and uuid in self.after:
            return
        kind = record.get("type")
        time = self.conversation.record_time(record.get("timestamp"))
        if kind in ("user", "assistant"):
            self._add_message(lane, record, time)
        elif kind == "progress":
            self._add_progress(record)
        elif kind in ("system", "attachment"):
            line = self._lane_of_record(lane, record)
            self._add_system_record(
                line, record, time
            ) if kind == "system" else self._add_attachment(line, record, time)
        elif not self._add_metadata_record(str(kind), record, time):
            self.conversation.add_unknown(kind, record, ROOT_LANE, time)
        if has_id:
            self.after[str(uuid)] = len(self.conversation.builder.events)
            for given_lane, early in self._early.pop(str(uuid), ()):
                self._add_message(
                    given_lane, early, self.conversation.record_time(early.get("timestamp"))
                )

    def _add_message(
        self, given_lane: str | None, record: dict[str, Any], time: datetime | None
    ) -> None:
        if isinstance(record.get("forkedFrom"), dict):
            # A copy: it is read with the original session.
            origin = truncate_middle(str(record["forkedFrom"].get("sessionId")), max_chars=200)
            if self.links.setdefault("forked from", origin) == origin and not self.after:
                self.conversation.add_note(
                    f"Goes on from a copy of session {origin}.", "fork", at=time
                )
            return
        lane = self._lane_of_record(given_lane, record)
        if lane in self.files and given_lane is None:
            return
        self._read_metadata(record)
        parent, message = record.get("parentUuid"), record.get("message")
        if record.get("type") == "assistant":
            if lane == ROOT_LANE and self._steering:
                self._flush_steering()
            name = message.get("id") if isinstance(message, dict) else None
            if isinstance(parent, str) and self._messages.get(parent) != name:
                self._answered.add(parent)
            self._messages[str(record.get("uuid"))] = str(name)
            self.conversation.add_agent_message(lane, record, time)
            return
        unseen = isinstance(parent, str) and parent not in self.after
        has_room = unseen and sum(map(len, self._early.values())) < _MAX_NEARBY_RECORDS
        if has_room and self._is_orphan_result(lane, message):
            self._early.setdefault(str(parent), []).append((given_lane, record))
            return
        if isinstance(parent, str) and _is_prompt(record):
            if parent in self._answered and parent in self.after:
                self._note_rewind(self.after[parent], lane, time)
            self._answered.add(parent)
            self._note_mode_change("permission-mode", record.get("permissionMode"), time)
        self.conversation.add_user_record(lane, record, record.get("toolUseResult"), time)

    def _is_orphan_result(self, lane: str, message: Any) -> bool:
        """Whether a message is the result of a call that is not known yet."""
        content = message.get("content") if isinstance(message, dict) else None
        first = content[0] if isinstance(content, list) and content else None
        if not isinstance(first, dict) or not is_tool_result(first):
            return False
        call = first.get("tool_use_id")
        return (
            self.conversation.builder.find_open_call(lane, call if isinstance(call, str) else None)
            is None
        )

    def _note_rewind(self, event_number: int, lane: str, time: datetime | None) -> None:
        """Note a rewind; records may also fork without one, as the client's own commands do."""
        events = self.conversation.builder.events
        undone_events = (
            events[after]
            for after in range(event_number, min(len(events), event_number + _MAX_NEARBY_RECORDS))
        )
        if any(event.lane == lane and not isinstance(event, Note) for event in undone_events):
            self.conversation.add_note(
                f"The conversation goes back to event {event_number}.", "rewind", lane, time
            )

    def _read_metadata(self, record: dict[str, Any]) -> None:
        if not self._first:
            self._first = record
        branch, release = record.get("gitBranch"), record.get("version")
        if self._branch is None and isinstance(branch, str) and branch not in ("", "HEAD"):
            self._branch = branch
        if isinstance(release, str):
            self._release = release

    def _lane_of_record(self, given_lane: str | None, record: dict[str, Any]) -> str:
        """Sub-agents have a file, an id, or (oldest) only a chain of records in the same file."""
        if given_lane is not None:
            return self.conversation.open_lane(given_lane)
        if record.get("isSidechain") is not True:
            return ROOT_LANE
        agent, uuid = record.get("agentId"), str(record.get("uuid"))
        first = self._first
        if isinstance(agent, str) and agent:
            if self.alone and (not first or first.get("agentId") == agent):
                return ROOT_LANE
            return self._side_lane(agent)
        lane = self._side.get(str(record.get("parentUuid")))
        if lane is None:
            lane = ROOT_LANE if self.alone and not self._side else self._side_lane(uuid)
        self._side[uuid] = lane
        return lane

    def _side_lane(self, name: str) -> str:
        lane = truncate_middle(name, max_chars=200)
        return lane if lane in self.files else self.conversation.open_lane(lane)

    def _add_progress(self, record: dict[str, Any]) -> None:
        data = record.get("data")
        kind = data.get("type") if isinstance(data, dict) else None
        if not isinstance(data, dict) or kind != "agent_progress":
            # Progress of something whose end is recorded in full.
            reason = f"progress: {truncate_middle(str(kind), max_chars=60)}"
            self.conversation.builder.count_skip(reason)
            return
        agent, inner = data.get("agentId"), data.get("message")
        if not isinstance(agent, str) or not agent or not isinstance(inner, dict):
            return
        lane = truncate_middle(agent, max_chars=200)
        call = record.get("parentToolUseID")
        event = self.conversation.builder.find_open_call(
            ROOT_LANE, call if isinstance(call, str) else None
        )
        if isinstance(event, Handoff) and event.child is None:
            self.conversation.builder.update_event(event, child=lane)
        if lane not in self.files:
            self.add_record(lane, inner)

    def _add_system_record(self, lane: str, record: dict[str, Any], time: datetime | None) -> None:
        subtype, content = record.get("subtype"), record.get("content")
        note_kind = f"system: {truncate_middle(str(subtype), max_chars=60)}"
        if subtype is None:
            note_kind = "hook" if "toolUseID" in record else "system"
        elif subtype == "stop_hook_summary":
            note_kind = "hook"
        elif subtype == "microcompact_boundary":
            note_kind = "compaction"
        elif subtype == "api_error":
            note_kind = "api error"
        text = content if isinstance(content, str) else _unframed_json(record)
        if subtype == "compact_boundary":
            self.conversation.add_compaction(text, lane, time, summary=False)
        else:
            self.conversation.add_note(text, note_kind, lane, time)

    def _add_attachment(self, lane: str, record: dict[str, Any], time: datetime | None) -> None:
        """Add what the client shows the model: files, lists, hook output, queued messages."""
        attachment = record.get("attachment")
        if not isinstance(attachment, dict):
            self.conversation.add_unknown("attachment", record, lane, time)
            return
        kind, content = attachment.get("type"), attachment.get("content")
        if kind == "queued_command":
            # Newer versions also record here what was taken from the queue.
            prompt = claude_content_text(attachment.get("prompt"))
            if prompt in self._steered:
                self._steered.discard(prompt)
                return
            self._steering.pop(prompt, None)
            self.conversation.add_user_text(lane, prompt, attachment, time)
            return
        hook = isinstance(kind, str) and "hook" in kind
        note_kind = "hook" if hook else f"attachment: {truncate_middle(str(kind), max_chars=60)}"
        self.conversation.add_note(
            content if isinstance(content, str) else json_excerpt(attachment), note_kind, lane, time
        )

    def _add_metadata_record(
        self, kind: str, record: dict[str, Any], time: datetime | None
    ) -> bool:
        """Add a record outside the conversation; return whether its kind is known."""
        if kind in _MODE_KEYS:
            self._note_mode_change(kind, record.get(_MODE_KEYS[kind]), time)
        elif kind == "summary":
            self._titles.append((str(record.get("summary")), record.get("leafUuid")))
        elif kind in _TITLE_KEYS:
            title = str(record.get(_TITLE_KEYS[kind]))
            if title != self._title:
                self.conversation.add_note(title, "title", at=time)
            self._title = title
        elif kind == "pr-link":
            self.links["pull request"] = truncate_middle(str(record.get("prUrl")), max_chars=2000)
        elif kind == "queue-operation":
            self._update_queue(record.get("operation"), record.get("content"), time)
        elif kind in ("file-history-snapshot", "file-history-delta"):
            self.conversation.builder.count_skip(kind)
        else:
            return kind in _REDUNDANT_TYPES
        return True

    def _update_queue(self, operation: Any, content: Any, time: datetime | None) -> None:
        """Update the queue: some texts reach the working agent, others become its next turn."""
        if operation == "enqueue":
            self._queue.append(content if isinstance(content, str) else "")
            if isinstance(content, str):
                self._queued[content] = time
        elif operation in ("remove", "dequeue") and self._queue:
            text = self._queue.popleft()
            if operation == "remove" and not text.startswith(_CLIENT_QUEUE_PREFIXES):
                self._steering[text] = time
        elif operation == "popAll":
            self._queue.clear()

    def _flush_steering(self) -> None:
        for text, time in self._steering.items():
            self.conversation.add_user_text(ROOT_LANE, text, {}, time)
        self._steered.update(self._steering)
        self._steering.clear()

    def _note_mode_change(self, kind: str, mode: Any, time: datetime | None) -> None:
        """Note a change of mode once; both kinds are repeated often."""
        if isinstance(mode, str) and mode != self._modes.get(kind):
            if kind in self._modes:
                self.conversation.add_note(mode, "mode", at=time)
            self._modes[kind] = mode

    @property
    def is_empty(self) -> bool:
        return not self._first

    def build_session(self, agent: str) -> Session:
        """Build the session after all records."""
        conversation, first = self.conversation, self._first
        self._add_leftovers()
        join_child_lanes(conversation)
        conversation.builder.mark_corrections()
        outcome, cause = session_outcome(conversation)
        summary = mark_final_claim(conversation, finished=outcome == "finished")
        directory, child = first.get("cwd"), first.get("agentId") or first.get("uuid")
        return conversation.builder.build_session(
            id=truncate_middle(f"{self.id}/{child}" if self.alone else self.id, max_chars=400),
            agent=agent,
            agent_version=_truncate_label(self._release),
            model=_truncate_label(conversation.builder.most_used_model()),
            exit=outcome,
            cause=cause,
            summary=summary,
            directory=_truncate_label(directory),
            branch=_truncate_label(self._branch),
            parent=_truncate_label(self.id) if self.alone else None,
            links=self.links,
            **_find_working_time(conversation.builder),
        )

    def _add_leftovers(self) -> None:
        self._flush_steering()
        for given_lane, record in (
            early_record for early in self._early.values() for early_record in early
        ):
            time, lane = (
                self.conversation.record_time(record.get("timestamp")),
                self._lane_of_record(given_lane, record),
            )
            self.conversation.add_user_record(lane, record, record.get("toolUseResult"), time)
        for title, leaf in self._titles:
            if isinstance(leaf, str) and leaf in self.after:
                self.conversation.add_note(title, "title")
            else:
                reason = "summary of another session"
                self.conversation.builder.count_skip(reason)
        if self._queued:
            events = self.conversation.builder.events
            delivered_texts = {
                event.text.strip() for event in events if isinstance(event, Message | Note)
            }
            for text, time in self._queued.items():
                if text.startswith(_CLIENT_QUEUE_PREFIXES):
                    self.conversation.handle_notification(text)
                elif text.strip() not in delivered_texts:
                    self.conversation.add_note(text, "queued message", at=time)


def _find_working_time(builder: SessionBuilder) -> dict[str, datetime | None]:
    """Return when the session began and ended, without what its user did before and after.

    `/clear` in a terminal that is open since yesterday begins a file with yesterday's time.
    """
    is_work = [
        not isinstance(event, Note) or event.about not in CLIENT_COMMANDS
        for event in builder.events
    ]
    times = [event.at for event, works in zip(builder.events, is_work, strict=True) if works]
    known_times = [time for time in times if time is not None]
    if not known_times:
        return {}
    return {
        "started": builder.started if is_work[0] else min(known_times),
        "ended": builder.ended if is_work[-1] else max(known_times),
    }


def _is_prompt(record: dict[str, Any]) -> bool:
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if record.get("isMeta") is True or record.get("isCompactSummary") is True:
        return False
    if isinstance(content, list):
        return not any(isinstance(b, dict) and b.get("type") == "tool_result" for b in content)
    return isinstance(content, str)


def _unframed_json(record: dict[str, Any]) -> str:
    return json_excerpt({name: value for name, value in record.items() if name not in _FRAME_KEYS})


def _truncate_label(value: Any) -> str | None:
    return truncate_middle(value, max_chars=1000) if isinstance(value, str) else None


name = "claude-code"
version = 4

_MESSAGE_TYPES = ("user", "assistant", "system", "attachment", "progress")
_METADATA_FIELDS = {
    # Lines that may precede the first message, each with a field that identifies it.
    "summary": "leafUuid",
    "file-history-snapshot": "snapshot",
    "queue-operation": "operation",
    "last-prompt": "sessionId",
    "mode": "sessionId",
    "permission-mode": "sessionId",
    "ai-title": "sessionId",
    "custom-title": "sessionId",
    "agent-name": "sessionId",
    "pr-link": "sessionId",
}
_SAFE_NAME = re.compile(r"[\w.-]{1,128}")
_LONG_FIRST_LINE = (b'"parentUuid":', b'"isSidechain":', b'"sessionId":', b'"message":')
WARMUP = "a warm-up of a sub-agent"
_MAX_LINES_BEFORE_MESSAGE = 5000
"""Maximum number of lines before the first message."""
ChildFile = tuple[str, int, str, RecordingSource]
"""Start time, position among the files, lane, file."""


def recognises(source: RecordingSource) -> bool:
    lines = source.lines
    if not lines:
        # The first line alone may be longer than the part that is read.
        start = source.head[:4096]
        return start[:1] == b"{" and all(marker in source.head for marker in _LONG_FIRST_LINE)
    if any(_is_message_line(line) for line in lines):
        return True
    return all(
        isinstance(line, dict) and _METADATA_FIELDS.get(str(line.get("type")), "\0") in line
        for line in lines
    )


def _is_message_line(line: Any) -> bool:
    if not isinstance(line, dict) or line.get("type") not in _MESSAGE_TYPES:
        return False
    message = line.get("message", {})
    return (
        "parentUuid" in line
        and "isSidechain" in line
        and isinstance(line.get("sessionId"), str)
        and isinstance(message, dict)
        and "parts" not in message
    )


def parts(source: RecordingSource) -> Sequence[Path]:
    """Return its sub-agents' files: in a folder with the session's name, or (older) beside it."""
    first = read_first_message(source)
    session = _file_name(first.get("sessionId"))
    if session is None or first.get("isSidechain") is True:
        return ()
    folder = source.path.parent
    sibling_files = _agent_files_by_session(folder, _modification_time(folder)).get(session, ())
    subagent_folder = folder / session / "subagents"
    return [
        *sibling_files,
        *(sorted(subagent_folder.rglob("*.jsonl")) if subagent_folder.is_dir() else ()),
    ]


def owner(source: RecordingSource) -> Path | None:
    first = read_first_message(source)
    session = _file_name(first.get("sessionId"))
    if session is None or first.get("isSidechain") is not True:
        return None
    for folder in source.path.parents[:6]:
        path = folder / f"{session}.jsonl"
        if path != source.path and path.is_file():
            return path
    return None


def _file_name(value: Any) -> str | None:
    return value if isinstance(value, str) and _SAFE_NAME.fullmatch(value) else None


def _modification_time(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _agent_files_by_session(folder: Path, stamp: int) -> dict[str, list[Path]]:
    """Return the sub-agents' files of a folder by session; cached until the folder changes."""
    files_by_session: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("agent-*.jsonl")):
        first = read_first_message(FileSource(path))
        session = first.get("sessionId")
        if first.get("isSidechain") is True and isinstance(session, str):
            files_by_session.setdefault(session, []).append(path)
    return files_by_session


def read(source: RecordingSource) -> Iterator[Session]:
    """Yield one session for each id in the file that has no file of its own beside."""
    first = read_first_message(source)
    if is_warmup(first):
        count_skip(source.skipped, WARMUP)
        return
    children = list_child_files(source, parts(source))
    builders: dict[str, ClaudeSession] = {}
    current = None
    for lane, record in merge_records_by_time(source, children):
        if not isinstance(record, dict):
            count_skip(source.skipped, "not a record")
            continue
        session = record.get("sessionId") or None
        if current is None or (isinstance(session, str) and session != current.id):
            builders_before = len(builders)
            current = _session_builder(builders, session, source)
            if len(builders) > builders_before:
                current.alone = first.get("isSidechain") is True
                current.files = {child[2] for child in children}
                _link_continuation(current, record.get("parentUuid"), builders)
        current.add_record(lane, record)
    for builder in builders.values():
        if not builder.is_empty:
            builder.id = builder.id or content_digest(source.head)[:32]
            yield builder.build_session(name)


def _session_builder(
    sessions: dict[str, ClaudeSession], session: Any, source: RecordingSource
) -> ClaudeSession:
    session_id = session if isinstance(session, str) else ""
    if session_id not in sessions:
        # Lines before the first id belong to the session that follows.
        builder = sessions.pop("", None) or ClaudeSession(session_id, source, name, version)
        builder.id = session_id
        # A resumed session may begin with records of another, which are read from that one's file.
        own_path = source.path.parent / f"{session_id}.jsonl"
        elsewhere = (
            _file_name(session_id) is not None and own_path != source.path and own_path.is_file()
        )
        builder.copied = elsewhere and owner(source) is None
        sessions[session_id] = builder
    return sessions[session_id]


def _link_continuation(
    session: ClaudeSession, parent: Any, sessions: dict[str, ClaudeSession]
) -> None:
    """Set the session that this one continues, if it is in the same file."""
    for other_session in islice(sessions.values(), 100):
        if (
            other_session is not session
            and isinstance(parent, str)
            and parent in other_session.after
        ):
            session.links.setdefault("continues", other_session.id)


def read_first_message(source: RecordingSource) -> dict[str, Any]:
    """Return the first message of a file, or nothing."""
    for line in source.lines:
        if _is_message(line):
            return dict(line)
    before = dict(source.skipped)
    first_message: Any = next(
        (line for line in islice(source.records(), _MAX_LINES_BEFORE_MESSAGE) if _is_message(line)),
        {},
    )
    source.skipped.clear()
    source.skipped.update(before)
    return dict(first_message)


def _is_message(line: Any) -> bool:
    return isinstance(line, dict) and line.get("type") in ("user", "assistant")


def list_child_files(source: RecordingSource, paths: Sequence[Path]) -> list[ChildFile]:
    """List the sub-agents with files that did something."""
    children: list[ChildFile] = []
    for order, path in enumerate(paths, 1):
        child = source.beside(path)
        first = read_first_message(child)
        if is_warmup(first):
            count_skip(source.skipped, WARMUP)
        elif first:
            agent, start = first.get("agentId"), first.get("timestamp")
            agent_name = agent if isinstance(agent, str) and agent else path.stem
            lane = truncate_middle(agent_name, max_chars=200)
            children.append((start if isinstance(start, str) else "", order, lane, child))
    return children


def merge_records_by_time(
    source: RecordingSource, children: Sequence[ChildFile]
) -> Iterator[tuple[str | None, Any]]:
    """Yield every record with its sub-agent; None is the session's own file."""
    if not children:
        for record in source.records():
            yield None, record
        return
    waiting = sorted(children, key=lambda child: child[:2], reverse=True)
    streams: list[tuple[str, int, str | None, Any, Iterator[tuple[str, Any]]]] = []
    _push_next_record(streams, 0, None, _iter_timed_records(source))
    while streams or waiting:
        # A file is opened only when needed: there may be hundreds.
        while waiting and (not streams or waiting[-1][0] <= streams[0][0]):
            _, order, lane, child = waiting.pop()
            _push_next_record(streams, order, lane, _iter_timed_records(child))
        if streams:
            _, number, record_lane, record, stream = heapq.heappop(streams)
            yield record_lane, record
            _push_next_record(streams, number, record_lane, stream)


def _push_next_record(
    streams: list[Any], order: int, lane: str | None, stream: Iterator[Any]
) -> None:
    for time, record in stream:
        heapq.heappush(streams, (time, order, lane, record, stream))
        return


def _iter_timed_records(source: RecordingSource) -> Iterator[tuple[str, Any]]:
    """Yield records with their time, or that of the record before."""
    last = ""
    for record in source.records():
        time = record.get("timestamp") if isinstance(record, dict) else None
        if isinstance(time, str) and time > last:
            last = time
        yield last, record


def is_warmup(first: dict[str, Any]) -> bool:
    """Whether it is a warm-up, by which sub-agents start faster later."""
    message = first.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text")
    return first.get("isSidechain") is True and content == "Warmup"
