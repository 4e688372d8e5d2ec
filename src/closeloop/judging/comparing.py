"""Pairs of outputs for the same task, each asked in both orders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from closeloop.judges.pairs import Winner, joined, pose_pair, read_pair, work
from closeloop.judging.bench import Bench, OpenJudge, rubric_for, version_of
from closeloop.model.attempt import Usage
from closeloop.model.errors import BadInput
from closeloop.model.evaluation import Case, Output, Preference
from closeloop.model.fences import is_blank
from closeloop.model.rates import Rate, rate
from closeloop.model.usage import total
from closeloop.runs.executors.local import each
from closeloop.runs.models.asking import ask


async def prefer(bench: Bench, pairs: Sequence[tuple[Case, Case]]) -> list[Preference]:
    """What each judge says of each pair, pair by pair."""
    for first, second in pairs:
        if first.task.prompt != second.task.prompt:
            raise BadInput(
                f"{first.task.id!r} and {second.task.id!r} are different tasks: compare alike ones."
            )
    wanted = [(pair, judge) for pair in pairs for judge in bench.judges]
    done: list[Preference | None] = [None] * len(wanted)

    async def one(number: int) -> None:
        (first, second), judge = wanted[number]
        done[number] = await prefer_one(judge, first, second.output)

    await each(range(len(wanted)), one, jobs=max(1, bench.concurrency))
    return [made for made in done if made is not None]


async def prefer_one(judge: OpenJudge, case: Case, other: Output) -> Preference:
    """One judge, one pair, twice; it abstains unless both answers count."""
    rubric = rubric_for(case.task, judge)
    # Two outputs are laid side by side: there is nothing to look at, so the model alone is asked.
    version = version_of(replace(judge, agent=None), rubric).id
    blank, blank_too = is_blank(work(case.output)), is_blank(work(other))
    if blank or blank_too:
        winner: Winner = "tie" if blank and blank_too else "second" if blank else "first"
        reason = "Nothing came back for the other." if winner != "tie" else "Nothing came back."
        return Preference(task=case.task.id, judge=version, winner=winner, reasons=(reason,))
    said, used = [], list[Usage]()
    for a, b in ((case.output, other), (other, case.output)):
        posed = pose_pair(case, a, b, rubric, judge.temperature)
        async with judge.door(total(used)) as model:
            told = await ask(model, posed.request, partial(read_pair, posed=posed))
        used.append(told.usage)
        if told.answer is None:
            return Preference(
                task=case.task.id,
                judge=version,
                winner=None,
                abstained=told.why,
                usage=total(used),
            )
        said.append(told.answer)
    return Preference(
        task=case.task.id, judge=version, usage=total(used), **joined(said[0], said[1])
    )


def flip_rate(made: Sequence[Preference]) -> Rate | None:
    """How often the order decided, of those that a judge was asked about and answered."""
    told = [one for one in made if one.answers]
    return rate(sum(one.flipped for one in told), len(told))
