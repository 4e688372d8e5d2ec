"""`closeloop show`: one attempt, readable from top to bottom."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.attempt import AWAITING_REVIEW, is_incomplete_recording, lacks_sandbox
from closeloop.text.wording import (
    count_with_noun,
    format_dollars,
    format_duration,
    format_percent,
    format_percent_range,
    truncate_at_word,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from closeloop.metrics.task_log import TaskRepeats
    from closeloop.process.rulebook import Rulebook
    from closeloop.records.attempt import Grade, Usage
    from closeloop.records.estimate import Rate
    from closeloop.records.evaluation import Evaluation
    from closeloop.records.experiment_plan import (
        AttemptDetails,
        FileDifference,
        ReferenceDifference,
        SuiteCounts,
        TaskLog,
        TouchedFile,
    )
    from closeloop.records.finding import HandoffFacts, Measurement
    from closeloop.records.score import Score
    from closeloop.records.trace import AnyEvent, Session, Trace
    from closeloop.store import Store


# The structured log of a task on a terminal: a part of `closeloop show`.


MAX_LISTED = 20
MAX_LINES = 12
MAX_LOG_LINE_CHARS = 200


def render_task_log(log: TaskLog, *, full: bool) -> Iterator[Text]:
    """Render the request, change, tests, corrections and decision, one line each."""
    from rich.text import Text

    yield Text("\nTask log", style="bold")
    for name, value in list_log_lines(log, full=full):
        yield Text(f"  {name}: {make_visible(value)}")
    if log.reference is not None:
        yield from render_reference(log.reference, full=full)


def list_log_lines(log: TaskLog, *, full: bool) -> Iterator[tuple[str, str]]:
    """Yield name and value of the known facts."""
    description = " ".join(log.description.split())
    request_text = description if full else truncate_at_word(description, MAX_LOG_LINE_CHARS)
    yield "request", request_text or "unknown"
    if log.files is not None:
        listed_files = log.files if full else log.files[:MAX_LISTED]
        yield "files changed", ", ".join(map(describe_file, listed_files)) or "none"
    if log.tests_before is not None or log.tests_after is not None:
        before, after = describe_suite(log.tests_before), describe_suite(log.tests_after)
        yield "tests before → after", f"{before} → {after}"
    for name, tests in (("fixed", log.mended), ("broken", log.broken)):
        if tests:
            yield name, ", ".join(tests if full else tests[:MAX_LISTED])
    cycles = log.review_cycles
    yield "review rounds", "unknown" if cycles is None else str(cycles)
    for correction in log.corrections if full else log.corrections[:MAX_LISTED]:
        author_text = f" by {correction.by}" if correction.by else ""
        tags = f" ({', '.join(correction.tags)})" if correction.tags else ""
        yield (
            f"correction, {correction.kind}{author_text}",
            " ".join(correction.text.split())[:MAX_LOG_LINE_CHARS] + tags,
        )
    pull_text = f", {log.pull}" if log.pull else ""
    yield "merge decision", (log.merge_decision or "none yet") + pull_text
    if log.plan is not None:
        pairs = (
            ("first try", log.plan.first_try),
            ("after feedback", log.plan.after_feedback),
            ("final", log.plan.final),
        )
        counts = [f"{name} {pair[0]} of {pair[1]}" for name, pair in pairs if pair]
        letter = log.plan.grade.letter if log.plan.grade else None
        grade = [f"grade {letter}"] if letter else []
        yield f"plan {log.plan.id}", " · ".join([*grade, *counts])


def describe_file(file: TouchedFile) -> str:
    """Format a file: `a.py +3 −1 (outside the scope)`."""
    notes = []
    if file.in_scope is False:
        notes.append("outside the scope")
    if file.in_reference is False:
        notes.append("not in the reference")
    status = f" {file.status}" if file.status != "changed" else ""
    size = "lines unknown" if file.added is None else f"+{file.added} −{file.removed}"
    return f"{file.path}{status} {size}" + (f" ({', '.join(notes)})" if notes else "")


def describe_suite(counts: SuiteCounts | None) -> str:
    if counts is None:
        return "not run"
    parts = [f"{counts.passed} passed", f"{counts.failed} failed"]
    parts += [f"{counts.skipped} skipped"] if counts.skipped else []
    return f"{', '.join(parts)}" + (" (commands)" if counts.of == "commands" else "")


def render_reference(difference: ReferenceDifference, *, full: bool) -> Iterator[Text]:
    """Render the files and lines that only the attempt or only the reference changes."""
    from rich.text import Text

    like = (
        ""
        if difference.similarity is None
        else f", similarity {format_percent(difference.similarity)}"
    )
    yield Text(f"\nCompared with the reference{like}", style="bold")
    for name, paths in (
        ("in both", difference.files_in_both),
        ("only in this change", difference.only_attempt),
        ("only in the reference", difference.only_reference),
    ):
        if paths:
            yield Text(f"  {name}: {make_visible(', '.join(paths))}")
    for file in difference.files:
        yield from render_file_difference(file, full=full)


def render_file_difference(file: FileDifference, *, full: bool) -> Iterator[Text]:
    from rich.text import Text

    if not file.only_attempt and not file.only_reference:
        return
    yield Text(f"  {make_visible(file.path)}: {count_with_noun(file.both, 'line')} in both")
    for side, lines, style in (
        ("here", file.only_attempt, "cyan"),
        ("reference", file.only_reference, "magenta"),
    ):
        shown_lines = lines if full else lines[:MAX_LINES]
        for line in shown_lines:
            yield Text(f"    {side:<9}  {make_visible(line)[:MAX_LOG_LINE_CHARS]}", style=style)
        if len(lines) > len(shown_lines):
            more_text = count_with_noun(len(lines) - len(shown_lines), "more line")
            yield Text(f"    {side:<9}  … {more_text} (with --full)", style="dim")


# `closeloop show --task`: one task over its repeats, a row each.


COLUMNS_EXPLAINED = (
    "iterations: cycles of code changes and a check; converged after: iterations "
    "until no check failed; output used: failing checks whose output was used; "
    "failure fixed: whether the task's original failure is fixed."
)
FIXED_WORDS = {True: "yes", False: "no", None: "–"}


def render_task_repeats(task_repeats: TaskRepeats) -> Iterator[RenderableType]:
    """Render one row per repeat, then one row per variant over all of its repeats."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import OUTCOME_MARKS

    if not task_repeats.repeats:
        yield Text(
            make_visible(
                f"There are no attempts at {task_repeats.task}: "
                f"run `closeloop run {task_repeats.task}`."
            )
        )
        return
    count_text = count_with_noun(len(task_repeats.repeats), "attempt")
    yield Text(make_visible(f"{task_repeats.task}: {count_text}"), style="bold")
    table = Table(box=None)
    for name in (
        *("variant", "no.", "", "iterations", "converged after", "output used"),
        *("failure fixed", "attempt"),
    ):
        table.add_column(name, no_wrap=True, justify="left" if name == "variant" else "right")
    for repeat in task_repeats.repeats:
        sign, colour = OUTCOME_MARKS[repeat.outcome]
        table.add_row(
            Text(make_visible(repeat.variant)),
            str(repeat.number),
            Text(sign, style=colour),
            _format_count(repeat.iterations),
            _format_count(repeat.converged_after),
            _format_rate(repeat.output_used),
            FIXED_WORDS[repeat.fixed],
            repeat.attempt + (" (replay)" if repeat.replay_of else ""),
        )
    yield table
    yield Text()
    for variant in task_repeats.variants:
        mean = "–" if variant.iterations is None else f"{variant.iterations:.1f}"
        yield Text(
            make_visible(
                f"{variant.variant}: iterations {mean} on average, converged"
                f" {_format_rate(variant.converged, bounds=True)}, output used"
                f" {_format_rate(variant.output_used, bounds=True)}, original failure fixed"
                f" {_format_rate(variant.fixed, bounds=True)}"
            )
        )
    yield Text(COLUMNS_EXPLAINED, style="dim")


def _format_count(number: int | None) -> str:
    return "–" if number is None else str(number)


def _format_rate(rate: Rate | None, *, bounds: bool = False) -> str:
    if rate is None:
        return "–"
    limits = f" ({format_percent_range(rate.low, rate.high)})" if bounds else ""
    return f"{rate.hits:g} of {rate.of}{limits}"


MAX_PLANS_SEARCHED = 10_000
MAX_SHORT_LINES = 6
MAX_DIFF_LINES = 200
MAX_LINE_CHARS = 600
MAX_TITLE_LINES = 4
MAX_SHOWN_EVENTS = 400
"""Events above which only the beginning and the end of a trace are shown, unless a range is given.
"""
EVENT_RANGE = re.compile(r"([0-9]{1,9})?(-)?([0-9]{1,9})?")


def show(  # noqa: PLR0913 - one parameter for each flag
    attempt: str | None = None,
    *,
    task: str | None = None,
    branch: bool = False,
    diff: bool = False,
    events: str | None = None,
    full: bool = False,
    pager: bool = False,
    json: JsonFlag = False,
) -> int:
    """Show one attempt: its outcome, events, change and tests; or a pull request or a plan.

    Parameters
    ----------
    attempt
        The id of an attempt or a plan, or the beginning of it; or a pull request as OWNER/NAME#12,
        or pull:12 where only one repository is known.
    task
        Show all attempts at this task instead: iterations, use of check output, original failure
        fixed.
    branch
        Create a git branch with the attempt's change. The work tree, index and HEAD do not change.
    diff
        Print only the change of the attempt or plan. Exit code 1 when there is none to apply.
    events
        Print only these events, such as 200-400, 200- or 17; `all` prints all of a long trace.
    full
        Print all output, text and changes without truncating them.
    pager
        Show the output in the program set as PAGER, or in less.
    """
    from msgspec.structs import replace

    from closeloop.cli import console
    from closeloop.cli.config import load_project
    from closeloop.metrics.attempt_measuring import (
        MAX_EVENTS_READ_AT_ONCE,
        load_attempt_facts,
        load_story,
        project_rulebook,
    )
    from closeloop.metrics.task_log import load_task_log
    from closeloop.records.errors import BadInput
    from closeloop.records.trace import Trace
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.store.store import open_existing_store
    from closeloop.tasks.task_sets import require_unsealed

    if (attempt is None) == (task is None):
        raise BadInput("Give either the id of an attempt, or a task with --task.")
    project = load_project(Path.cwd())
    with open_existing_store(project.settings, project.root) as store:
        rulebook = project_rulebook(project.settings)
        if attempt is None:
            show_task_repeats(store, rulebook, task or "", json=json)
            return 0
        if attempt.startswith("pull:") or "#" in attempt or "!" in attempt:
            from closeloop.cli.attempts import show_pull

            show_pull(attempt.removeprefix("pull:"), store, project.settings, json=json)
            return 0
        if is_plan_id(attempt, store):
            from closeloop.cli.orchestrate import show_plan

            return show_plan(attempt.removeprefix("plan:"), store, diff=diff, json=json)
        if branch:
            show_branch(attempt, store, json=json)
            return 0
        if diff or (events is not None and not json):
            # Neither needs findings, which take long for a long trace.
            facts = load_attempt_facts(store, attempt)
            require_unsealed(facts.task)
            if diff:
                return print_patch(facts.change.patch if facts.change else "")
            span = parse_event_range(events or "", facts.trace)
            trace = facts.trace or Trace(reader="none", reader_version=1)
            event_parts = render_trace_events(trace, full=full, span=span)
            console.print_in_pager(*event_parts) if pager else console.print_parts(*event_parts)
            return 0
        story = load_story(store, attempt, rulebook, max_events=MAX_EVENTS_READ_AT_ONCE)
        details = add_judge_opinions(story, store)
        require_unsealed(details.task)
        agents = merge_known_agents(project.settings.pulls.agents)
        details = replace(
            details, log=load_task_log(store, details.attempt.id, agents, details.trace)
        )
    if json:
        console.print_json(details)
    else:
        parts = render_story(details, full=full)
        console.print_in_pager(*parts) if pager else console.print_parts(*parts)
    return 0


def is_plan_id(name: str, store: Store) -> bool:
    """Check whether a name is a plan's, or a prefix of a plan's id and of no attempt's."""
    from closeloop.records.errors import BadInput

    if name.startswith("plan:"):
        return True
    try:
        store.load_attempt(name)
    except BadInput:
        return any(row.id.startswith(name) for row in store.plans.list_plans(MAX_PLANS_SEARCHED))
    return False


def show_branch(attempt: str, store: Store, *, json: bool) -> None:
    from closeloop.attempts.attempt_saving import branch_stored_attempt
    from closeloop.cli.console import print_json, print_line

    new_branch = branch_stored_attempt(store, attempt)
    print_json(new_branch) if json else print_line(f"{new_branch.name} in {new_branch.repo}")


def print_patch(patch: str) -> int:
    from closeloop.cli.console import print_error
    from closeloop.text.redaction import redact_new_secrets

    if not patch:
        print_error("This attempt has no change.")
        return 1
    print(redact_new_secrets(patch), end="")  # noqa: T201 - to be applied
    return 0


def parse_event_range(text: str, trace: Trace | None) -> range:
    """Parse `--events` into event numbers, limited to those of the trace."""
    from closeloop.records.errors import BadInput

    count = len(trace.events) if trace else 0
    if text == "all":
        return range(1, count + 1)
    parts = EVENT_RANGE.fullmatch(text)
    if parts is None or not (parts[1] or parts[3]):
        raise BadInput(
            f"{text!r} is not a range of events. Write --events 200-400, 200-, 17 or all."
        )
    first = int(parts[1] or 1)
    last = int(parts[3] or count) if parts[2] else first
    if first > last or first > count:
        raise BadInput(
            f"No event is in the range {text}: the trace has {count_with_noun(count, 'event')}."
        )
    return range(max(first, 1), min(last, count) + 1)


def show_task_repeats(store: Store, rulebook: Rulebook, task: str, *, json: bool) -> None:
    """Print one task with its repeats."""
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.task_log import load_task_repeats
    from closeloop.store.metrics_section import AttemptSpan

    would_merge = store.scores.load_merging_shares(AttemptSpan())
    repeats = load_task_repeats(store, rulebook, task, would_merge)
    print_json(repeats) if json else print_parts(*render_task_repeats(repeats))


def add_judge_opinions(details: AttemptDetails, store: Store) -> AttemptDetails:
    """Return the details with models' findings, and the newest evaluation of each judge."""
    from msgspec.structs import replace

    name, measurement = details.attempt.id, details.measurement
    if answers := store.judged.positive_answers(name).get(name):
        from closeloop.judges.trace_questions import add_answer_findings

        findings = add_answer_findings(measurement.findings, answers)
        measurement = replace(measurement, findings=findings)
    newest: dict[str, Evaluation] = {}
    for evaluation in store.judged.list_evaluations(attempt=name):
        newest.setdefault(evaluation.judge, evaluation)
    return replace(details, measurement=measurement, evaluations=tuple(newest.values()))


def render_evaluation_list(evaluations: Sequence[Evaluation]) -> Iterator[RenderableType]:
    """Render the evaluations of judges."""
    from rich.text import Text

    from closeloop.cli.judge import render_evaluation

    if evaluations:
        yield Text("\nJudges' verdicts", style="bold")
    for evaluation in evaluations:
        yield from render_evaluation(evaluation)


def render_score_list(scores: Sequence[Score]) -> Iterator[RenderableType]:
    """Render the scores from people, judges and scorers."""
    from rich.text import Text

    known_scores = [score for score in scores if score.value is not None or score.label is not None]
    if known_scores:
        yield Text("\nScores", style="bold")
    for score in known_scores:
        value = score.label if score.value is None else f"{score.value:.3g}"
        note = f"  {score.note}" if score.note else ""
        line = f"  {score.name} {value}  {score.source} {score.by}, {score.at:%Y-%m-%d}{note}"
        yield Text(make_visible(line))


def render_story(details: AttemptDetails, *, full: bool) -> Iterator[RenderableType]:
    """Render everything as lines for a terminal."""
    from rich.text import Text

    yield from render_story_head(details)
    if details.trace is not None and not details.measurement.rules:
        events = count_with_noun(len(details.trace.events), "event")
        yield Text(
            f"  not measured: the trace has {events}. `closeloop measure {details.attempt.id}` "
            "measures it, which may take minutes.",
            style="yellow",
        )
    elif details.trace is not None:
        yield from render_measurement(details.measurement)
        yield from render_handoff_facts(details.handoffs, full=full)
    elif details.attempt.exit != "machine":
        yield Text("  no trace was recorded: how the agent worked is unknown", style="dim")
    yield from render_modes(details.measurement)
    yield from render_evaluation_list(details.evaluations)
    yield from render_score_list(details.scores)
    if details.log is not None:
        yield from render_task_log(details.log, full=full)
    if details.trace is not None and (details.trace.events or details.trace.skipped):
        yield from render_trace_events(details.trace, full=full)
    elif details.attempt.summary:
        yield from render_answer(details.attempt.summary, full=full)
    if details.change is not None and details.change.patch:
        yield from render_change_lines(details.change.patch, full=full)
    if details.grade is not None and details.grade.after is not None:
        yield from render_test_results(details.grade, full=full)
    yield from render_insights(details, full=full)


def render_story_head(details: AttemptDetails) -> Iterator[Text]:
    """Render the variant, the task and the result."""
    from rich.text import Text

    from closeloop.cli.console import OUTCOME_MARKS

    attempt, grade = details.attempt, details.grade
    outcome = grade.outcome if grade else None
    sign, colour = OUTCOME_MARKS[outcome.result if outcome else "unscored"]
    if details.session is None:
        state_text = f"{sign} {outcome.result if outcome else 'not graded'}"
        variant = details.variant.name if details.variant else "?"
        title = f"{attempt.task} by {variant}, repeat {attempt.number}"
    else:
        state_text, colour = (
            (f"{sign} {outcome.result}", colour) if outcome else ("session", "cyan")
        )
        title = describe_session_agent(details.session)
    yield Text.assemble(
        (state_text, f"bold {colour}"),
        (make_visible(f"  {title}"), "bold"),
        (f"  {attempt.id}", "dim"),
    )
    if details.session is not None:
        yield Text(f"  {make_visible(describe_session_place(details))}", style="dim")
    for reason in outcome.reasons if outcome else ():
        yield Text(f"  {make_visible(reason)}", style=colour)
    if outcome and outcome.cause:
        cause = describe_reviews(details.scores) if outcome.cause == AWAITING_REVIEW else None
        yield Text(f"  {make_visible(cause or outcome.cause)}", style=colour)
    is_cut = is_incomplete_recording(attempt.origin, attempt.cause)
    exit_name = "recording incomplete" if is_cut else f"exit {attempt.exit}"
    exit_line = exit_name + (f": {attempt.cause}" if attempt.cause else "")
    usage = attempt.usage
    facts = [exit_line]
    if attempt.started and attempt.ended and attempt.started != attempt.ended:
        duration = format_duration((attempt.ended - attempt.started).total_seconds())
        # A person may have been away in between.
        facts.append(duration if details.session is None else f"{duration} from start to end")
    for count, direction in ((usage.input_tokens, "in"), (usage.output_tokens, "out")):
        if count is not None:
            facts.append(f"{count_with_noun(count, 'token')} {direction}")
    cached = (
        (usage.cache_read_tokens, "from the cache"),
        (usage.cache_write_tokens, "written to the cache"),
    )
    facts += [f"{count:,} {direction}" for count, direction in cached if count]
    if usage.cost is not None:
        facts.append(
            format_dollars(usage.cost) + (" by list prices" if is_cost_from_prices(usage) else "")
        )
    yield Text("  " + make_visible(" · ".join(facts)), style="dim")
    yield from render_attempt_notes(details)
    yield from render_grade_facts(grade)


def describe_reviews(scores: Sequence[Score]) -> str | None:
    """Return whether people would merge it; None if nobody answered."""
    answers = [
        score.value
        for score in scores
        if score.name == "would-merge" and score.source == "person" and score.value is not None
    ]
    if not answers:
        return None
    return f"by review: {sum(value > 0.5 for value in answers)} of {len(answers)} would merge it"


def render_attempt_notes(details: AttemptDetails) -> Iterator[Text]:
    """Say that it is a replay, and which branch has its change."""
    from rich.text import Text

    attempt = details.attempt
    if details.replay_of is not None:
        replay = f"  a replay of {details.replay_of}: excluded from comparisons, metrics and cost"
        yield Text(make_visible(replay), style="yellow")
    if details.is_control:
        control = "  a control, not an agent: counted only in comparisons and its experiment"
        yield Text(control, style="yellow")
    if attempt.origin == "experiment" and attempt.branch is not None:
        yield Text(make_visible(f"  its change is on the branch {attempt.branch}"), style="dim")


def is_cost_from_prices(usage: Usage) -> bool:
    """Check whether the cost is computed from list prices."""
    return usage.cost_from == "prices"


def describe_session_agent(session: Session) -> str:
    """Describe `claude-code 2.1.0 with claude-sonnet-4-5, session 0b1c…`."""
    agent = " ".join(filter(None, (session.agent, session.agent_version)))
    model = f" with {session.model}" if session.model else ""
    return f"{agent}{model}, session {session.id}"


def describe_session_place(details: AttemptDetails) -> str:
    """Describe when and where a session took place, if known."""
    attempt, session = details.attempt, details.session
    facts = [
        attempt.started and f"{attempt.started:%Y-%m-%d %H:%M} UTC",
        attempt.repo,
        attempt.branch and f"branch {attempt.branch}",
        session and session.directory != attempt.repo and session.directory,
        attempt.user,
        attempt.parent and f"continues {attempt.parent}",
    ]
    return " · ".join(fact for fact in facts if fact) or "time and place unknown"


EVIDENCE_WORDS = {
    "confirmed": "confirmed: the tests also pass in a second process, under other names",
    "reported": "unconfirmed: the tests could not be confirmed in a second process",
    "unconfined": "unconfirmed: graded without a sandbox",
    "weak": "weak: based on exit codes only",
    "by answer": "by answer: the last message matches; no tests ran",
}


def render_grade_facts(grade: Grade | None) -> Iterator[Text]:
    """Render what grading noticed besides the tests."""
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
            make_visible(f"  the agent's own tests, excluded from the grade: {tests}"), "dim"
        )
    if grade.evidence is not None:
        evidence = "unconfined" if lacks_sandbox(grade) else grade.evidence
        yield Text(f"  {EVIDENCE_WORDS[evidence]}", style="dim")
    if grade.files_precision is not None and grade.files_recall is not None:
        yield Text(
            "  changed files compared with the reference: precision "
            f"{format_percent(grade.files_precision)}, recall "
            f"{format_percent(grade.files_recall)}",
            style="dim",
        )


def render_measurement(measurement: Measurement) -> Iterator[Text]:
    """Render the measurement: the iterations, and each finding with its events."""
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
    """Render one line for each failure mode and each source that shows it."""
    from rich.text import Text

    for tag in measurement.modes:
        yield Text(f"  {tag.mode} ({tag.source}): {make_visible(tag.reason)}", style="yellow")


HANDOFF_STATES = (
    ("arrived", "included in the brief", "green"),
    ("lost", "missing from the brief", "red"),
    ("used", "reported and used", "green"),
    ("unused", "reported but not used", "yellow"),
)
MAX_FACTS = 5
MAX_FACT_CHARS = 120


def render_handoff_facts(handoffs: Sequence[HandoffFacts], *, full: bool) -> Iterator[Text]:
    """Render the facts that the handoff score counts, grouped by result."""
    from rich.text import Text

    from closeloop.text.wording import truncate_words

    for handoff in handoffs:
        understood = {
            True: ", understood",
            False: ", not understood: its first steps have another aim",
            None: "",
        }[handoff.understood]
        title = f"  handoff #{handoff.event} to {handoff.child or 'a sub-agent'}{understood}"
        for kept_facts, left_out, description in (
            (handoff.arrived, handoff.lost, "needed facts in the brief"),
            (handoff.used, handoff.unused, "reported facts used"),
        ):
            if kept_facts or left_out:
                title += f", {len(kept_facts)} of {len(kept_facts) + len(left_out)} {description}"
        yield Text(make_visible(title), style="dim")
        for name, state_text, style in HANDOFF_STATES:
            facts: tuple[str, ...] = getattr(handoff, name)
            shown_facts = facts if full else facts[:MAX_FACTS]
            for fact in shown_facts:
                text = " ".join(make_visible(fact).split())
                short_text = text if full else truncate_words(text, MAX_FACT_CHARS)
                yield Text(f"    {state_text}: {short_text}", style=style)
            if hidden_count := len(facts) - len(shown_facts):
                yield Text(f"    {state_text}: {hidden_count} more (with --full)", style="dim")


def render_trace_events(trace: Trace, *, full: bool, span: range | None = None) -> Iterator[Text]:
    """Render the trace or a span of it, a paragraph per event; a sub-agent's lane is indented.

    Without a span, a long trace is reduced to its beginning and its end.
    """
    from rich.text import Text

    from closeloop.traces.trace_export import lane_depths

    yield Text("\nEvents", style="bold")
    depth = lane_depths(trace.lanes)
    shown_events = trace.events if span is None else trace.events[span.start - 1 : span.stop - 1]
    left_out = len(shown_events) - MAX_SHOWN_EVENTS if span is None else 0
    half = MAX_SHOWN_EVENTS // 2
    if left_out > 0:
        shown_events = (*shown_events[:half], *shown_events[-half:])
    for index, event in enumerate(shown_events):
        if left_out > 0 and index == half:
            example = f"{half + 1}-{half + min(left_out, MAX_SHOWN_EVENTS)}"
            gap = (
                f"{left_out:,} events omitted: --events {example} shows a range, --events "
                "all shows all"
            )
            yield Text(f"     [… {gap} …]", style="yellow")
        indent = "    " * depth.get(event.lane, 0)
        title, body, style = describe_trace_event(event)
        first, *title_rest = shorten_lines(title, full=full, max_lines=MAX_TITLE_LINES) or [""]
        line = Text(f"{indent}{'#' + str(event.number):>4} ", style="dim")
        line.append(first, style=style)
        yield line
        for text in (*title_rest, *shorten_lines(body, full=full, keep=_end_to_keep(event))):
            yield Text(f"{indent}     {text}", style="dim")
    for reason, count in trace.skipped.items():
        yield Text(
            make_visible(f"  {count_with_noun(count, 'record')} skipped: {reason}"), style="yellow"
        )


def render_answer(answer: str, *, full: bool) -> Iterator[Text]:
    """Render the last message of an agent that left no other output."""
    from rich.text import Text

    yield Text("\nFinal answer", style="bold")
    for line in shorten_lines(answer, full=full):
        yield Text(f"  {line}")


def describe_trace_event(event: AnyEvent) -> tuple[str, str | None, str]:
    """Return an event's title, its body and its colour."""
    from closeloop.records import trace as trace_records

    match event:
        case trace_records.Message(role=role, intent=intent, text=text):
            speaker = role if intent is None else f"{role}, {intent}"
            return speaker, text, "cyan" if role == "user" else "bold"
        case trace_records.Thought(text=text):
            return "thinks", text, "dim"
        case trace_records.Command(command=command, exit_code=code, output=output, stopped=stopped):
            ending = stopped or ("exit unknown" if code is None else f"exit {code}")
            line, *command_rest = command.splitlines() or [""]
            colour = {0: "green", None: "yellow"}.get(code, "red")
            return "\n".join([f"$ {line}   → {ending}", *command_rest]), output, colour
        case trace_records.Edit(path=path, action=action, ok=ok, error=error):
            failed = f"   → {error}" if ok is False else ""
            return f"{action} {path}{failed}", edit_as_diff(event), "red" if failed else "magenta"
        case trace_records.Read(path=path, ok=ok, error=error):
            return f"read {path}" + (f"   → {error}" if ok is False else ""), None, "blue"
        case trace_records.ToolUse(name=name, arguments=arguments, output=output, ok=ok):
            failed = "   → failed" if ok is False else ""
            return f"{name} {arguments or ''}{failed}", output, "red" if failed else "blue"
        case trace_records.Handoff(brief=brief, child=child, report=report):
            report_text = "nothing" if report is None else report
            child_name = child or "a sub-agent without a recording"
            return f"hands over to {child_name}", f"brief: {brief}\nreport: {report_text}", "yellow"
        case trace_records.Note(text=text, about=about):
            return f"note{f', {about}' if about else ''}", text, "yellow"


def edit_as_diff(event: AnyEvent) -> str | None:
    """Return an edit as removed and added lines."""
    from closeloop.records.trace import Edit

    assert isinstance(event, Edit)
    if event.patch is not None:
        return event.patch
    removed_lines = [f"- {line}" for line in (event.before or "").splitlines()]
    added = [f"+ {line}" for line in (event.after or "").splitlines()]
    return "\n".join(removed_lines + added) or None


def _end_to_keep(event: AnyEvent) -> Literal["head", "tail"]:
    """Return the end to show: a request begins with the essential, program output ends with it."""
    from closeloop.records.trace import Command, ToolUse

    return "tail" if isinstance(event, Command | ToolUse) else "head"


def shorten_lines(
    text: str | None,
    *,
    full: bool,
    max_lines: int = MAX_SHORT_LINES,
    keep: Literal["head", "tail"] = "head",
) -> list[str]:
    """Return all lines, or the first or last few."""
    lines = make_visible(text or "").strip("\n").splitlines()
    if full:
        return lines
    if len(lines) > max_lines:
        left_out = f"… {count_with_noun(len(lines) - max_lines, 'more line')} (with --full)"
        lines = (
            [left_out, *lines[-max_lines:]] if keep == "tail" else [*lines[:max_lines], left_out]
        )
    return [line if len(line) <= MAX_LINE_CHARS else line[:MAX_LINE_CHARS] + " …" for line in lines]


def render_change_lines(patch: str, *, full: bool) -> Iterator[Text]:
    """Render the diff in colours."""
    from rich.text import Text

    yield Text("\nChange", style="bold")
    lines = make_visible(patch).splitlines()
    for line in lines if full else lines[:MAX_DIFF_LINES]:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        yield Text(line, style="bold" if line.startswith("diff ") else style)
    if not full and len(lines) > MAX_DIFF_LINES:
        more_text = count_with_noun(len(lines) - MAX_DIFF_LINES, "more line")
        yield Text(f"… {more_text} (with --full)", style="dim")


def render_insights(details: AttemptDetails, *, full: bool) -> Iterator[Text]:
    """Render what the agent said it lacked."""
    from rich.text import Text

    for insight in details.insights:
        yield Text("\nWhat the agent says it lacked", style="bold")
        for line in shorten_lines(insight.text, full=full):
            yield Text(f"  {line}")


def render_test_results(grade: Grade, *, full: bool) -> Iterator[Text]:
    """Render tests before and after: those that fail or whose result changed, or all."""
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
        ending = command.stopped or f"exit {command.exit_code}"
        style = "dim" if command.exit_code == 0 else "red"
        yield Text(make_visible(f"  $ {command.command} → {ending}"), style=style)
