"""An adapter: how one program of others is called, and how to understand what it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from closeloop.records.attempt import Exit
from closeloop.records.protocols import Recording
from closeloop.records.record import Record
from closeloop.records.task import Limits

MAX_TAIL_BYTES = 4 << 20
"""Bytes at the end of what a program printed in which its last words are looked for."""
PLACEHOLDER_KEY = "closeloop"
"""Stands where a program wants a key: the real one never comes near it."""


class AgentCallRequest(Record):
    """What a program is called for."""

    prompt: str
    system: str | None
    model: str
    address: str
    """Of the gateway: `http://127.0.0.1:PORT`, where every format is spoken."""
    home: str
    workspace: str
    turns: int
    settings: Mapping[str, str | int | float | bool]
    again: bool = False
    """Go on with the session that is there, instead of beginning one."""


class AgentCall(Record):
    """How to start it."""

    arguments: Sequence[str]
    env: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    """To write before, by their paths below the home folder."""
    stdin: str | None = None


class AgentReport(Record):
    """How it ended, in its own words."""

    text: str | None = None
    """Its last words."""
    exit: Exit | None = None
    """Where it tells more than its exit code."""
    cause: str | None = None


class Adapter(Record):
    """One program of others."""

    name: str
    program: str
    """Its name in PATH."""
    package: str | None = None
    """The package that holds it, which knows its version."""
    install: str
    """The command that installs it."""
    oldest: str | None = None
    """The first version that is known to work."""
    call: Callable[[AgentCallRequest], AgentCall]
    understand: Callable[[bytes, Sequence[Recording]], AgentReport]
    """Given what it printed and left."""
    recordings: Sequence[str] = ()
    """Patterns below the home folder; a star may stand for folders too."""
    prints: bool = False
    """What it prints is its recording."""
    done: bytes | None = None
    """Printed when the work is done, by a program that lingers."""
    again: bool = True
    """Whether it can go on with a session."""
    needs_model: bool = True
    settings: Sequence[str] = ()
    """Names of settings of its own."""


def iterate_last_json_lines(printed: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects that were printed one a line, the last first."""
    for line in reversed(printed[-MAX_TAIL_BYTES:].splitlines()):
        if line[:1] == b"{":
            try:
                value = msgspec.json.decode(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


def find_text(value: Any, *path: str) -> str | None:
    """The text that lies there, if one does."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value.strip() else None


def join_text_parts(content: Any) -> str | None:
    """The text in a provider's list of parts."""
    parts = content if isinstance(content, list) else []
    return "".join(find_text(part, "text") or "" for part in parts) or None


def openai_environment(use: AgentCallRequest) -> dict[str, str]:
    """Variables that point OpenAI's libraries, and those that follow them, at the gateway."""
    address = f"{use.address}/v1"
    return {
        "OPENAI_BASE_URL": address,
        "OPENAI_API_BASE": address,
        "OPENAI_API_KEY": PLACEHOLDER_KEY,
    }


# What every agent may be asked when its work is over.

FEEDBACK_QUESTION = """\
The work is over; change nothing any more. For those who write such requests and look after this \
repository: which information, context or instructions were missing, wrong or hard to find, so \
that you lost time or had to guess? Answer in a few plain sentences, the most useful first. If \
nothing was missing, say so.
"""
MAX_FEEDBACK_SECONDS, GRACE_SECONDS = 600.0, 20.0
"""For the answer, and how far it may reach beyond the time that the attempt has."""


def compute_feedback_seconds(limits: Limits, began: float) -> float:
    """How long an agent that began then, by the monotonic clock, may take to answer."""
    left = limits.seconds + GRACE_SECONDS - (time.monotonic() - began)
    return max(1.0, min(MAX_FEEDBACK_SECONDS, left))
