"""One session of Claude Code, put together from the records of its files."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Any

import msgspec

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import Handoff, Message, Note
from closeloop.traces.builder import ROOT
from closeloop.traces.claude.ending import ended, join, last_words
from closeloop.traces.claude.results import is_result, text_of
from closeloop.traces.claude.talk import Talk
from closeloop.traces.results import mark_corrections
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import raw

_FRAME = frozenset(
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
_TOLD_ELSEWHERE = ("last-prompt", "agent-name", "agent-color", "agent-setting", "bridge-session")
_TITLES = {"ai-title": "aiTitle", "custom-title": "customTitle", "tag": "tag"}
_OWN_QUEUE = ('{"task_id"', "<task-notification>")
"""How what the client itself puts in the queue begins: that a task has begun or ended."""
_NEAR = 1000
_MODES = {"mode": "mode", "permission-mode": "permissionMode"}


class Sitting:
    """Takes the records of one session id, whichever file they are from."""

    def __init__(self, name: str, source: Source, reader: str, version: int) -> None:
        self.id = name
        self.copied = False
        """Another file has this session: nothing here is to be told again."""
        self.alone = False
        """The file is a sub-agent's, and its parent's is not there."""
        self.files: set[str] = set()
        """Sub-agents with a file: what else is said of them are copies."""
        self.talk = Talk(reader, version, source.skipped)
        self.after: dict[str, int] = {}
        """Every record by its id: the number of the last event when it had been read."""
        self.links: dict[str, str] = {}
        self._answered: set[str] = set()
        self._messages: dict[str, str] = {}
        self._side: dict[str, str] = {}
        self._early: dict[str, list[tuple[str | None, dict[str, Any]]]] = {}
        """Results that were written before the message that asks for them, by its id."""
        self._titles: list[tuple[str, Any]] = []
        self._title: str | None = None
        self._queued: dict[str, datetime | None] = {}
        self._queue: deque[str] = deque()
        self._steering: dict[str, datetime | None] = {}
        """What the user said while the agent worked: the model heard it before it went on."""
        self._steered: set[str] = set()
        self._modes: dict[str, str] = {}
        self._first: dict[str, Any] = {}
        self._branch: str | None = None
        self._release: str | None = None

    def take(self, lane: str | None, record: dict[str, Any]) -> None:
        """One record of the session's own file, or of a sub-agent's."""
        if self.copied:
            return
        uuid = record.get("uuid")
        known = isinstance(uuid, str)
        if known and uuid in self.after:
            return
        kind = record.get("type")
        at = self.talk.moment(record.get("timestamp"))
        if kind in ("user", "assistant"):
            self._spoken(lane, record, at)
        elif kind == "progress":
            self._progress(record)
        elif kind in ("system", "attachment"):
            line = self._lane(lane, record)
            self._system(line, record, at) if kind == "system" else self._given(line, record, at)
        elif not self._besides(str(kind), record, at):
            self.talk.unknown(kind, record, ROOT, at)
        if known:
            self.after[str(uuid)] = len(self.talk.builder.events)
            for given, early in self._early.pop(str(uuid), ()):
                self._spoken(given, early, self.talk.moment(early.get("timestamp")))

    def _spoken(self, given: str | None, record: dict[str, Any], at: datetime | None) -> None:
        if isinstance(record.get("forkedFrom"), dict):
            # A copy: the session it was copied from tells of it.
            origin = shortened(str(record["forkedFrom"].get("sessionId")), most=200)
            if self.links.setdefault("forked from", origin) == origin and not self.after:
                self.talk.note(f"Goes on from a copy of session {origin}.", "fork", at=at)
            return
        lane = self._lane(given, record)
        if lane in self.files and given is None:
            return
        self._facts(record)
        parent, message = record.get("parentUuid"), record.get("message")
        if record.get("type") == "assistant":
            if lane == ROOT and self._steering:
                self._steer()
            name = message.get("id") if isinstance(message, dict) else None
            if isinstance(parent, str) and self._messages.get(parent) != name:
                self._answered.add(parent)
            self._messages[str(record.get("uuid"))] = str(name)
            self.talk.agent(lane, record, at)
            return
        unseen = isinstance(parent, str) and parent not in self.after
        few = unseen and sum(map(len, self._early.values())) < _NEAR
        if few and self._orphan(lane, message):
            self._early.setdefault(str(parent), []).append((given, record))
            return
        if isinstance(parent, str) and _is_prompt(record):
            if parent in self._answered and parent in self.after:
                self._back(self.after[parent], lane, at)
            self._answered.add(parent)
            self._changed("permission-mode", record.get("permissionMode"), at)
        self.talk.user(lane, record, record.get("toolUseResult"), at)

    def _orphan(self, lane: str, message: Any) -> bool:
        """Whether a message is the result of a call that was not told of so far."""
        content = message.get("content") if isinstance(message, dict) else None
        first = content[0] if isinstance(content, list) and content else None
        if not isinstance(first, dict) or not is_result(first):
            return False
        call = first.get("tool_use_id")
        return self.talk.builder.waiting(lane, call if isinstance(call, str) else None) is None

    def _back(self, place: int, lane: str, at: datetime | None) -> None:
        """Records may fork without a rewind, as the client's own commands do: they undo nothing."""
        events = self.talk.builder.events
        undone = (events[after] for after in range(place, min(len(events), place + _NEAR)))
        if any(event.lane == lane and not isinstance(event, Note) for event in undone):
            self.talk.note(f"The conversation goes back to event {place}.", "rewind", lane, at)

    def _facts(self, record: dict[str, Any]) -> None:
        if not self._first:
            self._first = record
        branch, release = record.get("gitBranch"), record.get("version")
        if self._branch is None and isinstance(branch, str) and branch not in ("", "HEAD"):
            self._branch = branch
        if isinstance(release, str):
            self._release = release

    def _lane(self, given: str | None, record: dict[str, Any]) -> str:
        """Sub-agents have a file, an id, or (oldest) only a chain of records in the same file."""
        if given is not None:
            return self.talk.open(given)
        if record.get("isSidechain") is not True:
            return ROOT
        agent, uuid = record.get("agentId"), str(record.get("uuid"))
        first = self._first
        if isinstance(agent, str) and agent:
            if self.alone and (not first or first.get("agentId") == agent):
                return ROOT
            return self._side_lane(agent)
        lane = self._side.get(str(record.get("parentUuid")))
        if lane is None:
            lane = ROOT if self.alone and not self._side else self._side_lane(uuid)
        self._side[uuid] = lane
        return lane

    def _side_lane(self, name: str) -> str:
        lane = shortened(name, most=200)
        return lane if lane in self.files else self.talk.open(lane)

    def _progress(self, record: dict[str, Any]) -> None:
        data = record.get("data")
        kind = data.get("type") if isinstance(data, dict) else None
        if not isinstance(data, dict) or kind != "agent_progress":
            # Each says how far something is whose end is told in full.
            reason = f"progress: {shortened(str(kind), most=60)}"
            self.talk.skipped[reason] = self.talk.skipped.get(reason, 0) + 1
            return
        agent, inner = data.get("agentId"), data.get("message")
        if not isinstance(agent, str) or not agent or not isinstance(inner, dict):
            return
        lane = shortened(agent, most=200)
        call = record.get("parentToolUseID")
        event = self.talk.builder.waiting(ROOT, call if isinstance(call, str) else None)
        if isinstance(event, Handoff) and event.child is None:
            place = event.number - 1
            self.talk.builder.events[place] = msgspec.structs.replace(event, child=lane)
        if lane not in self.files:
            self.take(lane, inner)

    def _system(self, lane: str, record: dict[str, Any], at: datetime | None) -> None:
        subtype, content = record.get("subtype"), record.get("content")
        about = f"system: {shortened(str(subtype), most=60)}"
        if subtype is None:
            about = "hook" if "toolUseID" in record else "system"
        elif subtype == "stop_hook_summary":
            about = "hook"
        elif subtype == "microcompact_boundary":
            about = "compaction"
        elif subtype == "api_error":
            about = "api error"
        text = content if isinstance(content, str) else _rest(record)
        if subtype == "compact_boundary":
            self.talk.compacted(text, lane, at, summary=False)
        else:
            self.talk.note(text, about, lane, at)

    def _given(self, lane: str, record: dict[str, Any], at: datetime | None) -> None:
        """What the client puts before the model: files, lists, hooks' words, queued messages."""
        given = record.get("attachment")
        if not isinstance(given, dict):
            self.talk.unknown("attachment", record, lane, at)
            return
        kind, content = given.get("type"), given.get("content")
        if kind == "queued_command":
            # Newer versions tell here, too, what was taken from the queue.
            words = text_of(given.get("prompt"))
            if words in self._steered:
                self._steered.discard(words)
                return
            self._steering.pop(words, None)
            self.talk.words(lane, words, given, at)
            return
        hook = isinstance(kind, str) and "hook" in kind
        about = "hook" if hook else f"attachment: {shortened(str(kind), most=60)}"
        self.talk.note(content if isinstance(content, str) else raw(given), about, lane, at)

    def _besides(self, kind: str, record: dict[str, Any], at: datetime | None) -> bool:
        """Records that are no part of the talk; whether this is one of those that are known."""
        if kind in _MODES:
            self._changed(kind, record.get(_MODES[kind]), at)
        elif kind == "summary":
            self._titles.append((str(record.get("summary")), record.get("leafUuid")))
        elif kind in _TITLES:
            title = str(record.get(_TITLES[kind]))
            if title != self._title:
                self.talk.note(title, "title", at=at)
            self._title = title
        elif kind == "pr-link":
            self.links["pull request"] = shortened(str(record.get("prUrl")), most=2000)
        elif kind == "queue-operation":
            self._lined_up(record.get("operation"), record.get("content"), at)
        elif kind == "file-history-snapshot":
            self.talk.skipped[kind] = self.talk.skipped.get(kind, 0) + 1
        else:
            return kind in _TOLD_ELSEWHERE
        return True

    def _lined_up(self, operation: Any, content: Any, at: datetime | None) -> None:
        """Words in the queue: some reach the agent at its work, others become its next turn."""
        if operation == "enqueue":
            self._queue.append(content if isinstance(content, str) else "")
            if isinstance(content, str):
                self._queued[content] = at
        elif operation in ("remove", "dequeue") and self._queue:
            text = self._queue.popleft()
            if operation == "remove" and not text.startswith(_OWN_QUEUE):
                self._steering[text] = at
        elif operation == "popAll":
            self._queue.clear()

    def _steer(self) -> None:
        for text, at in self._steering.items():
            self.talk.words(ROOT, text, {}, at)
        self._steered.update(self._steering)
        self._steering.clear()

    def _changed(self, kind: str, mode: Any, at: datetime | None) -> None:
        """Modes of both kinds are said again and again."""
        if isinstance(mode, str) and mode != self._modes.get(kind):
            if kind in self._modes:
                self.talk.note(mode, "mode", at=at)
            self._modes[kind] = mode

    @property
    def empty(self) -> bool:
        return not self._first

    def session(self, agent: str) -> Session:
        """What there is, once all records are taken."""
        talk, first = self.talk, self._first
        self._leftovers()
        join(talk)
        mark_corrections(talk.builder)
        outcome, cause = ended(talk)
        summary = last_words(talk, finished=outcome == "finished")
        directory, child = first.get("cwd"), first.get("agentId") or first.get("uuid")
        return Session(
            id=shortened(f"{self.id}/{child}" if self.alone else self.id, most=400),
            agent=agent,
            trace=talk.builder.trace(talk.skipped),
            agent_version=_short(self._release),
            model=_short(max(talk.models, key=lambda name: talk.models[name], default=None)),
            started=talk.started,
            ended=talk.ended,
            exit=outcome,
            cause=cause,
            usage=talk.builder.usage(),
            summary=summary,
            directory=_short(directory),
            branch=_short(self._branch),
            parent=_short(self.id) if self.alone else None,
            links=self.links,
        )

    def _leftovers(self) -> None:
        self._steer()
        for given, record in (one for early in self._early.values() for one in early):
            at, lane = self.talk.moment(record.get("timestamp")), self._lane(given, record)
            self.talk.user(lane, record, record.get("toolUseResult"), at)
        for title, leaf in self._titles:
            if isinstance(leaf, str) and leaf in self.after:
                self.talk.note(title, "title")
            else:
                reason = "summary of another session"
                self.talk.skipped[reason] = self.talk.skipped.get(reason, 0) + 1
        if self._queued:
            events = self.talk.builder.events
            heard = {event.text.strip() for event in events if isinstance(event, Message | Note)}
            for text, at in self._queued.items():
                if text.startswith(_OWN_QUEUE):
                    self.talk.notified(text)
                elif text.strip() not in heard:
                    self.talk.note(text, "queued message", at=at)


def _is_prompt(record: dict[str, Any]) -> bool:
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if record.get("isMeta") is True or record.get("isCompactSummary") is True:
        return False
    if isinstance(content, list):
        return not any(isinstance(b, dict) and b.get("type") == "tool_result" for b in content)
    return isinstance(content, str)


def _rest(record: dict[str, Any]) -> str:
    return raw({name: value for name, value in record.items() if name not in _FRAME})


def _short(value: Any) -> str | None:
    return shortened(value, most=1000) if isinstance(value, str) else None
