"""The built-in agent: a small, honest tool loop that writes down what it does.

    request ──► model ──► calls ──► results ──► model ──► … ──► finish

What the agent does badly goes back to it as a failed result, or is its exit; only what the user
must mend is raised.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec

from closeloop.agents.agent_adapter import FEEDBACK_QUESTION, compute_feedback_seconds
from closeloop.agents.builtin_tools import (
    CHILD_TOOLS,
    TOOL_FUNCTIONS,
    TOOL_SPECS,
    TOOLS,
    LaneEnding,
    ToolFailed,
    ToolInvocation,
    check_call_arguments,
)
from closeloop.agents.trace_recorder import (
    Clock,
    LaneRecorder,
    TraceRecorder,
    clean_for_storage,
    sanitise_reply,
    shorten_middle,
)
from closeloop.records.attempt import sum_usage
from closeloop.records.chat import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec
from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget, unknown_name_error
from closeloop.records.protocols import Assignment, Model, Work

# What the built-in agent is told before its task.

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
"""So many in a row, and the model has given up."""
EMPTY_REPLY_HINT = "Your reply was empty. Go on with the work, or call finish."
CUT_OFF_HINT = "Your reply was cut off at the length limit. Go on from there, in smaller steps."
SAMPLING_TYPES = {"temperature": float, "max_tokens": int}


async def run_lane(
    assignment: Assignment, lane: LaneRecorder, messages: list[ChatMessage]
) -> LaneEnding:
    """One lane from its request, the first message, to its end."""
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
            finished = ending is not None and ending.exit == "finished"
            lane.add_message("agent", reply.text, "claim" if finished else None)
        if ending is not None:
            return ending
        for number, call in enumerate(reply.calls, 1):
            result = await perform_call(assignment, lane, call, tools)
            if isinstance(result, LaneEnding):
                if left := len(reply.calls) - number:
                    lane.add_note(
                        f"Calls after finish that were not run: {left}.", about="bad call"
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
    """What the model says next; each turn of every lane counts against the limit, once."""
    recorder = lane.recorder
    if recorder.turns >= assignment.limits.turns:
        raise OutOfBudget("turn limit")
    request = ModelRequest(
        messages=tuple(messages),
        system=SYSTEM_PROMPT if assignment.system is None else assignment.system,
        tools=tuple(tools.values()),
        **check_sampling_settings(assignment),
    )
    began = recorder.clock()
    reply = sanitise_reply(await require_model(assignment).reply(request))
    lane.add_turn(reply, began)
    return reply


def find_reply_ending(reply: ModelReply) -> LaneEnding | None:
    """The end that a reply without calls means, if it means one."""
    if reply.stop == "refused":
        return LaneEnding(exit="gave_up", cause="the model refused", summary=reply.text or None)
    if reply.text and not reply.calls and reply.stop != "length":
        return LaneEnding(exit="finished", summary=reply.text)
    return None


async def perform_call(
    assignment: Assignment, lane: LaneRecorder, call: ModelToolCall, tools: Mapping[str, ToolSpec]
) -> ChatMessage | LaneEnding:
    """Do what a call asks for; what the agent got wrong is the result it is told."""

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
    """How the attempt ends, whatever ends it."""
    try:
        with anyio.move_on_after(assignment.limits.seconds):
            return await run_lane(assignment, root, messages)
        return LaneEnding(exit="out_of_time", cause="time limit")
    except anyio.get_cancelled_exc_class():
        # Swallowed to hand over what was done; anyio cancels again at the caller's next await.
        return LaneEnding(exit="out_of_time", cause="stopped from outside")
    except OutOfBudget as error:
        return LaneEnding(exit="out_of_budget", cause=str(error))
    except MachineFailed as error:
        return LaneEnding(exit="machine", cause=str(error))
    except Fault:
        raise
    except Exception as error:  # nothing that a model says raises: the fault is ours
        return LaneEnding(exit="machine", cause=f"{type(error).__name__}: {error}")


async def ask_for_feedback(
    assignment: Assignment, root: LaneRecorder, messages: list[ChatMessage], seconds: float
) -> str | None:
    """What the agent says it lacked: one more turn, whose calls nobody runs."""
    last_reply = max(i for i, message in enumerate(messages) if message.role == "assistant")
    # Providers refuse calls without results, such as that of finish: its words stand for them.
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
    """Works through tools with any model that can call them."""

    name = "builtin"
    version = "1"

    def __init__(self, clock: Clock = lambda: datetime.now(UTC)) -> None:
        self.clock = clock

    def prompt(self, system: str | None = None) -> tuple[str, str]:
        """The system prompt, and the tools as JSON: equal texts for equal agents."""
        tools = msgspec.json.encode(TOOL_SPECS, order="deterministic").decode()
        return SYSTEM_PROMPT if system is None else system, tools

    async def work(self, assignment: Assignment) -> Work:
        """Work until the end; the trace is kept however that comes."""
        recorder, began = TraceRecorder(self.name, self.clock), time.monotonic()
        root = recorder.open_lane()
        messages = [ChatMessage(role="user", text=assignment.prompt)]
        ending = await run_until_end(assignment, root, messages)
        feedback = None
        if assignment.feedback and ending.exit in ("finished", "gave_up"):
            remaining_seconds = compute_feedback_seconds(assignment.limits, began)
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
        name = assignment.variant.name
        raise BadInput(
            f"The built-in agent needs a model: give --model, or one to the variant {name!r}."
        )
    return assignment.model


def check_sampling_settings(assignment: Assignment) -> dict[str, Any]:
    """The variant's settings: those that a variant of this agent may have."""
    for name, value in assignment.variant.settings.items():
        if name not in SAMPLING_TYPES:
            raise unknown_name_error("setting of the built-in agent", name, SAMPLING_TYPES)
        if isinstance(value, bool) or not isinstance(value, (int, SAMPLING_TYPES[name])):
            raise BadInput(f"The setting {name!r} must be a number, not {value!r}.")
    return assignment.variant.settings


agent = BuiltinAgent()
