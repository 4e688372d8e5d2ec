"""A report as the comment of a pull request: what a reviewer reads in a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from closeloop.changes.reports.markdown_escape import (
    escape_code,
    escape_prose,
    escape_text,
    fence_output,
    truncate_to_line,
)
from closeloop.changes.reports.report_text import (
    describe_change_size,
    describe_mending,
    describe_tool_state,
    is_clean,
    is_tool_worse,
    list_active_findings,
    parse_place,
    plural_phrase,
    report_headline,
    report_subject,
    rerun_command,
    unmeasured_by_reason,
)
from closeloop.records.change_report import ChangeReport, Risk, RiskFactor, ToolRun
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import Record

COMMENT_MARKER = "<!-- closeloop:check -->"
"""Nobody sees it; by it the comment is found again, to be kept up to date."""
MAX_COMMENT_BYTES = 65_000
"""Bytes; hosts take some 65,535 characters, and never mean less than bytes by that."""
MAX_ROWS = 20
MAX_BROKEN = 15
MAX_REASONS = 4
UNMEASURED_NOUN = "thing that could not be looked at"
VERDICT_MARKS = {"pass": "✅", "warn": "⚠️", "block": "⛔"}
Kind = TypeVar("Kind")
_FINDINGS_HEADER = "| where | rule | what |\n| --- | --- | --- |"


class CommentSection(Record):
    """A piece of the page. Where room is short its last lines go, or all of it."""

    rank: int
    """How soon it is needed: 0 stays longest."""
    head: str
    items: Sequence[Any] = ()
    line: Callable[[Any], str] = str
    """How an item is written: only as many are as there is room for."""
    tail: str = ""


def render_comment(
    report: ChangeReport, *, blobs: str | None = None, limit: int = MAX_COMMENT_BYTES
) -> str:
    """The page; one line for a clean change. `blobs` is the address of the files at its head."""
    if not is_clean(report):
        return f"{COMMENT_MARKER}\n{fit_sections(list(_list_sections(report, blobs)), limit)}"
    risk = f", risk {report.risk.level}" if report.risk else ""
    missed = (
        f"; {plural_phrase(count, UNMEASURED_NOUN)}"
        if (count := len(unmeasured_by_reason(report)))
        else ""
    )
    change_text = f"{escape_prose(report_subject(report), 200)} ({describe_change_size(report)})"
    return (
        f"{COMMENT_MARKER}\n{VERDICT_MARKS['pass']} closeloop has nothing to say on"
        f" {change_text}{risk}{missed}.\n"
    )


def fit_sections(parts: Sequence[CommentSection], limit: int) -> str:
    """The parts in their order; the most needed are given room first."""
    texts: dict[int, str] = {}
    for number, part in sorted(enumerate(parts), key=lambda pair: pair[1].rank):
        text = _fit_section(part, limit)
        if text:
            texts[number] = text
            limit -= len(text.encode()) + 2
    return "\n\n".join(texts[number] for number in sorted(texts)) + "\n"


def _fit_section(part: CommentSection, room: int) -> str:
    """As many lines as fit, and how many do not; nothing where not even one does."""
    room -= len(f"{part.head}\n\n… and 1234567 more.\n{part.tail}\n\n".encode())
    lines: list[str] = []
    for item in part.items:
        line = part.line(item)
        room -= len(line.encode()) + 1
        if room < 0:
            break
        lines.append(line)
    if room < 0 and not lines:
        return ""
    missing = len(part.items) - len(lines)
    more = [f"\n… and {missing} more."] if missing else []
    return "\n".join([part.head, *lines, *more, *([part.tail] if part.tail else [])])


def _list_sections(report: ChangeReport, blobs: str | None) -> Iterator[CommentSection]:
    """The page from top to bottom."""
    title = f"{escape_prose(report_subject(report), 200)} ({describe_change_size(report)})"
    yield CommentSection(
        rank=0,
        head=(
            f"### {VERDICT_MARKS[report.verdict]}"
            f" {escape_prose(report_headline(report))}\n\n{title}"
        ),
    )
    if report.mending:
        yield CommentSection(rank=1, head=f"{escape_prose(describe_mending(report.mending))}.")
        left = [(run, name) for run in report.mending.left for name in run.broke]
        yield from _folded_sections(5, "What the agent left broken", left, _broken_line)
    if report.risk:
        yield _risk_section(report.risk)
    broken = [(tool, name) for tool in report.tools for name in tool.broke]
    visible_broken, rest = broken[:MAX_BROKEN], broken[MAX_BROKEN:]
    if visible_broken:
        yield CommentSection(
            rank=2, head="**Broken by this change**", items=visible_broken, line=_broken_line
        )
    yield from _folded_sections(5, f"{len(rest)} more that it broke", rest, _broken_line)
    yield from _finding_sections(list_active_findings(report), blobs)
    yield from _tool_sections(report.tools)
    if report.risk:
        factors = sorted(report.risk.factors, key=lambda factor: -factor.weight)
        yield from _folded_sections(
            8, "What the risk is made of", factors, partial(_factor_line, blobs)
        )
    missed = unmeasured_by_reason(report)
    yield from _folded_sections(
        4, plural_phrase(len(missed), UNMEASURED_NOUN), missed, _unmeasured_line
    )
    yield CommentSection(
        rank=0, head=f"<sub>On your own machine: {escape_code(rerun_command(report))}</sub>"
    )


def _risk_section(risk: Risk) -> CommentSection:
    chance = ""
    if one := risk.chance:
        chance = (
            f" Going by {one.of} past changes, {one.value:.0%} ({one.low:.0%} to {one.high:.0%}) "
            "of those like it are later reverted or repaired."
        )
    head = f"**Risk: {risk.level}.**{chance}"
    return CommentSection(rank=1, head=head, items=risk.reasons[:MAX_REASONS], line=_bullet_line)


def _finding_sections(findings: Sequence[Finding], blobs: str | None) -> Iterator[CommentSection]:
    """Errors and warnings in sight, the rest folded away."""
    row = partial(_finding_row, blobs)
    grave = [finding for finding in findings if finding.severity != "info"][:MAX_ROWS]
    rest = findings[len(grave) :]
    if grave:
        head = f"**{plural_phrase(len(findings), 'finding')}**\n\n{_FINDINGS_HEADER}"
        yield CommentSection(rank=3, head=head, items=grave, line=row)
    kind = "more finding" if grave else "note"
    yield from _folded_sections(6, plural_phrase(len(rest), kind), rest, row, _FINDINGS_HEADER)


def _finding_row(blobs: str | None, finding: Finding) -> str:
    where = _link_place(finding.places[0], blobs) if finding.places else "–"
    rule = escape_prose(finding.rule, 80)
    rule = f"**{rule}**" if finding.severity == "error" else rule
    return f"| {where} | {rule} | {escape_prose(finding.message)} |"


def _tool_sections(tools: Sequence[ToolRun]) -> Iterator[CommentSection]:
    """How each tool fared, and the output of those that have something against the change."""
    yield from _folded_sections(7, "The repository's own tools", tools, _tool_line)
    for tool in tools:
        if tool.output.strip() and is_tool_worse(tool):
            yield from _folded_sections(9, f"Output of {tool.name}", [tool.output], fence_output)


def _tool_line(tool: ToolRun) -> str:
    before = f"{describe_tool_state(tool.before)} → " if tool.before else ""
    facts = [f"{tool.seconds:.0f} s"] if tool.seconds is not None else []
    facts += [f"{len(tool.already)} failing before too"] if tool.already else []
    facts += [f"{len(tool.mended)} mended"] if tool.mended else []
    facts += [f"{plural_phrase(len(tool.removed), 'test')} removed"] if tool.removed else []
    facts += [escape_prose(text, 200) for text in (tool.selected, tool.note) if text]
    details = f" ({'; '.join(facts)})" if facts else ""
    return (
        f"- {escape_prose(tool.name)} {escape_code(tool.command)}:"
        f" {before}{describe_tool_state(tool.after)}{details}"
    )


def _bullet_line(text: str) -> str:
    return f"- {escape_prose(text)}"


def _broken_line(pair: tuple[ToolRun, str]) -> str:
    return f"- {escape_code(pair[1])} ({escape_prose(pair[0].name)})"


def _unmeasured_line(one: Unmeasured) -> str:
    return f"- {escape_prose(one.rule)}: {escape_prose(one.reason)}"


def _factor_line(blobs: str | None, factor: RiskFactor) -> str:
    places = ", ".join(_link_place(place, blobs) for place in factor.places[:3])
    return (
        f"- {escape_prose(factor.name)}:"
        f" {escape_prose(factor.text)}{f' ({places})' if places else ''}"
    )


def _folded_sections(
    rank: int, title: str, items: Sequence[Kind], line: Callable[[Kind], str], head: str = ""
) -> Iterator[CommentSection]:
    """A part that is folded away until somebody opens it."""
    if items:
        opening = [
            f"<details><summary>{escape_text(truncate_to_line(title, 200))}</summary>\n",
            *([head] if head else []),
        ]
        yield CommentSection(
            rank=rank, head="\n".join(opening), items=items, line=line, tail="\n</details>"
        )


def _link_place(text: str, blobs: str | None) -> str:
    """A place, leading to its line where it is known where the files are."""
    if blobs is None:
        return escape_code(text)
    place = parse_place(text)
    line = f"#L{place.line}" if place.line else ""
    return f"[{escape_code(text)}]({blobs}/{quote(place.path, errors='replace')}{line})"
