"""How often is the right rule found for a remark, and is a contrary ever taken for the same?

    python quality/memory.py
    python quality/memory.py msg-test.jsonl
    python quality/memory.py msg-test.jsonl labeled_dataset.xlsx

Over the paraphrases of tests/reviews: each rule lies among all the others, those that only sound
alike and the contraries; a remark is held against them with the rule's other paraphrase as its
only example, and without any.

With the comments that quality/review_pairs.toml labels, over pairs of real ones: is a comment
offered as a repeat of another one, and is the one it repeats among the three nearest of many?
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import sys
import time
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from closeloop import plugins
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.protocols import Encoder
from closeloop.records.record import Record
from closeloop.records.team_rules import RuleExample, TeamRule
from closeloop.reviews import ngrams
from closeloop.reviews.remark_polarity import comparable_words, compare_remarks, remark_parts
from closeloop.reviews.rule_index import (
    RuleVectors,
    TextRows,
    TextVectors,
    build_rule_vectors,
    compare_with_texts,
    find_restated_rules,
    nearest_rules,
    rate_rules,
    score_nearest,
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


def learned_rule(name: str, remarks: Sequence[str]) -> TeamRule:
    """A rule in the words of the first of the remarks that it was learned from."""
    return rule(name, remarks[0], *remarks)


def pool(which: int | None) -> list[TeamRule]:
    """All rules, each with its other paraphrase as example, then what is to mislead."""
    known = paraphrases()
    rules = [
        rule(str(at), one["text"], *([] if which is None else [one["same"][1 - which]]))
        for at, one in enumerate(known)
    ]
    rules += [rule(f"near-{at}", one["near"]) for at, one in enumerate(known)]
    return rules


class EncodedTexts:
    """Texts with their vectors: of their parts by an encoder, and of their words."""

    def __init__(self, texts: Iterable[str], encoder: Encoder) -> None:
        unique = list(dict.fromkeys(texts))
        parts = list(dict.fromkeys(part for text in unique for part in remark_parts(text)))
        self.parts = dict(zip(map(text_key, parts), encoder.encode(parts), strict=True))
        self.unrelated = getattr(encoder, "unrelated", 0.0)
        self.words = dict(zip(map(text_key, unique), ngrams.encode(unique), strict=True))

    def index(self, rules: Iterable[TeamRule]) -> RuleVectors:
        return build_rule_vectors(rules, self.parts, self.words, self.unrelated)

    def vectors(self, text: str) -> TextVectors:
        import numpy as np

        parts = [self.parts[text_key(part)] for part in remark_parts(text)]
        return TextVectors(meanings=np.stack(parts), words=self.words[text_key(text)])

    def candidates(self, known: RuleVectors, text: str, floor: float) -> list[str]:
        near = find_restated_rules(known, text, self.vectors(text), floor=floor)
        return [one.rule.id for one in near]

    def rank(self, known: RuleVectors, name: str, text: str) -> int:
        likeness = rate_rules(known, self.vectors(text))
        own = [one.id for one in known.rules].index(name)
        return int((likeness > likeness[own]).sum())


def score(encoder: Encoder) -> Score:
    """Everything, by one encoder."""
    known = paraphrases()
    every = [text for one in known for text in (one["text"], one["near"], *one["same"])]
    every += [text for one in known for text in one["opposite"]]
    texts = EncodedTexts(every, encoder)
    floor = encoder.floor
    bare = texts.index(pool(None))
    places = {which: texts.index(pool(which)) for which in (0, 1)}
    tries = [
        (str(at), which, one["same"][which]) for at, one in enumerate(known) for which in (0, 1)
    ]
    alone = [texts.rank(bare, name, text) for name, _, text in tries]
    ranks = [texts.rank(places[which], name, text) for name, which, text in tries]
    found = [texts.candidates(places[which], text, floor) for _, which, text in tries]
    turned = [
        str(at) not in texts.candidates(bare, text, floor)
        for at, one in enumerate(known)
        for text in one["opposite"]
    ]
    right = [name in names for (name, _, _), names in zip(tries, found, strict=True)]
    return Score(
        encoder=encoder.id,
        text_top3=wilson_rate(sum(one < 3 for one in alone), len(alone)),
        top3=wilson_rate(sum(one < 3 for one in ranks), len(ranks)),
        kept=wilson_rate(
            sum(name in texts.candidates(places[which], text, -1.0) for name, which, text in tries),
            len(tries),
        ),
        top10=wilson_rate(sum(one < 10 for one in ranks), len(ranks)),
        candidate=wilson_rate(sum(right), len(right)),
        others=(sum(map(len, found)) - sum(right)) / len(found),
        opposite=wilson_rate(sum(turned), len(turned)),
    )


def speed(encoder: Encoder) -> float:
    """Milliseconds of processor time for the ten nearest of many rules: the least of seven."""
    import numpy as np

    width = encoder.encode(["one"]).shape[1]
    random_rows = np.random.default_rng(0).random
    meanings, words = (
        TextRows(
            matrix=random_rows((MANY, size), np.float32),
            starts=np.arange(MANY),
            said=np.zeros(MANY),
        )
        for size in (width, ngrams.WIDTH)
    )
    known = RuleVectors(rules=(rule("one", "one"),) * MANY, meanings=meanings, words=words)
    text = TextVectors(meanings=meanings.matrix[:1], words=words.matrix[0])
    times = []
    for _ in range(7):
        began = time.process_time()
        nearest_rules(known, text)
        times.append(time.process_time() - began)
    return min(times) * 1000


def confirmed() -> list[tuple[str, str]]:
    """Contraries that are taken for the same by their words: there must be none."""
    pairs = [pair for one, other in contraries() for pair in ((one, other), (other, one))]
    return [pair for pair in pairs if compare_remarks(*pair) == "same"]


def encoders() -> Iterator[Encoder]:
    for name in sorted(plugins.installed_plugins("encoders")):
        found = plugins.load_plugin("encoders", name)
        if found.ready():
            yield found


def table(encoders: Iterator[Encoder]) -> str:
    """Markdown, as in docs/measurements/memory.md."""
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


# Real comments: labels are kept here, the comments are not.

LABELS = Path(__file__).with_name("review_pairs.toml")
HALVES = ("development", "measurement")
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
TRIES = 3
"""For each comment: with other ones of its group as what was said before."""


class RealScore(Record):
    """How an encoder did with one half of one set of labelled comments."""

    encoder: str
    labels: str
    half: str
    pairs: dict[str, int]
    recall: Rate | None
    """Of paraphrases, those that are offered as repeats."""
    precision: Rate | None
    """Of pairs that are offered, paraphrases."""
    contraries: Rate | None
    near: Rate | None
    others: Rate | None
    """Of those pairs, offered though they should not be."""
    top3: tuple[Rate | None, ...]
    """The right one among the three nearest, when it was said once, twice and three times."""
    confirmed: int
    """Pairs, contrary or not the same, that are taken for the same by their words."""


def read_comments(file: Path) -> list[str]:
    """The comments of a file that quality/review_pairs.toml names."""
    if file.suffix == ".xlsx":
        return read_sheet_column(file, "I")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [str(line.get("msg", line.get("gold"))) for line in lines]


def read_sheet_column(file: Path, column: str) -> list[str]:
    """The texts of one column of a workbook's first sheet, without its heading."""
    with zipfile.ZipFile(file) as book:
        strings = ElementTree.fromstring(book.read("xl/sharedStrings.xml"))  # noqa: S314
        sheet = ElementTree.fromstring(book.read("xl/worksheets/sheet1.xml"))  # noqa: S314
    texts = ["".join(part.text or "" for part in one.iter(f"{SHEET}t")) for one in strings]
    found = []
    for row in sheet.iter(f"{SHEET}row"):
        cells = {str(one.get("r")).rstrip("0123456789"): one for one in row}
        value = cells[column].findtext(f"{SHEET}v") if column in cells else None
        found.append(texts[int(value)] if value else "")
    return [re.sub(r"_x000D_|\r", "", text).strip() for text in found[1:]]


def label_groups(labels: str, half: str) -> list[dict[str, Any]]:
    """Of the set `first` or `second`, the families for `development` or for `measurement`.

    All of the set `third` are for measurement.
    """
    groups = tomllib.loads(LABELS.read_text(encoding="utf-8"))["group"]
    of_set = (one for one in groups if one.get("set", "first") == labels)
    return [
        one
        for one in of_set
        if ("measurement" if labels == "third" else half_of_family(one["family"])) == half
    ]


def half_of_family(family: str) -> str:
    digest = hashlib.sha256(family.encode()).hexdigest()
    return "measurement" if int(digest, 16) % 2 else "development"


def relation(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """What comments of two groups are to each other; None where that is open."""
    if one["name"] == other["name"]:
        return "same"
    for ours, theirs in ((one, other), (other, one)):
        if theirs["name"] in ours.get("contrary", ()):
            return "contrary"
        if theirs["name"] in ours.get("related", ()):
            return None
    return "near" if one["family"] == other["family"] else "other"


def labelled_pairs(groups: Sequence[dict[str, Any]], said: Sequence[str]) -> list[tuple[str, ...]]:
    """Relation and both comments of every pair that is not in the same words."""
    items = [(group, said[number]) for group in groups for number in group["comments"]]
    pairs = [
        (found, one, two)
        for (first, one), (second, two) in itertools.combinations(items, 2)
        if (found := relation(first, second)) and comparable_words(one) != comparable_words(two)
    ]
    return list(dict.fromkeys(pairs))


def score_real(encoder: Encoder, labels: str, half: str, said: Sequence[str]) -> RealScore:
    groups = label_groups(labels, half)
    pairs = labelled_pairs(groups, said)
    fillers = filler_comments(labels, said)
    texts = EncodedTexts(
        [*(text for _, one, two in pairs for text in (one, two)), *fillers], encoder
    )
    floor = encoder.floor
    kinds = Counter(kind for kind, _, _ in pairs)
    offered: Counter[str] = Counter()
    for kind, one, two in pairs:
        offered[kind] += bool(texts.candidates(texts.index([rule("one", one)]), two, floor))
    rates = {kind: wilson_rate(offered[kind], kinds[kind]) for kind in kinds}
    return RealScore(
        encoder=encoder.id,
        labels=labels,
        half=half,
        pairs=dict(kinds),
        recall=rates["same"],
        precision=wilson_rate(offered["same"], sum(offered.values())),
        contraries=rates["contrary"],
        near=rates["near"],
        others=rates["other"],
        top3=tuple(top_three(groups, said, fillers, texts, times) for times in (1, 2, 3)),
        confirmed=sum(
            compare_remarks(one, two) == "same" for kind, one, two in pairs if kind != "same"
        ),
    )


def filler_comments(labels: str, said: Sequence[str]) -> list[str]:
    """Other comments, among which the right one must be found."""
    known = tomllib.loads(LABELS.read_text(encoding="utf-8"))
    return [said[number] for number in known["third_fillers" if labels == "third" else "fillers"]]


def top_three(
    groups: Sequence[dict[str, Any]],
    said: Sequence[str],
    fillers: Sequence[str],
    encoded: EncodedTexts,
    times: int,
) -> Rate | None:
    """How often the rule of a comment's group is one of the three nearest that are not contrary."""
    hits = tries = 0
    for group in groups:
        texts = list(dict.fromkeys(said[number] for number in group["comments"]))
        for text in texts:
            others = [one for one in texts if comparable_words(one) != comparable_words(text)]
            for turn in range(TRIES if len(others) >= times else 0):
                draw = random.Random(f"{text}{turn}")  # noqa: S311
                rules = [learned_rule("right", draw.sample(others, times))]
                for other in groups:
                    if relation(group, other) not in ("same", None):
                        numbers = other["comments"]
                        chosen = draw.sample(numbers, min(times, len(numbers)))
                        rules.append(
                            learned_rule(other["name"], [said[number] for number in chosen])
                        )
                rules += [learned_rule(f"other-{at}", [one]) for at, one in enumerate(fillers)]
                known = encoded.index(rules)
                nearest = [
                    found.id
                    for _, found, before in score_nearest(known, text, encoded.vectors(text))
                    if compare_with_texts(before, text) != "opposite"
                ]
                hits += "right" in nearest[:3]
                tries += 1
    return wilson_rate(hits, tries)


def real_table(scores: Sequence[RealScore]) -> str:
    """Markdown; docs/measurements/memory.md has a part of it."""
    lines = [
        "| encoder | set | half | pairs: same, contrary, near, other | recall | precision | "
        "contraries offered | near misses offered | others offered | "
        "right one in the top 3, said once | twice | three times |",
        f"|{' --- |' * 4}{' --: |' * 8}",
    ]
    for one in scores:
        counts = ", ".join(str(one.pairs[kind]) for kind in ("same", "contrary", "near", "other"))
        rates = (one.recall, one.precision, one.contraries, one.near, one.others, *one.top3)
        cells = [f"`{one.encoder}`", one.labels, one.half, counts, *map(show_rate, rates)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def show_rate(rate: Rate | None) -> str:
    return "–" if rate is None else f"{rate.value:.0%} ({rate.low:.0%}–{rate.high:.0%})"


def main() -> None:
    sys.stdout.write(f"{table(encoders())}\n")
    sys.stdout.write(f"\ncontraries taken for the same: {len(confirmed())}\n")
    scores = []
    for file in map(Path, sys.argv[1:]):
        said = read_comments(file)
        scores += [
            score_real(encoder, labels, half, said)
            for labels in (("third",) if file.suffix == ".xlsx" else ("first", "second"))
            for half in (("measurement",) if labels == "third" else HALVES)
            for encoder in encoders()
        ]
    if scores:
        sys.stdout.write(f"\n{real_table(scores)}\n")
        sys.stdout.write(f"\nwrongly taken for the same: {sum(one.confirmed for one in scores)}\n")


if __name__ == "__main__":
    main()
