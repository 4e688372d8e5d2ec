"""How often rules are right on a team's own work: what people say of findings, as scores.

Whoever looks at a finding says whether it is right. That is the score `right-RULE` of the attempt,
source person: the share of the rule's findings there that they call right. Its note keeps what was
said of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from closeloop.records.errors import BadInput
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.finding import Finding, Rule
from closeloop.records.record import Record, Time
from closeloop.records.score import Score, ScoreSettings
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan, find_last_rows
from closeloop.text.wording import name_score

FindingVerdict = Literal["right", "wrong"]
VerdictsByEvent = dict[int, FindingVerdict]
"""By the first event that a finding cites; 0 where it cites none."""
_SAID = re.compile(r"#(\d{1,9}) (right|wrong)")


def precision_score_name(rule: str) -> str:
    """`right-spiral`."""
    return f"right-{name_score(rule)}"


def precision_score_settings(rules: Iterable[str]) -> dict[str, ScoreSettings]:
    """What people may say of the findings of these rules."""
    return {
        precision_score_name(rule): ScoreSettings(
            kind="rate",
            better="more",
            says=f"Of the findings of {rule} that somebody looked at, the share that is right.",
        )
        for rule in rules
    }


def finding_key(finding: Finding) -> int:
    """What tells the findings of one rule in an attempt apart."""
    return finding.events[0] if finding.events else 0


def read_verdicts(scores: Iterable[Score], person: str) -> dict[str, VerdictsByEvent]:
    """By score, what one person said of findings."""
    return {
        one.name: _parse_note(one.note)
        for one in scores
        if one.source == "person" and one.by == person and one.name.startswith("right-")
    }


def _parse_note(note: str) -> VerdictsByEvent:
    said: VerdictsByEvent = {}
    for number, word in _SAID.findall(note):
        said[int(number)] = "right" if word == "right" else "wrong"
    return said


class FindingVote(Record):
    """What a person says of one finding."""

    attempt: str
    rule: Rule
    event: int
    """As `finding_key` has it."""
    verdict: FindingVerdict
    person: str
    at: Time


def save_vote(store: Store, vote: FindingVote) -> VerdictsByEvent:
    """Add it to the ledger; all that this person has said of the rule in that attempt."""
    if not vote.person.strip():
        raise BadInput("Nobody says so: log in, or set a user name.")
    name = precision_score_name(vote.rule.name)
    known = read_verdicts(store.scores.list_scores(vote.attempt), vote.person).get(name, {})
    said: VerdictsByEvent = {**known, vote.event: vote.verdict}
    score = Score(
        attempt=vote.attempt,
        name=name,
        value=sum(word == "right" for word in said.values()) / len(said),
        source="person",
        version=str(vote.rule.version),
        by=vote.person,
        at=vote.at,
        note=", ".join(f"#{number} {word}" for number, word in sorted(said.items())),
    )
    store.scores.add_scores([score])
    return said


def load_own_precision(store: Store, rules: Mapping[str, Rule]) -> dict[str, Rate]:
    """By rule, of the attempts whose findings people looked at, the share that was right.

    What was said of another version of a rule does not count. An attempt counts once: findings of
    one trace are alike, and people who look at the same one are averaged.
    """
    given = store.scores.list_sources()
    precision: dict[str, Rate] = {}
    for name, rule in rules.items():
        score = precision_score_name(name)
        if "person" in given.get(score, ()):
            shares = _attempt_shares(store, score, str(rule.version))
            if (rate := wilson_rate(sum(shares), len(shares))) is not None:
                precision[name] = rate
    return precision


def _attempt_shares(store: Store, score: str, version: str) -> list[float]:
    import numpy as np

    held = store.scores.load_score_columns(AttemptSpan(), score, "person", version=version)
    places = {name: place for place, name in enumerate(dict.fromkeys(held.attempts))}
    at = np.array([places[name] for name in held.attempts], np.intp)
    rows = find_last_rows(at, held.held["who"])
    counts = np.bincount(at[rows], minlength=len(places))
    sums = np.bincount(at[rows], held.held["value"][rows], minlength=len(places))
    return [float(total / count) for total, count in zip(sums, counts, strict=True) if count]
