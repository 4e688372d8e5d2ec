"""`closeloop show`: one attempt, readable from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import visible
from closeloop.model.plural import plural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from closeloop.model.attempt import Attempt, Grade, Usage
    from closeloop.model.evaluation import Evaluation
    from closeloop.model.measurement import Measurement
    from closeloop.model.plan import Story
    from closeloop.model.session import Session
    from closeloop.model.trace import AnyEvent, Trace
    from closeloop.store import Store

SHORT_LINES = 6
SHORT_DIFF_LINES = 200
SHORT_TEXT = 600
SHORT_TITLE = 4


def show(
    attempt: str,
    *,
    full: bool = False,
    json: bool = False,
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
    from closeloop.measuring.attempts import book_of
    from closeloop.measuring.attempts import story as story_of
    from closeloop.tasks.seal import demand_open

    found = load(Path.cwd())
    with flow.open_kept_store(found.settings, found.root) as store:
        story = judged(story_of(store, attempt, book_of(found.settings)), store)
    demand_open(story.task)
    if json:
        console.say_json(story)
        return
    console.show(*render(story, full=full))


def judged(story: Story, store: Store) -> Story:
    """With what models say of it: their findings, and of each judge the newest evaluation."""
    from msgspec.structs import replace

    from closeloop.judges.questions import with_answers

    name, made = story.attempt.id, story.measurement
    answers = store.judged.found(name).get(name, [])
    newest: dict[str, Evaluation] = {}
    for one in store.judged.evaluations(attempt=name):
        newest.setdefault(one.judge, one)
    return replace(
        story,
        measurement=replace(made, findings=with_answers(made.findings, answers)),
        evaluations=tuple(newest.values()),
    )


def evaluated(evaluations: Sequence[Evaluation]) -> Iterator[RenderableType]:
    """What judges say."""
    from rich.text import Text

    from closeloop.cli.judge import told_one

    if evaluations:
        yield Text("\nWhat judges say", style="bold")
    for one in evaluations:
        yield from told_one(one)


def render(story: Story, *, full: bool) -> Iterator[RenderableType]:
    """All of it, as lines for a terminal."""
    yield from head(story)
    if story.trace is not None:
        yield from measured(story.measurement)
    yield from evaluated(story.evaluations)
    if story.trace is not None:
        yield from events(story.trace, full=full)
    if story.change is not None and story.change.patch:
        yield from change(story.change.patch, full=full)
    if story.grade is not None:
        yield from tests(story.grade, full=full)
    yield from lacked(story, full=full)


def head(story: Story) -> Iterator[Text]:
    """Who tried what, and how it ended."""
    from rich.text import Text

    from closeloop.cli.results import MARKS

    made, grade = story.attempt, story.grade
    outcome = grade.outcome if grade else None
    mark, colour = MARKS[outcome.result if outcome else "unscored"]
    if story.session is None:
        state = f"{mark} {outcome.result if outcome else 'not graded'}"
        variant = story.variant.name if story.variant else "?"
        title = f"{made.task} by {variant}, repeat {made.number}"
    else:
        state, colour = (f"{mark} {outcome.result}", colour) if outcome else ("session", "cyan")
        title = who(story.session)
    yield Text.assemble(
        (state, f"bold {colour}"), (visible(f"  {title}"), "bold"), (f"  {made.id}", "dim")
    )
    if story.session is not None:
        yield Text(f"  {visible(where(story))}", style="dim")
    for reason in outcome.reasons if outcome else ():
        yield Text(f"  {visible(reason)}", style=colour)
    if outcome and outcome.cause:
        yield Text(f"  {visible(outcome.cause)}", style=colour)
    exit_line = f"exit {made.exit}" + (f": {made.cause}" if made.cause else "")
    usage = made.usage
    facts = [exit_line]
    if made.started and made.ended:
        facts.append(f"{(made.ended - made.started).total_seconds():.1f} s")
    for count, way in ((usage.input_tokens, "in"), (usage.output_tokens, "out")):
        if count is not None:
            facts.append(f"{plural(count, 'token')} {way}")
    if usage.cache_read_tokens:
        facts.append(f"{usage.cache_read_tokens:,} from the cache")
    if usage.cost is not None:
        facts.append(f"${usage.cost:.4f}" + (" by list prices" if listed(usage) else ""))
    yield Text("  " + visible(" · ".join(facts)), style="dim")
    yield from unfinished(made)
    yield from graded_facts(grade)


def unfinished(made: Attempt) -> Iterator[Text]:
    """Where the work of an attempt that did not finish can be had."""
    from rich.text import Text

    if made.origin == "experiment" and made.branch is not None:
        yield Text(visible(f"  its work is on the branch {made.branch}"), style="dim")


def listed(usage: Usage) -> bool:
    """Whether the cost is our own sum."""
    return usage.cost_from == "prices"


def who(session: Session) -> str:
    """`claude-code 2.1.0 with claude-sonnet-4-5, session 0b1c…`."""
    agent = " ".join(filter(None, (session.agent, session.agent_version)))
    model = f" with {session.model}" if session.model else ""
    return f"{agent}{model}, session {session.id}"


def where(story: Story) -> str:
    """When and where a session went on, as far as it is known."""
    made, session = story.attempt, story.session
    facts = [
        made.started and f"{made.started:%Y-%m-%d %H:%M} UTC",
        made.repo,
        made.branch and f"branch {made.branch}",
        session and session.directory != made.repo and session.directory,
        made.user,
        made.parent and f"continues {made.parent}",
    ]
    return " · ".join(fact for fact in facts if fact) or "when and where is not known"


EVIDENCE = {
    "confirmed": "confirmed: the tests pass in a second process, under other names",
    "reported": "reported once: the tests could not be confirmed in a second process",
    "weak": "weak: known by exit codes alone",
}


def graded_facts(grade: Grade | None) -> Iterator[Text]:
    """What grading noticed besides the tests."""
    from rich.text import Text

    if grade is None:
        return
    for label, paths in (
        ("outside the scope", grade.out_of_scope),
        ("restored before grading", grade.restored),
    ):
        if paths:
            yield Text(visible(f"  {label}: {', '.join(paths)}"), style="yellow")
    if grade.set_aside:
        tests = ", ".join(grade.set_aside)
        yield Text(visible(f"  the agent's own tests, left out of the verdict: {tests}"), "dim")
    if grade.evidence is not None:
        yield Text(f"  {EVIDENCE[grade.evidence]}", style="dim")
    if grade.files_precision is not None and grade.files_recall is not None:
        yield Text(
            f"  files changed against the reference: precision {grade.files_precision:.2f}, "
            f"recall {grade.files_recall:.2f}",
            style="dim",
        )


def measured(measurement: Measurement) -> Iterator[Text]:
    """What the rules say: how the loop went, and each finding with its events."""
    from rich.text import Text

    from closeloop.cli.measure import RATES, finding_line, of

    whole, score = measurement.whole, measurement.score
    rates = [f"{name} {of(rate)}" for name in RATES if (rate := getattr(score, name))]
    after = f", converged after {whole.converged_after}" if whole.converged else ""
    loop = plural(whole.iterations, "iteration")
    yield Text(f"  {loop}{after}" + "".join(f" · {rate}" for rate in rates), "dim")
    if measurement.ending is not None and measurement.ending.category != "clean":
        ending = f"{measurement.ending.category}: {measurement.ending.reason}"
        yield Text(f"  {visible(ending)}", style="yellow")
    for tag in measurement.modes:
        yield Text(f"  {tag.mode}: {visible(tag.reason)}", style="yellow")
    for finding in measurement.findings:
        if finding.silenced is None:
            yield finding_line(finding)


def events(trace: Trace, *, full: bool) -> Iterator[Text]:
    """The trace, an event a paragraph; a sub-agent's lane is indented."""
    from rich.text import Text

    from closeloop.traces.lanes import depths

    yield Text("\nWhat happened", style="bold")
    depth = depths(trace.lanes)
    for event in trace.events:
        indent = "    " * depth.get(event.lane, 0)
        title, body, style = told(event)
        first, *rest = shortened(title, full=full, most=SHORT_TITLE) or [""]
        line = Text(f"{indent}{'#' + str(event.number):>4} ", style="dim")
        line.append(first, style=style)
        yield line
        for text in (*rest, *shortened(body, full=full)):
            yield Text(f"{indent}     {text}", style="dim")
    for why, count in trace.skipped.items():
        yield Text(visible(f"  {plural(count, 'record')} skipped: {why}"), style="yellow")


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
            line, *more = command.splitlines() or [""]
            colour = {0: "green", None: "yellow"}.get(code, "red")
            return "\n".join([f"$ {line}   → {ended}", *more]), output, colour
        case t.Edit(path=path, action=action, ok=ok, error=error):
            failed = f"   → {error}" if ok is False else ""
            return f"{action} {path}{failed}", edited(event), "red" if failed else "magenta"
        case t.Read(path=path, ok=ok, error=error):
            return f"read {path}" + (f"   → {error}" if ok is False else ""), None, "blue"
        case t.ToolUse(name=name, arguments=arguments, output=output, ok=ok):
            failed = "   → failed" if ok is False else ""
            return f"{name} {arguments or ''}{failed}", output, "red" if failed else "blue"
        case t.Handoff(brief=brief, child=child, report=report):
            came = "nothing" if report is None else report
            to = child or "a sub-agent whose work is not recorded"
            return f"hands over to {to}", f"brief: {brief}\nreport: {came}", "yellow"
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


def shortened(text: str | None, *, full: bool, most: int = SHORT_LINES) -> list[str]:
    """The lines worth showing: all of them, or the last few, where failures speak."""
    lines = visible(text or "").strip("\n").splitlines()
    if full:
        return lines
    if len(lines) > most:
        left_out = f"… {plural(len(lines) - most, 'line')} (--full shows them)"
        lines = [left_out, *lines[-most:]] if most == SHORT_LINES else [*lines[:most], left_out]
    return [line if len(line) <= SHORT_TEXT else line[:SHORT_TEXT] + " …" for line in lines]


def change(patch: str, *, full: bool) -> Iterator[Text]:
    """The diff, coloured."""
    from rich.text import Text

    yield Text("\nThe change", style="bold")
    lines = visible(patch).splitlines()
    for line in lines if full else lines[:SHORT_DIFF_LINES]:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        yield Text(line, style="bold" if line.startswith("diff ") else style)
    if not full and len(lines) > SHORT_DIFF_LINES:
        more = plural(len(lines) - SHORT_DIFF_LINES, "line")
        yield Text(f"… {more} (--full shows them)", style="dim")


def lacked(story: Story, *, full: bool) -> Iterator[Text]:
    """What the agent said it lacked."""
    from rich.text import Text

    for insight in story.insights:
        yield Text("\nWhat the agent lacked, as it says", style="bold")
        for line in shortened(insight.text, full=full):
            yield Text(f"  {line}")


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
