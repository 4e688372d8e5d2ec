"""What the model was given and gave: the items of its conversation."""

from __future__ import annotations

from collections.abc import Callable

from closeloop.traces.codex.codex_outputs import codex_content_text
from closeloop.traces.codex.codex_results import apply_output
from closeloop.traces.codex.codex_session import CodexSessionBuilder, RecordFields
from closeloop.traces.untrusted_json import (
    as_label,
    as_list,
    as_mapping,
    json_excerpt,
    try_decode_json,
)


def handle_message(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.talk.add_model_message(told)


def handle_reasoning(reading: CodexSessionBuilder, told: RecordFields) -> None:
    texts = [codex_content_text(told.get("summary")), codex_content_text(told.get("content"))]
    text = "\n".join(text for text in texts if text)
    if text:
        reading.lane.add_thought(text)
    else:
        reading.lane.open_turn()


def handle_function_call(reading: CodexSessionBuilder, told: RecordFields) -> None:
    raw_arguments = told.get("arguments")
    arguments = try_decode_json(raw_arguments)
    if not isinstance(arguments, dict):
        arguments = {"arguments": raw_arguments} if raw_arguments else None
    hidden = as_list(told.get("encrypted_function_args"))
    if arguments is not None and "message" in hidden:
        arguments["message"] = f"[encrypted] {arguments.get('task_name') or ''}".strip()
    reading.lane.add_call(_tool_name(told), arguments, told.get("call_id"))


def handle_custom_tool_call(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.lane.add_call(_tool_name(told), {"input": told.get("input")}, told.get("call_id"))


def handle_local_shell_call(reading: CodexSessionBuilder, told: RecordFields) -> None:
    action = as_mapping(told.get("action"))
    shell_arguments = {"command": action.get("command"), "workdir": action.get("working_directory")}
    reading.lane.add_call("local_shell", shell_arguments, told.get("call_id") or told.get("id"))


def handle_tool_search_call(reading: CodexSessionBuilder, told: RecordFields) -> None:
    raw_arguments = told.get("arguments")
    arguments = raw_arguments if isinstance(raw_arguments, dict) else try_decode_json(raw_arguments)
    reading.lane.add_call("tool_search", as_mapping(arguments), told.get("call_id"))


def handle_web_search_call(reading: CodexSessionBuilder, told: RecordFields) -> None:
    _add_hosted_call(reading, "web_search", told)


def handle_image_generation_call(reading: CodexSessionBuilder, told: RecordFields) -> None:
    _add_hosted_call(reading, "image_generation", told)


def _add_hosted_call(reading: CodexSessionBuilder, name: str, told: RecordFields) -> None:
    hosted_arguments = told.get("action") or {"prompt": told.get("revised_prompt")}
    call = told.get("id") or told.get("call_id")
    for number in reading.lane.add_call(name, as_mapping(hosted_arguments), call):
        ok = {"completed": True, "failed": False}.get(str(told.get("status")))
        reading.lane.builder.finish(reading.lane.event_at(number), ok=ok)
    reading.lane.close_call(call)


def handle_output(reading: CodexSessionBuilder, told: RecordFields) -> None:
    content = told.get("output")
    if content is None and "tools" in told:
        content = json_excerpt(told["tools"])
    apply_output(reading.lane, told.get("call_id"), content)


def handle_agent_letter(reading: CodexSessionBuilder, told: RecordFields) -> None:
    """What one agent wrote to another."""
    content, author = told.get("content"), told.get("author")
    hidden = [as_mapping(part).get("encrypted_content") for part in as_list(content)]
    words = [codex_content_text(content), *(text for text in hidden if isinstance(text, str))]
    text = "".join(words)
    report = text.partition("Payload:\n")[2]
    if "Message Type: FINAL_ANSWER" in text[:200]:
        reading.lane.end_turn()
        if reading.lane.handoffs.add_report(author, report, ok=True):
            return
    if reading.lane.requested or "Message Type: NEW_TASK" not in text[:200]:
        reading.lane.end_turn()
        reading.lane.add_note(text, f"a message from {as_label(author) or 'an agent'}")
        return
    reading.lane.requested = True
    reading.lane.add_incoming_message(text, "user", "request")


def _tool_name(told: RecordFields) -> str:
    name, namespace = as_label(told.get("name")) or "tool", as_label(told.get("namespace"))
    return f"{namespace}/{name}" if namespace and namespace.startswith("mcp__") else name


ResponseHandler = Callable[[CodexSessionBuilder, RecordFields], None]
RESPONSE_HANDLERS: dict[str, ResponseHandler] = {
    "message": handle_message,
    "agent_message": handle_agent_letter,
    "reasoning": handle_reasoning,
    "function_call": handle_function_call,
    "custom_tool_call": handle_custom_tool_call,
    "local_shell_call": handle_local_shell_call,
    "tool_search_call": handle_tool_search_call,
    "web_search_call": handle_web_search_call,
    "image_generation_call": handle_image_generation_call,
    "function_call_output": handle_output,
    "custom_tool_call_output": handle_output,
    "tool_search_output": handle_output,
}
