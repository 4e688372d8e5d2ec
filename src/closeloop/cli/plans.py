"""`closeloop plans`: what was orchestrated, task by task and try by try."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.evaluation import CRITERIA
from closeloop.text.wording import count_with_noun, format_percent_range, truncate_at_word

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from closeloop.records.attempt import Usage
    from closeloop.records.estimate import Rate
    from closeloop.records.orchestration import (
        OrchestrationHistory,
        OrchestrationRow,
        PlanGrade,
        PlanTrend,
        SubtaskTry,
    )

GRADE_LETTERS = "ABCF"
MAX_REASON_CHARS = 300
MAX_PROBLEM_CHARS = 120
MAX_OUTPUT_LINES = 6
PASSED_WORDS = {True: "pass", False: "fail", None: "no verdict"}
PASSED_COLOURS = {True: "green", False: "red", None: "yellow"}


def plans(
    plan: str | None = None,
    /,
    *,
    limit: int = 20,
    trend: bool = False,
    patch: bool = False,
    json: JsonFlag = False,
) -> int:
    """List orchestrated plans, the newest first; or show one with its tasks, tries and rates.

    Exits with 1 when the change of a plan is asked for that failed or has not ended.

    Parameters
    ----------
    plan
        The id of a plan, or the beginning of it.
    limit
        How many are listed at the most; with --trend, how many days.
    trend
        By day, the grades of plans, and what each version of the judge said of tries.
    patch
        Print nothing but the merged change of one plan.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import (
        print_json,
        print_parts,
        print_warning,
        require_positive_flags,
    )
    from closeloop.records.errors import BadInput
    from closeloop.store.store_opening import open_existing_store
    from closeloop.text.redaction import redact_new_secrets, redact_patch

    require_positive_flags(limit=limit)
    if trend and (plan is not None or patch):
        raise BadInput("--trend is of all plans: leave out the plan and --patch.")
    if patch and plan is None:
        raise BadInput("Say which plan's change to print: `closeloop plans` lists them.")
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        if trend:
            plan_trend = store.plans.load_trend(limit)
            print_json(plan_trend) if json else print_parts(*render_plan_trend(plan_trend))
            return 0
        if plan is None:
            rows = store.plans.list_plans(limit)
            print_json(rows) if json else print_parts(
                plans_table(rows, store.plans.running_plan_ids())
            )
            return 0
        story = store.plans.load_story(plan)
        grade = store.plans.load_grade(story.plan.id) if story.ending else None
        attempt = story.ending.attempt if story.ending else None
        change = store.load_exact_change(attempt) if attempt else None
    merged_patch = change.patch if change else ""
    if patch and (why := refuse_patch(story, merged_patch)) is not None:
        print_warning(why)
        return 1
    if patch:
        print(redact_new_secrets(merged_patch), end="")  # noqa: T201 - to be applied
    elif json:
        print_json(plan_to_map(story, grade) | {"patch": redact_patch(merged_patch)})
    else:
        print_parts(*render_plan(story, grade))
    return 0


def refuse_patch(story: OrchestrationHistory, merged_patch: str) -> str | None:
    """Why there is no change of a plan to be applied; None where there is."""
    ending, name = story.ending, story.plan.id
    if ending is None:
        return f"Plan {name} has not ended: `closeloop orchestrate --resume {name}` goes on."
    if ending.passed is False:
        reason = truncate_at_word(ending.summary, MAX_REASON_CHARS).rstrip(".")
        return f"Plan {name} failed, so there is nothing to apply: {reason}."
    if ending.attempt is None or (story.plan.handed_in and not merged_patch):
        return f"Plan {name} left no change here: whoever carried it out has it."
    return None


def plan_to_map(story: OrchestrationHistory, grade: PlanGrade | None) -> dict[str, Any]:
    """A plan for programs."""
    from closeloop.cli.console import record_to_map
    from closeloop.orchestration.plan_ending import measure_plan_rates

    return {
        **record_to_map(story),
        "rates": record_to_map(measure_plan_rates(story)),
        "grade": None if grade is None else record_to_map(grade),
    }


def plans_table(rows: list[OrchestrationRow], under_way: Collection[str]) -> RenderableType:
    """A row a plan."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text("No plans: `closeloop orchestrate` makes one.")
    table = Table(box=None)
    for name in ("plan", "begun", "", "grade", "score", "tasks", "tries", "cost", "request"):
        table.add_column(name, no_wrap=name != "request")
    for row in rows:
        state, passed = PASSED_WORDS[row.passed] if row.ended else "unfinished", row.passed
        if row.id in under_way:
            state, passed = "under way", None
        table.add_row(
            row.id,
            f"{row.at:%Y-%m-%d %H:%M}",
            Text(state, style=PASSED_COLOURS[passed]),
            (row.grade and row.grade.letter) or "–",
            format_score(row.grade.score if row.grade else None),
            str(row.tasks),
            str(row.tries),
            format_plan_cost(row.cost),
            Text(truncate_at_word(make_visible(row.request), 80)),
        )
    return table


def render_plan(story: OrchestrationHistory, grade: PlanGrade | None) -> Iterator[RenderableType]:
    """One plan: its verdict and grade, its tries, its rates, what it cost."""
    from rich.text import Text

    from closeloop.orchestration.plan_ending import measure_plan_rates

    ending = story.ending
    title = Text(f"plan {story.plan.id}  ", style="bold")
    passed = ending.passed if ending else None
    title.append(PASSED_WORDS[passed] if ending else "unfinished", style=PASSED_COLOURS[passed])
    if grade is not None and grade.letter is not None:
        scores = f", mean score {format_score(grade.score)}, weakest {format_score(grade.weakest)}"
        title.append(f"  grade {grade.letter}{scores if grade.weakest is not None else ''}")
    yield title
    yield Text(f"  {truncate_at_word(make_visible(story.plan.request), 200)}", style="dim")
    yield plan_tries_table(story)
    for task, why in (ending.not_begun if ending else {}).items():
        yield Text(f"{task} was not begun: {make_visible(why)}", style="yellow")
    yield from render_whole_failures(story)
    if ending and ending.held:
        yield Text(f"stopped: {make_visible(ending.held)}", style="yellow")
    plan_rates = measure_plan_rates(story)
    yield Text(
        f"first try {format_share(plan_rates.first_try)} · after feedback"
        f" {format_share(plan_rates.after_feedback)} · in the end {format_share(plan_rates.final)}"
    )
    retry_text = (
        f"; of that, trying again {format_plan_usage(plan_rates.retry_usage)},"
        f" {plan_rates.retry_seconds or 0:.1f} s"
    )
    yield Text(
        "work and judging"
        f" {format_plan_usage(plan_rates.usage)}{retry_text if plan_rates.retry_seconds else ''}",
        style="dim",
    )
    planning = story.plan.planning
    if planning is not None:
        yield Text(
            f"planned by {make_visible(planning.model)}: {format_plan_usage(planning.usage)}",
            style="dim",
        )
    if ending is None and not story.plan.handed_in:
        yield Text(f"closeloop orchestrate --resume {story.plan.id}   # goes on")
    elif ending is not None and ending.attempt:
        if ending.passed is not False:
            command = f"closeloop plans {story.plan.id} --patch   # the merged change"
            yield Text(command, style="dim")
        shown = (
            ("show", "as an attempt")
            if story.plan.handed_in
            else ("measure", "how it was handed on")
        )
        yield Text(f"closeloop {shown[0]} {ending.attempt}   # {shown[1]}", style="dim")


def render_whole_failures(story: OrchestrationHistory) -> Iterator[RenderableType]:
    """Why all changes together fail, though tasks passed."""
    from rich.text import Text

    from closeloop.orchestration.plan_ending import describe_failing_checks

    if story.ending is None:
        return
    for failure in describe_failing_checks(story.ending.checks, story.ending.broken_by):
        first, *output = make_visible(failure).splitlines()
        yield Text(f"all together: {first}", style="red")
        yield from (Text(f"  {line}", style="dim") for line in output[-MAX_OUTPUT_LINES:])


def plan_tries_table(story: OrchestrationHistory) -> Table:
    """A row a try, by task."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("task", "try", "", "score", "variant", "seconds", "cost", "what is wrong"):
        table.add_column(name, no_wrap=name != "what is wrong")
    for task in story.plan.tasks:
        for one in (one for one in story.tries if one.execution.task == task.id):
            passed = one.assessment.passed if one.assessment else None
            score = one.assessment.score if one.assessment else None
            table.add_row(
                one.execution.task,
                str(one.execution.number),
                Text(PASSED_WORDS[passed], style=PASSED_COLOURS[passed]),
                format_score(score),
                Text(make_visible(one.execution.variant)),
                "–" if one.execution.seconds is None else f"{one.execution.seconds:.1f}",
                format_plan_cost(one.execution.usage.cost),
                Text(describe_problem(one), style="dim"),
            )
    return table


def describe_problem(one: SubtaskTry) -> str:
    """What was wrong with a try, shortened."""
    if one.assessment is None:
        return "not judged yet"
    texts = [issue.text for issue in one.assessment.issues] or [one.assessment.why or ""]
    first = truncate_at_word(make_visible(texts[0]), MAX_PROBLEM_CHARS)
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    ignored = " · feedback ignored" if one.assessment.ignored else ""
    return first + more + ignored


def render_plan_trend(trend: PlanTrend) -> Iterator[RenderableType]:
    """By day: the plans that ended by grade, then the tries by version of the judge."""
    from rich.table import Table
    from rich.text import Text

    if not trend.quality:
        yield Text("No plan was judged yet: `closeloop orchestrate` and `closeloop judge -` do it.")
        return
    totals = trend.totals
    yield Text(
        f"plans passed {format_rate(totals.passed)} · tasks at the first try"
        f" {format_rate(totals.first_try)} · after feedback {format_rate(totals.after_feedback)}"
        f" · in the end {format_rate(totals.final)}"
    )
    yield Text()
    grades = Table(box=None)
    for name in ("plans ended", "", "pass", *GRADE_LETTERS):
        grades.add_column(name, no_wrap=True)
    for day in trend.grades:
        counts = [str(day.grades.get(letter, 0)) for letter in GRADE_LETTERS]
        grades.add_row(f"{day.day:%Y-%m-%d}", str(day.plans), format_rate(day.passed), *counts)
    yield grades
    quality = Table(box=None)
    for name in ("tries judged", "", "pass", "first tries", "score", *CRITERIA, "judge"):
        quality.add_column(name, no_wrap=True)
    for one in trend.quality:
        quality.add_row(
            f"{one.day:%Y-%m-%d}",
            str(one.judged),
            format_rate(one.passed),
            format_rate(one.first_try),
            *map(format_score, (one.score, one.completeness, one.quality, one.relevance)),
            one.judge or "–",
        )
    yield Text()
    yield quality
    yield Text(
        "A row is of one version of the judge: others' scores are not the same thing.", "dim"
    )


def format_score(score: float | None) -> str:
    return "–" if score is None else f"{score:.2f}"


def format_rate(made: Rate | None) -> str:
    return (
        "–"
        if made is None
        else f"{format_share(made)} ({format_percent_range(made.low, made.high)})"
    )


def format_share(made: Rate | None) -> str:
    return "–" if made is None else f"{made.hits:g} of {made.of}"


def format_plan_usage(usage: Usage) -> str:
    from closeloop.records.attempt import count_prompt_tokens

    sent = count_with_noun(count_prompt_tokens(usage) or 0, "token")
    return f"{sent} in, {usage.output_tokens or 0:,} out, {format_plan_cost(usage.cost)}"


def format_plan_cost(cost: float | None) -> str:
    return "–" if cost is None else f"${cost:.4f}"
