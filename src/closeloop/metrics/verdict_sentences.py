"""Verdicts as sentences: what was seen, how sure it is, and what would settle the rest."""

from __future__ import annotations

from collections.abc import Iterator

from closeloop.records.comparison_report import VariantComparison
from closeloop.records.estimate import Comparison, ComparisonVerdict, Estimate, SampleSizeAdvice
from closeloop.records.plural import count_with_noun


def write_verdict(pair: VariantComparison) -> Iterator[str]:
    """The answer to both questions, then what is left to do."""
    comparison = pair.comparison
    scope = (
        "On exactly this task"
        if comparison.tasks == 1
        else f"On exactly these {comparison.tasks:,} tasks"
    )
    yield _answer_sentence(scope, comparison.here_word, comparison.here, pair)
    beyond = _answer_sentence("On tasks like these", comparison.alike_word, comparison.alike, pair)
    yield beyond + _test_sentence(pair)
    yield from comparison.notes
    if comparison.advice is not None:
        yield _advice_sentence(comparison.advice, comparison)


def _answer_sentence(
    where: str, word: ComparisonVerdict, seen: Estimate | None, pair: VariantComparison
) -> str:
    if seen is None:
        return f"{where}, there is not enough data to compare {pair.second!r} with {pair.first!r}."
    bounds = f"{seen.value:+.2f} ({seen.low:+.2f} … {seen.high:+.2f})"
    match word:
        case "better" | "worse":
            return (
                f"{where}, {pair.second!r} is {word} than {pair.first!r}: {pair.primary} {bounds}."
            )
        case "not enough data":
            return (
                f"{where}, there is not enough data to say which is better: {pair.primary} of "
                f"{pair.second!r} against {pair.first!r} {bounds}."
            )
        case _:
            return (
                f"{where}, {pair.second!r} and {pair.first!r} differ by no more than "
                f"{pair.comparison.margin:g}: {pair.primary} {bounds}."
            )


def _test_sentence(pair: VariantComparison) -> str:
    test = pair.comparison.test
    if test is None:
        return ""
    holm = f", {_format_p(pair.adjusted)} after Holm" if pair.adjusted is not None else ""
    return f" {test.method}: p {_format_p(test.p)}{holm}."


def _format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _advice_sentence(advice: SampleSizeAdvice, held: Comparison) -> str:
    ways = []
    if advice.tasks:
        ways.append(f"{count_with_noun(advice.tasks, 'more task')} with as many repeats")
    if advice.repeats:
        ways.append(f"{count_with_noun(advice.repeats, 'more repeat')} of each task")
    effect = f"a difference of {advice.effect:.2f}"
    if not ways and 0 in (advice.tasks, advice.repeats):
        return f"As many tasks and repeats as these show {effect} four times in five."
    if not ways:
        return f"No reachable number of tasks or repeats would show {effect}."
    detectable = (
        held.detectable and f" What was run shows differences from {held.detectable:.2f} on."
    )
    return f"To see {effect} four times in five: {', or '.join(ways)}.{detectable or ''}"
