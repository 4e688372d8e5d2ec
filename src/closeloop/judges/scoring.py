"""From answers to scores: derived, never asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from closeloop.model.evaluation import (
    CRITERIA,
    CheckAnswer,
    Criterion,
    CriterionName,
    Fact,
    Issue,
    Output,
    Rubric,
    RubricCheck,
)
from closeloop.model.record import Record

WORTH = {"yes": 1.0, "partly": 0.5, "no": 0.0}
ANSWERED = 0.5
"""The least share of a criterion's weight that must be answered for it to have a score."""


class Scores(Record):
    """What answers come to."""

    answers: tuple[CheckAnswer, ...]
    criteria: tuple[Criterion, ...]
    score: float | None
    passed: bool | None
    issues: tuple[Issue, ...]
    abstained: str | None = None


def scored(
    said: Sequence[CheckAnswer], rubric: Rubric, output: Output, facts: Sequence[Fact]
) -> Scores:
    """Facts first, then the judge; a criterion that too few checks answer has no score."""
    by_id = {answer.check: answer for answer in said}
    known = {fact.name: fact for fact in facts if fact.verdict is not None}
    counted = [check for check in rubric.checks if is_asked(check, output)]
    answers = [_answer(check, by_id.get(check.id), known) for check in counted]
    criteria = tuple(_criterion(name, counted, answers) for name in CRITERIA)
    score, passed = overall({one.name: one.score for one in criteria}, rubric)
    issues = [*_issues(counted, answers), *_blocking(facts)]
    if _blocking(facts):
        passed = False
    abstained = None
    if passed is None:
        missing = ", ".join(one.name for one in criteria if one.score is None)
        void = next((f" ({one.check}: {one.void})" for one in answers if one.void), "")
        abstained = f"too few checks of {missing} have an answer that counts{void}"
    return Scores(
        answers=tuple(answers),
        criteria=criteria,
        score=score,
        passed=passed,
        issues=tuple(issues),
        abstained=abstained,
    )


def is_asked(check: RubricCheck, output: Output) -> bool:
    """A check that needs what is not there is no check."""
    return check.needs is None or bool(getattr(output, check.needs))


def overall(
    criteria: dict[CriterionName, float | None], rubric: Rubric
) -> tuple[float | None, bool | None]:
    """The score and whether it passes; None where a criterion has no score."""
    known = {name: score for name, score in criteria.items() if score is not None}
    if len(known) < len(CRITERIA):
        # Under the floor is under the floor, whatever the others would have been.
        failed = any(not reaches(score, rubric.floor) for score in known.values())
        return None, False if failed else None
    weights = {name: rubric.weights.get(name, 1.0) for name in known}
    score = sum(known[name] * weights[name] for name in known) / sum(weights.values())
    return score, reaches(score, rubric.pass_at) and reaches(min(known.values()), rubric.floor)


def reaches(score: float, bar: float) -> bool:
    """Sums of tenths miss a threshold by the last bit."""
    return score >= bar - 1e-9


def _answer(check: RubricCheck, answer: CheckAnswer | None, facts: dict[str, Fact]) -> CheckAnswer:
    found = answer or CheckAnswer(
        check=check.id, criterion=check.criterion, verdict=None, void="no answer came"
    )
    fact = facts.get(check.fact or "")
    if fact is None:
        return found
    return CheckAnswer(
        check=check.id,
        criterion=check.criterion,
        verdict=fact.verdict,
        evidence=(fact.text,),
        reasoning=fact.text,
        source="fact",
    )


def _criterion(
    name: CriterionName, checks: Sequence[RubricCheck], answers: Sequence[CheckAnswer]
) -> Criterion:
    pairs = [
        (check.weight, answer.verdict)
        for check, answer in zip(checks, answers, strict=True)
        if check.criterion == name
    ]
    told = [(weight, WORTH[verdict]) for weight, verdict in pairs if verdict is not None]
    answered = sum(weight for weight, _ in told)
    if not told or answered < ANSWERED * sum(weight for weight, _ in pairs):
        return Criterion(name=name, score=None)
    return Criterion(name=name, score=sum(weight * worth for weight, worth in told) / answered)


def _issues(checks: Sequence[RubricCheck], answers: Iterable[CheckAnswer]) -> Iterable[Issue]:
    for check, answer in zip(checks, answers, strict=True):
        if answer.verdict in ("partly", "no"):
            anchor = check.no if answer.verdict == "no" else check.partly or check.no
            yield Issue(
                check=check.id,
                criterion=check.criterion,
                text=answer.reasoning or anchor,
                evidence=answer.evidence,
                source=answer.source,
            )


def _blocking(facts: Sequence[Fact]) -> list[Issue]:
    return [
        Issue(check=fact.name, criterion=None, text=fact.text, source="fact")
        for fact in facts
        if fact.blocks and fact.verdict != "yes"
    ]


def nothing_came(facts: Sequence[Fact]) -> Scores:
    """An output without any content needs no judge; facts may say why there is none."""
    text = "Nothing came back for this task."
    return Scores(
        answers=(),
        criteria=tuple(Criterion(name=name, score=0.0) for name in CRITERIA),
        score=0.0,
        passed=False,
        issues=(
            Issue(check="output", criterion=None, text=text, source="fact"),
            *_blocking(facts),
        ),
    )
