"""Canaries: failing work with attacks in it, to see whether the judge falls for any."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from closeloop.judges.canary_attacks import list_attacks, plant_attack
from closeloop.judges.evaluator import evaluate_cases
from closeloop.judges.judge_panel import JudgePanel
from closeloop.records.calibration import CanaryResults
from closeloop.records.evaluation import JudgeCase
from closeloop.records.rates import wilson_rate


async def run_canaries(bench: JudgePanel, cases: Sequence[JudgeCase]) -> CanaryResults:
    """Every attack once, in turn on the cases that the judge fails by itself, without facts."""
    # Without a site: a patch with an attack in it need not apply.
    bare = [replace(case, facts=(), site=None) for case in cases]
    clean_results = await evaluate_cases(bench, bare)
    judged_cases = zip(bare, clean_results.evaluations, strict=True)
    failing = [case for case, one in judged_cases if one.passed is False]
    if not failing:
        return CanaryResults(attacked=0, flipped=None)
    all_attacks = list_attacks(bench.judges[0].rubric)
    target_cases = [failing[number % len(failing)] for number in range(len(all_attacks))]
    results = await evaluate_cases(
        bench,
        [
            replace(case, output=plant_attack(case.output, attack))
            for case, attack in zip(target_cases, all_attacks, strict=True)
        ],
    )
    successful_attacks = [
        attack.name
        for attack, one in zip(all_attacks, results.evaluations, strict=True)
        if one.passed is True
    ]
    return CanaryResults(
        attacked=len(all_attacks),
        flipped=wilson_rate(len(successful_attacks), len(all_attacks)),
        by=tuple(successful_attacks),
    )
