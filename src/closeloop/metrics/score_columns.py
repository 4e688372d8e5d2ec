"""Scores of the ledger as columns of the attempts that numbers are about, and scorers at work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from closeloop import plugins
from closeloop.code_digest import digest_code
from closeloop.metrics.attempt_measuring import BATCH_ATTEMPTS
from closeloop.metrics.attempt_table import AttemptTable, MeasuringProgress
from closeloop.metrics.failure_modes import given_column
from closeloop.metrics.metric_definitions import METRICS, column_values
from closeloop.metrics.rule_precision import precision_score_settings
from closeloop.metrics.score_definitions import (
    ScoreCatalogue,
    build_catalogue,
    derived_definitions,
    make_score_metric,
    parse_score,
    split_source,
)
from closeloop.records.errors import BadInput, Fault, PluginFailed, unknown_name_error
from closeloop.records.estimate import Metric
from closeloop.records.protocols import ScoredAttempt, Scorer
from closeloop.records.record import Record, Time
from closeloop.records.score import (
    Score,
    ScoreSettings,
    ScoreSource,
    ScoreSummary,
)
from closeloop.records.settings import Settings
from closeloop.reviews.review_questions import scored_questions
from closeloop.store import Store
from closeloop.store.metrics_section import (
    AttemptColumns,
    AttemptSpan,
    RowPlacer,
    divide_known,
    find_last_rows,
)
from closeloop.store.score_section import order_scores
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


def project_scores(settings: Settings) -> ScoreCatalogue:
    """What a project can score by: built in, asked in reviews, declared, installed as plug-ins."""
    questions = {
        name: ScoreSettings(kind="rate", better="more", says=text)
        for name, text in scored_questions(settings.review).items()
    }
    for name in questions.keys() & settings.scores.keys():
        if settings.scores[name].kind != "rate":
            raise BadInput(
                f"closeloop.toml: reviews ask {name!r}, and their answers are a rate: declare "
                f"[scores.{name}] as one, or rename it."
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
    tell: MeasuringProgress = lambda done, of: None,
) -> AttemptTable:
    """The same attempts with the scores of these names at hand; None is all that were given.

    A name that several sources score is taken from the first of them; a note names the others.
    """
    sources = store.scores.list_sources()
    wanted = [one for one in sources if one in catalogue.given] if names is None else names
    metrics, columns, notes = dict(work.metrics), dict(work.columns), [*work.notes]
    placer = RowPlacer({one: place for place, one in enumerate(work.attempts)})
    for name in wanted:
        shown_name, _, label = name.partition("=")
        source, score = split_source(shown_name)
        if name in metrics or (source is None and is_derived(shown_name)):
            continue
        if score not in catalogue.given:
            known = [*derived_definitions(), *catalogue.given]
            raise unknown_name_error("score", name, known, "closeloop scores")
        if scorer := catalogue.scorers.get(score):
            notes += compute_missing_scores(store, scorer, score, work.attempts, tell)
            sources.setdefault(score, ["code"])
        known_sources = sources.get(score, ())
        chosen = source or next(iter(known_sources), catalogue.given[score].source) or "person"
        definition = catalogue.given[score]
        if label and definition.labels and label not in definition.labels:
            raise unknown_name_error(f"label of {score}", label, definition.labels)
        loaded = work.columns.get(given_column(score, chosen))
        if loaded is not None and definition.kind != "label" and not scorer:
            values = {"": loaded}
        else:
            held = store.scores.load_score_columns(
                span or AttemptSpan(),
                score,
                chosen,
                labels=definition.kind == "label",
                version=find_scorer_version(scorer) if scorer and chosen == "code" else None,
            )
            values, versions_note = _align_scores(held, placer, chosen, score, label)
            notes += versions_note
        for word, column in values.items():
            full = f"{shown_name}={word}" if word else shown_name
            columns[f"score {full}"] = column
            metric = make_score_metric(full, definition, chosen)
            metrics[full] = (metric, partial(column_values, f"score {full}"))
        others = [one for one in known_sources if one != chosen]
        if source is None and others and names is not None:
            beside = " and ".join(f"`--score {one}:{score}`" for one in others)
            notes.append(f"{score} is by {chosen}; {beside} shows the other.")
    return replace(work, metrics=metrics, columns=columns, notes=tuple(dict.fromkeys(notes)))


def is_derived(name: str) -> bool:
    """Whether it is a metric, or a score that one is the aggregate of."""
    return name in METRICS or name in derived_definitions()


def find_metric(work: AttemptTable, name: str) -> tuple[Metric, Any]:
    """A metric by its own name or by its score's, with the values of attempts."""
    if name in work.metrics:
        return work.metrics[name]
    if name in METRICS:
        return METRICS[name]
    for metric, values in METRICS.values():
        if metric.score == name:
            return metric, values
    known = [*METRICS, *derived_definitions(), *work.metrics]
    raise unknown_name_error("score", name, known, "closeloop scores")


def define_metrics(catalogue: ScoreCatalogue, only: Sequence[str] = ()) -> list[Metric]:
    """What each metric and each score that can be given means, whatever is known of it."""
    given = [one for one in catalogue.given.values() if not is_derived(one.name)]
    own = [make_score_metric(one.name, one, one.source or "person") for one in given]
    return _choose_metrics([*(metric for metric, _ in METRICS.values()), *own], only)


def select_metrics(work: AttemptTable, only: Sequence[str] = ()) -> list[Metric]:
    """Those at hand; all, or those named, or those whose score is named."""
    at_hand = (*METRICS.values(), *work.metrics.values())
    return _choose_metrics([metric for metric, _ in at_hand], only)


def _choose_metrics(every: Sequence[Metric], only: Sequence[str]) -> list[Metric]:
    chosen: dict[str, Metric] = {}
    for name in only:
        found = [one for one in every if one.name == name] or [
            one for one in every if name in (one.score, one.score.partition("=")[0])
        ]
        if not found:
            known = [one.name for one in every] + [one.score for one in every]
            raise unknown_name_error("score", name, known, "closeloop scores")
        chosen |= {one.name: one for one in found}
    return [*chosen.values()] if only else [*every]


def _align_scores(
    held: AttemptColumns, placer: RowPlacer, source: ScoreSource, name: str, label: str
) -> tuple[dict[str, Array], list[str]]:
    """Of each attempt the mean of who scored it last; of a label, a column for each word.

    Judges of different versions are never averaged: the newest alone counts.
    """
    import numpy as np

    at = placer.find_places(held)
    rows = find_last_rows(at, *(() if source == "code" else (held.held["who"],)))
    notes = []
    if source == "judge" and len(rows):
        versions = held.held["version"]
        is_newest = versions.codes[rows] == versions.codes[rows[-1]]
        if older := int((~is_newest).sum()):
            count = count_with_noun(older, "score")
            notes.append(f"{count} of {name} by other versions of the judge were left out.")
        rows = rows[is_newest]
    if "value" in held.held:
        return {"": _mean_by_place(at[rows], held.held["value"][rows], placer.size)}, notes
    said = held.held["label"][rows]
    # Of no word at all there is a column, too: nothing is known, and the name is.
    words = [label] if label else sorted({*said.tolist()} - {None}) or [""]
    return {
        word: _mean_by_place(
            at[rows], np.where(said.known(), said.are((word,)), np.nan), placer.size
        )
        for word in words
    }, notes


def _mean_by_place(at: Array, values: Array, rows: int) -> Array:
    import numpy as np

    known = np.isfinite(values)
    counts = np.bincount(at[known], minlength=rows)
    return divide_known(np.bincount(at[known], values[known], minlength=rows), counts)


def load_attempt_scores(
    work: AttemptTable, names: Sequence[str]
) -> tuple[dict[str, Metric], dict[str, dict[str, float]]]:
    """The metric of each score, and by attempt what is known of them."""
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
    """What a list shows of one score of one attempt."""

    value: float | None = None
    """The mean of who scored it last; None where nobody did."""
    labels: tuple[str, ...] = ()
    """Of a score that is a word, the words that were given."""


def list_score_cells(work: AttemptTable, names: Sequence[str]) -> dict[str, tuple[ScoreCell, ...]]:
    """By attempt, a cell for each of the scores, which must be at hand."""
    columns = [_score_cells(work, name) for name in names]
    return dict(zip(work.attempts, zip(*columns, strict=True), strict=True))


def _score_cells(work: AttemptTable, name: str) -> list[ScoreCell]:
    """Of each attempt one; of words, those that somebody gave."""
    words = {
        full.removeprefix(f"{name}="): values(work.columns).tolist()
        for full, (_, values) in work.metrics.items()
        if full.startswith(f"{name}=")
    }
    if words:
        return [
            ScoreCell(labels=tuple(word for word in words if words[word][place] > 0))
            for place in range(len(work))
        ]
    values = find_metric(work, name)[1](work.columns).tolist()
    return [ScoreCell(value=value if isfinite(value) else None) for value in values]


# Scorers: a team's own code, asked once of each attempt and again when the code changes.


def find_scorer_version(scorer: Scorer) -> str:
    """The digest of its code: what another version said counts no longer."""
    return digest_code(type(scorer).__module__)[:16]


def compute_missing_scores(
    store: Store,
    scorer: Scorer,
    name: str,
    attempts: Sequence[str],
    tell: MeasuringProgress = lambda done, of: None,
) -> list[str]:
    """Let a scorer see the attempts that it has not seen; what it failed at is told, not scored."""
    version = find_scorer_version(scorer)
    known = store.scores.list_scored_attempts(name, version)
    missing = [one for one in attempts if one not in known]
    failures: list[str] = []
    for first in range(0, len(missing), BATCH_ATTEMPTS):
        part = missing[first : first + BATCH_ATTEMPTS]
        store.scores.add_scores([*_ask_scorer(store, scorer, version, part, failures)])
        tell(first + len(part), len(missing))
    if not failures:
        return []
    count = count_with_noun(len(failures), "attempt")
    return [f"The scorer {scorer.name!r} failed on {count}, which have no score: {failures[0]}"]


def _ask_scorer(
    store: Store, scorer: Scorer, version: str, attempts: Sequence[str], failures: list[str]
) -> Iterator[Score]:
    now = datetime.now(UTC)
    for one in attempts:
        attempt, trace, change = store.load_attempt_parts(one)
        shown = ScoredAttempt(
            attempt=attempt,
            task=store.load_task(attempt.task_digest) if attempt.task_digest else None,
            trace=trace,
            change=change,
            grade=store.load_grade(one),
        )
        try:
            values = read_scorer_answer(scorer, scorer.score_attempt(shown))
        except Exception as error:
            reason = error if isinstance(error, Fault | BadInput) else repr(error)
            failures.append(f"{one}: {reason}")
            continue
        for name, (value, label) in values.items():
            yield Score(
                attempt=one,
                name=name,
                value=value,
                label=label,
                source="code",
                version=version,
                by=scorer.name,
                at=now,
            )


def read_scorer_answer(
    scorer: Scorer, said: Mapping[str, float | str | None]
) -> dict[str, tuple[float | None, str | None]]:
    """Value and label of each score that it declares; PluginFailed of one that it does not."""
    names = {definition.name for definition in scorer.scores}
    if unknown := said.keys() - names:
        raise PluginFailed(f"it scores {min(unknown)!r}, which it does not declare.")
    return {
        definition.name: (None, None)
        if said.get(definition.name) is None
        else parse_score(definition, said[definition.name])
        for definition in scorer.scores
    }


def summarise_scores(
    work: AttemptTable, store: Store, catalogue: ScoreCatalogue
) -> list[ScoreSummary]:
    """Every score that is known of some attempt: what it means, its source, of how many."""
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
            definition=given,
            source=one.source,
            attempts=one.attempts,
            coverage=one.attempts / total if total else None,
            last=one.last,
        )
        for one in store.scores.count_scores(work.attempts)
        if (given := catalogue.given.get(one.name))
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
    """None of what is computed."""
    note: str = ""


def list_score_rows(work: AttemptTable, store: Store) -> Iterator[ScoreRow]:
    """Of each attempt what is computed, then what was given."""
    derived = [
        (definition, find_metric(work, name)[1](work.columns))
        for name, definition in derived_definitions().items()
    ]
    tasks, digests = work.columns["task"].tolist(), work.columns["variant"].tolist()
    names = {key: variant.name for key, variant in work.variants.items()}
    given = _list_given_scores(store, work.attempts)
    for place, (attempt, scores) in enumerate(zip(work.attempts, given, strict=True)):
        task, variant = tasks[place], names.get(digests[place])
        for definition, values in derived:
            if isfinite(values[place]) and definition.source:
                yield ScoreRow(
                    attempt=attempt,
                    task=task,
                    variant=variant,
                    name=definition.name,
                    value=float(values[place]),
                    source=definition.source,
                )
        for one in scores:
            yield ScoreRow(task=task, variant=variant, **asdict(one))


def _list_given_scores(store: Store, attempts: Sequence[str]) -> Iterator[list[Score]]:
    """Of each attempt what was given, many of them asked for at once."""
    for first in range(0, len(attempts), BATCH_ATTEMPTS):
        part = attempts[first : first + BATCH_ATTEMPTS]
        by_attempt: dict[str, list[Score]] = {one: [] for one in part}
        for score in store.scores.list_attempts_scores(part):
            by_attempt[score.attempt].append(score)
        yield from (sorted(each, key=order_scores) for each in by_attempt.values())
