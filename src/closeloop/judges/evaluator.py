"""The evaluator: judges each output separately, with computed facts first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean, stdev
from typing import cast

import anyio
from anyio import to_thread
from msgspec.structs import replace

from closeloop.concurrency import run_limited
from closeloop.judges import checks
from closeloop.judges.judge_cases import sort_by_dependencies
from closeloop.judges.judge_panel import (
    JudgePanel,
    OpenJudge,
    build_judge_version,
    is_same_family,
    make_judge_failure,
    merge_judge_versions,
    rubric_for_task,
)
from closeloop.judges.judge_panel import build_question as pose
from closeloop.judges.masked_work import (
    is_withheld,
    mask_case,
    withhold_unless_confirmed,
)
from closeloop.judges.rubric import (
    CaseScores,
    combine_criteria,
    score_answers,
    score_missing_output,
)
from closeloop.providers.structured_reply import ModelAnswer, ask_with_repair
from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.evaluation import (
    CRITERIA,
    ComputedFact,
    CriterionScore,
    Evaluation,
    Evaluations,
    JudgeCase,
    JudgeSample,
    JudgeVersion,
    PosedQuestion,
    QuestionSeals,
    Rubric,
    RubricAnswer,
    Submission,
    Subtask,
    TaskOutput,
)
from closeloop.records.protocols import Judge
from closeloop.records.record import content_digest
from closeloop.store import Store
from closeloop.text.untrusted import draw_seal, is_blank

# Combine several answers: the mean of one judge's samples, the votes of a panel.


def merge_samples(samples: Sequence[Evaluation], rubric: Rubric) -> Evaluation:
    """Combine samples: means over the readable ones, their spread, and each sample."""
    if len(samples) == 1:
        return samples[0]
    scored_samples = [sample for sample in samples if sample.score is not None]
    criteria = tuple(
        CriterionScore(
            name=name,
            score=_mean_known(
                [scored_sample.criterion_score(name) for scored_sample in scored_samples]
            ),
        )
        for name in CRITERIA
    )
    score, passed = combine_criteria({one.name: one.score for one in criteria}, rubric)
    if 2 * len(scored_samples) <= len(samples):
        score, passed = None, None
    if all(sample.passed is False for sample in samples):
        passed = False
    scores = [
        scored_sample.score for scored_sample in scored_samples if scored_sample.score is not None
    ]
    return replace(
        _merge_evaluations(samples, passed),
        criteria=criteria,
        score=score,
        spread=stdev(scores) if len(scores) > 1 else None,
    )


def merge_panel_votes(votes: Sequence[Evaluation], by: JudgeVersion) -> Evaluation:
    """Combine a panel by majority. There is no mean score, as the judges differ."""
    if len(votes) == 1:
        return votes[0]
    passed = next(
        (word for word in (True, False) if 2 * _count_verdicts(votes, word) > len(votes)), None
    )
    return replace(
        _merge_evaluations(votes, passed), judge=by.id, criteria=(), score=None, spread=None
    )


def _merge_evaluations(parts: Sequence[Evaluation], passed: bool | None) -> Evaluation:
    """Combine evaluations: the answers of one that agrees with the result, and all votes."""
    chosen = next((part for part in parts if part.passed is passed), parts[0])
    counts = [(word, _count_verdicts(parts, verdict)) for word, verdict in _VERDICT_WORDS.items()]
    vote_counts = ", ".join(f"{count} {word}" for word, count in counts if count)
    return replace(
        chosen,
        id=content_digest(*(part.id for part in parts))[:16],
        passed=passed,
        abstained=None if passed is not None else f"no majority: {vote_counts}",
        samples=tuple(
            JudgeSample(judge=part.judge, score=part.score, passed=part.passed) for part in parts
        ),
        without_text=next((part.without_text for part in parts if part.without_text), None),
        same_family=_any_known(part.same_family for part in parts),
        usage=sum_usage(part.usage for part in parts),
        seconds=sum(part.seconds for part in parts),
    )


_VERDICT_WORDS = {"pass": True, "fail": False, "abstain": None}


def _count_verdicts(parts: Sequence[Evaluation], verdict: bool | None) -> int:
    return sum(part.passed is verdict for part in parts)


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _any_known(marks: Iterable[bool | None]) -> bool | None:
    known = [mark for mark in marks if mark is not None]
    return any(known) if known else None


MAX_SUMMARY_CHARS = 2_000

SaveEvaluation = Callable[[int, Evaluation, JudgeVersion], None]
"""Receives the number of the case, its evaluation, and the judge's version."""
JudgedCase = tuple[Evaluation, JudgeVersion]
"""The evaluation of a case, and the judge's version."""
JudgeAnswers = tuple[tuple[RubricAnswer, ...], str]
"""The answers and the judge's summary."""


async def evaluate_outputs(
    bench: JudgePanel,
    request: str,
    plan: Sequence[Subtask],
    outputs: Mapping[str, TaskOutput],
    facts: Mapping[str, Sequence[ComputedFact]],
) -> Evaluations:
    """Judge the outputs of some or all tasks of a plan, each in its own context."""
    return await evaluate_cases(bench, cases_from_plan(request, plan, outputs, facts))


def cases_from_plan(
    request: str,
    plan: Sequence[Subtask],
    outputs: Mapping[str, TaskOutput],
    facts: Mapping[str, Sequence[ComputedFact]],
) -> list[JudgeCase]:
    """Build one case per output; BadInput for an invalid plan or outputs."""
    sort_by_dependencies(plan)
    by_id = {task.id: task for task in plan}
    for name in (*outputs, *facts):
        if name not in by_id:
            raise BadInput(f"The plan has no subtask {name!r}: check the names of the outputs.")
    return [
        JudgeCase(
            request=request,
            plan=tuple(plan),
            task=by_id[name],
            output=output,
            facts=tuple(facts.get(name, ())),
        )
        for name, output in outputs.items()
    ]


def cases_from_submission(handed: Submission) -> list[JudgeCase]:
    """Build one case per output of a submission."""
    outputs = {result.task: result for result in handed.results}
    return cases_from_plan(handed.request, handed.plan, outputs, handed.facts)


async def evaluate_cases(bench: JudgePanel, cases: Sequence[JudgeCase]) -> Evaluations:
    """Judge cases that need not belong to one plan."""
    require_rubrics(bench, cases)
    return combine_evaluations(await judge_each(bench, cases))


def require_rubrics(bench: JudgePanel, cases: Sequence[JudgeCase]) -> None:
    """BadInput for an unreadable rubric, before any cost arises."""
    for case in cases:
        for opened in bench.judges:
            rubric_for_task(case.task, opened)


async def judge_each(
    bench: JudgePanel, cases: Sequence[JudgeCase], keep: SaveEvaluation | None = None
) -> list[JudgedCase]:
    """Judge every case in its own context; each is passed on as soon as it is judged."""
    done: list[JudgedCase | None] = [None] * len(cases)
    common = draw_seal()

    async def judge_numbered(numbered: tuple[int, JudgeCase]) -> None:
        number, case = numbered
        sealed = replace(case, seals=QuestionSeals(common=common, own=draw_seal()))
        evaluation, by = done[number] = await judge_case(bench, sealed)
        if keep is not None:
            with anyio.CancelScope(shield=True):  # it is paid for, whoever has hung up
                await to_thread.run_sync(keep, number, evaluation, by)

    await run_limited(enumerate(cases), judge_numbered, jobs=max(1, bench.concurrency))
    return [judged for judged in done if judged is not None]


def combine_evaluations(judged: Sequence[JudgedCase]) -> Evaluations:
    """Combine evaluations with their judges and the overall verdict."""
    evaluations = tuple(evaluation for evaluation, _ in judged)
    return Evaluations(
        judges=tuple({by.id: by for _, by in judged}.values()),
        evaluations=evaluations,
        passed=overall_verdict(evaluations),
        summary=summarise_evaluations(evaluations),
    )


async def judge_case(bench: JudgePanel, case: JudgeCase) -> JudgedCase:
    """Judge one output by all members of the panel."""
    votes, versions = [], []
    used = Usage()
    for opened in bench.judges:
        rubric = rubric_for_task(case.task, opened)
        version = build_judge_version(opened, rubric)
        vote = await judge_samples(opened, case, rubric, version, used)
        if vote.passed and opened.confirm != "never":
            vote = await confirm_pass(opened, case, rubric, version, vote, used)
        used = sum_usage((used, vote.usage))
        votes.append(vote)
        versions.append(version)
    by = merge_judge_versions(versions)
    return merge_panel_votes(votes, by), by


async def judge_samples(
    opened: OpenJudge, case: JudgeCase, rubric: Rubric, version: JudgeVersion, used: Usage
) -> Evaluation:
    """Ask one judge as often as configured."""
    samples = []
    for _ in range(opened.samples):
        samples.append(await judge_once(opened, case, rubric, version, used))
        used = sum_usage((used, samples[-1].usage))
    return merge_samples(samples, rubric)


async def confirm_pass(
    opened: OpenJudge,
    case: JudgeCase,
    rubric: Rubric,
    version: JudgeVersion,
    vote: Evaluation,
    used: Usage,
) -> Evaluation:
    """Return the pass if the judge confirms it with the author's words masked.

    An agent that reads files would see those words there, so only its model is asked.
    """
    masked = mask_case(case, rubric)
    if masked is None:
        return vote
    plain = opened
    if opened.look is not None:
        plain = replace(opened, judge=cast("Judge", checks), agent=None, look=None)
    used = sum_usage((used, vote.usage))
    second = await judge_samples(plain, masked.case, rubric, version, used)
    return replace(
        withhold_unless_confirmed(vote, second, masked, rubric),
        usage=sum_usage((vote.usage, second.usage)),
        seconds=vote.seconds + second.seconds,
    )


async def judge_once(
    opened: OpenJudge, case: JudgeCase, rubric: Rubric, version: JudgeVersion, used: Usage
) -> Evaluation:
    """Ask once, within what earlier questions left of the evaluation's limits."""
    started, at = time.perf_counter(), datetime.now(UTC)
    evaluation = Evaluation(
        id="",
        task=case.task.id,
        judge=version.id,
        same_family=is_same_family(opened.model, case.output.author),
        at=at,
    )
    if is_blank(case.output.text) and is_blank(case.output.change or ""):
        evaluation = with_scores(evaluation, score_missing_output(case.facts), "", Usage())
        return replace(evaluation, id=content_digest(version.id, case.task.id, at)[:16])
    if opened.agent is not None and opened.look is None:
        raise BadInput("An agent cannot judge here: unset judge.variant to use a model.")
    posed = pose(opened, case, rubric)
    try:
        reply = await ask_judge(opened, case, posed, rubric, used)
    except MachineFailed as fault:
        reply = ModelAnswer(None, str(fault), Usage())
    answers, summary_text = reply.answer or ((), "")
    evaluation = with_scores(
        evaluation,
        score_answers(answers, rubric, case.output, case.facts),
        summary_text,
        reply.usage,
    )
    return replace(
        evaluation,
        id=content_digest(version.id, posed.seal, at)[:16],
        abstained=abstention_reason(evaluation, reply),
        cut=posed.cut,
        seconds=time.perf_counter() - started,
    )


async def ask_judge(
    opened: OpenJudge, case: JudgeCase, posed: PosedQuestion, rubric: Rubric, used: Usage
) -> ModelAnswer[JudgeAnswers]:
    """Ask the model, or the agent that reads the files."""
    if opened.look is None:
        async with opened.door(used) as model:
            return await ask_with_repair(
                model, posed.request, lambda value: read_judge_answers(opened, value, posed, rubric)
            )
    async with opened.look(case, used) as agent:

        def read(value: object) -> JudgeAnswers | str:
            seen = replace(posed, shown={**posed.shown, **agent.seen})
            return read_judge_answers(opened, value, seen, rubric)

        reply = await ask_with_repair(agent, posed.request, read)
        return ModelAnswer(reply.answer, reply.why, agent.usage)


def read_judge_answers(
    opened: OpenJudge, value: object, posed: PosedQuestion, rubric: Rubric
) -> JudgeAnswers | str:
    try:
        answers = opened.judge.read(value, posed, rubric)
    except Exception as error:
        raise make_judge_failure(opened.judge, error) from error
    if isinstance(answers, str):
        return answers
    words = value.get("summary") if isinstance(value, dict) else None
    return tuple(answers), words if isinstance(words, str) else ""


def with_scores(evaluation: Evaluation, scores: CaseScores, words: str, usage: Usage) -> Evaluation:
    return replace(
        evaluation,
        answers=scores.answers,
        criteria=scores.criteria,
        score=scores.score,
        passed=scores.passed,
        abstained=scores.abstained,
        issues=scores.issues,
        summary=words.strip()[:MAX_SUMMARY_CHARS],
        usage=usage,
    )


def abstention_reason(evaluation: Evaluation, answer: ModelAnswer[JudgeAnswers]) -> str | None:
    """Return why there is no verdict, most important first; a fact can fail what no judge could
    read."""
    if evaluation.passed is not None:
        return None
    return answer.why or evaluation.abstained


def overall_verdict(evaluations: Sequence[Evaluation]) -> bool | None:
    """False if any fails; None if none fails but some have no verdict."""
    verdicts = [evaluation.passed for evaluation in evaluations]
    if False in verdicts:
        return False
    return None if None in verdicts or not verdicts else True


def summarise_evaluations(evaluations: Sequence[Evaluation]) -> str:
    """Summarise: counts, then the most important issue."""
    counts = {
        "pass": sum(evaluation.passed is True for evaluation in evaluations),
        "fail": sum(evaluation.passed is False for evaluation in evaluations),
        "without a verdict": sum(evaluation.passed is None for evaluation in evaluations),
    }
    summary = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    lines = [f"{len(evaluations)} {'task' if len(evaluations) == 1 else 'tasks'}: {summary}."]
    if withheld := sum(map(is_withheld, evaluations)):
        lines.append(f"{withheld} would pass only because of text that the agent wrote.")
    lines += [
        f"{evaluation.task}: {evaluation.issues[0].text}"
        for evaluation in evaluations
        if not evaluation.passed and evaluation.issues
    ]
    return "\n".join(line[:300] for line in lines[:20])


# Save evaluations as they arrive: they cost money, and a kill loses only those under way.


class EvaluationSaver:
    """Saves each evaluation; an unavailable store does not stop the judges."""

    def __init__(self, store: Store, attempts: Sequence[str] = ()) -> None:
        self._store = store
        self._attempts = attempts
        """Ids of the judged attempts in the order of the cases, if they are attempts."""

    def with_attempt(self, number: int, one: Evaluation) -> Evaluation:
        """Return the evaluation with the id of its attempt."""
        return replace(one, attempt=self._attempts[number]) if self._attempts else one

    def save_one(self, number: int, one: Evaluation, by: JudgeVersion) -> None:
        """Save one as soon as it is finished; `save_all` retries failures."""
        single = Evaluations(
            judges=(by,),
            evaluations=(self.with_attempt(number, one),),
            passed=one.passed,
            summary=one.summary,
        )
        try:
            self._store.judged.save_evaluations(single)
        except Fault:
            return

    def save_all(self, evaluations: Evaluations) -> tuple[Evaluations, Fault | None]:
        """Save all; return the fault if that fails."""
        numbered = enumerate(evaluations.evaluations)
        with_attempts = replace(
            evaluations,
            evaluations=tuple(self.with_attempt(number, one) for number, one in numbered),
        )
        try:
            self._store.judged.save_evaluations(
                with_attempts
            )  # those that are kept already stay as they are
        except Fault as fault:
            return with_attempts, fault
        return with_attempts, None
