"""The scripted model: the next turn follows from the script and the conversation alone."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.chat import ChatMessage, ModelReply, ModelRequest, ToolCall, ToolSpec
from closeloop.model.errors import BadInput, MachineFailed, unknown
from closeloop.runs.models.dialect import Retried, nobody
from closeloop.runs.models.prices import Prices, priced
from closeloop.runs.models.scripts import Action, Dialogue, Script, ScriptTurn


class ScriptedModel:
    """A model that costs nothing and always does the same."""

    def __init__(self, script: Script, prices: Prices | None = None) -> None:
        self.name = script.name
        self._script = script
        self._prices = prices

    async def close(self) -> None:
        """Nothing is open."""

    async def reply(self, request: ModelRequest, retried: Retried = nobody) -> ModelReply:
        turn = next_turn(self._script, request)
        if turn.delay:
            await anyio.sleep(turn.delay)
        reply = speak(self._script, turn, request)
        if self._prices is None:
            return reply
        counted = msgspec.structs.replace(reply.usage, cost=None, cost_from=None)
        return msgspec.structs.replace(reply, usage=priced(counted, self._prices))


def next_turn(script: Script, request: ModelRequest) -> ScriptTurn:
    """The first turn, from where the conversation stands, whose `when` matches what came."""
    dialogue = _dialogue(script, request.messages)
    pointer = 0
    came: list[str] = []
    for message in request.messages:
        if message.role != "assistant":
            came.append(message.text)
        elif came:
            # Replayed rather than remembered, so that any client may hold the conversation.
            index = _match(dialogue, pointer, came)
            if index is not None:
                pointer = index if dialogue.turns[index].repeat else index + 1
            came = []
    index = _match(dialogue, pointer, came)
    if index is None:
        raise MachineFailed(
            f"{script.path}: {dialogue.label} has no turn for {_first_line(came)!r}: add one."
        )
    return _quoting(dialogue.turns[index], "\n".join(came))


def _quoting(turn: ScriptTurn, came: str) -> ScriptTurn:
    """With `\\g<name>` in what it says replaced by what that group of `when` found."""
    if turn.when is None or not turn.when.groupindex:
        return turn
    found = turn.when.search(came)
    say = turn.say
    for name, text in (found.groupdict() if found else {}).items():
        say = say.replace(f"\\g<{name}>", text or "")
    return msgspec.structs.replace(turn, say=say)


def _dialogue(script: Script, messages: Sequence[ChatMessage]) -> Dialogue:
    first = next((message.text for message in messages if message.role == "user"), "")
    for dialogue in script.dialogues:
        if dialogue.prompt is None or dialogue.prompt.search(first):
            return dialogue
    raise MachineFailed(f"{script.path}: no dialogue is for {_first_line([first])!r}: add one.")


def _match(dialogue: Dialogue, pointer: int, came: list[str]) -> int | None:
    text = None
    for index in range(pointer, len(dialogue.turns)):
        when = dialogue.turns[index].when
        if when is None:
            return index
        if text is None:
            text = "\n".join(came)
        if when.search(text):
            return index
    return None


def speak(script: Script, turn: ScriptTurn, request: ModelRequest) -> ModelReply:
    """A turn as a reply, with usage of about a token for every four characters."""
    calls = tuple(
        ToolCall(
            id=f"call-{len(request.messages)}-{index}",
            name=action.tool,
            arguments=_arguments(script, action, request.tools),
        )
        for index, action in enumerate(turn.do)
    )
    heard = len(request.system or "") + sum(len(message.text) for message in request.messages)
    said = len(turn.say) + sum(len(msgspec.json.encode(call.arguments)) for call in calls)
    return ModelReply(
        text=turn.say,
        calls=calls,
        stop="tools" if calls else "end",
        usage=Usage(
            input_tokens=heard // 4 + 1,
            output_tokens=said // 4 + 1,
            cost=0.0,
            cost_from="reported",
        ),
        model=script.name,
    )


def _arguments(script: Script, action: Action, tools: Sequence[ToolSpec]) -> dict[str, object]:
    if isinstance(action.arguments, dict):
        return action.arguments
    for tool in tools:
        if tool.name == action.tool:
            names = tool.parameters.get("required") or list(tool.parameters.get("properties") or ())
            if isinstance(names, list) and names:
                return {str(names[0]): action.arguments}
            raise BadInput(
                f"{script.path}: {tool.name!r} takes no text: give its arguments by name."
            )
    fault = unknown("tool", action.tool, (tool.name for tool in tools))
    raise BadInput(f"{script.path}: {fault}")


def _first_line(texts: Sequence[str]) -> str:
    line = next((line.strip() for text in texts for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= 100 else line[:99] + "…"
