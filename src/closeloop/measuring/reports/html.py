"""A report as one HTML page that needs nothing else: no script, no address, its own style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from closeloop.measuring.reports.content import Content, drawn, paired
from closeloop.measuring.reports.markdown import dots, told
from closeloop.measuring.reports.svg import Point, beside, course, text
from closeloop.measuring.wording import bounds, number, query
from closeloop.model.figure import SHARES, Figure, Metric, Metrics
from closeloop.model.plural import plural
from closeloop.model.versus import CompareReport, TaskPair, Versus

FAINT = 5
"""Tasks: a value that rests on fewer is drawn faint."""
MOST_BESIDE = 30
MOST_TASKS = 15
STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #647082; --rule: #e3e7ec;
  --paper: #ffffff; --mark: #2463b4; --good: #1a7f4b; --bad: #b3261e; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #98a3b3; --rule: #2d3541;
  --paper: #12161c; --mark: #7db2ff; --good: #58c78b; --bad: #ff8a80; --card: #1a2029; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p, li { max-width: 46rem; } .soft, details, caption { color: var(--soft); }
.note { border-left: 3px solid var(--mark); padding: .1rem .8rem; color: var(--soft); }
.better { color: var(--good); font-weight: 600; } .worse { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
table.narrow { width: auto; } table.narrow td { padding-right: 2.5rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: .85rem; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.left, th.left { text-align: left; } td.unknown { color: var(--soft); }
td details { text-align: left; white-space: normal; max-width: 40rem; }
summary { cursor: pointer; } td summary { color: var(--ink); }
code { font: .82rem ui-monospace, monospace; overflow-wrap: anywhere; }
figure { background: var(--card); border-radius: 8px; padding: .8rem 1rem; margin: 1rem 0; }
figcaption { font-weight: 600; margin-bottom: .25rem; }
figure details { font-size: .85rem; margin-top: .25rem; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--rule); } .band { fill: var(--mark); opacity: .14; }
.line { fill: none; stroke: var(--mark); stroke-width: 2; }
.dot { fill: var(--mark); } .whisker { stroke: var(--mark); stroke-width: 2; opacity: .55; }
.faint { opacity: .3; } .dots { letter-spacing: .1em; }
"""


def as_html(held: Content) -> bytes:
    return ("\n".join(_page(held)) + "\n").encode("utf-8", "replace")


def _page(held: Content) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>How the agents work</title><style>{STYLE}</style></head><body>"
    yield f'<h1>How the agents work, in numbers</h1><p class="soft">{text(told(held))}</p>'
    yield from (f'<p class="note">{text(note)}</p>' for note in held.whole.notes)
    if held.comparison:
        yield from _compared(held.comparison)
    for side in held.sides:
        yield from _plots(side)
    for family, pairs in groupby(paired(held.whole), key=lambda pair: pair[1].family):
        yield f"<h2>{text(family.capitalize())}</h2>"
        yield from _table(list(pairs))
    yield "</body></html>"


def _table(pairs: Sequence[tuple[Figure, Metric]]) -> Iterator[str]:
    """The definition and the query of each are one click away."""
    head = ("metric", "value", "95 % interval", "tasks", "attempts", "coverage")
    yield f'<div class="scroll"><table><tr>{"".join(f"<th>{name}</th>" for name in head)}</tr>'
    for figure, metric in pairs:
        kind = ' class="unknown"' if figure.value is None else ""
        covered = "–" if figure.coverage is None else f"{figure.coverage:.0%}"
        yield (
            f"<tr><td>{_about(metric, (), text(metric.name))}</td>"
            f"<td{kind}>{text(number(figure.value, metric))}</td>"
            f"<td>{text(bounds(figure, metric))}</td><td>{figure.n:,}</td>"
            f"<td>{figure.attempts:,}</td><td>{covered}</td></tr>"
        )
    yield "</table></div>"


def _about(metric: Metric, by: Sequence[str], title: str) -> str:
    return (
        f"<details><summary>{title}</summary>{text(metric.says)}<br>"
        f"<code>{text(query(metric.name, by))}</code></details>"
    )


def _plots(side: Metrics) -> Iterator[str]:
    found = drawn(side)
    if not found:
        return
    yield f"<h2>By {text(', '.join(side.by))}</h2>"
    if side.by == ("week",):
        yield (
            '<p class="soft">Observational: weeks differ in more than what was changed. Weeks with '
            f"under {FAINT} tasks are drawn faint.</p>"
        )
    for metric, figures in found:
        points = [_point(figure, metric) for figure in figures]
        most = 1.0 if metric.kind in SHARES else None
        draw = course if side.by == ("week",) else beside
        shown = points if draw is course else points[:MOST_BESIDE]
        rest = len(points) - len(shown)
        yield f"<figure><figcaption>{text(metric.name)}</figcaption>"
        yield draw(shown, most=most, name=f"{metric.name} by {', '.join(side.by)}")
        if rest:
            yield f'<p class="soft">… and {rest} more, which the CSV has.</p>'
        yield f"{_about(metric, side.by, 'definition and query')}</figure>"


def _point(figure: Figure, metric: Metric) -> Point:
    inside = bounds(figure, metric).split(", ")[0]
    return Point(
        label=", ".join(figure.group.values()),
        value=figure.value or 0.0,
        low=figure.low,
        high=figure.high,
        told=f"{number(figure.value, metric)}{f' ({inside})' if inside else ''}, n {figure.n:,}",
        faint=figure.n < FAINT,
    )


def _compared(report: CompareReport) -> Iterator[str]:
    names = [side.name for side in report.sides]
    yield f"<h2>{text(' against '.join(reversed(names)))}</h2>"
    if report.refusal:
        yield f'<p class="note">{text(report.refusal)}</p>'
    for pair in report.pairs:
        yield from _pair(pair)
    for line in (*report.left_out, *report.notes):
        yield f'<p class="note">{text(line)}</p>'
    yield f"<p><code>{text('closeloop compare ' + ' '.join(names))}</code></p>"


def _pair(pair: Versus) -> Iterator[str]:
    held, counts = pair.comparison, pair.table
    for line, word in zip(pair.words, (held.here_word, held.alike_word), strict=False):
        yield f'<p class="{word if word in ("better", "worse") else "open"}">{text(line)}</p>'
    yield from (f"<p>{text(line)}</p>" for line in pair.words[2:])
    yield (
        f'<p class="soft">Both right {counts.both}, only {text(pair.first)} {counts.only_first}, '
        f"only {text(pair.second)} {counts.only_second}, both wrong {counts.neither}; right is "
        "more than half of the repeats.</p>"
    )
    yield from _tasks(pair, pair.tasks[:MOST_TASKS])
    if rest := pair.tasks[MOST_TASKS:]:
        others = plural(len(rest), "task that differs", "tasks that differ")
        yield f"<details><summary>{others} less</summary>"
        yield from _tasks(pair, rest)
        yield "</details>"
    yield from _ratios(pair)
    yield from _others(pair)


def _tasks(pair: Versus, tasks: Sequence[TaskPair]) -> Iterator[str]:
    head = "".join(f'<th class="left">{text(name)}</th>' for name in (pair.first, pair.second))
    yield f'<div class="scroll"><table class="narrow"><tr><th>task</th>{head}</tr>'
    for one in tasks:
        cells = (f'<td class="left dots">{dots(each)}</td>' for each in (one.first, one.second))
        yield f"<tr><td>{text(one.task)}</td>{''.join(cells)}</tr>"
    yield "</table></div>"


def _ratios(pair: Versus) -> Iterator[str]:
    """What the second takes for each unit that the first does."""
    known = {name: held.here or held.alike for name, held in pair.ratios.items()}
    points = [
        Point(
            label=name,
            value=one.value,
            low=one.low,
            high=one.high,
            told=f"{one.value:.2f} × ({one.low:.2f}–{one.high:.2f}), n {one.n:,}",
        )
        for name, one in known.items()
        if one is not None
    ]
    if points:
        title = f"What {pair.second} takes, in multiples of {pair.first}"
        yield f"<figure><figcaption>{text(title)}</figcaption>"
        yield f"{beside(points, name=title)}</figure>"


def _others(pair: Versus) -> Iterator[str]:
    yield "<details><summary>Every other rate, exploratory</summary>"
    head = ("metric", pair.first, pair.second, "difference", "p adjusted", "")
    yield f'<div class="scroll"><table><tr>{"".join(f"<th>{text(one)}</th>" for one in head)}</tr>'
    for one in pair.secondary:
        bounds_of = "" if one.low is None else f" ({one.low:+.2f} … {one.high:+.2f})"
        p = "–" if one.adjusted is None else f"{one.adjusted:.3f}"
        yield (
            f"<tr><td>{text(one.metric)}</td><td>{one.first:.2f}</td><td>{one.second:.2f}</td>"
            f"<td>{one.second - one.first:+.2f}{bounds_of}</td><td>{p}</td>"
            f"<td>{text(one.word)}</td></tr>"
        )
    yield "</table></div></details>"
