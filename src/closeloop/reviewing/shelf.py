"""Rules as they are now, in memory: read once, searched often, added to as they are kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from datetime import datetime
from itertools import accumulate
from operator import xor

from msgspec.structs import replace

from closeloop.model.memory import LearnedRule, Near
from closeloop.model.protocols import Encoder
from closeloop.reviewing.encoding import vectors_of
from closeloop.reviews.repeats import born
from closeloop.reviews.rules import Index, index, joined, key_of, restated, texts_of
from closeloop.store import Store


class Shelf:
    """The rules of a store, with their vectors by one encoder."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self.store = store
        self.encoder = encoder
        self._rules = {rule.id: rule for rule in store.memory.rules()}
        self._indexes: dict[str | None, Index] = {}
        self._ages: dict[str, tuple[list[datetime], list[str]]] = {}
        texts = [text for rule in self._rules.values() for text in texts_of(rule)]
        self._vectors = vectors_of(texts, encoder, store)

    def rules(self, repo: str | None) -> list[LearnedRule]:
        """Those that hold for a repository and are not retired."""
        return [
            rule
            for rule in self._rules.values()
            if rule.state != "retired" and rule.repo in (None, repo)
        ]

    def rule(self, name: str) -> LearnedRule | None:
        return self._rules.get(name)

    def keep(self, rule: LearnedRule) -> None:
        """Save a rule, or one more example of it, and find it from now on."""
        self.store.memory.save_examples(rule)
        before = self._rules.get(rule.id)
        said = {one.key: one for one in (*(before.examples if before else ()), *rule.examples)}
        rule = self._rules[rule.id] = replace(rule, examples=tuple(said.values()))
        self._ages.clear()
        self._vectors |= vectors_of(texts_of(rule), self.encoder, self.store)
        for repo, known in self._indexes.items():
            if rule.repo in (None, repo):
                self._indexes[repo] = joined(known, self._made([rule]))

    def older(self, repo: str, moment: datetime) -> str:
        """A name for the active rules that were first said before a moment; others have another."""
        if repo not in self._ages:
            active = [rule for rule in self.rules(repo) if rule.state == "active"]
            aged = sorted((born(rule), rule.id) for rule in active)
            marks = accumulate((int(name, 16) for _, name in aged), xor, initial=0)
            self._ages[repo] = [at for at, _ in aged], [f"{mark:x}" for mark in marks]
        births, marks_of = self._ages[repo]
        return marks_of[bisect_left(births, moment)]

    def restated(self, text: str, repo: str | None, path: str | None = None) -> list[Near]:
        """The rules of a repository that a remark may restate."""
        known = self._index(repo)
        if not known.rules:
            return []
        vector = vectors_of([text], self.encoder, self.store)[key_of(text)]
        return restated(known, text, vector, floor=self.encoder.floor, path=path)

    def likeness(self, text: str, repo: str | None) -> dict[str, float]:
        """How like each rule of a repository is to a text, by the rule's id."""
        known = self._index(repo)
        if not known.rules or not text.strip():
            return {}
        vector = vectors_of([text], self.encoder, self.store)[key_of(text)]
        found = (known.matrix @ vector).tolist()
        return dict(zip((rule.id for rule in known.rules), found, strict=True))

    def _index(self, repo: str | None) -> Index:
        if repo not in self._indexes:
            self._indexes[repo] = self._made(self.rules(repo))
        return self._indexes[repo]

    def _made(self, rules: Iterable[LearnedRule]) -> Index:
        width = len(next(iter(self._vectors.values()))) if self._vectors else 0
        return index(rules, self._vectors, width)
