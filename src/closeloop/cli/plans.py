"""`closeloop plans`: what was orchestrated, task by task and try by try."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeloop.cli.console import visible
from closeloop.model.plural import plural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from closeloop.model.attempt import Usage
    from closeloop.model.orchestration import PlanRow, PlanStory, Try
    from closeloop.model.rates import Rate

WORDS = {True: "pass", False: "fail", None: "no verdict"}
COLOURS = {True: "green", False: "red", None: "yellow"}


def plans(
    plan: str | None = None,
    /,
    *,
    limit: int = 20,
    patch: bool = False,
    json: bool = False,
) -> None:
    """List orchestrated plans, the newest first; or show one with its tasks, tries and rates.

    Parameters
    ----------
    plan
        The id of a plan, or the beginning of it.
    limit
        How many are listed at the most.
    patch
        Print nothing but the merged change of one plan.
    json
        Print one JSON document instead.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json, show
    from closeloop.cli.typed import demand_positive
    from closeloop.model.errors import BadInput
    from closeloop.model.patch_redaction import redact_new_secrets, redact_patch

    demand_positive(limit=limit)
    if patch and plan is None:
        raise BadInput("Say which plan's change to print: `closeloop plans` lists them.")
    found = load(Path.cwd())
    with flow.open_kept_store(found.settings, found.root) as store:
        if plan is None:
            rows = store.plans.listed(limit)
            say_json(rows) if json else show(table(rows, store.plans.under_way()))
            return
        story = store.plans.story(plan)
        attempt = story.ending.attempt if story.ending else None
        change = store.exact_change(attempt) if attempt else None
    merged = change.patch if change else ""
    if patch:
        print(redact_new_secrets(merged), end="")  # noqa: T201 - to be applied
    elif json:
        say_json(document(story) | {"patch": redact_patch(merged)})
    else:
        show(*told(story))


def document(story: PlanStory) -> dict[str, Any]:
    """A plan for programs."""
    from closeloop.cli.console import whole
    from closeloop.runs.orchestrate.rates import rates

    return {**whole(story), "rates": whole(rates(story))}


def table(rows: list[PlanRow], under_way: Collection[str]) -> RenderableType:
    """A row a plan."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text("No plans: `closeloop orchestrate` makes one.")
    made = Table(box=None)
    for name in ("plan", "begun", "", "tasks", "tries", "cost", "request"):
        made.add_column(name, no_wrap=name != "request")
    for row in rows:
        state, passed = WORDS[row.passed] if row.ended else "unfinished", row.passed
        if row.id in under_way:
            state, passed = "under way", None
        made.add_row(
            row.id,
            f"{row.at:%Y-%m-%d %H:%M}",
            Text(state, style=COLOURS[passed]),
            str(row.tasks),
            str(row.tries),
            money(row.cost),
            Text(visible(" ".join(row.request.split())[:80])),
        )
    return made


def told(story: PlanStory) -> Iterator[RenderableType]:
    """One plan: its verdict, its tries, its rates, what it cost."""
    from rich.text import Text

    from closeloop.runs.orchestrate.rates import rates

    ending = story.ending
    title = Text(f"plan {story.plan.id}  ", style="bold")
    passed = ending.passed if ending else None
    title.append(WORDS[passed] if ending else "unfinished", style=COLOURS[passed])
    yield title
    yield Text(f"  {visible(' '.join(story.plan.request.split())[:200])}", style="dim")
    yield tries_table(story)
    for task, why in (ending.not_begun if ending else {}).items():
        yield Text(f"{task} was not begun: {visible(why)}", style="yellow")
    if ending and ending.held:
        yield Text(f"stopped: {visible(ending.held)}", style="yellow")
    made = rates(story)
    yield Text(
        f"first try {share(made.first_try)} · after feedback {share(made.after_feedback)} · "
        f"in the end {share(made.final)}"
    )
    again = f"; of that, trying again {used(made.retry_usage)}, {made.retry_seconds:.1f} s"
    yield Text(
        f"work and judging {used(made.usage)}{again if made.retry_seconds else ''}", style="dim"
    )
    planning = story.plan.planning
    if planning is not None:
        yield Text(f"planned by {visible(planning.model)}: {used(planning.usage)}", style="dim")
    if ending is None:
        yield Text(f"closeloop orchestrate --resume {story.plan.id}   # goes on")
    elif ending.attempt:
        yield Text(f"closeloop plans {story.plan.id} --patch   # the merged change", style="dim")
        yield Text(f"closeloop measure {ending.attempt}   # how it was handed on", style="dim")


def tries_table(story: PlanStory) -> Table:
    """A row a try, by task."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None)
    for name in ("task", "try", "", "score", "variant", "seconds", "cost", "what is wrong"):
        made.add_column(name, no_wrap=name != "what is wrong")
    for task in story.plan.tasks:
        for one in (one for one in story.tries if one.execution.task == task.id):
            passed = one.assessment.passed if one.assessment else None
            score = one.assessment.score if one.assessment else None
            made.add_row(
                one.execution.task,
                str(one.execution.number),
                Text(WORDS[passed], style=COLOURS[passed]),
                "–" if score is None else f"{score:.2f}",
                Text(visible(one.execution.variant)),
                f"{one.execution.seconds:.1f}",
                money(one.execution.usage.cost),
                Text(wrong(one), style="dim"),
            )
    return made


def wrong(one: Try) -> str:
    """What was wrong with a try, shortened."""
    if one.assessment is None:
        return "not judged yet"
    texts = [issue.text for issue in one.assessment.issues] or [one.assessment.why or ""]
    first = " ".join(visible(texts[0]).split())[:120] if texts else ""
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    ignored = " · feedback ignored" if one.assessment.ignored else ""
    return first + more + ignored


def share(made: Rate | None) -> str:
    return "–" if made is None else f"{made.hits:g} of {made.of}"


def used(usage: Usage) -> str:
    parts = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    heard = sum(tokens or 0 for tokens in parts)
    return f"{plural(heard, 'token')} in, {usage.output_tokens or 0:,} out, {money(usage.cost)}"


def money(cost: float | None) -> str:
    return "–" if cost is None else f"${cost:.4f}"
