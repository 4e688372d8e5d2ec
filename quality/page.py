"""The tables of docs/rules/README.md, each between its markers, and the counts that ship."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from outcomes import Odds
from own import Score
from people import Run
from repetition import STRINGS, TOGETHER, Agreement, Marked

from closeloop import plugins
from closeloop.process.rulebook import (
    MeasuredQuality,
    ReadingCounts,
    ReadingSummary,
    RuleCounts,
    decide_gate,
    describe_readings,
    load_measured_quality,
    rate_readings,
)
from closeloop.records.estimate import Rate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import make_pages  # noqa: E402

PAGE = ROOT / "docs" / "rules" / "README.md"
KEPT = ROOT / "src" / "closeloop" / "process" / "quality.json"
METHOD = "labelled traces in tests/process/labelled, each rule with its default thresholds"


def rules(scores: Sequence[Score], readings: Mapping[str, ReadingCounts]) -> str:
    """All rules: what each looks for, whether it gates, how often it is right in both sets."""
    known = {score.rule: score for score in scores}
    rows = []
    for rule in (detector.rule for detector in plugins.load_plugins("detectors")):
        score, read = known[rule.name], rate_readings(readings.get(rule.name))
        gate = decide_gate(rule, read)
        rows.append(
            (
                f"[{rule.name}]({rule.name}.md)",
                rule.about,
                rule.severity,
                f"{'gates' if gate.gates else 'advises'}: {gate.reason}",
                told(read.precision if read else None),
                told(read.recall if read else None),
                told(score.precision),
                told(score.recall),
                f"{len(score.right) + len(score.missed)} + {score.hard}",
            )
        )
    head = ("rule", "what it looks for", "severity", "gate", "real sessions: precision", "recall")
    return _table((*head, "labelled examples: precision", "recall", "cases"), rows)


def reading(summary: ReadingSummary) -> str:
    """Who read findings and whole sessions, what was found there, and how far readers agree."""
    return "\n".join(f"- {line}" for line in describe_readings(summary))


def cases(scores: Sequence[Score]) -> str:
    """Where people and rules disagree, by name."""
    rows = [
        (score.rule, kind, name)
        for score in scores
        for kind, names in (("found, not there", score.wrong), ("there, not found", score.missed))
        for name in names
    ]
    return _table(("rule", "", "case"), rows) if rows else "The rules agree with every label."


def people(
    labelled: Sequence[Run], agreements: Iterable[Agreement], marks: Iterable[Marked]
) -> str:
    """Agreement with the labels of other people."""
    steps = sum(len(run.steps) for run in labelled)
    ways = [
        (one.agent, one.way, str(one.right), str(one.wrong), told(one.precision), told(one.recall))
        for one in agreements
        if one.agent == "all" or one.way in (TOGETHER, STRINGS)
    ]
    spoken = [(one.label, told(one.there), told(one.elsewhere)) for one in marks]
    return "\n\n".join(
        (
            f"{len(labelled)} runs, {steps} steps.",
            _table(("agent", "who says repetition", "right", "wrong", "precision", "recall"), ways),
            _table(("people's mark", "a rule speaks there", "a rule speaks elsewhere"), spoken),
        )
    )


def outcomes(odds: Sequence[Odds]) -> str:
    """Findings and failure."""
    rows = [
        (
            one.rule,
            f"{one.failed} of {one.of_failed}",
            f"{one.passed} of {one.of_passed}",
            "{:.1f} ({:.1f}–{:.0f})".format(*one.ratio),
        )
        for one in odds
        if one.failed + one.passed
    ]
    return _table(("rule", "in failed runs", "in runs that passed", "odds ratio"), rows)


def told(rate: Rate | None) -> str:
    """`0.67 of 12 (0.39–0.86)`."""
    return (
        "–" if rate is None else f"{rate.value:.2f} of {rate.of} ({rate.low:.2f}–{rate.high:.2f})"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def between(text: str, name: str) -> str:
    """What stands between the markers of that name."""
    _, part, _ = _around(text, name)
    return part


def _around(text: str, name: str) -> tuple[str, str, str]:
    first, opening, rest = text.partition(f"<!-- {name} -->\n\n")
    part, closing, last = rest.partition(f"\n\n<!-- /{name} -->")
    assert closing, f"docs/rules/README.md has no markers for {name!r}"
    return first + opening, part, closing + last


def write(tables: Mapping[str, str]) -> None:
    """Put the tables into the page; those that were not made stay as they are."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        before, _, after = _around(text, name)
        text = before + table + after
    today = f"Measured on {datetime.now(UTC).date()}."
    PAGE.write_text(re.sub(r"Measured on [\d-]+\.", today, text), encoding="utf-8")


def keep(
    scores: Iterable[Score], readings: dict[str, ReadingCounts], summary: ReadingSummary
) -> None:
    """Write the counts that `closeloop measure --rules` prints, and the pages of rules."""
    measured = MeasuredQuality(
        date=str(datetime.now(UTC).date()),
        method=METHOD,
        rules=counts(scores),
        readings=readings,
        reading_summary=summary,
    )
    text = msgspec.json.format(msgspec.json.encode(measured), indent=2)
    KEPT.write_bytes(text + b"\n")
    load_measured_quality.cache_clear()
    make_pages.main()


def counts(scores: Iterable[Score]) -> dict[str, RuleCounts]:
    """By rule, in the order of their names."""
    return {
        score.rule: RuleCounts(
            right=len(score.right),
            missed=len(score.missed),
            wrong=len(score.wrong),
            labelled=score.labelled,
        )
        for score in sorted(scores, key=lambda score: score.rule)
    }
