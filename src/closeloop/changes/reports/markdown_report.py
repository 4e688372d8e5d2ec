"""A report as Markdown: the comment of a pull request, and a check run of GitHub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from closeloop.changes.reports.report_text import (
    describe_chance,
    describe_change_size,
    describe_mending,
    describe_report_grade,
    describe_tool_facts,
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
from closeloop.records.change import ChangeReport, Risk, RiskFactor, ToolRun
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import Record
from closeloop.text.untrusted import make_visible
from closeloop.text.wording import truncate_words

# Text that nobody vouches for, as Markdown that shows it and does nothing else.
#
# A pull request may be written by anyone: what it says must not mention people, refer to other
# issues, load pictures, open or close elements, or leave its place in a table.

# By their numbers, signs are shown and never obeyed. But hosts look for people, issues and
# addresses in what is shown: a space of no width keeps them from finding any.
_ZERO_WIDTH_SPACE = "\u200b"
_ESCAPES = str.maketrans(
    {sign: f"&#{ord(sign)};" for sign in f"&<>\\`*_[]|~!{_ZERO_WIDTH_SPACE}"}
    | {"$": "<span>$</span>"}
)
_REFERENCE = re.compile(r"""@|[#!~%&$](?=[\w"])|:(?=//)|\bwww(?=\.)|\bgh(?=-\d)""", re.IGNORECASE)
_LIST_MARKER = re.compile(r"[-+=#]|\d{1,9}[.)]")


def escape_prose(text: str, limit: int = 500) -> str:
    """One line, in which what stands between backticks is code; a dash for nothing."""
    parts = truncate_to_line(text, limit).split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    escaped = "".join(
        (escape_code(part, limit) if part else escape_text("``"))
        if number % 2
        else escape_text(part)
        for number, part in enumerate(parts)
    )
    listed = _LIST_MARKER.match(escaped)
    if listed:
        return f"{listed[0][:-1]}\\{escaped[listed.end() - 1 :]}"
    return escaped or "–"


def escape_code(text: str, limit: int = 300) -> str:
    """A name, a path or a command, also within a table."""
    text = truncate_to_line(text, limit)
    if text and not set(text) & set("`|\\"):
        return f"`{text}`"
    return f"<code>{escape_text(text)}</code>"


def fence_output(text: str, limit: int = 4_000) -> str:
    """Lines of output as they are, their end rather than their beginning."""
    text = make_visible(text).strip("\n")
    text = text if len(text) <= limit else f"…{text[-limit:]}"
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def truncate_to_line(text: str, limit: int) -> str:
    """Its words with single spaces between them, cut where it is too long."""
    return truncate_words(make_visible(text[: limit * 4]), limit)


def escape_text(text: str) -> str:
    """Signs and nothing else, also where HTML is read and no Markdown."""
    return _REFERENCE.sub(rf"\g<0>{_ZERO_WIDTH_SPACE}", text).translate(_ESCAPES)


COMMENT_MARKER = "<!-- closeloop:check -->"
"""Nobody sees it; by it the comment is found again, to be kept up to date."""
MAX_COMMENT_BYTES = 65_000
"""Bytes; hosts take some 65,535 characters, and never mean less than bytes by that."""
MAX_ROWS = 20
MAX_BROKEN = 15
MAX_REASONS = 4
UNMEASURED_NOUN = "thing that could not be looked at"
VERDICT_MARKS = {"pass": "✅", "unverified": "❔", "warn": "⚠️", "block": "⛔"}
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
    tools = "" if "tools" in report.tiers else "; the tools were not asked"
    change_text = f"{escape_prose(report_subject(report), 200)} ({describe_change_size(report)})"
    return (
        f"{COMMENT_MARKER}\n{VERDICT_MARKS['pass']} closeloop has nothing to say on"
        f" {change_text}{risk}{missed}{tools}.\n"
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
    if report.grade:
        yield CommentSection(rank=1, head=f"{escape_prose(describe_report_grade(report.grade))}.")
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
        chance = f" {describe_chance(one).capitalize()}."
    note = f" {risk.note[:1].upper()}{risk.note[1:]}." if risk.note else ""
    head = f"**Risk: {risk.level}.**{chance}{note}"
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
    facts += [escape_prose(text, 200) for text in describe_tool_facts(tool)]
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


# A report as a check run of GitHub: its conclusion, a summary, and notes beside the lines.

Conclusion = Literal["success", "neutral", "failure"]
VERDICT_CONCLUSIONS: dict[str, Conclusion] = {
    "pass": "success",
    "unverified": "neutral",
    "warn": "neutral",
    "block": "failure",
}
ANNOTATION_LEVELS = {"error": "failure", "warning": "warning", "info": "notice"}
BATCH_ANNOTATIONS = 50
"""Annotations in one request."""
MAX_TITLE_CHARS = 255
MAX_MESSAGE_CHARS = 16_000
"""Characters; in bytes never more than the 64 KB that are allowed."""


class CheckRun(Record):
    """What is to be said of a commit."""

    conclusion: Conclusion
    title: str
    summary: str
    annotations: tuple[dict[str, Any], ...] = ()


def build_check_run(report: ChangeReport, *, blobs: str | None = None) -> CheckRun:
    """What GitHub shall show."""
    return CheckRun(
        conclusion=VERDICT_CONCLUSIONS[report.verdict],
        title=truncate_to_line(report_headline(report), MAX_TITLE_CHARS),
        summary=render_comment(report, blobs=blobs),
        annotations=tuple(
            note for one in list_active_findings(report) if (note := _build_annotation(one))
        ),
    )


def check_run_output(run: CheckRun, first: int = 0) -> dict[str, Any]:
    """The part of a request that shows it, with one batch of annotations from `first` on."""
    notes = list(run.annotations[first : first + BATCH_ANNOTATIONS])
    return {"title": run.title, "summary": run.summary, "annotations": notes}


def _build_annotation(finding: Finding) -> dict[str, Any] | None:
    """None where it has no line to stand at: then it is in the summary only."""
    place = parse_place(finding.places[0]) if finding.places else None
    if place is None or place.line is None:
        return None
    others = "\n".join(finding.places[1:20])
    return {
        "path": make_visible(place.path),
        "start_line": place.line,
        "end_line": place.line,
        "annotation_level": ANNOTATION_LEVELS[finding.severity],
        "title": truncate_to_line(finding.rule, MAX_TITLE_CHARS),
        "message": make_visible(finding.message)[:MAX_MESSAGE_CHARS],
        **({"raw_details": make_visible(others)[:MAX_MESSAGE_CHARS]} if others else {}),
    }
