"""A small team: agents open pull requests, people remark on them. For tests of the memory."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from closeloop.model.memory import LearnedRule
from closeloop.model.protocols import Model
from closeloop.model.review import Comment, Description, Fact, PullRequest, Review
from closeloop.reviewing.learning import Learned, School, learn
from closeloop.reviewing.lives import keep
from closeloop.reviewing.memory import put
from closeloop.reviewing.shelf import Shelf
from closeloop.reviews.authorship import agents_of
from closeloop.reviews.encoders import ngrams
from closeloop.store import Store

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
REPO = "acme/shop"
START = datetime(2026, 1, 5, 9, tzinfo=UTC)
AGENTS = agents_of({})
SET = Path(__file__).with_name("paraphrases.toml")


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def pull_request(
    store: Store, number: int, opened: datetime, *remarks: str, path: str = "src/shop.py"
) -> PullRequest:
    """An agent's pull request with remarks by ann, an hour after it was opened."""
    later = opened + timedelta(hours=1)
    whats: list[Any] = [
        Description(
            title=f"Change {number}", author="robot", branch=f"agent/{number}", opened=opened
        ),
        *(
            Comment(id=f"{number}-{at}", by="ann", body=text, at=later, path=path)
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
    return keep(facts, store, AGENTS)[0]


def note(number: int, at: datetime, text: str) -> Fact:
    what = Review(id=f"r{number}", by="bob", state="changes_requested", body=text, at=at)
    return Fact(source="github", repo=REPO, pull=number, at=at, key=f"review-{number}", what=what)


def school_of(store: Store, model: Model | None = None, *, always: bool = False) -> School:
    return School(shelf=Shelf(store, ngrams), agents=AGENTS, model=model, always=always)


def learned(store: Store, model: Model | None = None, *, always: bool = False) -> Learned:
    return anyio.run(lambda: learn(school_of(store, model, always=always)))


def accepted(store: Store, at: datetime) -> list[LearnedRule]:
    """All that is proposed, accepted by ann."""
    proposed = store.memory.rules(state="proposed")
    return [put(store, rule, "active", "ann", at) for rule in proposed]


def paraphrases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(SET.read_text(encoding="utf-8"))["rule"]
    return found


def contraries() -> Iterator[tuple[str, str]]:
    """Pairs that want the contrary: those written as such, and every rule with its opposites."""
    for group in tomllib.loads(SET.read_text(encoding="utf-8"))["contrary"]:
        yield from ((one, other) for one, other in group["pairs"])
    for rule in paraphrases():
        yield from ((rule["text"], other) for other in rule["opposite"])
