"""Which failure modes attempts show, by whatever looked for them: rules, tests, checks, people.

A mode that nothing looked for is unmeasured, and never absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from closeloop.metrics.attempt_values import FAILURE_MODES
from closeloop.records.finding import ModeTag
from closeloop.records.record import Record
from closeloop.records.team_rules import HumanReview
from closeloop.store import Store
from closeloop.store.attempt_rows import join_modes
from closeloop.store.metrics_section import Column, make_text_column
from closeloop.text.wording import truncate_words

MAX_REASON_CHARS = 200


# What people said of attempts and of the pull requests that came of them.


class HumanVerdict(Record):
    """All reviews of one attempt's work together."""

    would_merge: bool
    """Nobody who reviewed it refused."""
    seconds: float | None = None
    """Of all who reviewed it; None where nobody's time is known."""
    tags: tuple[ModeTag, ...] = ()


def load_human_verdicts(
    store: Store, attempts: Collection[str] | None = None
) -> dict[str, HumanVerdict]:
    """By attempt, from the review queue; of all, or of some."""
    done = [one for one in store.reviews.list_reviews() if one.state == "done"]
    pulls = (
        {f"{row.repo}#{row.pull}": row.attempt for row in store.pulls.list_pulls(agent=True)}
        if any("#" in one.item for one in done)
        else {}
    )
    reviews: dict[str, list[HumanReview]] = {}
    for one in done:
        attempt = pulls.get(one.item, one.item)
        if attempt is not None and (attempts is None or attempt in attempts):
            reviews.setdefault(attempt, []).append(one)
    return {attempt: _join_reviews(of) for attempt, of in reviews.items()}


def _join_reviews(reviews: Iterable[HumanReview]) -> HumanVerdict:
    reviews = list(reviews)
    seconds = [one.seconds for one in reviews if one.seconds is not None]
    tags = {
        mode: ModeTag(mode=mode, reason=_review_reason(one), source="person")
        for one in reviews
        for mode in one.tags
    }
    return HumanVerdict(
        would_merge=all(one.merge for one in reviews),
        seconds=sum(seconds) if seconds else None,
        tags=tuple(tags.values()),
    )


def _review_reason(review: HumanReview) -> str:
    notes = truncate_words(review.notes, MAX_REASON_CHARS)
    return f"{review.reviewer} says so" + (f": {notes}" if notes else ".")


def load_human_columns(store: Store, places: Mapping[str, int]) -> dict[str, Column]:
    """What people said, for each attempt in its place."""
    import numpy as np

    verdicts = load_human_verdicts(store)
    merge, seconds = np.full(len(places), np.nan), np.full(len(places), np.nan)
    modes: list[str | None] = [None] * len(places)
    examined: list[str | None] = [None] * len(places)
    every_mode = join_modes((mode, "person") for mode in FAILURE_MODES)
    for attempt, verdict in verdicts.items():
        if (place := places.get(attempt)) is not None:
            merge[place] = verdict.would_merge
            seconds[place] = np.nan if verdict.seconds is None else verdict.seconds
            modes[place] = join_modes((tag.mode, tag.source) for tag in verdict.tags)
            # Who reviews is asked for all five.
            examined[place] = every_mode
    return {
        "would_merge": merge,
        "reviewer_seconds": seconds,
        "said_modes": make_text_column(modes),
        "said_examined": make_text_column(examined),
    }


def load_other_tags(store: Store, attempts: Collection[str]) -> dict[str, tuple[ModeTag, ...]]:
    """By attempt: what people, checks of its change and later reverts say, beside the rules."""
    tags: dict[str, list[ModeTag]] = {}
    for attempt, mode, source in store.numbers.list_checked_modes(attempts):
        reason = f"A {source} of the change says so."
        tags.setdefault(attempt, []).append(ModeTag(mode=mode, reason=reason, source=source))
    for attempt, verdict in load_human_verdicts(store, attempts).items():
        tags.setdefault(attempt, []).extend(verdict.tags)
    for attempt in store.numbers.list_regressed_attempts(attempts):
        reason = "It was taken back or repaired after it was merged."
        tag = ModeTag(mode="silent regression", reason=reason, source="delivery")
        tags.setdefault(attempt, []).append(tag)
    return {attempt: tuple(dict.fromkeys(each)) for attempt, each in tags.items()}
