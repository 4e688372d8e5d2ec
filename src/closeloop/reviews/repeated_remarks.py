"""Whether a remark restates a rule that was there before the work began."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from msgspec.structs import replace

from closeloop.records.pull_request import Correction
from closeloop.records.record import Record
from closeloop.records.team_rules import ContextRecord, RepeatedRemark, RuleMatch, TeamRule

ModelOpinion = Literal["same", "opposite", "other"]


class RepeatCounts(Record):
    """Remarks on one piece of work that repeat what was known."""

    repeated: int = 0
    unconfirmed: int = 0


def is_worded_remark(one: Correction) -> bool:
    """Whether it is in a person's words; what an edit or a revert says is only its title."""
    return one.kind in ("comment", "note") and bool(one.text.strip())


def first_reported_at(rule: TeamRule) -> datetime:
    """When it was first said."""
    return min((one.at for one in rule.examples), default=rule.since)


def find_repeats(
    remark: Correction,
    near: Iterable[RuleMatch],
    began: datetime,
    encoder: str,
    told: ContextRecord | None,
) -> list[RepeatedRemark]:
    """What a remark repeats, surely or perhaps, of the rules that are older than the work."""
    return [
        RepeatedRemark(
            key=remark.id,
            rule=one.rule.id,
            repo=remark.repo,
            pull=remark.pull,
            attempt=remark.attempt,
            text=remark.text,
            path=remark.path,
            at=remark.at,
            likeness=round(one.likeness, 4),
            encoder=encoder,
            state="confirmed" if one.exact else "candidate",
            by="words" if one.exact else None,
            rule_age=(remark.at - first_reported_at(one.rule)).total_seconds(),
            offered=None if told is None else one.rule.id in told.rules,
        )
        for one in near
        if one.rule.state == "active" and first_reported_at(one.rule) < began
    ]


def apply_opinion(found: RepeatedRemark, near: RuleMatch, opinion: ModelOpinion) -> RepeatedRemark:
    """What a model's word changes: it denies, and confirms only where the words bear it out."""
    found = replace(found, opinion=opinion)
    if found.state != "candidate":
        return found
    if opinion != "same":
        return replace(found, state="denied", by="model")
    return replace(found, state="confirmed", by="model") if near.relation == "same" else found


def select_new_repeats(
    new: Sequence[RepeatedRemark], known: Sequence[RepeatedRemark]
) -> list[RepeatedRemark]:
    """What is not known yet, is surer now, or was put into other words.

    What a person said stays, and what a model said of these words.
    """
    known_by_key = {(one.key, one.rule): one for one in known}
    return [
        one
        for one in new
        if (before := known_by_key.get((one.key, one.rule))) is None
        or (before.by is None and one.state != before.state)
        or (before.by != "person" and one.text != before.text)
    ]


def withdraw_repeats(
    remark: Correction, near: Iterable[RuleMatch], known: Iterable[RepeatedRemark]
) -> list[RepeatedRemark]:
    """What a remark repeated in older words, whoever confirmed it, and does not in these."""
    still = {one.rule.id for one in near}
    return [
        replace(one, text=remark.text, state="denied", by="words", who=None, opinion=None)
        for one in known
        if one.key == remark.id
        and one.text != remark.text
        and one.state != "denied"
        and one.rule not in still
    ]


def count_repeats(found: Iterable[RepeatedRemark]) -> RepeatCounts:
    """Each remark once: confirmed when it surely repeats a rule, unconfirmed when it may."""
    states: dict[str, set[str]] = {}
    for one in found:
        states.setdefault(one.key, set()).add(one.state)
    sure = sum("confirmed" in each for each in states.values())
    perhaps = sum("confirmed" not in each and "candidate" in each for each in states.values())
    return RepeatCounts(repeated=sure, unconfirmed=perhaps)
