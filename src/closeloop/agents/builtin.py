"""The built-in agent: a small tool loop that records what it does.

request ──► model ──► calls ──► results ──► model ──► … ──► finish

A mistake of the agent is returned to it as a failed result, or is its exit; only what the user
must fix is raised.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec

from closeloop.agents.headless_agent import (
    FEEDBACK_QUESTION,
    Clock,
    LaneRecorder,
    RecordedAction,
    TraceRecorder,
    clean_for_storage,
    compute_feedback_seconds,
    replace_surrogates,
    sanitise_reply,
    shorten_middle,
)
from closeloop.records.attempt import Exit, Usage, sum_usage
from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget, unknown_name_error
from closeloop.records.protocols import Assignment, Model, Work
from closeloop.records.record import Record
from closeloop.records.task import REFERENCE_AGENT
from closeloop.records.trace import (
    ChatMessage,
    Command,
    Edit,
    Handoff,
    ModelReply,
    ModelRequest,
    ModelToolCall,
    Read,
    ToolSpec,
    ToolUse,
)

# The tools of the built-in agent: each is a function that records what it does.
#
# The tools as described to the model, and the checks of a call's arguments.

JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
SYSTEM_PARAMETERS = ("command", "path", "pattern")
"""Parameters passed to the operating system, where NUL ends a text."""


class ToolFailed(Exception):
    """A tool could not do what the agent requested; the agent receives the message."""


def _build_tool_spec(
    name: str, description: str, *, optional: str = "", **parameters: str
) -> ToolSpec:
    """Parameters are `name="type: description"`."""
    properties = {}
    for parameter, text in parameters.items():
        kind, _, description_text = text.partition(": ")
        properties[parameter] = {"type": kind, "description": description_text}
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": properties,
            "required": [name for name in parameters if name not in optional.split()],
            "additionalProperties": False,
        },
    )


TOOL_SPECS = (
    _build_tool_spec(
        "run",
        "Run a shell command at the root of the repository. Gives its exit code, then what it "
        "printed, standard output and error together. Every command starts in a fresh shell.",
        optional="seconds",
        command="string: The command line.",
        seconds="number: Stop it after this many seconds.",
    ),
    _build_tool_spec(
        "read",
        "Read a text file, or some lines of it.",
        optional="first_line last_line",
        path="string: The file, relative to the root of the repository.",
        first_line="integer: The first line to show, from 1.",
        last_line="integer: The last line to show.",
    ),
    _build_tool_spec(
        "write",
        "Create a file, or replace all of it. Folders above it are made.",
        path="string: The file, relative to the root of the repository.",
        text="string: The whole content.",
    ),
    _build_tool_spec(
        "edit",
        "Replace one passage of a file.",
        path="string: The file, relative to the root of the repository.",
        old="string: The passage, exactly as it stands in the file; it must occur exactly once.",
        new="string: What takes its place.",
    ),
    _build_tool_spec(
        "search",
        "Find lines in files by an extended regular expression. Gives `path:line: text`.",
        optional="path",
        pattern="string: The regular expression, as for `grep -E`.",
        path="string: A file or folder to search; the whole repository when left out.",
    ),
    _build_tool_spec(
        "ask",
        "Ask the user a question, when the request lacks a decision that only they can make.",
        question="string: One clear question.",
    ),
    _build_tool_spec(
        "delegate",
        "Hand a part of the work to a sub-agent and get its report. It works in the same "
        "files but knows nothing of this conversation.",
        brief="string: All that it must know: the goal, the facts and limits that hold, the files, "
        "how to check the work, what to report.",
    ),
    _build_tool_spec(
        "finish",
        "End the work.",
        optional="done",
        summary="string: What was done, how it was checked, and what remains open.",
        done="boolean: False when the request could not be fulfilled.",
    ),
)
TOOLS: Mapping[str, ToolSpec] = {spec.name: spec for spec in TOOL_SPECS}
CHILD_TOOLS: Mapping[str, ToolSpec] = {
    name: spec for name, spec in TOOLS.items() if name != "delegate"
}


def check_call_arguments(call: ModelToolCall, tools: Mapping[str, ToolSpec]) -> dict[str, Any]:
    """Return the call's arguments; ToolFailed says what is wrong and what is expected."""
    if call.name not in tools:
        raise ToolFailed(str(unknown_name_error("tool", call.name, tools)))
    spec = tools[call.name]
    arguments = {name: value for name, value in call.arguments.items() if value is not None}
    if call.malformed is not None:
        problem: str | None = f"its arguments were not a JSON object: {call.malformed}"
    else:
        problem = _find_argument_fault(arguments, spec)
    if problem:
        raise ToolFailed(f"This call was not run: {problem}.\n{_describe_tool_usage(spec)}")
    return arguments


def _find_argument_fault(arguments: dict[str, Any], spec: ToolSpec) -> str | None:
    properties = spec.parameters["properties"]
    for name in spec.parameters["required"]:
        if name not in arguments:
            return f"{name!r} is missing"
    for name, value in arguments.items():
        if name not in properties:
            return f"it has no parameter {str(name)[:100]!r}"
        kind = properties[name]["type"]
        if not _is_of_type(kind, value):
            return f"{name!r} must be of type {kind}"
        if kind in ("integer", "number") and not 0 < value < 1e9:
            return f"{name!r} must be more than 0 and less than a billion"
        if name in SYSTEM_PARAMETERS and "\0" in value:
            return f"{name!r} must not contain a NUL character"
    return None


def _is_of_type(kind: str, value: object) -> bool:
    """Check JSON types; true is not a number."""
    return isinstance(value, JSON_TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")


def _describe_tool_usage(spec: ToolSpec) -> str:
    """`read takes path (string), first_line (integer, optional).`"""
    required = spec.parameters["required"]
    parameters = (
        f"{name} ({value['type']}{'' if name in required else ', optional'})"
        for name, value in spec.parameters["properties"].items()
    )
    return f"{spec.name} takes {', '.join(parameters)}."


MAX_FILE_BYTES = 1_000_000
"""Maximum bytes of a file that is read or edited."""
SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Shortages of the machine, which are not the agent's fault."""
MAX_MATCHES = 200
MAX_MATCH_CHARS = 300
NO_ANSWER = "No answer is available; decide yourself and say what you assumed."


class LaneEnding(Record):
    """How a lane ended."""

    exit: Exit
    cause: str | None = None
    summary: str | None = None


class ToolInvocation(Record):
    """One tool call: its lane, its call and its arguments."""

    assignment: Assignment
    lane: LaneRecorder
    call: str
    converse: Callable[[LaneRecorder, str], Awaitable[LaneEnding]]
    """Runs a sub-agent in its lane on a brief."""

    @contextmanager
    def record_action(self, kind: type[RecordedAction], **known: Any) -> Iterator[dict[str, Any]]:
        """Record an action on the workspace; a refusal of the system is returned to the agent."""
        with self.lane.record_action(kind, call=self.call, **known) as result:
            try:
                yield result
            except OSError as error:
                reason = error.strerror or str(error)
                if error.errno in SHORTAGE_ERRNOS:
                    raise MachineFailed(
                        f"{reason}: free some space, or run fewer attempts at once."
                    ) from error
                raise ToolFailed(reason) from error


async def run(use: ToolInvocation, command: str, seconds: float | None = None) -> str:
    if seconds is not None:
        seconds = min(seconds, use.assignment.limits.command_seconds)
    with use.record_action(Command, command=command) as result:
        program_run = await use.assignment.sandbox.run(command, seconds=seconds)
        output = replace_surrogates(program_run.output)
        result.update(output=shorten_middle(output), stopped=program_run.stopped)
        if program_run.exit_code is not None:
            result.update(exit_code=program_run.exit_code, exit_from="stated")
    if program_run.exit_code is None:
        raise ToolFailed(
            f"no exit code: stopped, {program_run.stopped or 'by the machine'}\n{output}"
        )
    return f"exit code {program_run.exit_code}\n{output}"


async def read(
    use: ToolInvocation, path: str, first_line: int | None = None, last_line: int | None = None
) -> str:
    with use.record_action(Read, path=path, first_line=first_line, last_line=last_line) as result:
        content = await use.assignment.sandbox.read(path, MAX_FILE_BYTES)
        if b"\0" in content:
            raise ToolFailed(f"{path} is not text: {len(content)} bytes.")
        text = content.decode("utf-8", "replace")
        if first_line is not None or last_line is not None:
            text = _select_lines(path, text, first_line or 1, last_line)
        result.update(text=shorten_middle(text), ok=True)
    return text or "(the file is empty)"


async def write(use: ToolInvocation, path: str, text: str) -> str:
    before, action = await _read_before_write(use, path)
    with use.record_action(Edit, path=path, action=action, before=before, after=text) as result:
        await use.assignment.sandbox.write(path, text.encode())
        result.update(ok=True)
    return f"{path} {'created' if action == 'create' else 'replaced'}."


async def edit(use: ToolInvocation, path: str, old: str, new: str) -> str:
    sandbox = use.assignment.sandbox
    with use.record_action(Edit, path=path, before=old, after=new) as result:
        try:
            text = (await sandbox.read(path, MAX_FILE_BYTES)).decode()
        except UnicodeDecodeError as error:
            raise ToolFailed(f"{path} is not UTF-8 text: change it with a command.") from error
        if not old or old == new:
            raise ToolFailed("old must not be empty, and new must differ from it.")
        if (count := text.count(old)) != 1:
            raise ToolFailed(
                f"old occurs {count} times in {path}, not once: read the file again and give the "
                f"passage exactly as it stands, with enough around it to be unique."
            )
        await sandbox.write(path, text.replace(old, new).encode())
        result.update(ok=True)
    return f"{path} changed."


async def search(use: ToolInvocation, pattern: str, path: str = ".") -> str:
    arguments = {"pattern": pattern, "path": path}
    grep = ["grep", "-rnIE", "--null", "--exclude-dir=.git", "-e", pattern, "--", path]
    with use.record_action(ToolUse, name="search", arguments=arguments) as result:
        program_run = await use.assignment.sandbox.run(grep)
        output = shorten_middle(_format_matches(replace_surrogates(program_run.output)))
        if program_run.exit_code not in (0, 1):
            raise ToolFailed(f"The search failed: {program_run.stopped or output}")
        result.update(output=output, ok=True)
    return output


async def ask(use: ToolInvocation, question: str) -> str:
    use.lane.add_message("agent", question, "question", use.call)
    answer = use.assignment.answer(question)
    if answer:
        use.lane.add_message("user", answer, "answer", use.call)
    else:
        use.lane.add_message("system", NO_ANSWER, "answer", use.call)
    return answer or NO_ANSWER


async def delegate(use: ToolInvocation, brief: str) -> str:
    child = use.lane.recorder.open_lane(use.lane.id)
    with use.lane.record_action(Handoff, call=use.call, brief=brief, child=child.id) as result:
        ending = await use.converse(child, brief)
        result.update(report=ending.summary, ok=ending.exit == "finished")
    if ending.cause is not None:
        child.add_note(ending.cause, about=ending.exit)
        raise ToolFailed(f"The sub-agent gave up. {ending.summary or ending.cause}")
    return ending.summary or "(the sub-agent finished without a report)"


async def finish(use: ToolInvocation, summary: str, done: bool = True) -> LaneEnding:
    use.lane.add_message("agent", summary, "claim" if done else None, use.call)
    if done:
        return LaneEnding(exit="finished", summary=summary)
    return LaneEnding(
        exit="gave_up", cause="the agent said that it could not do it", summary=summary
    )


TOOL_FUNCTIONS: Mapping[str, Callable[..., Awaitable[str | LaneEnding]]] = {
    tool.__name__: tool for tool in (run, read, write, edit, search, ask, delegate, finish)
}


def _select_lines(path: str, text: str, first: int, last: int | None) -> str:
    lines = text.removesuffix("\n").split("\n")
    if first > len(lines) or (last is not None and last < first):
        raise ToolFailed(f"{path} has {len(lines)} lines: there are none from {first} to {last}.")
    return "\n".join(lines[first - 1 : last])


async def _read_before_write(use: ToolInvocation, path: str) -> tuple[str | None, str]:
    """Return a file's text before it is written, if it is text, and the kind of the write."""
    try:
        return (await use.assignment.sandbox.read(path, MAX_FILE_BYTES)).decode(), "change"
    except FileNotFoundError:
        return None, "create"
    except (OSError, UnicodeDecodeError):
        return None, "change"


def _format_matches(output: str) -> str:
    """Format grep's `path NUL line:text` as `path:line: text`, the first matches only."""
    lines = output.removesuffix("\n").split("\n")
    shown_lines = []
    for line in lines[:MAX_MATCHES]:
        path, separator, numbered_line = line.partition("\0")
        number, _, text = numbered_line.partition(":")
        match_line = f"{path.removeprefix('./')}:{number}: {text}" if separator else line
        shown_lines.append(match_line[:MAX_MATCH_CHARS])
    if len(lines) > MAX_MATCHES:
        shown_lines.append(
            f"[… {len(lines) - MAX_MATCHES} more lines left out: narrow the search …]"
        )
    return "\n".join(shown_lines) or "No match."


# The built-in agent's system prompt.

SYSTEM_PROMPT = """\
You are a software engineer working on a request in a repository. You work through tools: run \
commands, read, write, edit and search files, ask the user, delegate to a sub-agent, finish.

How to work:
- Look before you change anything: read the code the request is about and what calls it.
- Reproduce first. When something fails, run it, and let its output tell you where to look.
- Change only what the request needs. Leave other files, other behaviour and the tests' meaning \
alone; if something else should change, say so in your summary.
- Follow the conventions that you find in the code around you.
- After a change, run the tests that concern it, read what they print and act on that. When a fix \
did not help, find out why before you try the next one.
- When an edit or a command fails, look again at the present state; do not build on what you \
assumed.
- When the request lacks a decision that only the user can make, ask before you edit. What you \
can find out yourself, find out.
- When you delegate, the brief is all the sub-agent knows: give it every fact, limit and path it \
needs, and check what it reports.
- Claim only what a check has shown. Say what you could not verify.

When the work is done, and checked, call finish with a short summary. If it cannot be done, call \
finish with done=false and say why.
"""


MAX_EMPTY_REPLIES = 2
"""After this many empty replies in a row, the model has given up."""
EMPTY_REPLY_HINT = "Your reply was empty. Go on with the work, or call finish."
CUT_OFF_HINT = "Your reply was cut off at the length limit. Go on from there, in smaller steps."
SAMPLING_TYPES = {"temperature": float, "max_tokens": int}


async def run_lane(
    assignment: Assignment, lane: LaneRecorder, messages: list[ChatMessage]
) -> LaneEnding:
    """Run one lane from its request, the first message, to its end."""
    tools = TOOLS if lane.parent is None else CHILD_TOOLS
    lane.add_message("user", messages[0].text, "request")
    empty_replies = 0
    while True:
        reply = await take_model_turn(assignment, lane, messages, tools)
        messages.append(
            ChatMessage(role="assistant", text=reply.text, calls=reply.calls, echo=reply.echo)
        )
        ending = find_reply_ending(reply)
        if reply.text:
            is_finished = ending is not None and ending.exit == "finished"
            lane.add_message("agent", reply.text, "claim" if is_finished else None)
        if ending is not None:
            return ending
        for number, call in enumerate(reply.calls, 1):
            result = await perform_call(assignment, lane, call, tools)
            if isinstance(result, LaneEnding):
                if skipped_calls := len(reply.calls) - number:
                    lane.add_note(
                        f"Calls after finish that were not run: {skipped_calls}.", about="bad call"
                    )
                return result
            messages.append(result)
        empty_replies = 0 if reply.text or reply.calls else empty_replies + 1
        if empty_replies == MAX_EMPTY_REPLIES:
            return LaneEnding(exit="gave_up", cause=f"{empty_replies} empty replies in a row")
        if not reply.calls:
            hint = CUT_OFF_HINT if reply.stop == "length" else EMPTY_REPLY_HINT
            lane.add_note(hint, about="unfinished reply")
            messages.append(ChatMessage(role="user", text=hint))


async def take_model_turn(
    assignment: Assignment,
    lane: LaneRecorder,
    messages: list[ChatMessage],
    tools: Mapping[str, ToolSpec],
) -> ModelReply:
    """Return the model's next reply; each turn of every lane counts towards the limit once."""
    recorder = lane.recorder
    if recorder.turns >= assignment.limits.turns:
        raise OutOfBudget("turn limit")
    request = ModelRequest(
        messages=tuple(messages),
        system=SYSTEM_PROMPT if assignment.system is None else assignment.system,
        tools=tuple(tools.values()),
        **check_sampling_settings(assignment),
    )
    started_at = recorder.clock()
    reply = sanitise_reply(await require_model(assignment).reply(request))
    lane.add_turn(reply, started_at)
    return reply


def find_reply_ending(reply: ModelReply) -> LaneEnding | None:
    """Return the ending that a reply without calls implies, if any."""
    if reply.stop == "refused":
        return LaneEnding(exit="gave_up", cause="the model refused", summary=reply.text or None)
    if reply.text and not reply.calls and reply.stop != "length":
        return LaneEnding(exit="finished", summary=reply.text)
    return None


async def perform_call(
    assignment: Assignment, lane: LaneRecorder, call: ModelToolCall, tools: Mapping[str, ToolSpec]
) -> ChatMessage | LaneEnding:
    """Perform a call; a mistake of the agent becomes its result."""

    async def let_child_work(child: LaneRecorder, brief: str) -> LaneEnding:
        return await run_lane(assignment, child, [ChatMessage(role="user", text=brief)])

    try:
        arguments = check_call_arguments(call, tools)
    except ToolFailed as error:
        lane.add_note(str(error), about="bad call", call=call.id)
        return _build_result_message(call, str(error), failed=True)
    use = ToolInvocation(assignment=assignment, lane=lane, call=call.id, converse=let_child_work)
    try:
        tool_result = await TOOL_FUNCTIONS[call.name](use, **arguments)
    except ToolFailed as error:
        return _build_result_message(call, str(error), failed=True)
    return (
        tool_result
        if isinstance(tool_result, LaneEnding)
        else _build_result_message(call, tool_result)
    )


def _build_result_message(call: ModelToolCall, text: str, failed: bool = False) -> ChatMessage:
    return ChatMessage(role="tool", text=shorten_middle(text), call=call.id, failed=failed)


async def run_until_end(
    assignment: Assignment, root: LaneRecorder, messages: list[ChatMessage]
) -> LaneEnding:
    """Run until the attempt ends, for whatever reason."""
    try:
        with anyio.move_on_after(assignment.limits.seconds):
            return await run_lane(assignment, root, messages)
        return LaneEnding(exit="out_of_time", cause="time limit")
    except anyio.get_cancelled_exc_class():
        # Suppressed to return the work so far; anyio cancels again at the caller's next await.
        return LaneEnding(exit="out_of_time", cause="stopped from outside")
    except OutOfBudget as error:
        return LaneEnding(exit="out_of_budget", cause=str(error))
    except MachineFailed as error:
        return LaneEnding(exit="machine", cause=str(error))
    except Fault:
        raise
    except Exception as error:  # no model output raises: the fault is ours
        return LaneEnding(exit="machine", cause=f"{type(error).__name__}: {error}")


async def ask_for_feedback(
    assignment: Assignment, root: LaneRecorder, messages: list[ChatMessage], seconds: float
) -> str | None:
    """Ask what the agent lacked: one more turn, whose calls are not run."""
    last_reply = max(i for i, message in enumerate(messages) if message.role == "assistant")
    # Providers refuse calls without results, such as `finish`: its summary replaces them.
    last_text = messages[last_reply].text or "I am done."
    messages[last_reply:] = [
        ChatMessage(role="assistant", text=last_text),
        ChatMessage(role="user", text=FEEDBACK_QUESTION),
    ]
    try:
        with anyio.move_on_after(seconds):
            return (
                clean_for_storage((await take_model_turn(assignment, root, messages, TOOLS)).text)
                or None
            )
    except (OutOfBudget, MachineFailed):
        return None
    return None


class BuiltinAgent:
    """Works through tools with any model that supports tool calls."""

    name = "builtin"
    version = "1"

    def __init__(self, clock: Clock = lambda: datetime.now(UTC)) -> None:
        self.clock = clock

    def prompt(self, system: str | None = None) -> tuple[str, str]:
        """Return the system prompt and the tools as JSON; equal agents give equal texts."""
        tools = msgspec.json.encode(TOOL_SPECS, order="deterministic").decode()
        return SYSTEM_PROMPT if system is None else system, tools

    async def work(self, assignment: Assignment) -> Work:
        """Work until the end; the trace is returned however it ends."""
        recorder, started = TraceRecorder(self.name, self.clock), time.monotonic()
        root = recorder.open_lane()
        messages = [ChatMessage(role="user", text=assignment.prompt)]
        ending = await run_until_end(assignment, root, messages)
        feedback = None
        if assignment.feedback and ending.exit in ("finished", "gave_up"):
            remaining_seconds = compute_feedback_seconds(assignment.limits, started)
            feedback = await ask_for_feedback(assignment, root, messages, remaining_seconds)
        if ending.cause is not None:
            root.add_note(ending.cause, about=ending.exit)
        return Work(
            exit=ending.exit,
            cause=None if ending.cause is None else clean_for_storage(ending.cause),
            summary=None if ending.summary is None else clean_for_storage(ending.summary),
            trace=recorder.build_trace(),
            usage=sum_usage(turn.usage for lane in recorder.lanes for turn in lane.turns),
            feedback=feedback,
        )


def require_model(assignment: Assignment) -> Model:
    if assignment.model is None:
        raise missing_model_error(assignment.variant.name)
    return assignment.model


def missing_model_error(variant: str) -> BadInput:
    return BadInput(
        f"The built-in agent needs a model: give --model, or set one for the variant {variant!r}."
    )


def check_sampling_settings(assignment: Assignment) -> dict[str, Any]:
    """Return the variant's settings that this agent supports."""
    for name, value in assignment.variant.settings.items():
        if name not in SAMPLING_TYPES:
            raise unknown_name_error("setting of the built-in agent", name, SAMPLING_TYPES)
        if isinstance(value, bool) or not isinstance(value, (int, SAMPLING_TYPES[name])):
            raise BadInput(f"The setting {name!r} must be a number, not {value!r}.")
    return assignment.variant.settings


agent = BuiltinAgent()


# Controls: what a task set shows without an agent.


class ControlAgent:
    """A control: it reads nothing and changes nothing. It costs nothing.

    For `reference`, the runner applies the task's reference change after it has ended.
    """

    version = "1"

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description

    def prompt(self, system: str | None = None) -> tuple[str, str]:
        """Return no prompt and no tools: no model is asked."""
        return "", ""

    async def work(self, assignment: Assignment) -> Work:
        """Record that this is a control."""
        recorder = TraceRecorder(self.name, lambda: datetime.now(UTC))
        recorder.open_lane().add_note(self.description, about="control")
        usage = Usage(input_tokens=0, output_tokens=0, cost=0.0)
        return Work(exit="finished", trace=recorder.build_trace(), usage=usage)


noop = ControlAgent("noop", "A control, not an agent: nothing was changed.")
reference = ControlAgent(
    REFERENCE_AGENT, "A control, not an agent: the runner applied the task's reference change."
)
