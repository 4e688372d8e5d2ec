"""Deliveries may hold anything: they become facts, or are refused in one way, and stop nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from github_team import CLAUDE, REPO, Team
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.errors import BadInput
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.host_pulls import GITHUB_EVENTS, read_github_event, read_gitlab_event
from closeloop.reviews.host_pulls import GITLAB_EVENTS as GITLAB
from closeloop.reviews.pull_facts import parse_pointers
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.store import open_store
from patience import takes

AGENTS = merge_known_agents({})
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["\0", "\u202e", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00Z"]),
    st.just([]),
    st.just({}),
)


def story() -> Team:
    team = Team()
    number = team.open("ann", f"x\n\n{CLAUDE}", branch="claude/x")
    team.check(number)
    team.review(number, "bob", "changes_requested", ("a.py", 1, "no"))
    team.push(number, "ann", f"y\n\n{CLAUDE}", forced=True)
    team.say(number, "bob", "ok")
    team.merge(number)
    team.land("This reverts commit " + "a" * 40)
    return team


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key, each in inner:
            found += places(each, (*path, key)) if isinstance(each, dict | list) else [(*path, key)]
    return found


DELIVERIES = story().deliveries


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_delivery_with_anything_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    event, payload = data.draw(st.sampled_from(DELIVERIES))
    told = msgspec.json.decode(msgspec.json.encode(payload))
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(places(told)))
        inner = told
        for step in way:
            inner = inner[step]
        inner[last] = data.draw(ODD)
        told = msgspec.json.decode(msgspec.json.encode(told))
    with contextlib.suppress(BadInput):
        facts = read_github_event(event, msgspec.json.encode(told), Team().now)
        save_facts(facts, STORE, AGENTS)


STORE = open_store(":memory:")


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(GITHUB_EVENTS)), st.sampled_from(sorted(GITLAB)), st.binary(max_size=200)
)
def test_bytes_of_any_kind_are_refused_in_one_way(github: str, gitlab: str, body: bytes) -> None:
    with contextlib.suppress(BadInput):
        read_github_event(github, body, Team().now)
    with contextlib.suppress(BadInput):
        read_gitlab_event(gitlab, body, Team().now)


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            ["reverts ", "commit ", "ann/tally", "#", "12", "abc1234", " ", "\n", "introduced in "]
        ),
        max_size=200,
    )
)
def test_messages_are_looked_through_quickly(parts: list[str]) -> None:
    text, now = "".join(parts) * 20, Team().now
    assert len(parse_pointers(text, REPO, "#1", now)) <= 20
    assert takes(lambda _: parse_pointers(text, REPO, "#1", now), 2) < 2
