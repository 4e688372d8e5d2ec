"""A conversation in the making: the provider's messages, block by block, as events."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Message, Thought, ToolUse, Turn
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.claude.results import (
    Result,
    answer_in,
    asked,
    is_result,
    replacements,
    said_of,
    text_of,
)
from closeloop.traces.claude.usage import number, usage_of
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import amount, raw, safe

PLACEHOLDER = 50
"""What a message may be said to have before it is counted; measured: such say 1 to 49."""
_INTERRUPTED = "[Request interrupted by user"
_COMPACTED = "This session is being continued from a previous conversation"
_ABOUT = {
    # What the client itself puts among the user's words, by its tag.
    "bash-input": "user command",
    "bash-stderr": "user command",
    "bash-stdout": "user command",
    "ide_diagnostics": "ide",
    "ide_opened_file": "ide",
    "ide_selection": "ide",
    "local-command-caveat": "local command",
    "local-command-stderr": "local command",
    "local-command-stdout": "local command",
    "system-reminder": "reminder",
    "task-notification": "task notification",
    "user-memory-input": "memory",
    "user-prompt-submit-hook": "hook",
}
_LOCAL_COMMANDS = """
add-dir agents branch bug clear color compact config context copy cost diff doctor effort exit
export fast feedback help hooks ide keybindings login logout mcp memory model output-style
permissions plugin quit release-notes remote-control rename resume rewind sandbox skills stats
status statusline tasks terminal-setup theme todos upgrade usage vim voice
"""
_TAG = re.compile(r"<([a-z_-]+)")
_COMMAND_NAME = re.compile(r"<command-name>/?([^<]*)</command-name>")
_BARE_COMMAND = re.compile(r"<command-name>[^<]*</command-name>\s+<command-message>[^<]*"
                           r"</command-message>\s+<command-args></command-args>")  # fmt: skip
"""The client's own commands are told by name first; without words they ask the model nothing."""
_TASK_ID = re.compile(r"<task-id>([^<]*)</task-id>")
_STATUS = re.compile(r"<status>(\w+)</status>")
_EXIT_CODE = re.compile(r"(?:<exit_code>|[ (]exit code )(-?\d{1,10})[<)]")
_RESULT = re.compile(r"<result>(.*)</result>", re.DOTALL)


class Talk:
    """Takes records in order; what they say of each other is put together here."""

    def __init__(self, reader: str, version: int, skipped: dict[str, int]) -> None:
        self.builder = Builder(reader, version)
        self.skipped = skipped
        self.models: Counter[str] = Counter()
        self.started: datetime | None = None
        self.ended: datetime | None = None
        self.trouble: str | None = None
        """The client's own error message, as long as it is the last word."""
        self.asked: dict[str, str] = {}
        """The first words to each lane."""
        self.running: dict[str, int] = {}
        """Background work by its id: the number of the event that began it."""
        self.lanes: dict[str, str | None] = {ROOT: None}
        """Each lane's parent."""
        self.kinds: dict[int, str] = {}
        """What kind of agent a handoff asks for, by the event's number."""
        self._marked: dict[str, int] = {}
        """Lanes whose conversation was shortened, until the summary that takes its place comes."""
        self._counted: dict[tuple[str, str], tuple[int, bool, int, datetime | None]] = {}
        self._requests: dict[str, str] = {}
        self._copied: set[str] = set()

    def open(self, lane: str, parent: str = ROOT) -> str:
        """A lane, which is open from now on."""
        if lane not in self.lanes:
            self.lanes[lane] = parent
            self.builder.lane(lane, parent)
        return lane

    def moment(self, value: Any) -> datetime | None:
        """A time as the files write it; the first and the last are those of the session."""
        if not isinstance(value, str):
            return None
        try:
            at = datetime.fromisoformat(value)
            if at.tzinfo is None:
                return None
            if at.tzinfo is not UTC:
                at = at.astimezone(UTC)
        except (ValueError, OverflowError):
            return None
        if self.ended is None or at > self.ended:
            self.ended = at
        if self.started is None or at < self.started:
            self.started = at
        return at

    def note(self, text: str, about: str, lane: str = ROOT, at: datetime | None = None) -> None:
        self.builder.note(shortened(text, self.skipped), about=about, lane=lane, at=at)

    def compacted(self, text: str, lane: str, at: datetime | None, *, summary: bool) -> None:
        """The conversation was shortened: its mark and its summary are one event."""
        mark = self._marked.pop(lane, None) if summary else None
        if mark is None:
            if not summary:
                self._marked[lane] = self.builder.number
            self.note(text, "compaction", lane, at)
        else:
            event = self.builder.events[mark - 1]
            self.builder.finish(event, text=shortened(text, self.skipped))

    def unknown(self, what: Any, value: Any, lane: str, at: datetime | None) -> None:
        """Keep what has a kind nobody knows."""
        kind = shortened(what, most=100) if isinstance(what, str) else "record"
        self.builder.note(raw(value), about=f"unknown: {kind}", lane=lane, at=at)

    def agent(self, lane: str, record: dict[str, Any], at: datetime | None) -> None:
        """A message of the model, or a part of one."""
        message = record.get("message")
        if not isinstance(message, dict):
            self.unknown(record.get("type"), record, lane, at)
            return
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        failed = record.get("isApiErrorMessage") is True or bool(record.get("error"))
        if failed or message.get("model") == "<synthetic>":
            text = shortened(text_of(content), self.skipped)
            about = "api error" if failed or text.startswith("API Error") else "synthetic"
            self.trouble = text if about == "api error" and lane == ROOT else self.trouble
            self.note(text, about, lane, at)
            return
        if lane == ROOT:
            self.trouble = None
        if self.copied(lane, record.get("requestId"), blocks):
            return
        # The first versions wrote beside each message what it had cost.
        if "costUSD" in record:
            message = {**message, "costUSD": record["costUSD"]}
        turn = self.count(lane, message, record.get("requestId"), at)
        for block in blocks:
            if isinstance(block, dict):
                self.block(lane, turn, block, at)
            else:
                self.unknown("block", block, lane, at)

    def copied(self, lane: str, request: Any, blocks: list[Any]) -> bool:
        """Whether another lane had this answer: some sub-agents begin with a copy of the talk."""
        if not isinstance(request, str) or self._requests.setdefault(request, lane) == lane:
            return False
        self._copied.update(
            block["id"]
            for block in blocks
            if isinstance(block, dict) and isinstance(block.get("id"), str)
        )
        return True

    def count(self, lane: str, message: dict[str, Any], request: Any, at: datetime | None) -> int:
        """The turn of a message. Its parts repeat its usage: the last of them counts."""
        model, name, usage = message.get("model"), message.get("id"), message.get("usage")
        given = usage if isinstance(usage, dict) else {}
        output = number(given.get("output_tokens")) or 0
        trusted = message.get("stop_reason") is not None or output > PLACEHOLDER
        key = (lane, f"{name} {request}") if isinstance(name, str) else None
        seen = self._counted.get(key) if key is not None else None
        if seen is not None:
            before, known, turn, at = seen
            if output == before and known >= trusted:
                return turn
            # Numbers that differ between the parts were counted on, so the largest is real.
            trusted = trusted or known or before != output
            output = max(before, output)
        elif isinstance(model, str):
            self.models[model] += 1
        counted = Turn(
            usage=usage_of(given, output if trusted else None, amount(message.get("costUSD"))),
            model=model if isinstance(model, str) else None,
            at=at,
        )
        turn = self.builder.turn(lane, counted, key[1] if key is not None else None)
        if key is not None:
            self._counted[key] = (output, trusted, turn, at)
        return turn

    def block(self, lane: str, turn: int | None, block: dict[str, Any], at: Any) -> None:
        """One block of the model's message."""
        kind = block.get("type")
        if kind in ("text", "thinking"):
            text = block.get(kind)
            if isinstance(text, str) and text.strip():
                text = shortened(text, self.skipped)
                number, add = self.builder.number, self.builder.add
                if kind == "thinking":
                    add(Thought(number=number, lane=lane, turn=turn, at=at, text=text))
                else:
                    add(
                        Message(number=number, lane=lane, turn=turn, at=at, text=text, role="agent")
                    )
        elif kind == "redacted_thinking":
            self.skipped[kind] = self.skipped.get(kind, 0) + 1
        elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            self.call(lane, turn, block, at)
        elif isinstance(kind, str) and kind.endswith("tool_result"):
            self.result(lane, block, None, at)
        else:
            self.unknown(kind, block, lane, at)

    def call(self, lane: str, turn: int | None, block: dict[str, Any], at: Any) -> AnyEvent:
        """A tool's use; its result is still to come."""
        name, given, call = block.get("name"), block.get("input"), block.get("id")
        name = shortened(name, most=200) if isinstance(name, str) else "unknown"
        arguments = safe(given, self.skipped) if isinstance(given, dict) else None
        origin = Origin(
            number=self.builder.number,
            lane=lane,
            turn=turn,
            at=at,
            call=shortened(call, most=200) if isinstance(call, str) else "",
        )
        if name == "ExitPlanMode":
            plan = (arguments or {}).get("plan")
            return self.builder.add(
                Message(
                    number=origin.number, lane=lane, turn=turn, at=at, call=origin.call,
                    role="agent", text=plan if isinstance(plan, str) else "", intent="question",
                )
            )  # fmt: skip
        event = asked(event_of(name, arguments, origin), arguments)
        if isinstance(event, Handoff) and isinstance(arguments, dict):
            kind = arguments.get("subagent_type")
            self.kinds[event.number] = kind if isinstance(kind, str) else ""
        edits = (arguments or {}).get("edits")
        if isinstance(event, Edit) and isinstance(edits, list) and len(edits) > 1:
            event = Edit(
                number=origin.number, lane=lane, turn=turn, at=at, call=origin.call,
                path=event.path, patch=replacements(edits),
            )  # fmt: skip
        elif isinstance(event, Edit) and event.before == "":
            event = Edit(
                number=origin.number, lane=lane, turn=turn, at=at, call=origin.call,
                path=event.path, action="create", after=event.after,
            )  # fmt: skip
        return self.builder.add(event)

    def user(self, lane: str, record: dict[str, Any], detail: Any, at: datetime | None) -> None:
        """A message to the model: results, the user's words, or the client's."""
        message = record.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if record.get("isCompactSummary") is True:
            self.compacted(text_of(content), lane, at, summary=True)
            return
        if isinstance(content, str):
            self.words(lane, content, record, at)
            return
        if not isinstance(content, list):
            self.unknown(record.get("type"), record, lane, at)
            return
        # The structured copy is of one result; with several, nobody says of which.
        if len(content) > 1 and sum(map(is_result, content)) > 1:
            detail = None
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "tool_result":
                self.result(lane, block, detail, at)
            elif kind == "text" and isinstance(block.get("text"), str):
                self.words(lane, block["text"], record, at)
            elif kind in ("image", "document"):
                self.words(lane, f"[{kind}]", record, at)
            else:
                self.unknown(kind or "block", block, lane, at)

    def words(self, lane: str, text: str, record: dict[str, Any], at: datetime | None) -> None:
        """A text among the user's messages, whoever wrote it."""
        text = shortened(text, self.skipped)
        plain = text.lstrip()
        if not plain:
            return
        about = (
            "meta" if record.get("isMeta") is True or record.get("isSynthetic") is True else None
        )
        intent = None
        if plain.startswith(_COMPACTED):
            about = "compaction"
        elif plain.startswith(_INTERRUPTED):
            about, intent = None, "interrupt"
        elif plain.startswith("Caveat: The messages below were generated"):
            about = "local command"
        elif (tag := _TAG.match(plain)) is not None:
            about = _ABOUT.get(tag[1], about)
            named = _COMMAND_NAME.search(plain[:2000])
            local = named is not None and named[1].strip() in _LOCAL_COMMANDS.split()
            if local or _BARE_COMMAND.match(plain):
                about = "slash command"
        if about == "task notification":
            self.notified(plain)
        if about == "compaction":
            self.compacted(text, lane, at, summary=True)
        elif about is not None:
            self.note(text, about, lane, at)
        else:
            self.heard(lane, text, intent, at)

    def heard(self, lane: str, text: str, intent: Any, at: datetime | None) -> None:
        """What the user said to a lane; the first words to it are the request."""
        if intent is None and lane not in self.asked:
            self.asked[lane] = text
            intent = "request"
        number = self.builder.number
        self.builder.add(
            Message(number=number, lane=lane, at=at, role="user", text=text, intent=intent)
        )

    def result(self, lane: str, block: dict[str, Any], detail: Any, at: Any) -> None:
        """What a tool gave back."""
        call = block.get("tool_use_id")
        call = shortened(call, most=200) if isinstance(call, str) else ""
        failed = block.get("is_error")
        result = Result(
            text=shortened(text_of(block.get("content")), self.skipped),
            failed=failed if isinstance(failed, bool) else None,
            detail=detail,
        )
        event = self.builder.waiting(lane, call)
        if event is None:
            if call not in self._copied:
                self.note(result.text, "result without a call", lane, at)
            return
        said = said_of(event, result)
        for name, value in said.items():
            if value is not result.text and isinstance(value, str):
                said[name] = shortened(value, self.skipped)
        event = self.builder.finish(event, **said)
        self.follow(event, result, at)

    def follow(self, event: AnyEvent, result: Result, at: datetime | None) -> None:
        """What else a result tells: the user's answer or refusal, work that goes on."""
        lane, fields = event.lane, result.fields
        refused = result.rejection
        if refused is not None:
            self.heard(lane, refused, "correction", at)
        elif isinstance(event, Message):
            plan = fields.get("plan")
            if not event.text and isinstance(plan, str):
                self.builder.finish(event, text=shortened(plan, self.skipped))
            self.heard(lane, answer_in(fields) or result.words, "answer", at)
        elif isinstance(event, Edit) and fields.get("userModified") is True:
            self.heard(lane, "[The user changed the proposed edit.]", "correction", at)
        elif isinstance(event, Command) and (task := result.background):
            self.running[task] = event.number
        elif isinstance(event, Handoff) and event.child:
            if event.report is None:
                self.running[event.child] = event.number
        elif isinstance(event, ToolUse) and self.running:
            given = event.arguments or {}
            for name in ("bash_id", "task_id", "agentId"):
                self.settle(given.get(name), result.text)

    def notified(self, text: str) -> None:
        """The client's word that something in the background has ended."""
        if (task := _TASK_ID.search(text[:4000])) is not None:
            self.settle(task[1], text)

    def settle(self, task: Any, text: str) -> None:
        """What is said of background work: how it ended, and what it brought."""
        status = _STATUS.search(text[:4000])
        known = isinstance(task, str) and task in self.running
        if not known or status is None or status[1] in ("running", "in_progress", "pending"):
            return
        event = self.builder.events[self.running.pop(task) - 1]
        if isinstance(event, Command):
            found = _EXIT_CODE.search(text[:4000])
            output = f"{event.output or ''}\n{text}"
            said: dict[str, Any] = {"output": shortened(output, self.skipped)}
            if found is not None:
                said |= {"exit_code": int(found[1]), "exit_from": "parsed"}
            self.builder.finish(event, **said)
        elif isinstance(event, Handoff):
            report = _RESULT.search(text)
            self.builder.finish(
                event, report=report[1] if report else text, ok=status[1] == "completed"
            )
