"""A report as Markdown: tables, with definitions and queries below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from closeloop.measuring.reports.content import Content, paired
from closeloop.measuring.wording import bounds, number, query
from closeloop.model.figure import Figure, Metric, Metrics
from closeloop.model.plural import plural
from closeloop.model.versus import CompareReport, Versus
from closeloop.model.visible import visible


def as_markdown(held: Content) -> bytes:
    return ("\n".join(_page(held)) + "\n").encode("utf-8", "replace")


def _page(held: Content) -> Iterator[str]:
    yield "# How the agents work, in numbers"
    yield ""
    yield told(held)
    for note in held.whole.notes:
        yield f"\n> {cell(note)}"
    if held.comparison:
        yield from _compared(held.comparison)
    yield from _whole(held.whole)
    for side in held.sides:
        yield from _side(side)
    yield from _definitions(held.whole)


def told(held: Content) -> str:
    """One sentence of what this is about."""
    time = f", from {held.first:%Y-%m-%d} to {held.last:%Y-%m-%d}" if held.first else ""
    return f"{plural(held.attempts, 'attempt')}, at {plural(held.tasks, 'task')}{time}."


def _whole(found: Metrics) -> Iterator[str]:
    for family, pairs in groupby(paired(found), key=lambda pair: pair[1].family):
        yield f"\n## {family.capitalize()}\n"
        yield from _table(
            ("metric", "value", "95 % interval", "tasks", "attempts", "coverage"),
            [(metric.name, *_cells(figure, metric)) for figure, metric in pairs],
        )


def _side(found: Metrics) -> Iterator[str]:
    yield f"\n## By {', '.join(found.by)}"
    for name, pairs in groupby(paired(found), key=lambda pair: pair[1].name):
        known = [pair for pair in pairs if pair[0].value is not None]
        if known:
            yield f"\n### {name}\n"
            yield from _table(
                (*found.by, "value", "95 % interval", "tasks", "attempts", "coverage"),
                [(*figure.group.values(), *_cells(figure, metric)) for figure, metric in known],
            )
            yield f"\n`{query(name, found.by)}`"


def _definitions(found: Metrics) -> Iterator[str]:
    yield "\n## Definitions and queries\n"
    yield from _table(
        ("metric", "definition", "query"),
        [(one.name, one.says, f"`{query(one.name)}`") for one in found.definitions],
    )


def _compared(report: CompareReport) -> Iterator[str]:
    yield f"\n## {cell(' against '.join(side.name for side in reversed(report.sides)))}\n"
    if report.refusal:
        yield cell(report.refusal)
    for pair in report.pairs:
        yield from (f"- {cell(line)}" for line in pair.words)
        yield ""
        yield from _table(("task", pair.first, pair.second), _tasks(pair))
    yield from (f"\n> {cell(line)}" for line in (*report.left_out, *report.notes))
    names = " ".join(side.name for side in report.sides)
    yield f"\n`closeloop compare {cell(names)}`"


def _tasks(pair: Versus) -> list[tuple[str, str, str]]:
    return [(one.task, dots(one.first), dots(one.second)) for one in pair.tasks]


def dots(repeats: Sequence[int]) -> str:
    """A dot a repeat; a count where they would be too many."""
    if len(repeats) > 10:
        return f"{sum(repeats)} of {len(repeats)}"
    return "".join("●" if value else "○" for value in repeats)


def _cells(figure: Figure, metric: Metric) -> tuple[str, ...]:
    return (
        number(figure.value, metric),
        bounds(figure, metric),
        f"{figure.n:,}",
        f"{figure.attempts:,}",
        "–" if figure.coverage is None else f"{figure.coverage:.0%}",
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(cell, head))} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(cell, row))} |"


def cell(text: str) -> str:
    """Text that is not ours ends no cell, opens no tag and makes no link."""
    plain = visible(text).replace("\n", " ").replace("|", "\\|")
    return plain.replace("<", "&lt;").replace("[", "\\[").replace("](", "] (")
