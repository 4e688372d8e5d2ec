"""A rule becomes a check only when that is proved: on its pull request, and on the repository."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from team import AGENTS, REPO, day, learned

from closeloop.git import find_repository
from closeloop.records.errors import BadInput
from closeloop.records.pull_request import Fact, PullDescription, ReviewComment
from closeloop.records.settings import CheckSettings, RepoRule
from closeloop.records.team_rules import CheckProof, TeamRule
from closeloop.records.trace import ModelReply, ModelRequest
from closeloop.reviews.pull_lifecycle import load_pull, save_facts
from closeloop.reviews.rule_editing import (
    describe_proof,
    find_rule,
    keep_proved_check,
    list_new_lines,
    prove_rule,
    reject_check,
    set_rule_state,
    with_learned_rules,
)
from closeloop.store import Store, open_store

FIRST = "export const size = 1;\n"
BROKEN = "export const size = 1;\nexport function take(x: any) {\n  return x;\n}\n"
MENDED = "export const size = 1;\nexport function take(x: Item) {\n  return x;\n}\n"


class Clone:
    """A clone with one pull request in it: what was reviewed, and what was merged."""

    def __init__(self, root: Path, store: Store) -> None:
        self.root, self.store = root, store
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(
            ["git", *who, *arguments], cwd=self.root, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, content: str, path: str = "src/shop.ts") -> str:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")
        return self.git("rev-parse", "HEAD")

    def tell(self, said: str, reviewed: str, merged: str, path: str = "src/shop.ts") -> TeamRule:
        """Ann's comment on what the pull request added, and the rule that is learned from it."""
        patch = self.git("diff", f"{reviewed}~1", reviewed, "--", path)
        hunk = patch[patch.index("@@") :]
        opened = PullDescription(title="x", author="robot", branch="agent/10", opened=day(0))
        closed = replace(opened, state="merged", merged=day(2), merge_commit=merged)
        comment = ReviewComment(
            id="c1", by="ann", body=said, at=day(1), path=path, hunk=hunk, sha=reviewed
        )
        whats: list[Any] = [opened, comment, closed]
        facts = [
            Fact(source="github", repo=REPO, pull=10, at=day(at), key=f"{at}", what=what)
            for at, what in enumerate(whats)
        ]
        save_facts(facts, self.store, AGENTS)
        learned(self.store)
        (rule,) = self.store.memory.list_rules()
        return rule

    def prove(self, rule: TeamRule, model: Any = None) -> CheckProof:
        repository = find_repository(self.root)
        assert repository is not None
        pull = load_pull(REPO, 10, self.store, AGENTS)
        return anyio.run(prove_rule, rule, [pull], self.root, repository, model)


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    with open_store(":memory:") as store:
        yield Clone(tmp_path, store)


def test_a_learned_rule_is_no_check_until_one_is_proved_and_kept(clone):
    clone.commit(FIRST)
    reviewed, merged = clone.commit(BROKEN), clone.commit(MENDED)
    clone.commit("export let old: any;\nlet many: any[] = [];\n", "src/old.ts")
    rule = clone.tell("Don't use `any` types.", reviewed, merged)
    assert rule.check is None
    proof = clone.prove(rule)
    assert (proof.proved, proof.pull, proof.fires) == (True, 10, ("src/shop.ts:2",))
    assert (proof.today, proof.files) == (2, 1)
    assert proof.places == ("src/old.ts:1", "src/old.ts:2")
    assert "has 2 matches today, in 1 file" in describe_proof(proof)
    keep_proved_check(clone.store, rule, proof)
    assert with_learned_rules(CheckSettings(), clone.store, REPO).rules == ()
    set_rule_state(clone.store, find_rule(clone.store, rule.id), "active", "ann", day(3))
    (kept,) = with_learned_rules(CheckSettings(), clone.store, REPO).rules
    assert kept == proof.check


@pytest.mark.parametrize(
    ("said", "broken", "mended", "path"),
    [
        ("Use the logger instead of print.", "print(1)\n", "log.info(1)\n", "a.py"),
        ("Avoid wildcard imports, please.", "from os import *\n", "from os import path\n", "a.py"),
        ("Never call `eval()` on input.", "x = eval(y)\n", "x = parse(y)\n", "a.py"),
        (
            "Don't import moment here.",
            "import moment from 'moment'\n",
            "import d from 'd'\n",
            "a.ts",
        ),
    ],
)
def test_banned_calls_imports_and_words_are_proved_from_the_words_of_the_rule(
    clone, said, broken, mended, path
):
    clone.commit("x = 1\n", path)
    reviewed, merged = (
        clone.commit(f"x = 1\n{broken}", path),
        clone.commit(f"x = 1\n{mended}", path),
    )
    proof = clone.prove(clone.tell(said, reviewed, merged, path))
    assert proof.proved, proof.why
    assert proof.today == 0


def test_what_fires_on_the_correction_too_is_not_proved(clone):
    clone.commit(FIRST)
    reviewed = clone.commit(BROKEN)
    merged = clone.commit(BROKEN.replace("take(x: any)", "take(x: any, y: any)"))
    rule = clone.tell("Don't use `any` types.", reviewed, merged)
    proof = clone.prove(rule)
    assert not proof.proved
    assert "also matches the correction, at src/shop.ts:2" in proof.why
    with pytest.raises(BadInput, match="Only a verified check"):
        keep_proved_check(clone.store, rule, proof)


def test_without_a_correction_or_its_commit_nothing_is_proved(clone):
    clone.commit(FIRST)
    reviewed = clone.commit(BROKEN)
    rule = clone.tell("Don't use `any` types.", reviewed, reviewed)
    assert "was not changed on #10 after the comment" in clone.prove(rule).why
    (clone.root / ".git").rename(clone.root / "gone")
    clone.git("init", "-q", "-b", "main")
    assert "this clone does not contain src/shop.ts as of #10" in clone.prove(rule).why


class Proposing:
    """A model that proposes one check, whatever it sees."""

    name = "proposing"

    def __init__(self, kind: str, value: str) -> None:
        self.text = json.dumps({"kind": kind, "value": value})

    async def reply(self, request: ModelRequest) -> ModelReply:
        return ModelReply(text=self.text)


@pytest.mark.parametrize(
    ("kind", "value", "proved"),
    [
        ("pattern", "retry($A)", True),
        ("text", r"retry\(\w+\)", True),
        ("text", "(?=retry)", False),
        ("text", ".*", False),
        ("text", "x" * 300, False),
        ("pattern", "nothing($A)", False),
        ("none", "", False),
    ],
)
def test_what_a_model_proposes_counts_only_when_it_is_proved(clone, kind, value, proved):
    clone.commit("x = 1\n", "a.py")
    reviewed = clone.commit("x = 1\nretry(call)\n", "a.py")
    merged = clone.commit("x = 1\nretry(call, times=3)\n", "a.py")
    rule = clone.tell("Please limit how often something is tried again.", reviewed, merged, "a.py")
    assert clone.prove(rule, Proposing(kind, value)).proved is proved


def test_a_regular_expression_of_another_dialect_or_without_bounds_is_refused():
    check = RepoRule(name="x", message="x", text=r"(a)\1")
    assert reject_check(check) is not None
    assert reject_check(replace(check, text="a" * 201)) is not None
    assert reject_check(replace(check, text="(a|aa)+$")) is None


def test_long_files_of_like_lines_are_compared_in_proportion_to_their_lines() -> None:
    # Quadratic, this would take an hour.
    before, after = ["}"] * 100_000 + ["a"], ["}"] * 100_000 + ["b"]
    assert list_new_lines(before, after) == [100_000]
