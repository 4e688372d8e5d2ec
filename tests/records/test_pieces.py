from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.providers.provider_streams import MIN_PIECE_BYTES, RequestSplitter, split_into_pieces

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


messages = st.lists(
    st.builds(
        lambda role, text: {"role": role, "text": text},
        st.sampled_from(["user", "assistant", "tool"]),
        st.text(max_size=30).map(lambda text: text * 40),
    ),
    max_size=12,
)


@given(st.lists(messages, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_requests_that_grow_are_cut_as_if_each_were_alone(
    growth: list[list[dict[str, str]]], random: Any
) -> None:
    splitter = RequestSplitter()
    said: list[dict[str, str]] = []
    for added in growth:
        said = said[: random.randrange(len(said) + 1)] + added
        body = json.dumps({"model": "messages", "messages": said, "tools": [{"name": "t"}]})
        assert splitter.split(body.encode()) == split_into_pieces(body.encode())


def test_a_conversation_that_goes_on_keeps_its_pieces_as_they_are() -> None:
    splitter = RequestSplitter()
    said = [{"role": "user", "text": str(number) * 900} for number in range(30)]
    other = json.dumps({"messages": [{"text": "a sub-agent's"}]}).encode()
    first = splitter.split(json.dumps({"messages": said}).encode())
    splitter.split(other)
    second = splitter.split(json.dumps({"messages": [*said, {"text": "new"}]}).encode())
    assert all(one is same for one, same in zip(first[:-2], second, strict=False))
    assert len(second) > 8
