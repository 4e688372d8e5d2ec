"""From answers to scores: derived, never asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from closeloop.records.evaluation import (
    CRITERIA,
    ComputedFact,
    CriterionName,
    CriterionScore,
    EvaluationIssue,
    Rubric,
    RubricAnswer,
    RubricQuestion,
    TaskOutput,
)
from closeloop.records.record import Record

VERDICT_SCORES = {"yes": 1.0, "partly": 0.5, "no": 0.0}
MIN_ANSWERED_SHARE = 0.5
"""The least share of a criterion's weight that must be answered for it to have a score."""


class CaseScores(Record):
    """What answers come to."""

    answers: tuple[RubricAnswer, ...]
    criteria: tuple[CriterionScore, ...]
    score: float | None
    passed: bool | None
    issues: tuple[EvaluationIssue, ...]
    abstained: str | None = None


def score_answers(
    said: Sequence[RubricAnswer], rubric: Rubric, output: TaskOutput, facts: Sequence[ComputedFact]
) -> CaseScores:
    """Facts first, then the judge; a criterion that too few checks answer has no score."""
    by_id = {answer.check: answer for answer in said}
    facts_by_name = {fact.name: fact for fact in facts if fact.verdict is not None}
    counted = [check for check in rubric.checks if is_applicable(check, output)]
    answers = [_final_answer(check, by_id.get(check.id), facts_by_name) for check in counted]
    criteria = tuple(_score_criterion(name, counted, answers) for name in CRITERIA)
    score, passed = combine_criteria({one.name: one.score for one in criteria}, rubric)
    issues = [*_list_issues(counted, answers), *_blocking_issues(facts)]
    if _blocking_issues(facts):
        passed = False
    abstained = None
    if passed is None:
        missing = ", ".join(one.name for one in criteria if one.score is None)
        void = next((f" ({one.check}: {one.void})" for one in answers if one.void), "")
        abstained = f"too few checks of {missing} have an answer that counts{void}"
    return CaseScores(
        answers=tuple(answers),
        criteria=criteria,
        score=score,
        passed=passed,
        issues=tuple(issues),
        abstained=abstained,
    )


def is_applicable(check: RubricQuestion, output: TaskOutput) -> bool:
    """A check that needs what is not there is no check."""
    return check.needs is None or bool(getattr(output, check.needs))


def combine_criteria(
    criteria: dict[CriterionName, float | None], rubric: Rubric
) -> tuple[float | None, bool | None]:
    """The score and whether it passes; None where a criterion has no score."""
    known = {name: score for name, score in criteria.items() if score is not None}
    if len(known) < len(CRITERIA):
        # Under the floor is under the floor, whatever the others would have been.
        failed = any(not reaches_threshold(score, rubric.floor) for score in known.values())
        return None, False if failed else None
    weights = {name: rubric.weights.get(name, 1.0) for name in known}
    score = sum(known[name] * weights[name] for name in known) / sum(weights.values())
    return score, reaches_threshold(score, rubric.pass_at) and reaches_threshold(
        min(known.values()), rubric.floor
    )


def reaches_threshold(score: float, bar: float) -> bool:
    """Sums of tenths miss a threshold by the last bit."""
    return score >= bar - 1e-9


def _final_answer(
    check: RubricQuestion, answer: RubricAnswer | None, facts: dict[str, ComputedFact]
) -> RubricAnswer:
    judge_answer = answer or RubricAnswer(
        check=check.id, criterion=check.criterion, verdict=None, void="no answer came"
    )
    fact = facts.get(check.fact or "")
    if fact is None:
        return judge_answer
    return RubricAnswer(
        check=check.id,
        criterion=check.criterion,
        verdict=fact.verdict,
        evidence=(fact.text,),
        reasoning=fact.text,
        source="fact",
    )


def _score_criterion(
    name: CriterionName, checks: Sequence[RubricQuestion], answers: Sequence[RubricAnswer]
) -> CriterionScore:
    pairs = [
        (check.weight, answer.verdict)
        for check, answer in zip(checks, answers, strict=True)
        if check.criterion == name
    ]
    weighted_scores = [
        (weight, VERDICT_SCORES[verdict]) for weight, verdict in pairs if verdict is not None
    ]
    answered = sum(weight for weight, _ in weighted_scores)
    if not weighted_scores or answered < MIN_ANSWERED_SHARE * sum(weight for weight, _ in pairs):
        return CriterionScore(name=name, score=None)
    return CriterionScore(
        name=name, score=sum(weight * worth for weight, worth in weighted_scores) / answered
    )


def _list_issues(
    checks: Sequence[RubricQuestion], answers: Iterable[RubricAnswer]
) -> Iterable[EvaluationIssue]:
    for check, answer in zip(checks, answers, strict=True):
        if answer.verdict in ("partly", "no"):
            anchor = check.no if answer.verdict == "no" else check.partly or check.no
            yield EvaluationIssue(
                check=check.id,
                criterion=check.criterion,
                text=answer.reasoning or anchor,
                evidence=answer.evidence,
                source=answer.source,
            )


def _blocking_issues(facts: Sequence[ComputedFact]) -> list[EvaluationIssue]:
    return [
        EvaluationIssue(check=fact.name, criterion=None, text=fact.text, source="fact")
        for fact in facts
        if fact.blocks and fact.verdict != "yes"
    ]


def score_missing_output(facts: Sequence[ComputedFact]) -> CaseScores:
    """An output without any content needs no judge; facts may say why there is none."""
    text = "Nothing came back for this task."
    return CaseScores(
        answers=(),
        criteria=tuple(CriterionScore(name=name, score=0.0) for name in CRITERIA),
        score=0.0,
        passed=False,
        issues=(
            EvaluationIssue(check="output", criterion=None, text=text, source="fact"),
            *_blocking_issues(facts),
        ),
    )
