"""A small team: agents open pull requests, people remark on them. For tests of the memory."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from closeloop.flow import learn_from_reviews
from closeloop.records.protocols import Model
from closeloop.records.pull_request import Fact, PullDescription, PullRequest, Review, ReviewComment
from closeloop.records.team_rules import TeamRule
from closeloop.reviews import ngrams
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.reviews.rule_editing import set_rule_state
from closeloop.reviews.rule_index import RuleIndex
from closeloop.reviews.rule_learning import LearningContext, LearningSummary, RemarkJudge
from closeloop.store import Store

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
REPO = "acme/shop"
START = datetime(2026, 1, 5, 9, tzinfo=UTC)
AGENTS = merge_known_agents({})
SET = Path(__file__).with_name("paraphrases.toml")


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def pull_request(
    store: Store, number: int, opened: datetime, *remarks: str, path: str = "src/shop.py"
) -> PullRequest:
    """An agent's pull request with remarks by ann, an hour after it was opened."""
    later = opened + timedelta(hours=1)
    whats: list[Any] = [
        PullDescription(
            title=f"Change {number}", author="robot", branch=f"agent/{number}", opened=opened
        ),
        *(
            ReviewComment(id=f"{number}-{at}", by="ann", body=text, at=later, path=path)
            for at, text in enumerate(remarks)
        ),
    ]
    facts = [
        Fact(
            source="github",
            repo=REPO,
            pull=number,
            at=getattr(what, "at", opened),
            key=f"{number}-{at}",
            what=what,
        )
        for at, what in enumerate(whats)
    ]
    return save_facts(facts, store, AGENTS)[0]


def note(number: int, at: datetime, text: str) -> Fact:
    what = Review(id=f"r{number}", by="bob", state="changes_requested", body=text, at=at)
    return Fact(source="github", repo=REPO, pull=number, at=at, key=f"review-{number}", what=what)


def school_of(store: Store, model: Model | None = None, *, always: bool = False) -> LearningContext:
    return LearningContext(
        rule_index=RuleIndex(store, ngrams),
        agents=AGENTS,
        model=model,
        judge=RemarkJudge(model, store, 1000) if model else None,
        always=always,
    )


def learned(store: Store, model: Model | None = None, *, always: bool = False) -> LearningSummary:
    return anyio.run(lambda: learn_from_reviews(school_of(store, model, always=always)))


def accepted(store: Store, at: datetime) -> list[TeamRule]:
    """All that is proposed, accepted by ann."""
    proposed = store.memory.list_rules(state="proposed")
    return [set_rule_state(store, rule, "active", "ann", at) for rule in proposed]


def paraphrases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(SET.read_text(encoding="utf-8"))["rule"]
    return found


def contraries() -> Iterator[tuple[str, str]]:
    """Pairs that want the contrary: those written as such, and every rule with its opposites."""
    for group in tomllib.loads(SET.read_text(encoding="utf-8"))["contrary"]:
        yield from ((one, other) for one, other in group["pairs"])
    for rule in paraphrases():
        yield from ((rule["text"], other) for other in rule["opposite"])
