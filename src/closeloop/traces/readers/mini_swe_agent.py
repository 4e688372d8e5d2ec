"""mini-swe-agent's trajectories: format 1 and earlier (commands in fences), 1.1 (tool calls)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from textwrap import dedent
from typing import Any

from closeloop.records.attempt import Exit
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import AnyEvent, Intent, Session, Turn
from closeloop.traces.session_builder import UNPAIRED_RESULT, SessionBuilder, derive_id
from closeloop.traces.untrusted_json import (
    as_exit_code,
    as_list,
    as_mapping,
    as_text,
    content_text,
    json_excerpt,
    seconds_between,
    time_from_seconds,
    usage_from_openai,
    with_total_cost,
)

name = "mini-swe-agent"
version = 3

_FENCE = re.compile(r"```(?:bash|mswea_bash_command)[ \t]*\n(.*?)\n```", re.DOTALL)
_OTHER_COMMANDS = (
    # Formats in which a configuration lets the model write commands, the likeliest first.
    re.compile(r"^[ \t]*```(?:bash|mswea_bash_command)[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL | re.M),
    re.compile(r"<(?:mswea_bash_command|bash_code)>(.*?)</", re.DOTALL),
    re.compile(r"^[ \t]*```(?:sh|shell|console)?[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL | re.M),
)
_RETURN_CODE = re.compile(
    r"\A\s*(?:<args>\n[^\n]*\n</args>\s*)?(?:<warning>[^<]*</warning>\s*<observation_head>\s*)?"
    r"<returncode>\s*(-?\d{1,6})\s*</returncode>"
)
_PLAIN_RETURN_CODE = re.compile(r"'returncode': (-?\d{1,6})\}\s*\Z")
"""The end of a result without a template."""
_OUTPUT = re.compile(
    r"\A\s*<returncode>[^<]*</returncode>\s*<output>\n?(.*)</output>\s*\Z", re.DOTALL
)
_STREAMS = re.compile(r"<(stdout|stderr)>\n?(.*?)\n?</\1>", re.DOTALL)
"""Older versions report both streams separately."""
_FINAL_OUTPUT = re.compile(r"\b[A-Z_]+_FINAL_OUTPUT\b")
"""Printed by a command to submit the work; the words changed with the agent's name."""
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
    # The submission may fill the beginning of the file.
    signs = (b'"info"', b'"messages"', b"mini-swe-agent-1", b'"role"')
    if not any(sign in source.head for sign in signs):
        return False
    document = source.document
    if isinstance(document, list):
        return b"_FINAL_OUTPUT" in source.head and _is_early_dialogue(document)
    document = as_mapping(document)
    if "trajectory_format" not in document:
        info = as_mapping(document.get("info"))
        return {"exit_status", "submission", "model_stats"} <= info.keys() and _is_early_dialogue(
            as_list(document.get("messages"))
        )
    form = document["trajectory_format"]
    return isinstance(form, str) and form.startswith("mini-swe-agent-1") and "messages" in document


def _is_early_dialogue(messages: list[Any]) -> bool:
    """Whether messages are of a version that did not state its format."""
    opening = [as_mapping(message) for message in messages[:3]]
    return (
        [message.get("role") for message in opening] == ["system", "user", "assistant"]
        and all(isinstance(message.get("content"), str) for message in opening)
        and any(_FINAL_OUTPUT.search(message["content"]) for message in opening[:2])
    )


def read(source: RecordingSource) -> Iterator[Session]:
    raw_document = source.document
    if isinstance(raw_document, list):
        raw_document = {
            "messages": raw_document,
            "info": {"exit_status": _infer_status(raw_document)},
        }
    document = as_mapping(raw_document)
    info, messages = as_mapping(document.get("info")), as_list(document.get("messages"))
    builder = SessionBuilder(name, version, source.skipped, several=True)
    status = as_text(info.get("exit_status"))
    if document.get("trajectory_format", "mini-swe-agent-1") == "mini-swe-agent-1":
        dialogue: _FenceFormatRun | _CallFormatRun = _FenceFormatRun(builder, status)
    else:
        dialogue = _CallFormatRun(builder, status)
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            builder.add_note(json_excerpt(message), "unknown: message")
            continue
        dialogue.following = [as_mapping(message) for message in messages[number : number + 2]]
        dialogue.add_message(message, last=number == len(messages))
    outcome = EXIT_BY_STATUS.get(status or "", "crashed")
    summary = builder.claim_last_message(status or "") if outcome == "finished" else None
    if submission := as_text(info.get("submission")):
        builder.add_note(submission, "submission")
    yield _build_session(
        document, info, builder, dialogue, (outcome, status or "no exit status"), summary
    )


def _infer_status(messages: list[Any]) -> str | None:
    """Return how a dialogue without a status ended: whether its last command submitted the work."""
    replies = [as_mapping(message) for message in messages[-2:]]
    text = content_text(replies[0].get("content")) if replies else ""
    return "Submitted" if _FINAL_OUTPUT.search(text) else None


def _build_session(
    record: Mapping[str, Any],
    info: Mapping[str, Any],
    builder: SessionBuilder,
    dialogue: _MiniSweAgentRun,
    outcome: tuple[Exit, str],
    summary: str | None,
) -> Session:
    config = as_mapping(info.get("config"))
    stats = as_mapping(info.get("model_stats"))
    instance = as_text(record.get("instance_id"))
    times = [event.at for event in builder.events if event.at is not None]
    return builder.build_session(
        id=derive_id(name, instance, dialogue.opening, times[:1], dialogue.identity),
        agent=name,
        agent_version=builder.text_or_none(info.get("mini_version")),
        model=builder.text_or_none(as_mapping(config.get("model")).get("model_name")),
        system=dialogue.system,
        started=min(times, default=None),
        ended=dialogue.last,
        exit=outcome[0],
        cause=None if outcome[0] == "finished" else builder.truncate_text(outcome[1]),
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
        self.following: list[Mapping[str, Any]] = []
        """The two messages after the current one."""

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

    def add_user_text(self, text: str) -> bool:
        """Whether a message in the user's name is the user's own."""
        for start, intent in _INTENT_BY_PREFIX:
            if text.startswith(start):
                self.builder.add_user_message(text, intent)
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
        elif last and self.status == "Submitted" and _result_code(content) is None:
            if self.waiting is not None:
                # The last command's output is the submission.
                self.builder.finish(self.waiting, output=self.builder.truncate_text(content))
        elif last and not content and self.status:
            self.builder.add_note(self.status, "limit")
        else:
            self._add_result(content)

    def _add_reply(self, content: str) -> None:
        command = _find_command(content, (_FENCE,))
        if command is None and self._is_answered():
            command = _find_command(content, _OTHER_COMMANDS)
        if command is None:
            # Anything but exactly one command is refused, and nothing of it ran.
            self.builder.add_agent_message(content)
            return
        self.builder.add_agent_message(
            (content[: command.start()] + content[command.end() :]).strip()
        )
        self.waiting = self.builder.add_command(dedent(command[1]).strip())

    def _is_answered(self) -> bool:
        """Whether the next message is a result, so that there was a command."""
        if len(self.following) == 1 and self.status == "Submitted":
            return True
        texts = [content_text(message.get("content")) for message in self.following[:1]]
        return any(_result_code(text) is not None for text in texts)

    def _add_result(self, content: str) -> None:
        command, self.waiting = self.waiting, None
        if self.add_user_text(content):
            return
        code, output_match = _result_code(content), _OUTPUT.match(content)
        if command is None:
            self.builder.add_note(content, "format error" if code is None else UNPAIRED_RESULT)
            return
        output = output_match[1] if output_match else content
        if code is not None and not output_match and (streams := _STREAMS.findall(content)):
            output = "\n".join(text for _, text in streams if text.strip())
        timed_out = (
            content.startswith("The last command <command>") and "timed out" in content[:20000]
        )
        self.builder.finish(
            command,
            output=self.builder.truncate_text(output),
            exit_code=code,
            exit_from=None if code is None else "parsed",
            stopped="out of time" if timed_out else None,
            seconds=seconds_between(command.at, self.builder.at),
        )


def _find_command(content: str, forms: Sequence[re.Pattern[str]]) -> re.Match[str] | None:
    """Return the one command of a reply, in the first form that occurs exactly once."""
    for form in forms:
        matches = list(islice(form.finditer(content), 2))
        if len(matches) == 1:
            return matches[0]
    return None


def _result_code(content: str) -> int | None:
    """Return the exit code that a user message states; None if it is not a result."""
    code = _RETURN_CODE.match(content)
    if code is None and content.startswith("Observation: {"):
        code = _PLAIN_RETURN_CODE.search(content[-40:])
    return int(code[1]) if code else None


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
        text = content_text(message.get("content"))
        if isinstance(reasoning := message.get("reasoning_content"), str):
            self.builder.add_thought(reasoning)
        for item in as_list(message.get("output")):
            part = as_mapping(item)
            if part.get("type") == "message":
                text += content_text(part.get("content"))
            elif part.get("type") == "reasoning":
                self.builder.add_thought(content_text(part.get("summary")))
        actions = [as_mapping(action) for action in as_list(extra.get("actions"))]
        if actions and not message.get("tool_calls") and not message.get("output"):
            text = _FENCE.sub("", text)
        self.builder.add_agent_message(text.strip())
        self._add_actions(actions)

    def _add_actions(self, actions: list[dict[str, Any]]) -> None:
        self.waiting, self.left, self.alone = [], [], len(actions) == 1
        for action in actions:
            line = as_text(action.get("command")) or ""
            self.waiting.append(self.builder.add_command(line, as_text(action.get("tool_call_id"))))

    def _add_result(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        call_id = as_text(message.get("tool_call_id")) or as_text(message.get("call_id"))
        command = next((event for event in self.waiting if call_id and event.call == call_id), None)
        if command is None:
            command = self.waiting[0] if self.waiting else None
        if command is None:
            self.builder.add_note(json_excerpt(message), UNPAIRED_RESULT)
            return
        self.waiting.remove(command)
        error = as_text(extra.get("exception_info"))
        if error == NOT_EXECUTED:
            self.left.append(self.builder.finish(command, stopped="not executed"))
            return
        output = extra.get("raw_output")
        text = output if isinstance(output, str) else content_text(message.get("content"))
        # With an exception there is no return code: -1 stands in for it.
        code = None if error else as_exit_code(extra.get("returncode"))
        timed_out = extra.get("exception_type") == "TimeoutExpired" or "timed out" in (error or "")
        self.builder.finish(
            command,
            output=self.builder.truncate_text(f"{text}\n{error}".strip() if error else text),
            exit_code=code,
            exit_from=None if code is None else "stated",
            stopped="out of time" if timed_out and error else None,
            seconds=seconds_between(command.at, self.builder.at) if self.alone else None,
        )

    def _add_user_message(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        text = content_text(message.get("content"))
        if as_list(extra.get("actions")):
            # In human mode the user runs a command in the agent's place.
            self.builder.add_user_message(text)
            self._add_actions([as_mapping(action) for action in as_list(extra["actions"])])
        elif extra.get("interrupt_type") == "FormatError":
            if "response" in extra:
                self.begin_turn(extra["response"], extra.get("cost"))
                for choice in as_list(as_mapping(extra["response"]).get("choices"))[:1]:
                    answer = as_mapping(as_mapping(choice).get("message"))
                    self.builder.add_agent_message(content_text(answer.get("content")))
            self.builder.add_note(text, "format error")
        elif not self.add_user_text(text):
            self.builder.add_user_message(text)

    def _add_exit(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        status = as_text(extra.get("exit_status")) or "no exit status"
        if status != "Submitted":
            self.builder.add_note(as_text(extra.get("exception_str")) or status, "limit")
        elif self.left or self.waiting:
            # It ran: only a command that ends with 0 submits, and it is the first without result.
            first = min((*self.left, *self.waiting), key=lambda event: event.number)
            self.builder.update_event(first, exit_code=0, exit_from="parsed", stopped=None)
