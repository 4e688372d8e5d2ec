"""What was learned is the same in whatever order comments arrive, and after any interruption."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from team import AGENTS, REPO, day, learned, school_of

from closeloop.records.pull_request import (
    BackReference,
    Fact,
    PullCommit,
    PullDescription,
    Review,
    ReviewComment,
)
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.reviews.rule_learning import list_changed_pulls
from closeloop.store import Store, open_store
from closeloop.store.engine import Connection

LOGGER = "Please use the project's logger instead of print."
ANY = "Don't use `any` types in the client."
AGAIN = "Avoid `any` types, please."


def fact(number: int, at: float, key: str, what: Any) -> Fact:
    sha = what.sha if isinstance(what, PullCommit) else None
    return Fact(source="github", repo=REPO, pull=number, at=day(at), key=key, what=what, sha=sha)


def comment(number: int, name: str, said: float, text: str, told: float = 0, **more: Any) -> Fact:
    """One version of a comment: when it was said, and when it was put so."""
    what = ReviewComment(
        id=f"{number}-{name}", by="ann", body=text, at=day(said), path="src/shop.ts", **more
    )
    key = f"comment:{number}-{name}:{told or said}:{what.deleted}"
    return fact(number, told or said, key, what)


def story() -> list[Fact]:
    """Four pull requests of agents, with remarks before and after the merge, edits and a revert."""
    facts: list[Fact] = []
    for number in (1, 2, 3, 4):
        opened = day(number * 10)
        description = PullDescription(
            title=f"Change {number}",
            author="robot",
            branch=f"agent/{number}",
            opened=opened,
            head=f"{number}" * 40,
        )
        facts.append(fact(number, number * 10, f"open:{number}", description))
        facts += [
            fact(number, number * 10 + at, f"commit:{number}:{at}", commit)
            for at, commit in (
                (0.1, PullCommit(sha=f"{number}" * 40, at=opened, message="x", author="robot")),
            )
        ]
        merged = replace(
            description, state="merged", merged=day(number * 10 + 3), merge_commit=f"{number}f" * 20
        )
        facts.append(fact(number, number * 10 + 3, f"merge:{number}", merged))
    facts += [
        comment(1, "a", 11, LOGGER),
        comment(1, "b", 12, ANY),
        # Said after the merge, before the third was opened.
        comment(1, "late", 15, "Add a test for the empty list."),
        comment(2, "a", 21, AGAIN),
        comment(2, "b", 21, "use the project's logger instead of print"),
        comment(2, "c", 22, "Never sleep in tests."),
        comment(2, "c", 22, "Never sleep in unit tests.", told=22.5),
        comment(3, "a", 31, "Add a test for the empty list."),
        comment(3, "gone", 31.5, "Rename this helper after what it returns."),
        comment(3, "gone", 31.5, "", told=32, deleted=True),
        comment(4, "a", 41, "Rename this helper after what it returns."),
        comment(4, "b", 42, "Never sleep in unit tests."),
        fact(
            4,
            41.5,
            "review:4",
            Review(id="r4", by="bob", state="changes_requested", body=LOGGER, at=day(41.5)),
        ),
        fact(
            2,
            25,
            "pointer:revert:2:#9",
            BackReference(kind="revert", at=day(25), how="message", by="#9", title="Take it back"),
        ),
        fact(
            3,
            31.2,
            "commit:3:edit",
            PullCommit(sha="e" * 40, at=day(31.2), message="Do it right", author="bob"),
        ),
    ]
    return sorted(facts, key=lambda one: one.at)


def learned_set(store: Store) -> dict[str, set[Any]]:
    """All that was learned, without the order in which it was written down."""
    rules = store.memory.list_rules()
    return {
        "corrections": set(store.memory.list_corrections()),
        "rules": {rule for rule in rules if rule.examples},
        "repeats": {one for one in store.memory.list_repeats() if one.state != "denied"},
        "counts": {
            (row.pull, delivery.repeated, delivery.repeated_unconfirmed)
            for row in store.pulls.list_pulls()
            if row.attempt and (delivery := store.pulls.load_delivery(row.attempt))
        },
    }


def tell(store: Store, facts: Sequence[Fact], stops: set[int]) -> dict[str, set[Any]]:
    """Facts one by one, learning after some of them and at the end."""
    for place, one in enumerate(facts):
        save_facts([one], store, AGENTS)
        if place in stops:
            learned(store)
    learned(store)
    return learned_set(store)


@pytest.fixture(scope="module")
def in_order() -> Iterator[dict[str, set[Any]]]:
    facts = story()
    with open_store(":memory:") as store:
        yield tell(store, facts, {*range(len(facts))})


def test_in_order_the_story_teaches_what_its_comments_say(in_order):
    """By hand: 11 comments count (one was deleted, the edited one as it is), with the review, the
    revert and the edit by a person. Before the second was opened two rules had been said, before
    the third five, before the fourth the same five: the deleted comment taught nothing.
    """
    kinds = sorted(one.kind for one in in_order["corrections"])
    assert kinds == ["comment"] * 9 + ["edit", "note", "revert"]
    texts = {rule.text: len(rule.examples) for rule in in_order["rules"]}
    assert texts == {
        "Use the project's logger instead of print.": 3,
        "Don't use `any` types in the client.": 1,
        "Avoid `any` types, please.": 1,
        "Add a test for the empty list.": 2,
        "Never sleep in unit tests.": 2,
        "Rename this helper after what it returns.": 1,
    }
    pairs = {(one.text, one.earlier, one.state) for one in in_order["repeats"]}
    assert (AGAIN, ANY, "candidate") in pairs
    assert ("use the project's logger instead of print", LOGGER, "candidate") in pairs
    assert ("Add a test for the empty list.",) * 2 + ("candidate",) in pairs
    assert not any(one.text.startswith("Rename") for one in in_order["repeats"])
    assert in_order["counts"] == {(1, None, None), (2, 0, 2), (3, 0, 1), (4, 0, 2)}


@pytest.mark.parametrize("seed", range(6))
def test_any_order_with_duplicates_teaches_the_same(seed, in_order):
    draw = random.Random(seed)
    facts = story()
    facts += draw.choices(facts, k=10)
    draw.shuffle(facts)
    stops = {*draw.sample(range(len(facts)), draw.randint(0, 8))}
    with open_store(":memory:") as store:
        assert tell(store, facts, stops) == in_order


def test_every_order_of_a_comment_its_edit_and_a_deletion_teaches_the_same():
    opened, *_ = story()
    versions = [
        comment(1, "a", 11, LOGGER),
        comment(1, "a", 11, ANY, told=12),
        comment(1, "b", 11, "", told=13, deleted=True),
    ]
    found = []
    for order in itertools.permutations(versions):
        for facts in ([opened, *order], [*order, opened]):
            with open_store(":memory:") as store:
                found.append(tell(store, facts, {1, 2}))
    assert len(found) == 12
    assert all(one == found[0] for one in found)
    (rule,) = found[0]["rules"]
    assert (rule.text, rule.state) == (ANY, "proposed")


@pytest.mark.parametrize("seed", range(2))
def test_any_order_teaches_the_same_on_both_databases(seed, store_url, in_order):
    draw = random.Random(seed + 100)
    facts = story()
    draw.shuffle(facts)
    with open_store(store_url) as store:
        assert tell(store, facts, {5, 15}) == in_order


class Killed(BaseException):
    """The process ends here."""


def test_whoever_is_interrupted_loses_nothing_and_learns_nothing_twice(in_order, tmp_path):
    """At one write after the other: the transaction is lost, and learning begins anew with what
    is there.
    """
    told = tmp_path / "told.db"
    with open_store(str(told)) as store:
        save_facts(story(), store, AGENTS)
    interrupted = True
    for place in range(0, 400, 7):
        if not interrupted:
            break
        copy = shutil.copy(told, tmp_path / "copy.db")
        with open_store(str(copy)) as store:
            interrupted = learn_until(store, place)
        with open_store(str(copy)) as store:
            learned(store)
            assert learned_set(store) == in_order, place
            assert not list(list_changed_pulls(school_of(store), None))
    assert place > 28


def learn_until(store: Store, place: int) -> bool:
    """Learn, and end like a process that is killed at the row of that number."""
    writes = itertools.count()

    run_statement = Connection._run

    def kill(on: Connection, how: str, statement: str, *rest: Any) -> Any:
        if statement.startswith("INSERT") and next(writes) == place:
            raise Killed
        return run_statement(on, how, statement, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_run", kill)
        try:
            learned(store)
        except Killed:
            return True
    return False


def test_a_comment_that_arrives_after_later_ones_is_learned(in_order):
    """It was lost: the newest fact's time did not change."""
    facts = [one for one in story() if one.key != "comment:1-late:15:False"]
    late = next(one for one in story() if one.key == "comment:1-late:15:False")
    with open_store(":memory:") as store:
        assert tell(store, facts, {*range(len(facts))}) != in_order
        assert tell(store, [late], set()) == in_order


def test_what_a_person_accepted_stays_when_its_comment_is_deleted():
    from closeloop.reviews.rule_editing import set_rule_state

    opened, *_ = story()
    with open_store(":memory:") as store:
        tell(store, [opened, comment(1, "a", 11, LOGGER)], set())
        (rule,) = store.memory.list_rules()
        set_rule_state(store, rule, "active", "ann", day(12))
        found = tell(store, [comment(1, "a", 11, "", told=13, deleted=True)], set())
        (rule,) = store.memory.list_rules()
        assert (rule.state, rule.examples, found["corrections"]) == ("active", (), set())
