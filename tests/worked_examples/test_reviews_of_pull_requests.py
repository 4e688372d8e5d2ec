"""Worked examples: what a pull request's life says of the work behind it, and repeated mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from github_team import CLAUDE, REPO, Team
from scripted_work import START

from closeloop.cli.attempts import describe_pull_cost
from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.pull_request import Correction, Delivery, Fact, PullDescription, PullRow
from closeloop.records.settings import Settings
from closeloop.records.team_rules import RepeatedRemark, RuleExample, RuleMatch, TeamRule
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_board import (
    PullCost,
    assess_care,
    assign_work,
    rank_band,
    sum_work_costs,
)
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.reviews.rule_index import apply_opinion, count_repeats, find_repeats
from closeloop.store import Store, open_store
from closeloop.store.pull_section import BranchWork

AGENTS = merge_known_agents({})
REMARK = ("src/a/b.py", 3, "Use the clock we have")


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def delivered(store: Store, team: Team) -> Delivery:
    """What became of the team's first pull request."""
    attempt = next(
        one.attempt for one in save_facts(team.facts(), store, AGENTS) if one.number == 1
    )
    assert attempt is not None
    found = store.pulls.load_delivery(attempt)
    assert found is not None
    return found


def opened(**given: Any) -> tuple[Team, int]:
    team = Team()
    return team, team.open("ann", f"Add tally\n\n{CLAUDE}", branch="claude/tally", **given)


# Rounds of review: the review loop count


def test_a_round_is_a_move_of_the_branch_after_people_asked_for_something(store: Store) -> None:
    """Changes requested, then a push: 1. A comment, then a push: 2. A push that nobody asked for,
    and an approval: no more. Two comments of people count; those of a bot and of the author do not.
    """
    team, number = opened()
    team.push(number, "ann", f"Unasked\n\n{CLAUDE}")
    team.say(number, "lint[bot]", "Missing docstring")
    team.say(number, "ann", "I will look at it")
    team.push(number, "ann", f"Still unasked\n\n{CLAUDE}")
    team.review(number, "bob", "changes_requested", REMARK)
    team.push(number, "ann", f"Use the clock\n\n{CLAUDE}")
    team.review(number, "bob", "commented", ("src/a/b.py", 9, "And a test?"))
    team.push(number, "ann", f"Test it\n\n{CLAUDE}")
    team.review(number, "bob", "approved")
    team.push(number, "ann", f"Sort imports\n\n{CLAUDE}")
    team.merge(number, "bob")
    found = delivered(store, team)
    assert (found.cycles, found.comments, found.first_review) == (2, 2, False)
    assert (found.merged, found.regressed) == (True, False)


def test_the_text_of_a_review_is_a_comment_but_for_that_of_an_approval(store: Store) -> None:
    """Changes requested in words: 1, with a remark on a line: 2. An approval's words, and those of
    a bot, are no comment.
    """
    team, number = opened()
    team.review(number, "bob", "changes_requested", REMARK, body="Use the clock everywhere.")
    team.review(number, "lint[bot]", "commented", body="Missing docstring")
    team.push(number, "ann", f"Use the clock\n\n{CLAUDE}")
    team.review(number, "bob", "approved", body="Nice.")
    team.merge(number, "bob")
    assert delivered(store, team).comments == 2
    assert store.pulls.list_pulls()[0].comments == 2


def test_people_who_mend_without_a_word_are_one_round_until_the_agent_has_its_turn(
    store: Store,
) -> None:
    """Two pushes of bob's, one of the agent's, one of bob's: 2 rounds. It was corrected."""
    team, number = opened()
    team.push(number, "bob", "Mend")
    team.push(number, "bob", "Mend more")
    team.push(number, "ann", f"Go on\n\n{CLAUDE}")
    team.push(number, "bob", "Mend again")
    team.check(number)
    team.merge(number, "bob")
    found = delivered(store, team)
    assert (found.cycles, found.corrected) == (2, True)


def test_what_was_asked_for_and_never_came_is_a_round(store: Store) -> None:
    team, number = opened()
    team.review(number, "bob", "changes_requested")
    team.close(number)
    found = delivered(store, team)
    assert (found.cycles, found.merged, found.first_review) == (1, False, False)
    assert found.regressed is None


def test_approval_alone_merges_at_the_first_review(store: Store) -> None:
    team, number = opened()
    team.check(number)
    team.review(number, "bob", "approved")
    team.merge(number, "bob")
    found = delivered(store, team)
    assert (found.cycles, found.first_review, found.corrected) == (0, True, False)


def test_of_an_open_pull_request_nothing_that_may_still_change_is_known(store: Store) -> None:
    team, number = opened()
    team.review(number, "bob", "changes_requested", REMARK)
    found = delivered(store, team)
    unknown = (found.cycles, found.comments, found.merged, found.first_review, found.regressed)
    assert unknown == (None,) * 5


def test_merged_without_a_review_is_no_first_review_merge_and_without_ci_nobody_knows_corrections(
    store: Store,
) -> None:
    """Nobody reviewed: unmeasured. No check said whether it passes: so is the correction."""
    team, number = opened()
    team.merge(number, "bob")
    found = delivered(store, team)
    assert (found.merged, found.first_review, found.corrected, found.passed) == (
        True, None, None, None)  # fmt: skip


# CI, extent, time, what came later


def test_the_first_push_and_the_last_one_are_told_apart(store: Store) -> None:
    """CI fails on the first push and passes on the last one."""
    team, number = opened()
    team.check(number, "failure")
    team.push(number, "ann", f"Mend\n\n{CLAUDE}")
    team.check(number)
    team.merge(number, "bob")
    found = delivered(store, team)
    assert (found.first_push, found.passed) == (False, True)


def test_files_and_modules_are_those_of_the_change(store: Store) -> None:
    """src/a/b.py and src/a/c.py are one module, docs/x.md another: 3 files, 2 modules."""
    team, number = opened(files=["src/a/b.py", "src/a/c.py", "docs/x.md"])
    team.merge(number, "bob")
    found = delivered(store, team)
    assert (found.files, found.modules) == (3, 2)


def test_a_later_revert_makes_a_merged_change_a_regression(store: Store) -> None:
    team, number = opened()
    sha = team.merge(number, "bob")
    team.land(f'Revert "Add tally"\n\nThis reverts commit {sha}.')
    assert delivered(store, team).regressed is True


def test_the_time_to_a_pull_request_runs_from_the_start_of_the_recorded_work(store: Store) -> None:
    """Recorded from 09:00, opened at 10:00, merged at 12:00: 3,600 s."""
    team = Team()
    attempt = Attempt(id="0123456789ab", origin="experiment", started=team.now, exit="finished")
    store.save_attempt(AttemptResult(attempt=attempt))
    number = team.open("ann", f"Add tally\n\n{CLAUDE}", branch="closeloop/t/0123456789ab")
    team.wait(hours=1)
    team.merge(number, "bob")
    found = delivered(store, team)
    assert (found.attempt, found.seconds_to_open) == ("0123456789ab", 3600.0)


def test_without_recorded_work_the_time_is_unknown(store: Store) -> None:
    team, number = opened()
    team.merge(number, "bob")
    assert delivered(store, team).seconds_to_open is None


# Repeated mistakes


def rule(name: str, days: float, state: Any = "active") -> TeamRule:
    """A rule that was first said so many days after the start."""
    at = START + timedelta(days=days)
    example = RuleExample(key=name, source="comment", text="Use the clock", at=at)
    return TeamRule(id=name, text="Use the clock", state=state, since=at, examples=(example,))


def near(one: TeamRule, **given: Any) -> RuleMatch:
    return RuleMatch(rule=one, likeness=0.9, relation=given.pop("relation", "same"), **given)


BEGAN = START + timedelta(days=10)
SAID = Correction(id="c1", repo=REPO, kind="comment", text="Use the clock",
                  at=START + timedelta(days=12))  # fmt: skip


def test_a_remark_repeats_what_is_older_than_the_work() -> None:
    """Said on day 9, before the work began on day 10: a repeat, three days old on day 12. Said on
    day 10, or retired since: none. In the words of an active rule it is confirmed, else, as for a
    rule that nobody accepted yet, a candidate.
    """
    rules = [near(rule("old", 9), exact=True), near(rule("like", 9)), near(rule("young", 10)),
             near(rule("gone", 1, "retired")),
             near(rule("new", 9, "proposed"), exact=True)]  # fmt: skip
    found = find_repeats(SAID, rules, BEGAN, "ngrams", None)
    assert [(one.rule, one.state, one.by) for one in found] == [
        ("old", "confirmed", "words"),
        ("like", "candidate", None),
        ("new", "candidate", None),
    ]
    assert found[0].rule_age == timedelta(days=3).total_seconds()


def test_a_judge_confirms_what_it_calls_the_same_and_quotes() -> None:
    """The judge answers for three rules. Same, with quotes of both texts: confirmed. Same without
    them: still a candidate. Other: denied. It does not take back what the words confirmed.
    """
    (candidate,) = find_repeats(SAID, [near(rule("like", 9))], BEGAN, "ngrams", None)
    quoted = apply_opinion(candidate, "same", "judge", supported=True)
    assert (quoted.state, quoted.by, quoted.who) == ("confirmed", "model", "judge")
    assert apply_opinion(candidate, "same", "judge", supported=False).state == "candidate"
    assert apply_opinion(candidate, "other", "judge", supported=True).state == "denied"
    assert apply_opinion(candidate, "opposite", "judge", supported=True).state == "denied"
    (exact,) = find_repeats(SAID, [near(rule("like", 9), exact=True)], BEGAN, "ngrams", None)
    assert apply_opinion(exact, "other", "judge", supported=True).state == "confirmed"


def test_each_remark_counts_once_as_confirmed_or_as_unconfirmed() -> None:
    """Remark a restates two rules and may restate a third: one confirmed. b may: one unconfirmed.
    c was denied: neither.
    """

    def repeat(key: str, name: str, state: Any) -> RepeatedRemark:
        return RepeatedRemark(key=key, rule=name, repo=REPO, text="…", at=START, likeness=0.9,
                      encoder="ngrams", state=state, rule_age=1.0)  # fmt: skip

    found = count_repeats(
        [
            repeat("a", "1", "confirmed"), repeat("a", "2", "confirmed"),
            repeat("a", "3", "candidate"), repeat("b", "1", "candidate"),
            repeat("c", "1", "denied"),
        ]
    )  # fmt: skip
    assert (found.repeated, found.unconfirmed) == (1, 1)


def test_what_deserves_care_is_counted_in_points() -> None:
    """A change of high risk (4), larger than 24 of 25 others (0.96: large, 2), sent back twice (2),
    whose checks fail (3): 11. One merged without review (2) of unknown risk (1) and unknown size
    (1), later taken back (4): 8. A small one of low risk: 0.
    """
    sizes = [*range(24), 50, 100]
    grave = pull_row(added=50, rounds=2, last_push="failed")
    assert rank_band(grave, sizes) == "large"
    assert assess_care(grave, "high", "large").care == 4 + 2 + 2 + 3
    taken_back = pull_row(state="merged", pointers=1)
    assert rank_band(taken_back, sizes) is None
    assert assess_care(taken_back, None, None).care == 2 + 1 + 1 + 4
    small = assess_care(pull_row(added=1, reviewed=True), "low", "small")
    assert (small.care, small.reasons) == (0, ())
    reasons = assess_care(grave, "high", "large").reasons
    assert reasons == (
        "risk high",
        "checks fail",
        "a large change for this repository",
        "2 review rounds",
    )


def test_the_cost_of_a_pull_request_is_that_of_every_session_on_its_branch() -> None:
    """Two sessions on the branch of #1 before it was merged on day 2, $0.50 and $0.25, and the one
    that is linked to it, $1.00: $1.75 of three. #2 has the branch again: the session of day 3 is
    its own, and as nobody knows what that cost, nobody knows what #2 did. A session of another
    repository, or on the main branch, is nobody's.
    """

    def work(name: str, day: int, cost: float | None, branch: str = "fix",
             repo: str = "git@host:ann/tally.git") -> BranchWork:  # fmt: skip
        at = datetime(2026, 1, 5 + day, tzinfo=UTC)
        return BranchWork(attempt=name, repo=repo, branch=branch, started=at, cost=cost)

    ended = datetime(2026, 1, 7, tzinfo=UTC)
    first = pull_row(pull=1, branch="fix", attempt="linked", state="merged", closed=ended)
    second = pull_row(pull=2, branch="fix", opened=datetime(2026, 1, 8, tzinfo=UTC))
    sessions = [
        work("a", 0, 0.5), work("b", 1, 0.25), work("linked", 1, 1.0, branch="elsewhere"),
        work("c", 3, None), work("d", 0, 9.0, repo="bob/tally"), work("e", 0, 9.0, branch="main"),
    ]  # fmt: skip
    owned = [(owner.pull, one) for owner, one in assign_work([first, second], sessions)]
    costs = [sum_work_costs([one for pull, one in owned if pull == number]) for number in (1, 2)]
    assert costs == [
        PullCost(cost=1.75, sessions=3),
        PullCost(cost=None, sessions=1, without_cost=1),
    ]
    assert [*map(describe_pull_cost, costs)] == [
        "$1.75 in 3 sessions", "unknown for 1 of 1 session"
    ]  # fmt: skip


def pull_row(**known: Any) -> PullRow:
    opened = datetime(2026, 1, 5, tzinfo=UTC)
    return PullRow(**{"repo": "ann/tally", "pull": 1, "source": "github", "title": "T",
                      "state": "open", "opened": opened, "told": opened, **known})  # fmt: skip


def test_merge_rate_is_merged_of_what_was_decided() -> None:
    """Two merged, one closed, one still open: 2 ÷ 3; the open one is not counted."""
    opened = datetime(2026, 1, 5, tzinfo=UTC)
    with open_store(":memory:") as store:
        for number, state in enumerate(("merged", "merged", "closed", "open"), 1):
            ended = None if state == "open" else opened
            what = PullDescription(
                title="T", author="copilot-swe-agent[bot]", bot=True, branch=f"copilot/{number}",
                state=state, opened=opened, closed=ended,
                merged=ended if state == "merged" else None,
            )  # fmt: skip
            fact = Fact(source="github", repo="ann/tally", pull=number, at=opened,
                        key=str(number), what=what)  # fmt: skip
            save_facts([fact], store, merge_known_agents({}))
        work = load_attempt_table(store, project_rulebook(Settings()))
        (figure,) = compute_metrics(work, (), ("merge rate",)).figures
    assert figure.value == pytest.approx(2 / 3)
    assert figure.attempts == 3
