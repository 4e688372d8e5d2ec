"""A session: one recorded piece of an agent's work, as the agent's own files tell it."""

from __future__ import annotations

from typing import Literal

from closeloop.records.attempt import Exit, Usage
from closeloop.records.record import Record, Time
from closeloop.records.trace import Trace


class Session(Record):
    """What a reader makes of files; everything but the trace may be absent."""

    id: str
    """The agent's own name for it, or the digest of its content where it has none."""
    agent: str
    trace: Trace
    agent_version: str | None = None
    model: str | None = None
    """The one that said most."""
    system: str | None = None
    """The system prompt, where the files hold it."""
    started: Time | None = None
    ended: Time | None = None
    exit: Exit = "finished"
    cause: str | None = None
    usage: Usage = Usage()
    """Of all lanes, each provider message counted once."""
    summary: str | None = None
    """The agent's last words."""
    directory: str | None = None
    branch: str | None = None
    commit: str | None = None
    user: str | None = None
    parent: str | None = None
    """The session that started this one, where that was not found beside it."""
    links: dict[str, str] = {}
    copy: Literal["exported", "printed"] | None = None
    """Written out by the agent or a tool: where the agent's own files are, these tell more."""
