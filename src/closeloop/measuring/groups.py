"""By what work can be grouped: repository, user, agent, model, prompt, tag, week and more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import isnan
from typing import TYPE_CHECKING, Any

from closeloop.measuring.work import Work
from closeloop.model.addresses import repository_name
from closeloop.model.errors import unknown
from closeloop.store.columns import Texts

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

NONE = "–"
"""Where it is not known."""
DAY = 86_400_000_000


def grouped(work: Work, by: Sequence[str]) -> tuple[list[tuple[str, ...]], Array, Array]:
    """The groups in order; and for each attempt in each of its groups its place, and the group's.

    With several tags, an attempt counts in each of their groups.
    """
    import numpy as np

    for name in by:
        if name not in DIMENSIONS:
            raise unknown("grouping", name, DIMENSIONS)
    places = np.arange(len(work))
    names: list[tuple[str, ...]] = [()]
    groups = np.zeros(len(work), dtype=np.intp)
    for name in by:
        held = DIMENSIONS[name](work)[places]
        if name == "tag":
            each, held = _apart(held)
            places, groups = places[each], groups[each]
        labels = sorted({label or NONE for label in held.labels})
        ranks = {label: rank for rank, label in enumerate(labels)}
        parts = np.array([ranks[label or NONE] for label in held.labels], np.intp)[held.codes]
        there, groups = np.unique(groups * len(labels) + parts, return_inverse=True)
        pairs = (divmod(code, len(labels)) for code in there.tolist())
        names = [(*names[before], labels[own]) for before, own in pairs]
    return names, places, groups


def _apart(several: Texts) -> tuple[Array, Texts]:
    """Of rows with any number of labels: for each label its row, and the label."""
    import numpy as np

    labels = [label or (None,) for label in several.labels]
    counts = np.array([len(each) for each in labels], np.intp)
    rows = np.repeat(np.arange(len(several)), counts[several.codes])
    begun = np.concatenate([[0], np.cumsum(counts)])[several.codes[rows]]
    within = np.arange(len(rows)) - np.searchsorted(rows, rows)
    every = tuple(label for each in labels for label in each)
    return rows, Texts(codes=begun + within, labels=every)


def _text(name: str) -> Callable[[Work], Texts]:
    return lambda work: work.columns[name]


def _of_variant(name: str, session: str | None) -> Callable[[Work], Texts]:
    """What the variant says; of a session, what its files do."""

    def held(work: Work) -> Texts:
        known = {key: getattr(variant, name) or None for key, variant in work.variants.items()}
        said: Texts = work.columns["variant"].translated(known.get)
        return said.otherwise(work.columns[session]) if session else said

    return held


def _repo(work: Work) -> Texts:
    known = {key: task.repo or None for key, task in work.tasks.items()}
    said: Texts = work.columns["task_digest"].translated(known.get)
    held: Texts = said.otherwise(work.columns["repo"])
    # A clone says its address, a pull request only owner and name.
    return held.translated(lambda name: name and repository_name(name))


def _tags(work: Work) -> Texts:
    known = {key: tuple(dict.fromkeys(task.tags)) for key, task in work.tasks.items()}
    said: Texts = work.columns["task_digest"].translated(known.get)
    return said


def _week(work: Work) -> Texts:
    """`2026-W46`, in UTC; each day is looked up once."""
    import numpy as np

    days, codes = np.unique(work.columns["started"] // DAY, return_inverse=True)
    return Texts(codes=codes, labels=tuple(map(_week_of, days.tolist())))


def _week_of(day: float) -> str | None:
    if isnan(day):
        return None
    year, week, _ = datetime.fromtimestamp(day * 86400, UTC).isocalendar()
    return f"{year}-W{week:02}"


DIMENSIONS: dict[str, Callable[[Work], Texts]] = {
    "repo": _repo,
    "user": _text("user"),
    "agent": _of_variant("agent", "agent"),
    "model": _of_variant("model", "model"),
    "prompt": _of_variant("prompt", None),
    "variant": _of_variant("name", None),
    "tag": _tags,
    "task": _text("task"),
    "week": _week,
    "risk": _text("risk"),
    "arm": _text("arm"),
}
