"""Scores: everything that tests, rules, judges, people and code say of an attempt, in one form."""

from __future__ import annotations

from typing import Literal

from closeloop.records.estimate import BetterDirection
from closeloop.records.record import Record, Time

ScoreKind = Literal["rate", "ordinal", "count", "amount", "label"]
"""A rate lies between 0 and 1, an ordinal on a scale, an amount is above zero and has a unit, a
label is one of some words."""
ScoreSource = Literal["tests", "rule", "judge", "person", "code"]
SCORE_SOURCES: tuple[ScoreSource, ...] = ("tests", "rule", "person", "code", "judge")
"""Those whose word is taken before that of the next."""


class ScoreSettings(Record, forbid_unknown_fields=True):
    """What a score means, as `[scores.NAME]` declares it."""

    kind: ScoreKind = "rate"
    unit: str = ""
    low: float | None = None
    high: float | None = None
    """The range; a rate's is 0 to 1, a count's and an amount's begin at 0."""
    better: BetterDirection = None
    """`more` or `less`; without it the score is shown and never decides."""
    labels: tuple[str, ...] = ()
    """The words that a label may be; none named is any."""
    says: str = ""
    """The definition, in a sentence."""


class ScoreDefinition(ScoreSettings):
    """What the scores of one name mean."""

    name: str
    source: ScoreSource | None = None
    """Who gives it; None where several do."""


class Score(Record):
    """One thing that somebody or something said of one attempt."""

    attempt: str
    name: str
    value: float | None = None
    label: str | None = None
    """Of a label the word; both None: whoever was asked has no say."""
    source: ScoreSource
    version: str = ""
    """Of what computed it: the judge's version, the digest of the code."""
    by: str = ""
    """The person, or the scorer's name. A later score of the same one replaces the earlier."""
    at: Time
    note: str = ""


class ScoreSummary(Record):
    """What is known under one name, from one source."""

    definition: ScoreDefinition
    source: ScoreSource
    attempts: int
    """With a score."""
    coverage: float | None = None
    """Of all attempts that count."""
    last: Time | None = None
    """When the last one was given; None of what is computed."""
