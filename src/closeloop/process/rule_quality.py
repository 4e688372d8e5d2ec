"""How often each rule is right, as measured on labelled traces when it was released."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from closeloop.records.rates import Rate, wilson_rate
from closeloop.records.record import Record


class RuleCounts(Record):
    """Cases in which a rule was right, missed what is there, and found what is not there."""

    right: int
    missed: int
    wrong: int
    labelled: int


class MeasuredQuality(Record):
    """The measured quality of all rules, with where it comes from."""

    date: str
    method: str
    rules: dict[str, RuleCounts]


class RuleQuality(Record):
    """How far a rule can be trusted."""

    precision: Rate | None
    """Of what it finds, how much is there; None where it found nothing."""
    recall: Rate | None
    """Of what is there, how much it finds; None where there was nothing."""
    labelled: int
    """Labelled traces that say of this rule whether it should speak."""


@cache
def load_measured_quality() -> MeasuredQuality:
    """The counts that ship with closeloop; `make quality` writes them."""
    text = files(__package__).joinpath("quality.json").read_bytes()
    return msgspec.json.decode(text, type=MeasuredQuality)


def quality_by_rule() -> dict[str, RuleQuality]:
    """By rule; one that was never measured is not there."""
    return {
        name: RuleQuality(
            precision=wilson_rate(counts.right, counts.right + counts.wrong),
            recall=wilson_rate(counts.right, counts.right + counts.missed),
            labelled=counts.labelled,
        )
        for name, counts in load_measured_quality().rules.items()
    }
