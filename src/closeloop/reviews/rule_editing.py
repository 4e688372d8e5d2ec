"""What people do with rules: look at them, let agents have them, take them back, join them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec.structs import replace

from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.record import content_digest
from closeloop.records.session import LogEvent
from closeloop.records.settings import CheckSettings
from closeloop.records.team_rules import (
    CheckProof,
    RepeatedRemark,
    RepeatState,
    RuleExample,
    RuleState,
    TeamRule,
)
from closeloop.reviews.agent_context import MAX_QUOTE_CHARS
from closeloop.reviews.remark_polarity import (
    build_rule_check,
    comparable_words,
    compare_remarks,
    parse_rule_parts,
)
from closeloop.reviews.rule_index import build_rule
from closeloop.store import Store


def find_rule(store: Store, start: str) -> TeamRule:
    """The rule with this id, or with the only id that begins so."""
    matching_rules = [rule for rule in store.memory.list_rules() if rule.id.startswith(start)]
    if not start or len(matching_rules) != 1:
        if len(matching_rules) > 1:
            raise BadInput(f"{start!r} begins several rules: type more of it.")
        raise unknown_name_error("rule", start, [rule.id for rule in store.memory.list_rules()])
    return matching_rules[0]


def set_rule_state(
    store: Store, rule: TeamRule, state: RuleState, who: str, now: datetime
) -> TeamRule:
    """A rule in another state, by somebody's word."""
    activated = rule.activated or (now if state == "active" else None)
    changed = replace(rule, state=state, since=now, by=who, activated=activated)
    store.memory.save_rule(changed)
    details: dict[str, Any] = {"rule": rule.id, "by": who, "text": rule.text}
    store.events.add([LogEvent(kind=f"rule.{state}", at=now, repo=rule.repo, details=details)])
    return changed


def contrary_rules(store: Store, rule: TeamRule) -> list[TeamRule]:
    """Active rules of the same repository that want the contrary of one."""
    return [
        other
        for other in store.memory.list_rules(repo=rule.repo, state="active")
        if other.id != rule.id and compare_remarks(other.text, rule.text) == "opposite"
    ]


def reword_rule(store: Store, rule: TeamRule, text: str, paths: Sequence[str]) -> TeamRule:
    """The same rule in better words, or for other files."""
    text = _parse_sentence(text) if text else rule.text
    rule_paths = tuple(paths) or rule.paths
    changed = replace(
        rule,
        text=text,
        paths=rule_paths,
        canonical=parse_rule_parts(text) if text != rule.text else rule.canonical,
        # What was proved was proved of other words, or for other files.
        check=rule.check if text == rule.text and rule_paths == rule.paths else None,
    )
    if rule.check is not None and is_written_down(rule):
        changed = replace(changed, check=build_rule_check(rule.id, text, rule_paths))
    store.memory.save_rule(changed)
    return changed


def is_written_down(rule: TeamRule) -> bool:
    """Whether a person wrote a rule down, so that no pull request can prove its check."""
    return bool(rule.examples) and all(one.source == "person" for one in rule.examples)


def add_rule(
    store: Store,
    text: str,
    repo: str | None,
    who: str,
    now: datetime,
    source: Literal["person", "insight"] = "person",
) -> TeamRule:
    """A rule that somebody writes down; agents are told it from now on."""
    text = _parse_sentence(text)
    key = content_digest(source, repo, comparable_words(text))[:16]
    origin = RuleExample(key=key, source=source, text=text, repo=repo, by=who, at=now)
    new_rule = build_rule(text, origin)
    if source == "person":
        new_rule = replace(new_rule, check=build_rule_check(new_rule.id, text, new_rule.paths))
    known = next((rule for rule in store.memory.list_rules() if rule.id == new_rule.id), None)
    return set_rule_state(store, known or new_rule, "active", who, now)


def merge_rules(store: Store, rule: TeamRule, into: TeamRule, who: str, now: datetime) -> None:
    """One rule for two that say the same: its examples go over, and it is retired."""
    if rule.id == into.id:
        raise BadInput("Those are one rule already: name two.")
    if compare_remarks(rule.text, into.text) == "opposite":
        raise BadInput(
            f"{rule.text!r} and {into.text!r} want the contrary: retire the one that does not hold."
        )
    moved = tuple(replace(one, put_by=who) for one in rule.examples)
    store.memory.save_examples(replace(into, examples=moved))
    set_rule_state(store, rule, "retired", who, now)


def decide_repeat(
    store: Store, key: str, state: RepeatState, who: str, rule: str | None = None
) -> list[RepeatedRemark]:
    """Somebody's word on whether a remark restates a rule. `key`: the remark's, or its beginning.

    Confirming takes the named rule, else the likest, makes the remark an example of it, and
    denies the other rules that the remark was like: nobody is asked about those again.
    """
    repeats = [one for one in store.memory.list_repeats() if one.key.startswith(key)]
    if not key or len({one.key for one in repeats}) != 1:
        raise unknown_name_error(
            "remark", key, sorted({one.key for one in store.memory.list_repeats()})[:20]
        )
    named = [one for one in repeats if rule is None or one.rule == rule]
    if not named:
        raise unknown_name_error("rule", rule or "", [one.rule for one in repeats])
    best = max(named, key=lambda one: one.likeness)
    chosen = [best.rule] if state == "confirmed" else [one.rule for one in named]
    decided = [
        replace(one, state=state if one.rule in chosen else "denied", by="person", who=who)
        for one in repeats
        if one.rule in chosen or (state == "confirmed" and one.state == "candidate")
    ]
    decided.sort(key=lambda one: one.rule not in chosen)
    store.memory.save_repeats(decided)
    example = RuleExample(
        key=best.key,
        source="comment",
        text=best.text,
        repo=best.repo,
        pull=best.pull,
        path=best.path,
        at=best.at,
        put_by=who,
        withdrawn=state != "confirmed",
    )
    learned_rule = find_rule(store, best.rule)
    was_put = any(one.key == best.key and one.put_by for one in learned_rule.examples)
    if state == "confirmed" or was_put:
        store.memory.save_examples(replace(learned_rule, examples=(example,)))
    return decided


def list_unconfirmed(store: Store, repo: str | None = None) -> list[RepeatedRemark]:
    """Remarks that somebody should look at, each with the rule it is likest to, newest first."""
    return keep_likest(store.memory.list_repeats(repo=repo))


def leave_out_settled(repeats: Sequence[RepeatedRemark]) -> list[RepeatedRemark]:
    """Without candidates whose remark is known to restate another rule: nothing is to be asked."""
    settled = {one.key for one in repeats if one.state == "confirmed"}
    return [one for one in repeats if one.state != "candidate" or one.key not in settled]


def keep_likest(repeats: Sequence[RepeatedRemark]) -> list[RepeatedRemark]:
    """Of each remark that nobody confirmed the rule it is likest to, the newest remark first."""
    best: dict[str, RepeatedRemark] = {}
    for one in leave_out_settled(repeats):
        known = best.get(one.key)
        if one.state == "candidate" and (known is None or one.likeness > known.likeness):
            best[one.key] = one
    return sorted(best.values(), key=lambda one: one.at, reverse=True)


def keep_proved_check(store: Store, rule: TeamRule, proof: CheckProof) -> TeamRule:
    """A rule with the check that was proved for it; nothing else becomes one."""
    if not proof.proved or proof.check is None:
        raise BadInput(f"No check is kept that is not proved: {proof.why}.")
    changed = replace(rule, check=proof.check)
    store.memory.save_rule(changed)
    return changed


def with_learned_rules(settings: CheckSettings, store: Store, repo: str | None) -> CheckSettings:
    """Settings with the active rules that a program can check beside the project's own."""
    learned = [
        rule.check
        for rule in store.memory.list_rules(repo=repo, state="active")
        if rule.check is not None
    ]
    return replace(settings, rules=(*settings.rules, *learned)) if learned else settings


def _parse_sentence(text: str) -> str:
    line = " ".join(text.split())
    if not comparable_words(line):
        raise BadInput("Say the rule in a sentence.")
    if len(line) > MAX_QUOTE_CHARS:
        raise BadInput(f"A rule has at most {MAX_QUOTE_CHARS} characters: say it shorter.")
    return line
