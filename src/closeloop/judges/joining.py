"""Several askings as one: samples of one judge have a mean, judges of a panel have votes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from msgspec.structs import replace

from closeloop.judges.scoring import overall
from closeloop.model.evaluation import CRITERIA, Criterion, Evaluation, JudgeVersion, Rubric, Sample
from closeloop.model.record import digest
from closeloop.model.usage import total


def of_samples(samples: Sequence[Evaluation], rubric: Rubric) -> Evaluation:
    """Means of all samples that could be read, their spread, and each as it was."""
    if len(samples) == 1:
        return samples[0]
    told = [one for one in samples if one.score is not None]
    criteria = tuple(
        Criterion(name=name, score=_mean([one.score_of(name) for one in told])) for name in CRITERIA
    )
    score, passed = overall({one.name: one.score for one in criteria}, rubric)
    if 2 * len(told) <= len(samples):
        score, passed = None, None
    if all(one.passed is False for one in samples):
        passed = False
    scores = [one.score for one in told if one.score is not None]
    return replace(
        _joined(samples, passed),
        criteria=criteria,
        score=score,
        spread=stdev(scores) if len(scores) > 1 else None,
    )


def of_panel(votes: Sequence[Evaluation], by: JudgeVersion) -> Evaluation:
    """What more than half of all members say. Their scores are of different judges: no mean."""
    if len(votes) == 1:
        return votes[0]
    passed = next((word for word in (True, False) if 2 * _count(votes, word) > len(votes)), None)
    return replace(_joined(votes, passed), judge=by.id, criteria=(), score=None, spread=None)


def _joined(parts: Sequence[Evaluation], passed: bool | None) -> Evaluation:
    """With the answers of one that says the same, and all votes."""
    chosen = next((one for one in parts if one.passed is passed), parts[0])
    counts = [(word, _count(parts, verdict)) for word, verdict in _WORDS.items()]
    told = ", ".join(f"{count} {word}" for word, count in counts if count)
    return replace(
        chosen,
        id=digest(*(one.id for one in parts))[:16],
        passed=passed,
        abstained=None if passed is not None else f"no majority: {told}",
        samples=tuple(Sample(judge=one.judge, score=one.score, passed=one.passed) for one in parts),
        same_family=_any(one.same_family for one in parts),
        usage=total(one.usage for one in parts),
        seconds=sum(one.seconds for one in parts),
    )


_WORDS = {"pass": True, "fail": False, "abstain": None}


def _count(parts: Sequence[Evaluation], verdict: bool | None) -> int:
    return sum(one.passed is verdict for one in parts)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _any(marks: Iterable[bool | None]) -> bool | None:
    known = [mark for mark in marks if mark is not None]
    return any(known) if known else None
