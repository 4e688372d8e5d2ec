"""How often does a model that compares remarks with rules find the right one?

    python quality/judged_repeats.py pose FOLDER msg-test.jsonl labeled_dataset.xlsx
    python quality/judged_repeats.py score ANSWERS msg-test.jsonl labeled_dataset.xlsx

`pose` writes the questions that closeloop would ask about a sample of the comments labelled in
quality/review_pairs.toml (the half for measurement), for a reader who sees nothing else. `score`
gives the answers to closeloop as the replies of a model.

An answer is a line of JSON: the question's id, the span of the remark's words that ask for
something, and for each named letter its relation and the span of its quote. Spans instead of words:
the comments are not kept here.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
from memory import (
    EncodedTexts,
    comparable_words,
    filler_comments,
    label_groups,
    learned_rule,
    read_comments,
    relation,
    show_rate,
)

from closeloop import plugins
from closeloop.records.estimate import wilson_rate
from closeloop.records.record import Record
from closeloop.records.team_rules import RuleMatch
from closeloop.records.trace import ModelReply, ModelRequest
from closeloop.reviews.remark_polarity import wants_contrary
from closeloop.reviews.rule_index import find_near_rules, find_restated_rules
from closeloop.reviews.rule_learning import (
    LETTERS,
    RemarkJudge,
    RemarkQuestion,
    RequestRelation,
    build_remark_question,
)
from closeloop.store import make_store

SETS = ("first", "second", "third")
SAMPLED = 80
"""Comments of each set."""
RIGHT = "right"


class SampledRemark(Record):
    """A comment, with what closeloop retrieves for it."""

    labels: str
    text: str
    near: tuple[RuleMatch, ...]
    """The rules nearest to it, for the model."""
    candidates: tuple[str, ...]
    """The rules that are offered without a model."""
    relations: dict[str, str]
    """By rule: same, contrary, near or other."""


class CommentSet:
    """The comments of one set that matching was not developed on, with their vectors."""

    def __init__(self, labels: str, said: Sequence[str]) -> None:
        encoder = plugins.load_plugin("encoders", "gte")
        self.labels, self.said, self.floor = labels, said, encoder.floor
        self.groups = label_groups(labels, "measurement")
        self.fillers = filler_comments(labels, said)
        own = (text for group in self.groups for text in self.texts_of(group))
        self.encoded = EncodedTexts([*own, *self.fillers], encoder)

    def texts_of(self, group: dict[str, Any]) -> list[str]:
        return list(dict.fromkeys(self.said[number] for number in group["comments"]))

    def other_wordings(self, group: dict[str, Any], text: str) -> list[str]:
        words = comparable_words(text)
        return [other for other in self.texts_of(group) if comparable_words(other) != words]

    def sample(self) -> Iterator[SampledRemark]:
        own = [
            (group, text)
            for group in self.groups
            for text in self.texts_of(group)
            if self.other_wordings(group, text)
        ]
        own.sort(key=lambda entry: hashlib.sha256(f"judged {entry[1]}".encode()).hexdigest())
        yield from (self.build_remark(group, text) for group, text in own[:SAMPLED])

    def build_remark(self, group: dict[str, Any], text: str) -> SampledRemark:
        """The comment among one rule for each other group and 150 others, each said once."""
        draw = random.Random(f"{text}0")  # noqa: S311
        rules = [learned_rule(RIGHT, draw.sample(self.other_wordings(group, text), 1))]
        relations = {RIGHT: "same"}
        for other in self.groups:
            kind = relation(group, other)
            if kind not in ("same", None):
                said = self.said[draw.choice(other["comments"])]
                rules.append(learned_rule(other["name"], [said]))
                relations[other["name"]] = str(kind)
        rules += [learned_rule(f"other-{at}", [one]) for at, one in enumerate(self.fillers)]
        known, vectors = self.encoded.index(rules), self.encoded.vectors(text)
        offered = find_restated_rules(known, text, vectors, floor=self.floor)
        return SampledRemark(
            labels=self.labels,
            text=text,
            near=tuple(find_near_rules(known, text, vectors)),
            candidates=tuple(match.rule.id for match in offered),
            relations=relations,
        )


def sample_remarks(files: Sequence[Path]) -> Iterator[SampledRemark]:
    for file in files:
        said = read_comments(file)
        for labels in ("third",) if file.suffix == ".xlsx" else ("first", "second"):
            yield from CommentSet(labels, said).sample()


def question_id(question: RemarkQuestion) -> str:
    shown = json.dumps(question.posed.shown, sort_keys=True)
    return hashlib.sha256(shown.encode()).hexdigest()[:12]


def pose(folder: Path, files: Sequence[Path]) -> None:
    """Write each question as the model would receive it; nothing in it says which is right."""
    folder.mkdir(parents=True)
    questions = [build_remark_question(one.text, one.near) for one in sample_remarks(files)]
    questions.sort(key=question_id)
    for question in questions:
        request = question.posed.request
        text = f"{request.system}\n{request.messages[0].text}\n"
        (folder / f"{question_id(question)}.txt").write_text(text, encoding="utf-8")
    shown = [{"id": question_id(one), "shown": one.posed.shown} for one in questions]
    (folder / "shown.json").write_text(json.dumps(shown, indent=1), encoding="utf-8")


class RecordedReader:
    """Answers as a reader answered before, in the form of a model's reply."""

    name = "reader"

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self.answers = answers
        self.question: RemarkQuestion | None = None

    async def reply(self, request: ModelRequest) -> ModelReply:
        assert self.question is not None
        shown = self.question.posed.shown
        answer = self.answers[question_id(self.question)]
        (seal,) = re.findall(r'seal (\w+) as "seal"', request.messages[0].text)
        requests = [
            {"letter": letter, "relation": word, "quote": shown[f"request {letter}"][start:end]}
            for letter, word, start, end in answer["requests"]
        ]
        start, end = answer["quote"]
        reply = {"seal": seal, "quote": shown["remark"][start:end], "requests": requests}
        return ModelReply(text=json.dumps(reply))


class JudgedRemark(Record):
    """A comment with what the reader said of each rule."""

    remark: SampledRemark
    opinions: dict[str, RequestRelation]
    """Empty if the answer could not be used."""
    ranked: tuple[str, ...]
    """The rules in the reader's order, those it left out after them in the encoder's."""

    @property
    def confirmed(self) -> list[str]:
        texts = {match.rule.id: match.texts for match in self.remark.near}
        return [
            rule
            for rule, opinion in self.opinions.items()
            if opinion.relation == "same"
            and opinion.quoted
            and not any(wants_contrary(text, self.remark.text) for text in texts[rule])
        ]


def judge_sample(answers: dict[str, dict[str, Any]], files: Sequence[Path]) -> list[JudgedRemark]:
    judged = []
    with make_store(":memory:") as store:
        reader = RecordedReader(answers)
        judge = RemarkJudge(reader, store, questions=10_000)
        for remark in sample_remarks(files):
            reader.question = build_remark_question(remark.text, remark.near)
            if question_id(reader.question) not in answers:
                continue
            opinions = anyio.run(judge.compare, remark.text, remark.near).by_rule or {}
            letters = [entry[0] for entry in answers[question_id(reader.question)]["requests"]]
            named = [reader.question.rules[LETTERS.index(letter)] for letter in letters]
            order = [rule for rule in named if rule in opinions]
            order += [match.rule.id for match in remark.near if match.rule.id not in order]
            ranked = [
                rule
                for rule in order
                if rule not in opinions or opinions[rule].relation != "opposite"
            ]
            judged.append(JudgedRemark(remark=remark, opinions=opinions, ranked=tuple(ranked)))
    return judged


def score_row(title: str, judged: Sequence[JudgedRemark]) -> str:
    """Markdown, as in docs/measurements/memory.md."""
    count = len(judged)

    def kinds(rules: Sequence[str], remark: SampledRemark) -> list[str]:
        return [remark.relations.get(rule, "other") for rule in rules]

    near = [[match.rule.id for match in one.remark.near] for one in judged]
    offered = Counter(kind for one in judged for kind in kinds(one.remark.candidates, one.remark))
    confirmed = Counter(kind for one in judged for kind in kinds(one.confirmed, one.remark))
    shown = Counter(
        kind for one, rules in zip(judged, near, strict=True) for kind in kinds(rules, one.remark)
    )
    unused = sum(not one.opinions for one in judged)
    rates = (
        wilson_rate(shown["same"], count),
        wilson_rate(sum(RIGHT in rules[:3] for rules in near), count),
        wilson_rate(sum(RIGHT in one.ranked[:3] for one in judged), count),
        wilson_rate(offered["same"], count),
        wilson_rate(confirmed["same"], count),
        wilson_rate(offered["same"], offered.total()),
        wilson_rate(confirmed["same"], confirmed.total()),
    )
    wrong = ", ".join(f"{confirmed[kind]} of {shown[kind]}" for kind in ("contrary", "near"))
    wrong += f", {confirmed['other']} of {shown['other']}"
    cells = [title, str(count), *map(show_rate, rates), wrong, str(unused)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    command, place, *files = sys.argv[1:]
    paths = [Path(file) for file in files]
    if command == "pose":
        pose(Path(place), paths)
        return
    lines = Path(place).read_text(encoding="utf-8").splitlines()
    answers = {answer["id"]: answer for answer in map(json.loads, lines)}
    judged = judge_sample(answers, paths)
    rows = [
        score_row(labels, [one for one in judged if one.remark.labels == labels]) for labels in SETS
    ]
    heading = (
        "| set | remarks | right one among the ten | in the top 3, encoder | with the reader | "
        "recall, encoder offers | reader confirms | precision, encoder offers | reader confirms | "
        "confirmed of those shown: contraries, near misses, others | answers not used |"
    )
    table = [heading, f"|{' --- |' * 2}{' --: |' * 9}", *rows, score_row("all", judged)]
    sys.stdout.write("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
