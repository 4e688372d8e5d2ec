"""How often a rule is right here, by what people say of its findings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from scripted_work import START, add_attempt

from closeloop.metrics.score_columns import (
    FindingVote,
    load_own_precision,
    project_scores,
    save_vote,
)
from closeloop.records.errors import BadInput
from closeloop.records.finding import Rule
from closeloop.records.settings import Settings
from closeloop.store import Store, open_store

RULE = Rule(name="spiral", version=3, severity="error", about="Rounds that change nothing.")


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def say(store: Store, attempt: str, event: int, verdict: str, by: str = "ann", minute: int = 0):
    vote = FindingVote(
        attempt=attempt,
        rule=RULE,
        event=event,
        verdict=verdict,  # type: ignore[arg-type]
        person=by,
        at=START + timedelta(minutes=minute),
    )
    return save_vote(store, vote)


def test_votes_are_scores_of_a_person_and_the_last_word_counts(store: Store) -> None:
    attempt = add_attempt(store, None, None, None).id
    assert say(store, attempt, 9, "right") == {9: "right"}
    assert say(store, attempt, 21, "wrong", minute=1) == {9: "right", 21: "wrong"}
    (score,) = store.scores.list_scores(attempt)
    assert (score.name, score.source, score.by, score.version) == (
        "right-spiral", "person", "ann", "3",
    )  # fmt: skip
    assert (score.value, score.note) == (0.5, "#9 right, #21 wrong")
    assert say(store, attempt, 21, "right", minute=2) == {9: "right", 21: "right"}
    assert "right-spiral" in project_scores(Settings()).definitions


def test_an_attempt_counts_once_and_other_versions_of_the_rule_do_not(store: Store) -> None:
    """Right in one attempt, half right in another where two people differ: 1.5 of 2."""
    one, two = (add_attempt(store, None, None, None).id for _ in range(2))
    say(store, one, 9, "right")
    say(store, one, 21, "right", minute=1)
    say(store, two, 4, "right")
    say(store, two, 4, "wrong", by="bob")
    rate = load_own_precision(store, {"spiral": RULE})["spiral"]
    assert (rate.hits, rate.of) == (1.5, 2)
    newer = Rule(name="spiral", version=4, severity="error", about="")
    assert load_own_precision(store, {"spiral": newer}) == {}


def test_nobody_cannot_vote(store: Store) -> None:
    attempt = add_attempt(store, None, None, None).id
    with pytest.raises(BadInput, match="A vote needs a name"):
        say(store, attempt, 1, "right", by=" ")
