"""By what attempts can be grouped: repository, agent, prompt, week, size of context and more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import isnan
from typing import TYPE_CHECKING, Any

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.records.errors import unknown_name_error
from closeloop.store.metrics_section import TextColumn
from closeloop.text.wording import natural_order, repository_name

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

UNKNOWN_LABEL = "–"
"""Where it is not known."""
DAY_MICROSECONDS = 86_400_000_000


def group_attempts(
    work: AttemptTable, by: Sequence[str]
) -> tuple[list[tuple[str, ...]], Array, Array]:
    """The groups in order; and for each attempt in each of its groups its place, and the group's.

    With several tags or arms, an attempt counts in each of their groups.
    """
    import numpy as np

    for name in by:
        if name not in DIMENSIONS:
            raise unknown_name_error("grouping", name, DIMENSIONS)
    places = np.arange(len(work))
    names: list[tuple[str, ...]] = [()]
    groups = np.zeros(len(work), dtype=np.intp)
    for name in by:
        dimension = DIMENSIONS[name](work)[places]
        if name in ("tag", "arm"):
            rows, dimension = _split_labels(dimension)
            places, groups = places[rows], groups[rows]
        labels = sorted({label or UNKNOWN_LABEL for label in dimension.labels}, key=order_label)
        ranks = {label: rank for rank, label in enumerate(labels)}
        parts = np.array([ranks[label or UNKNOWN_LABEL] for label in dimension.labels], np.intp)[
            dimension.codes
        ]
        present_codes, groups = np.unique(groups * len(labels) + parts, return_inverse=True)
        pairs = (divmod(code, len(labels)) for code in present_codes.tolist())
        names = [(*names[before], labels[own]) for before, own in pairs]
    return names, places, groups


def _split_labels(several: TextColumn) -> tuple[Array, TextColumn]:
    """Of rows with any number of labels: for each label its row, and the label."""
    import numpy as np

    labels = [label or (None,) for label in several.labels]
    counts = np.array([len(each) for each in labels], np.intp)
    rows = np.repeat(np.arange(len(several)), counts[several.codes])
    first_codes = np.concatenate([[0], np.cumsum(counts)])[several.codes[rows]]
    within = np.arange(len(rows)) - np.searchsorted(rows, rows)
    flat_labels = tuple(label for each in labels for label in each)
    return rows, TextColumn(codes=first_codes + within, labels=flat_labels)


def _column_dimension(name: str) -> Callable[[AttemptTable], TextColumn]:
    return lambda work: work.columns[name]


def _variant_dimension(name: str, session: str | None) -> Callable[[AttemptTable], TextColumn]:
    """What the variant says; of a session, what its files do."""

    def held(work: AttemptTable) -> TextColumn:
        known = {key: getattr(variant, name) or None for key, variant in work.variants.items()}
        said: TextColumn = work.columns["variant"].translated(known.get)
        return said.otherwise(work.columns[session]) if session else said

    return held


def _repository_labels(work: AttemptTable) -> TextColumn:
    known = {key: task.repo or None for key, task in work.tasks.items()}
    task_repos: TextColumn = work.columns["task_digest"].translated(known.get)
    repos: TextColumn = task_repos.otherwise(work.columns["repo"])
    # A clone says its address, a pull request only owner and name.
    return repos.translated(lambda name: name and repository_name(name))


def _tag_labels(work: AttemptTable) -> TextColumn:
    known = {key: tuple(dict.fromkeys(task.tags)) for key, task in work.tasks.items()}
    tags: TextColumn = work.columns["task_digest"].translated(known.get)
    return tags


def _week_labels(work: AttemptTable) -> TextColumn:
    """`2026-W46`, in UTC; each day is looked up once."""
    import numpy as np

    days, codes = np.unique(work.columns["started"] // DAY_MICROSECONDS, return_inverse=True)
    return TextColumn(codes=codes, labels=tuple(map(_iso_week, days.tolist())))


CONTEXT_BOUNDS = (8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000)
CONTEXT_BANDS = (
    "under 8k",
    *(f"{low // 1000}k–{high // 1000}k" for low, high in pairwise(CONTEXT_BOUNDS)),
    "512k and over",
)
"""Tokens that the largest turn of a session had before it."""


def _context_labels(work: AttemptTable) -> TextColumn:
    """The band of each session's peak; each number is looked up once."""
    import numpy as np

    peaks, codes = np.unique(work.columns["context_tokens"], return_inverse=True)
    bands = [
        None if isnan(peak) else CONTEXT_BANDS[bisect_right(CONTEXT_BOUNDS, peak)]
        for peak in peaks.tolist()
    ]
    return TextColumn(codes=codes, labels=tuple(bands))


def order_label(label: str) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Bands by what they hold, all else by name."""
    place = CONTEXT_BANDS.index(label) if label in CONTEXT_BANDS else -1
    return place, natural_order(label)


def _iso_week(day: float) -> str | None:
    if isnan(day):
        return None
    year, week, _ = datetime.fromtimestamp(day * 86400, UTC).isocalendar()
    return f"{year}-W{week:02}"


DIMENSIONS: dict[str, Callable[[AttemptTable], TextColumn]] = {
    "repo": _repository_labels,
    "user": _column_dimension("user"),
    "agent": _variant_dimension("agent", "agent"),
    "model": _variant_dimension("model", "model"),
    "prompt": _column_dimension("prompt"),
    "variant": _variant_dimension("name", None),
    "tag": _tag_labels,
    "task": _column_dimension("task"),
    "week": _week_labels,
    "risk": _column_dimension("risk"),
    "arm": _column_dimension("arm"),
    "origin": _column_dimension("origin"),
    "context": _context_labels,
}
