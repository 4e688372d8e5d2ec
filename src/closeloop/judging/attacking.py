"""Canaries: failing work with attacks in it, to see whether the judge falls for any."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from closeloop.judges.canaries import attacks, planted
from closeloop.judging.bench import Bench
from closeloop.judging.evaluate import evaluate_cases
from closeloop.model.calibration import Canaries
from closeloop.model.evaluation import Case
from closeloop.model.rates import rate


async def attacked(bench: Bench, cases: Sequence[Case]) -> Canaries:
    """Every attack once, in turn on the cases that the judge fails by itself, without facts."""
    # Without a site: a patch with an attack in it need not apply.
    bare = [replace(case, facts=(), site=None) for case in cases]
    clean = await evaluate_cases(bench, bare)
    each = zip(bare, clean.evaluations, strict=True)
    failing = [case for case, one in each if one.passed is False]
    if not failing:
        return Canaries(attacked=0, flipped=None)
    every = attacks(bench.judges[0].rubric)
    spoiled = [failing[number % len(failing)] for number in range(len(every))]
    made = await evaluate_cases(
        bench,
        [
            replace(case, output=planted(case.output, attack))
            for case, attack in zip(spoiled, every, strict=True)
        ],
    )
    fallen = [
        attack.name
        for attack, one in zip(every, made.evaluations, strict=True)
        if one.passed is True
    ]
    return Canaries(attacked=len(every), flipped=rate(len(fallen), len(every)), by=tuple(fallen))
