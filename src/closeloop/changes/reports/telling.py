"""What every format says of a report, in the same words and the same order."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from closeloop.changes.tool_outcomes import outcome_of
from closeloop.model.finding import Finding, Unmeasured
from closeloop.model.record import Record
from closeloop.model.report import Mending, Report, ToolRun, ToolState

VERDICTS = {
    "pass": "Nothing stands in the way",
    "warn": "Look before merging",
    "block": "Not ready to merge",
}
_SEVERITIES = ("error", "warning", "info")
_COMMIT = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}(?:[0-9a-f]{24})?\b")
_PLACE = re.compile(r"(.+?)(?::(\d{1,9}))?", re.DOTALL)


class Place(Record):
    """Where in the repository, after the change."""

    path: str
    line: int | None = None


def place_of(text: str) -> Place:
    """`src/app.py:12`, or a path alone."""
    found = _PLACE.fullmatch(text)
    path, line = found.groups() if found else (text, None)
    return Place(path=path, line=int(line) if line and int(line) else None)


def first_place(finding: Finding) -> Place | None:
    return place_of(finding.places[0]) if finding.places else None


def counted(report: Report) -> list[Finding]:
    """The findings that are not silenced, the gravest first."""
    told = [finding for finding in report.findings if finding.silenced is None]
    return sorted(told, key=lambda finding: _SEVERITIES.index(finding.severity))


def is_clean(report: Report) -> bool:
    """Whether there is nothing that anybody needs to read."""
    risky = report.risk is not None and report.risk.level != "low"
    return report.verdict == "pass" and not (risky or counted(report))


def unmeasured(report: Report) -> list[Unmeasured]:
    """What could not be looked at, in any tier; what has the same reason is told together."""
    rules: dict[str, list[str]] = {}
    for one in (*report.unmeasured, *(report.risk.unmeasured if report.risk else ())):
        rules.setdefault(one.reason, []).append(one.rule)
    return [Unmeasured(rule=", ".join(names), reason=why) for why, names in rules.items()]


def headline(report: Report) -> str:
    """`Not ready to merge: 2 newly failing in test; 1 error; risk medium`."""
    told = f": {'; '.join(report.reasons)}" if report.reasons else ""
    if report.risk is None or _tells_risk(report):
        return f"{VERDICTS[report.verdict]}{told}"
    return f"{VERDICTS[report.verdict]}{told}; risk {report.risk.level}"


def _tells_risk(report: Report) -> bool:
    """Whether the risk is among the reasons."""
    grave = report.risk is not None and report.risk.level in ("high", "critical")
    return report.held or (report.verdict == "warn" and grave)


def is_worse(tool: ToolRun) -> bool:
    """Whether a tool has something against the change."""
    return outcome_of(tool) != "no worse"


def state(of: ToolState | None) -> str:
    """How a tool ended, in a word or two that need no manual."""
    return {"inert": "did not run", None: "–"}.get(of, of or "")


def mended(mending: Mending) -> str:
    """What an agent made of what broke, and where that is."""
    tries = f"{mending.tries} {'try' if mending.tries == 1 else 'tries'}"
    if mending.patch is not None:
        return f"An agent mended it in {tries}: add that with `git apply {mending.patch}`"
    why = f" ({mending.note})" if mending.note else ""
    left = ", ".join(run.name for run in mending.left)
    return f"An agent did not mend it in {tries}{why}; still worse than before: {left or 'nothing'}"


def subject(report: Report) -> str:
    """`main..feature`; commits by the beginning of their ids."""
    return _COMMIT.sub(r"\1", report.title)


def surface(report: Report) -> str:
    """`3 files, +20 −4`."""
    files = report.change.files
    added, removed = sum(file.added for file in files), sum(file.removed for file in files)
    return f"{plural(len(files), 'file')}, +{added} −{removed}"


def again(report: Report) -> str:
    """The command that gives this report on one's own machine."""
    change = report.change
    between = f" {change.base[:12]}..{change.head[:12]}" if change.base and change.head else ""
    return f"closeloop check{between}"


def fingerprints(findings: Iterable[Finding]) -> Iterator[str]:
    """An identity for each, which outlives moves to other lines. Equal ones are numbered."""
    seen: Counter[str] = Counter()
    for finding in findings:
        place = first_place(finding)
        message = re.sub(r"\d+", "#", finding.message)
        text = "\0".join((finding.rule, place.path if place else "", message))
        seen[text] += 1
        numbered = f"{text}\0{seen[text]}".encode("utf-8", "surrogatepass")
        yield hashlib.sha256(numbered).hexdigest()[:32]


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 things that were lost`: the first word is the one with a plural."""
    word, _, more = noun.partition(" that ")
    return f"{count} {word}{'' if count == 1 else 's'}{more and ' that '}{more}"
