"""What people do with rules: look at them, let agents have them, take them back, join them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec.structs import replace

from closeloop.model.errors import BadInput, unknown
from closeloop.model.event import Event
from closeloop.model.memory import Example, LearnedRule, Repeat, RepeatState, RuleState
from closeloop.model.record import digest
from closeloop.model.settings import CheckSettings
from closeloop.reviews.canonical import canonical, check_of
from closeloop.reviews.hydration import LONGEST
from closeloop.reviews.polarity import relation
from closeloop.reviews.rules import written
from closeloop.reviews.words import same_words
from closeloop.store import Store


def find(store: Store, start: str) -> LearnedRule:
    """The rule with this id, or with the only id that begins so."""
    found = [rule for rule in store.memory.rules() if rule.id.startswith(start)]
    if not start or len(found) != 1:
        if len(found) > 1:
            raise BadInput(f"{start!r} begins several rules: type more of it.")
        raise unknown("rule", start, [rule.id for rule in store.memory.rules()])
    return found[0]


def put(store: Store, rule: LearnedRule, state: RuleState, who: str, now: datetime) -> LearnedRule:
    """A rule in another state, by somebody's word."""
    activated = rule.activated or (now if state == "active" else None)
    changed = replace(rule, state=state, since=now, by=who, activated=activated)
    store.memory.save_rule(changed)
    details: dict[str, Any] = {"rule": rule.id, "by": who, "text": rule.text}
    store.events.add([Event(kind=f"rule.{state}", at=now, repo=rule.repo, details=details)])
    return changed


def contraries(store: Store, rule: LearnedRule) -> list[LearnedRule]:
    """Active rules of the same repository that want the contrary of one."""
    return [
        other
        for other in store.memory.rules(repo=rule.repo, state="active")
        if other.id != rule.id and relation(other.text, rule.text) == "opposite"
    ]


def reword(store: Store, rule: LearnedRule, text: str, paths: Sequence[str]) -> LearnedRule:
    """The same rule in better words, or for other files."""
    text = _sentence(text) if text else rule.text
    held = tuple(paths) or rule.paths
    changed = replace(
        rule,
        text=text,
        paths=held,
        canonical=canonical(text) if text != rule.text else rule.canonical,
        check=check_of(rule.id, text, held),
    )
    store.memory.save_rule(changed)
    return changed


def add(
    store: Store,
    text: str,
    repo: str | None,
    who: str,
    now: datetime,
    source: Literal["person", "insight"] = "person",
) -> LearnedRule:
    """A rule that somebody writes down; agents are told it from now on."""
    text = _sentence(text)
    key = digest(source, repo, same_words(text))[:16]
    origin = Example(key=key, source=source, text=text, repo=repo, by=who, at=now)
    made = written(text, origin)
    known = next((rule for rule in store.memory.rules() if rule.id == made.id), None)
    return put(store, known or made, "active", who, now)


def join(store: Store, rule: LearnedRule, into: LearnedRule, who: str, now: datetime) -> None:
    """One rule for two that say the same: its examples go over, and it is retired."""
    if rule.id == into.id:
        raise BadInput("Those are one rule already: name two.")
    if relation(rule.text, into.text) == "opposite":
        raise BadInput(
            f"{rule.text!r} and {into.text!r} want the contrary: retire the one that does not hold."
        )
    store.memory.save_examples(replace(into, examples=rule.examples))
    put(store, rule, "retired", who, now)


def decide(store: Store, key: str, state: RepeatState, who: str) -> list[Repeat]:
    """Somebody's word on whether a remark restates a rule. `key`: the remark's, or its beginning.

    Confirming takes the likest rule, and makes the remark an example of it.
    """
    found = [one for one in store.memory.repeats() if one.key.startswith(key)]
    if not key or len({one.key for one in found}) != 1:
        raise unknown("remark", key, sorted({one.key for one in store.memory.repeats()})[:20])
    best = max(found, key=lambda one: one.likeness)
    chosen = [best] if state == "confirmed" else found
    decided = [replace(one, state=state, by="person", who=who) for one in chosen]
    store.memory.save_repeats(decided)
    if state == "confirmed":
        example = Example(
            key=best.key,
            source="comment",
            text=best.text,
            repo=best.repo,
            pull=best.pull,
            path=best.path,
            at=best.at,
        )
        store.memory.save_examples(replace(find(store, best.rule), examples=(example,)))
    return decided


def checked(settings: CheckSettings, store: Store, repo: str | None) -> CheckSettings:
    """Settings with the active rules that a program can check beside the project's own."""
    learned = [
        rule.check
        for rule in store.memory.rules(repo=repo, state="active")
        if rule.check is not None
    ]
    return replace(settings, rules=(*settings.rules, *learned)) if learned else settings


def _sentence(text: str) -> str:
    line = " ".join(text.split())
    if not same_words(line):
        raise BadInput("Say the rule in a sentence.")
    if len(line) > LONGEST:
        raise BadInput(f"A rule has at most {LONGEST} characters: say it shorter.")
    return line
