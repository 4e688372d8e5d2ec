"""`closeloop show`: one attempt, readable from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import visible

if TYPE_CHECKING:
    from rich.text import Text

    from closeloop.model.attempt import Grade
    from closeloop.model.plan import Story
    from closeloop.model.trace import AnyEvent, Trace

SHORT_LINES = 6
SHORT_DIFF_LINES = 200
SHORT_TEXT = 600


def show(
    attempt: str,
    *,
    full: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Show what happened in one attempt: its outcome, events, change and tests.

    Parameters
    ----------
    attempt
        The id of the attempt, or the beginning of it.
    full
        Leave nothing out of commands' output, texts and the change.
    json
        Print one JSON document instead.
    """
    from closeloop import flow
    from closeloop.cli import console
    from closeloop.cli.config import load

    found = load(Path.cwd())
    with flow.open_named_store(found.settings, found.root) as store:
        story = flow.story(store, attempt)
    if json:
        console.say_json(story)
        return
    console.show(*render(story, full=full))


def render(story: Story, *, full: bool) -> Iterator[Text]:
    """All of it, as lines for a terminal."""
    yield from head(story)
    if story.trace is not None:
        yield from events(story.trace, full=full)
    if story.change is not None and story.change.patch:
        yield from change(story.change.patch, full=full)
    if story.grade is not None:
        yield from tests(story.grade, full=full)


def head(story: Story) -> Iterator[Text]:
    """Who tried what, and how it ended."""
    from rich.text import Text

    from closeloop.cli.results import MARKS

    made, grade = story.attempt, story.grade
    variant = story.variant.name if story.variant else "?"
    outcome = grade.outcome if grade else None
    mark, colour = MARKS[outcome.result if outcome else "unscored"]
    yield Text.assemble(
        (f"{mark} {outcome.result if outcome else 'not graded'}", f"bold {colour}"),
        (visible(f"  {made.task} by {variant}, repeat {made.number}"), "bold"),
        (f"  {made.id}", "dim"),
    )
    for reason in outcome.reasons if outcome else ():
        yield Text(f"  {visible(reason)}", style=colour)
    if outcome and outcome.cause:
        yield Text(f"  {visible(outcome.cause)}", style=colour)
    exit_line = f"exit {made.exit}" + (f": {made.cause}" if made.cause else "")
    usage = made.usage
    facts = [exit_line]
    if made.started and made.ended:
        facts.append(f"{(made.ended - made.started).total_seconds():.1f} s")
    if usage.input_tokens is not None or usage.output_tokens is not None:
        facts.append(f"{usage.input_tokens or 0:,} tokens in, {usage.output_tokens or 0:,} out")
    if usage.cost is not None:
        facts.append(f"${usage.cost:.4f}")
    yield Text("  " + visible(" · ".join(facts)), style="dim")
    yield from graded_facts(grade)


def graded_facts(grade: Grade | None) -> Iterator[Text]:
    """What grading noticed besides the tests."""
    from rich.text import Text

    if grade is None:
        return
    for label, paths in (
        ("outside the scope", grade.out_of_scope),
        ("protected, put back before grading", grade.restored),
        ("facts dropped at a handoff", grade.facts_dropped),
    ):
        if paths:
            yield Text(visible(f"  {label}: {', '.join(paths)}"), style="yellow")
    if (grade.same_failure or 0) >= 3:
        yield Text(
            f"  the same failure {grade.same_failure} times running, with edits in between",
            style="yellow",
        )
    if grade.files_precision is not None and grade.files_recall is not None:
        yield Text(
            f"  files changed against the reference: precision {grade.files_precision:.2f}, "
            f"recall {grade.files_recall:.2f}",
            style="dim",
        )


def events(trace: Trace, *, full: bool) -> Iterator[Text]:
    """The trace, an event a paragraph; a sub-agent's lane is indented."""
    from rich.text import Text

    yield Text("\nWhat happened", style="bold")
    depth = {lane.id: 0 if lane.parent is None else 1 for lane in trace.lanes}
    for event in trace.events:
        indent = "    " * depth.get(event.lane, 0)
        title, body, style = told(event)
        line = Text(f"{indent}{'#' + str(event.number):>4} ", style="dim")
        line.append(visible(title), style=style)
        yield line
        for text in shortened(body, full=full):
            yield Text(f"{indent}     {text}", style="dim")
    for why, count in trace.skipped.items():
        yield Text(visible(f"  {count} records skipped: {why}"), style="yellow")


def told(event: AnyEvent) -> tuple[str, str | None, str]:
    """One event as a title, what belongs under it, and a colour."""
    from closeloop.model import trace as t

    match event:
        case t.Message(role=role, intent=intent, text=text):
            who = role if intent is None else f"{role}, {intent}"
            return who, text, "cyan" if role == "user" else "bold"
        case t.Thought(text=text):
            return "thinks", text, "dim"
        case t.Command(command=command, exit_code=code, output=output, stopped=stopped):
            ended = stopped or ("exit unknown" if code is None else f"exit {code}")
            return f"$ {command}   → {ended}", output, "green" if code == 0 else "red"
        case t.Edit(path=path, action=action, ok=ok, error=error):
            failed = f"   → {error}" if ok is False else ""
            return f"{action} {path}{failed}", edited(event), "red" if failed else "magenta"
        case t.Read(path=path, ok=ok, error=error):
            return f"read {path}" + (f"   → {error}" if ok is False else ""), None, "blue"
        case t.ToolUse(name=name, arguments=arguments, output=output):
            return f"{name} {arguments or ''}", output, "blue"
        case t.Handoff(brief=brief, child=child, report=report):
            return f"hands over to {child}", f"brief: {brief}\nreport: {report}", "yellow"
        case t.Note(text=text, about=about):
            return f"note{f', {about}' if about else ''}", text, "yellow"


def edited(event: AnyEvent) -> str | None:
    """An edit as removed and added lines."""
    from closeloop.model.trace import Edit

    assert isinstance(event, Edit)
    if event.patch is not None:
        return event.patch
    removed = [f"- {line}" for line in (event.before or "").splitlines()]
    added = [f"+ {line}" for line in (event.after or "").splitlines()]
    return "\n".join(removed + added) or None


def shortened(text: str | None, *, full: bool) -> Iterator[str]:
    """The lines worth showing: all of them, or the last few, where failures speak."""
    lines = visible(text or "").strip("\n").splitlines()
    if not full and len(lines) > SHORT_LINES:
        yield f"… {len(lines) - SHORT_LINES} lines (--full shows them)"
        lines = lines[-SHORT_LINES:]
    for line in lines:
        yield line if full or len(line) <= SHORT_TEXT else line[:SHORT_TEXT] + " …"


def change(patch: str, *, full: bool) -> Iterator[Text]:
    """The diff, coloured."""
    from rich.text import Text

    yield Text("\nThe change", style="bold")
    lines = visible(patch).splitlines()
    for line in lines if full else lines[:SHORT_DIFF_LINES]:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        yield Text(line, style="bold" if line.startswith("diff ") else style)
    if not full and len(lines) > SHORT_DIFF_LINES:
        yield Text(f"… {len(lines) - SHORT_DIFF_LINES} lines (--full shows them)", style="dim")


def tests(grade: Grade, *, full: bool) -> Iterator[Text]:
    """Tests before and after: those whose result changed or that fail, or all of them."""
    from rich.text import Text

    yield Text("\nTests", style="bold")
    for name, share in (("fail-to-pass", grade.fail_to_pass), ("pass-to-pass", grade.pass_to_pass)):
        if share is not None:
            yield Text(f"  {name}: {share[0]} of {share[1]}")
    before = {test.id: test for test in grade.before.tests} if grade.before else {}
    after = grade.after.tests if grade.after else ()
    for test in after:
        was = before[test.id].status if test.id in before else "absent"
        if full or was != test.status or test.status in ("failed", "error"):
            style = {"passed": "green", "skipped": "dim"}.get(test.status, "red")
            yield Text(visible(f"  {test.id}: {was} → {test.status}"), style=style)
            for line in shortened(test.message, full=full):
                yield Text(f"      {line}", style="dim")
    for command in grade.after.commands if grade.after else ():
        ended = command.stopped or f"exit {command.exit_code}"
        style = "dim" if command.exit_code == 0 else "red"
        yield Text(visible(f"  $ {command.command} → {ended}"), style=style)
