"""Contents in the shape of Google's API, as Gemini CLI and Qwen Code keep them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Message, Read
from closeloop.traces.builder import Builder
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.results import result_of
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import count, decoded, items, label, mapping, raw

_TRAILER = ("Process Group PGID:", "Background PIDs:", "Signal:", "Exit Code:")
_OUTPUT = ("Output:", "Output too large. ")
_TIMED_OUT = "Command was automatically cancelled because it exceeded the timeout"
_REJECTED = ("User did not allow tool call", "User denied", "[Operation Cancelled]")
_STOPPED = "[Operation Cancelled] Reason: Operation cancelled"
_NEAR = 200
"""So many events back the same interrupt may have been told."""
_STATES = {"completed": True, "error": False, "failed": False, "cancelled": False}


class Response(NamedTuple):
    """What came back from a call."""

    call: str | None
    name: str | None
    text: str
    failed: bool


def parts_of(content: object) -> list[Any]:
    """The parts of a text, of a part, of a list of them, or of a content with a role."""
    if isinstance(content, dict):
        content = content.get("parts", [content])
    return [{"text": content}] if isinstance(content, str) else items(content)


def words(content: object, thought: bool = False) -> str:
    """What is said in a content, or with `thought` only thought."""
    return "".join(_words(part, thought) for part in parts_of(content))


def _words(part: object, thought: bool) -> str:
    if isinstance(part, str):
        return "" if thought else part
    if not isinstance(part, dict) or (part.get("thought") is True) is not thought:
        return ""
    said = part.get("text")
    if isinstance(said, str):
        return said
    for name in ("inlineData", "fileData"):
        if name in part:
            return f"[{mapping(part[name]).get('mimeType') or 'data'}]"
    return ""


def calls_in(content: object) -> Iterator[Mapping[str, Any]]:
    """The calls that a content asks for."""
    for part in parts_of(content):
        if isinstance(part, dict) and isinstance(part.get("functionCall"), dict):
            yield part["functionCall"]


def responses_in(content: object) -> Iterator[Response]:
    """The results that a content brings; other parts beside them belong to the last one."""
    for part in parts_of(content):
        found = part.get("functionResponse") if isinstance(part, dict) else None
        if isinstance(found, dict):
            said, failed = told(found.get("response"))
            yield Response(label(found.get("id")), label(found.get("name")), said, failed)


def told(response: object) -> tuple[str, bool]:
    """The text of a response, and whether it is an error."""
    if not isinstance(response, dict):
        return (response if isinstance(response, str) else ""), False
    failed = "error" in response
    for name in ("error", "output", "result", "content"):
        if name in response:
            value = response[name]
            return (value if isinstance(value, str) else words(value) or raw(value)), failed
    return raw(response), False


def asked(called: str, given: dict[str, Any] | None, origin: Origin) -> AnyEvent:
    """The event of a call, with the lines that a read asks for: `offset` counts from 0."""
    event = event_of(called, given, origin)
    if not isinstance(event, Read) or given is None:
        return event
    first, last = count(given.get("start_line")), count(given.get("end_line"))
    offset, limit = count(given.get("offset")), count(given.get("limit"))
    if offset is not None or limit is not None:
        first = (offset or 0) + 1
        last = None if limit is None else (offset or 0) + limit
    return msgspec.structs.replace(event, first_line=first, last_line=last)


def shell_exit(output: str) -> int | None:
    """The exit code that the shell tool states below a command's output, which may lie itself."""
    body = output.removesuffix("\n</untrusted_context>").removeprefix("<untrusted_context>\n")
    ended = killed = False
    for line in reversed(body[-600:].split("\n")):
        if not line.startswith(_TRAILER):
            break
        if line.startswith("Exit Code:"):
            code = line.removeprefix("Exit Code:").strip()
            return int(code) if code.lstrip("-").isdigit() and len(code) < 11 else None
        killed |= line.startswith("Signal:") and line not in ("Signal: 0", "Signal: (none)")
        ended = True
    # Newer versions say nothing of an exit code of 0, but always of the process that is gone.
    return 0 if ended and not killed and body.startswith(_OUTPUT) else None


def usage_of(found: object, names: Mapping[str, str]) -> Usage:
    """Tokens, where they are more than a row of zeros; `names` are the file's for ours."""
    counts = {name: count(mapping(found).get(theirs)) for name, theirs in names.items()}
    asked, said = counts.get("input"), counts.get("output")
    if not asked and not said:
        return Usage()
    cached, thoughts = counts.get("cached"), counts.get("thoughts")
    tool, total = counts.get("tool") or 0, counts.get("total") or 0
    if said is not None and thoughts and total > (asked or 0) + tool + said:
        # Google counts thoughts beside the output; OpenAI's counts are within it already.
        said += thoughts
    fresh = None if asked is None else max(asked - (cached or 0), 0) + tool
    return Usage(
        input_tokens=fresh,
        output_tokens=said,
        cache_read_tokens=cached,
        reasoning_tokens=thoughts,
    )


def settle(
    builder: Builder,
    event: AnyEvent,
    output: str | None,
    ok: bool | None,
    display: object = None,
    **more: object,
) -> AnyEvent:
    """Join a result to its call; `display` is what the agent showed of it."""
    shown = mapping(display)
    refused = ok is False and output is not None and output.startswith(_REJECTED)
    if isinstance(event, Command):
        code = shell_exit(output or "")
        found = None if code is None else "parsed"
        result: dict[str, object] = {"output": output, "exit_code": code, "exit_from": found}
        result["stopped"] = _stopped(output or "", refused)
    else:
        result = result_of(event, output, ok)
    if isinstance(event, Edit):
        result |= _edited(event, output, shown)
    elif isinstance(event, Handoff) and ok and shown:
        result["ok"] = _STATES.get(str(shown.get("state") or shown.get("status")))
    done = builder.finish(event, **(result | more))
    if isinstance(event, Message) and event.intent == "question" and output is not None:
        builder.hear(_answers(output), lane=event.lane, at=event.at, intent="answer")
    elif refused and output is not None and output.startswith(_STOPPED):
        interrupt(builder, output, event.lane, event.at)
    elif refused and output is not None:
        builder.hear(output, lane=event.lane, at=event.at, intent="correction")
    return done


def _stopped(output: str, refused: bool) -> str | None:
    """What ended a command before its time."""
    if refused:
        return "interrupted" if output.startswith(_STOPPED) else "rejected"
    return "out of time" if output.startswith(_TIMED_OUT) else None


def interrupt(builder: Builder, said: str, lane: str, at: datetime | None) -> None:
    """The user stops the agent, which each call it was at tells, and a notice once more."""
    near = islice(reversed(builder.events), _NEAR)
    last = next((one for one in near if one.lane == lane and isinstance(one, Message)), None)
    if last is None or last.intent != "interrupt":
        builder.hear(said, lane=lane, at=at, intent="interrupt")


def _answers(output: str) -> str:
    """What the user said, out of the JSON that the tool puts it in."""
    answers = mapping(mapping(decoded(output)).get("answers")) if output[:1] == "{" else {}
    return "\n".join(one for one in answers.values() if isinstance(one, str)) or output


def _edited(event: Edit, output: str | None, shown: Mapping[str, Any]) -> dict[str, object]:
    patch = shown.get("fileDiff")
    more: dict[str, object] = {"patch": shortened(patch)} if isinstance(patch, str) else {}
    overwrote = output is not None and "overwrote file" in output[:200]
    if event.action == "create" and (shown.get("isNewFile") is False or overwrote):
        more["action"] = "change"
    return more
