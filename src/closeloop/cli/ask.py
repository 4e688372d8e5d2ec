"""`closeloop ask`: one narrow question to every trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.cli.console import make_visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.experiment_plan import AttemptDetails
    from closeloop.records.trace_analysis import Analysis, AnalysisResult, TraceAnswer
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
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.cli.flag_checks import require_positive_flags, require_utf8_text
    from closeloop.records.errors import BadInput

    require_positive_flags(limit=limit)
    if question is not None and not question.strip():
        raise BadInput("The question is empty: write one that yes or no answers.")
    require_utf8_text(question or "", "The question")
    project = load_project(Path.cwd())
    writes_store = labels is not None or (question is not None and name is not None)
    store_opener = flow.open_project_store if writes_store else flow.open_existing_store
    with store_opener(project.settings, project.root) as store:
        analysis = (
            find_analysis(name, store) if question is None else build_analysis(name, question)
        )
        analysis = narrow_analysis(analysis, task, variant, outcome)
        if question is not None and name is not None:
            store.judged.save_analysis(analysis)
        if labels is not None:
            save_labels_file(labels, analysis, store)
        result = answer_analysis(analysis, project, store, limit, model)
    print_json(result) if json else print_parts(*render_tally(result))


def build_analysis(name: str | None, question: str) -> Analysis:
    from closeloop.records.trace_analysis import Analysis, TraceQuestion

    new_question = TraceQuestion(name=name or "question", text=question.strip())
    return Analysis(name=new_question.name, question=new_question)


def find_analysis(name: str | None, store: Store) -> Analysis:
    from closeloop.judges.trace_questions import QUESTIONS
    from closeloop.records.errors import BadInput, unknown_name_error
    from closeloop.records.trace_analysis import Analysis

    if name is None:
        raise BadInput(f"Ask a question, or name one: {', '.join(QUESTIONS)}.")
    saved_analyses = store.judged.load_analyses()
    if name in saved_analyses:
        return saved_analyses[name]
    if name not in QUESTIONS:
        raise unknown_name_error("question", name, [*saved_analyses, *QUESTIONS])
    return Analysis(name=name, question=QUESTIONS[name])


def narrow_analysis(
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


def save_labels_file(file: Path, analysis: Analysis, store: Store) -> None:
    """What people answer."""
    from closeloop.cli.calibrate import load_label_sheet
    from closeloop.judges.corpus_questions import label_rubric_name

    store.judged.save_labels(load_label_sheet(file, label_rubric_name(analysis)).labels)


def answer_analysis(
    analysis: Analysis, found: ProjectConfiguration, store: Store, limit: int, model: str | None
) -> AnalysisResult:
    """Old answers as they were, new ones asked for now."""
    import anyio

    from closeloop.gateway import Gateway
    from closeloop.judges.corpus_questions import (
        ask_about_traces,
        label_rubric_name,
        question_version,
        select_traces,
        tally_answers,
    )
    from closeloop.judges.judge_panel import open_judge_panel

    question = analysis.question

    async def ask_judge() -> AnalysisResult:
        async with Gateway(os.environ, found.root) as gateway:
            names = [model] if model else found.settings.judge.models[:1]
            panel = open_judge_panel(found.settings, gateway, found.root, models=names)
            (judge,) = panel.judges
            judge_version = question_version(judge, question)
            known_answers = store.judged.load_answers(judge_version)
            selection = select_traces(
                load_analysis_stories(analysis, found, store, limit), question, known_answers
            )

            def save_answer(answer: TraceAnswer) -> None:
                store.judged.save_answers(judge_version, [answer])

            new_answers = await ask_about_traces(
                judge, question, selection.new, panel.concurrency, save_answer
            )
            labels = store.judged.list_labels(label_rubric_name(analysis))
            return tally_answers(
                analysis, judge_version, [*new_answers, *selection.old], labels, selection.findings
            )

    return anyio.run(ask_judge)


def load_analysis_stories(
    analysis: Analysis, found: ProjectConfiguration, store: Store, limit: int
) -> Iterator[AttemptDetails]:
    """The attempts that the filter lets through, with what the rules say of each; none sealed."""
    from closeloop.metrics.attempt_measuring import load_story, project_rulebook

    book = project_rulebook(found.settings)
    rows = store.list_attempts(
        task=analysis.task, variant_name=analysis.variant, outcome=analysis.outcome, limit=limit
    )
    sealed = store.held_out.list_sealed_digests()
    unsealed_rows = [row for row in rows if row.events and row.task_digest not in sealed]
    return (load_story(store, row.id, book) for row in unsealed_rows)


def render_tally(made: AnalysisResult) -> Iterator[RenderableType]:
    """The count, then every yes with what shows it."""
    from rich.text import Text

    yield Text(make_visible(made.analysis.question.text), style="bold")
    if made.rate is None:
        yield Text("No trace has an answer.")
    else:
        yes_rate = made.rate
        yield Text(
            f"yes for {yes_rate.hits:g} of {yes_rate.of} ({yes_rate.value:.0%}, {yes_rate.low:.0%}"
            f" … {yes_rate.high:.0%}); {made.attempts - yes_rate.of} without an answer"
        )
    if made.corrected is not None and made.corrected.estimate is not None:
        corrected_rate = made.corrected.estimate
        yield Text(
            f"as people would answer: {corrected_rate.value:.0%} ({corrected_rate.low:.0%} …"
            f" {corrected_rate.high:.0%})"
        )
    elif made.corrected is not None:
        yield Text(f"not corrected: {made.corrected.refusal}", style="yellow")
    else:
        yield Text("not corrected: nobody has labelled any of these traces", style="dim")
    for answer in made.answers:
        if answer.verdict == "yes":
            events = ", ".join(map(str, answer.events))
            yield Text(f"{answer.attempt}  events {events}: {make_visible(answer.text)}")
        elif answer.abstained:
            yield Text(
                f"{answer.attempt}  no answer: {make_visible(answer.abstained)}", style="yellow"
            )
