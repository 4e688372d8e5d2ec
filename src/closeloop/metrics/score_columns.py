"""Scores: their definitions, input, columns of the attempt table, and scorers."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from msgspec.structs import asdict, replace

from closeloop import plugins
from closeloop.code_digest import digest_code
from closeloop.metrics.attempt_measuring import BATCH_ATTEMPTS, clear_outside_range, given_column
from closeloop.metrics.attempt_table import AttemptTable, MeasuringProgress
from closeloop.metrics.metric_definitions import METRICS, column_values
from closeloop.records.errors import BadInput, Fault, PluginFailed, unknown_name_error
from closeloop.records.estimate import BetterDirection, Metric, MetricKind, Rate, wilson_rate
from closeloop.records.finding import FailureMode, Finding, Rule
from closeloop.records.protocols import ScoredAttempt, Scorer
from closeloop.records.record import Record, Time
from closeloop.records.score import (
    SCORE_SOURCES,
    Score,
    ScoreDefinition,
    ScoreKind,
    ScoreSettings,
    ScoreSource,
    ScoreSummary,
)
from closeloop.records.settings import Settings
from closeloop.store import Store
from closeloop.store.evaluation_section import order_scores
from closeloop.store.metrics_section import AttemptSpan
from closeloop.store.packed_columns import AttemptColumns, RowPlacer, divide_known, find_last_rows
from closeloop.text.wording import count_with_noun, name_score

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# Which scores exist and what they mean: built in, declared by the project, by plug-ins.


METRIC_KINDS: dict[ScoreKind, MetricKind] = {
    "rate": "rate",
    "label": "rate",
    "ordinal": "mean",
    "count": "mean",
    "amount": "median",
}
"""How the scores of many attempts are aggregated."""
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
"""Largest number of a score: beyond it sums are no longer exact."""
YES_NO_VALUES = {"yes": 1.0, "true": 1.0, "partly": 0.5, "no": 0.0, "false": 0.0}
# fmt: off
_GIVEN_ROWS: tuple[tuple[str, BetterDirection, str], ...] = (
    ("would-merge", "more", "Whether the change would be merged as it is."),
    ("scope-contained", "more", "Whether the change is contained in the intended scope."),
    ("outside-scope-right", "more",
     "Whether files outside the scope were changed correctly, where any were."),
    ("approach", "more", "Whether the change takes the approach that the team would take."),
    ("completeness", "more", "How completely the request is fulfilled."),
    ("quality", "more", "How good the work is."),
    ("relevance", "more", "How well the work keeps to the request."),
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
"""Scores given by reviews and evaluations, or by anybody with `closeloop score`."""


class ScoreCatalogue(Record):
    """All scores that a project knows, by name."""

    definitions: dict[str, ScoreDefinition]
    """Definitions of stored scores: by people, judges, programs and scorers."""
    scorers: dict[str, Scorer] = {}
    """By the name of the score that each computes."""


def build_catalogue(
    declared: Mapping[str, ScoreSettings], scorers: Iterable[Scorer] = ()
) -> ScoreCatalogue:
    """Build the catalogue; BadInput if a name is taken or invalid, or a range is empty."""
    definitions = {definition.name: definition for definition in GIVEN_SCORES}
    by_score: dict[str, Scorer] = {}
    for scorer in scorers:
        for definition in scorer.scores:
            _require_free_name(definition.name, definitions, f"the scorer {scorer.name!r}")
            definitions[definition.name] = _with_range(replace(definition, source="code"))
            by_score[definition.name] = scorer
    for name, settings in declared.items():
        _require_free_name(name, definitions, "[scores] in closeloop.toml")
        definitions[name] = _with_range(ScoreDefinition(name=name, **asdict(settings)))
    return ScoreCatalogue(definitions=definitions, scorers=by_score)


def _require_free_name(
    name: str, definitions: Mapping[str, ScoreDefinition], location: str
) -> None:
    if name != name_score(name) or not name.replace("-", "").isalnum():
        raise BadInput(
            f"{name!r} in {location} is not a valid name for a score: use lower-case words, "
            "such as `well-tested`."
        )
    if name in definitions or name in derived_definitions():
        raise BadInput(f"{location} declares {name!r}, which already exists: choose another name.")


def _with_range(definition: ScoreDefinition) -> ScoreDefinition:
    low, high = definition.low, definition.high
    if definition.kind == "rate":
        low, high = 0.0, 1.0
    elif definition.kind in ("count", "amount"):
        low = 0.0 if low is None else low
    elif definition.kind == "ordinal" and (low is None or high is None):
        raise BadInput(f"The score {definition.name!r} is an ordinal: give its `low` and `high`.")
    if low is not None and high is not None and low >= high:
        raise BadInput(
            f"The range of the score {definition.name!r} is empty: `low` must be less than `high`."
        )
    return replace(definition, low=low, high=high)


def derived_definitions() -> dict[str, ScoreDefinition]:
    """Return the scores that are computed from grades, rules, deliveries and attempts."""
    definitions: dict[str, ScoreDefinition] = {}
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
        definitions.setdefault(metric.score, definition)
    return definitions


def find_source(metric: Metric) -> ScoreSource:
    """Return the source of the score that a metric aggregates."""
    source = METRIC_SOURCES.get(metric.source, metric.source)
    return next(candidate for candidate in SCORE_SOURCES if candidate == source)


def split_source(name: str) -> tuple[ScoreSource | None, str]:
    """Split `judge:would-merge` into source and name; without a prefix, the source is None."""
    first, colon, score_name = name.partition(":")
    for source in SCORE_SOURCES:
        if colon and first == source:
            return source, score_name
    return None, name


def find_definition(name: str, catalogue: ScoreCatalogue) -> ScoreDefinition:
    """Return the definition of a score that may be given; BadInput if it is not declared."""
    if name in catalogue.definitions:
        return catalogue.definitions[name]
    if name in derived_definitions():
        raise BadInput(
            f"{name!r} is computed and cannot be set: declare your own score under "
            "[scores.NAME] in closeloop.toml."
        )
    error = unknown_name_error("score", name, catalogue.definitions, "closeloop score list")
    raise BadInput(f"{error} Declare new scores under [scores.NAME] in closeloop.toml.")


def parse_score(definition: ScoreDefinition, raw_value: object) -> tuple[float | None, str | None]:
    """Parse a given score into value and label; BadInput if it does not fit the score's kind."""
    name = definition.name
    if definition.kind == "label":
        return None, _parse_label(definition, raw_value)
    named_values = YES_NO_VALUES if definition.kind == "rate" else {}
    try:
        value = named_values.get(str(raw_value).strip().lower())
        number = _parse_number(raw_value) if value is None else value
    except (TypeError, ValueError, OverflowError):
        raise BadInput(
            f"{name}={raw_value!r} is not a number: give one {_range_text(definition)}."
        ) from None
    low, high = definition.low, definition.high
    outside = (low is not None and number < low) or (high is not None and number > high)
    if not isfinite(number) or abs(number) > MAX_NUMBER or outside:
        raise BadInput(
            f"{name}={raw_value} is out of range: give a number {_range_text(definition)}."
        )
    return number + 0.0, None  # and never minus zero


def _parse_label(definition: ScoreDefinition, raw_value: object) -> str:
    label = raw_value.strip() if isinstance(raw_value, str) else ""
    if not label or (definition.labels and label not in definition.labels):
        expected = f"one of {', '.join(definition.labels)}" if definition.labels else "a word"
        raise BadInput(f"{definition.name}={raw_value!r} is not a valid label: give {expected}.")
    if not label.isprintable() or len(label) > MAX_LABEL_CHARACTERS:
        raise BadInput(
            f"A label of {definition.name} must be one line of up to "
            f"{MAX_LABEL_CHARACTERS} characters."
        )
    return label


def _parse_number(raw_value: object) -> float:
    """Parse a number, but refuse what only Python accepts: `1_0`, non-ASCII digits, booleans."""
    if isinstance(raw_value, bool):
        raise TypeError(raw_value)
    if isinstance(raw_value, str) and ("_" in raw_value or not raw_value.isascii()):
        raise ValueError(raw_value)
    return float(raw_value)  # type: ignore[arg-type]


def _range_text(definition: ScoreDefinition) -> str:
    low, high = definition.low, definition.high
    if low is not None and high is not None:
        return f"from {low:g} to {high:g}"
    end = f"up to {MAX_NUMBER:g}"
    return f"of {low:g} or more, {end}" if low is not None else end


def make_score_metric(
    display_name: str, definition: ScoreDefinition, source: ScoreSource
) -> Metric:
    """Return the metric that aggregates a stored score; for a label, the share of one word."""
    description = definition.says or f"The score {definition.name!r}, which has no description."
    return Metric(
        name=display_name,
        score=display_name,
        family="scores",
        kind=METRIC_KINDS[definition.kind],
        source=source,
        unit=definition.unit,
        better=None if definition.kind == "label" else definition.better,
        low=definition.low,
        high=definition.high,
        says=f"{description} By {source}: the mean of the last scores of an attempt, each task "
        "with equal weight.",
    )


# Scores that people and programs add: typed, in a file, or sent; all of them or none.


MAX_FILE_BYTES = 64 << 20
MAX_NOTE_CHARACTERS = 10_000
MAX_NAME_CHARACTERS = 200
GIVEN_SOURCES: tuple[ScoreSource, ...] = ("person", "judge", "code")
"""Sources that may give scores; those of tests and rules are computed."""


class GivenScore(Record, forbid_unknown_fields=True):
    """One score as received."""

    attempt: str
    name: str
    value: float | str | bool | None
    note: str = ""
    by: str | None = None


class ScoreIntake(Record):
    """Who gives scores, and which may be given."""

    catalogue: ScoreCatalogue
    source: ScoreSource
    by: str
    now: datetime

    def read_rows(
        self, rows: Sequence[GivenScore], store: Store, lines: Sequence[str] = ()
    ) -> list[Score]:
        """Check each row and return scores; BadInput for the first invalid one, with its place."""
        if self.source not in GIVEN_SOURCES:
            raise BadInput(f"Scores of {self.source} are computed: use the source person or code.")
        if not rows:
            raise BadInput("No score was given: write scores as would-merge=yes.")
        self._refuse_forged_judges(rows, store)
        find_id = cache(store.find_attempt_id)
        scores: list[Score] = []
        for row in rows:
            try:
                scores.append(self._read_row(row, find_id))
            except BadInput as error:
                if not lines:
                    raise
                raise BadInput(f"{lines[len(scores)]}: {error} Nothing was saved.") from None
        return scores

    def _refuse_forged_judges(self, rows: Sequence[GivenScore], store: Store) -> None:
        """Refuse scores in the name of closeloop's own judges: only evaluations give them."""
        if self.source == "judge":
            scorer_names = {(row.by or "").strip() or self.by.strip() for row in rows}
            if reserved := scorer_names & {
                version.id for version in store.judged.list_judge_versions()
            }:
                raise BadInput(
                    f"{min(reserved)!r} is a version of a judge of `closeloop judge`: "
                    "only that command sets its scores."
                )

    def _read_row(self, row: GivenScore, find_id: Callable[[str], str]) -> Score:
        definition = find_definition(row.name, self.catalogue)
        if row.name in self.catalogue.scorers:
            raise BadInput(f"{row.name!r} is computed by a scorer and cannot be set.")
        if len(row.note) > MAX_NOTE_CHARACTERS:
            raise BadInput(f"A note has more than {MAX_NOTE_CHARACTERS:,} characters: shorten it.")
        if row.value is None:
            raise BadInput(
                f"{row.name!r} of {row.attempt} has no value: give one, or remove the line."
            )
        value, label = parse_score(definition, row.value)
        scorer_name = (row.by or "").strip() or self.by.strip()
        if (
            not scorer_name
            or not scorer_name.isprintable()
            or len(scorer_name) > MAX_NAME_CHARACTERS
        ):
            raise BadInput(
                f"{scorer_name!r} is not a valid name for a scorer: give one line of text."
            )
        return Score(
            attempt=find_id(row.attempt),
            name=row.name,
            value=value,
            label=label,
            source=self.source,
            version=scorer_name if self.source == "judge" else "",
            by=scorer_name,
            at=self.now,
            note=row.note,
        )


def read_typed_scores(attempt: str, values: Sequence[str], note: str) -> list[GivenScore]:
    """Parse scores typed as `would-merge=yes quality=0.8`."""
    rows = []
    for typed in values:
        name, equals, value = typed.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise BadInput(f"{typed!r} is not a score: write it as would-merge=yes.")
        rows.append(GivenScore(attempt=attempt, name=name.strip(), value=value.strip(), note=note))
    return rows


def read_score_file(file: Path) -> tuple[list[GivenScore], list[str]]:
    """Read CSV with a header, or JSON lines, with the line of each row; `-` is standard input."""
    try:
        content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if str(file) == "-" else _read(file)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text: save it as UTF-8.") from None
    if len(content) > MAX_FILE_BYTES:
        raise BadInput(f"{file} is larger than {MAX_FILE_BYTES >> 20} MB: split it.")
    read_rows = _read_csv if file.suffix.lower() == ".csv" else _read_json_lines
    rows = [(f"{file}, line {line}", row) for line, row in read_rows(text)]
    if not rows:
        raise BadInput(f"{file} has no scores: give each line an attempt, a name and a value.")
    return convert_rows(rows), [line for line, _ in rows]


def convert_rows(rows: Iterable[tuple[str, Any]]) -> list[GivenScore]:
    """Convert mappings, each with its place, to records; BadInput names the place of a bad one."""
    scores = []
    for location, row in rows:
        try:
            scores.append(msgspec.convert(row, GivenScore))
        except msgspec.ValidationError as error:
            raise BadInput(f"{location}: {error}. Nothing was saved.") from None
    return scores


def _read(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(MAX_FILE_BYTES + 1)


def _read_csv(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read CSV strictly: an unclosed quote would swallow all lines after it."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        head = reader.fieldnames or ()
        if len({*head}) < len(head):
            raise BadInput("The header names a column twice. Nothing was saved.")
        for row in reader:
            if None in row:
                raise BadInput(
                    f"Line {reader.line_num} has more fields than the header. Nothing was saved."
                )
            filled = {key: value for key, value in row.items() if value not in (None, "")}
            yield reader.line_num, filled
    except csv.Error as error:
        raise BadInput(
            f"Line {reader.line_num} is not valid CSV: {error}. Nothing was saved."
        ) from None


def _read_json_lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadInput(
                    f"Line {number} is not valid JSON: {error}. Nothing was saved."
                ) from None


# How often rules are right on a team's own work: people's verdicts on findings, as scores.
#
# A reviewer of a finding says whether it is right. That is the score `right-RULE` of the attempt,
# source person: the share of the rule's findings there that they call right. Its note contains the
# verdict on each finding.


FindingVerdict = Literal["right", "wrong"]
VerdictsByEvent = dict[int, FindingVerdict]
"""By the first event that a finding cites; 0 if it cites none."""
_SAID = re.compile(r"#(\d{1,9}) (right|wrong)")


def precision_score_name(rule: str) -> str:
    """Return the score name of a rule, such as `right-spiral`."""
    return f"right-{name_score(rule)}"


def precision_score_settings(rules: Iterable[str]) -> dict[str, ScoreSettings]:
    """Return the scores by which people rate the findings of these rules."""
    return {
        precision_score_name(rule): ScoreSettings(
            kind="rate",
            better="more",
            says=f"Precision of {rule}: the share of its rated findings that are right.",
        )
        for rule in rules
    }


def finding_key(finding: Finding) -> int:
    """Return what distinguishes the findings of one rule in an attempt."""
    return finding.events[0] if finding.events else 0


def read_verdicts(scores: Iterable[Score], person: str) -> dict[str, VerdictsByEvent]:
    """Return, by score, one person's verdicts on findings."""
    return {
        score.name: _parse_note(score.note)
        for score in scores
        if score.source == "person" and score.by == person and score.name.startswith("right-")
    }


def _parse_note(note: str) -> VerdictsByEvent:
    verdicts: VerdictsByEvent = {}
    for number, verdict in _SAID.findall(note):
        verdicts[int(number)] = "right" if verdict == "right" else "wrong"
    return verdicts


class FindingVote(Record):
    """A person's verdict on one finding."""

    attempt: str
    rule: Rule
    event: int
    """Key of the finding, from `finding_key`."""
    verdict: FindingVerdict | None
    """None withdraws this person's earlier verdict."""
    person: str
    at: Time


def save_vote(store: Store, vote: FindingVote) -> VerdictsByEvent:
    """Save a vote as a score; return all this person's verdicts on the rule in that attempt."""
    if not vote.person.strip():
        raise BadInput("A vote needs a name: log in, or set a user name.")
    name = precision_score_name(vote.rule.name)
    earlier = read_verdicts(store.scores.list_scores(vote.attempt), vote.person).get(name, {})
    verdicts: VerdictsByEvent = {
        event: verdict for event, verdict in earlier.items() if event != vote.event
    }
    if vote.verdict is not None:
        verdicts[vote.event] = vote.verdict
    score = Score(
        attempt=vote.attempt,
        name=name,
        value=sum(verdict == "right" for verdict in verdicts.values()) / len(verdicts)
        if verdicts
        else None,
        source="person",
        version=str(vote.rule.version),
        by=vote.person,
        at=vote.at,
        note=", ".join(f"#{number} {verdict}" for number, verdict in sorted(verdicts.items())),
    )
    store.scores.add_scores([score])
    return verdicts


def load_own_precision(store: Store, rules: Mapping[str, Rule]) -> dict[str, Rate]:
    """Return, by rule, the share of rated findings that are right, as the mean over attempts.

    Verdicts on another version of a rule do not count. An attempt counts once: findings of one
    trace are alike, and people who rate the same one are averaged.
    """
    sources_by_score = store.scores.list_sources()
    precision: dict[str, Rate] = {}
    for name, rule in rules.items():
        score = precision_score_name(name)
        if "person" in sources_by_score.get(score, ()):
            shares = _attempt_shares(store, score, str(rule.version))
            if (rate := wilson_rate(sum(shares), len(shares))) is not None:
                precision[name] = rate
    return precision


def _attempt_shares(store: Store, score: str, version: str) -> list[float]:
    import numpy as np

    columns = store.scores.load_score_columns(AttemptSpan(), score, "person", version=version)
    row_by_attempt = {name: row for row, name in enumerate(dict.fromkeys(columns.attempts))}
    attempt_rows = np.array([row_by_attempt[name] for name in columns.attempts], np.intp)
    rows = find_last_rows(attempt_rows, columns.columns["who"])
    # A withdrawn vote has no value.
    rows = rows[np.isfinite(columns.columns["value"][rows])]
    counts = np.bincount(attempt_rows[rows], minlength=len(row_by_attempt))
    sums = np.bincount(
        attempt_rows[rows], columns.columns["value"][rows], minlength=len(row_by_attempt)
    )
    return [float(total / count) for total, count in zip(sums, counts, strict=True) if count]


def project_scores(settings: Settings) -> ScoreCatalogue:
    """Return the project's scores: built in, asked in reviews, declared, and from plug-ins."""
    from closeloop.reviews.review_queue import scored_questions

    questions = {
        name: ScoreSettings(kind="rate", better="more", says=text)
        for name, text in scored_questions(settings.review).items()
    }
    for name in questions.keys() & settings.scores.keys():
        if settings.scores[name].kind != "rate":
            raise BadInput(
                f"closeloop.toml: reviews ask {name!r}, whose answers are a rate: "
                f"declare [scores.{name}] as a rate, or rename it."
            )
    verdicts = precision_score_settings(plugins.installed_plugins("detectors"))
    declared = {**verdicts, **questions, **settings.scores}
    return build_catalogue(declared, plugins.load_plugins("scorers"))


def attach_scores(
    work: AttemptTable,
    store: Store,
    catalogue: ScoreCatalogue,
    names: Sequence[str] | None = None,
    span: AttemptSpan | None = None,
    report_progress: MeasuringProgress = lambda done, of: None,
) -> AttemptTable:
    """Add the scores of these names to the table; None means all that were given.

    If several sources score a name, the first is used; a note names the others.
    """
    sources = store.scores.list_sources()
    score_names = (
        [source for source in sources if source in catalogue.definitions]
        if names is None
        else names
    )
    metrics, columns, notes = dict(work.metrics), work.columns.copy(), [*work.notes]
    placer = RowPlacer(work.attempts)
    for name in score_names:
        shown_name, _, label = name.partition("=")
        source, score = split_source(shown_name)
        if name in metrics or (source is None and is_derived(shown_name)):
            continue
        if score not in catalogue.definitions:
            known_names = [*derived_definitions(), *catalogue.definitions]
            raise unknown_name_error("score", name, known_names, "closeloop score list")
        if scorer := catalogue.scorers.get(score):
            notes += compute_missing_scores(store, scorer, score, work.attempts, report_progress)
            sources.setdefault(score, ["code"])
        known_sources = sources.get(score, ())
        chosen_source = (
            source or next(iter(known_sources), catalogue.definitions[score].source) or "person"
        )
        definition = catalogue.definitions[score]
        if label and definition.labels and label not in definition.labels:
            raise unknown_name_error(f"label of {score}", label, definition.labels)
        loaded = work.columns.get(given_column(score, chosen_source))
        if loaded is not None and definition.kind != "label" and not scorer:
            values = {"": loaded}
        else:
            score_columns = store.scores.load_score_columns(
                span or AttemptSpan(),
                score,
                chosen_source,
                labels=definition.kind == "label",
                version=find_scorer_version(scorer) if scorer and chosen_source == "code" else None,
            )
            if definition.kind != "label" and (
                outside := clear_outside_range(score_columns, definition.low, definition.high)
            ):
                notes.append(
                    f"{count_with_noun(outside, 'score')} of {score} outside its range, "
                    f"{_range_text(definition)}, were left out."
                )
            values, versions_note = _align_scores(
                score_columns, placer, chosen_source, score, label
            )
            notes += versions_note
        for label_name, column in values.items():
            full = f"{shown_name}={label_name}" if label_name else shown_name
            columns[f"score {full}"] = column
            metric = make_score_metric(full, definition, chosen_source)
            metrics[full] = (metric, partial(column_values, f"score {full}"))
        other_sources = [
            known_source for known_source in known_sources if known_source != chosen_source
        ]
        if source is None and other_sources and names is not None:
            commands = " and ".join(f"`--score {other}:{score}`" for other in other_sources)
            notes.append(f"{score} is from {chosen_source}; {commands} shows the other source.")
    return replace(work, metrics=metrics, columns=columns, notes=tuple(dict.fromkeys(notes)))


def is_derived(name: str) -> bool:
    """Whether it is a metric, or a score that a metric aggregates."""
    return name in METRICS or name in derived_definitions()


def find_metric(work: AttemptTable, name: str) -> tuple[Metric, Any]:
    """Find a metric by its name or its score's name, with the values of attempts."""
    if name in work.metrics:
        return work.metrics[name]
    if name in METRICS:
        return METRICS[name]
    for metric, values in METRICS.values():
        if metric.score == name:
            return metric, values
    known_names = [*METRICS, *derived_definitions(), *work.metrics]
    raise unknown_name_error("score", name, known_names, "closeloop score list")


def define_metrics(catalogue: ScoreCatalogue, only: Sequence[str] = ()) -> list[Metric]:
    """Return the definitions of all metrics and of all scores that can be given."""
    definitions = [
        definition
        for definition in catalogue.definitions.values()
        if not is_derived(definition.name)
    ]
    given_metrics = [
        make_score_metric(definition.name, definition, definition.source or "person")
        for definition in definitions
    ]
    return _choose_metrics([*(metric for metric, _ in METRICS.values()), *given_metrics], only)


def select_metrics(work: AttemptTable, only: Sequence[str] = ()) -> list[Metric]:
    """Return the loaded metrics: all, or those named by metric or score."""
    at_hand = (*METRICS.values(), *work.metrics.values())
    return _choose_metrics([metric for metric, _ in at_hand], only)


def _choose_metrics(metrics: Sequence[Metric], only: Sequence[str]) -> list[Metric]:
    chosen_metrics: dict[str, Metric] = {}
    for name in only:
        matches = [metric for metric in metrics if metric.name == name] or [
            metric for metric in metrics if name in (metric.score, metric.score.partition("=")[0])
        ]
        if not matches:
            known_names = [metric.name for metric in metrics] + [metric.score for metric in metrics]
            raise unknown_name_error("score", name, known_names, "closeloop score list")
        chosen_metrics |= {metric.name: metric for metric in matches}
    return [*chosen_metrics.values()] if only else [*metrics]


def _align_scores(
    score_columns: AttemptColumns, placer: RowPlacer, source: ScoreSource, name: str, label: str
) -> tuple[dict[str, Array], list[str]]:
    """Return each attempt's mean of last scores; for a label, a column for each word.

    Judges of different versions are never averaged: only the newest counts.
    """
    import numpy as np

    attempt_rows = placer.find_places(score_columns)
    rows = find_last_rows(
        attempt_rows, *(() if source == "code" else (score_columns.columns["who"],))
    )
    notes = []
    if source == "judge" and len(rows):
        versions = score_columns.columns["version"]
        is_newest = versions.codes[rows] == versions.codes[rows[-1]]
        if older := int((~is_newest).sum()):
            count = count_with_noun(older, "score")
            notes.append(f"{count} of {name} by other versions of the judge were excluded.")
        rows = rows[is_newest]
    if "value" in score_columns.columns:
        return {
            "": _mean_by_place(
                attempt_rows[rows], score_columns.columns["value"][rows], placer.size
            )
        }, notes
    labels = score_columns.columns["label"][rows]
    # A score without values has a column too: its name is known.
    label_names = [label] if label else sorted({*labels.tolist()} - {None}) or [""]
    return {
        label_name: _mean_by_place(
            attempt_rows[rows],
            np.where(labels.known(), labels.are((label_name,)), np.nan),
            placer.size,
        )
        for label_name in label_names
    }, notes


def _mean_by_place(positions: Array, values: Array, rows: int) -> Array:
    import numpy as np

    is_known = np.isfinite(values)
    counts = np.bincount(positions[is_known], minlength=rows)
    return divide_known(np.bincount(positions[is_known], values[is_known], minlength=rows), counts)


def load_attempt_scores(
    work: AttemptTable, names: Sequence[str]
) -> tuple[dict[str, Metric], dict[str, dict[str, float]]]:
    """Return the metric of each score, and by attempt the known values."""
    metrics: dict[str, Metric] = {}
    by_attempt: dict[str, dict[str, float]] = {}
    for name in names:
        metric, values = find_metric(work, name)
        metrics[name] = metric
        for attempt, value in zip(work.attempts, values(work.columns).tolist(), strict=True):
            if value == value:  # noqa: PLR0124 - not NaN
                by_attempt.setdefault(attempt, {})[name] = value
    return metrics, by_attempt


class ScoreCell(Record):
    """One score of one attempt, as a list shows it."""

    value: float | None = None
    """Mean of each scorer's last value; None if there is none."""
    labels: tuple[str, ...] = ()
    """For a label score, the labels that were given."""


def list_score_cells(work: AttemptTable, names: Sequence[str]) -> dict[str, tuple[ScoreCell, ...]]:
    """Return, by attempt, a cell for each of these scores, which must be loaded."""
    columns = [_score_cells(work, name) for name in names]
    return dict(zip(work.attempts, zip(*columns, strict=True), strict=True))


def _score_cells(work: AttemptTable, name: str) -> list[ScoreCell]:
    """Return one cell per attempt; for labels, those that were given."""
    values_by_label = {
        full.removeprefix(f"{name}="): values(work.columns).tolist()
        for full, (_, values) in work.metrics.items()
        if full.startswith(f"{name}=")
    }
    if values_by_label:
        return [
            ScoreCell(
                labels=tuple(label for label in values_by_label if values_by_label[label][row] > 0)
            )
            for row in range(len(work))
        ]
    values = find_metric(work, name)[1](work.columns).tolist()
    return [ScoreCell(value=value if isfinite(value) else None) for value in values]


# Scorers: a team's own code, run once on each attempt and again when the code changes.


def find_scorer_version(scorer: Scorer) -> str:
    """Return the digest of its code: scores by another version no longer count."""
    return digest_code(type(scorer).__module__)[:16]


def compute_missing_scores(
    store: Store,
    scorer: Scorer,
    name: str,
    attempts: Sequence[str],
    report_progress: MeasuringProgress = lambda done, of: None,
) -> list[str]:
    """Score attempts that a scorer has not seen; return a note of those it failed on."""
    version = find_scorer_version(scorer)
    scored = store.scores.list_scored_attempts(name, version)
    missing = [attempt for attempt in attempts if attempt not in scored]
    failures: list[str] = []
    for first in range(0, len(missing), BATCH_ATTEMPTS):
        part = missing[first : first + BATCH_ATTEMPTS]
        store.scores.add_scores([*_ask_scorer(store, scorer, version, part, failures)])
        report_progress(first + len(part), len(missing))
    if not failures:
        return []
    count = count_with_noun(len(failures), "attempt")
    return [f"The scorer {scorer.name!r} failed on {count}, which have no score: {failures[0]}"]


def _ask_scorer(
    store: Store, scorer: Scorer, version: str, attempts: Sequence[str], failures: list[str]
) -> Iterator[Score]:
    now = datetime.now(UTC)
    for attempt_id in attempts:
        attempt, trace, change = store.load_attempt_parts(attempt_id)
        scored_attempt = ScoredAttempt(
            attempt=attempt,
            task=store.load_task(attempt.task_digest) if attempt.task_digest else None,
            trace=trace,
            change=change,
            grade=store.load_grade(attempt_id),
        )
        try:
            values = read_scorer_answer(scorer, scorer.score_attempt(scored_attempt))
        except Exception as error:
            reason = error if isinstance(error, Fault | BadInput) else repr(error)
            failures.append(f"{attempt_id}: {reason}")
            continue
        for name, (value, label) in values.items():
            yield Score(
                attempt=attempt_id,
                name=name,
                value=value,
                label=label,
                source="code",
                version=version,
                by=scorer.name,
                at=now,
            )


def read_scorer_answer(
    scorer: Scorer, answer: Mapping[str, float | str | None]
) -> dict[str, tuple[float | None, str | None]]:
    """Return value and label of each declared score; PluginFailed if it returns another."""
    names = {definition.name for definition in scorer.scores}
    if unknown := answer.keys() - names:
        raise PluginFailed(f"it returns {min(unknown)!r}, which it does not declare.")
    return {
        definition.name: (None, None)
        if answer.get(definition.name) is None
        else parse_score(definition, answer[definition.name])
        for definition in scorer.scores
    }


def summarise_scores(
    work: AttemptTable, store: Store, catalogue: ScoreCatalogue
) -> list[ScoreSummary]:
    """Summarise every score known of some attempt: definition, source and coverage."""
    import numpy as np

    summaries = []
    total = len(work)
    for definition in derived_definitions().values():
        _, values = find_metric(work, definition.name)
        count = int(np.isfinite(values(work.columns)).sum()) if total else 0
        if count and definition.source:
            summaries.append(
                ScoreSummary(
                    definition=definition,
                    source=definition.source,
                    attempts=count,
                    coverage=count / total,
                )
            )
    summaries += [
        ScoreSummary(
            definition=given_definition,
            source=score_count.source,
            attempts=score_count.attempts,
            coverage=score_count.attempts / total if total else None,
            last=score_count.last,
        )
        for score_count in store.scores.count_scores(work.attempts)
        if (given_definition := catalogue.definitions.get(score_count.name))
    ]
    return summaries


class ScoreRow(Record):
    """One score as a line of an export."""

    attempt: str
    task: str | None
    variant: str | None
    name: str
    value: float | None
    label: str | None = None
    source: ScoreSource
    version: str = ""
    by: str = ""
    at: Time | None = None
    """None if the score is computed."""
    note: str = ""


def list_score_rows(work: AttemptTable, store: Store) -> Iterator[ScoreRow]:
    """Yield for each attempt the computed scores, then the given ones."""
    derived = [
        (definition, find_metric(work, name)[1](work.columns))
        for name, definition in derived_definitions().items()
    ]
    tasks, digests = work.columns["task"].tolist(), work.columns["variant"].tolist()
    names = {key: variant.name for key, variant in work.variants.items()}
    given_scores = _list_given_scores(store, work.attempts)
    for row, (attempt, scores) in enumerate(zip(work.attempts, given_scores, strict=True)):
        task, variant = tasks[row], names.get(digests[row])
        for definition, values in derived:
            if isfinite(values[row]) and definition.source:
                yield ScoreRow(
                    attempt=attempt,
                    task=task,
                    variant=variant,
                    name=definition.name,
                    value=float(values[row]),
                    source=definition.source,
                )
        for score in scores:
            yield ScoreRow(task=task, variant=variant, **asdict(score))


def _list_given_scores(store: Store, attempts: Sequence[str]) -> Iterator[list[Score]]:
    """Yield the given scores of each attempt; loaded in batches."""
    for first in range(0, len(attempts), BATCH_ATTEMPTS):
        part = attempts[first : first + BATCH_ATTEMPTS]
        by_attempt: dict[str, list[Score]] = {attempt: [] for attempt in part}
        for score in store.scores.list_attempts_scores(part):
            by_attempt[score.attempt].append(score)
        yield from (sorted(scores, key=order_scores) for scores in by_attempt.values())
