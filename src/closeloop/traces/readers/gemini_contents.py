"""Contents in the shape of Google's API, as Gemini CLI and Qwen Code keep them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Message, Read
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.provider_values import make_usage
from closeloop.traces.session_builder import SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from closeloop.traces.untrusted_json import (
    as_count,
    as_label,
    as_list,
    as_mapping,
    json_excerpt,
    try_decode_json,
)

_TRAILER_PREFIXES = ("Process Group PGID:", "Background PIDs:", "Signal:", "Exit Code:")
_OUTPUT_PREFIXES = ("Output:", "Output too large. ")
_TIMED_OUT = "Command was automatically cancelled because it exceeded the timeout"
_REJECTION_PREFIXES = ("User did not allow tool call", "User denied", "[Operation Cancelled]")
_CANCELLED_PREFIX = "[Operation Cancelled] Reason: Operation cancelled"
_MAX_EVENTS_BACK = 200
"""So many events back the same interrupt may have been told."""
_HANDOFF_STATES = {"completed": True, "error": False, "failed": False, "cancelled": False}


class FunctionResponse(NamedTuple):
    """What came back from a call."""

    call: str | None
    name: str | None
    text: str
    failed: bool


def content_parts(content: object) -> list[Any]:
    """The parts of a text, of a part, of a list of them, or of a content with a role."""
    if isinstance(content, dict):
        content = content.get("parts", [content])
    return [{"text": content}] if isinstance(content, str) else as_list(content)


def gemini_content_text(content: object, thought: bool = False) -> str:
    """What is said in a content, or with `thought` only thought."""
    return "".join(_part_text(part, thought) for part in content_parts(content))


def _part_text(part: object, thought: bool) -> str:
    if isinstance(part, str):
        return "" if thought else part
    if not isinstance(part, dict) or (part.get("thought") is True) is not thought:
        return ""
    said = part.get("text")
    if isinstance(said, str):
        return said
    for name in ("inlineData", "fileData"):
        if name in part:
            return f"[{as_mapping(part[name]).get('mimeType') or 'data'}]"
    return ""


def iter_function_calls(content: object) -> Iterator[Mapping[str, Any]]:
    """The calls that a content asks for."""
    for part in content_parts(content):
        if isinstance(part, dict) and isinstance(part.get("functionCall"), dict):
            yield part["functionCall"]


def iter_function_responses(content: object) -> Iterator[FunctionResponse]:
    """The results that a content brings; other parts beside them belong to the last one."""
    for part in content_parts(content):
        response = part.get("functionResponse") if isinstance(part, dict) else None
        if isinstance(response, dict):
            said, failed = parse_function_response(response.get("response"))
            yield FunctionResponse(
                as_label(response.get("id")), as_label(response.get("name")), said, failed
            )


def parse_function_response(response: object) -> tuple[str, bool]:
    """The text of a response, and whether it is an error."""
    if not isinstance(response, dict):
        return (response if isinstance(response, str) else ""), False
    failed = "error" in response
    for name in ("error", "output", "result", "content"):
        if name in response:
            value = response[name]
            return (
                value
                if isinstance(value, str)
                else gemini_content_text(value) or json_excerpt(value)
            ), failed
    return json_excerpt(response), False


def event_from_gemini_call(
    called: str, given: dict[str, Any] | None, origin: CallOrigin
) -> AnyEvent:
    """The event of a call, with the lines that a read asks for: `offset` counts from 0."""
    event = event_from_call(called, given, origin)
    if not isinstance(event, Read) or given is None:
        return event
    first, last = as_count(given.get("start_line")), as_count(given.get("end_line"))
    offset, limit = as_count(given.get("offset")), as_count(given.get("limit"))
    if offset is not None or limit is not None:
        first = (offset or 0) + 1
        last = None if limit is None else (offset or 0) + limit
    return msgspec.structs.replace(event, first_line=first, last_line=last)


def parse_shell_exit_code(output: str) -> int | None:
    """The exit code that the shell tool states below a command's output, which may lie itself."""
    body = output.removesuffix("\n</untrusted_context>").removeprefix("<untrusted_context>\n")
    ended = killed = False
    for line in reversed(body[-600:].split("\n")):
        if not line.startswith(_TRAILER_PREFIXES):
            break
        if line.startswith("Exit Code:"):
            code = line.removeprefix("Exit Code:").strip()
            return int(code) if code.lstrip("-").isdigit() and len(code) < 11 else None
        killed |= line.startswith("Signal:") and line not in ("Signal: 0", "Signal: (none)")
        ended = True
    # Newer versions say nothing of an exit code of 0, but always of the process that is gone.
    return 0 if ended and not killed and body.startswith(_OUTPUT_PREFIXES) else None


def usage_from_gemini(found: object, names: Mapping[str, str]) -> Usage:
    """Tokens, where they are more than a row of zeros; `names` are the file's for ours."""
    counts = {name: as_count(as_mapping(found).get(theirs)) for name, theirs in names.items()}
    input_tokens, output_tokens = counts.get("input"), counts.get("output")
    if not input_tokens and not output_tokens:
        return Usage()
    cached, thoughts = counts.get("cached"), counts.get("thoughts")
    tool, total = counts.get("tool") or 0, counts.get("total") or 0
    if (
        output_tokens is not None
        and thoughts
        and total > (input_tokens or 0) + tool + output_tokens
    ):
        # Google counts thoughts beside the output; OpenAI's counts are within it already.
        output_tokens += thoughts
    fresh = None if input_tokens is None else max(input_tokens - (cached or 0), 0) + tool
    return make_usage(fresh, output_tokens, read=cached, reasoning=thoughts)


def finish_gemini_call(
    builder: SessionBuilder,
    event: AnyEvent,
    output: str | None,
    ok: bool | None,
    display: object = None,
    **more: object,
) -> AnyEvent:
    """Join a result to its call; `display` is what the agent showed of it."""
    shown = as_mapping(display)
    refused = ok is False and output is not None and output.startswith(_REJECTION_PREFIXES)
    if isinstance(event, Command):
        code = parse_shell_exit_code(output or "")
        exit_from = None if code is None else "parsed"
        result: dict[str, object] = {"output": output, "exit_code": code, "exit_from": exit_from}
        result["stopped"] = _stop_reason(output or "", refused)
    else:
        result = result_fields(event, output, ok)
    if isinstance(event, Edit):
        result |= _edit_fields(event, output, shown)
    elif isinstance(event, Handoff) and ok and shown:
        result["ok"] = _HANDOFF_STATES.get(str(shown.get("state") or shown.get("status")))
    finished_event = builder.finish(event, **(result | more))
    if isinstance(event, Message) and event.intent == "question" and output is not None:
        builder.add_incoming_message(
            _user_answers(output), lane=event.lane, at=event.at, intent="answer"
        )
    elif refused and output is not None and output.startswith(_CANCELLED_PREFIX):
        add_interrupt(builder, output, event.lane, event.at)
    elif refused and output is not None:
        builder.add_incoming_message(output, lane=event.lane, at=event.at, intent="correction")
    return finished_event


def _stop_reason(output: str, refused: bool) -> str | None:
    """What ended a command before its time."""
    if refused:
        return "interrupted" if output.startswith(_CANCELLED_PREFIX) else "rejected"
    return "out of time" if output.startswith(_TIMED_OUT) else None


def add_interrupt(builder: SessionBuilder, said: str, lane: str, at: datetime | None) -> None:
    """The user stops the agent, which each call it was at tells, and a notice once more."""
    near = islice(reversed(builder.events), _MAX_EVENTS_BACK)
    last = next((one for one in near if one.lane == lane and isinstance(one, Message)), None)
    if last is None or last.intent != "interrupt":
        builder.add_incoming_message(said, lane=lane, at=at, intent="interrupt")


def _user_answers(output: str) -> str:
    """What the user said, out of the JSON that the tool puts it in."""
    answers = (
        as_mapping(as_mapping(try_decode_json(output)).get("answers")) if output[:1] == "{" else {}
    )
    return "\n".join(one for one in answers.values() if isinstance(one, str)) or output


def _edit_fields(event: Edit, output: str | None, shown: Mapping[str, Any]) -> dict[str, object]:
    patch = shown.get("fileDiff")
    more: dict[str, object] = {"patch": truncate_middle(patch)} if isinstance(patch, str) else {}
    overwrote = output is not None and "overwrote file" in output[:200]
    if event.action == "create" and (shown.get("isNewFile") is False or overwrote):
        more["action"] = "change"
    return more
