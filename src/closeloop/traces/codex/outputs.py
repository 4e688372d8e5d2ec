"""What came back from a tool: its words, and what they say of how a process ended."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from closeloop.traces.calls import exit_code_in
from closeloop.traces.untrusted import amount, decoded, exit_code, mapping

_HEADS = ("Chunk ID: ", "Command: ", "Exit code: ", "Wall time: ")
_HEAD = re.compile(
    r"(?:Chunk ID: \w*\n)?(?:Exit code: (?P<early>-?\d{1,10})\n)?"
    r"Wall time: (?P<seconds>[\d.]{1,20}) seconds\n"
    r"(?:Process exited with code (?P<late>-?\d{1,10})\n)?"
    r"(?:Process running with session ID (?P<session>\d{1,20})\n)?"
    r"(?:Original token count: \d+\n)?(?:Total output lines: \d+\n)?(?:Output:\n|\Z)"
)
_DENIED = re.compile(r"failed in sandbox \w{1,40} with execution error: [^,\n]{1,80}, "
                     r"exit code: (-?\d{1,10}),")  # fmt: skip
_TIMED_OUT = "command timed out after "
_ABORTED = "aborted by user after "
_REJECTED = ("exec command rejected by user", "patch rejected by user", "rejected by user")


class Output(NamedTuple):
    """A result, without the lines that Codex puts above it."""

    text: str
    ok: bool | None = None
    exit_code: int | None = None
    exit_from: Literal["stated", "parsed"] | None = None
    seconds: float | None = None
    session: str | None = None
    """The process still runs under this number."""

    @property
    def stopped(self) -> str | None:
        """What ended the call before its time, in Codex's own words."""
        if self.text.strip() in _REJECTED:
            return "rejected"
        if self.text.startswith(_ABORTED):
            return "interrupted"
        return "out of time" if self.text.startswith(_TIMED_OUT) else None


def spoken(content: Any) -> str:
    """The text of a content: a text, or parts of which some are."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def output_of(content: Any) -> Output:
    """A tool's output in any of the shapes that Codex has given it."""
    ok = None
    if isinstance(content, dict):
        success = content.get("success")
        ok = success if isinstance(success, bool) else None
        content = content.get("content")
    text = spoken(content)
    if text.startswith('{"') and '"metadata"' in text:
        told = mapping(decoded(text))
        about, inner = mapping(told.get("metadata")), told.get("output")
        if isinstance(inner, str) and (code := exit_code(about.get("exit_code"))) is not None:
            seconds = amount(about.get("duration_seconds"))
            return Output(inner, ok, code, "stated", seconds)
    if text.startswith(_HEADS) and (head := _head(text)) is not None:
        code = _number(head["early"] or head["late"])
        found: Literal["parsed"] | None = None if code is None else "parsed"
        seconds = _seconds(head["seconds"])
        return Output(text[head.end() :], ok, code, found, seconds, head["session"])
    denied = _DENIED.match(text)
    code = _number(denied[1]) if denied else exit_code_in(text)
    return Output(text, ok, code, None if code is None else "parsed")


def _head(text: str) -> re.Match[str] | None:
    start = 0
    if text.startswith("Command: "):
        # The command may have any number of lines.
        start = text.find("\nChunk ID: ") + 1 or text.find("\nWall time: ") + 1
    return _HEAD.match(text, start)


def _number(text: str | None) -> int | None:
    return exit_code(int(text)) if text else None


def _seconds(text: str) -> float | None:
    try:
        return _believed(amount(float(text)))
    except ValueError:
        return None


def duration(value: Any) -> float | None:
    """Seconds and nanoseconds, as Rust writes them."""
    told = mapping(value)
    seconds, nanos = amount(told.get("secs")), amount(told.get("nanos"))
    return None if seconds is None else _believed(seconds + (nanos or 0.0) / 1e9)


def _believed(seconds: float | None) -> float | None:
    """Of a process that ended before Codex first looked, it tells a few microseconds."""
    return seconds if seconds is not None and seconds >= 0.001 else None


def reply_in(content: Any) -> str | None:
    """What a tool of another server answered: its texts, or its error."""
    told = mapping(content)
    for name in ("Ok", "ok"):
        told = mapping(told.get(name)) or told
    failure = told.get("Err") or told.get("message")
    return spoken(told.get("content")) or (failure if isinstance(failure, str) else None)
