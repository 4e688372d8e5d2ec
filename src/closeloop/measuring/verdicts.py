"""Verdicts as sentences: what was seen, how sure it is, and what would settle the rest."""

from __future__ import annotations

from collections.abc import Iterator

from closeloop.model.estimate import Advice, Comparison, Estimate, Word
from closeloop.model.plural import plural
from closeloop.model.versus import Versus


def words(pair: Versus) -> Iterator[str]:
    """The answer to both questions, then what is left to do."""
    held = pair.comparison
    these = "On exactly this task" if held.tasks == 1 else f"On exactly these {held.tasks:,} tasks"
    yield _answer(these, held.here_word, held.here, pair)
    beyond = _answer("On tasks like these", held.alike_word, held.alike, pair)
    yield beyond + _tested(pair)
    yield from held.notes
    if held.advice is not None:
        yield _settle(held.advice, held)


def _answer(where: str, word: Word, seen: Estimate | None, pair: Versus) -> str:
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


def _tested(pair: Versus) -> str:
    test = pair.comparison.test
    if test is None:
        return ""
    holm = f", {_p(pair.adjusted)} after Holm" if pair.adjusted is not None else ""
    return f" {test.method}: p {_p(test.p)}{holm}."


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _settle(advice: Advice, held: Comparison) -> str:
    ways = []
    if advice.tasks:
        ways.append(f"{plural(advice.tasks, 'more task')} with as many repeats")
    if advice.repeats:
        ways.append(f"{plural(advice.repeats, 'more repeat')} of each task")
    seen = f"a difference of {advice.effect:.2f}"
    if not ways and 0 in (advice.tasks, advice.repeats):
        return f"As many tasks and repeats as these show {seen} four times in five."
    if not ways:
        return f"No reachable number of tasks or repeats would show {seen}."
    shown = held.detectable and f" What was run shows differences from {held.detectable:.2f} on."
    return f"To see {seen} four times in five: {', or '.join(ways)}.{shown or ''}"
