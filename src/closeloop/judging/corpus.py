"""Ask the corpus: one narrow question of each trace, asked once, and what the answers come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from closeloop.judges.questions import (
    VERSION,
    finding_of,
    merged,
    pose_question,
    read_question,
)
from closeloop.judges.windows import window
from closeloop.judging.bench import OpenJudge
from closeloop.judging.calibrate import consensus
from closeloop.model.analysis import Analysis, Question, Tally, TraceAnswer
from closeloop.model.attempt import Usage
from closeloop.model.calibration import Label
from closeloop.model.finding import Finding
from closeloop.model.plan import Story
from closeloop.model.rates import rate
from closeloop.model.record import Record, digest
from closeloop.runs.executors.local import each
from closeloop.runs.models.asking import ask
from closeloop.stats.agreement import agreement
from closeloop.stats.corrected import rogan_gladen


class Cut(Record):
    """What is shown of one trace."""

    attempt: str
    events: Mapping[int, str]


def cut(story: Story, question: Question) -> Cut | None:
    """The window that a question is about; None where it does not arise."""
    if story.trace is None or not story.trace.events:
        return None
    about: list[int] = []
    if question.rules:
        findings = [
            one
            for one in story.measurement.findings
            if one.rule in question.rules and one.silenced is None
        ]
        about = [number for one in findings for number in one.events]
        if not about:
            return None
    return Cut(attempt=story.attempt.id, events=window(story.trace, about))


def version(judge: OpenJudge, question: Question) -> str:
    """Another wording, model or temperature is another judge."""
    parts = (VERSION, question, judge.model, judge.model_digest, judge.temperature)
    return digest("question", *parts)[:12]


async def ask_traces(
    judge: OpenJudge,
    question: Question,
    cuts: Sequence[Cut],
    jobs: int,
    keep: Callable[[TraceAnswer], None],
) -> list[TraceAnswer]:
    """What it says of each, kept as it comes: a kill loses only what is under way."""
    done: list[TraceAnswer] = []

    async def one(item: Cut) -> None:
        answer = await ask_trace(judge, question, item)
        # The provider's trouble is no answer: the next run asks again.
        if answer.usage.input_tokens is not None or answer.abstained is None:
            keep(answer)
        done.append(answer)

    await each(cuts, one, jobs=max(1, jobs))
    return done


async def ask_trace(judge: OpenJudge, question: Question, item: Cut) -> TraceAnswer:
    posed = pose_question(question, item.events, judge.temperature)
    read = partial(read_question, posed=posed, attempt=item.attempt, events=item.events)
    async with judge.door(Usage()) as model:
        told = await ask(model, posed.request, read)
    answer = told.answer or TraceAnswer(attempt=item.attempt, verdict=None, abstained=told.why)
    return replace(answer, question=question, usage=told.usage)


def tally(
    analysis: Analysis,
    judge: str,
    answers: Sequence[TraceAnswer],
    labels: Sequence[Label],
    findings: Mapping[str, tuple[Finding, ...]],
) -> Tally:
    """Counts, and the rate as people would have it where they labelled some."""
    told = [one for one in answers if one.verdict is not None]
    hits = sum(one.verdict == "yes" for one in told)
    truth = {item: word for (item, _), word in consensus(labels).items()}
    words = {"yes": "pass", "no": "fail"}
    pairs = [
        (words[one.verdict or "no"], truth[one.attempt]) for one in told if one.attempt in truth
    ]
    known = agreement(pairs)
    return Tally(
        analysis=analysis,
        judge=judge,
        attempts=len(answers),
        rate=rate(hits, len(told)),
        corrected=None if known is None else rogan_gladen(hits, len(told), known),
        answers=tuple(answers),
        findings={
            one.attempt: merged(findings[one.attempt], finding_of(analysis.question, one))
            for one in told
            if one.verdict == "yes"
        },
    )


def label_rubric(analysis: Analysis) -> str:
    """Under which people's answers are kept: `pass` is yes, `fail` is no."""
    return f"ask {analysis.name}"


class Chosen(Record):
    """What a filter let through."""

    new: tuple[Cut, ...]
    """Still to be asked."""
    old: tuple[TraceAnswer, ...]
    findings: Mapping[str, tuple[Finding, ...]]
    """What the rules say, by attempt."""


def choose(
    stories: Iterator[Story], question: Question, known: Mapping[str, TraceAnswer]
) -> Chosen:
    """Those that the question is for."""
    new, old, findings = [], [], {}
    for story in stories:
        name = story.attempt.id
        findings[name] = story.measurement.findings
        if name in known:
            old.append(known[name])
        elif (found := cut(story, question)) is not None:
            new.append(found)
    return Chosen(new=tuple(new), old=tuple(old), findings=findings)
