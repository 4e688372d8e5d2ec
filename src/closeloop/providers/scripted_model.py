"""The scripted model: the next turn depends only on the script and the conversation."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import anyio
import msgspec
import yaml

from closeloop.providers.model_prices import ModelPrices, add_cost
from closeloop.providers.wire_format import RetryListener, ignore_retry
from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput, MachineFailed, unknown_name_error
from closeloop.records.record import Record
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

# Scripts: YAML files that define the scripted model, read with helpful errors.


class ScriptAction(Record):
    """A tool call. A bare text becomes the tool's first required parameter."""

    tool: str
    arguments: dict[str, Any] | str


class ScriptTurn(Record):
    """What to say and do, and when."""

    say: str = ""
    do: tuple[ScriptAction, ...] = ()
    when: re.Pattern[str] | None = None
    """Matched against everything since the model's last turn; None is always."""
    delay: float = 0.0
    repeat: bool = False


class ScriptDialogue(Record):
    """The turns for one kind of request."""

    label: str
    prompt: re.Pattern[str] | None = None
    """Matched against the user's first message; None is always."""
    turns: tuple[ScriptTurn, ...]


class Script(Record):
    """A scripted model."""

    name: str
    path: str
    dialogues: tuple[ScriptDialogue, ...]


class _LineMap(dict[str, Any]):
    """A mapping with its line number, for error messages."""

    line = 0


class _ScriptLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    pass


def _construct_map(loader: Any, node: yaml.MappingNode) -> _LineMap:
    loader.flatten_mapping(node)
    result = _LineMap()
    result.line = node.start_mark.line + 1
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        problem = None
        if not isinstance(key, str):
            problem = f"the key {key!r} is not text: quote it"
        elif key in result:
            problem = f"{key!r} occurs twice: make it a list"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
        result[key] = loader.construct_object(value_node, deep=True)
    return result


_ScriptLoader.add_constructor("tag:yaml.org,2002:map", _construct_map)


def read_script(path: Path) -> bytes:
    """Read a script's content."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"The script {path} cannot be read ({reason}): check its path.") from None


def load_script(path: Path) -> Script:
    """Load a script; BadInput names the faulty line."""
    return parse_script(read_script(path), str(path))


def parse_script(content: bytes, path: str) -> Script:
    """Parse a script."""
    try:
        data = yaml.load(content.decode(), Loader=_ScriptLoader)  # noqa: S506 (derives the safe one)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise BadInput(f"{path}:{line}: {error.problem}.") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise BadInput(f"{path}: not a YAML file in UTF-8.") from None
    script = _require_fields(data, {"name", "dialogues"}, f"{path}:1", "a script")
    dialogues = _require_list(script, "dialogues", f"{path}:{script.line}")
    return Script(
        name=_read_text_field(script, "name", f"{path}:{script.line}") or Path(path).stem,
        path=path,
        dialogues=tuple(_parse_dialogue(item, path, n) for n, item in enumerate(dialogues, 1)),
    )


def _parse_dialogue(data: Any, path: str, number: int) -> ScriptDialogue:
    location = f"{path}:{getattr(data, 'line', 1)}"
    _require_fields(data, {"prompt", "turns"}, location, f"dialogue {number}")
    prompt = _read_text_field(data, "prompt", location)
    turns = tuple(
        _parse_turn(item, path, location) for item in _require_list(data, "turns", location)
    )
    for turn in turns[:-1]:
        if turn.repeat and turn.when is None:
            raise BadInput(
                f"{location}: a turn that always repeats hides those below: give it a `when`."
            )
    label = f"dialogue {number}" + (f" ({prompt})" if prompt else "")
    return ScriptDialogue(
        label=label, prompt=_compile_pattern(data, "prompt", location), turns=turns
    )


def _parse_turn(data: Any, path: str, parent_location: str) -> ScriptTurn:
    location = f"{path}:{data.line}" if isinstance(data, _LineMap) else parent_location
    _require_fields(data, {"say", "do", "when", "delay", "repeat"}, location, "a turn")
    delay, repeat = data.get("delay", 0.0), data.get("repeat", False)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= 86400:
        raise BadInput(f"{location}: `delay` should be a number of seconds.")
    if not isinstance(repeat, bool):
        raise BadInput(f"{location}: `repeat` should be true or false.")
    turn = ScriptTurn(
        say=_read_text_field(data, "say", location) or "",
        do=_parse_actions(data.get("do"), location),
        when=_compile_pattern(data, "when", location),
        delay=float(delay),
        repeat=repeat,
    )
    if not turn.say and not turn.do:
        raise BadInput(f"{location}: a turn should `say` or `do` something.")
    return turn


def _parse_actions(data: Any, location: str) -> tuple[ScriptAction, ...]:
    items = data if isinstance(data, list) else [] if data is None else [data]
    actions = []
    for item in items:
        if not isinstance(item, _LineMap) or not item:
            raise BadInput(
                f"{location}: `do` should be a map from tool to arguments, or a list of such."
            )
        item_location = f"{location.rpartition(':')[0]}:{item.line}"
        actions += [
            ScriptAction(tool=tool, arguments=_parse_action_arguments(arguments, item_location))
            for tool, arguments in item.items()
        ]
    return tuple(actions)


def _parse_action_arguments(data: Any, location: str) -> dict[str, Any] | str:
    if isinstance(data, str):
        return data
    plain_arguments = _plain_value(data if data is not None else {}, location)
    if not isinstance(plain_arguments, dict):
        raise BadInput(
            f"{location}: arguments should be a map, or one text: put {data!r} in quotes."
        )
    return plain_arguments


def _plain_value(data: Any, location: str) -> Any:
    if isinstance(data, dict):
        return {name: _plain_value(value, location) for name, value in data.items()}
    if isinstance(data, list):
        return [_plain_value(value, location) for value in data]
    if data is None or isinstance(data, str | bool | int):
        return data
    if isinstance(data, float) and math.isfinite(data):
        return data
    raise BadInput(f"{location}: put {str(data)!r} in quotes.")


def _require_fields(data: Any, known_fields: set[str], location: str, subject: str) -> Any:
    if not isinstance(data, _LineMap):
        raise BadInput(
            f"{location}: {subject} should be a map with {' and '.join(sorted(known_fields))}."
        )
    for name in data.keys() - known_fields:
        close_matches = difflib.get_close_matches(name, known_fields, n=1)
        suggestion = f" Did you mean {close_matches[0]!r}?" if close_matches else ""
        names = ", ".join(sorted(known_fields))
        raise BadInput(f"{location}: no key {name!r} in {subject}.{suggestion} Known: {names}.")
    return data


def _require_list(data: _LineMap, name: str, location: str) -> list[Any]:
    items = data.get(name)
    if not isinstance(items, list) or not items:
        raise BadInput(f"{location}: `{name}` should be a list with at least one item.")
    return items


def _read_text_field(data: _LineMap, name: str, location: str) -> str | None:
    text = data.get(name)
    if text is not None and not isinstance(text, str):
        raise BadInput(f"{location}: `{name}` should be text: put it in quotes.")
    return text


def _compile_pattern(data: _LineMap, name: str, location: str) -> re.Pattern[str] | None:
    text = _read_text_field(data, name, location)
    if text is None:
        return None
    try:
        return re.compile(text, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadInput(f"{location}: `{name}` is not a regular expression: {error}.") from None


class ScriptedModel:
    """A deterministic model without cost."""

    def __init__(self, script: Script, prices: ModelPrices | None = None) -> None:
        self.name = script.name
        self._script = script
        self._prices = prices
        self._last = ConversationPosition()

    async def close(self) -> None:
        """Do nothing, as nothing is open."""

    async def reply(
        self, request: ModelRequest, retried: RetryListener = ignore_retry
    ) -> ModelReply:
        turn, self._last = follow_script(self._script, request, self._last)
        if turn.delay:
            await anyio.sleep(turn.delay)
        reply = reply_from_turn(self._script, turn, request)
        if self._prices is None:
            return reply
        usage = msgspec.structs.replace(reply.usage, cost=None, cost_from=None)
        return msgspec.structs.replace(reply, usage=add_cost(usage, self._prices))


class ConversationPosition(Record):
    """How far a script was followed in a conversation."""

    messages: tuple[ChatMessage, ...] = ()
    """The messages up to the model's last reply."""
    pointer: int = 0


def find_next_turn(script: Script, request: ModelRequest) -> ScriptTurn:
    """Return the first turn after the current position whose `when` matches."""
    return follow_script(script, request, ConversationPosition())[0]


def follow_script(
    script: Script, request: ModelRequest, last_position: ConversationPosition
) -> tuple[ScriptTurn, ConversationPosition]:
    """The next turn, and the position for a request that goes on from this one.

    Replayed rather than remembered, so that any client may hold the conversation; only what
    `last_position` has already seen of the same conversation is passed over.
    """
    dialogue = _find_dialogue(script, request.messages)
    known_count = len(last_position.messages)
    if request.messages[:known_count] != last_position.messages:
        known_count, last_position = 0, ConversationPosition()
    pointer = last_position.pointer
    incoming_texts: list[str] = []
    for number, message in enumerate(request.messages[known_count:], known_count + 1):
        if message.role != "assistant":
            incoming_texts.append(message.text)
            continue
        if incoming_texts:
            index = _find_turn_index(dialogue, pointer, incoming_texts)
            if index is not None:
                pointer = index if dialogue.turns[index].repeat else index + 1
            incoming_texts = []
        known_count = number
    index = _find_turn_index(dialogue, pointer, incoming_texts)
    if index is None:
        raise MachineFailed(
            f"{script.path}: {dialogue.label} has no turn for {_first_text_line(incoming_texts)!r}:"
            " add one."
        )
    turn = _insert_groups(dialogue.turns[index], "\n".join(incoming_texts))
    return turn, ConversationPosition(messages=request.messages[:known_count], pointer=pointer)


def _insert_groups(turn: ScriptTurn, last_text: str) -> ScriptTurn:
    r"""Replace `\g<name>` in its texts by the groups of `when`."""
    if turn.when is None or not turn.when.groupindex:
        return turn
    when_match = turn.when.search(last_text)
    spoken_text = turn.say
    for name, text in (when_match.groupdict() if when_match else {}).items():
        spoken_text = spoken_text.replace(f"\\g<{name}>", text or "")
    return msgspec.structs.replace(turn, say=spoken_text)


def _find_dialogue(script: Script, messages: Sequence[ChatMessage]) -> ScriptDialogue:
    first_text = next((message.text for message in messages if message.role == "user"), "")
    for dialogue in script.dialogues:
        if dialogue.prompt is None or dialogue.prompt.search(first_text):
            return dialogue
    raise MachineFailed(
        f"{script.path}: no dialogue matches {_first_text_line([first_text])!r}: add one."
    )


def _find_turn_index(dialogue: ScriptDialogue, pointer: int, messages: list[str]) -> int | None:
    text = None
    for index in range(pointer, len(dialogue.turns)):
        when = dialogue.turns[index].when
        if when is None:
            return index
        if text is None:
            text = "\n".join(messages)
        if when.search(text):
            return index
    return None


_get_text = attrgetter("text")


def reply_from_turn(script: Script, turn: ScriptTurn, request: ModelRequest) -> ModelReply:
    """Build a reply from a turn, with a usage of one token for every four characters."""
    calls = tuple(
        ModelToolCall(
            id=f"call-{len(request.messages)}-{index}",
            name=action.tool,
            arguments=_build_arguments(script, action, request.tools),
        )
        for index, action in enumerate(turn.do)
    )
    input_chars = len(request.system or "") + sum(map(len, map(_get_text, request.messages)))
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
                f"{script.path}: {tool.name!r} does not take text: give its arguments by name."
            )
    if not tools:
        raise BadInput(
            f"{script.path}: a turn uses the tool {action.tool!r}, but the request offers none: "
            "give the text of the answer with `say`, or use another model here."
        )
    fault = unknown_name_error("tool", action.tool, (tool.name for tool in tools))
    raise BadInput(f"{script.path}: {fault}")


def _first_text_line(texts: Sequence[str]) -> str:
    line = next((line.strip() for text in texts for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= 100 else line[:99] + "…"
