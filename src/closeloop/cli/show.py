"""`closeloop show`: one attempt, readable from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.attempt import AWAITING_REVIEW
from closeloop.text.wording import count_with_noun, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from closeloop.process.rulebook import Rulebook
    from closeloop.records.attempt import Grade, Usage
    from closeloop.records.evaluation import Evaluation
    from closeloop.records.experiment_plan import AttemptDetails
    from closeloop.records.finding import HandoffFacts, Measurement
    from closeloop.records.score import Score
    from closeloop.records.session import Session
    from closeloop.records.trace import AnyEvent, Trace
    from closeloop.store import Store

MAX_SHORT_LINES = 6
MAX_DIFF_LINES = 200
MAX_LINE_CHARS = 600
MAX_TITLE_LINES = 4


def show(
    attempt: str | None = None,
    *,
    task: str | None = None,
    full: bool = False,
    json: JsonFlag = False,
) -> None:
    """Show what happened in one attempt: its outcome, events, change and tests.

    Parameters
    ----------
    attempt
        The id of the attempt, or the beginning of it.
    task
        Show all repeats of this task instead, a row each.
        Iterations, output used, and whether the original failure is fixed.
    full
        Leave nothing out of commands' output, texts and the change.
    """
    from msgspec.structs import replace

    from closeloop.cli import console
    from closeloop.cli.config import load_project
    from closeloop.metrics.attempt_measuring import load_story as story_of
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.metrics.task_log import load_task_log
    from closeloop.records.errors import BadInput
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.store.store_opening import open_existing_store
    from closeloop.tasks.sealed_tasks import require_unsealed

    if (attempt is None) == (task is None):
        raise BadInput("Name either an attempt, or a task with --task.")
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        book = project_rulebook(project.settings)
        if attempt is None:
            show_task_repeats(store, book, task or "", json=json)
            return
        story = add_judge_opinions(story_of(store, attempt, book), store)
        require_unsealed(story.task)
        agents = merge_known_agents(project.settings.pulls.agents)
        story = replace(story, log=load_task_log(store, story.attempt.id, agents))
    if json:
        console.print_json(story)
        return
    console.print_parts(*render_story(story, full=full))


def show_task_repeats(store: Store, book: Rulebook, task: str, *, json: bool) -> None:
    """One task over its repeats."""
    from closeloop.cli.console import print_json, print_parts
    from closeloop.cli.task_repeats import render_task_repeats
    from closeloop.metrics.task_repeats import load_task_repeats
    from closeloop.store.metrics_section import AttemptSpan

    would_merge = store.scores.load_merging_shares(AttemptSpan())
    repeats = load_task_repeats(store, book, task, would_merge)
    print_json(repeats) if json else print_parts(*render_task_repeats(repeats))


def add_judge_opinions(story: AttemptDetails, store: Store) -> AttemptDetails:
    """With what models say of it: their findings, and of each judge the newest evaluation."""
    from msgspec.structs import replace

    from closeloop.judges.trace_questions import add_answer_findings

    name, measurement = story.attempt.id, story.measurement
    answers = store.judged.positive_answers(name).get(name, [])
    newest: dict[str, Evaluation] = {}
    for one in store.judged.list_evaluations(attempt=name):
        newest.setdefault(one.judge, one)
    return replace(
        story,
        measurement=replace(
            measurement, findings=add_answer_findings(measurement.findings, answers)
        ),
        evaluations=tuple(newest.values()),
    )


def render_evaluation_list(evaluations: Sequence[Evaluation]) -> Iterator[RenderableType]:
    """What judges say."""
    from rich.text import Text

    from closeloop.cli.judge import render_evaluation

    if evaluations:
        yield Text("\nWhat judges say", style="bold")
    for one in evaluations:
        yield from render_evaluation(one)


def render_score_list(scores: Sequence[Score]) -> Iterator[RenderableType]:
    """What people, judges and scorers gave it."""
    from rich.text import Text

    known = [one for one in scores if one.value is not None or one.label is not None]
    if known:
        yield Text("\nScores", style="bold")
    for one in known:
        value = one.label if one.value is None else f"{one.value:.3g}"
        note = f"  {one.note}" if one.note else ""
        line = f"  {one.name} {value}  {one.source} {one.by}, {one.at:%Y-%m-%d}{note}"
        yield Text(make_visible(line))


def render_story(story: AttemptDetails, *, full: bool) -> Iterator[RenderableType]:
    """All of it, as lines for a terminal."""
    from closeloop.cli.task_log import render_task_log

    yield from render_story_head(story)
    if story.trace is not None:
        yield from render_measurement(story.measurement)
        yield from render_handoff_facts(story.handoffs, full=full)
    yield from render_modes(story.measurement)
    yield from render_evaluation_list(story.evaluations)
    yield from render_score_list(story.scores)
    if story.log is not None:
        yield from render_task_log(story.log, full=full)
    if story.trace is not None and (story.trace.events or story.trace.skipped):
        yield from render_trace_events(story.trace, full=full)
    elif story.attempt.summary:
        yield from render_answer(story.attempt.summary, full=full)
    if story.change is not None and story.change.patch:
        yield from render_change_lines(story.change.patch, full=full)
    if story.grade is not None and story.grade.after is not None:
        yield from render_test_results(story.grade, full=full)
    yield from render_insights(story, full=full)


def render_story_head(story: AttemptDetails) -> Iterator[Text]:
    """Who tried what, and how it ended."""
    from rich.text import Text

    from closeloop.cli.run_output import OUTCOME_MARKS

    attempt, grade = story.attempt, story.grade
    outcome = grade.outcome if grade else None
    mark, colour = OUTCOME_MARKS[outcome.result if outcome else "unscored"]
    if story.session is None:
        state_text = f"{mark} {outcome.result if outcome else 'not graded'}"
        variant = story.variant.name if story.variant else "?"
        title = f"{attempt.task} by {variant}, repeat {attempt.number}"
    else:
        state_text, colour = (
            (f"{mark} {outcome.result}", colour) if outcome else ("session", "cyan")
        )
        title = describe_session_agent(story.session)
    yield Text.assemble(
        (state_text, f"bold {colour}"),
        (make_visible(f"  {title}"), "bold"),
        (f"  {attempt.id}", "dim"),
    )
    if story.session is not None:
        yield Text(f"  {make_visible(describe_session_place(story))}", style="dim")
    for reason in outcome.reasons if outcome else ():
        yield Text(f"  {make_visible(reason)}", style=colour)
    if outcome and outcome.cause:
        cause = describe_reviews(story.scores) if outcome.cause == AWAITING_REVIEW else None
        yield Text(f"  {make_visible(cause or outcome.cause)}", style=colour)
    exit_line = f"exit {attempt.exit}" + (f": {attempt.cause}" if attempt.cause else "")
    usage = attempt.usage
    facts = [exit_line]
    if attempt.started and attempt.ended:
        facts.append(f"{(attempt.ended - attempt.started).total_seconds():.1f} s")
    for count, way in ((usage.input_tokens, "in"), (usage.output_tokens, "out")):
        if count is not None:
            facts.append(f"{count_with_noun(count, 'token')} {way}")
    if usage.cache_read_tokens:
        facts.append(f"{usage.cache_read_tokens:,} from the cache")
    if usage.cost is not None:
        facts.append(
            f"${usage.cost:.4f}" + (" by list prices" if is_cost_from_prices(usage) else "")
        )
    yield Text("  " + make_visible(" · ".join(facts)), style="dim")
    yield from render_attempt_notes(story)
    yield from render_grade_facts(grade)


def describe_reviews(scores: Sequence[Score]) -> str | None:
    """What people would do with it; None where nobody said."""
    said = [
        one.value
        for one in scores
        if one.name == "would-merge" and one.source == "person" and one.value is not None
    ]
    if not said:
        return None
    return f"by review: {sum(value > 0.5 for value in said)} of {len(said)} would merge it"


def render_attempt_notes(story: AttemptDetails) -> Iterator[Text]:
    """That it is a replay; and where the work of an attempt that did not finish can be had."""
    from rich.text import Text

    made = story.attempt
    if story.replay_of is not None:
        replay = f"  a replay of {story.replay_of}: it counts in no comparison, metric or cost"
        yield Text(make_visible(replay), style="yellow")
    if made.origin == "experiment" and made.branch is not None:
        yield Text(make_visible(f"  its work is on the branch {made.branch}"), style="dim")


def is_cost_from_prices(usage: Usage) -> bool:
    """Whether the cost is our own sum."""
    return usage.cost_from == "prices"


def describe_session_agent(session: Session) -> str:
    """`claude-code 2.1.0 with claude-sonnet-4-5, session 0b1c…`."""
    agent = " ".join(filter(None, (session.agent, session.agent_version)))
    model = f" with {session.model}" if session.model else ""
    return f"{agent}{model}, session {session.id}"


def describe_session_place(story: AttemptDetails) -> str:
    """When and where a session went on, as far as it is known."""
    attempt, session = story.attempt, story.session
    facts = [
        attempt.started and f"{attempt.started:%Y-%m-%d %H:%M} UTC",
        attempt.repo,
        attempt.branch and f"branch {attempt.branch}",
        session and session.directory != attempt.repo and session.directory,
        attempt.user,
        attempt.parent and f"continues {attempt.parent}",
    ]
    return " · ".join(fact for fact in facts if fact) or "when and where is not known"


EVIDENCE_WORDS = {
    "confirmed": "confirmed: the tests pass in a second process, under other names",
    "reported": "reported once: the tests could not be confirmed in a second process",
    "weak": "weak: known by exit codes alone",
}


def render_grade_facts(grade: Grade | None) -> Iterator[Text]:
    """What grading noticed besides the tests."""
    from rich.text import Text

    if grade is None:
        return
    for label, paths in (
        ("outside the scope", grade.out_of_scope),
        ("restored before grading", grade.restored),
    ):
        if paths:
            yield Text(make_visible(f"  {label}: {', '.join(paths)}"), style="yellow")
    if grade.set_aside:
        tests = ", ".join(grade.set_aside)
        yield Text(
            make_visible(f"  the agent's own tests, left out of the verdict: {tests}"), "dim"
        )
    if grade.evidence is not None:
        yield Text(f"  {EVIDENCE_WORDS[grade.evidence]}", style="dim")
    if grade.files_precision is not None and grade.files_recall is not None:
        yield Text(
            f"  files changed against the reference: precision "
            f"{format_percent(grade.files_precision)}, recall {format_percent(grade.files_recall)}",
            style="dim",
        )


def render_measurement(measurement: Measurement) -> Iterator[Text]:
    """What the rules say: how the loop went, and each finding with its events."""
    from rich.text import Text

    from closeloop.cli.measure import RATE_NAMES, format_hits, render_finding_line

    whole, score = measurement.whole, measurement.score
    rates = [f"{name} {format_hits(rate)}" for name in RATE_NAMES if (rate := getattr(score, name))]
    converged_text = f", converged after {whole.converged_after}" if whole.converged else ""
    iterations_text = count_with_noun(whole.iterations, "iteration")
    yield Text(
        f"  {iterations_text}{converged_text}" + "".join(f" · {rate}" for rate in rates), "dim"
    )
    if measurement.ending is not None and (
        measurement.ending.category != "clean" and measurement.ending.reason != AWAITING_REVIEW
    ):
        ending = f"{measurement.ending.category}: {measurement.ending.reason}"
        style = "dim" if measurement.ending.category == "unknown" else "yellow"
        yield Text(f"  {make_visible(ending)}", style=style)
    for finding in measurement.findings:
        if finding.silenced is None:
            yield render_finding_line(finding)


def render_modes(measurement: Measurement) -> Iterator[Text]:
    """A line for each failure mode and each source that shows it."""
    from rich.text import Text

    for tag in measurement.modes:
        yield Text(f"  {tag.mode} ({tag.source}): {make_visible(tag.reason)}", style="yellow")


HANDOFF_STATES = (
    ("arrived", "arrived in the brief", "green"),
    ("lost", "lost: the brief leaves it out", "red"),
    ("used", "reported and used", "green"),
    ("unused", "reported and not used", "yellow"),
)
MAX_FACTS = 5
MAX_FACT_CHARS = 120


def render_handoff_facts(handoffs: Sequence[HandoffFacts], *, full: bool) -> Iterator[Text]:
    """Which facts the handoff score counts, by what became of each."""
    from rich.text import Text

    from closeloop.text.wording import truncate_words

    for one in handoffs:
        understood = {
            True: ", understood at once",
            False: ", not understood: its first steps aim elsewhere",
            None: "",
        }[one.understood]
        title = f"  handoff #{one.event} to {one.child or 'a sub-agent'}{understood}"
        yield Text(make_visible(title), style="dim")
        for name, words, style in HANDOFF_STATES:
            facts: tuple[str, ...] = getattr(one, name)
            shown = facts if full else facts[:MAX_FACTS]
            for fact in shown:
                text = " ".join(make_visible(fact).split())
                short_text = text if full else truncate_words(text, MAX_FACT_CHARS)
                yield Text(f"    {words}: {short_text}", style=style)
            if more := len(facts) - len(shown):
                yield Text(f"    {words}: {more} more (--full shows them)", style="dim")


def render_trace_events(trace: Trace, *, full: bool) -> Iterator[Text]:
    """The trace, an event a paragraph; a sub-agent's lane is indented."""
    from rich.text import Text

    from closeloop.traces.trace_export import lane_depths

    yield Text("\nWhat happened", style="bold")
    depth = lane_depths(trace.lanes)
    for event in trace.events:
        indent = "    " * depth.get(event.lane, 0)
        title, body, style = describe_trace_event(event)
        first, *rest = shorten_lines(title, full=full, most=MAX_TITLE_LINES) or [""]
        line = Text(f"{indent}{'#' + str(event.number):>4} ", style="dim")
        line.append(first, style=style)
        yield line
        for text in (*rest, *shorten_lines(body, full=full, keep=_end_to_keep(event))):
            yield Text(f"{indent}     {text}", style="dim")
    for why, count in trace.skipped.items():
        yield Text(
            make_visible(f"  {count_with_noun(count, 'record')} skipped: {why}"), style="yellow"
        )


def render_answer(answer: str, *, full: bool) -> Iterator[Text]:
    """The last message of an agent that left nothing else to read."""
    from rich.text import Text

    yield Text("\nThe answer", style="bold")
    for line in shorten_lines(answer, full=full):
        yield Text(f"  {line}")


def describe_trace_event(event: AnyEvent) -> tuple[str, str | None, str]:
    """One event as a title, what belongs under it, and a colour."""
    from closeloop.records import trace as t

    match event:
        case t.Message(role=role, intent=intent, text=text):
            speaker = role if intent is None else f"{role}, {intent}"
            return speaker, text, "cyan" if role == "user" else "bold"
        case t.Thought(text=text):
            return "thinks", text, "dim"
        case t.Command(command=command, exit_code=code, output=output, stopped=stopped):
            ended = stopped or ("exit unknown" if code is None else f"exit {code}")
            line, *more = command.splitlines() or [""]
            colour = {0: "green", None: "yellow"}.get(code, "red")
            return "\n".join([f"$ {line}   → {ended}", *more]), output, colour
        case t.Edit(path=path, action=action, ok=ok, error=error):
            failed = f"   → {error}" if ok is False else ""
            return f"{action} {path}{failed}", edit_as_diff(event), "red" if failed else "magenta"
        case t.Read(path=path, ok=ok, error=error):
            return f"read {path}" + (f"   → {error}" if ok is False else ""), None, "blue"
        case t.ToolUse(name=name, arguments=arguments, output=output, ok=ok):
            failed = "   → failed" if ok is False else ""
            return f"{name} {arguments or ''}{failed}", output, "red" if failed else "blue"
        case t.Handoff(brief=brief, child=child, report=report):
            report_text = "nothing" if report is None else report
            child_name = child or "a sub-agent whose work is not recorded"
            return f"hands over to {child_name}", f"brief: {brief}\nreport: {report_text}", "yellow"
        case t.Note(text=text, about=about):
            return f"note{f', {about}' if about else ''}", text, "yellow"


def edit_as_diff(event: AnyEvent) -> str | None:
    """An edit as removed and added lines."""
    from closeloop.records.trace import Edit

    assert isinstance(event, Edit)
    if event.patch is not None:
        return event.patch
    removed = [f"- {line}" for line in (event.before or "").splitlines()]
    added = [f"+ {line}" for line in (event.after or "").splitlines()]
    return "\n".join(removed + added) or None


def _end_to_keep(event: AnyEvent) -> Literal["head", "tail"]:
    """A request begins with what is asked; what a program prints ends with what failed."""
    from closeloop.records.trace import Command, ToolUse

    return "tail" if isinstance(event, Command | ToolUse) else "head"


def shorten_lines(
    text: str | None,
    *,
    full: bool,
    most: int = MAX_SHORT_LINES,
    keep: Literal["head", "tail"] = "head",
) -> list[str]:
    """The lines worth showing: all of them, or the first or the last few."""
    lines = make_visible(text or "").strip("\n").splitlines()
    if full:
        return lines
    if len(lines) > most:
        left_out = f"… {count_with_noun(len(lines) - most, 'line')} (--full shows them)"
        lines = [left_out, *lines[-most:]] if keep == "tail" else [*lines[:most], left_out]
    return [line if len(line) <= MAX_LINE_CHARS else line[:MAX_LINE_CHARS] + " …" for line in lines]


def render_change_lines(patch: str, *, full: bool) -> Iterator[Text]:
    """The diff, coloured."""
    from rich.text import Text

    yield Text("\nThe change", style="bold")
    lines = make_visible(patch).splitlines()
    for line in lines if full else lines[:MAX_DIFF_LINES]:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        yield Text(line, style="bold" if line.startswith("diff ") else style)
    if not full and len(lines) > MAX_DIFF_LINES:
        more = count_with_noun(len(lines) - MAX_DIFF_LINES, "line")
        yield Text(f"… {more} (--full shows them)", style="dim")


def render_insights(story: AttemptDetails, *, full: bool) -> Iterator[Text]:
    """What the agent said it lacked."""
    from rich.text import Text

    for insight in story.insights:
        yield Text("\nWhat the agent lacked, as it says", style="bold")
        for line in shorten_lines(insight.text, full=full):
            yield Text(f"  {line}")


def render_test_results(grade: Grade, *, full: bool) -> Iterator[Text]:
    """Tests before and after: those whose result changed or that fail, or all of them."""
    from rich.text import Text

    yield Text("\nTests", style="bold")
    for name, share in (("fail-to-pass", grade.fail_to_pass), ("pass-to-pass", grade.pass_to_pass)):
        if share is not None:
            yield Text(f"  {name}: {share[0]} of {share[1]}")
    before = {test.id: test for test in grade.before.tests} if grade.before else {}
    after = grade.after.tests if grade.after else ()
    for test in after:
        status_before = before[test.id].status if test.id in before else "absent"
        if full or status_before != test.status or test.status in ("failed", "error"):
            style = {"passed": "green", "skipped": "dim"}.get(test.status, "red")
            yield Text(make_visible(f"  {test.id}: {status_before} → {test.status}"), style=style)
            for line in shorten_lines(test.message, full=full, keep="tail"):
                yield Text(f"      {line}", style="dim")
    for command in grade.after.commands if grade.after else ():
        ended = command.stopped or f"exit {command.exit_code}"
        style = "dim" if command.exit_code == 0 else "red"
        yield Text(make_visible(f"  $ {command.command} → {ended}"), style=style)
