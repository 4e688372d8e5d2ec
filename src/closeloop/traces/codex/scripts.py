"""What a script of the agent runs, where it says so in so many words."""

from __future__ import annotations

import json
import re

from closeloop.traces.texts import clean

LONGEST = 100_000
_CALL = re.compile(r"\btools\.(?:exec_command|shell_command)\(\s*\{")
_FIELD = re.compile(
    r"""\b(cmd|command|workdir)["']?\s*:\s*"""
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)""",
    re.DOTALL,
)
_OUTPUT = re.compile(r"Script (?:completed|failed)\n(?:Wall time [\d.]+ seconds\n)?Output:\n+")


def command_in(script: object) -> dict[str, str] | None:
    """The only thing that a script does, where that is to run a command."""
    if not isinstance(script, str) or len(script) > LONGEST or script.count("tools.") != 1:
        return None
    call = _CALL.search(script)
    if call is None:
        return None
    found: dict[str, str] = {}
    for name, written in _FIELD.findall(script, call.end()):
        value = _literal(written)
        if value is not None:
            found.setdefault("cmd" if name == "command" else name, value)
    return found if "cmd" in found else None


def _literal(written: str) -> str | None:
    """A text as JavaScript writes it; None for one that is put together when it runs."""
    quote, body = written[0], written[1:-1]
    if quote == "`" and "${" in body:
        return None
    if quote != '"':
        body = re.sub(r'\\(.)|"', _as_json, body, flags=re.DOTALL)
    try:
        told = json.loads(f'"{body}"', strict=False)
    except ValueError:
        return None
    return clean(told) if isinstance(told, str) else None


def _as_json(found: re.Match[str]) -> str:
    if found[1] is None:
        return '\\"'
    return found[1] if found[1] in "'`" else found[0]


def printed(output: str) -> str | None:
    """What a script printed; None where the output is not one's."""
    found = _OUTPUT.match(output)
    return output[found.end() :] if found else None
