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

from closeloop.model.chat import ChatMessage, ModelReply, ModelRequest, ToolCall, ToolSpec
from closeloop.model.errors import BadInput, Fault, MachineFailed, OutOfBudget, unknown
from closeloop.model.protocols import Assignment, Model, Work
from closeloop.model.usage import total
from closeloop.runs.agents.feedback import QUESTION, seconds_left
from closeloop.runs.agents.prompt import SYSTEM_PROMPT
from closeloop.runs.agents.recorder import Clock, LaneRecorder, Recorder
from closeloop.runs.agents.specs import CHILD_TOOLS, SPECS, TOOLS, ToolFailed, check
from closeloop.runs.agents.texts import bounded, plain, received
from closeloop.runs.agents.tools import FUNCTIONS, Ending, Use

EMPTY_REPLIES = 2
"""So many in a row, and the model has given up."""
WAS_EMPTY = "Your reply was empty. Go on with the work, or call finish."
WAS_CUT_OFF = "Your reply was cut off at the length limit. Go on from there, in smaller steps."
SETTINGS = {"temperature": float, "max_tokens": int}


async def converse(
    assignment: Assignment, lane: LaneRecorder, messages: list[ChatMessage]
) -> Ending:
    """One lane from its request, the first message, to its end."""
    tools = TOOLS if lane.parent is None else CHILD_TOOLS
    lane.say("user", messages[0].text, "request")
    empty = 0
    while True:
        reply = await next_turn(assignment, lane, messages, tools)
        messages.append(
            ChatMessage(role="assistant", text=reply.text, calls=reply.calls, echo=reply.echo)
        )
        ending = closing(reply)
        if reply.text:
            finished = ending is not None and ending.exit == "finished"
            lane.say("agent", reply.text, "claim" if finished else None)
        if ending is not None:
            return ending
        for number, call in enumerate(reply.calls, 1):
            result = await perform(assignment, lane, call, tools)
            if isinstance(result, Ending):
                if left := len(reply.calls) - number:
                    lane.note(f"Calls after finish that were not run: {left}.", about="bad call")
                return result
            messages.append(result)
        empty = 0 if reply.text or reply.calls else empty + 1
        if empty == EMPTY_REPLIES:
            return Ending(exit="gave_up", cause=f"{empty} empty replies in a row")
        if not reply.calls:
            hint = WAS_CUT_OFF if reply.stop == "length" else WAS_EMPTY
            lane.note(hint, about="unfinished reply")
            messages.append(ChatMessage(role="user", text=hint))


async def next_turn(
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
        **sampling(assignment),
    )
    began = recorder.clock()
    reply = received(await model_of(assignment).reply(request))
    lane.turn(reply, began)
    return reply


def closing(reply: ModelReply) -> Ending | None:
    """The end that a reply without calls means, if it means one."""
    if reply.stop == "refused":
        return Ending(exit="gave_up", cause="the model refused", summary=reply.text or None)
    if reply.text and not reply.calls and reply.stop != "length":
        return Ending(exit="finished", summary=reply.text)
    return None


async def perform(
    assignment: Assignment, lane: LaneRecorder, call: ToolCall, tools: Mapping[str, ToolSpec]
) -> ChatMessage | Ending:
    """Do what a call asks for; what the agent got wrong is the result it is told."""

    async def let_child_work(child: LaneRecorder, brief: str) -> Ending:
        return await converse(assignment, child, [ChatMessage(role="user", text=brief)])

    try:
        arguments = check(call, tools)
    except ToolFailed as error:
        lane.note(str(error), about="bad call", call=call.id)
        return _result(call, str(error), failed=True)
    use = Use(assignment=assignment, lane=lane, call=call.id, converse=let_child_work)
    try:
        done = await FUNCTIONS[call.name](use, **arguments)
    except ToolFailed as error:
        return _result(call, str(error), failed=True)
    return done if isinstance(done, Ending) else _result(call, done)


def _result(call: ToolCall, text: str, failed: bool = False) -> ChatMessage:
    return ChatMessage(role="tool", text=bounded(text), call=call.id, failed=failed)


async def until_the_end(
    assignment: Assignment, root: LaneRecorder, messages: list[ChatMessage]
) -> Ending:
    """How the attempt ends, whatever ends it."""
    try:
        with anyio.move_on_after(assignment.limits.seconds):
            return await converse(assignment, root, messages)
        return Ending(exit="out_of_time", cause="time limit")
    except anyio.get_cancelled_exc_class():
        # Swallowed to hand over what was done; anyio cancels again at the caller's next await.
        return Ending(exit="out_of_time", cause="stopped from outside")
    except OutOfBudget as error:
        return Ending(exit="out_of_budget", cause=str(error))
    except MachineFailed as error:
        return Ending(exit="machine", cause=str(error))
    except Fault:
        raise
    except Exception as error:  # nothing that a model says raises: the fault is ours
        return Ending(exit="machine", cause=f"{type(error).__name__}: {error}")


async def lacked(
    assignment: Assignment, root: LaneRecorder, messages: list[ChatMessage], seconds: float
) -> str | None:
    """What the agent says it lacked: one more turn, whose calls nobody runs."""
    last = max(i for i, message in enumerate(messages) if message.role == "assistant")
    # Providers refuse calls without results, such as that of finish: its words stand for them.
    words = messages[last].text or "I am done."
    messages[last:] = [
        ChatMessage(role="assistant", text=words),
        ChatMessage(role="user", text=QUESTION),
    ]
    try:
        with anyio.move_on_after(seconds):
            return plain((await next_turn(assignment, root, messages, TOOLS)).text) or None
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
        tools = msgspec.json.encode(SPECS, order="deterministic").decode()
        return SYSTEM_PROMPT if system is None else system, tools

    async def work(self, assignment: Assignment) -> Work:
        """Work until the end; the trace is kept however that comes."""
        recorder, began = Recorder(self.name, self.clock), time.monotonic()
        root = recorder.open()
        messages = [ChatMessage(role="user", text=assignment.prompt)]
        ending = await until_the_end(assignment, root, messages)
        feedback = None
        if assignment.feedback and ending.exit in ("finished", "gave_up"):
            left = seconds_left(assignment.limits, began)
            feedback = await lacked(assignment, root, messages, left)
        if ending.cause is not None:
            root.note(ending.cause, about=ending.exit)
        return Work(
            exit=ending.exit,
            cause=None if ending.cause is None else plain(ending.cause),
            summary=None if ending.summary is None else plain(ending.summary),
            trace=recorder.trace(),
            usage=total(turn.usage for lane in recorder.lanes for turn in lane.turns),
            feedback=feedback,
        )


def model_of(assignment: Assignment) -> Model:
    if assignment.model is None:
        name = assignment.variant.name
        raise BadInput(
            f"The built-in agent needs a model: give --model, or one to the variant {name!r}."
        )
    return assignment.model


def sampling(assignment: Assignment) -> dict[str, Any]:
    """The variant's settings: those that a variant of this agent may have."""
    for name, value in assignment.variant.settings.items():
        if name not in SETTINGS:
            raise unknown("setting of the built-in agent", name, SETTINGS)
        if isinstance(value, bool) or not isinstance(value, (int, SETTINGS[name])):
            raise BadInput(f"The setting {name!r} must be a number, not {value!r}.")
    return assignment.variant.settings


agent = BuiltinAgent()
