"""The scripted model: the next turn follows from the script and the conversation alone."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec

from closeloop.providers.format_dialect import RetryListener, ignore_retry
from closeloop.providers.model_prices import ModelPrices, add_cost
from closeloop.providers.model_scripts import Script, ScriptAction, ScriptDialogue, ScriptTurn
from closeloop.records.attempt import Usage
from closeloop.records.chat import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec
from closeloop.records.errors import BadInput, MachineFailed, unknown_name_error


class ScriptedModel:
    """A model that costs nothing and always does the same."""

    def __init__(self, script: Script, prices: ModelPrices | None = None) -> None:
        self.name = script.name
        self._script = script
        self._prices = prices

    async def close(self) -> None:
        """Nothing is open."""

    async def reply(
        self, request: ModelRequest, retried: RetryListener = ignore_retry
    ) -> ModelReply:
        turn = find_next_turn(self._script, request)
        if turn.delay:
            await anyio.sleep(turn.delay)
        reply = reply_from_turn(self._script, turn, request)
        if self._prices is None:
            return reply
        counted = msgspec.structs.replace(reply.usage, cost=None, cost_from=None)
        return msgspec.structs.replace(reply, usage=add_cost(counted, self._prices))


def find_next_turn(script: Script, request: ModelRequest) -> ScriptTurn:
    """The first turn, from where the conversation stands, whose `when` matches what came."""
    dialogue = _find_dialogue(script, request.messages)
    pointer = 0
    incoming_texts: list[str] = []
    for message in request.messages:
        if message.role != "assistant":
            incoming_texts.append(message.text)
        elif incoming_texts:
            # Replayed rather than remembered, so that any client may hold the conversation.
            index = _find_turn_index(dialogue, pointer, incoming_texts)
            if index is not None:
                pointer = index if dialogue.turns[index].repeat else index + 1
            incoming_texts = []
    index = _find_turn_index(dialogue, pointer, incoming_texts)
    if index is None:
        raise MachineFailed(
            f"{script.path}: {dialogue.label} has no turn for {_first_text_line(incoming_texts)!r}:"
            " add one."
        )
    return _insert_groups(dialogue.turns[index], "\n".join(incoming_texts))


def _insert_groups(turn: ScriptTurn, came: str) -> ScriptTurn:
    """With `\\g<name>` in what it says replaced by what that group of `when` found."""
    if turn.when is None or not turn.when.groupindex:
        return turn
    when_match = turn.when.search(came)
    spoken_text = turn.say
    for name, text in (when_match.groupdict() if when_match else {}).items():
        spoken_text = spoken_text.replace(f"\\g<{name}>", text or "")
    return msgspec.structs.replace(turn, say=spoken_text)


def _find_dialogue(script: Script, messages: Sequence[ChatMessage]) -> ScriptDialogue:
    first = next((message.text for message in messages if message.role == "user"), "")
    for dialogue in script.dialogues:
        if dialogue.prompt is None or dialogue.prompt.search(first):
            return dialogue
    raise MachineFailed(
        f"{script.path}: no dialogue is for {_first_text_line([first])!r}: add one."
    )


def _find_turn_index(dialogue: ScriptDialogue, pointer: int, came: list[str]) -> int | None:
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


def reply_from_turn(script: Script, turn: ScriptTurn, request: ModelRequest) -> ModelReply:
    """A turn as a reply, with usage of about a token for every four characters."""
    calls = tuple(
        ModelToolCall(
            id=f"call-{len(request.messages)}-{index}",
            name=action.tool,
            arguments=_build_arguments(script, action, request.tools),
        )
        for index, action in enumerate(turn.do)
    )
    input_chars = len(request.system or "") + sum(len(message.text) for message in request.messages)
    output_chars = len(turn.say) + sum(len(msgspec.json.encode(call.arguments)) for call in calls)
    return ModelReply(
        text=turn.say,
        calls=calls,
        stop="tools" if calls else "end",
        usage=Usage(
            input_tokens=input_chars // 4 + 1,
            output_tokens=output_chars // 4 + 1,
            cost=0.0,
            cost_from="reported",
        ),
        model=script.name,
    )


def _build_arguments(
    script: Script, action: ScriptAction, tools: Sequence[ToolSpec]
) -> dict[str, object]:
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
    fault = unknown_name_error("tool", action.tool, (tool.name for tool in tools))
    raise BadInput(f"{script.path}: {fault}")


def _first_text_line(texts: Sequence[str]) -> str:
    line = next((line.strip() for text in texts for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= 100 else line[:99] + "…"
