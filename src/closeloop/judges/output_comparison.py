"""Pairs of outputs for the same task, each asked in both orders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from closeloop.concurrency import run_limited
from closeloop.judges.judge_panel import JudgePanel, OpenJudge, build_judge_version, rubric_for_task
from closeloop.judges.pair_comparison import (
    Winner,
    build_pair_question,
    merge_orders,
    read_pair_answer,
    work_text,
)
from closeloop.providers.model_question import ask_with_repair
from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import JudgeCase, OutputPreference, TaskOutput
from closeloop.records.fences import is_blank
from closeloop.records.rates import Rate, wilson_rate
from closeloop.records.usage_totals import sum_usage


async def compare_pairs(
    bench: JudgePanel, pairs: Sequence[tuple[JudgeCase, JudgeCase]]
) -> list[OutputPreference]:
    """What each judge says of each pair, pair by pair."""
    for first, second in pairs:
        if first.task.prompt != second.task.prompt:
            raise BadInput(
                f"{first.task.id!r} and {second.task.id!r} are different tasks: compare alike ones."
            )
    comparisons = [(pair, judge) for pair in pairs for judge in bench.judges]
    preferences: list[OutputPreference | None] = [None] * len(comparisons)

    async def compare_numbered(number: int) -> None:
        (first, second), judge = comparisons[number]
        preferences[number] = await compare_outputs(judge, first, second.output)

    await run_limited(range(len(comparisons)), compare_numbered, jobs=max(1, bench.concurrency))
    return [made for made in preferences if made is not None]


async def compare_outputs(judge: OpenJudge, case: JudgeCase, other: TaskOutput) -> OutputPreference:
    """One judge, one pair, twice; it abstains unless both answers count."""
    rubric = rubric_for_task(case.task, judge)
    # Two outputs are laid side by side: there is nothing to look at, so the model alone is asked.
    version = build_judge_version(replace(judge, agent=None), rubric).id
    blank, blank_too = is_blank(work_text(case.output)), is_blank(work_text(other))
    if blank or blank_too:
        winner: Winner = "tie" if blank and blank_too else "second" if blank else "first"
        reason = "Nothing came back for the other." if winner != "tie" else "Nothing came back."
        return OutputPreference(task=case.task.id, judge=version, winner=winner, reasons=(reason,))
    verdicts, usages = [], list[Usage]()
    for a, b in ((case.output, other), (other, case.output)):
        posed = build_pair_question(case, a, b, rubric, judge.temperature)
        async with judge.door(sum_usage(usages)) as model:
            reply = await ask_with_repair(
                model, posed.request, partial(read_pair_answer, posed=posed)
            )
        usages.append(reply.usage)
        if reply.answer is None:
            return OutputPreference(
                task=case.task.id,
                judge=version,
                winner=None,
                abstained=reply.why,
                usage=sum_usage(usages),
            )
        verdicts.append(reply.answer)
    return OutputPreference(
        task=case.task.id,
        judge=version,
        usage=sum_usage(usages),
        **merge_orders(verdicts[0], verdicts[1]),
    )


def flip_rate(made: Sequence[OutputPreference]) -> Rate | None:
    """How often the order decided, of those that a judge was asked about and answered."""
    answered = [one for one in made if one.answers]
    return wilson_rate(sum(one.flipped for one in answered), len(answered))
