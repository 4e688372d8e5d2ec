"""What came back from a tool: its words, and what they say of how a process ended."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from closeloop.traces.tool_calls import find_exit_code
from closeloop.traces.untrusted_json import as_amount, as_exit_code, as_mapping, try_decode_json

_HEADER_PREFIXES = ("Chunk ID: ", "Command: ", "Exit code: ", "Wall time: ")
_HEADER = re.compile(
    r"(?:Chunk ID: \w*\n)?(?:Exit code: (?P<early>-?\d{1,10})\n)?"
    r"Wall time: (?P<seconds>[\d.]{1,20}) seconds\n"
    r"(?:Process exited with code (?P<late>-?\d{1,10})\n)?"
    r"(?:Process running with session ID (?P<session>\d{1,20})\n)?"
    r"(?:Original token count: \d+\n)?(?:Total output lines: \d+\n)?(?:Output:\n|\Z)"
)
_SANDBOX_DENIAL = re.compile(r"failed in sandbox \w{1,40} with execution error: [^,\n]{1,80}, "
                     r"exit code: (-?\d{1,10}),")  # fmt: skip
_TIMED_OUT = "command timed out after "
_ABORTED = "aborted by user after "
_REJECTED = ("exec command rejected by user", "patch rejected by user", "rejected by user")


class CodexOutput(NamedTuple):
    """A result, without the lines that Codex puts above it."""

    text: str
    ok: bool | None = None
    exit_code: int | None = None
    exit_from: Literal["stated", "parsed"] | None = None
    seconds: float | None = None
    session: str | None = None
    """The process still runs under this number."""

    @property
    def stop_reason(self) -> str | None:
        """What ended the call before its time, in Codex's own words."""
        if self.text.strip() in _REJECTED:
            return "rejected"
        if self.text.startswith(_ABORTED):
            return "interrupted"
        return "out of time" if self.text.startswith(_TIMED_OUT) else None


def codex_content_text(content: Any) -> str:
    """The text of a content: a text, or parts of which some are."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def parse_codex_output(content: Any) -> CodexOutput:
    """A tool's output in any of the shapes that Codex has given it."""
    ok = None
    if isinstance(content, dict):
        success = content.get("success")
        ok = success if isinstance(success, bool) else None
        content = content.get("content")
    text = codex_content_text(content)
    if text.startswith('{"') and '"metadata"' in text:
        envelope = as_mapping(try_decode_json(text))
        about, inner = as_mapping(envelope.get("metadata")), envelope.get("output")
        if isinstance(inner, str) and (code := as_exit_code(about.get("exit_code"))) is not None:
            seconds = as_amount(about.get("duration_seconds"))
            return CodexOutput(inner, ok, code, "stated", seconds)
    if text.startswith(_HEADER_PREFIXES) and (head := _match_header(text)) is not None:
        code = _parse_exit_code(head["early"] or head["late"])
        exit_from: Literal["parsed"] | None = None if code is None else "parsed"
        seconds = _parse_seconds(head["seconds"])
        return CodexOutput(text[head.end() :], ok, code, exit_from, seconds, head["session"])
    denied = _SANDBOX_DENIAL.match(text)
    code = _parse_exit_code(denied[1]) if denied else find_exit_code(text)
    return CodexOutput(text, ok, code, None if code is None else "parsed")


def _match_header(text: str) -> re.Match[str] | None:
    start = 0
    if text.startswith("Command: "):
        # The command may have any number of lines.
        start = text.find("\nChunk ID: ") + 1 or text.find("\nWall time: ") + 1
    return _HEADER.match(text, start)


def _parse_exit_code(text: str | None) -> int | None:
    return as_exit_code(int(text)) if text else None


def _parse_seconds(text: str) -> float | None:
    try:
        return _plausible_seconds(as_amount(float(text)))
    except ValueError:
        return None


def seconds_from_rust(value: Any) -> float | None:
    """Seconds and nanoseconds, as Rust writes them."""
    fields = as_mapping(value)
    seconds, nanos = as_amount(fields.get("secs")), as_amount(fields.get("nanos"))
    return None if seconds is None else _plausible_seconds(seconds + (nanos or 0.0) / 1e9)


def _plausible_seconds(seconds: float | None) -> float | None:
    """Of a process that ended before Codex first looked, it tells a few microseconds."""
    return seconds if seconds is not None and seconds >= 0.001 else None


def mcp_reply_text(content: Any) -> str | None:
    """What a tool of another server answered: its texts, or its error."""
    reply = as_mapping(content)
    for name in ("Ok", "ok"):
        reply = as_mapping(reply.get(name)) or reply
    failure = reply.get("Err") or reply.get("message")
    return codex_content_text(reply.get("content")) or (
        failure if isinstance(failure, str) else None
    )
