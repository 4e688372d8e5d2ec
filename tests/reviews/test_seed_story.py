"""Seed 004: from the first pull request to a rule that stops a mistake, and an arm that proves it.

By hand. An agent's 39 pull requests come by webhook, shuffled and some twice, and whoever
learns from them is cut off four times and killed once:

- #1 to #9 and #11 to #14 are right at once. #10 is sent back with "Don't use `any` types", #15 with
  "avoid the any type".
- Then that is a rule. Of the next 24, 12 are told it and 12 are not, by lot. Of those that are
  told, 11 are right at once and the third is sent back for its clock. Of the others the third is
  right at once; 11 are sent back for `any`: 1 in the words of #15, 1 in new words, 9 in those of
  #10.

So 14 of 39 were sent back, once each with one comment, and 25 were merged after their first review.
When #1 to #10 were opened nothing had been said, which leaves 29 that could repeat something. #15
did, as a person says, and 10 of those that were not told, in known words; the new words stay
unconfirmed.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest
from github_team import CLAUDE, REPO, Team
from test_learning_order import learn_until
from test_rule_checks import BROKEN, FIRST, MENDED, Clone
from test_thirty_pulls import agree, deliver, read_json, send_back

from closeloop.records.settings import MemorySettings
from closeloop.reviews import ngrams
from closeloop.reviews.agent_context import UpcomingWork, give_context
from closeloop.reviews.rule_index import RuleIndex
from closeloop.store import Store, open_store
from command_line import typed

FILE = "src/shop.ts"
SAID, AGAIN = "Don't use `any` types", "avoid the any type"
NEW_WORDS = "Please avoid `any` as a type in this function."
MEMORY = MemorySettings(encoder="ngrams", control=0.5)
RATE = "first-review merge rate"
LOT = "cmcccmmcmcmmmmmmccmcccmc"
"""Who of #16 to #39 is told: m for memory, c for control."""


DYING = """
import itertools, os, signal
from closeloop.cli import main
from closeloop.store.engine import Connection

writes = itertools.count()


run_statement = Connection._run


def die(on, how, statement, *rest):
    if statement.startswith("INSERT") and next(writes) == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_statement(on, how, statement, *rest)


Connection._run = die
main(["learn", "reviews"])
"""


def begin(team: Team, **given: Any) -> int:
    number = len(team.pulls) + 1
    message = f"Do {number}\n\n{CLAUDE}"
    return team.open("ann", message, branch=f"claude/{number}", files=[FILE], **given)


def act_out_before(team: Team, clone: Clone) -> None:
    """#1 to #15; #10 is in the clone as it was reviewed and as it was merged."""
    reviewed, merged = clone.commit(BROKEN), clone.commit(MENDED)
    patch = clone.git("diff", f"{reviewed}~1", reviewed, "--", FILE)
    for number in range(1, 16):
        if number == 10:
            begin(team, sha=reviewed)
            team.check(number)
            hunk = patch[patch.index("@@") :]
            team.review(number, "bob", "changes_requested", (FILE, 2, SAID), hunk=hunk)
            team.push(number, "ann", f"Mend it\n\n{CLAUDE}", files=[FILE], sha=merged)
            team.check(number)
            team.review(number, "bob", "approved")
            team.merge(number, sha=merged)
        elif number == 15:
            send_back(team, begin(team), 1, (FILE, 2, AGAIN))
        else:
            agree(team, begin(team), back=False)


def act_out_trial(team: Team, store: Store) -> str:
    """#16 to #39: each agent is told what there is to tell, and works; the arms they fell to."""
    rule_index, arms, texts = RuleIndex(store, ngrams), "", {"memory": "", "control": ""}
    remarks = [AGAIN, NEW_WORDS, *[SAID] * 9]
    for number in range(16, 40):
        work = UpcomingWork(repo=REPO, text="Add a column.", key=f"claude/{number}")
        told = give_context(rule_index, work, MEMORY, team.now)
        arms, texts[told.arm] = arms + told.arm[0], told.text
        begin(team)
        third = arms.count(arms[-1]) == 3
        if told.arm == "memory" and third:
            send_back(team, number, 1)
        elif told.arm == "memory" or third:
            agree(team, number, back=False)
        else:
            send_back(team, number, 1, (FILE, 2, remarks.pop(0)))
    assert SAID in texts["memory"]
    assert texts["control"] == ""
    return arms


def tell(store: Store, team: Team, begun: int, seed: int) -> None:
    """What was done since, shuffled and some of it twice; learning is cut off twice on the way."""
    bodies = team.bodies()[begun:]
    bodies += bodies[::7]
    random.Random(seed).shuffle(bodies)
    half = len(bodies) // 2
    for part, place in ((bodies[:half], 2), (bodies[half:], 5)):
        deliver(store, part, first=10_000 * seed + 1_000 * place)
        assert learn_until(store, place), "it had more to write"


def repeated(project: Path) -> tuple[float, int, dict[str, float]]:
    (found,) = read_json(project, "metrics", "--score", "repeated mistakes")["figures"]
    return found["value"], found["n"], found["more"]


def confirm_and_accept(project: Path) -> str:
    """The likely repeat is there at once with both quotes; four commands make a check of it."""
    assert repeated(project) == (0, 5, {"unconfirmed": 1})
    (likely,) = read_json(project, "learn", "repeats")["items"]
    assert (likely["state"], likely["pull"], likely["text"]) == ("candidate", 15, AGAIN)
    assert (likely["earlier_pull"], likely["earlier"]) == (10, SAID)
    read_json(project, "learn", "confirm", likely["key"])
    assert repeated(project) == (1, 5, {})
    rule: str = likely["rule"]
    proof = read_json(project, "learn", "check", rule, "--accept")
    assert (proof["proved"], proof["pull"], proof["fires"]) == (True, 10, [f"{FILE}:2"])
    assert proof["today"] == 0
    assert read_json(project, "learn", "accept", rule)["state"] == "active"
    return rule


def check_changes(project: Path, clone: Clone, rule: str) -> None:
    """The same mistake in a new file is found by the rule, and its correction is not."""
    for content, expected in ((BROKEN, ("warn", ["src/cart.ts:2"])), (MENDED, ("pass", []))):
        clone.commit(content, "src/cart.ts")
        report = read_json(project, "check", "main~1..main", "--tier", "quality")
        places = [
            at for one in report["findings"] if rule in one["message"] for at in one["places"]
        ]
        assert (report["verdict"], places) == expected
        clone.git("reset", "-q", "--hard", "HEAD~1")


def assert_numbers(project: Path) -> None:
    """Value and number, of all and of each arm."""
    sent_back = {None: (14, 39), "memory": (1, 12), "control": (11, 12), "–": (2, 15)}
    shares = {
        RATE: {None: (25, 39), "memory": (11, 12), "control": (1, 12), "–": (13, 15)},
        "revision cycles": sent_back,
        "review comments": sent_back,
    }
    repeats = {None: (11, 29), "memory": (0, 12), "control": (10, 12), "–": (1, 5)}
    figures = [
        figure
        for words in ((), ("--group-by", "arm"))
        for figure in read_json(project, "metrics", *words)["figures"]
    ]
    for name, expected in {**shares, "repeated mistakes": repeats}.items():
        found = {
            one["group"].get("arm"): (one["value"] * (one["n"] if name in shares else 1), one["n"])
            for one in figures
            if one["metric"] == name
        }
        assert found == {arm: pytest.approx(pair) for arm, pair in expected.items()}, name
    unconfirmed = {
        one["group"].get("arm"): one["more"].get("unconfirmed", 0)
        for one in figures
        if one["metric"] == "repeated mistakes"
    }
    assert unconfirmed == {None: 1, "memory": 0, "control": 1, "–": 0}


def assert_verdict(project: Path) -> None:
    """11 of 12 against 1 of 12: enough to stop, however often somebody looked."""
    report = read_json(project, "ab", "status", "memory", "--score", RATE)
    arms = {one["variant"]: (one["outcomes"], one["rates"][RATE]) for one in report["arms"]}
    assert arms == {"control": (12, pytest.approx(1 / 12)), "memory": (12, pytest.approx(11 / 12))}
    (standing,) = report["standings"]
    difference = standing["comparison"]["difference"]
    assert (standing["call"], standing["comparison"]["verdict"]) == ("better", "better")
    bounds = (difference["value"], difference["low"], difference["high"])
    assert bounds == pytest.approx(expect_difference())
    assert bounds == pytest.approx((0.833, 0.117, 1), abs=5e-4)


def expect_difference() -> tuple[float, float, float]:
    """By hand: the difference of the rates; the lower bound is where who bets against any smaller
    mean of the surprises, each weighed by its share of ½, has forty times the stake. The upper
    one is beyond 1.
    """
    seen, scores, total = {"m": 0, "c": 0}, [], 0.5
    for count, arm in enumerate(LOT, 1):
        seen[arm] += 1
        value = float((arm == "m") != (seen[arm] == 3))
        scores.append((value - total / count) * (2 if arm == "m" else -2))
        total += value
    row, low, high = [(score + 2) / 4 for score in scores], 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if capital(row, middle) >= log(40) else (low, middle)
    return 11 / 12 - 1 / 12, 4 * low - 2, 1.0


def capital(row: list[float], mean: float) -> float:
    """The largest log capital of who bets on more than this mean, step by step as in the paper."""
    wealth = most = 0.0
    spread, total, squares = 0.25, 0.5, 0.25
    for count, value in enumerate(row, 1):
        stake = sqrt(2 * log(40) / (spread * count * log(1 + count)))
        wealth += log(1 + min(stake, 0.5 / mean) * (value - mean))
        most, total = max(most, wealth), total + value
        squares += (value - total / (count + 1)) ** 2
        spread = squares / (count + 1)
    return most


def test_a_mistake_becomes_a_rule_that_stops_it_and_a_control_arm_proves_it(
    store_url: str, tmp_path: Path
) -> None:
    project = tmp_path / "tally"
    project.mkdir()
    with open_store(store_url) as store:
        clone, team = Clone(project, store), Team()
        clone.git("remote", "add", "origin", f"git@github.com:{REPO}.git")
        settings = f"store = '{store_url}'\n[memory]\nencoder = 'ngrams'\ncontrol = 0.5\n"
        clone.commit(settings, "closeloop.toml")
        clone.commit(FIRST)
        act_out_before(team, clone)
        tell(store, team, 0, seed=1)
        dying = [sys.executable, "-c", DYING]
        killed = subprocess.run(dying, cwd=project, check=False, capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        read_json(project, "learn", "reviews")
        rule = confirm_and_accept(project)
        check_changes(project, clone, rule)
        begun = len(team.deliveries)
        assert act_out_trial(team, store) == LOT
        tell(store, team, begun, seed=2)
        read_json(project, "learn", "reviews")
    assert_numbers(project)
    assert_verdict(project)
    (asked,) = read_json(project, "learn", "confirm")["items"]
    assert (asked["pull"], asked["text"], asked["offered"]) == (18, NEW_WORDS, False)
    for key, said in (("claude/16", False), ("claude/17", True)):
        assert (SAID in typed(project, "learn", "context", "--key", key).stdout) is said
