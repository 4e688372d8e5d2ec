"""A scripted year of a team: four production metrics and six memory metrics, with known answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

import anyio
import pytest
from github_team import CLAUDE, REPO, Team
from msgspec.structs import replace

from closeloop.changes.check_verdict import save_report as keep_report
from closeloop.flow import learn_from_reviews
from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.attempt import Attempt
from closeloop.records.change import Change, ChangeReport, Risk, RiskFactor
from closeloop.records.estimate import MetricValue
from closeloop.records.pull_request import Fact, PullDescription
from closeloop.records.settings import Settings
from closeloop.records.trace import Session, Trace
from closeloop.reviews import ngrams
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.reviews.rule_index import RuleIndex
from closeloop.reviews.rule_learning import LearningContext
from closeloop.store import Store, open_store
from closeloop.store.record_bodies import pack_record
from closeloop.store.session_rows import build_packed_session, session_key

AGENTS = merge_known_agents({})
WEEKS = 52
CLOCK = "Please use the shared clock instead of datetime.now()."
EMPTY = "Add a test for the empty list."
NAMES = "Rename this helper after what it returns."


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def recorded(team: Team, number: int, store: Store, minutes: int) -> None:
    """The session in which the agent made a pull request, as an import would keep it."""
    pull = team.pulls[number]
    started = team.now - timedelta(minutes=minutes)
    name, branch = f"{number:012x}", pull["head"]["ref"]
    address = f"git@github.com:{REPO}.git"
    session = Session(
        id=name,
        agent="claude-code",
        trace=Trace(reader="none", reader_version=1),
        started=started,
        branch=branch,
    )
    attempt = Attempt(
        id=name, origin="production", exit="finished", started=started, repo=address, branch=branch
    )
    made = build_packed_session(
        attempt, session, session_key(session, name), pack_record(session.trace)
    )
    store.save_sessions([made], [])


def clean(team: Team, number: int) -> None:
    """Right at once; every other one is taken back in the end."""
    team.check(number)
    team.review(number, "bob", "approved")
    sha = team.merge(number)
    if number % 8 == 1:
        team.wait(days=2)
        team.land(f"Revert it\n\nThis reverts commit {sha}.")


def revised(team: Team, number: int) -> None:
    """Red at first, sent back once with two remarks, and then right."""
    team.check(number, "failure")
    remarks = [("src/a/b.py", 3, CLOCK), ("src/a/b.py", 9, EMPTY)]
    team.review(number, "bob", "changes_requested", *remarks)
    team.push(number, "ann", f"Mend it\n\n{CLAUDE}")
    team.check(number)
    team.review(number, "bob", "approved")
    team.merge(number)


def mended(team: Team, number: int) -> None:
    """A person changes it before it is merged."""
    team.check(number)
    team.push(number, "bob", "Do it right", files=["src/a/b.py"])
    team.check(number)
    team.review(number, "bob", "approved")
    team.merge(number)


def given_up(team: Team, number: int) -> None:
    """Red, sent back, and closed; it had touched a lot."""
    team.check(number, "failure")
    team.review(number, "bob", "changes_requested", ("src/a/b.py", 3, NAMES))
    team.close(number)


COURSES = (clean, revised, mended, given_up)


def year(store: Store) -> Team:
    team = Team()
    for week in range(WEEKS):
        course = COURSES[week % 4]
        files = [f"src/{name}/x.py" for name in ("a", "b", "c")] if course is given_up else ["a.py"]
        number = team.open(
            "ann", f"Change {week}\n\n{CLAUDE}", branch=f"claude/{week}", files=files
        )
        recorded(team, number, store, minutes=60 if course is revised else 30)
        course(team, number)
        team.wait(days=7)
    return team


def figures(store: Store) -> dict[str, MetricValue]:
    found = compute_metrics(load_attempt_table(store, project_rulebook(Settings())), ()).figures
    return {figure.metric: figure for figure in found}


def learned(store: Store) -> None:
    school = LearningContext(rule_index=RuleIndex(store, ngrams), agents=AGENTS, always=True)
    anyio.run(learn_from_reviews, school)


def kept(facts: list[Fact], store: Store) -> None:
    for place in range(0, len(facts), 100):
        save_facts(facts[place : place + 100], store, AGENTS)


EXPECTED = {
    # Clean ones, of all that were merged or closed: revised ones were sent back.
    "task completion rate": (13 / 52, 52),
    # Every other clean one was taken back.
    "regression introduction rate": (7 / 13, 13),
    # Revised, mended and given up ones were sent back; the agent itself mended the revised ones.
    "first-try rate": (13 / 52, 52),
    "after-feedback rate": (13 / 39, 39),
    "merged without review": (0, 39),
    # Clean and given up ones 2 h 10 min, mended ones 3 h 20 min, revised ones 4 h 20 min.
    "time in review": ((7_800 + 12_000) / 2, 52),
    # Revised, mended and given up: once each.
    "review loop count": (39 / 52, 52),
    # Given up ones touched three files, those that were taken back one.
    "blast radius, files": (3, 20),
    "blast radius, modules": (3, 20),
    "first-review merge rate": (13 / 52, 52),
    "revision cycles": (39 / 52, 52),
    "CI pass rate on first push": (26 / 52, 52),
    "review comments": ((2 * 13 + 13) / 52, 52),
    "time to PR": (30 * 60, 52),
    # Each remark was new once, and came again in every later one of its course. When the first two
    # were opened nothing had been said: there was nothing to compare with.
    "repeated mistakes": (12 * 3, 50),
}


def test_a_year_gives_the_right_numbers(store: Store) -> None:
    kept(year(store).facts(), store)
    learned(store)
    found = figures(store)
    told = {name: (found[name].value, found[name].n) for name in EXPECTED}
    assert told == {name: (pytest.approx(value), n) for name, (value, n) in EXPECTED.items()}


def test_the_same_year_in_any_order_and_told_twice_gives_the_same(store: Store) -> None:
    facts = year(store).facts()
    facts += facts[::3]
    random.Random(5).shuffle(facts)
    kept(facts, store)
    learned(store)
    found = figures(store)
    for name, (value, n) in EXPECTED.items():
        assert (found[name].value, found[name].n) == (pytest.approx(value), n), name
    assert len(store.list_attempts()) == WEEKS


@pytest.mark.parametrize("about", ["the commit before", "the attempt after", "a label wins"])
def test_the_level_that_a_check_gave_counts_where_no_label_says_one(
    store: Store, about: str
) -> None:
    team = Team()
    labels = ["risk:critical"] if about == "a label wins" else []
    number = team.open("ann", f"x\n\n{CLAUDE}", labels=labels)
    team.merge(number)
    facts = team.facts()
    (head,) = {one.what.head for one in facts if isinstance(one.what, PullDescription)}
    reached = RiskFactor(name="dependents", axis="impact", text="", weight=1, value=12.0)
    risk = Risk(level="high", reasons=("large",), factors=(reached,))
    report = ChangeReport(change=Change(head=head), title="x", verdict="pass", risk=risk)
    if about != "the attempt after":
        keep_report(report, store, REPO)
        keep_report(replace(report, risk=None, tiers=("tools",)), store, REPO)
    save_facts(facts, store, AGENTS)
    (row,) = store.list_attempts()
    if about == "the attempt after":
        keep_report(replace(report, change=Change()), store, REPO, row.id)
    level = "critical" if labels else "high"
    assert store.pulls.load_delivery(row.id).risk == level
    if about != "the attempt after":
        assert store.pulls.load_delivery(row.id).dependents == 12
    assert figures(store)[f"{level} risk"].value == 1.0
    save_facts(facts, store, AGENTS)
    assert store.pulls.load_delivery(row.id).risk == level


def test_work_of_which_there_is_no_recording_is_an_attempt_of_its_own(store: Store) -> None:
    team = Team()
    number = team.open("ann", f"x\n\n{CLAUDE}\nTask-Id: t-9", labels=["risk:high"])
    team.check(number)
    team.review(number, "bob", "approved")
    team.merge(number)
    team.open("bob", "A person's own")
    save_facts(team.facts(), store, AGENTS)
    (row,) = store.list_attempts()
    assert (row.origin, row.task, row.repo, row.agent) == ("production", "t-9", REPO, "claude-code")
    found = figures(store)
    assert found["task completion rate"].value == 1.0
    assert found["high risk"].value == 1.0
    assert found["time to PR"].value is None


def test_without_ci_nothing_is_a_completion_and_what_was_sent_back_is_none(store: Store) -> None:
    """Of two merges one was mended by a person: 0 of 1, and of the other nothing is known."""
    team = Team()
    for fix_findings in (True, False):
        number = team.open("ann", f"x\n\n{CLAUDE}")
        if fix_findings:
            team.push(number, "bob", "Mend it")
        team.merge(number)
    save_facts(team.facts(), store, AGENTS)
    completion = figures(store)["task completion rate"]
    assert (completion.value, completion.n, completion.coverage) == (0.0, 1, 0.5)
    assert figures(store)["review loop count"].value == 0.5


def test_a_recording_that_comes_later_takes_the_place_of_what_stood_for_it(store: Store) -> None:
    team = Team()
    number = team.open("ann", f"x\n\n{CLAUDE}", branch="claude/x")
    recorded_late = team.now
    team.check(number)
    facts = team.facts()
    save_facts(facts, store, AGENTS)
    (stand_in,) = [row.id for row in store.list_attempts()]
    team.now = recorded_late
    recorded(team, number, store, minutes=10)
    team.merge(number)
    save_facts(team.facts(), store, AGENTS)
    row = store.pulls.load_pull(REPO, number)
    assert row is not None
    assert row.attempt == f"{number:012x}"
    old, new = store.pulls.load_delivery(stand_in), store.pulls.load_delivery(f"{number:012x}")
    assert old is not None
    assert new is not None
    assert (old.merged, old.first_push) == (None, None)
    assert (new.merged, new.first_push, new.seconds_to_open) == (True, True, 600.0)
