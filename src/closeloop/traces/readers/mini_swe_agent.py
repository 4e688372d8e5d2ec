"""mini-swe-agent's trajectories: format 1 (commands in fences) and 1.1 (tool calls)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from closeloop.records.attempt import Exit
from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.records.trace import AnyEvent, Intent, Turn
from closeloop.traces.provider_values import content_text, usage_from_openai, with_total_cost
from closeloop.traces.session_builder import SessionBuilder, derive_id
from closeloop.traces.untrusted_json import (
    as_exit_code,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    seconds_between,
    time_from_seconds,
)

name = "mini-swe-agent"
version = 2

_FENCE = re.compile(r"```(?:bash|mswea_bash_command)[ \t]*\n(.*?)\n```", re.DOTALL)
_RETURN_CODE = re.compile(r"\A\s*<returncode>(-?\d{1,6})</returncode>")
_PLAIN_RETURN_CODE = re.compile(r"'returncode': (-?\d{1,6})\}\s*\Z")
"""How a result ends where no template was set for it."""
_OUTPUT = re.compile(
    r"\A\s*<returncode>[^<]*</returncode>\s*<output>\n?(.*)</output>\s*\Z", re.DOTALL
)
NOT_EXECUTED = "action was not executed"
EXIT_BY_STATUS: dict[str, Exit] = {
    "Submitted": "finished",
    "LimitsExceeded": "out_of_budget",
    "TimeExceeded": "out_of_time",
    "RepeatedFormatError": "gave_up",
    "ContextWindowExceededError": "out_of_budget",
}
_INTENT_BY_PREFIX: tuple[tuple[str, Intent], ...] = (
    ("Command not executed. The user rejected", "correction"),
    ("Commands not executed. The user rejected", "correction"),
    ("Interrupted by user", "interrupt"),
    ("The user added a new task", "request"),
)


def recognises(source: RecordingSource) -> bool:
    # What was submitted may fill the beginning of the file.
    if not any(sign in source.head for sign in (b'"info"', b'"messages"', b"mini-swe-agent-1")):
        return False
    document = as_mapping(source.document)
    form = document.get("trajectory_format")
    return isinstance(form, str) and form.startswith("mini-swe-agent-1") and "messages" in document


def read(source: RecordingSource) -> Iterator[Session]:
    document = as_mapping(source.document)
    info, messages = as_mapping(document.get("info")), as_list(document.get("messages"))
    builder = SessionBuilder(name, version, source.skipped, several=True)
    status = as_text(info.get("exit_status"))
    if document.get("trajectory_format") == "mini-swe-agent-1":
        dialogue: _FenceFormatRun | _CallFormatRun = _FenceFormatRun(builder, status)
    else:
        dialogue = _CallFormatRun(builder, status)
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            builder.add_note(json_excerpt(message), "unknown: message")
            continue
        dialogue.add_message(message, last=number == len(messages) - 1)
    outcome = EXIT_BY_STATUS.get(status or "", "crashed")
    summary = builder.claim_last_message(status or "") if outcome == "finished" else None
    if submission := as_text(info.get("submission")):
        builder.add_note(submission, "submission")
    yield _build_session(
        document, info, builder, dialogue, (outcome, status or "no exit status"), summary
    )


def _build_session(
    told: Mapping[str, Any],
    info: Mapping[str, Any],
    builder: SessionBuilder,
    dialogue: _MiniSweAgentRun,
    ended: tuple[Exit, str],
    summary: str | None,
) -> Session:
    config = as_mapping(info.get("config"))
    stats = as_mapping(info.get("model_stats"))
    instance = as_text(told.get("instance_id"))
    times = [event.at for event in builder.events if event.at is not None]
    return builder.build_session(
        id=derive_id(name, instance, dialogue.opening, times[:1], dialogue.identity),
        agent=name,
        agent_version=builder.text_or_none(info.get("mini_version")),
        model=builder.text_or_none(as_mapping(config.get("model")).get("model_name")),
        system=dialogue.system,
        started=min(times, default=None),
        ended=dialogue.last,
        exit=ended[0],
        cause=None if ended[0] == "finished" else builder.truncate_text(ended[1]),
        usage=with_total_cost(builder.total_usage(), stats.get("instance_cost")),
        summary=summary,
        directory=builder.text_or_none(as_mapping(config.get("environment")).get("cwd")),
        links={"instance": builder.truncate_text(instance)} if instance else {},
    )


class _MiniSweAgentRun:
    """What both formats share: the opening, the provider's messages, their usage."""

    def __init__(self, builder: SessionBuilder, status: str | None) -> None:
        self.builder = builder
        self.status = status
        self.system: str | None = None
        self.opening: list[Mapping[str, Any]] = []
        self.identity: str | None = None
        self.last: datetime | None = None

    def add_message(self, message: dict[str, Any], *, last: bool) -> None:
        extra, role = as_mapping(message.get("extra")), message.get("role")
        self.builder.at = time_from_seconds(extra.get("timestamp") or message.get("timestamp"))
        self.last = self.builder.at or self.last
        if role == "system":
            self.opening.append(message)
            self.system = self.builder.truncate_text(content_text(message.get("content")))
        elif role == "user" and len(self.opening) < 2:
            self.opening.append(message)
            self.builder.add_user_message(content_text(message.get("content")), "request")
        else:
            self.add_later_message(message, extra, last=last)

    def add_later_message(
        self, message: dict[str, Any], extra: dict[str, Any], *, last: bool
    ) -> None:
        raise NotImplementedError

    def begin_turn(self, response: object, cost: object) -> None:
        answer = as_mapping(response)
        response_id = as_text(answer.get("id"))
        self.identity = self.identity or response_id
        self.builder.begin_turn(
            Turn(
                usage=usage_from_openai(answer.get("usage"), cost),
                model=self.builder.text_or_none(answer.get("model")),
                at=self.builder.at,
            )
        )

    def add_user_text(self, said: str) -> bool:
        """Whether a message in the user's name is the user's own."""
        for start, intent in _INTENT_BY_PREFIX:
            if said.startswith(start):
                self.builder.add_user_message(said, intent)
                return True
        return False


class _FenceFormatRun(_MiniSweAgentRun):
    """Format 1: one fence is the command, the next user message its result."""

    def __init__(self, builder: SessionBuilder, status: str | None) -> None:
        super().__init__(builder, status)
        self.waiting: AnyEvent | None = None

    def add_later_message(
        self, message: dict[str, Any], extra: dict[str, Any], *, last: bool
    ) -> None:
        content = content_text(message.get("content"))
        if message.get("role") == "assistant":
            self.begin_turn(extra.get("response"), extra.get("cost"))
            self._add_reply(content)
        elif message.get("role") != "user":
            self.builder.add_note(json_excerpt(message), f"unknown: {message.get('role')}")
        elif last and self.status == "Submitted":
            if self.waiting is not None:
                # What the last command printed is what it handed in.
                self.builder.finish(self.waiting, output=self.builder.truncate_text(content))
        elif last and not content and self.status:
            self.builder.add_note(self.status, "limit")
        else:
            self._add_result(content)

    def _add_reply(self, content: str) -> None:
        fences = list(_FENCE.finditer(content))
        if len(fences) != 1:
            # Anything but one command is refused: then nothing of it ran.
            self.builder.add_agent_message(content)
            return
        fence = fences[0]
        self.builder.add_agent_message((content[: fence.start()] + content[fence.end() :]).strip())
        self.waiting = self.builder.add_command(fence[1].strip())

    def _add_result(self, content: str) -> None:
        command, self.waiting = self.waiting, None
        if self.add_user_text(content):
            return
        if command is None:
            self.builder.add_note(content, "format error")
            return
        code, output_match = _RETURN_CODE.match(content), _OUTPUT.match(content)
        if code is None and content.startswith("Observation: {"):
            code = _PLAIN_RETURN_CODE.search(content[-40:])
        late = content.startswith("The last command <command>") and "timed out" in content[:20000]
        self.builder.finish(
            command,
            output=self.builder.truncate_text(output_match[1] if output_match else content),
            exit_code=int(code[1]) if code else None,
            exit_from="parsed" if code else None,
            stopped="out of time" if late else None,
            seconds=seconds_between(command.at, self.builder.at),
        )


class _CallFormatRun(_MiniSweAgentRun):
    """Format 1.1: messages list their actions; results name their call, or follow in order."""

    def __init__(self, builder: SessionBuilder, status: str | None) -> None:
        super().__init__(builder, status)
        self.waiting: list[AnyEvent] = []
        self.left: list[AnyEvent] = []
        self.alone = False

    def add_later_message(
        self, message: dict[str, Any], extra: dict[str, Any], *, last: bool
    ) -> None:
        role = message.get("role")
        if role == "exit" or "exit_status" in extra:
            self._add_exit(message, extra)
        elif role == "assistant" or message.get("object") == "response":
            self.begin_turn(
                message if "usage" in message else extra.get("response"), extra.get("cost")
            )
            self._add_reply(message, extra)
        elif (
            "returncode" in extra or role == "tool" or message.get("type") == "function_call_output"
        ):
            self._add_result(message, extra)
        else:
            self._add_user_message(message, extra)

    def _add_reply(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        said = content_text(message.get("content"))
        if isinstance(reasoning := message.get("reasoning_content"), str):
            self.builder.add_thought(reasoning)
        for item in as_list(message.get("output")):
            part = as_mapping(item)
            if part.get("type") == "message":
                said += content_text(part.get("content"))
            elif part.get("type") == "reasoning":
                self.builder.add_thought(content_text(part.get("summary")))
        actions = [as_mapping(action) for action in as_list(extra.get("actions"))]
        if actions and not message.get("tool_calls") and not message.get("output"):
            said = _FENCE.sub("", said)
        self.builder.add_agent_message(said.strip())
        self._add_actions(actions)

    def _add_actions(self, actions: list[dict[str, Any]]) -> None:
        self.waiting, self.left, self.alone = [], [], len(actions) == 1
        for action in actions:
            line = as_text(action.get("command")) or ""
            self.waiting.append(self.builder.add_command(line, as_text(action.get("tool_call_id"))))

    def _add_result(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        call_id = as_text(message.get("tool_call_id")) or as_text(message.get("call_id"))
        command = next((one for one in self.waiting if call_id and one.call == call_id), None)
        if command is None:
            command = self.waiting[0] if self.waiting else None
        if command is None:
            self.builder.add_note(json_excerpt(message), "result without a call")
            return
        self.waiting.remove(command)
        trouble = as_text(extra.get("exception_info"))
        if trouble == NOT_EXECUTED:
            self.left.append(self.builder.finish(command, stopped="not executed"))
            return
        output = extra.get("raw_output")
        said = output if isinstance(output, str) else content_text(message.get("content"))
        # With an exception there is no return code: -1 stands in for it.
        code = None if trouble else as_exit_code(extra.get("returncode"))
        late = extra.get("exception_type") == "TimeoutExpired" or "timed out" in (trouble or "")
        self.builder.finish(
            command,
            output=self.builder.truncate_text(f"{said}\n{trouble}".strip() if trouble else said),
            exit_code=code,
            exit_from=None if code is None else "stated",
            stopped="out of time" if late and trouble else None,
            seconds=seconds_between(command.at, self.builder.at) if self.alone else None,
        )

    def _add_user_message(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        said = content_text(message.get("content"))
        if as_list(extra.get("actions")):
            # In human mode the user runs a command in the agent's place.
            self.builder.add_user_message(said)
            self._add_actions([as_mapping(action) for action in as_list(extra["actions"])])
        elif extra.get("interrupt_type") == "FormatError":
            if "response" in extra:
                self.begin_turn(extra["response"], extra.get("cost"))
                for choice in as_list(as_mapping(extra["response"]).get("choices"))[:1]:
                    answer = as_mapping(as_mapping(choice).get("message"))
                    self.builder.add_agent_message(content_text(answer.get("content")))
            self.builder.add_note(said, "format error")
        elif not self.add_user_text(said):
            self.builder.add_user_message(said)

    def _add_exit(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        status = as_text(extra.get("exit_status")) or "no exit status"
        if status != "Submitted":
            self.builder.add_note(as_text(extra.get("exception_str")) or status, "limit")
        elif self.left or self.waiting:
            # It ran: only a command that ends with 0 submits, and it is the first without result.
            first = min((*self.left, *self.waiting), key=lambda event: event.number)
            self.builder.update_event(first, exit_code=0, exit_from="parsed", stopped=None)
