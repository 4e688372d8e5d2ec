"""Which scores there are and what they mean: built in, declared by the project, by plug-ins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import get_args

from msgspec.structs import asdict, replace

from closeloop.metrics.metric_definitions import METRICS
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.estimate import BetterDirection, Metric, MetricKind
from closeloop.records.finding import FailureMode
from closeloop.records.protocols import Scorer
from closeloop.records.record import Record
from closeloop.records.score import (
    SCORE_SOURCES,
    ScoreDefinition,
    ScoreKind,
    ScoreSettings,
    ScoreSource,
)
from closeloop.text.wording import name_score

METRIC_KINDS: dict[ScoreKind, MetricKind] = {
    "rate": "rate",
    "label": "rate",
    "ordinal": "mean",
    "count": "mean",
    "amount": "median",
}
"""How the scores of many attempts become one number."""
SCORE_KINDS: dict[MetricKind, ScoreKind] = {
    "rate": "rate",
    "one of k": "rate",
    "all of k": "rate",
    "any of n": "rate",
    "mean": "count",
    "sum": "count",
    "per pass": "count",
    "median": "amount",
}
METRIC_SOURCES: dict[str, ScoreSource] = {
    "grade": "tests",
    "rules": "rule",
    "people": "person",
    "attempt": "code",
}
MAX_LABEL_CHARACTERS = 200
MAX_NUMBER = 1e15
"""Beyond it sums of many are no longer exact, and at last no numbers."""
YES_NO_VALUES = {"yes": 1.0, "true": 1.0, "partly": 0.5, "no": 0.0, "false": 0.0}
# fmt: off
_GIVEN_ROWS: tuple[tuple[str, BetterDirection, str], ...] = (
    ("would-merge", "more", "Whether the change would be merged as it is."),
    ("scope-contained", "more", "Whether the change is contained in the intended scope."),
    ("outside-scope-right", "more",
     "Whether files outside the scope were changed correctly, where any were."),
    ("approach", "more", "Whether it is the approach the team would take."),
    ("completeness", "more", "How far all that was asked for is done."),
    ("quality", "more", "How good the work is that was done."),
    ("relevance", "more", "How far the work keeps to what was asked for."),
    ("judge-score", "more", "The weighted mean of a judge's criteria."),
    *((name_score(mode), "less", f"Whether the attempt shows {mode}.")
      for mode in get_args(FailureMode)),
)
# fmt: on
GIVEN_SCORES = (
    *(
        ScoreDefinition(name=name, kind="rate", low=0, high=1, better=better, says=says)
        for name, better, says in _GIVEN_ROWS
    ),
    ScoreDefinition(
        name="review-seconds",
        kind="amount",
        unit="s",
        low=0,
        better="less",
        says="Seconds that a reviewer spent on the change.",
    ),
)
"""What reviews and evaluations say, and what anybody may say by `closeloop score`."""


class ScoreCatalogue(Record):
    """All scores that a project knows by name."""

    given: dict[str, ScoreDefinition]
    """Those of the ledger: of people, judges, programs and scorers."""
    scorers: dict[str, Scorer] = {}
    """By the name of the score that each computes."""


def build_catalogue(
    declared: Mapping[str, ScoreSettings], scorers: Iterable[Scorer] = ()
) -> ScoreCatalogue:
    """BadInput where a name is taken or cannot be typed, or a range makes no sense."""
    given = {one.name: one for one in GIVEN_SCORES}
    by_score: dict[str, Scorer] = {}
    for scorer in scorers:
        for definition in scorer.scores:
            _require_free_name(definition.name, given, f"the scorer {scorer.name!r}")
            given[definition.name] = _with_range(replace(definition, source="code"))
            by_score[definition.name] = scorer
    for name, settings in declared.items():
        _require_free_name(name, given, "[scores] in closeloop.toml")
        given[name] = _with_range(ScoreDefinition(name=name, **asdict(settings)))
    return ScoreCatalogue(given=given, scorers=by_score)


def _require_free_name(name: str, given: Mapping[str, ScoreDefinition], where: str) -> None:
    if name != name_score(name) or not name.replace("-", "").isalnum():
        raise BadInput(f"{name!r} in {where} is no name of a score: write it like `well-tested`.")
    if name in given or name in derived_definitions():
        raise BadInput(f"{where} declares {name!r}, which is taken: choose another name.")


def _with_range(one: ScoreDefinition) -> ScoreDefinition:
    low, high = one.low, one.high
    if one.kind == "rate":
        low, high = 0.0, 1.0
    elif one.kind in ("count", "amount"):
        low = 0.0 if low is None else low
    elif one.kind == "ordinal" and (low is None or high is None):
        raise BadInput(f"The score {one.name!r} is an ordinal: give its `low` and `high`.")
    if low is not None and high is not None and low >= high:
        raise BadInput(f"The range of the score {one.name!r} is empty: `low` must be under `high`.")
    return replace(one, low=low, high=high)


def derived_definitions() -> dict[str, ScoreDefinition]:
    """The scores that are computed from grades, rules, deliveries and attempts."""
    found: dict[str, ScoreDefinition] = {}
    for metric, _ in METRICS.values():
        kind = SCORE_KINDS[metric.kind]
        share = kind == "rate"
        definition = ScoreDefinition(
            name=metric.score,
            kind=kind,
            source=METRIC_SOURCES[metric.source],
            unit=metric.unit,
            low=0,
            high=1 if share else None,
            better=metric.better,
            says=metric.says,
        )
        found.setdefault(metric.score, definition)
    return found


def find_source(metric: Metric) -> ScoreSource:
    """Who gives the score that a metric is the aggregate of."""
    source = METRIC_SOURCES.get(metric.source, metric.source)
    return next(one for one in SCORE_SOURCES if one == source)


def split_source(name: str) -> tuple[ScoreSource | None, str]:
    """`judge:would-merge` as its source and its name; without one, the source is open."""
    first, colon, rest = name.partition(":")
    for source in SCORE_SOURCES:
        if colon and first == source:
            return source, rest
    return None, name


def find_definition(name: str, catalogue: ScoreCatalogue) -> ScoreDefinition:
    """What may be given under a name; BadInput where nobody declared it."""
    if name in catalogue.given:
        return catalogue.given[name]
    if name in derived_definitions():
        raise BadInput(
            f"{name!r} is computed, and cannot be given: declare a name of your own under "
            "[scores.NAME] in closeloop.toml."
        )
    error = unknown_name_error("score", name, catalogue.given)
    raise BadInput(f"{error} A new one is declared under [scores.NAME] in closeloop.toml.")


def parse_score(definition: ScoreDefinition, written: object) -> tuple[float | None, str | None]:
    """Value and label as somebody gave them; BadInput where they are not of the score's kind."""
    name = definition.name
    if definition.kind == "label":
        return None, _parse_label(definition, written)
    words = YES_NO_VALUES if definition.kind == "rate" else {}
    try:
        value = words.get(str(written).strip().lower())
        number = _parse_number(written) if value is None else value
    except (TypeError, ValueError, OverflowError):
        raise BadInput(
            f"{name}={written!r} is no number: write one {_range_text(definition)}."
        ) from None
    low, high = definition.low, definition.high
    outside = (low is not None and number < low) or (high is not None and number > high)
    if not isfinite(number) or abs(number) > MAX_NUMBER or outside:
        raise BadInput(
            f"{name}={written} is out of range: write a number {_range_text(definition)}."
        )
    return number + 0.0, None  # and never minus zero


def _parse_label(definition: ScoreDefinition, written: object) -> str:
    label = written.strip() if isinstance(written, str) else ""
    if not label or (definition.labels and label not in definition.labels):
        known = f"one of {', '.join(definition.labels)}" if definition.labels else "a word"
        raise BadInput(f"{definition.name}={written!r} is no label: write {known}.")
    if not label.isprintable() or len(label) > MAX_LABEL_CHARACTERS:
        raise BadInput(
            f"A label of {definition.name} is no word: write one line of up to "
            f"{MAX_LABEL_CHARACTERS} characters."
        )
    return label


def _parse_number(written: object) -> float:
    """What Python alone takes for a number is a slip: `1_0`, digits of other scripts, yes or no."""
    if isinstance(written, bool):
        raise TypeError(written)
    if isinstance(written, str) and ("_" in written or not written.isascii()):
        raise ValueError(written)
    return float(written)  # type: ignore[arg-type]


def _range_text(definition: ScoreDefinition) -> str:
    low, high = definition.low, definition.high
    if low is not None and high is not None:
        return f"from {low:g} to {high:g}"
    end = f"up to {MAX_NUMBER:g}"
    return f"of {low:g} or more, {end}" if low is not None else end


def make_score_metric(shown: str, definition: ScoreDefinition, source: ScoreSource) -> Metric:
    """The metric that is the aggregate of a score from the ledger; of a label, of one word."""
    says = definition.says or f"The score {definition.name!r}, as it was given."
    return Metric(
        name=shown,
        score=shown,
        family="scores",
        kind=METRIC_KINDS[definition.kind],
        source=source,
        unit=definition.unit,
        better=None if definition.kind == "label" else definition.better,
        low=definition.low,
        high=definition.high,
        says=f"{says} By {source}: the mean of its last scores of an attempt, tasks weigh equally.",
    )
