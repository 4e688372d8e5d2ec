"""Rules, repeats, offers, corrections and reviews are kept as they were, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from msgspec.structs import replace

from closeloop.records.pull_request import Correction
from closeloop.records.team_rules import (
    ContextRecord,
    HumanReview,
    RepeatedRemark,
    ReviewAssignment,
    RuleExample,
    TeamRule,
)
from closeloop.store import Store, open_store

NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
RULE = TeamRule(id="r1", repo="a/b", text="Be kind.\0\ud800", since=NOW)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def example(key: str, days: int = 0) -> RuleExample:
    return RuleExample(key=key, source="comment", text="kind", at=NOW + timedelta(days=days))


def repeat(**fields: object) -> RepeatedRemark:
    known = {"key": "c1", "rule": "r1", "repo": "a/b", "pull": 1, "text": "x", "encoder": "e"}
    return RepeatedRemark(**{**known, "at": NOW, "likeness": 0.5, "rule_age": 1.0, **fields})


def test_a_rule_is_as_it_was_said_last_with_all_its_examples(store: Store) -> None:
    store.memory.save_rule(replace(RULE, examples=(example("later", 2),)))
    store.memory.save_rule(replace(RULE, state="active", examples=(example("first"),)))
    store.memory.save_rule(replace(RULE, state="active", examples=(example("first"),)))
    store.memory.save_rule(TeamRule(id="r2", text="Everywhere.", since=NOW))
    store.memory.save_rule(TeamRule(id="r3", repo="c/d", text="Elsewhere.", since=NOW))
    (rule,) = store.memory.list_rules(state="active")
    assert [one.key for one in rule.examples] == ["first", "later"]
    assert {one.id for one in store.memory.list_rules(repo="a/b")} == {"r1", "r2"}
    assert [one.id for one in store.memory.list_rules(state="proposed")] == ["r2", "r3"]


def test_repeats_and_corrections_count_as_said_last(store: Store) -> None:
    store.memory.save_repeats([repeat(), repeat(key="c2", pull=2)])
    store.memory.save_repeats([repeat(state="confirmed", by="person")])
    assert [one.state for one in store.memory.list_repeats(repo="a/b", pull=1)] == ["confirmed"]
    assert len(store.memory.list_repeats()) == 2
    one = Correction(id="x", repo="a/b", pull=1, kind="comment", text="t", at=NOW)
    store.memory.save_corrections([one])
    store.memory.save_corrections([replace(one, tags=("scope creep",))])
    assert [kept.tags for kept in store.memory.list_corrections(repo="a/b")] == [("scope creep",)]
    assert store.memory.list_corrections(repo="c/d") == []


def test_the_first_offer_of_a_piece_of_work_stays(store: Store) -> None:
    first = ContextRecord(key="t1", repo="a/b", arm="memory", rules=("r1",), at=NOW)
    assert store.memory.save_context_record(first) == first
    assert store.memory.save_context_record(replace(first, arm="control", rules=())) == first
    assert store.memory.list_context_records("a/b", ["t1", "t2"]) == [first]


def test_vectors_come_back_as_they_were(store: Store) -> None:
    made = {"d1": np.array([0.25, -1.0], np.float32), "d2": np.array([0.5, 0.0], np.float32)}
    store.memory.save_vectors("e:1", made)
    store.memory.save_vectors("e:1", made)
    found = store.memory.load_vectors("e:1", ["d1", "d3"])
    assert {key: row.tolist() for key, row in found.items()} == {"d1": [0.25, -1.0]}
    assert store.memory.load_vectors("e:2", ["d1"]) == {}


def test_of_one_person_and_item_the_newest_review_counts(store: Store) -> None:
    draft = HumanReview(item="i", reviewer="ann", at=NOW, state="draft")
    store.reviews.save_review(draft)
    store.reviews.save_review(replace(draft, state="done", merge=True))
    store.reviews.save_review(replace(draft, notes="kept too late"))
    store.reviews.save_review(replace(draft, reviewer="bob"))
    assert [(one.reviewer, one.state) for one in store.reviews.list_reviews(item="i")] == [
        ("ann", "done"),
        ("bob", "draft"),
    ]
    store.reviews.add_assignment(ReviewAssignment(item="i", reviewer="ann", at=NOW, asked=True))
    assert store.reviews.list_assignments() == [
        ReviewAssignment(item="i", reviewer="ann", at=NOW, asked=True)
    ]
