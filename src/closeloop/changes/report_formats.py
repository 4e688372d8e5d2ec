"""Render the report of a change: text, Markdown, SARIF, JUnit XML and JSON."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from closeloop import __version__
from closeloop.records.attempt import Outcome
from closeloop.records.change import (
    ChangeReport,
    FixingResult,
    RevertChance,
    Risk,
    RiskFactor,
    ToolRun,
    ToolState,
)
from closeloop.records.errors import unknown_name_error
from closeloop.records.finding import SEVERITIES, Finding, Rule, Unmeasured
from closeloop.records.record import Record
from closeloop.text.patches import sum_line_counts
from closeloop.text.untrusted import make_visible
from closeloop.text.wording import INSTALL_CHECK_TOOLS, format_percent, truncate_words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


# Report formats for people, code hosts and other tools.


REPORT_FORMATS = ("gitlab", "junit", "markdown", "sarif")


def render_report(format: str, report: ChangeReport, rules: Sequence[Rule] = ()) -> str:  # noqa: A002
    """Render the report in that format; BadInput lists the formats."""
    import msgspec

    document: object
    match format:
        case "markdown":
            return render_comment(report)
        case "junit":
            return render_junit(report)
        case "sarif":
            document = sarif_from_report(report, rules)
        case "gitlab":
            document = build_code_quality(report)
        case _:
            raise unknown_name_error("report format", format, REPORT_FORMATS)
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


# Text that all formats share, in the same words and order.


VERDICT_TEXTS = {
    "pass": "Passed",
    "unverified": "Not verified",
    "warn": "Warning",
    "block": "Blocked",
}
_COMMIT_ID = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}(?:[0-9a-f]{24})?\b")
_PLACE = re.compile(r"(.+?)(?::(\d{1,9}))?", re.DOTALL)


class SourcePlace(Record):
    """A place in the repository, after the change."""

    path: str
    line: int | None = None


def parse_place(text: str) -> SourcePlace:
    """Parse `src/app.py:12`, or a path alone."""
    match = _PLACE.fullmatch(text)
    path, line = match.groups() if match else (text, None)
    return SourcePlace(path=path, line=int(line) if line and int(line) else None)


def first_source_place(finding: Finding) -> SourcePlace | None:
    return parse_place(finding.places[0]) if finding.places else None


def list_active_findings(report: ChangeReport) -> list[Finding]:
    """Return the findings that are not silenced, most severe first."""
    findings = [finding for finding in report.findings if finding.silenced is None]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def is_clean(report: ChangeReport) -> bool:
    """Return whether there is nothing that anybody needs to read."""
    risky = report.risk is not None and report.risk.level != "low"
    return report.verdict == "pass" and not (risky or list_active_findings(report))


def unmeasured_by_reason(report: ChangeReport) -> list[Unmeasured]:
    """Return what could not be checked, in any tier, grouped by reason."""
    rules: dict[str, list[str]] = {}
    for entry in (*report.unmeasured, *(report.risk.unmeasured if report.risk else ())):
        rules.setdefault(entry.reason, []).append(entry.rule)
    return [Unmeasured(rule=", ".join(names), reason=reason) for reason, names in rules.items()]


def report_headline(report: ChangeReport) -> str:
    """Return a line such as `Blocked: 2 newly failing in test; 1 error; risk medium`."""
    reasons = f": {'; '.join(report.reasons)}" if report.reasons else ""
    text = f"{VERDICT_TEXTS[report.verdict]}{reasons}"
    if report.verdict == "pass" and "tools" not in report.tiers:
        text = f"No findings in {' and '.join(report.tiers)}; the tools were not run"
    if report.risk is None or _reasons_name_risk(report):
        return text
    if report.verdict == "block" and report.risk.level == "low":  # reads as if little was wrong
        return text
    return f"{text}; risk {report.risk.level}"


def _reasons_name_risk(report: ChangeReport) -> bool:
    """Return whether the risk is among the reasons."""
    is_severe = report.risk is not None and report.risk.level in ("high", "critical")
    return report.held or (report.verdict in ("warn", "unverified") and is_severe)


def is_tool_worse(tool: ToolRun) -> bool:
    """Return whether a tool reports a problem with the change."""
    from closeloop.grading.tool_outcomes import tool_outcome

    return tool_outcome(tool) != "no worse"


def describe_tool_state(state: ToolState | None) -> str:
    """Describe how a tool ended, in a word or two."""
    return {"inert": "did not run", None: "–"}.get(state, state or "")


def describe_tool_facts(tool: ToolRun) -> list[str]:
    """Return further facts of a tool's run: `41 tests`, `2 failing before too`."""
    facts = [plural_phrase(tool.ran, "test")] if tool.ran else []
    facts += [f"{len(tool.already)} failing before too"] if tool.already else []
    facts += [f"{len(tool.mended)} fixed"] if tool.mended else []
    facts += [f"{plural_phrase(len(tool.removed), 'test')} removed"] if tool.removed else []
    return [*facts, *(text for text in (tool.selected, tool.note) if text)]


def describe_report_grade(grade: Outcome) -> str:
    """Describe the result of the task's own acceptance."""
    reason = "; ".join(grade.reasons) or grade.cause or ""
    return f"Graded by its task: {grade.result}{f' ({reason})' if reason else ''}"


def describe_fixing(mending: FixingResult) -> str:
    """Describe what an agent fixed, and where the fix is."""
    tries = f"{mending.tries} {'try' if mending.tries == 1 else 'tries'}"
    if mending.patch is not None:
        return f"An agent fixed it in {tries}: apply the fix with `git apply {mending.patch}`"
    note = f" ({mending.note})" if mending.note else ""
    left = ", ".join(
        [run.name for run in mending.left] + [finding.rule for finding in mending.findings]
    )
    return f"An agent did not fix it in {tries}{note}; still worse than before: {left or 'nothing'}"


def report_subject(report: ChangeReport) -> str:
    """Return `main..feature`; commits are abbreviated."""
    return _COMMIT_ID.sub(r"\1", report.title)


def describe_change_size(report: ChangeReport) -> str:
    """Return `3 files, +20 −4`."""
    files = report.change.files
    added, removed = sum_line_counts(files)
    lines = "some lines unknown" if added is None else f"+{added} −{removed}"
    return f"{plural_phrase(len(files), 'file')}, {lines}"


def rerun_command(report: ChangeReport) -> str:
    """Return the command that reproduces this report locally."""
    change = report.change
    between = f" {change.base[:12]}..{change.head[:12]}" if change.base and change.head else ""
    return f"closeloop check{between}"


def finding_fingerprints(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield an identity for each finding that survives line moves; equal ones are numbered."""
    counts: Counter[str] = Counter()
    for finding in findings:
        place = first_source_place(finding)
        message = re.sub(r"\d+", "#", finding.message)
        text = "\0".join((finding.rule, place.path if place else "", message))
        counts[text] += 1
        numbered = f"{text}\0{counts[text]}".encode("utf-8", "surrogatepass")
        yield hashlib.sha256(numbered).hexdigest()[:32]


def plural_phrase(count: int, noun: str) -> str:
    """Return `1 file`, `2 things that were lost`: the first word takes the plural."""
    word, _, clause = noun.partition(" that ")
    return f"{count} {word}{'' if count == 1 else 's'}{clause and ' that '}{clause}"


# A report for a terminal.

MAX_FINDINGS = 40
MAX_BROKEN = 20
MAX_LOST_LINES = 3
MAX_BROKEN_ALIKE = 3
"""Shown of those that fail with the same message."""
MAX_REASONS = 5
MAX_OUTPUT_LINES = 15
VERDICT_STYLES = {"pass": "green", "unverified": "yellow", "warn": "yellow", "block": "red"}
LEVEL_STYLES = {"low": "green", "medium": "yellow", "high": "red", "critical": "bold red"}
SEVERITY_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}
STATE_STYLES = {
    "passed": "green",
    "failed": "red",
    "timed out": "red",
    "not set up": "red",
    "inert": "yellow",
}


def render_terminal_report(report: ChangeReport) -> Iterator[RenderableType]:
    """Yield the verdict, then its reasons, most important first."""
    from rich.text import Text

    yield Text(
        make_visible(report_headline(report)), style=f"bold {VERDICT_STYLES[report.verdict]}"
    )
    yield Text(
        f"{make_visible(report_subject(report))} ({describe_change_size(report)})", style="dim"
    )
    if report.grade:
        yield Text(f"{make_visible(describe_report_grade(report.grade))}.")
    if report.mending:
        yield Text(f"{make_visible(describe_fixing(report.mending))}.")
    if report.risk:
        yield from _render_risk(report.risk)
    if report.tools:
        yield from _render_tools(report.tools)
    yield from _render_findings(list_active_findings(report))
    silenced = sum(finding.silenced is not None for finding in report.findings)
    if silenced:
        yield Text(f"{plural_phrase(silenced, 'finding')} silenced.", style="dim")
    unmeasured = unmeasured_by_reason(report)
    without_tools = [one for one in unmeasured if one.reason.endswith(INSTALL_CHECK_TOOLS)]
    if len(without_tools) > 1:
        rules = ", ".join(one.rule for one in without_tools)
        yield Text(
            f"checked only in part: {make_visible(rules)}: install ruff, ty and ast-grep with "
            "pip install 'closeloop[check]'",
            style="dim",
        )
        unmeasured = [one for one in unmeasured if one not in without_tools]
    for entry in unmeasured:
        yield Text(
            f"not checked: {make_visible(entry.rule)}: {make_visible(entry.reason)}", style="dim"
        )


def describe_chance(chance: RevertChance) -> str:
    """Describe how often changes of that size went wrong, compared with all changes."""
    spread = f"{_percent(chance.low)} to {_percent(chance.high)}"
    usual = f", {_percent(chance.usual)} of all changes" if chance.usual is not None else ""
    return (
        f"{_percent(chance.value)} ({spread}) of changes of this size were reverted or "
        f"fixed later{usual}, based on {chance.of:,} changes"
    )


def _percent(share: float) -> str:
    """Format a share; never `0 %` for something that happened."""
    return format_percent(share) if share >= 0.01 else "under 1 %"


def _render_risk(risk: Risk) -> Iterator[Text]:
    from rich.text import Text

    line = Text("\nRisk ", style="bold").append(risk.level, style=LEVEL_STYLES[risk.level])
    if chance := risk.chance:
        line.append(f"   {describe_chance(chance)}", style="not bold dim")
    yield line
    if risk.note:
        yield Text(f"  {make_visible(risk.note)}", style="dim")
    for reason in risk.reasons[:MAX_REASONS]:
        yield Text(f"  {make_visible(reason)}")


def _render_tools(tools: Sequence[ToolRun]) -> Iterator[RenderableType]:
    """Yield a table with one row per tool, then what the change broke with the tool's output."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="\nTools", title_justify="left", title_style="bold", box=None)
    for name in ("", "before", "after", "", ""):
        table.add_column(name)
    for tool in tools:
        table.add_row(
            Text(make_visible(tool.name)),
            Text(
                describe_tool_state(tool.before), style=STATE_STYLES.get(tool.before or "", "dim")
            ),
            Text(describe_tool_state(tool.after), style=STATE_STYLES.get(tool.after, "dim")),
            f"{tool.seconds:.1f} s" if tool.seconds is not None else "",
            Text(make_visible("; ".join(describe_tool_facts(tool))), style="dim"),
        )
    yield table
    shown_outputs = set[str]()
    for tool in tools:
        yield from _render_broken(tool)
        explained = tool.broke and all(": " in name for name in tool.broke)
        output = tool.output.strip()
        # One cause, such as a failing setup, may end several tools.
        if is_tool_worse(tool) and not explained and output and output not in shown_outputs:
            shown_outputs.add(output)
            lines = make_visible(output).splitlines()[-MAX_OUTPUT_LINES:]
            yield Text("\n".join(f"    {line}" for line in lines), style="dim")


def _render_broken(tool: ToolRun) -> Iterator[Text]:
    """Yield a line for each broken test or new complaint.

    For many that fail alike there are a few lines, and one for many tests that no longer run.
    """
    from rich.text import Text

    lost = {*tool.lost} if len(tool.lost) > MAX_LOST_LINES else set[str]()
    alike: dict[str, list[str]] = {}
    for name in tool.broke:
        if name.rpartition(": ")[0] not in lost:
            message = name.partition(": ")[2]
            alike.setdefault(message or name, []).append(name)
    printed = hidden_count = 0
    for message, group in alike.items():
        visible = group[: max(0, min(MAX_BROKEN_ALIKE, MAX_BROKEN - printed))]
        printed += len(visible)
        for name in visible:
            yield Text(f"  broke  {make_visible(name)}", style="red")
        if not visible:
            hidden_count += len(group)
        elif len(group) > len(visible):
            more = f"  … and {len(group) - len(visible)} more: {make_visible(message)}"
            yield Text(more, style="dim")
    if hidden_count:
        yield Text(f"  … and {hidden_count} more", style="dim")
    if lost:
        shown = ", ".join(map(make_visible, tool.lost[:MAX_LOST_LINES]))
        text = f"  broke  {len(tool.lost):,} tests that no longer run, such as {shown}"
        yield Text(text, style="red")


def _render_findings(findings: Sequence[Finding]) -> Iterator[Text]:
    from rich.text import Text

    if findings:
        yield Text("\nFindings", style="bold")
    for finding in findings[:MAX_FINDINGS]:
        place = f"{finding.places[0]}  " if finding.places else ""
        style = SEVERITY_STYLES[finding.severity]
        line = Text("  ").append(f"{finding.severity:<7}", style=style)
        line.append(f"  {make_visible(place)}").append(finding.rule, style=style)
        yield line.append(f"  {make_visible(finding.message)}")
    if len(findings) > MAX_FINDINGS:
        yield Text(f"… and {len(findings) - MAX_FINDINGS} more: --json lists all", style="dim")


# A report as Markdown: the comment of a pull request, and a check run of GitHub.
#
# Untrusted text, escaped as Markdown.
#
# Anyone may write a pull request: its text must not mention people, refer to other
# issues, load pictures, open or close elements, or leave its place in a table.

# Numeric character references are shown and never interpreted. But hosts search for people, issues
# and addresses in the rendered text: a zero-width space prevents matches.
_ZERO_WIDTH_SPACE = "\u200b"
_ESCAPES = str.maketrans(
    {sign: f"&#{ord(sign)};" for sign in f"&<>\\`*_[]|~!{_ZERO_WIDTH_SPACE}"}
    | {"$": "<span>$</span>"}
)
_REFERENCE = re.compile(r"""@|[#!~%&$](?=[\w"])|:(?=//)|\bwww(?=\.)|\bgh(?=-\d)""", re.IGNORECASE)
_LIST_MARKER = re.compile(r"[-+=#]|\d{1,9}[.)]")


def escape_prose(text: str, limit: int = 500) -> str:
    """Escape one line of prose, with text in backticks as code; a dash if empty."""
    parts = truncate_to_line(text, limit).split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    escaped = "".join(
        (escape_code(part, limit) if part else escape_text("``"))
        if number % 2
        else escape_text(part)
        for number, part in enumerate(parts)
    )
    list_marker = _LIST_MARKER.match(escaped)
    if list_marker:
        return f"{list_marker[0][:-1]}\\{escaped[list_marker.end() - 1 :]}"
    return escaped or "–"


def escape_code(text: str, limit: int = 300) -> str:
    """Escape a name, path or command as code, also inside a table."""
    text = truncate_to_line(text, limit)
    if text and not set(text) & set("`|\\"):
        return f"`{text}`"
    return f"<code>{escape_text(text)}</code>"


def fence_output(text: str, limit: int = 4_000) -> str:
    """Fence output unchanged, truncated at the beginning."""
    text = make_visible(text).strip("\n")
    text = text if len(text) <= limit else f"…{text[-limit:]}"
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def truncate_to_line(text: str, limit: int) -> str:
    """Collapse whitespace to single spaces and truncate."""
    return truncate_words(make_visible(text[: limit * 4]), limit)


def escape_text(text: str) -> str:
    """Escape text so that it is inert, also if read as HTML instead of Markdown."""
    return _REFERENCE.sub(rf"\g<0>{_ZERO_WIDTH_SPACE}", text).translate(_ESCAPES)


COMMENT_MARKER = "<!-- closeloop:check -->"
"""Invisible marker by which the comment is found again and updated."""
MAX_COMMENT_BYTES = 65_000
"""Maximum bytes of a comment; hosts accept about 65,535 characters, at least that many bytes."""
MAX_ROWS = 20
MAX_MARKDOWN_BROKEN = 15
MAX_MARKDOWN_REASONS = 4
UNMEASURED_NOUN = "check that could not run"
VERDICT_MARKS = {"pass": "✅", "unverified": "❔", "warn": "⚠️", "block": "⛔"}
Kind = TypeVar("Kind")
_FINDINGS_HEADER = "| where | rule | what |\n| --- | --- | --- |"


class CommentSection(Record):
    """A section of the comment. If space is short its last lines are dropped, or all of it."""

    rank: int
    """Priority: 0 is dropped last."""
    head: str
    items: Sequence[Any] = ()
    line: Callable[[Any], str] = str
    """Renders one item; called only for items that fit."""
    tail: str = ""


def render_comment(
    report: ChangeReport, *, blobs: str | None = None, limit: int = MAX_COMMENT_BYTES
) -> str:
    """Render the comment; one line for a clean change. `blobs` is the URL of its files."""
    if not is_clean(report):
        return f"{COMMENT_MARKER}\n{fit_sections(list(_list_sections(report, blobs)), limit)}"
    risk = f", risk {report.risk.level}" if report.risk else ""
    missed = (
        f"; {plural_phrase(count, UNMEASURED_NOUN)}"
        if (count := len(unmeasured_by_reason(report)))
        else ""
    )
    tools = "" if "tools" in report.tiers else "; the tools were not run"
    change_text = f"{escape_prose(report_subject(report), 200)} ({describe_change_size(report)})"
    return (
        f"{COMMENT_MARKER}\n{VERDICT_MARKS['pass']} closeloop found no problems in "
        f"{change_text}{risk}{missed}{tools}.\n"
    )


def fit_sections(parts: Sequence[CommentSection], limit: int) -> str:
    """Join the sections in order; those of highest priority get space first."""
    texts: dict[int, str] = {}
    for number, part in sorted(enumerate(parts), key=lambda pair: pair[1].rank):
        text = _fit_section(part, limit)
        if text:
            texts[number] = text
            limit -= len(text.encode()) + 2
    return "\n\n".join(texts[number] for number in sorted(texts)) + "\n"


def _fit_section(part: CommentSection, room: int) -> str:
    """Return as many lines as fit, with the number left out; empty if not even one fits."""
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
    omitted = [f"\n… and {missing} more."] if missing else []
    return "\n".join([part.head, *lines, *omitted, *([part.tail] if part.tail else [])])


def _list_sections(report: ChangeReport, blobs: str | None) -> Iterator[CommentSection]:
    """Yield the sections from top to bottom."""
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
        yield CommentSection(rank=1, head=f"{escape_prose(describe_fixing(report.mending))}.")
        still_broken = [(run, name) for run in report.mending.left for name in run.broke]
        yield from _folded_sections(
            5, "Still broken after the agent's fix", still_broken, _broken_line
        )
    if report.risk:
        yield _risk_section(report.risk)
    broken = [(tool, name) for tool in report.tools for name in tool.broke]
    visible_broken, hidden_broken = broken[:MAX_MARKDOWN_BROKEN], broken[MAX_MARKDOWN_BROKEN:]
    if visible_broken:
        yield CommentSection(
            rank=2, head="**Broken by this change**", items=visible_broken, line=_broken_line
        )
    yield from _folded_sections(
        5, f"{len(hidden_broken)} more broken by it", hidden_broken, _broken_line
    )
    yield from _finding_sections(list_active_findings(report), blobs)
    yield from _tool_sections(report.tools)
    if report.risk:
        factors = sorted(report.risk.factors, key=lambda factor: -factor.weight)
        yield from _folded_sections(8, "Risk factors", factors, partial(_factor_line, blobs))
    missed = unmeasured_by_reason(report)
    yield from _folded_sections(
        4, plural_phrase(len(missed), UNMEASURED_NOUN), missed, _unmeasured_line
    )
    yield CommentSection(
        rank=0, head=f"<sub>To run it on your machine: {escape_code(rerun_command(report))}</sub>"
    )


def _risk_section(risk: Risk) -> CommentSection:
    chance = ""
    if estimate := risk.chance:
        chance = f" {describe_chance(estimate).capitalize()}."
    note = f" {risk.note[:1].upper()}{risk.note[1:]}." if risk.note else ""
    head = f"**Risk: {risk.level}.**{chance}{note}"
    return CommentSection(
        rank=1, head=head, items=risk.reasons[:MAX_MARKDOWN_REASONS], line=_bullet_line
    )


def _finding_sections(findings: Sequence[Finding], blobs: str | None) -> Iterator[CommentSection]:
    """Yield errors and warnings in full, the rest collapsed."""
    row = partial(_finding_row, blobs)
    severe = [finding for finding in findings if finding.severity != "info"][:MAX_ROWS]
    minor = findings[len(severe) :]
    if severe:
        head = f"**{plural_phrase(len(findings), 'finding')}**\n\n{_FINDINGS_HEADER}"
        yield CommentSection(rank=3, head=head, items=severe, line=row)
    kind = "more finding" if severe else "note"
    yield from _folded_sections(6, plural_phrase(len(minor), kind), minor, row, _FINDINGS_HEADER)


def _finding_row(blobs: str | None, finding: Finding) -> str:
    location = _link_place(finding.places[0], blobs) if finding.places else "–"
    rule = escape_prose(finding.rule, 80)
    rule = f"**{rule}**" if finding.severity == "error" else rule
    return f"| {location} | {rule} | {escape_prose(finding.message)} |"


def _tool_sections(tools: Sequence[ToolRun]) -> Iterator[CommentSection]:
    """Yield each tool's result, and the output of those that report a problem."""
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


def _unmeasured_line(entry: Unmeasured) -> str:
    return f"- {escape_prose(entry.rule)}: {escape_prose(entry.reason)}"


def _factor_line(blobs: str | None, factor: RiskFactor) -> str:
    links = ", ".join(_link_place(place, blobs) for place in factor.places[:3])
    return (
        f"- {escape_prose(factor.name)}:"
        f" {escape_prose(factor.text)}{f' ({links})' if links else ''}"
    )


def _folded_sections(
    rank: int, title: str, items: Sequence[Kind], line: Callable[[Kind], str], head: str = ""
) -> Iterator[CommentSection]:
    """Yield a section that is collapsed until opened."""
    if items:
        opening = [
            f"<details><summary>{escape_text(truncate_to_line(title, 200))}</summary>\n",
            *([head] if head else []),
        ]
        yield CommentSection(
            rank=rank, head="\n".join(opening), items=items, line=line, tail="\n</details>"
        )


def _link_place(text: str, blobs: str | None) -> str:
    """Return a place, linked to its line if the address of the files is known."""
    if blobs is None:
        return escape_code(text)
    place = parse_place(text)
    line = f"#L{place.line}" if place.line else ""
    return f"[{escape_code(text)}]({blobs}/{quote(place.path, errors='replace')}{line})"


# A report as a check run of GitHub: its conclusion, a summary, and annotations of lines.

Conclusion = Literal["success", "neutral", "failure"]
VERDICT_CONCLUSIONS: dict[str, Conclusion] = {
    "pass": "success",
    "unverified": "neutral",
    "warn": "neutral",
    "block": "failure",
}
ANNOTATION_LEVELS = {"error": "failure", "warning": "warning", "info": "notice"}
BATCH_ANNOTATIONS = 50
"""Maximum annotations per request."""
MAX_TITLE_CHARS = 255
MAX_MESSAGE_CHARS = 16_000
"""Maximum characters of a message; in bytes never more than the 64 KB allowed."""


class CheckRun(Record):
    """A check run to publish on a commit."""

    conclusion: Conclusion
    title: str
    summary: str
    annotations: tuple[dict[str, Any], ...] = ()


def build_check_run(report: ChangeReport, *, blobs: str | None = None) -> CheckRun:
    """Build the check run for GitHub."""
    return CheckRun(
        conclusion=VERDICT_CONCLUSIONS[report.verdict],
        title=truncate_to_line(report_headline(report), MAX_TITLE_CHARS),
        summary=render_comment(report, blobs=blobs),
        annotations=tuple(
            note
            for active_finding in list_active_findings(report)
            if (note := _build_annotation(active_finding))
        ),
    )


def check_run_output(run: CheckRun, first: int = 0) -> dict[str, Any]:
    """Return the request's output part, with one batch of annotations starting at `first`."""
    notes = list(run.annotations[first : first + BATCH_ANNOTATIONS])
    return {"title": run.title, "summary": run.summary, "annotations": notes}


def _build_annotation(finding: Finding) -> dict[str, Any] | None:
    """Build an annotation; None without a line, since then it is only in the summary."""
    place = parse_place(finding.places[0]) if finding.places else None
    if place is None or place.line is None:
        return None
    other_places = "\n".join(finding.places[1:20])
    return {
        "path": make_visible(place.path),
        "start_line": place.line,
        "end_line": place.line,
        "annotation_level": ANNOTATION_LEVELS[finding.severity],
        "title": truncate_to_line(finding.rule, MAX_TITLE_CHARS),
        "message": make_visible(finding.message)[:MAX_MESSAGE_CHARS],
        **({"raw_details": make_visible(other_places)[:MAX_MESSAGE_CHARS]} if other_places else {}),
    }


# A report in the formats of other tools: SARIF, JUnit XML and GitLab's code quality.


SARIF_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
MAX_PLACES = 100


def sarif_from_report(report: ChangeReport, rules: Sequence[Rule] = ()) -> dict[str, Any]:
    """Convert a report's findings, and what could not be checked, to SARIF."""
    document = build_sarif(
        [(None, finding) for finding in report.findings], rules, unmeasured_by_reason(report)
    )
    (run,) = document["runs"]
    facts: dict[str, Any] = {
        "verdict": report.verdict,
        "reasons": [make_visible(reason) for reason in report.reasons],
    }
    facts |= {"risk": report.risk.level} if report.risk else {}
    facts |= {"grade": report.grade.result} if report.grade else {}
    if report.verdict == "unverified":
        (invocation,) = run["invocations"]
        text = make_visible(report_headline(report))
        warning = {"level": "warning", "message": {"text": text}}
        invocation["toolExecutionNotifications"].insert(0, warning)
    fix_path = report.mending.patch if report.mending else None
    run["properties"] = facts | ({"mended": make_visible(fix_path)} if fix_path else {})
    return document


def build_sarif(
    attempt_findings: Iterable[tuple[str | None, Finding]],
    rules: Sequence[Rule],
    missed: Sequence[Unmeasured] = (),
) -> dict[str, Any]:
    """Build one SARIF run: findings in files, or in the events of an attempt."""
    pairs = list(attempt_findings)
    rules_by_name = {rule.name: _sarif_rule(rule) for rule in rules}
    for _, finding in pairs:
        rules_by_name.setdefault(finding.rule, {"id": finding.rule})
    index = {name: number for number, name in enumerate(rules_by_name)}
    prints = finding_fingerprints(finding for _, finding in pairs)
    driver = {"name": "closeloop", "version": __version__, "rules": list(rules_by_name.values())}
    notes = [
        {"level": "note", "message": {"text": make_visible(f"{entry.rule}: {entry.reason}")}}
        for entry in missed
    ]
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "results": [
            _sarif_result(attempt, finding, index[finding.rule], print_)
            for (attempt, finding), print_ in zip(pairs, prints, strict=True)
        ],
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.about},
        "defaultConfiguration": {"level": SARIF_LEVELS[rule.severity]},
        "properties": {"version": rule.version, "gates": rule.gates},
    }


def _sarif_result(attempt: str | None, finding: Finding, rule: int, print_: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"confidence": finding.confidence, "mode": finding.mode}
    if attempt is not None:
        facts |= {"attempt": attempt, "events": list(finding.events)}
        print_ = f"{attempt}/{finding.rule}/{finding.events[:1]}"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": SARIF_LEVELS[finding.severity],
        "message": {"text": make_visible(finding.message)},
        "locations": _sarif_locations(attempt, finding),
        "partialFingerprints": {"closeloop/v1": print_},
        "properties": facts,
    }
    if finding.silenced is not None:
        result["suppressions"] = [{"kind": "external", "justification": finding.silenced}]
    return result


def _sarif_locations(attempt: str | None, finding: Finding) -> list[dict[str, Any]]:
    """Return locations; events are not in a file, so they are named as places of the attempt."""
    if attempt is not None:
        names = [f"{attempt}#{number}" for number in finding.events[:20]] or [attempt]
        events = [{"fullyQualifiedName": name, "kind": "event"} for name in names]
        return [{**_file_location(f"attempts/{attempt}", None), "logicalLocations": events}]
    places = [parse_place(text) for text in finding.places[:MAX_PLACES]]
    return [_file_location(place.path, place.line) for place in places]


def _file_location(path: str, line: int | None) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": quote(path, errors="replace")}}
    if line is not None:
        location["region"] = {"startLine": line}
    return {"physicalLocation": location}


# A report as JUnit XML, which every build server displays.

_NOT_XML = re.compile("[\ufffe\uffff]")


def render_junit(report: ChangeReport) -> str:
    """Render a suite per tool, one for findings, one for the verdict; failures are the change's."""
    root = Element("testsuites", name="closeloop")
    for tool in report.tools:
        _add_tool_suite(root, tool)
    findings = SubElement(root, "testsuite", name="findings")
    for finding in list_active_findings(report):
        _add_finding(findings, finding)
    verdict = SubElement(root, "testsuite", name="verdict")
    if report.mending and report.mending.patch:
        properties = SubElement(verdict, "properties")
        SubElement(properties, "property", name="mended", value=to_xml_text(report.mending.patch))
    case = _add_case(verdict, report.title, "closeloop")
    if report.verdict == "block":
        _add_result(case, "failure", report_headline(report), "\n".join(report.reasons))
    elif report.verdict == "unverified":
        _add_result(case, "skipped", report_headline(report))
    for suite in root:
        set_case_counts(suite)
        suite.set("skipped", str(sum(1 for _ in suite.iter("skipped"))))
    set_case_counts(root)
    return serialise_xml(root)


def serialise_xml(root: Element) -> str:
    indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}\n'


def _add_tool_suite(root: Element, tool: ToolRun) -> None:
    """Add a suite: newly broken fails, failing before is skipped, not run is an error."""
    suite = SubElement(root, "testsuite", name=to_xml_text(tool.name))
    if tool.seconds is not None:
        suite.set("time", f"{tool.seconds:.3f}")
    for name in tool.broke:
        _add_result(
            _add_case(suite, name, tool.name), "failure", "fails since this change", tool.output
        )
    for name in tool.already:
        _add_result(_add_case(suite, name, tool.name), "skipped", "failed before this change too")
    for name in tool.mended:
        _add_case(suite, name, tool.name)
    if tool.broke:
        return
    case = _add_case(suite, tool.command, tool.name)
    note = tool.note or tool.after
    if tool.after != "passed" and not is_tool_worse(tool):
        _add_result(case, "skipped", f"{note}, before this change too")
    elif tool.after == "failed":
        _add_result(case, "failure", note, tool.output)
    elif tool.after != "passed":
        _add_result(case, "error", note, tool.output)


def _add_finding(suite: Element, finding: Finding) -> None:
    """Add a finding: errors fail; warnings and notes are only reported."""
    place = finding.places[0] if finding.places else finding.rule
    case = _add_case(suite, f"{finding.rule} {place}", finding.rule)
    if finding.severity == "error":
        _add_result(case, "failure", finding.message, "\n".join(finding.places))
    else:
        SubElement(case, "system-out").text = to_xml_text(f"{finding.severity}: {finding.message}")


def _add_case(suite: Element, name: str, group: str) -> Element:
    return SubElement(suite, "testcase", name=to_xml_text(name), classname=to_xml_text(group))


def _add_result(case: Element, kind: str, message: str, text: str = "") -> None:
    element = SubElement(case, kind, message=to_xml_text(message))
    if kind != "skipped":
        element.set("type", kind)
        element.text = to_xml_text(text) or None


def set_case_counts(element: Element) -> None:
    """Set the number of cases and of failures."""
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        element.set(name, str(sum(1 for _ in element.iter(tag))))


def to_xml_text(text: str) -> str:
    """Make control characters visible and replace characters that XML cannot contain."""
    return _NOT_XML.sub("\ufffd", make_visible(text))


# Findings as GitLab's code quality report, which merge requests show next to the lines.

GITLAB_SEVERITIES = {"error": "major", "warning": "minor", "info": "info"}


def build_code_quality(report: ChangeReport) -> list[dict[str, Any]]:
    """Return every finding. One without a place is reported at the first file of the change."""
    findings = list_active_findings(report)
    files = report.change.files
    elsewhere = SourcePlace(path=files[0].path if files else "README.md")
    if report.verdict == "unverified":
        message = f"{report_headline(report)}."
        findings.append(
            Finding(
                rule="unverified", version=1, severity="warning", message=message, source="check"
            )
        )
    return [
        {
            "description": make_visible(finding.message),
            "check_name": finding.rule,
            "fingerprint": print_,
            "severity": GITLAB_SEVERITIES[finding.severity],
            "location": {"path": make_visible(place.path), "lines": {"begin": place.line or 1}},
        }
        for finding, print_ in zip(findings, finding_fingerprints(findings), strict=True)
        for place in [first_source_place(finding) or elsewhere]
    ]
