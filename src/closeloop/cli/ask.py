"""`closeloop ask`: one narrow question to every trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.cli.console import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.cli.config import Configuration
    from closeloop.model.analysis import Analysis, Tally, TraceAnswer
    from closeloop.model.plan import Story
    from closeloop.store import Store


def ask(  # noqa: PLR0913 - one parameter for each flag
    question: str | None = None,
    *,
    name: str | None = None,
    task: str | None = None,
    variant: str | None = None,
    outcome: Literal["pass", "fail", "unscored"] | None = None,
    limit: int = 100,
    model: str | None = None,
    labels: Path | None = None,
    json: bool = False,
) -> None:
    """Ask a model one yes-or-no question about each trace; what was asked before is not paid twice.

    Parameters
    ----------
    question
        The question, in words; without one, that of --name.
    name
        Keep the question and the filter under this name, or ask one that is kept or built in.
    task
        Only attempts at this task.
    variant
        Only attempts of this variant.
    outcome
        Only attempts that ended so.
    limit
        How many attempts at the most, the newest first.
    model
        Who answers; the first of judge.models when not given.
    labels
        A CSV file with people's answers: the columns item, an attempt's id, and label, yes or no.
    json
        Print one JSON document instead.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json, show
    from closeloop.cli.typed import demand_positive, demand_utf8
    from closeloop.model.errors import BadInput

    demand_positive(limit=limit)
    if question is not None and not question.strip():
        raise BadInput("The question is empty: write one that yes or no answers.")
    demand_utf8(question or "", "The question")
    found = load(Path.cwd())
    keeps = labels is not None or (question is not None and name is not None)
    opening = flow.open_named_store if keeps else flow.open_kept_store
    with opening(found.settings, found.root) as store:
        analysis = known_analysis(name, store) if question is None else new_analysis(name, question)
        analysis = narrowed(analysis, task, variant, outcome)
        if question is not None and name is not None:
            store.judged.save_analysis(analysis)
        if labels is not None:
            keep_labels(labels, analysis, store)
        made = answered(analysis, found, store, limit, model)
    say_json(made) if json else show(*told(made))


def new_analysis(name: str | None, question: str) -> Analysis:
    from closeloop.model.analysis import Analysis, Question

    asked = Question(name=name or "question", text=question.strip())
    return Analysis(name=asked.name, question=asked)


def known_analysis(name: str | None, store: Store) -> Analysis:
    from closeloop.judges.questions import QUESTIONS
    from closeloop.model.analysis import Analysis
    from closeloop.model.errors import BadInput, unknown

    if name is None:
        raise BadInput(f"Ask a question, or name one: {', '.join(QUESTIONS)}.")
    kept = store.judged.analyses()
    if name in kept:
        return kept[name]
    if name not in QUESTIONS:
        raise unknown("question", name, [*kept, *QUESTIONS])
    return Analysis(name=name, question=QUESTIONS[name])


def narrowed(
    analysis: Analysis,
    task: str | None,
    variant: str | None,
    outcome: Literal["pass", "fail", "unscored"] | None,
) -> Analysis:
    from msgspec.structs import replace

    return replace(
        analysis,
        task=task or analysis.task,
        variant=variant or analysis.variant,
        outcome=outcome or analysis.outcome,
    )


def keep_labels(file: Path, analysis: Analysis, store: Store) -> None:
    """What people answer."""
    from closeloop.cli.calibrate import sheet_of
    from closeloop.judging.corpus import label_rubric

    store.judged.save_labels(sheet_of(file, label_rubric(analysis)).labels)


def answered(
    analysis: Analysis, found: Configuration, store: Store, limit: int, model: str | None
) -> Tally:
    """Old answers as they were, new ones asked for now."""
    import anyio

    from closeloop.judging.bench import open_bench
    from closeloop.judging.corpus import ask_traces, choose, label_rubric, tally, version
    from closeloop.runs.gateway import Gateway

    question = analysis.question

    async def go() -> Tally:
        async with Gateway(os.environ, found.root) as gateway:
            names = [model] if model else found.settings.judge.models[:1]
            bench = open_bench(found.settings, gateway, found.root, models=names)
            (judge,) = bench.judges
            by = version(judge, question)
            known = store.judged.answers(by)
            chosen = choose(stories(analysis, found, store, limit), question, known)

            def keep(answer: TraceAnswer) -> None:
                store.judged.save_answers(by, [answer])

            made = await ask_traces(judge, question, chosen.new, bench.concurrency, keep)
            labels = store.judged.labels(label_rubric(analysis))
            return tally(analysis, by, [*made, *chosen.old], labels, chosen.findings)

    return anyio.run(go)


def stories(analysis: Analysis, found: Configuration, store: Store, limit: int) -> Iterator[Story]:
    """The attempts that the filter lets through, with what the rules say of each; none sealed."""
    from closeloop.measuring.attempts import book_of, story

    book = book_of(found.settings)
    rows = store.attempts(
        task=analysis.task, variant_name=analysis.variant, outcome=analysis.outcome, limit=limit
    )
    sealed = store.held_out.sealed()
    open_ = [row for row in rows if row.events and row.task_digest not in sealed]
    return (story(store, row.id, book) for row in open_)


def told(made: Tally) -> Iterator[RenderableType]:
    """The count, then every yes with what shows it."""
    from rich.text import Text

    yield Text(visible(made.analysis.question.text), style="bold")
    if made.rate is None:
        yield Text("No trace has an answer.")
    else:
        share = made.rate
        yield Text(
            f"yes for {share.hits:g} of {share.of} ({share.value:.0%}, {share.low:.0%} … "
            f"{share.high:.0%}); {made.attempts - share.of} without an answer"
        )
    if made.corrected is not None and made.corrected.estimate is not None:
        one = made.corrected.estimate
        yield Text(f"as people would answer: {one.value:.0%} ({one.low:.0%} … {one.high:.0%})")
    elif made.corrected is not None:
        yield Text(f"not corrected: {made.corrected.refusal}", style="yellow")
    else:
        yield Text("not corrected: nobody has labelled any of these traces", style="dim")
    for answer in made.answers:
        if answer.verdict == "yes":
            events = ", ".join(map(str, answer.events))
            yield Text(f"{answer.attempt}  events {events}: {visible(answer.text)}")
        elif answer.abstained:
            yield Text(f"{answer.attempt}  no answer: {visible(answer.abstained)}", style="yellow")
