"""Several askings as one: samples of one judge have a mean, judges of a panel have votes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from msgspec.structs import replace

from closeloop.judges.rubric_scoring import combine_criteria
from closeloop.records.evaluation import (
    CRITERIA,
    CriterionScore,
    Evaluation,
    JudgeSample,
    JudgeVersion,
    Rubric,
)
from closeloop.records.record import content_digest
from closeloop.records.usage_totals import sum_usage


def merge_samples(samples: Sequence[Evaluation], rubric: Rubric) -> Evaluation:
    """Means of all samples that could be read, their spread, and each as it was."""
    if len(samples) == 1:
        return samples[0]
    scored_samples = [one for one in samples if one.score is not None]
    criteria = tuple(
        CriterionScore(
            name=name, score=_mean_known([one.criterion_score(name) for one in scored_samples])
        )
        for name in CRITERIA
    )
    score, passed = combine_criteria({one.name: one.score for one in criteria}, rubric)
    if 2 * len(scored_samples) <= len(samples):
        score, passed = None, None
    if all(one.passed is False for one in samples):
        passed = False
    scores = [one.score for one in scored_samples if one.score is not None]
    return replace(
        _merge_evaluations(samples, passed),
        criteria=criteria,
        score=score,
        spread=stdev(scores) if len(scores) > 1 else None,
    )


def merge_panel_votes(votes: Sequence[Evaluation], by: JudgeVersion) -> Evaluation:
    """What more than half of all members say. Their scores are of different judges: no mean."""
    if len(votes) == 1:
        return votes[0]
    passed = next(
        (word for word in (True, False) if 2 * _count_verdicts(votes, word) > len(votes)), None
    )
    return replace(
        _merge_evaluations(votes, passed), judge=by.id, criteria=(), score=None, spread=None
    )


def _merge_evaluations(parts: Sequence[Evaluation], passed: bool | None) -> Evaluation:
    """With the answers of one that says the same, and all votes."""
    chosen = next((one for one in parts if one.passed is passed), parts[0])
    counts = [(word, _count_verdicts(parts, verdict)) for word, verdict in _VERDICT_WORDS.items()]
    vote_counts = ", ".join(f"{count} {word}" for word, count in counts if count)
    return replace(
        chosen,
        id=content_digest(*(one.id for one in parts))[:16],
        passed=passed,
        abstained=None if passed is not None else f"no majority: {vote_counts}",
        samples=tuple(
            JudgeSample(judge=one.judge, score=one.score, passed=one.passed) for one in parts
        ),
        same_family=_any_known(one.same_family for one in parts),
        usage=sum_usage(one.usage for one in parts),
        seconds=sum(one.seconds for one in parts),
    )


_VERDICT_WORDS = {"pass": True, "fail": False, "abstain": None}


def _count_verdicts(parts: Sequence[Evaluation], verdict: bool | None) -> int:
    return sum(one.passed is verdict for one in parts)


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _any_known(marks: Iterable[bool | None]) -> bool | None:
    known = [mark for mark in marks if mark is not None]
    return any(known) if known else None
