"""Rules as they are now, in memory: read once, searched often, added to as they are kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from datetime import datetime
from itertools import accumulate
from operator import xor

from msgspec.structs import replace

from closeloop.records.protocols import Encoder
from closeloop.records.team_rules import RuleMatch, TeamRule
from closeloop.reviews.repeated_remarks import first_reported_at
from closeloop.reviews.rule_search import (
    RuleVectors,
    build_rule_vectors,
    find_restated_rules,
    merge_rule_vectors,
    rule_texts,
    text_key,
)
from closeloop.reviews.text_vectors import vectors_for_texts
from closeloop.store import Store


class RuleIndex:
    """The rules of a store, with their vectors by one encoder."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self.store = store
        self.encoder = encoder
        self._rules = {rule.id: rule for rule in store.memory.list_rules()}
        self._indexes: dict[str | None, RuleVectors] = {}
        self._ages: dict[str, tuple[list[datetime], list[str]]] = {}
        texts = [text for rule in self._rules.values() for text in rule_texts(rule)]
        self._vectors = vectors_for_texts(texts, encoder, store)

    def list_rules(self, repo: str | None) -> list[TeamRule]:
        """Those that hold for a repository and are not retired."""
        return [
            rule
            for rule in self._rules.values()
            if rule.state != "retired" and rule.repo in (None, repo)
        ]

    def get_rule(self, name: str) -> TeamRule | None:
        return self._rules.get(name)

    def save_rule(self, rule: TeamRule) -> None:
        """Save a rule, or one more example of it, and find it from now on."""
        self.store.memory.save_examples(rule)
        before = self._rules.get(rule.id)
        examples_by_key = {
            one.key: one for one in (*(before.examples if before else ()), *rule.examples)
        }
        rule = self._rules[rule.id] = replace(rule, examples=tuple(examples_by_key.values()))
        self._ages.clear()
        self._vectors |= vectors_for_texts(rule_texts(rule), self.encoder, self.store)
        for repo, known in self._indexes.items():
            if rule.repo in (None, repo):
                self._indexes[repo] = merge_rule_vectors(known, self._build_vectors([rule]))

    def rules_before(self, repo: str, moment: datetime) -> str:
        """A name for the active rules that were first said before a moment; others have another."""
        if repo not in self._ages:
            active = [rule for rule in self.list_rules(repo) if rule.state == "active"]
            aged = sorted((first_reported_at(rule), rule.id) for rule in active)
            marks = accumulate((int(name, 16) for _, name in aged), xor, initial=0)
            self._ages[repo] = [at for at, _ in aged], [f"{mark:x}" for mark in marks]
        births, marks_of = self._ages[repo]
        return marks_of[bisect_left(births, moment)]

    def find_restated(
        self, text: str, repo: str | None, path: str | None = None
    ) -> list[RuleMatch]:
        """The rules of a repository that a remark may restate."""
        known = self._vectors_of_repo(repo)
        if not known.rules:
            return []
        vector = vectors_for_texts([text], self.encoder, self.store)[text_key(text)]
        return find_restated_rules(known, text, vector, floor=self.encoder.floor, path=path)

    def likeness_by_rule(self, text: str, repo: str | None) -> dict[str, float]:
        """How like each rule of a repository is to a text, by the rule's id."""
        known = self._vectors_of_repo(repo)
        if not known.rules or not text.strip():
            return {}
        vector = vectors_for_texts([text], self.encoder, self.store)[text_key(text)]
        scores = (known.matrix @ vector).tolist()
        return dict(zip((rule.id for rule in known.rules), scores, strict=True))

    def _vectors_of_repo(self, repo: str | None) -> RuleVectors:
        if repo not in self._indexes:
            self._indexes[repo] = self._build_vectors(self.list_rules(repo))
        return self._indexes[repo]

    def _build_vectors(self, rules: Iterable[TeamRule]) -> RuleVectors:
        width = len(next(iter(self._vectors.values()))) if self._vectors else 0
        return build_rule_vectors(rules, self._vectors, width)
