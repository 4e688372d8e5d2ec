from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.providers.provider_streams import MIN_PIECE_BYTES, split_into_pieces

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
)


@given(st.binary() | values.map(lambda value: json.dumps(value).encode()))
def test_the_pieces_of_anything_give_it_back(body: bytes) -> None:
    assert b"".join(split_into_pieces(body)) == body


@given(st.dictionaries(st.text(), st.lists(st.text(max_size=3000), max_size=8), max_size=4))
def test_the_pieces_of_a_conversation_give_it_back(payload: dict[str, Any]) -> None:
    for body in (json.dumps(payload), json.dumps(payload, indent=1, ensure_ascii=False)):
        assert b"".join(split_into_pieces(body.encode())) == body.encode()


def request(messages: list[str], **more: Any) -> bytes:
    return json.dumps({"system": "s" * 5000, "messages": messages, **more}).encode()


@pytest.mark.parametrize("size", [10, 500, 5000])
def test_a_longer_conversation_has_the_pieces_of_the_shorter_one(size: int) -> None:
    said = [str(number) * size for number in range(40)]
    tools = ["t" * 5000]
    before = set(split_into_pieces(request(said, tools=tools)))
    after = split_into_pieces(request([*said, "new", "newer"], tools=tools))
    added = sum(len(piece) for piece in after if piece not in before)
    assert added < 2 * MIN_PIECE_BYTES + 3 * size


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b'{"a": [1, 2', b"[1]", b" {} "],
)
def test_what_is_no_request_is_one_piece(body: bytes) -> None:
    assert b"".join(split_into_pieces(body)) == body
    assert len(split_into_pieces(body)) <= 1
