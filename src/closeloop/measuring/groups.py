"""By what work can be grouped: repository, user, agent, model, prompt, tag, week and more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import isnan
from typing import TYPE_CHECKING, Any

from closeloop.measuring.work import Work
from closeloop.model.errors import unknown

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
    labels: list[list[str]] = []
    for name in by:
        held = DIMENSIONS[name](work)
        if name == "tag":
            tags = [held[place] or (NONE,) for place in places.tolist()]
            repeats = [len(each) for each in tags]
            labels = [
                [each[i] for i, times in enumerate(repeats) for _ in range(times)]
                for each in labels
            ]
            labels.append([tag for each in tags for tag in each])
            places = np.repeat(places, repeats)
        else:
            labels.append([held[place] or NONE for place in places.tolist()])
    keys = list(zip(*labels, strict=True)) if by else [()] * len(places)
    names = sorted(set(keys))
    codes = {key: code for code, key in enumerate(names)}
    return names, places, np.array([codes[key] for key in keys], dtype=np.intp)


def _text(name: str) -> Callable[[Work], Sequence[Any]]:
    return lambda work: work.columns[name].tolist()


def _of_variant(name: str, session: str | None) -> Callable[[Work], Sequence[Any]]:
    """What the variant says; of a session, what its files do."""

    def held(work: Work) -> Sequence[Any]:
        known = {key: getattr(variant, name) for key, variant in work.variants.items()}
        variants = work.columns["variant"].tolist()
        others = work.columns[session].tolist() if session else [None] * len(variants)
        return [known.get(one) or other for one, other in zip(variants, others, strict=True)]

    return held


def _repo(work: Work) -> Sequence[Any]:
    known = {key: task.repo for key, task in work.tasks.items()}
    pairs = zip(work.columns["task_digest"].tolist(), work.columns["repo"].tolist(), strict=True)
    return [known.get(task) or repo for task, repo in pairs]


def _tags(work: Work) -> Sequence[Any]:
    known = {key: tuple(dict.fromkeys(task.tags)) for key, task in work.tasks.items()}
    return [known.get(task, ()) for task in work.columns["task_digest"].tolist()]


def _week(work: Work) -> Sequence[Any]:
    """`2026-W46`, in UTC; each day is looked up once."""
    days: dict[float, str] = {}
    found: list[str | None] = []
    for moment in (work.columns["started"] // DAY).tolist():
        if isnan(moment):
            found.append(None)
            continue
        if moment not in days:
            year, week, _ = datetime.fromtimestamp(moment * 86400, UTC).isocalendar()
            days[moment] = f"{year}-W{week:02}"
        found.append(days[moment])
    return found


DIMENSIONS: dict[str, Callable[[Work], Sequence[Any]]] = {
    "repo": _repo,
    "user": _text("user"),
    "agent": _of_variant("agent", "agent"),
    "model": _of_variant("model", "model"),
    "prompt": _of_variant("prompt", None),
    "variant": _of_variant("name", None),
    "tag": _tags,
    "task": _text("task"),
    "week": _week,
}
