"""How often is the right rule found for a remark, and is a contrary ever taken for the same?

    python quality/memory.py

Over the paraphrases of tests/reviews: each rule lies among all the others, those that only sound
alike and the contraries; a remark is held against them with the rule's other paraphrase as its
only example, and without any.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from closeloop import plugins
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.protocols import Encoder
from closeloop.records.record import Record
from closeloop.records.team_rules import RuleExample, TeamRule
from closeloop.reviews.remark_polarity import compare_remarks
from closeloop.reviews.rule_index import (
    RuleVectors,
    build_rule_vectors,
    find_restated_rules,
    nearest_rules,
    text_key,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "reviews"))
from team import contraries, paraphrases

AT = datetime(2026, 1, 1, tzinfo=UTC)
MANY = 100_000


class Score(Record):
    """How an encoder did."""

    encoder: str
    text_top3: Rate | None
    """By the rule's own words alone."""
    top3: Rate | None
    """With one example."""
    top10: Rate | None
    candidate: Rate | None
    """Of remarks, those that have the right rule among their candidates."""
    kept: Rate | None
    """With one example, in the top 3 of what polarity leaves, however unlike."""
    others: float
    """Wrong candidates for each remark."""
    opposite: Rate | None
    """Of contraries, those that are left out of the candidates."""


def rule(name: str, text: str, *examples: str) -> TeamRule:
    said = tuple(
        RuleExample(key=f"{name}-{at}", source="comment", text=example, at=AT)
        for at, example in enumerate(examples)
    )
    return TeamRule(id=name, text=text, since=AT, state="active", examples=said)


def pool(which: int | None) -> list[TeamRule]:
    """All rules, each with its other paraphrase as example, then what is to mislead."""
    known = paraphrases()
    rules = [
        rule(str(at), one["text"], *([] if which is None else [one["same"][1 - which]]))
        for at, one in enumerate(known)
    ]
    rules += [rule(f"near-{at}", one["near"]) for at, one in enumerate(known)]
    return rules


def vectors_of(texts: list[str], encoder: Encoder) -> dict[str, Any]:
    unique = list(dict.fromkeys(texts))
    return dict(zip(map(text_key, unique), encoder.encode(unique), strict=True))


def score(encoder: Encoder) -> Score:
    """Everything, by one encoder."""
    known = paraphrases()
    every = [text for one in known for text in (one["text"], one["near"], *one["same"])]
    every += [text for one in known for text in one["opposite"]]
    vectors = vectors_of(every, encoder)
    width = len(next(iter(vectors.values())))
    bare = build_rule_vectors(pool(None), vectors, width)
    places = {which: build_rule_vectors(pool(which), vectors, width) for which in (0, 1)}
    tries = [
        (str(at), which, one["same"][which]) for at, one in enumerate(known) for which in (0, 1)
    ]
    alone = [rank(bare, name, vectors[text_key(text)]) for name, _, text in tries]
    ranks = [rank(places[which], name, vectors[text_key(text)]) for name, which, text in tries]
    found = [
        candidates(places[which], text, vectors[text_key(text)], encoder.floor)
        for _, which, text in tries
    ]
    turned = [
        str(at) not in candidates(bare, text, vectors[text_key(text)], encoder.floor)
        for at, one in enumerate(known)
        for text in one["opposite"]
    ]
    right = [name in names for (name, _, _), names in zip(tries, found, strict=True)]
    return Score(
        encoder=encoder.id,
        text_top3=wilson_rate(sum(one < 3 for one in alone), len(alone)),
        top3=wilson_rate(sum(one < 3 for one in ranks), len(ranks)),
        kept=wilson_rate(
            sum(
                name in candidates(places[which], text, vectors[text_key(text)], -1.0)
                for name, which, text in tries
            ),
            len(tries),
        ),
        top10=wilson_rate(sum(one < 10 for one in ranks), len(ranks)),
        candidate=wilson_rate(sum(right), len(right)),
        others=(sum(map(len, found)) - sum(right)) / len(found),
        opposite=wilson_rate(sum(turned), len(turned)),
    )


def candidates(known: RuleVectors, text: str, vector: Any, floor: float) -> list[str]:
    return [near.rule.id for near in find_restated_rules(known, text, vector, floor=floor)]


def rank(known: RuleVectors, name: str, vector: Any) -> int:
    likeness = known.matrix @ vector
    own = [one.id for one in known.rules].index(name)
    return int((likeness > likeness[own]).sum())


def speed(encoder: Encoder) -> float:
    """Milliseconds of processor time for the ten nearest of many rules: the least of seven."""
    import numpy as np

    width = encoder.encode(["one"]).shape[1]
    rows = np.random.default_rng(0).random((MANY, width), np.float32)
    known = RuleVectors(rules=(rule("one", "one"),) * MANY, matrix=rows)
    times = []
    for _ in range(7):
        began = time.process_time()
        nearest_rules(known, rows[0])
        times.append(time.process_time() - began)
    return min(times) * 1000


def confirmed() -> list[tuple[str, str]]:
    """Contraries that a model's word alone would confirm: there must be none."""
    pairs = [pair for one, other in contraries() for pair in ((one, other), (other, one))]
    return [pair for pair in pairs if compare_remarks(*pair) == "same"]


def encoders() -> Iterator[Encoder]:
    for name in sorted(plugins.installed_plugins("encoders")):
        found = plugins.load_plugin("encoders", name)
        if found.ready():
            yield found


def table(encoders: Iterator[Encoder]) -> str:
    """Markdown, as in docs/memory.md."""
    lines = [
        "| encoder | right rule in the top 3, by its text alone | with one example | and without "
        "contraries | top 10 | "
        "among the candidates | wrong candidates a remark | contraries left out | "
        "nearest of 100,000 |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for encoder in encoders:
        one = score(encoder)
        rates = (one.text_top3, one.top3, one.kept, one.top10, one.candidate)
        shown = [f"{each.value:.0%}" if each else "–" for each in rates]
        opposite = f"{one.opposite.value:.0%}" if one.opposite else "–"
        cells = [f"`{one.encoder}`", *shown, f"{one.others:.1f}", opposite]
        lines.append(f"| {' | '.join(cells)} | {speed(encoder):.0f} ms |")
    return "\n".join(lines)


def main() -> None:
    sys.stdout.write(f"{table(encoders())}\n")
    sys.stdout.write(f"\ncontraries confirmed: {len(confirmed())}\n")


if __name__ == "__main__":
    main()
