"""Ask the corpus: one narrow question of each trace, asked once, and what the answers come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from closeloop.concurrency import run_limited
from closeloop.judges.judge_calibration import find_consensus
from closeloop.judges.judge_panel import OpenJudge
from closeloop.judges.trace_questions import (
    QUESTION_VERSION,
    add_judge_finding,
    build_trace_question,
    finding_from_answer,
    read_trace_answer,
)
from closeloop.judges.trace_windows import select_window_events
from closeloop.providers.model_question import ask_with_repair
from closeloop.records.attempt import Usage
from closeloop.records.calibration import HumanLabel
from closeloop.records.experiment_plan import AttemptDetails
from closeloop.records.finding import Finding
from closeloop.records.rates import wilson_rate
from closeloop.records.record import Record, content_digest
from closeloop.records.trace_analysis import Analysis, AnalysisResult, TraceAnswer, TraceQuestion
from closeloop.statistics.agreement import measure_agreement
from closeloop.statistics.rate_correction import rogan_gladen_rate


class TraceExcerpt(Record):
    """What is shown of one trace."""

    attempt: str
    events: Mapping[int, str]


def build_trace_excerpt(story: AttemptDetails, question: TraceQuestion) -> TraceExcerpt | None:
    """The window that a question is about; None where it does not arise."""
    if story.trace is None or not story.trace.events:
        return None
    event_numbers: list[int] = []
    if question.rules:
        findings = [
            one
            for one in story.measurement.findings
            if one.rule in question.rules and one.silenced is None
        ]
        event_numbers = [number for one in findings for number in one.events]
        if not event_numbers:
            return None
    return TraceExcerpt(
        attempt=story.attempt.id, events=select_window_events(story.trace, event_numbers)
    )


def question_version(judge: OpenJudge, question: TraceQuestion) -> str:
    """Another wording, model or temperature is another judge."""
    parts = (QUESTION_VERSION, question, judge.model, judge.model_digest, judge.temperature)
    return content_digest("question", *parts)[:12]


async def ask_about_traces(
    judge: OpenJudge,
    question: TraceQuestion,
    cuts: Sequence[TraceExcerpt],
    jobs: int,
    keep: Callable[[TraceAnswer], None],
) -> list[TraceAnswer]:
    """What it says of each, kept as it comes: a kill loses only what is under way."""
    answers: list[TraceAnswer] = []

    async def ask_about_excerpt(item: TraceExcerpt) -> None:
        answer = await ask_about_trace(judge, question, item)
        # The provider's trouble is no answer: the next run asks again.
        if answer.usage.input_tokens is not None or answer.abstained is None:
            keep(answer)
        answers.append(answer)

    await run_limited(cuts, ask_about_excerpt, jobs=max(1, jobs))
    return answers


async def ask_about_trace(
    judge: OpenJudge, question: TraceQuestion, item: TraceExcerpt
) -> TraceAnswer:
    posed = build_trace_question(question, item.events, judge.temperature)
    read_reply = partial(read_trace_answer, posed=posed, attempt=item.attempt, events=item.events)
    async with judge.door(Usage()) as model:
        reply = await ask_with_repair(model, posed.request, read_reply)
    answer = reply.answer or TraceAnswer(attempt=item.attempt, verdict=None, abstained=reply.why)
    return replace(answer, question=question, usage=reply.usage)


def tally_answers(
    analysis: Analysis,
    judge: str,
    answers: Sequence[TraceAnswer],
    labels: Sequence[HumanLabel],
    findings: Mapping[str, tuple[Finding, ...]],
) -> AnalysisResult:
    """Counts, and the rate as people would have it where they labelled some."""
    decided = [one for one in answers if one.verdict is not None]
    hits = sum(one.verdict == "yes" for one in decided)
    truth = {item: word for (item, _), word in find_consensus(labels).items()}
    words = {"yes": "pass", "no": "fail"}
    pairs = [
        (words[one.verdict or "no"], truth[one.attempt]) for one in decided if one.attempt in truth
    ]
    judge_agreement = measure_agreement(pairs)
    return AnalysisResult(
        analysis=analysis,
        judge=judge,
        attempts=len(answers),
        rate=wilson_rate(hits, len(decided)),
        corrected=None
        if judge_agreement is None
        else rogan_gladen_rate(hits, len(decided), judge_agreement),
        answers=tuple(answers),
        findings={
            one.attempt: add_judge_finding(
                findings[one.attempt], finding_from_answer(analysis.question, one)
            )
            for one in decided
            if one.verdict == "yes"
        },
    )


def label_rubric_name(analysis: Analysis) -> str:
    """Under which people's answers are kept: `pass` is yes, `fail` is no."""
    return f"ask {analysis.name}"


class QuestionSelection(Record):
    """What a filter let through."""

    new: tuple[TraceExcerpt, ...]
    """Still to be asked."""
    old: tuple[TraceAnswer, ...]
    findings: Mapping[str, tuple[Finding, ...]]
    """What the rules say, by attempt."""


def select_traces(
    stories: Iterator[AttemptDetails], question: TraceQuestion, known: Mapping[str, TraceAnswer]
) -> QuestionSelection:
    """Those that the question is for."""
    new, old, findings = [], [], {}
    for story in stories:
        name = story.attempt.id
        findings[name] = story.measurement.findings
        if name in known:
            old.append(known[name])
        elif (excerpt := build_trace_excerpt(story, question)) is not None:
            new.append(excerpt)
    return QuestionSelection(new=tuple(new), old=tuple(old), findings=findings)
