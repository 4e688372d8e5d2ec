"""Measure stored traces by the project's rules.

What was measured before, by the same rules from the same facts, is not measured again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import msgspec

from closeloop import plugins
from closeloop.metrics.metric_definitions import FAILURE_MODES
from closeloop.process.rulebook import Rulebook, build_rulebook, installed_detectors
from closeloop.records.attempt import Attempt, AttemptRow, Grade, TestRun
from closeloop.records.change import Change, TraceReading
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.experiment_plan import AttemptDetails
from closeloop.records.finding import FailureMode, HandoffFacts, Measurement, ModeSource, ModeTag
from closeloop.records.record import Record, content_digest
from closeloop.records.score import Score, ScoreSource
from closeloop.records.settings import Settings
from closeloop.records.task import Experiment, Task
from closeloop.records.trace import Handoff, Trace
from closeloop.store import Store, schema
from closeloop.store.attempt_rows import join_modes
from closeloop.store.fact_rows import PackedFacts
from closeloop.store.metrics_section import AttemptSpan
from closeloop.store.packed_columns import (
    AttemptColumns,
    Column,
    RowPlacer,
    TextColumn,
    divide_known,
)
from closeloop.store.record_bodies import unpack_record
from closeloop.text.wording import name_score, natural_order, truncate_words

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# What people, judges and a team's own programs report on attempts, beside rules and grade.
#
# Reviews are in the ledger of scores: whether the reviewer would merge, how long the review took,
# and which failure modes it found. Reviewers are asked about all five modes, so none is unexamined;
# a review that a program submits without them has examined none.


Kept = TypeVar("Kept", bound=Record)
VERDICT, SECONDS = "would-merge", "review-seconds"
MODE_NAMES = {name_score(mode): mode for mode in FAILURE_MODES}
GivenSource = Literal["person", "judge", "code"]
GIVING_SOURCES: tuple[GivenSource, ...] = get_args(GivenSource)
LEAST_SHOWN = 0.5
"""Values from here on mean yes."""
MAX_REASON_CHARS = 200


def load_said_columns(store: Store, span: AttemptSpan, placer: RowPlacer) -> dict[str, Column]:
    """Load people's verdict and time and the failure modes of each attempt, as columns.

    Also the scores by people that they come from, each under its `given_column`.
    """
    import numpy as np

    size = placer.size
    unknown = np.broadcast_to(np.nan, size)
    columns: dict[str, Column] = {"would_merge": unknown, "reviewer_seconds": unknown}
    shown_bits, examined_bits = np.zeros((2, size), np.int64)
    score_keys: list[tuple[str, GivenSource]] = [
        (VERDICT, "person"),
        (SECONDS, "person"),
        *_MODE_BITS,
    ]
    sources = store.scores.list_sources()
    for name, source in score_keys:
        if source not in sources.get(name, ()):
            continue
        score_columns = store.scores.load_score_columns(span, name, source)
        clear_outside_range(score_columns, 0.0, None if name == SECONDS else 1.0)
        rows, value = placer.find_newest(score_columns)
        count = np.bincount(rows, minlength=size)
        total = np.bincount(rows, value, minlength=size)
        yes = np.bincount(rows, value >= LEAST_SHOWN, minlength=size)
        if source == "person":  # for other names not every last value counts
            columns[given_column(name, source)] = divide_known(total, count)
        if name == VERDICT:
            columns["would_merge"] = np.where(count > 0, yes == count, np.nan)
        elif name == SECONDS:
            columns["reviewer_seconds"] = np.where(count > 0, total, np.nan)
        else:
            shown_bits |= np.where(yes > 0, _MODE_BITS[name, source], 0)
            examined_bits |= np.where(count > 0, _MODE_BITS[name, source], 0)
    return {
        **columns,
        "said_modes": _name_modes(shown_bits),
        "said_examined": _name_modes(examined_bits),
    }


def clear_outside_range(columns: AttemptColumns, low: float | None, high: float | None) -> int:
    """Replace values outside a score's range by NaN, and count them.

    A program may have written them into the store itself, or the range was redefined.
    """
    import numpy as np

    values = columns.columns["value"]
    outside = (values < (-np.inf if low is None else low)) | (
        values > (np.inf if high is None else high)
    )
    columns.columns["value"] = np.where(outside, np.nan, values)
    return int(outside.sum())


def given_column(name: str, source: ScoreSource) -> str:
    """Return the column of the attempt table for scores of a name and source."""
    return f"given {source}:{name}"


_MODE_BITS: dict[tuple[str, GivenSource], int] = {
    (name, source): 1 << place
    for place, (name, source) in enumerate(product(MODE_NAMES, GIVING_SOURCES))
}


def _name_modes(mode_bits: Array) -> TextColumn:
    """Return each row's modes with their sources, as one text."""
    import numpy as np

    if not mode_bits.any():
        return TextColumn(codes=np.zeros(len(mode_bits), np.int32), labels=(None,))
    kinds, codes = np.unique(mode_bits, return_inverse=True)
    labels = [
        join_modes(
            (MODE_NAMES[name], source) for (name, source), bit in _MODE_BITS.items() if kind & bit
        )
        or None
        for kind in kinds.tolist()
    ]
    return TextColumn(codes=codes, labels=tuple(labels))


# The same for a few attempts, with the reasons.


def load_said_tags(store: Store, attempts: Collection[str]) -> dict[str, tuple[ModeTag, ...]]:
    """Return, by attempt, the modes shown by people, judges, change checks and later reverts."""
    tags: dict[str, list[ModeTag]] = {}
    for attempt, mode, source in store.numbers.list_checked_modes(attempts):
        reason = "From the newest check of the change."
        tags.setdefault(attempt, []).append(ModeTag(mode=mode, reason=reason, source=source))
    scores = store.scores.list_attempts_scores(attempts)
    notes = {(score.attempt, score.by): score.note for score in scores if score.name == VERDICT}
    for score in scores:
        if score.name in MODE_NAMES and score.value is not None and score.value >= LEAST_SHOWN:
            tags.setdefault(score.attempt, []).append(_tag_from_score(score, notes))
    for attempt in store.numbers.list_regressed_attempts(attempts):
        reason = "It was reverted or fixed after it was merged."
        tag = ModeTag(mode="silent regression", reason=reason, source="delivery")
        tags.setdefault(attempt, []).append(tag)
    return {attempt: tuple(attempt_tags) for attempt, attempt_tags in tags.items()}


def _tag_from_score(score: Score, notes: Mapping[tuple[str, str], str]) -> ModeTag:
    note = truncate_words(score.note or notes.get((score.attempt, score.by), ""), MAX_REASON_CHARS)
    source: Any = score.source if score.source in get_args(ModeSource) else "code"
    reason = f"{score.by or score.source} says so" + (f": {note}" if note else ".")
    return ModeTag(mode=MODE_NAMES[score.name], reason=reason, source=source)


KEPT_COLUMNS = tuple(str(column.name) for column in schema.measurements.columns)
"""Columns in the basis: a new one causes attempts to be measured again."""
BATCH_ATTEMPTS = 200
"""Attempts that are looked up and listed together."""
MEASURED_ATTEMPTS = 50
"""Attempts that are measured and saved together: a kill loses no more."""
MIN_PARALLEL_EVENTS = 50_000
"""Fewer are measured before other processes have started."""
MAX_EVENTS_READ_AT_ONCE = 100_000
"""Events of a trace up to which whoever shows it also measures it and recovers its files."""


class MeasuredAttempt(Record):
    """An attempt with its measurement."""

    row: AttemptRow
    measurement: Measurement


def project_rulebook(settings: Settings) -> Rulebook:
    """Return the installed rules with the project's settings."""
    commands = settings.commands
    own_commands = (commands.test, commands.lint, commands.types, commands.build, *commands.others)
    detectors = installed_detectors()
    names = {detector.rule.name for detector in detectors}
    own_silences = [silence for silence in settings.silence if silence.rule in names]
    if len(own_silences) < len(settings.silence):
        # The others are findings of change checks; unknown names are refused here.
        check_rules = {
            rule.name for check in plugins.load_plugins("checks") for rule in check.rules
        }
        own_silences += [
            silence for silence in settings.silence if silence.rule not in names | check_rules
        ]
    rulebook = build_rulebook(
        detectors, settings.rules, own_silences, [command for command in own_commands if command]
    )
    completes = settings.pulls.unreviewed_completes
    return msgspec.structs.replace(rulebook, unreviewed_completes=completes)


def measure_attempts(
    store: Store,
    rows: Sequence[AttemptRow],
    rulebook: Rulebook,
    report_progress: Callable[[int], None] = lambda done: None,
    *,
    jobs: int = 1,
) -> Iterator[MeasuredAttempt]:
    """Yield attempts with their measurements, in the order given; skip those without a trace.

    With several jobs, large amounts are measured in that many processes first.
    """
    rows = [row for row in rows if row.events is not None]
    measured_now: set[str] = set()
    if jobs > 1 and not store.is_read_only:
        bases = {row.id: measurement_basis(row, rulebook) for row in rows}
        measured_ids = store.list_measured(bases)
        new = [row for row in rows if row.id not in measured_ids]
        if sum(row.events or 0 for row in new) >= MIN_PARALLEL_EVENTS:
            measured_now = {row.id for row in new}
            measure_missing(
                store,
                [(row.id, bases[row.id]) for row in new],
                rulebook,
                report_progress,
                jobs=jobs,
            )
    pending_rows = iter(rows)
    while batch := list(islice(pending_rows, BATCH_ATTEMPTS)):
        bases = {row.id: measurement_basis(row, rulebook) for row in batch}
        measurements = store.load_measurements(bases)
        new_bases = [(name, basis) for name, basis in bases.items() if name not in measurements]
        measured_now.update(name for name, _ in new_bases)
        measurements |= measure_missing(store, new_bases, rulebook, report_progress)
        for row in batch:
            if (measurement := measurements.get(row.id)) is not None:
                yield MeasuredAttempt(row=row, measurement=measurement)
        report_progress(sum(row.id not in measured_now for row in batch))


def measure_missing(
    store: Store,
    attempt_bases: Sequence[tuple[str, str]],
    rulebook: Rulebook,
    report_progress: Callable[[int], None] = lambda done: None,
    *,
    jobs: int = 1,
) -> dict[str, Measurement]:
    """Measure and save attempts, each given with its basis; return measurements by attempt.

    Attempts whose trace is not stored are skipped. With several jobs nothing is returned, as it
    may be more than fits in memory.
    """
    batches = [
        attempt_bases[first : first + MEASURED_ATTEMPTS]
        for first in range(0, len(attempt_bases), MEASURED_ATTEMPTS)
    ]
    facts = (store.load_packed_facts([name for name, _ in batch]) for batch in batches)
    work = partial(measure_packed_facts, rulebook=rulebook)
    if jobs > 1:
        from closeloop.traces.session_import import map_in_processes

        advice = "free some memory, and run the same command again; what was measured is saved"
        answers = map_in_processes(work, facts, jobs, [__name__, *_MEASURING_MODULES], advice)
    else:
        answers = map(work, facts)
    saved: dict[str, Measurement] = {}
    for batch, measurements in zip(batches, answers, strict=True):
        measured = [
            (name, basis, measurement)
            for (name, basis), measurement in zip(batch, measurements, strict=True)
            if measurement is not None
        ]
        store.save_measurements(measured)
        if jobs == 1:
            saved |= {name: measurement for name, _, measurement in measured}
        report_progress(len(batch))
    return saved


_MEASURING_MODULES = ("closeloop.process.trace_measurement", "closeloop.process.trace_reading")


def measure_packed_facts(
    batch: Sequence[PackedFacts | None], rulebook: Rulebook
) -> list[Measurement | None]:
    """Measure attempts, also in worker processes; None for those that are not stored."""
    from closeloop.process.trace_measurement import measure_reading

    return [
        measure_reading(unpack_facts(facts).build_reading(rulebook), rulebook) if facts else None
        for facts in batch
    ]


def unpack_facts(packed: PackedFacts) -> AttemptFacts:
    grade = _unpack(packed.grade, Grade)
    if grade is not None:
        grade = msgspec.structs.replace(grade, before=_unpack(packed.before, TestRun))
    return AttemptFacts(
        attempt=unpack_record(packed.attempt, Attempt),
        trace=_unpack(packed.trace, Trace),
        change=_unpack(packed.change, Change),
        task=_unpack(packed.task, Task),
        grade=grade,
    )


def _unpack(body: bytes | None, kind: type[Kept]) -> Kept | None:
    return None if body is None else unpack_record(body, kind)


def add_judge_findings(
    results: Iterable[MeasuredAttempt], store: Store
) -> Iterator[MeasuredAttempt]:
    """Add the findings of models that were asked about traces, after those of the rules."""
    from closeloop.judges.trace_questions import add_answer_findings

    judge_findings = store.judged.positive_answers()
    for result in results:
        measurement = result.measurement
        if answers := judge_findings.get(result.row.id):
            findings = add_answer_findings(measurement.findings, answers)
            measurement = msgspec.structs.replace(measurement, findings=findings)
        yield MeasuredAttempt(row=result.row, measurement=measurement)


def measurement_basis(row: AttemptRow, rulebook: Rulebook) -> str:
    """Return the digest of a measurement's inputs besides the trace: rules, grade and columns."""
    return basis_from_grade((row.grading, row.version, row.outcome), rulebook)


def basis_from_grade(graded: tuple[str | None, int | None, str | None], rulebook: Rulebook) -> str:
    """Return the basis from the grading, its grader's version and the outcome."""
    return content_digest(rulebook.identity, KEPT_COLUMNS, *graded)[:16]


class AttemptFacts(Record):
    """What the rules look at in an attempt."""

    attempt: Attempt
    trace: Trace | None
    change: Change | None
    task: Task | None
    grade: Grade | None

    def build_reading(self, rulebook: Rulebook) -> TraceReading:
        from closeloop.process.trace_reading import build_reading

        return msgspec.structs.replace(
            build_reading(
                self.trace or Trace(reader="none", reader_version=1), rulebook.own_checks
            ),
            attempt=self.attempt,
            task=self.task,
            change=self.change,
            grade=self.grade,
        )

    def measurement_basis(self, rulebook: Rulebook) -> str:
        grade = self.grade
        graded = (grade.grading, grade.version, grade.outcome.result) if grade else (None,) * 3
        return basis_from_grade(graded, rulebook)


def load_attempt_facts(store: Store, name: str) -> AttemptFacts:
    """Load the facts of one attempt, by its id or a prefix of it."""
    attempt, trace, change = store.load_attempt_parts(name)
    return AttemptFacts(
        attempt=attempt,
        trace=trace,
        change=change,
        task=store.load_task(attempt.task_digest) if attempt.task_digest else None,
        grade=store.load_grade(attempt.id),
    )


def load_story(
    store: Store, name: str, rulebook: Rulebook, *, max_events: float = math.inf
) -> AttemptDetails:
    """Load everything about one attempt, by its id or a prefix of it.

    A measurement stored on the same basis is used, else one is made and saved. A trace with more
    than `max_events` is not read by rules: it has a stored measurement, or an empty one.
    """
    facts = load_attempt_facts(store, name)
    attempt, task, trace = facts.attempt, facts.task, facts.trace
    variant = store.load_variant(attempt.variant) if attempt.variant else None
    basis = facts.measurement_basis(rulebook)
    measurement = store.load_measurements({attempt.id: basis}).get(attempt.id)
    handoffs: tuple[HandoffFacts, ...] = ()
    events = trace.events if trace else ()
    if len(events) > max_events:
        measurement = measurement or Measurement(rules="")
    elif measurement is None or any(isinstance(event, Handoff) for event in events):
        from closeloop.process.trace_measurement import list_handoff_facts, measure_reading

        reading = facts.build_reading(rulebook)
        if measurement is None:
            measurement = measure_reading(reading, rulebook)
            if trace is not None:
                store.save_measurements([(attempt.id, basis, measurement)])
        handoffs = list_handoff_facts(reading, task.facts if task else ())
    return AttemptDetails(
        attempt=attempt,
        task=task,
        variant=variant,
        trace=trace,
        change=facts.change,
        grade=facts.grade,
        session=store.load_session(attempt.id),
        measurement=_add_said_modes(store, attempt.id, measurement),
        handoffs=handoffs,
        replay_of=variant.replay_of if variant else None,
        is_control=variant is not None and variant.is_control,
        insights=tuple(store.experiments.list_insights(attempt=attempt.id)),
        scores=tuple(store.scores.list_scores(attempt.id)),
    )


def collect_modes(
    store: Store, rows: Sequence[AttemptRow], rulebook: Rulebook
) -> dict[str, tuple[FailureMode, ...]]:
    """Return, by attempt, every failure mode it shows, from any source; omits those with none."""
    said_tags = load_said_tags(store, [row.id for row in rows])
    tags = {
        attempt.row.id: attempt.measurement.modes
        for attempt in measure_attempts(store, rows, rulebook)
        if attempt.measurement.modes
    }
    return {
        name: tuple(
            dict.fromkeys(tag.mode for tag in (*tags.get(name, ()), *said_tags.get(name, ())))
        )
        for name in (*tags, *(said_tags.keys() - tags.keys()))
    }


def collect_task_modes(
    store: Store, digests: Sequence[str], rulebook: Rulebook
) -> dict[str, tuple[FailureMode, ...]]:
    """Return, by task, every failure mode that attempts at it have shown."""
    rows = store.list_attempts(task_digests=digests)
    by_attempt = collect_modes(store, rows, rulebook)
    modes: dict[str, dict[FailureMode, None]] = {}
    for row in rows:
        modes.setdefault(row.task_digest or "", {}).update(
            dict.fromkeys(by_attempt.get(row.id, ()))
        )
    return {digest: tuple(task_modes) for digest, task_modes in modes.items()}


def _add_said_modes(store: Store, attempt: str, measurement: Measurement) -> Measurement:
    """Add the failure modes shown by people, judges, checks and later reverts."""
    said_tags = load_said_tags(store, [attempt]).get(attempt, ())
    return msgspec.structs.replace(measurement, modes=(*measurement.modes, *said_tags))


def list_experiment_attempts(store: Store, experiment: Experiment) -> list[AttemptRow]:
    """List the attempts that count for an experiment: the last try of each of its slots."""
    rows = store.list_attempts(task_digests=experiment.tasks, variants=experiment.variants)
    last: dict[tuple[str | None, str | None, int], AttemptRow] = {}
    for row in sorted(rows, key=lambda row: row.retry):
        if row.number <= experiment.repeats:
            last[row.task_digest, row.variant, row.number] = row
    return sorted(
        last.values(),
        key=lambda row: (natural_order(row.task or ""), row.variant_name or "", row.number),
    )


def find_experiment(store: Store, name: str | None) -> Experiment:
    """Find the experiment with this id prefix; without a name, the newest that is not held out.

    After a run of held-out tasks, people go on with dev tasks.
    """
    experiments = store.list_experiments()
    if not experiments:
        raise BadInput("There is no experiment yet: `closeloop run` creates one.")
    if name is None:
        sealed = store.held_out.list_sealed_digests()
        return next(
            (experiment for experiment in experiments if not sealed.issuperset(experiment.tasks)),
            experiments[0],
        )
    matches = [experiment for experiment in experiments if experiment.id.startswith(name)]
    if not matches:
        raise unknown_name_error(
            "experiment", name, [experiment.id for experiment in experiments[:10]]
        )
    if len(matches) > 1:
        ids = ", ".join(experiment.id for experiment in matches[:5])
        raise BadInput(f"{name!r} is a prefix of several experiments, {ids}: give more characters.")
    return matches[0]
