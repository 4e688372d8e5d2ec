"""What every format says of a report, in the same words and the same order."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from closeloop.grading.tool_outcomes import tool_outcome
from closeloop.records.attempt import Outcome
from closeloop.records.change import (
    ChangeReport,
    MendingResult,
    RevertChance,
    Risk,
    ToolRun,
    ToolState,
)
from closeloop.records.finding import SEVERITIES, Finding, Unmeasured
from closeloop.records.record import Record
from closeloop.text.patches import sum_line_counts
from closeloop.text.untrusted import make_visible
from closeloop.text.wording import format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


VERDICT_TEXTS = {
    "pass": "Nothing stands in the way",
    "unverified": "Not verified",
    "warn": "Look before merging",
    "block": "Not ready to merge",
}
_COMMIT_ID = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}(?:[0-9a-f]{24})?\b")
_PLACE = re.compile(r"(.+?)(?::(\d{1,9}))?", re.DOTALL)


class SourcePlace(Record):
    """Where in the repository, after the change."""

    path: str
    line: int | None = None


def parse_place(text: str) -> SourcePlace:
    """`src/app.py:12`, or a path alone."""
    match = _PLACE.fullmatch(text)
    path, line = match.groups() if match else (text, None)
    return SourcePlace(path=path, line=int(line) if line and int(line) else None)


def first_source_place(finding: Finding) -> SourcePlace | None:
    return parse_place(finding.places[0]) if finding.places else None


def list_active_findings(report: ChangeReport) -> list[Finding]:
    """The findings that are not silenced, the gravest first."""
    findings = [finding for finding in report.findings if finding.silenced is None]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def is_clean(report: ChangeReport) -> bool:
    """Whether there is nothing that anybody needs to read."""
    risky = report.risk is not None and report.risk.level != "low"
    return report.verdict == "pass" and not (risky or list_active_findings(report))


def unmeasured_by_reason(report: ChangeReport) -> list[Unmeasured]:
    """What could not be looked at, in any tier; what has the same reason is told together."""
    rules: dict[str, list[str]] = {}
    for one in (*report.unmeasured, *(report.risk.unmeasured if report.risk else ())):
        rules.setdefault(one.reason, []).append(one.rule)
    return [Unmeasured(rule=", ".join(names), reason=why) for why, names in rules.items()]


def report_headline(report: ChangeReport) -> str:
    """`Not ready to merge: 2 newly failing in test; 1 error; risk medium`."""
    reasons = f": {'; '.join(report.reasons)}" if report.reasons else ""
    text = f"{VERDICT_TEXTS[report.verdict]}{reasons}"
    if report.verdict == "pass" and "tools" not in report.tiers:
        text = f"Nothing found by {' and '.join(report.tiers)}; the tools were not asked"
    if report.risk is None or _reasons_name_risk(report):
        return text
    return f"{text}; risk {report.risk.level}"


def _reasons_name_risk(report: ChangeReport) -> bool:
    """Whether the risk is among the reasons."""
    grave = report.risk is not None and report.risk.level in ("high", "critical")
    return report.held or (report.verdict in ("warn", "unverified") and grave)


def is_tool_worse(tool: ToolRun) -> bool:
    """Whether a tool has something against the change."""
    return tool_outcome(tool) != "no worse"


def describe_tool_state(of: ToolState | None) -> str:
    """How a tool ended, in a word or two that need no manual."""
    return {"inert": "did not run", None: "–"}.get(of, of or "")


def describe_tool_facts(tool: ToolRun) -> list[str]:
    """What else is known of a tool's run: `41 tests`, `2 failing before too`."""
    facts = [plural_phrase(tool.ran, "test")] if tool.ran else []
    facts += [f"{len(tool.already)} failing before too"] if tool.already else []
    facts += [f"{len(tool.mended)} mended"] if tool.mended else []
    facts += [f"{plural_phrase(len(tool.removed), 'test')} removed"] if tool.removed else []
    return [*facts, *(text for text in (tool.selected, tool.note) if text)]


def describe_report_grade(grade: Outcome) -> str:
    """What the acceptance of an attempt's own task said."""
    why = "; ".join(grade.reasons) or grade.cause or ""
    return f"Graded by its own task: {grade.result}{f' ({why})' if why else ''}"


def describe_mending(mending: MendingResult) -> str:
    """What an agent made of what broke, and where that is."""
    tries = f"{mending.tries} {'try' if mending.tries == 1 else 'tries'}"
    if mending.patch is not None:
        return f"An agent mended it in {tries}: add that with `git apply {mending.patch}`"
    why = f" ({mending.note})" if mending.note else ""
    left = ", ".join([run.name for run in mending.left] + [one.rule for one in mending.findings])
    return f"An agent did not mend it in {tries}{why}; still worse than before: {left or 'nothing'}"


def report_subject(report: ChangeReport) -> str:
    """`main..feature`; commits by the beginning of their ids."""
    return _COMMIT_ID.sub(r"\1", report.title)


def describe_change_size(report: ChangeReport) -> str:
    """`3 files, +20 −4`."""
    files = report.change.files
    added, removed = sum_line_counts(files)
    lines = "lines not all known" if added is None else f"+{added} −{removed}"
    return f"{plural_phrase(len(files), 'file')}, {lines}"


def rerun_command(report: ChangeReport) -> str:
    """The command that gives this report on one's own machine."""
    change = report.change
    between = f" {change.base[:12]}..{change.head[:12]}" if change.base and change.head else ""
    return f"closeloop check{between}"


def finding_fingerprints(findings: Iterable[Finding]) -> Iterator[str]:
    """An identity for each, which outlives moves to other lines. Equal ones are numbered."""
    seen: Counter[str] = Counter()
    for finding in findings:
        place = first_source_place(finding)
        message = re.sub(r"\d+", "#", finding.message)
        text = "\0".join((finding.rule, place.path if place else "", message))
        seen[text] += 1
        numbered = f"{text}\0{seen[text]}".encode("utf-8", "surrogatepass")
        yield hashlib.sha256(numbered).hexdigest()[:32]


def plural_phrase(count: int, noun: str) -> str:
    """`1 file`, `2 things that were lost`: the first word is the one with a plural."""
    word, _, more = noun.partition(" that ")
    return f"{count} {word}{'' if count == 1 else 's'}{more and ' that '}{more}"


# A report for a terminal.

MAX_FINDINGS = 40
MAX_BROKEN = 20
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
    """The verdict, then its reasons, the most telling first."""
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
        yield Text(f"{make_visible(describe_mending(report.mending))}.")
    if report.risk:
        yield from _render_risk(report.risk)
    if report.tools:
        yield from _render_tools(report.tools)
    yield from _render_findings(list_active_findings(report))
    silenced = sum(finding.silenced is not None for finding in report.findings)
    if silenced:
        yield Text(f"{plural_phrase(silenced, 'finding')} silenced.", style="dim")
    for one in unmeasured_by_reason(report):
        yield Text(
            f"not looked at: {make_visible(one.rule)}: {make_visible(one.reason)}", style="dim"
        )


def describe_chance(chance: RevertChance) -> str:
    """How often changes of that size went wrong, beside how often all did."""
    spread = f"{_percent(chance.low)} to {_percent(chance.high)}"
    usual = f", {_percent(chance.usual)} of all" if chance.usual is not None else ""
    return (
        f"{_percent(chance.value)} ({spread}) of changes of its size were reverted or"
        f" repaired{usual}, learned from {chance.of:,}"
    )


def _percent(share: float) -> str:
    """Never `0 %` of what has happened."""
    return format_percent(share) if share >= 0.01 else "under 1 %"


def _render_risk(risk: Risk) -> Iterator[Text]:
    from rich.text import Text

    line = Text("\nRisk ", style="bold").append(risk.level, style=LEVEL_STYLES[risk.level])
    if one := risk.chance:
        line.append(f"   {describe_chance(one)}", style="not bold dim")
    yield line
    if risk.note:
        yield Text(f"  {make_visible(risk.note)}", style="dim")
    for reason in risk.reasons[:MAX_REASONS]:
        yield Text(f"  {make_visible(reason)}")


def _render_tools(tools: Sequence[ToolRun]) -> Iterator[RenderableType]:
    """A row a tool, then what the change broke and what the tool said of it."""
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
    for tool in tools:
        for name in tool.broke[:MAX_BROKEN]:
            yield Text(f"  broke  {make_visible(name)}", style="red")
        if len(tool.broke) > MAX_BROKEN:
            yield Text(f"  … and {len(tool.broke) - MAX_BROKEN} more", style="dim")
        if is_tool_worse(tool) and tool.output.strip():
            lines = make_visible(tool.output).strip().splitlines()[-MAX_OUTPUT_LINES:]
            yield Text("\n".join(f"    {line}" for line in lines), style="dim")


def _render_findings(findings: Sequence[Finding]) -> Iterator[Text]:
    from rich.text import Text

    if findings:
        yield Text("\nFindings", style="bold")
    for finding in findings[:MAX_FINDINGS]:
        place = f"{finding.places[0]}  " if finding.places else ""
        line = Text(f"  {make_visible(place)}").append(
            finding.rule, style=SEVERITY_STYLES[finding.severity]
        )
        yield line.append(f"  {make_visible(finding.message)}")
    if len(findings) > MAX_FINDINGS:
        yield Text(f"… and {len(findings) - MAX_FINDINGS} more: --json has all", style="dim")
