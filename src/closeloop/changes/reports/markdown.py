"""A report as the comment of a pull request: what a reviewer reads in a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from closeloop.changes.reports.escaping import block, code, one_line, plain, prose
from closeloop.changes.reports.telling import (
    again,
    counted,
    headline,
    is_clean,
    is_worse,
    mended,
    place_of,
    plural,
    state,
    subject,
    surface,
    unmeasured,
)
from closeloop.model.finding import Finding, Unmeasured
from closeloop.model.record import Record
from closeloop.model.report import Factor, Report, Risk, ToolRun

MARKER = "<!-- closeloop:check -->"
"""Nobody sees it; by it the comment is found again, to be kept up to date."""
LIMIT = 65_000
"""Bytes; hosts take some 65,535 characters, and never mean less than bytes by that."""
MOST_ROWS = 20
MOST_BROKEN = 15
MOST_REASONS = 4
UNSEEN = "thing that could not be looked at"
MARKS = {"pass": "✅", "warn": "⚠️", "block": "⛔"}
Kind = TypeVar("Kind")
_TABLE = "| where | rule | what |\n| --- | --- | --- |"


class Part(Record):
    """A piece of the page. Where room is short its last lines go, or all of it."""

    rank: int
    """How soon it is needed: 0 stays longest."""
    head: str
    items: Sequence[Any] = ()
    line: Callable[[Any], str] = str
    """How an item is written: only as many are as there is room for."""
    tail: str = ""


def comment(report: Report, *, blobs: str | None = None, limit: int = LIMIT) -> str:
    """The page; one line for a clean change. `blobs` is the address of the files at its head."""
    if not is_clean(report):
        return f"{MARKER}\n{fitted(list(_parts(report, blobs)), limit)}"
    risk = f", risk {report.risk.level}" if report.risk else ""
    missed = f"; {plural(count, UNSEEN)}" if (count := len(unmeasured(report))) else ""
    about = f"{prose(subject(report), 200)} ({surface(report)})"
    return f"{MARKER}\n{MARKS['pass']} closeloop has nothing to say on {about}{risk}{missed}.\n"


def fitted(parts: Sequence[Part], limit: int) -> str:
    """The parts in their order; the most needed are given room first."""
    shown: dict[int, str] = {}
    for number, part in sorted(enumerate(parts), key=lambda pair: pair[1].rank):
        text = _within(part, limit)
        if text:
            shown[number] = text
            limit -= len(text.encode()) + 2
    return "\n\n".join(shown[number] for number in sorted(shown)) + "\n"


def _within(part: Part, room: int) -> str:
    """As many lines as fit, and how many do not; nothing where not even one does."""
    room -= len(f"{part.head}\n\n… and 1234567 more.\n{part.tail}\n\n".encode())
    kept: list[str] = []
    for item in part.items:
        line = part.line(item)
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    if room < 0 and not kept:
        return ""
    missing = len(part.items) - len(kept)
    more = [f"\n… and {missing} more."] if missing else []
    return "\n".join([part.head, *kept, *more, *([part.tail] if part.tail else [])])


def _parts(report: Report, blobs: str | None) -> Iterator[Part]:
    """The page from top to bottom."""
    title = f"{prose(subject(report), 200)} ({surface(report)})"
    yield Part(rank=0, head=f"### {MARKS[report.verdict]} {prose(headline(report))}\n\n{title}")
    if report.mending:
        yield Part(rank=1, head=f"{prose(mended(report.mending))}.")
        left = [(run, name) for run in report.mending.left for name in run.broke]
        yield from _hidden(5, "What the agent left broken", left, _broken)
    if report.risk:
        yield _risk(report.risk)
    broken = [(tool, name) for tool in report.tools for name in tool.broke]
    seen, rest = broken[:MOST_BROKEN], broken[MOST_BROKEN:]
    if seen:
        yield Part(rank=2, head="**Broken by this change**", items=seen, line=_broken)
    yield from _hidden(5, f"{len(rest)} more that it broke", rest, _broken)
    yield from _findings(counted(report), blobs)
    yield from _tools(report.tools)
    if report.risk:
        factors = sorted(report.risk.factors, key=lambda factor: -factor.weight)
        yield from _hidden(8, "What the risk is made of", factors, partial(_factor, blobs))
    missed = unmeasured(report)
    yield from _hidden(4, plural(len(missed), UNSEEN), missed, _missed)
    yield Part(rank=0, head=f"<sub>On your own machine: {code(again(report))}</sub>")


def _risk(risk: Risk) -> Part:
    chance = ""
    if one := risk.chance:
        chance = (
            f" Going by {one.of} past changes, {one.value:.0%} ({one.low:.0%} to {one.high:.0%}) "
            "of those like it are later reverted or repaired."
        )
    head = f"**Risk: {risk.level}.**{chance}"
    return Part(rank=1, head=head, items=risk.reasons[:MOST_REASONS], line=_bullet)


def _findings(findings: Sequence[Finding], blobs: str | None) -> Iterator[Part]:
    """Errors and warnings in sight, the rest folded away."""
    row = partial(_row, blobs)
    grave = [finding for finding in findings if finding.severity != "info"][:MOST_ROWS]
    rest = findings[len(grave) :]
    if grave:
        head = f"**{plural(len(findings), 'finding')}**\n\n{_TABLE}"
        yield Part(rank=3, head=head, items=grave, line=row)
    kind = "more finding" if grave else "note"
    yield from _hidden(6, plural(len(rest), kind), rest, row, _TABLE)


def _row(blobs: str | None, finding: Finding) -> str:
    where = _link(finding.places[0], blobs) if finding.places else "–"
    rule = prose(finding.rule, 80)
    rule = f"**{rule}**" if finding.severity == "error" else rule
    return f"| {where} | {rule} | {prose(finding.message)} |"


def _tools(tools: Sequence[ToolRun]) -> Iterator[Part]:
    """How each tool fared, and the output of those that have something against the change."""
    yield from _hidden(7, "The repository's own tools", tools, _tool)
    for tool in tools:
        if tool.output.strip() and is_worse(tool):
            yield from _hidden(9, f"Output of {tool.name}", [tool.output], block)


def _tool(tool: ToolRun) -> str:
    before = f"{state(tool.before)} → " if tool.before else ""
    facts = [f"{tool.seconds:.0f} s"] if tool.seconds is not None else []
    facts += [f"{len(tool.already)} failing before too"] if tool.already else []
    facts += [f"{len(tool.mended)} mended"] if tool.mended else []
    facts += [f"{plural(len(tool.removed), 'test')} removed"] if tool.removed else []
    facts += [prose(text, 200) for text in (tool.selected, tool.note) if text]
    told = f" ({'; '.join(facts)})" if facts else ""
    return f"- {prose(tool.name)} {code(tool.command)}: {before}{state(tool.after)}{told}"


def _bullet(text: str) -> str:
    return f"- {prose(text)}"


def _broken(pair: tuple[ToolRun, str]) -> str:
    return f"- {code(pair[1])} ({prose(pair[0].name)})"


def _missed(one: Unmeasured) -> str:
    return f"- {prose(one.rule)}: {prose(one.reason)}"


def _factor(blobs: str | None, factor: Factor) -> str:
    places = ", ".join(_link(place, blobs) for place in factor.places[:3])
    return f"- {prose(factor.name)}: {prose(factor.text)}{f' ({places})' if places else ''}"


def _hidden(
    rank: int, title: str, items: Sequence[Kind], line: Callable[[Kind], str], head: str = ""
) -> Iterator[Part]:
    """A part that is folded away until somebody opens it."""
    if items:
        opening = [
            f"<details><summary>{plain(one_line(title, 200))}</summary>\n",
            *([head] if head else []),
        ]
        yield Part(rank=rank, head="\n".join(opening), items=items, line=line, tail="\n</details>")


def _link(text: str, blobs: str | None) -> str:
    """A place, leading to its line where it is known where the files are."""
    if blobs is None:
        return code(text)
    place = place_of(text)
    line = f"#L{place.line}" if place.line else ""
    return f"[{code(text)}]({blobs}/{quote(place.path, errors='replace')}{line})"
