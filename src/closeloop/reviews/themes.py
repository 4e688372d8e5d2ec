"""What agents lacked, grouped: "needs to know about the custom linter", seven times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from closeloop.model.insight import Insight
from closeloop.model.memory import Theme
from closeloop.model.record import Record
from closeloop.reviews.polarity import relation
from closeloop.reviews.rules import key_of
from closeloop.reviews.words import content

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LONGEST = 300
MOST_POINTS = 12
"""Of one insight: whoever lists more lists what comes to mind."""
FEWEST_WORDS = 2

_POINT = re.compile(r"\n\s*|(?<=[.!?])\s+")
_BULLET = re.compile(r"^(?:[-*+•]|\d+[.)])\s*")
_NOTHING = re.compile(r"^(?:nothing|none|no\b|n/?a\b|everything was|all good)", re.IGNORECASE)


class Point(Record):
    """One thing that one attempt lacked."""

    text: str
    insight: Insight


def points_of(insights: Iterable[Insight]) -> list[Point]:
    """What is said in each, point by point; that nothing was missing is no point."""
    found = []
    for insight in insights:
        parts = [_BULLET.sub("", part.strip()) for part in _POINT.split(insight.text)]
        said = [part[:LONGEST] for part in parts if _says(part)]
        found += [Point(text=text, insight=insight) for text in said[:MOST_POINTS]]
    return found


def _says(part: str) -> bool:
    enough = len(content(part)) >= FEWEST_WORDS
    return enough and not part.endswith(":") and not _NOTHING.match(part)


def grouped(
    points: Iterable[Point], vectors: Mapping[str, NDArray[np.float32]], alike: float
) -> list[Theme]:
    """Points of one repository that mostly say the same, the commonest first."""
    import numpy as np

    groups: list[tuple[NDArray[np.float32], list[Point]]] = []
    for point in sorted(points, key=lambda one: (one.insight.at, one.text)):
        vector = vectors[key_of(point.text)]
        best, most = None, alike
        for place, (centre, members) in enumerate(groups):
            length = float(np.linalg.norm(centre)) or 1.0
            likeness = float(centre @ vector) / length
            same_repo = members[0].insight.repo == point.insight.repo
            if same_repo and likeness >= most and not _contrary(point, members):
                best, most = place, likeness
        if best is None:
            groups.append((vector.copy(), [point]))
        else:
            centre, members = groups[best]
            groups[best] = (centre + vector, [*members, point])
    themes = [_theme(centre, members, vectors) for centre, members in groups]
    themes.sort(key=lambda theme: (-theme.count, theme.repo or "", -theme.last.timestamp()))
    return [replace(theme, number=number) for number, theme in enumerate(themes, 1)]


def _contrary(point: Point, members: list[Point]) -> bool:
    return relation(point.text, members[0].text) == "opposite"


def _theme(
    centre: NDArray[np.float32],
    members: list[Point],
    vectors: Mapping[str, NDArray[np.float32]],
) -> Theme:
    typical = max(members, key=lambda one: float(vectors[key_of(one.text)] @ centre))
    attempts = dict.fromkeys(one.insight.attempt for one in members)
    return Theme(
        number=0,
        text=typical.text,
        repo=members[0].insight.repo,
        count=len(attempts),
        attempts=tuple(attempts),
        texts=tuple(dict.fromkeys(one.text for one in members)),
        first=min(one.insight.at for one in members),
        last=max(one.insight.at for one in members),
    )
