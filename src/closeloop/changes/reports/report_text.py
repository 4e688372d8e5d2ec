"""What every format says of a report, in the same words and the same order."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from closeloop.grading.tool_outcomes import tool_outcome
from closeloop.records.change_report import ChangeReport, MendingResult, ToolRun, ToolState
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import Record

VERDICT_TEXTS = {
    "pass": "Nothing stands in the way",
    "warn": "Look before merging",
    "block": "Not ready to merge",
}
_SEVERITY_ORDER = ("error", "warning", "info")
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
    return sorted(findings, key=lambda finding: _SEVERITY_ORDER.index(finding.severity))


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
    if report.risk is None or _reasons_name_risk(report):
        return f"{VERDICT_TEXTS[report.verdict]}{reasons}"
    return f"{VERDICT_TEXTS[report.verdict]}{reasons}; risk {report.risk.level}"


def _reasons_name_risk(report: ChangeReport) -> bool:
    """Whether the risk is among the reasons."""
    grave = report.risk is not None and report.risk.level in ("high", "critical")
    return report.held or (report.verdict == "warn" and grave)


def is_tool_worse(tool: ToolRun) -> bool:
    """Whether a tool has something against the change."""
    return tool_outcome(tool) != "no worse"


def describe_tool_state(of: ToolState | None) -> str:
    """How a tool ended, in a word or two that need no manual."""
    return {"inert": "did not run", None: "–"}.get(of, of or "")


def describe_mending(mending: MendingResult) -> str:
    """What an agent made of what broke, and where that is."""
    tries = f"{mending.tries} {'try' if mending.tries == 1 else 'tries'}"
    if mending.patch is not None:
        return f"An agent mended it in {tries}: add that with `git apply {mending.patch}`"
    why = f" ({mending.note})" if mending.note else ""
    left = ", ".join(run.name for run in mending.left)
    return f"An agent did not mend it in {tries}{why}; still worse than before: {left or 'nothing'}"


def report_subject(report: ChangeReport) -> str:
    """`main..feature`; commits by the beginning of their ids."""
    return _COMMIT_ID.sub(r"\1", report.title)


def describe_change_size(report: ChangeReport) -> str:
    """`3 files, +20 −4`."""
    files = report.change.files
    added, removed = sum(file.added for file in files), sum(file.removed for file in files)
    return f"{plural_phrase(len(files), 'file')}, +{added} −{removed}"


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
