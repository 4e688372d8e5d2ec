"""The life of a pull request is the same in whatever order it is told, and says what happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from github_team import CLAUDE, REPO, Team
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from closeloop.records.attempt import AttemptFilter
from closeloop.records.pull_request import Fact, PullRequest
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_lifecycle import (
    block_reason,
    build_pull_request,
    load_pull,
    refresh_all_pulls,
    refresh_pull,
    save_facts,
)
from closeloop.store import Store, open_store
from closeloop.store.metrics_section import AttemptSpan

AGENTS = merge_known_agents({})
SECRET = f"gh{'p'}_" + "x9Kd7Lm2Qp4Rt6Vw8Yz1Bc3Fg5Hj0Nn7Ss2A"


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def only(facts: list[Fact], number: int) -> list[Fact]:
    """What a store would find of a pull request."""
    with open_store(":memory:") as store:
        store.pulls.add_facts(facts)
        return store.pulls.list_facts(REPO, number)


def lived(team: Team, number: int = 1) -> PullRequest:
    found = build_pull_request(only(team.facts(), number), number, AGENTS)
    assert found is not None
    return found


def busy() -> Team:
    """One of an agent's pull requests, with all that can befall it."""
    team = Team()
    number = team.open("ann", f"Add tally\n\n{CLAUDE}", branch="claude/tally")
    team.check(number, "failure")
    team.review(number, "bob", "changes_requested", ("src/a/b.py", 3, "Use the clock we have"))
    team.push(number, "ann", f"Use the clock\n\n{CLAUDE}")
    team.check(number)
    team.review(number, "bob", "commented", ("src/a/b.py", 9, "And a test?"))
    team.push(number, "bob", "Add the test myself", files=["tests/test_b.py"])
    team.check(number)
    team.review(number, "bob", "approved")
    sha = team.merge(number, "bob")
    team.land(f'Revert "Add tally"\n\nThis reverts commit {sha}.')
    return team


def test_a_whole_life_is_told() -> None:
    pull = lived(busy())
    assert (pull.state, pull.agent, pull.reviewed) == ("merged", "claude-code", True)
    assert (pull.first_push, pull.last_push) == ("failed", "passed")
    assert [(one.number, one.by, one.requested) for one in pull.rounds] == [
        (1, ("bob",), True),
        (2, ("bob",), False),
    ]
    (edit,) = pull.edits
    assert (edit.by, edit.last, [file.path for file in edit.files or ()]) == (
        "bob",
        True,
        ["tests/test_b.py"],
    )
    (pointer,) = pull.pointers
    assert (pointer.kind, pointer.how) == ("revert", "message")
    assert [comment.body for comment in pull.comments if comment.counts] == [
        "Use the clock we have",
        "And a test?",
    ]


BUSY = busy().facts()


@settings(max_examples=50, deadline=None)
@given(st.permutations(BUSY))
def test_any_order_tells_the_same_life(facts: list[Fact]) -> None:
    assert build_pull_request(facts, 1, AGENTS) == build_pull_request(BUSY, 1, AGENTS)


@settings(max_examples=5, deadline=None)
@given(st.permutations(range(len(BUSY))))
def test_a_store_that_hears_them_one_by_one_comes_to_the_same(order: list[int]) -> None:
    with open_store(":memory:") as store, open_store(":memory:") as other:
        for place in [*order, *order[::5]]:
            save_facts([BUSY[place]], store, AGENTS)
        save_facts(BUSY, other, AGENTS)
        assert store.pulls.list_pulls() == other.pulls.list_pulls()
        (attempt,) = [row.id for row in store.list_attempts()]
        assert store.pulls.load_delivery(attempt) == other.pulls.load_delivery(attempt)


def test_approval_alone_is_no_round_and_merges_at_first_review() -> None:
    team = Team()
    number = team.open("copilot-swe-agent[bot]", branch="copilot/x")
    team.review(number, "bob", "approved")
    team.merge(number)
    pull = lived(team)
    assert (pull.rounds, pull.reviewed, pull.edits) == ((), True, ())


def test_what_was_asked_for_and_never_came_is_a_round_without_end() -> None:
    team = Team()
    number = team.open("devin-ai-integration[bot]")
    team.review(number, "bob", "changes_requested")
    team.close(number)
    pull = lived(team)
    (one,) = pull.rounds
    assert (one.ended, one.answer, pull.state) == (None, None, "closed")


def test_comments_of_the_author_of_bots_and_of_agents_do_not_count() -> None:
    team = Team()
    number = team.open("ann", branch="claude/x")
    for who in ("ann", "lint[bot]", "cursor[bot]", "bob"):
        team.say(number, who, f"by {who}")
    assert [one.by for one in lived(team).comments if one.counts] == ["bob"]


def test_a_deleted_comment_is_gone_and_an_edited_one_counts_once() -> None:
    team = Team()
    number = team.open("ann", branch="claude/x")
    first = team.say(number, "bob", "nonsense")
    team.say(number, "bob", "sense")
    team.deliveries.append(("issue_comment", {**team.deliveries[-1][1], "action": "edited"}))
    team.unsay(number, first)
    assert [one.body for one in lived(team).comments] == ["sense"]


def test_merged_without_review_is_told() -> None:
    team = Team()
    number = team.open("ann", f"x\n\n{CLAUDE}")
    team.say(number, "ann", "Fine by me.")
    team.merge(number)
    pull = lived(team)
    assert (pull.state, pull.reviewed) == ("merged", False)


def test_accounts_that_are_gone_do_not_lose_the_pull_request() -> None:
    team = Team()
    number = team.open("zoe", f"x\n\n{CLAUDE}")
    team.lose("zoe")
    team.review(number, None, "changes_requested")
    team.push(number, None, f"y\n\n{CLAUDE}")
    team.merge(number)
    pull = lived(team)
    assert pull.author == "zoe"
    assert pull.reviews[0].by is None
    assert pull.reviewed
    assert len(pull.rounds) == 1


def test_a_force_push_takes_away_what_was_there() -> None:
    team = Team()
    number = team.open("ann", f"x\n\n{CLAUDE}", branch="claude/x")
    team.push(number, "bob", "Mend it", files=["src/c.py"])
    assert len(lived(team).edits) == 1
    team.push(number, "ann", f"Again\n\n{CLAUDE}", forced=True)
    pull = lived(team)
    assert [commit.message.splitlines()[0] for commit in pull.commits] == ["Again"]
    assert pull.edits == ()
    assert pull.pushes[-1].forced


def test_where_commits_say_nothing_the_first_name_is_the_agents() -> None:
    team = Team()
    number = team.open("ann", branch="codex/x")
    team.push(number, "ann", "More")
    team.push(number, "bob", "Mend")
    assert [edit.by for edit in lived(team).edits] == ["bob"]


def test_an_edit_before_the_agents_last_commit_is_told_as_such() -> None:
    team = Team()
    number = team.open("ann", f"x\n\n{CLAUDE}")
    team.push(number, "bob", "Mend")
    team.push(number, "ann", f"y\n\n{CLAUDE}")
    (edit,) = lived(team).edits
    assert not edit.last


def test_people_who_mend_are_in_one_round_until_the_agent_has_its_turn() -> None:
    team = Team()
    number = team.open("ann", f"x\n\n{CLAUDE}")
    team.review(number, "bob", "commented", ("src/a/b.py", 1, "I do it"))
    for words in ("Mend", "Mend more"):
        team.push(number, "bob", words)
    team.push(number, "ann", f"y\n\n{CLAUDE}")
    for words in ("And mend", "And more"):
        team.push(number, "bob", words)
    rounds = lived(team).rounds
    assert [(one.number, len(one.comments), one.by) for one in rounds] == [
        (1, 1, ("bob",)),
        (2, 0, ("bob",)),
    ]
    assert rounds[0].ended is not None
    assert rounds[0].ended < rounds[1].started


def test_bringing_in_the_main_branch_answers_nothing_and_edits_nothing() -> None:
    team = Team()
    number = team.open("ann", f"x\n\n{CLAUDE}")
    team.review(number, "bob", "commented", ("src/a/b.py", 1, "Hm"))
    team.push(number, "bob", "Merge branch 'main' into topic-1")
    pull = lived(team)
    assert (pull.rounds, pull.edits) == ((), ())


@pytest.mark.parametrize(
    ("conclusion", "why"),
    [
        ("failure", "its checks fail: tests"),
        (None, "its checks are running: tests"),
        ("success", None),
        ("neutral", None),
    ],
)
def test_nobody_is_asked_about_a_change_that_fails_its_checks(
    conclusion: str | None, why: str | None
) -> None:
    team = Team()
    number = team.open("ann", branch="claude/x")
    team.check(number, conclusion)
    assert block_reason(lived(team)) == why


def test_a_draft_and_what_is_merged_are_not_put_before_people() -> None:
    team = Team()
    number = team.open("ann", branch="claude/x", draft=True)
    assert block_reason(lived(team)) == "it is a draft"
    team.merge(number)
    assert block_reason(lived(team)) == "it is merged"


def test_secrets_in_comments_are_taken_out(store: Store) -> None:
    team = Team()
    number = team.open("ann", branch="claude/x", body=f"token {SECRET}")
    team.say(number, "bob", f"Do not write {SECRET} here")
    save_facts(team.facts(), store, AGENTS)
    pull = load_pull(REPO, number, store, AGENTS)
    assert pull.comments[0].body == "Do not write [redacted: github-token] here"
    assert SECRET not in repr(store.pulls.list_facts(REPO, number))


def test_a_later_revert_changes_the_life_of_what_it_names(store: Store) -> None:
    team = Team()
    first = team.open("ann", f"x\n\n{CLAUDE}")
    team.check(first)
    team.review(first, "bob", "approved")
    team.merge(first)
    before = len(team.deliveries)
    second = team.open("bob", "Revert it", title='Revert "x"', body=f"Reverts {REPO}#{first}")
    team.merge(second)
    facts = team.facts()
    early = len([fact for fact in facts if fact.at < facts[-1].at])
    assert before < len(team.deliveries)
    save_facts(facts[:early], store, AGENTS)
    save_facts(facts[early:], store, AGENTS)
    row = store.pulls.load_pull(REPO, first)
    assert row is not None
    assert (row.pointers, row.rounds) == (1, 0)
    (attempt,) = [one.id for one in store.list_attempts()]
    delivery = store.pulls.load_delivery(attempt)
    assert delivery is not None
    assert (delivery.merged, delivery.regressed, delivery.corrected) == (True, True, False)


def test_a_fix_that_names_the_pull_request_points_back_and_an_issue_does_not() -> None:
    team = Team()
    first = team.open("ann", f"x\n\n{CLAUDE}")
    team.merge(first)
    for body in (f"Fixes #{first}", f"Reverts other/repo#{first}"):
        team.merge(team.open("bob", "Something", body=body))
    assert lived(team).pointers == ()
    team.merge(team.open("bob", "Mend", body=f"Fixes a regression introduced in #{first}."))
    (pointer,) = lived(team).pointers
    assert (pointer.kind, pointer.by) == ("fix", "#4")


def test_a_branch_of_a_fork_is_not_taken_for_ours(store: Store) -> None:
    team = Team()
    team.open("ann", f"Ours\n\n{CLAUDE}", branch="patch-1")
    fork = team.open("eve", "Theirs", branch="patch-1")
    for event, payload in team.deliveries:
        if event == "pull_request" and payload["pull_request"]["number"] == fork:
            payload["pull_request"]["head"]["repo"] = {"full_name": "eve/tally"}
    team.deliveries = [
        (event, payload)
        for event, payload in team.deliveries
        if event != "push" or payload["sender"]["login"] != "eve"
    ]
    save_facts(team.facts(), store, AGENTS)
    pull = load_pull(REPO, fork, store, AGENTS)
    assert (pull.branch, pull.commits, pull.agent) == ("patch-1", (), None)
    assert len(load_pull(REPO, 1, store, AGENTS).commits) == 1


def test_what_other_code_has_made_of_the_facts_is_made_again(store: Store) -> None:
    save_facts(BUSY, store, AGENTS)
    (row,) = store.pulls.list_pulls()
    store.pulls.save_pull(replace(row, rounds=77, version=row.version + 1), lambda old: [])
    assert refresh_all_pulls(store, AGENTS) == 1
    assert store.pulls.list_pulls() == [row]
    assert refresh_all_pulls(store, AGENTS) == 0


def test_renewing_what_is_known_says_nothing_new(store: Store) -> None:
    save_facts(BUSY, store, AGENTS)
    count = store.events.last_number()
    save_facts(BUSY, store, AGENTS)
    refresh_pull(REPO, 1, store, AGENTS)
    assert store.events.last_number() == count
    kinds = [event.kind for event in store.events.list_after(0)]
    assert kinds.count("pull.opened") == kinds.count("pull.merged") == 1
    assert kinds.count("review.round") == 2
    assert kinds.count("pull.reverted") == 1


def test_a_pull_request_without_a_recording_is_never_listed_as_a_session(store: Store) -> None:
    (pull,) = save_facts(only(busy().facts(), 1), store, AGENTS)
    assert pull.attempt is not None
    assert store.listing.list_page(AttemptFilter(), 10) == []
    assert store.list_attempts(recorded=True) == []
    assert [row.pull for row in store.pulls.list_pulls()] == [1]
    load_counted = store.numbers.load_attempt_columns(AttemptSpan())
    assert load_counted.attempts == [pull.attempt], "what became of it still counts"
