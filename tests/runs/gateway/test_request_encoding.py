from __future__ import annotations

import msgspec
import pytest

from closeloop.gateway.exchange_ledger import RequestEncoder
from closeloop.records.trace import ChatMessage, ModelRequest, ModelToolCall, ToolSpec

SAID = (
    ChatMessage(role="user", text="Mend it."),
    ChatMessage(
        role="assistant", calls=(ModelToolCall(id="1", name="run", arguments={"command": "ls"}),)
    ),
    ChatMessage(role="tool", text='a "file"\n', call="1"),
    ChatMessage(role="assistant", text="Done."),
)
TOOLS = (ToolSpec(name="run", description="Runs.", parameters={"type": "object"}),)


def test_requests_of_a_conversation_are_encoded_as_each_would_be_alone() -> None:
    encoder = RequestEncoder()
    for messages in (SAID[:1], SAID[:1], SAID[:3], SAID, SAID[:2], (), SAID[1:], SAID[1:] + SAID):
        for more in ({}, {"system": "s", "tools": TOOLS, "max_tokens": 5}):
            request = ModelRequest(messages=messages, **more)
            assert b"".join(encoder.encode(request)) == msgspec.json.encode(request)


def test_a_request_that_cannot_be_encoded_leaves_nothing_behind() -> None:
    encoder = RequestEncoder()
    encoder.encode(ModelRequest(messages=SAID[:2]))
    with pytest.raises(UnicodeEncodeError):
        encoder.encode(ModelRequest(messages=(ChatMessage(role="user", text="\ud800"),)))
    request = ModelRequest(messages=SAID)
    assert b"".join(encoder.encode(request)) == msgspec.json.encode(request)


def test_the_next_request_of_a_conversation_shares_the_pieces_of_the_last_one() -> None:
    encoder = RequestEncoder()
    long = tuple(ChatMessage(role="user", text="word " * 300) for _ in range(20))
    first = encoder.encode(ModelRequest(messages=long, system="s" * 5000, tools=TOOLS))
    second = encoder.encode(ModelRequest(messages=long + SAID, system="s" * 5000, tools=TOOLS))
    new = [piece for piece in second if all(piece is not other for other in first)]
    assert len(first) > 8
    assert len(new) == 1
