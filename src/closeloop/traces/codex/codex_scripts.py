"""What a script of the agent runs, where it says so in so many words."""

from __future__ import annotations

import json
import re

from closeloop.text.untrusted import clean_unicode

MAX_SCRIPT_CHARS = 100_000
_CALL = re.compile(r"\btools\.(?:exec_command|shell_command)\(\s*\{")
_FIELD = re.compile(
    r"""\b(cmd|command|workdir)["']?\s*:\s*"""
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)""",
    re.DOTALL,
)
_OUTPUT = re.compile(r"Script (?:completed|failed)\n(?:Wall time [\d.]+ seconds\n)?Output:\n+")


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
