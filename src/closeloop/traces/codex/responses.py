"""What the model was given and gave: the items of its conversation."""

from __future__ import annotations

from collections.abc import Callable

from closeloop.traces.codex.outputs import spoken
from closeloop.traces.codex.reading import Reading, Told
from closeloop.traces.codex.results import take_output
from closeloop.traces.untrusted import decoded, items, label, mapping, raw


def message(reading: Reading, told: Told) -> None:
    reading.talk.item(told)


def reasoning(reading: Reading, told: Told) -> None:
    texts = [spoken(told.get("summary")), spoken(told.get("content"))]
    text = "\n".join(text for text in texts if text)
    if text:
        reading.lane.thinks(text)
    else:
        reading.lane.speaks()


def function_call(reading: Reading, told: Told) -> None:
    given = told.get("arguments")
    arguments = decoded(given)
    if not isinstance(arguments, dict):
        arguments = {"arguments": given} if given else None
    hidden = items(told.get("encrypted_function_args"))
    if arguments is not None and "message" in hidden:
        arguments["message"] = f"[encrypted] {arguments.get('task_name') or ''}".strip()
    reading.lane.calls(_name(told), arguments, told.get("call_id"))


def custom_tool_call(reading: Reading, told: Told) -> None:
    reading.lane.calls(_name(told), {"input": told.get("input")}, told.get("call_id"))


def local_shell_call(reading: Reading, told: Told) -> None:
    action = mapping(told.get("action"))
    given = {"command": action.get("command"), "workdir": action.get("working_directory")}
    reading.lane.calls("local_shell", given, told.get("call_id") or told.get("id"))


def tool_search_call(reading: Reading, told: Told) -> None:
    given = told.get("arguments")
    arguments = given if isinstance(given, dict) else decoded(given)
    reading.lane.calls("tool_search", mapping(arguments), told.get("call_id"))


def web_search_call(reading: Reading, told: Told) -> None:
    _hosted(reading, "web_search", told)


def image_generation_call(reading: Reading, told: Told) -> None:
    _hosted(reading, "image_generation", told)


def _hosted(reading: Reading, name: str, told: Told) -> None:
    given = told.get("action") or {"prompt": told.get("revised_prompt")}
    call = told.get("id") or told.get("call_id")
    for number in reading.lane.calls(name, mapping(given), call):
        ok = {"completed": True, "failed": False}.get(str(told.get("status")))
        reading.lane.builder.finish(reading.lane.event(number), ok=ok)
    reading.lane.closed(call)


def output(reading: Reading, told: Told) -> None:
    content = told.get("output")
    if content is None and "tools" in told:
        content = raw(told["tools"])
    take_output(reading.lane, told.get("call_id"), content)


def letter(reading: Reading, told: Told) -> None:
    """What one agent wrote to another."""
    content, author = told.get("content"), told.get("author")
    hidden = [mapping(part).get("encrypted_content") for part in items(content)]
    words = [spoken(content), *(text for text in hidden if isinstance(text, str))]
    text = "".join(words)
    report = text.partition("Payload:\n")[2]
    if "Message Type: FINAL_ANSWER" in text[:200]:
        reading.lane.hears()
        if reading.lane.handoffs.reported(author, report, ok=True):
            return
    if reading.lane.requested or "Message Type: NEW_TASK" not in text[:200]:
        reading.lane.hears()
        reading.lane.note(text, f"a message from {label(author) or 'an agent'}")
        return
    reading.lane.requested = True
    reading.lane.told(text, "user", "request")


def _name(told: Told) -> str:
    name, namespace = label(told.get("name")) or "tool", label(told.get("namespace"))
    return f"{namespace}/{name}" if namespace and namespace.startswith("mcp__") else name


Take = Callable[[Reading, Told], None]
RESPONSES: dict[str, Take] = {
    "message": message,
    "agent_message": letter,
    "reasoning": reasoning,
    "function_call": function_call,
    "custom_tool_call": custom_tool_call,
    "local_shell_call": local_shell_call,
    "tool_search_call": tool_search_call,
    "web_search_call": web_search_call,
    "image_generation_call": image_generation_call,
    "function_call_output": output,
    "custom_tool_call_output": output,
    "tool_search_output": output,
}
