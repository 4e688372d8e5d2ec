"""The structured log of a task on a terminal: a part of `closeloop show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from closeloop.cli.console import make_visible
from closeloop.text.wording import count_with_noun, format_percent

if TYPE_CHECKING:
    from rich.text import Text

    from closeloop.records.task_log import (
        FileDifference,
        ReferenceDifference,
        SuiteCounts,
        TaskLog,
        TouchedFile,
    )

MAX_LISTED = 20
MAX_LINES = 12
MAX_LINE_CHARS = 200


def render_task_log(log: TaskLog, *, full: bool) -> Iterator[Text]:
    """What was asked, changed, tested, corrected and decided, a line each."""
    from rich.text import Text

    yield Text("\nTask log", style="bold")
    for name, value in list_log_lines(log, full=full):
        yield Text(f"  {name}: {make_visible(value)}")
    if log.reference is not None:
        yield from render_reference(log.reference, full=full)


def list_log_lines(log: TaskLog, *, full: bool) -> Iterator[tuple[str, str]]:
    """Name and value of what is known."""
    description = " ".join(log.description.split())
    yield "asked for", (description if full else description[:MAX_LINE_CHARS]) or "not known"
    if log.files is not None:
        listed = log.files if full else log.files[:MAX_LISTED]
        yield "files touched", ", ".join(map(describe_file, listed)) or "none"
    if log.tests_before is not None or log.tests_after is not None:
        before, after = describe_suite(log.tests_before), describe_suite(log.tests_after)
        yield "before → after", f"{before} → {after}"
    for name, tests in (("mended", log.mended), ("broken", log.broken)):
        if tests:
            yield name, ", ".join(tests if full else tests[:MAX_LISTED])
    cycles = log.review_cycles
    yield "review cycles", "not known" if cycles is None else str(cycles)
    for one in log.corrections if full else log.corrections[:MAX_LISTED]:
        by = f" by {one.by}" if one.by else ""
        tags = f" ({', '.join(one.tags)})" if one.tags else ""
        yield f"correction, {one.kind}{by}", " ".join(one.text.split())[:MAX_LINE_CHARS] + tags
    where = f", {log.pull}" if log.pull else ""
    yield "merge decision", (log.merge_decision or "nobody decided") + where
    if log.plan is not None:
        pairs = (
            ("first try", log.plan.first_try),
            ("after feedback", log.plan.after_feedback),
            ("in the end", log.plan.final),
        )
        counts = [f"{name} {pair[0]} of {pair[1]}" for name, pair in pairs if pair]
        letter = log.plan.grade.letter if log.plan.grade else None
        grade = [f"grade {letter}"] if letter else []
        yield f"plan {log.plan.id}", " · ".join([*grade, *counts])


def describe_file(file: TouchedFile) -> str:
    """`a.py +3 −1 (outside the scope)`"""
    marks = []
    if file.in_scope is False:
        marks.append("outside the scope")
    if file.in_reference is False:
        marks.append("not in the reference")
    status = f" {file.status}" if file.status != "changed" else ""
    size = "lines not known" if file.added is None else f"+{file.added} −{file.removed}"
    return f"{file.path}{status} {size}" + (f" ({', '.join(marks)})" if marks else "")


def describe_suite(counts: SuiteCounts | None) -> str:
    if counts is None:
        return "not run"
    parts = [f"{counts.passed} passed", f"{counts.failed} failed"]
    parts += [f"{counts.skipped} skipped"] if counts.skipped else []
    return f"{', '.join(parts)}" + (" (commands)" if counts.of == "commands" else "")


def render_reference(one: ReferenceDifference, *, full: bool) -> Iterator[Text]:
    """Which files and lines only the attempt or only the reference changes."""
    from rich.text import Text

    like = "" if one.similarity is None else f", similarity {format_percent(one.similarity)}"
    yield Text(f"\nAgainst the reference{like}", style="bold")
    for name, paths in (
        ("in both", one.files_in_both),
        ("only in this change", one.only_attempt),
        ("only in the reference", one.only_reference),
    ):
        if paths:
            yield Text(f"  {name}: {make_visible(', '.join(paths))}")
    for file in one.files:
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
        shown = lines if full else lines[:MAX_LINES]
        for line in shown:
            yield Text(f"    {side:<9}  {make_visible(line)[:MAX_LINE_CHARS]}", style=style)
        if len(lines) > len(shown):
            more = count_with_noun(len(lines) - len(shown), "line")
            yield Text(f"    {side:<9}  … {more} (--full shows them)", style="dim")
