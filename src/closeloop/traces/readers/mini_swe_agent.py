"""mini-swe-agent's trajectories: format 1 (commands in fences) and 1.1 (tool calls)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from closeloop.model.attempt import Exit
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Intent, Turn
from closeloop.traces import single
from closeloop.traces.telling import Teller, identity, text_of, usage_of, with_total
from closeloop.traces.untrusted import between, exit_code, items, mapping, raw, seconds, text

name = "mini-swe-agent"
version = 2
parts, owner = single.parts, single.owner

_FENCE = re.compile(r"```(?:bash|mswea_bash_command)[ \t]*\n(.*?)\n```", re.DOTALL)
_CODE = re.compile(r"\A\s*<returncode>(-?\d{1,6})</returncode>")
_PLAIN = re.compile(r"'returncode': (-?\d{1,6})\}\s*\Z")
"""How a result ends where no template was set for it."""
_OUTPUT = re.compile(
    r"\A\s*<returncode>[^<]*</returncode>\s*<output>\n?(.*)</output>\s*\Z", re.DOTALL
)
NOT_EXECUTED = "action was not executed"
EXITS: dict[str, Exit] = {
    "Submitted": "finished",
    "LimitsExceeded": "out_of_budget",
    "TimeExceeded": "out_of_time",
    "RepeatedFormatError": "gave_up",
    "ContextWindowExceededError": "out_of_budget",
}
_SAID: tuple[tuple[str, Intent], ...] = (
    ("Command not executed. The user rejected", "correction"),
    ("Commands not executed. The user rejected", "correction"),
    ("Interrupted by user", "interrupt"),
    ("The user added a new task", "request"),
)


def recognises(source: Source) -> bool:
    # What was submitted may fill the beginning of the file.
    if not any(sign in source.head for sign in (b'"info"', b'"messages"', b"mini-swe-agent-1")):
        return False
    told = mapping(source.document)
    form = told.get("trajectory_format")
    return isinstance(form, str) and form.startswith("mini-swe-agent-1") and "messages" in told


def read(source: Source) -> Iterator[Session]:
    told = mapping(source.document)
    info, messages = mapping(told.get("info")), items(told.get("messages"))
    teller = Teller(name, version, source)
    status = text(info.get("exit_status"))
    if told.get("trajectory_format") == "mini-swe-agent-1":
        dialogue: _Fences | _Calls = _Fences(teller, status)
    else:
        dialogue = _Calls(teller, status)
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            teller.note(raw(message), "unknown: message")
            continue
        dialogue.tell(message, last=number == len(messages) - 1)
    ended = EXITS.get(status or "", "crashed")
    summary = teller.claim(status or "") if ended == "finished" else None
    if submission := text(info.get("submission")):
        teller.note(submission, "submission")
    yield _session(told, info, teller, dialogue, (ended, status or "no exit status"), summary)


def _session(
    told: Mapping[str, Any],
    info: Mapping[str, Any],
    teller: Teller,
    dialogue: _Dialogue,
    ended: tuple[Exit, str],
    summary: str | None,
) -> Session:
    config = mapping(info.get("config"))
    stats = mapping(info.get("model_stats"))
    instance = text(told.get("instance_id"))
    times = [event.at for event in teller.builder.events if event.at is not None]
    return Session(
        id=identity(name, instance, dialogue.opening, times[:1], dialogue.identity),
        agent=name,
        agent_version=teller.known(info.get("mini_version")),
        model=teller.known(mapping(config.get("model")).get("model_name")),
        system=dialogue.system,
        started=min(times, default=None),
        ended=dialogue.last,
        exit=ended[0],
        cause=None if ended[0] == "finished" else teller.clean(ended[1]),
        usage=with_total(teller.builder.usage(), stats.get("instance_cost")),
        summary=summary,
        directory=teller.known(mapping(config.get("environment")).get("cwd")),
        links={"instance": teller.clean(instance)} if instance else {},
        trace=teller.trace(),
    )


class _Dialogue:
    """What both formats share: the opening, the provider's messages, their usage."""

    def __init__(self, teller: Teller, status: str | None) -> None:
        self.teller = teller
        self.status = status
        self.system: str | None = None
        self.opening: list[Mapping[str, Any]] = []
        self.identity: str | None = None
        self.last: datetime | None = None

    def tell(self, message: dict[str, Any], *, last: bool) -> None:
        extra, role = mapping(message.get("extra")), message.get("role")
        self.teller.at = seconds(extra.get("timestamp") or message.get("timestamp"))
        self.last = self.teller.at or self.last
        if role == "system":
            self.opening.append(message)
            self.system = self.teller.clean(text_of(message.get("content")))
        elif role == "user" and len(self.opening) < 2:
            self.opening.append(message)
            self.teller.user(text_of(message.get("content")), "request")
        else:
            self.message(message, extra, last=last)

    def message(self, message: dict[str, Any], extra: dict[str, Any], *, last: bool) -> None:
        raise NotImplementedError

    def provider(self, response: object, cost: object) -> None:
        answer = mapping(response)
        known = text(answer.get("id"))
        self.identity = self.identity or known
        self.teller.provider(
            Turn(
                usage=usage_of(answer.get("usage"), cost),
                model=self.teller.known(answer.get("model")),
                at=self.teller.at,
            )
        )

    def heard(self, said: str) -> bool:
        """Whether a message in the user's name is the user's own."""
        for start, intent in _SAID:
            if said.startswith(start):
                self.teller.user(said, intent)
                return True
        return False


class _Fences(_Dialogue):
    """Format 1: one fence is the command, the next user message its result."""

    def __init__(self, teller: Teller, status: str | None) -> None:
        super().__init__(teller, status)
        self.waiting: AnyEvent | None = None

    def message(self, message: dict[str, Any], extra: dict[str, Any], *, last: bool) -> None:
        content = text_of(message.get("content"))
        if message.get("role") == "assistant":
            self.provider(extra.get("response"), extra.get("cost"))
            self._assistant(content)
        elif message.get("role") != "user":
            self.teller.note(raw(message), f"unknown: {message.get('role')}")
        elif last and self.status == "Submitted":
            if self.waiting is not None:
                # What the last command printed is what it handed in.
                self.teller.builder.finish(self.waiting, output=self.teller.clean(content))
        elif last and not content and self.status:
            self.teller.note(self.status, "limit")
        else:
            self._came(content)

    def _assistant(self, content: str) -> None:
        fences = list(_FENCE.finditer(content))
        if len(fences) != 1:
            # Anything but one command is refused: then nothing of it ran.
            self.teller.agent(content)
            return
        fence = fences[0]
        self.teller.agent((content[: fence.start()] + content[fence.end() :]).strip())
        self.waiting = self.teller.command(fence[1].strip())

    def _came(self, content: str) -> None:
        command, self.waiting = self.waiting, None
        if self.heard(content):
            return
        if command is None:
            self.teller.note(content, "format error")
            return
        code, whole = _CODE.match(content), _OUTPUT.match(content)
        if code is None and content.startswith("Observation: {"):
            code = _PLAIN.search(content[-40:])
        late = content.startswith("The last command <command>") and "timed out" in content[:20000]
        self.teller.builder.finish(
            command,
            output=self.teller.clean(whole[1] if whole else content),
            exit_code=int(code[1]) if code else None,
            exit_from="parsed" if code else None,
            stopped="out of time" if late else None,
            seconds=between(command.at, self.teller.at),
        )


class _Calls(_Dialogue):
    """Format 1.1: messages list their actions; results name their call, or follow in order."""

    def __init__(self, teller: Teller, status: str | None) -> None:
        super().__init__(teller, status)
        self.waiting: list[AnyEvent] = []
        self.left: list[AnyEvent] = []
        self.alone = False

    def message(self, message: dict[str, Any], extra: dict[str, Any], *, last: bool) -> None:
        role = message.get("role")
        if role == "exit" or "exit_status" in extra:
            self._exit(message, extra)
        elif role == "assistant" or message.get("object") == "response":
            self.provider(
                message if "usage" in message else extra.get("response"), extra.get("cost")
            )
            self._assistant(message, extra)
        elif (
            "returncode" in extra or role == "tool" or message.get("type") == "function_call_output"
        ):
            self._result(message, extra)
        else:
            self._user(message, extra)

    def _assistant(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        said = text_of(message.get("content"))
        if isinstance(reasoning := message.get("reasoning_content"), str):
            self.teller.thought(reasoning)
        for item in items(message.get("output")):
            part = mapping(item)
            if part.get("type") == "message":
                said += text_of(part.get("content"))
            elif part.get("type") == "reasoning":
                self.teller.thought(text_of(part.get("summary")))
        actions = [mapping(action) for action in items(extra.get("actions"))]
        if actions and not message.get("tool_calls") and not message.get("output"):
            said = _FENCE.sub("", said)
        self.teller.agent(said.strip())
        self._actions(actions)

    def _actions(self, actions: list[dict[str, Any]]) -> None:
        self.waiting, self.left, self.alone = [], [], len(actions) == 1
        for action in actions:
            line = text(action.get("command")) or ""
            self.waiting.append(self.teller.command(line, text(action.get("tool_call_id"))))

    def _result(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        known = text(message.get("tool_call_id")) or text(message.get("call_id"))
        command = next((one for one in self.waiting if known and one.call == known), None)
        if command is None:
            command = self.waiting[0] if self.waiting else None
        if command is None:
            self.teller.note(raw(message), "result without a call")
            return
        self.waiting.remove(command)
        trouble = text(extra.get("exception_info"))
        if trouble == NOT_EXECUTED:
            self.left.append(self.teller.builder.finish(command, stopped="not executed"))
            return
        output = extra.get("raw_output")
        said = output if isinstance(output, str) else text_of(message.get("content"))
        # With an exception there is no return code: -1 stands in for it.
        code = None if trouble else exit_code(extra.get("returncode"))
        late = extra.get("exception_type") == "TimeoutExpired" or "timed out" in (trouble or "")
        self.teller.builder.finish(
            command,
            output=self.teller.clean(f"{said}\n{trouble}".strip() if trouble else said),
            exit_code=code,
            exit_from=None if code is None else "stated",
            stopped="out of time" if late and trouble else None,
            seconds=between(command.at, self.teller.at) if self.alone else None,
        )

    def _user(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        said = text_of(message.get("content"))
        if items(extra.get("actions")):
            # In human mode the user runs a command in the agent's place.
            self.teller.user(said)
            self._actions([mapping(action) for action in items(extra["actions"])])
        elif extra.get("interrupt_type") == "FormatError":
            if "response" in extra:
                self.provider(extra["response"], extra.get("cost"))
                for choice in items(mapping(extra["response"]).get("choices"))[:1]:
                    answer = mapping(mapping(choice).get("message"))
                    self.teller.agent(text_of(answer.get("content")))
            self.teller.note(said, "format error")
        elif not self.heard(said):
            self.teller.user(said)

    def _exit(self, message: dict[str, Any], extra: dict[str, Any]) -> None:
        status = text(extra.get("exit_status")) or "no exit status"
        if status != "Submitted":
            self.teller.note(text(extra.get("exception_str")) or status, "limit")
        elif self.left or self.waiting:
            # It ran: only a command that ends with 0 submits, and it is the first without result.
            first = min((*self.left, *self.waiting), key=lambda event: event.number)
            self.teller.more(first, exit_code=0, exit_from="parsed", stopped=None)
