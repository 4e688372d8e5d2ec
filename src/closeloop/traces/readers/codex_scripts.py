"""Scripts of Codex's code mode: one that only runs a command is that command."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from closeloop.records.trace import Command, ToolUse
from closeloop.text.untrusted import clean_unicode
from closeloop.traces.readers.codex_lane import CodexLane
from closeloop.traces.untrusted_json import as_exit_code, as_mapping, try_decode_json

_MAX_SCRIPT_EVENTS = 50
"""So many events back, the script that ran a command is looked for."""
MAX_SCRIPT_CHARS = 100_000
_CALL = re.compile(r"\btools\.(?:exec_command|shell_command)\(\s*\{")
_FIELD = re.compile(
    r"""\b(cmd|command|workdir)["']?\s*:\s*"""
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)""",
    re.DOTALL,
)
_OUTPUT = re.compile(r"Script (?:completed|failed)\n(?:Wall time [\d.]+ seconds\n)?Output:\n+")


def add_script_command(lane: CodexLane, event: ToolUse, text: str) -> None:
    """The command that a script ran, in versions that keep no event of its end."""
    script_command = parse_script_command((event.arguments or {}).get("input"))
    if script_command is None or strip_script_header(text) is None:
        return
    command = _script_as_command(lane, event, script_command)
    finish_script_command(lane, command, text)


def _script_as_command(lane: CodexLane, event: ToolUse, fields: Mapping[str, str]) -> Command:
    """A script that only runs a command is that command: the two are one event."""
    command = Command(
        number=event.number,
        lane=event.lane,
        turn=event.turn,
        at=event.at,
        call=event.call,
        command=lane.builder.truncate_text(fields["cmd"]),
        directory=fields.get("workdir"),
    )
    lane.builder.replace_event(command)
    lane.script_commands.add(event.number)
    return command


def finish_script_command(lane: CodexLane, event: Command, text: str) -> None:
    """What a script printed is what its command did, unless an event told that before."""
    printed = strip_script_header(text)
    if event.output is not None or printed is None:
        return
    fields = as_mapping(try_decode_json(printed)) if printed.startswith("{") else {}
    output, code = fields.get("output"), as_exit_code(fields.get("exit_code"))
    known: dict[str, Any] = {"output": output if isinstance(output, str) else printed}
    if event.exit_from is None and code is not None:
        known |= {"exit_code": code, "exit_from": "parsed"}
    lane.builder.finish(event, **known)


def find_script(lane: CodexLane, command: str) -> list[int] | None:
    """The script that does nothing but run a command whose end is told."""
    for event in reversed(lane.builder.events[-_MAX_SCRIPT_EVENTS:]):
        if event.lane != lane.name:
            continue
        if isinstance(event, Command) and event.number in lane.script_commands:
            if event.command == command and event.exit_from != "stated":
                return [event.number]
        elif isinstance(event, ToolUse) and event.name == "exec":
            fields = parse_script_command((event.arguments or {}).get("input"))
            if fields is not None and fields["cmd"] == command:
                return [_script_as_command(lane, event, fields).number]
    return None


def parse_script_command(script: object) -> dict[str, str] | None:
    """The only thing that a script does, where that is to run a command."""
    if not isinstance(script, str) or len(script) > MAX_SCRIPT_CHARS or script.count("tools.") != 1:
        return None
    call = _CALL.search(script)
    if call is None:
        return None
    fields: dict[str, str] = {}
    for name, written in _FIELD.findall(script, call.end()):
        value = _parse_js_string(written)
        if value is not None:
            fields.setdefault("cmd" if name == "command" else name, value)
    return fields if "cmd" in fields else None


def _parse_js_string(written: str) -> str | None:
    """A text as JavaScript writes it; None for one that is put together when it runs."""
    quote, body = written[0], written[1:-1]
    if quote == "`" and "${" in body:
        return None
    if quote != '"':
        body = re.sub(r'\\(.)|"', _escape_for_json, body, flags=re.DOTALL)
    try:
        value = json.loads(f'"{body}"', strict=False)
    except ValueError:
        return None
    return clean_unicode(value) if isinstance(value, str) else None


def _escape_for_json(found: re.Match[str]) -> str:
    if found[1] is None:
        return '\\"'
    return found[1] if found[1] in "'`" else found[0]


def strip_script_header(output: str) -> str | None:
    """What a script printed; None where the output is not one's."""
    header = _OUTPUT.match(output)
    return output[header.end() :] if header else None
