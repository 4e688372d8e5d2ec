"""An exchange: one request of an attempt to its model and what came back, as the gateway saw it."""

from __future__ import annotations

from closeloop.records.attempt import Usage
from closeloop.records.record import Record, Time


class Exchange(Record):
    """One request through the gateway. Bodies are redacted and hold no key."""

    number: int
    """Within the attempt, from 1."""
    at: Time
    path: str
    """What was asked for: `/v1/messages`."""
    request: bytes
    """The body as the agent sent it."""
    response: bytes
    """The body as the agent got it, a stream whole."""
    content_type: str = "application/json"
    status: int
    """As the agent saw it."""
    seconds: float
    first_byte_seconds: float | None = None
    retries: int = 0
    """How often the gateway asked the provider again by itself."""
    model: str | None = None
    """The model that answered, as the provider names it."""
    usage: Usage = Usage()
    cause: str | None = None
    """Why there is no good answer: the budget, or the provider's trouble, in words."""
    note: str | None = None
    """Of a replayed attempt: how this request differs from the recorded one, in words."""
