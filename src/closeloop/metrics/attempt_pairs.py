"""Two attempts held against each other: how they ended, what they scored, took and changed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from closeloop.changes.patch_comparison import ComparedFile, compare_changes
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.score_columns import list_score_rows
from closeloop.metrics.score_definitions import ScoreCatalogue, derived_definitions
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import AttemptRow
from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.score import ScoreDefinition, ScoreSource
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.tasks.sealed_tasks import require_unsealed

RATIO_FIELDS = {
    "cost": "cost",
    "time": "seconds",
    "tokens in": "input_tokens",
    "tokens out": "output_tokens",
    "turns": "turns",
}


class ScorePair(Record):
    """One score of both."""

    definition: ScoreDefinition
    source: ScoreSource
    first: float | None
    second: float | None

    @property
    def differs(self) -> bool:
        return self.first != self.second


class AttemptPair(Record):
    """The second attempt held against the first."""

    first: AttemptRow
    second: AttemptRow
    sentence: str
    same_task: bool
    scores: tuple[ScorePair, ...]
    """Those that differ first."""
    ratios: dict[str, float | None]
    """How many times as much the second took; None where either is not known or nothing."""
    files: tuple[ComparedFile, ...]
    """The diff of their diffs."""


def compare_two_attempts(
    store: Store,
    book: Rulebook,
    catalogue: ScoreCatalogue,
    names: Sequence[str],
    *,
    again: bool | None = True,
) -> AttemptPair:
    """Two attempts by their ids or the beginnings of them; BadInput of a held-out task.

    One attempt each shows where they differ, and never which agent is better.
    """
    ids = [store.find_attempt_id(name) for name in names]
    if len(ids) != 2 or ids[0] == ids[1]:
        raise BadInput("Two attempts are compared: name two that differ.")
    rows = [_load_open_row(store, name) for name in ids]
    work = load_attempt_table(store, book, AttemptSpan(attempts=tuple(ids)), again=again)
    values: dict[tuple[str, ScoreSource], dict[str, list[float]]] = {}
    for row in list_score_rows(work, store):
        if row.value is not None:
            by_attempt = values.setdefault((row.name, row.source), {})
            by_attempt.setdefault(row.attempt, []).append(row.value)
    computed = derived_definitions()
    pairs = [
        ScorePair(
            definition=computed.get(name)
            or catalogue.given.get(name)
            or ScoreDefinition(name=name),
            source=source,
            first=fmean(held[ids[0]]) if ids[0] in held else None,
            second=fmean(held[ids[1]]) if ids[1] in held else None,
        )
        for (name, source), held in values.items()
    ]
    changes = [store.load_change(name) or Change() for name in ids]
    return AttemptPair(
        first=rows[0],
        second=rows[1],
        sentence=describe_pair(rows[0], rows[1]),
        same_task=_is_same_task(rows[0], rows[1]),
        scores=tuple(sorted(pairs, key=lambda pair: not pair.differs)),
        ratios={
            name: _divide_known(getattr(rows[1], field), getattr(rows[0], field))
            for name, field in RATIO_FIELDS.items()
        },
        files=compare_changes(changes[0], changes[1]),
    )


def _load_open_row(store: Store, name: str) -> AttemptRow:
    row = store.listing.load_row(name)
    assert row is not None, "an attempt has a row"
    require_unsealed(store.load_task(row.task_digest) if row.task_digest else None)
    return row


def _is_same_task(first: AttemptRow, second: AttemptRow) -> bool:
    return first.task_digest is not None and first.task_digest == second.task_digest


def _divide_known(second: float | None, first: float | None) -> float | None:
    return second / first if first and second else None


OUTCOME_WORDS = {"pass": "passed", "fail": "failed", "unscored": "could not be scored"}


def describe_pair(first: AttemptRow, second: AttemptRow) -> str:
    """What came of both, in one sentence."""
    names = [row.variant_name or row.agent or "an agent" for row in (first, second)]
    if names[0] == names[1]:
        names = [f"{names[0]} ({row.id[:8]})" for row in (first, second)]
    ends = [
        f"{name} {OUTCOME_WORDS.get(row.outcome or '', 'was not graded')}"
        for name, row in zip(names, (first, second), strict=True)
    ]
    where = "On different work"
    if _is_same_task(first, second):
        where = f"On the same task, {first.task},"
    elif first.task and first.task == second.task:
        where = f"On two versions of the task {first.task}"
    return f"{where} {ends[0]} and {ends[1]}."
