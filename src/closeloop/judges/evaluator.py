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
    build_question,
    is_same_family,
    make_judge_failure,
    merge_judge_versions,
    rubric_for_task,
)
from closeloop.judges.masked_work import is_withheld, mask_case, withhold_unless_confirmed
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
    score, passed = combine_criteria(
        {criterion.name: criterion.score for criterion in criteria}, rubric
    )
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


def merge_panel_votes(votes: Sequence[Evaluation], version: JudgeVersion) -> Evaluation:
    """Combine a panel by majority. There is no mean score, as the judges differ."""
    if len(votes) == 1:
        return votes[0]
    passed = next(
        (verdict for verdict in (True, False) if 2 * _count_verdicts(votes, verdict) > len(votes)),
        None,
    )
    return replace(
        _merge_evaluations(votes, passed), judge=version.id, criteria=(), score=None, spread=None
    )


def _merge_evaluations(parts: Sequence[Evaluation], passed: bool | None) -> Evaluation:
    """Combine evaluations: the answers of one that agrees with the result, and all votes."""
    agreeing = next((part for part in parts if part.passed is passed), parts[0])
    counts = [(word, _count_verdicts(parts, verdict)) for word, verdict in _VERDICT_WORDS.items()]
    vote_counts = ", ".join(f"{count} {word}" for word, count in counts if count)
    return replace(
        agreeing,
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
    known_values = [value for value in values if value is not None]
    return fmean(known_values) if known_values else None


def _any_known(flags: Iterable[bool | None]) -> bool | None:
    known_flags = [flag for flag in flags if flag is not None]
    return any(known_flags) if known_flags else None


MAX_SUMMARY_CHARS = 2_000

SaveEvaluation = Callable[[int, Evaluation, JudgeVersion], None]
"""Receives the number of the case, its evaluation, and the judge's version."""
JudgedCase = tuple[Evaluation, JudgeVersion]
"""The evaluation of a case, and the judge's version."""
JudgeAnswers = tuple[tuple[RubricAnswer, ...], str]
"""The answers and the judge's summary."""


async def evaluate_outputs(
    panel: JudgePanel,
    request: str,
    plan: Sequence[Subtask],
    outputs: Mapping[str, TaskOutput],
    facts: Mapping[str, Sequence[ComputedFact]],
) -> Evaluations:
    """Judge the outputs of some or all tasks of a plan, each in its own context."""
    return await evaluate_cases(panel, cases_from_plan(request, plan, outputs, facts))


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


def cases_from_submission(submission: Submission) -> list[JudgeCase]:
    """Build one case per output of a submission."""
    outputs = {result.task: result for result in submission.results}
    return cases_from_plan(submission.request, submission.plan, outputs, submission.facts)


async def evaluate_cases(panel: JudgePanel, cases: Sequence[JudgeCase]) -> Evaluations:
    """Judge cases that need not belong to one plan."""
    require_rubrics(panel, cases)
    return combine_evaluations(await judge_each(panel, cases))


def require_rubrics(panel: JudgePanel, cases: Sequence[JudgeCase]) -> None:
    """BadInput for an unreadable rubric, before any cost arises."""
    for case in cases:
        for judge in panel.judges:
            rubric_for_task(case.task, judge)


async def judge_each(
    panel: JudgePanel, cases: Sequence[JudgeCase], save: SaveEvaluation | None = None
) -> list[JudgedCase]:
    """Judge every case in its own context; each is passed on as soon as it is judged."""
    results: list[JudgedCase | None] = [None] * len(cases)
    common = draw_seal()

    async def judge_numbered(numbered_case: tuple[int, JudgeCase]) -> None:
        number, case = numbered_case
        sealed = replace(case, seals=QuestionSeals(common=common, own=draw_seal()))
        evaluation, version = results[number] = await judge_case(panel, sealed)
        if save is not None:
            with anyio.CancelScope(shield=True):  # it is paid for, whoever has hung up
                await to_thread.run_sync(save, number, evaluation, version)

    await run_limited(enumerate(cases), judge_numbered, jobs=max(1, panel.concurrency))
    return [judged for judged in results if judged is not None]


def combine_evaluations(judged: Sequence[JudgedCase]) -> Evaluations:
    """Combine evaluations with their judges and the overall verdict."""
    evaluations = tuple(evaluation for evaluation, _ in judged)
    return Evaluations(
        judges=tuple({version.id: version for _, version in judged}.values()),
        evaluations=evaluations,
        passed=overall_verdict(evaluations),
        summary=summarise_evaluations(evaluations),
    )


async def judge_case(panel: JudgePanel, case: JudgeCase) -> JudgedCase:
    """Judge one output by all members of the panel."""
    votes, versions = [], []
    usage = Usage()
    for judge in panel.judges:
        rubric = rubric_for_task(case.task, judge)
        version = build_judge_version(judge, rubric)
        vote = await judge_samples(judge, case, rubric, version, usage)
        if vote.passed and judge.confirm != "never":
            vote = await confirm_pass(judge, case, rubric, version, vote, usage)
        usage = sum_usage((usage, vote.usage))
        votes.append(vote)
        versions.append(version)
    panel_version = merge_judge_versions(versions)
    return merge_panel_votes(votes, panel_version), panel_version


async def judge_samples(
    judge: OpenJudge, case: JudgeCase, rubric: Rubric, version: JudgeVersion, prior_usage: Usage
) -> Evaluation:
    """Ask one judge as often as configured."""
    samples = []
    for _ in range(judge.samples):
        samples.append(await judge_once(judge, case, rubric, version, prior_usage))
        prior_usage = sum_usage((prior_usage, samples[-1].usage))
    return merge_samples(samples, rubric)


async def confirm_pass(
    judge: OpenJudge,
    case: JudgeCase,
    rubric: Rubric,
    version: JudgeVersion,
    vote: Evaluation,
    prior_usage: Usage,
) -> Evaluation:
    """Return the pass if the judge confirms it with the author's words masked.

    An agent that reads files would see those words there, so only its model is asked.
    """
    masked = mask_case(case, rubric)
    if masked is None:
        return vote
    model_judge = judge
    if judge.look is not None:
        model_judge = replace(judge, judge=cast("Judge", checks), agent=None, look=None)
    prior_usage = sum_usage((prior_usage, vote.usage))
    second = await judge_samples(model_judge, masked.case, rubric, version, prior_usage)
    return replace(
        withhold_unless_confirmed(vote, second, masked, rubric),
        usage=sum_usage((vote.usage, second.usage)),
        seconds=vote.seconds + second.seconds,
    )


async def judge_once(
    judge: OpenJudge, case: JudgeCase, rubric: Rubric, version: JudgeVersion, prior_usage: Usage
) -> Evaluation:
    """Ask once, within what earlier questions left of the evaluation's limits."""
    started, judged_at = time.perf_counter(), datetime.now(UTC)
    evaluation = Evaluation(
        id="",
        task=case.task.id,
        judge=version.id,
        same_family=is_same_family(judge.model, case.output.author),
        at=judged_at,
    )
    if is_blank(case.output.text) and is_blank(case.output.change or ""):
        evaluation = with_scores(evaluation, score_missing_output(case.facts), "", Usage())
        return replace(evaluation, id=content_digest(version.id, case.task.id, judged_at)[:16])
    if judge.agent is not None and judge.look is None:
        raise BadInput("An agent cannot judge here: unset judge.variant to use a model.")
    question = build_question(judge, case, rubric)
    try:
        reply = await ask_judge(judge, case, question, rubric, prior_usage)
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
        id=content_digest(version.id, question.seal, judged_at)[:16],
        abstained=abstention_reason(evaluation, reply),
        cut=question.cut,
        seconds=time.perf_counter() - started,
    )


async def ask_judge(
    judge: OpenJudge, case: JudgeCase, question: PosedQuestion, rubric: Rubric, prior_usage: Usage
) -> ModelAnswer[JudgeAnswers]:
    """Ask the model, or the agent that reads the files."""
    if judge.look is None:
        async with judge.open_model(prior_usage) as model:
            return await ask_with_repair(
                model,
                question.request,
                lambda value: read_judge_answers(judge, value, question, rubric),
            )
    async with judge.look(case, prior_usage) as agent:

        def read(value: object) -> JudgeAnswers | str:
            full_question = replace(question, shown={**question.shown, **agent.seen})
            return read_judge_answers(judge, value, full_question, rubric)

        reply = await ask_with_repair(agent, question.request, read)
        return ModelAnswer(reply.answer, reply.why, agent.usage)


def read_judge_answers(
    judge: OpenJudge, value: object, question: PosedQuestion, rubric: Rubric
) -> JudgeAnswers | str:
    try:
        answers = judge.judge.read(value, question, rubric)
    except Exception as error:
        raise make_judge_failure(judge.judge, error) from error
    if isinstance(answers, str):
        return answers
    summary = value.get("summary") if isinstance(value, dict) else None
    return tuple(answers), summary if isinstance(summary, str) else ""


def with_scores(
    evaluation: Evaluation, scores: CaseScores, summary: str, usage: Usage
) -> Evaluation:
    return replace(
        evaluation,
        answers=scores.answers,
        criteria=scores.criteria,
        score=scores.score,
        passed=scores.passed,
        abstained=scores.abstained,
        issues=scores.issues,
        summary=summary.strip()[:MAX_SUMMARY_CHARS],
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
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
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

    def with_attempt(self, number: int, evaluation: Evaluation) -> Evaluation:
        """Return the evaluation with the id of its attempt."""
        return replace(evaluation, attempt=self._attempts[number]) if self._attempts else evaluation

    def save_one(self, number: int, evaluation: Evaluation, version: JudgeVersion) -> None:
        """Save one as soon as it is finished; `save_all` retries failures."""
        single = Evaluations(
            judges=(version,),
            evaluations=(self.with_attempt(number, evaluation),),
            passed=evaluation.passed,
            summary=evaluation.summary,
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
            evaluations=tuple(
                self.with_attempt(number, evaluation) for number, evaluation in numbered
            ),
        )
        try:
            self._store.judged.save_evaluations(with_attempts)  # those already saved stay unchanged
        except Fault as fault:
            return with_attempts, fault
        return with_attempts, None
