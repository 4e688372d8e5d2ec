"""What agents lacked, grouped: "needs to know about the custom linter", seven times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from closeloop.records.insight import Insight
from closeloop.records.record import Record
from closeloop.records.team_rules import InsightTheme
from closeloop.reviews.remark_polarity import compare_remarks
from closeloop.reviews.remark_words import content_words
from closeloop.reviews.rule_search import text_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_POINT_CHARS = 300
MAX_POINTS = 12
"""Of one insight: whoever lists more lists what comes to mind."""
MIN_POINT_WORDS = 2

_POINT = re.compile(r"\n\s*|(?<=[.!?])\s+")
_BULLET = re.compile(r"^(?:[-*+•]|\d+[.)])\s*")
_NOTHING = re.compile(r"^(?:nothing|none|no\b|n/?a\b|everything was|all good)", re.IGNORECASE)


class InsightPoint(Record):
    """One thing that one attempt lacked."""

    text: str
    insight: Insight


def split_points(insights: Iterable[Insight]) -> list[InsightPoint]:
    """What is said in each, point by point; that nothing was missing is no point."""
    points = []
    for insight in insights:
        parts = [_BULLET.sub("", part.strip()) for part in _POINT.split(insight.text)]
        said = [part[:MAX_POINT_CHARS] for part in parts if _is_point(part)]
        points += [InsightPoint(text=text, insight=insight) for text in said[:MAX_POINTS]]
    return points


def _is_point(part: str) -> bool:
    enough = len(content_words(part)) >= MIN_POINT_WORDS
    return enough and not part.endswith(":") and not _NOTHING.match(part)


def group_themes(
    points: Iterable[InsightPoint], vectors: Mapping[str, NDArray[np.float32]], alike: float
) -> list[InsightTheme]:
    """Points of one repository that mostly say the same, the commonest first."""
    import numpy as np

    groups: list[tuple[NDArray[np.float32], list[InsightPoint]]] = []
    for point in sorted(points, key=lambda one: (one.insight.at, one.text)):
        vector = vectors[text_key(point.text)]
        best, most = None, alike
        for place, (centre, members) in enumerate(groups):
            length = float(np.linalg.norm(centre)) or 1.0
            likeness = float(centre @ vector) / length
            same_repo = members[0].insight.repo == point.insight.repo
            if same_repo and likeness >= most and not _is_contrary(point, members):
                best, most = place, likeness
        if best is None:
            groups.append((vector.copy(), [point]))
        else:
            centre, members = groups[best]
            groups[best] = (centre + vector, [*members, point])
    themes = [_build_theme(centre, members, vectors) for centre, members in groups]
    themes.sort(key=lambda theme: (-theme.count, theme.repo or "", -theme.last.timestamp()))
    return [replace(theme, number=number) for number, theme in enumerate(themes, 1)]


def _is_contrary(point: InsightPoint, members: list[InsightPoint]) -> bool:
    return compare_remarks(point.text, members[0].text) == "opposite"


def _build_theme(
    centre: NDArray[np.float32],
    members: list[InsightPoint],
    vectors: Mapping[str, NDArray[np.float32]],
) -> InsightTheme:
    typical = max(members, key=lambda one: float(vectors[text_key(one.text)] @ centre))
    attempts = dict.fromkeys(one.insight.attempt for one in members)
    return InsightTheme(
        number=0,
        text=typical.text,
        repo=members[0].insight.repo,
        count=len(attempts),
        attempts=tuple(attempts),
        texts=tuple(dict.fromkeys(one.text for one in members)),
        first=min(one.insight.at for one in members),
        last=max(one.insight.at for one in members),
    )
