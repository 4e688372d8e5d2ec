"""Every output judged by itself, with the facts first: the evaluator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import anyio
from anyio import to_thread
from msgspec.structs import replace

from closeloop.judges.families import same_family
from closeloop.judges.joining import of_panel, of_samples
from closeloop.judges.scoring import Scores, nothing_came, scored
from closeloop.judging.bench import (
    Bench,
    OpenJudge,
    blamed,
    panel_version,
    rubric_for,
    version_of,
)
from closeloop.judging.bench import posed as pose
from closeloop.model.attempt import Usage
from closeloop.model.dependencies import in_order
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.evaluation import (
    Case,
    CheckAnswer,
    Evaluation,
    Evaluations,
    Fact,
    JudgeVersion,
    Output,
    PlanTask,
    Posed,
    Rubric,
    Seals,
    Submission,
)
from closeloop.model.fences import draw_seal, is_blank
from closeloop.model.record import digest
from closeloop.model.usage import total
from closeloop.runs.executors.local import each
from closeloop.runs.models.asking import Told, ask

LONGEST_SUMMARY = 2_000

Keep = Callable[[int, Evaluation, JudgeVersion], None]
"""Takes the number of the case, what came of it, and by whom."""
Said = tuple[tuple[CheckAnswer, ...], str]
"""Answers, and the judge's summary."""


async def evaluate(
    bench: Bench,
    request: str,
    plan: Sequence[PlanTask],
    outputs: Mapping[str, Output],
    facts: Mapping[str, Sequence[Fact]],
) -> Evaluations:
    """Judge the outputs of some or all tasks of a plan, each in a context of its own."""
    return await evaluate_cases(bench, cases_of(request, plan, outputs, facts))


def cases_of(
    request: str,
    plan: Sequence[PlanTask],
    outputs: Mapping[str, Output],
    facts: Mapping[str, Sequence[Fact]],
) -> list[Case]:
    """One for each output; BadInput for a plan or outputs that make no sense."""
    in_order(plan)
    by_id = {task.id: task for task in plan}
    for name in (*outputs, *facts):
        if name not in by_id:
            raise BadInput(f"There is no task {name!r} in the plan: check the outputs' names.")
    return [
        Case(
            request=request,
            plan=tuple(plan),
            task=by_id[name],
            output=output,
            facts=tuple(facts.get(name, ())),
        )
        for name, output in outputs.items()
    ]


def cases_of_submission(handed: Submission) -> list[Case]:
    """The same, of what somebody hands in."""
    outputs = {one.task: one for one in handed.results}
    return cases_of(handed.request, handed.plan, outputs, handed.facts)


async def evaluate_cases(
    bench: Bench, cases: Sequence[Case], keep: Keep | None = None
) -> Evaluations:
    """The same, of cases that need not be of one plan; each is handed over when it is made."""
    for case in cases:
        for opened in bench.judges:
            rubric_for(case.task, opened)  # one that cannot be read stops us before we pay
    done: list[Evaluation | None] = [None] * len(cases)
    versions: dict[str, JudgeVersion] = {}
    common = draw_seal()

    async def one(numbered: tuple[int, Case]) -> None:
        number, case = numbered
        sealed = replace(case, seals=Seals(common=common, own=draw_seal()))
        made, by = await judge_case(bench, sealed)
        done[number], versions[by.id] = made, by
        if keep is not None:
            with anyio.CancelScope(shield=True):  # it is paid for, whoever has hung up
                await to_thread.run_sync(keep, number, made, by)

    await each(enumerate(cases), one, jobs=max(1, bench.concurrency))
    evaluations = tuple(made for made in done if made is not None)
    return Evaluations(
        judges=tuple(versions.values()),
        evaluations=evaluations,
        passed=all_passed(evaluations),
        summary=summary(evaluations),
    )


async def judge_case(bench: Bench, case: Case) -> tuple[Evaluation, JudgeVersion]:
    """One output, by all who are on the bench."""
    votes, versions = [], []
    used = Usage()
    for opened in bench.judges:
        rubric = rubric_for(case.task, opened)
        version = version_of(opened, rubric)
        samples = []
        for _ in range(opened.samples):
            samples.append(await judge_once(opened, case, rubric, version, used))
            used = total((used, samples[-1].usage))
        votes.append(of_samples(samples, rubric))
        versions.append(version)
    by = panel_version(versions)
    return of_panel(votes, by), by


async def judge_once(
    opened: OpenJudge, case: Case, rubric: Rubric, version: JudgeVersion, used: Usage
) -> Evaluation:
    """One asking, after others that used so much of what one evaluation may."""
    started, at = time.perf_counter(), datetime.now(UTC)
    made = Evaluation(
        id="",
        task=case.task.id,
        judge=version.id,
        same_family=same_family(opened.model, case.output.author),
        at=at,
    )
    if is_blank(case.output.text) and is_blank(case.output.change or ""):
        made = with_scores(made, nothing_came(case.facts), "", Usage())
        return replace(made, id=digest(version.id, case.task.id, at)[:16])
    if opened.agent is not None and opened.look is None:
        raise BadInput("An agent cannot judge here: unset judge.variant, so that a model does.")
    posed = pose(opened, case, rubric)
    try:
        told = await answered(opened, case, posed, rubric, used)
    except MachineFailed as fault:
        told = Told(None, str(fault), Usage())
    answers, words = told.answer or ((), "")
    made = with_scores(made, scored(answers, rubric, case.output, case.facts), words, told.usage)
    return replace(
        made,
        id=digest(version.id, posed.seal, at)[:16],
        abstained=abstained(made, told),
        cut=posed.cut,
        seconds=time.perf_counter() - started,
    )


async def answered(
    opened: OpenJudge, case: Case, posed: Posed, rubric: Rubric, used: Usage
) -> Told[Said]:
    """What the model says, or the agent once it has looked."""
    if opened.look is None:
        async with opened.door(used) as model:
            return await ask(model, posed.request, lambda value: said(opened, value, posed, rubric))
    async with opened.look(case, used) as agent:

        def read(value: object) -> Said | str:
            seen = replace(posed, shown={**posed.shown, **agent.seen})
            return said(opened, value, seen, rubric)

        told = await ask(agent, posed.request, read)
        return Told(told.answer, told.why, agent.usage)


def said(opened: OpenJudge, value: object, posed: Posed, rubric: Rubric) -> Said | str:
    try:
        answers = opened.judge.read(value, posed, rubric)
    except Exception as error:
        raise blamed(opened.judge, error) from error
    if isinstance(answers, str):
        return answers
    words = value.get("summary") if isinstance(value, dict) else None
    return tuple(answers), words if isinstance(words, str) else ""


def with_scores(made: Evaluation, scores: Scores, words: str, usage: Usage) -> Evaluation:
    return replace(
        made,
        answers=scores.answers,
        criteria=scores.criteria,
        score=scores.score,
        passed=scores.passed,
        abstained=scores.abstained,
        issues=scores.issues,
        summary=words.strip()[:LONGEST_SUMMARY],
        usage=usage,
    )


def abstained(made: Evaluation, told: Told[Said]) -> str | None:
    """Why there is no verdict, most telling first; a fact may fail what no judge could read."""
    if made.passed is not None:
        return None
    return told.why or made.abstained


def all_passed(evaluations: Sequence[Evaluation]) -> bool | None:
    """False when any fails; None when none does but not all have a verdict."""
    verdicts = [one.passed for one in evaluations]
    if False in verdicts:
        return False
    return None if None in verdicts or not verdicts else True


def summary(evaluations: Sequence[Evaluation]) -> str:
    """How many of what, and what is wrong first."""
    counts = {
        "pass": sum(one.passed is True for one in evaluations),
        "fail": sum(one.passed is False for one in evaluations),
        "without a verdict": sum(one.passed is None for one in evaluations),
    }
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    lines = [f"{len(evaluations)} {'task' if len(evaluations) == 1 else 'tasks'}: {told}."]
    lines += [
        f"{one.task}: {one.issues[0].text}" for one in evaluations if not one.passed and one.issues
    ]
    return "\n".join(line[:300] for line in lines[:20])
