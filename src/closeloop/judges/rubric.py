"""Rubrics: files with the questions, the meaning of each answer, and the thresholds of a pass."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from math import isfinite
from pathlib import Path

from msgspec.structs import replace

from closeloop.records.errors import BadInput, unknown_name_error
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
from closeloop.records.record import Record, content_digest
from closeloop.text.untrusted import read_record

MAX_RUBRIC_BYTES = 256 << 10
_CHECK_ID = re.compile(r"[a-z][a-z0-9-]{0,40}")


def load_rubric(name: str, folder: Path) -> Rubric:
    """Load a built-in rubric by name, or a file by its path relative to the folder."""
    built_in = files(__package__).joinpath("rubrics").iterdir()
    built_in_by_name = {file.name.removesuffix(".toml"): file for file in built_in}
    if name in built_in_by_name:
        return parse_rubric(built_in_by_name[name].read_bytes(), name)
    path = folder / name
    if not name.endswith(".toml"):
        raise BadInput(
            f"{unknown_name_error('rubric', name, built_in_by_name)} A .toml file is also possible."
        )
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_RUBRIC_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
    return parse_rubric(content, str(path))


def parse_rubric(content: bytes, file: str) -> Rubric:
    """Parse a rubric; BadInput if it could not decide anything."""
    if len(content) > MAX_RUBRIC_BYTES:
        raise BadInput(f"{file} is too large for a rubric.")
    try:
        fields = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text: save it as UTF-8.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{file} is not valid TOML: {error}.") from None
    rubric = read_record(fields, Rubric, file)
    require_valid_rubric(rubric, file)
    return rubric


def require_valid_rubric(rubric: Rubric, file: str) -> None:
    """BadInput for checks, weights or thresholds that could not decide anything."""
    ids = [check.id for check in rubric.checks]
    for name in ids:
        if not _CHECK_ID.fullmatch(name):
            raise BadInput(f"{file}: the check {name!r} needs an id such as 'right-files'.")
        if ids.count(name) > 1:
            raise BadInput(f"{file}: two checks are named {name!r}: rename one.")
    for criterion in CRITERIA:
        if not any(check.criterion == criterion and not check.needs for check in rubric.checks):
            raise BadInput(f"{file}: no question without needs is for {criterion}: add one.")
    for name in rubric.weights:
        if name not in CRITERIA:
            raise unknown_name_error(f"criterion in the weights of {file}", name, CRITERIA)
    weights = [*rubric.weights.values(), *(check.weight for check in rubric.checks)]
    if not all(isfinite(weight) and weight > 0 for weight in weights):
        raise BadInput(f"{file}: every weight must be a number above 0.")
    if not (0 <= rubric.floor <= 1 and 0 <= rubric.pass_at <= 1):
        raise BadInput(f"{file}: 'pass_at' and 'floor' must be between 0 and 1.")


def digest_rubric(rubric: Rubric) -> str:
    """Return the identity of a rubric."""
    return content_digest(rubric)[:16]


# From answers to scores: computed, never asked.

VERDICT_SCORES = {"yes": 1.0, "partly": 0.5, "no": 0.0}
MIN_ANSWERED_SHARE = 0.5
"""Minimum share of a criterion's weight that must be answered for it to have a score."""


class CaseScores(Record):
    """The scores of a case."""

    answers: tuple[RubricAnswer, ...]
    criteria: tuple[CriterionScore, ...]
    score: float | None
    passed: bool | None
    issues: tuple[EvaluationIssue, ...]
    abstained: str | None = None


def score_answers(
    judge_answers: Sequence[RubricAnswer],
    rubric: Rubric,
    output: TaskOutput,
    facts: Sequence[ComputedFact],
) -> CaseScores:
    """Score facts first, then the judge; a criterion with too few answers has no score."""
    by_id = {answer.check: answer for answer in judge_answers}
    facts_by_name = {fact.name: fact for fact in facts if fact.verdict is not None}
    applicable = [check for check in rubric.checks if is_applicable(check, output)]
    answers = [_final_answer(check, by_id.get(check.id), facts_by_name) for check in applicable]
    criteria = tuple(_score_criterion(name, applicable, answers) for name in CRITERIA)
    score, passed = combine_criteria(
        {criterion.name: criterion.score for criterion in criteria}, rubric
    )
    issues = [*_list_issues(applicable, answers), *_blocking_issues(facts)]
    if _blocking_issues(facts):
        passed = False
    abstained = None
    if passed is None:
        missing = ", ".join(criterion.name for criterion in criteria if criterion.score is None)
        void = next((f" ({answer.check}: {answer.void})" for answer in answers if answer.void), "")
        abstained = f"too few questions of {missing} have a valid answer{void}"
    return CaseScores(
        answers=tuple(answers),
        criteria=criteria,
        score=score,
        passed=passed,
        issues=tuple(issues),
        abstained=abstained,
    )


def is_applicable(check: RubricQuestion, output: TaskOutput) -> bool:
    """Whether the output has what the check needs."""
    return check.needs is None or bool(getattr(output, check.needs))


def combine_criteria(
    criteria: dict[CriterionName, float | None], rubric: Rubric
) -> tuple[float | None, bool | None]:
    """Return the score and whether it passes; None if a criterion has no score."""
    known_scores = {name: score for name, score in criteria.items() if score is not None}
    if len(known_scores) < len(CRITERIA):
        # A score below the floor stays below it, whatever the other scores are.
        failed = any(not reaches_threshold(score, rubric.floor) for score in known_scores.values())
        return None, False if failed else None
    weights = {name: rubric.weights.get(name, 1.0) for name in known_scores}
    score = sum(known_scores[name] * weights[name] for name in known_scores) / sum(weights.values())
    return score, reaches_threshold(score, rubric.pass_at) and reaches_threshold(
        min(known_scores.values()), rubric.floor
    )


def reaches_threshold(score: float, bar: float) -> bool:
    """Compare with tolerance, as sums of tenths miss a threshold by the last bit."""
    return score >= bar - 1e-9


def _final_answer(
    check: RubricQuestion, answer: RubricAnswer | None, facts: dict[str, ComputedFact]
) -> RubricAnswer:
    judge_answer = answer or RubricAnswer(
        check=check.id, criterion=check.criterion, verdict=None, void="no answer came"
    )
    fact = facts.get(check.fact or "")
    if fact is None:
        return replace(judge_answer, mode=check.mode)
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
        name=name, score=sum(weight * score for weight, score in weighted_scores) / answered
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
    """Score an empty output, which needs no judge; facts may explain it."""
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
