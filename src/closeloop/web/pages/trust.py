"""How reliable the results are: rules on the team's own work, judges, coverage, held-out tasks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from closeloop import plugins
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.held_out_runs import report_held_out
from closeloop.metrics.metric_definitions import is_expected
from closeloop.metrics.score_columns import load_own_precision
from closeloop.process.rulebook import (
    GateDecision,
    ReadingSummary,
    RuleQuality,
    describe_readings,
    load_measured_quality,
    quality_by_rule,
)
from closeloop.records.estimate import Rate
from closeloop.records.evaluation import Calibration, JudgeVersion
from closeloop.records.experiment_plan import HeldOutReport, HeldOutRun
from closeloop.records.finding import Rule
from closeloop.records.record import Record
from closeloop.records.score import ScoreSummary
from closeloop.web.page import NoQuery, Page, PageContext
from closeloop.web.pages.metrics import load_score_summaries

MAX_JUDGES = 30
MAX_LOOKS = 20
GIVERS = ("person", "judge")
MIN_OWN_ATTEMPTS = 20
"""Attempts from which a rule's precision on the team's own work counts more than the published one.
"""


class RuleTrust(Record):
    """One rule with its settings here, and its precision."""

    rule: Rule
    enabled: bool
    thresholds: dict[str, float]
    gate: GateDecision | None
    """Whether it may fail a build, with the reason; None if it is switched off."""
    own: Rate | None
    """On this team's work: share of the attempts with judged findings whose findings were right."""
    found: int
    """Number of attempts and sessions here with findings of it."""
    quality: RuleQuality | None
    """As published; None if never measured."""


class RulesQuery(Record):
    q: Annotated[str, Meta(max_length=200)] = ""
    """Show only rules whose name or description contains this."""


class RulesView(Record):
    """All rules, and the source of their quality metrics."""

    asked: RulesQuery
    rules: tuple[RuleTrust, ...]
    checks: tuple[Rule, ...]
    """Rules that check changes."""
    date: str
    method: str
    reading: ReadingSummary
    """Who labelled findings and whole sessions, and how well the labellers agree."""
    reading_lines: tuple[str, ...]
    """The same in sentences."""


class JudgeLine(Record):
    """One version of a judge."""

    judge: JudgeVersion
    calibration: Calibration | None
    """None if it was never compared with people."""


class JudgesView(Record):
    judges: tuple[JudgeLine, ...]
    """Newest first."""
    more: int


class CoverageLine(Record):
    """The number of attempts for which something is known."""

    name: str
    known: int
    of: int


class TrustView(Record):
    rules: tuple[RuleTrust, ...]
    """Rules with findings or judged findings here first."""
    judged: int
    """Number of rules with findings that people have judged here."""
    reading_lines: tuple[str, ...]
    judges: tuple[JudgeLine, ...]
    coverage: tuple[CoverageLine, ...]
    given: tuple[ScoreSummary, ...]
    """Scores that people and judges gave."""
    held_out: HeldOutReport | None
    looks: tuple[HeldOutRun, ...]
    enough: int
    fresh: bool


def rules(page_context: PageContext, query: RulesQuery) -> RulesView:
    source = load_measured_quality()
    searched_text = query.q.strip().lower()
    return RulesView(
        asked=query,
        rules=tuple(
            rule for rule in _list_rules(page_context) if _is_wanted(rule.rule, searched_text)
        ),
        checks=tuple(
            sorted(
                (
                    rule
                    for check in plugins.load_plugins("checks")
                    for rule in check.rules
                    if _is_wanted(rule, searched_text)
                ),
                key=lambda rule: str(rule.name),
            )
        ),
        date=source.date,
        method=source.method,
        reading=source.reading_summary,
        reading_lines=tuple(describe_readings(source.reading_summary)),
    )


def _is_wanted(rule: Rule, text: str) -> bool:
    return text in f"{rule.name} {rule.about}".lower()


def _list_rules(page_context: PageContext) -> list[RuleTrust]:
    """Return every installed rule, by name."""
    configured = {entry.detector.rule.name: entry for entry in page_context.rulebook.chosen}
    installed = {str(plugin.rule.name): plugin.rule for plugin in plugins.load_plugins("detectors")}
    quality = quality_by_rule()
    own_precision = load_own_precision(page_context.store, installed)
    counts = page_context.metric_cache.compute_from_store(
        "rule counts", page_context.store_mark(), lambda: _count_by_rule(page_context)
    )
    return [
        RuleTrust(
            rule=rule,
            enabled=name in configured,
            thresholds=dict(configured_entry.limits)
            if (configured_entry := configured.get(name))
            else {},
            gate=configured_entry.gate if configured_entry else None,
            own=own_precision.get(name),
            found=(counts.value or {}).get(name, 0),
            quality=quality.get(name),
        )
        for name, rule in sorted(installed.items())
    ]


def _count_by_rule(page_context: PageContext) -> dict[str, int]:
    counts: dict[str, int] = {}
    sealed = page_context.store.held_out.list_sealed_digests()
    for (_, rule), count in page_context.store.counts.count_findings(sealed).items():
        counts[rule] = counts.get(rule, 0) + count
    return counts


def judges(page_context: PageContext, query: NoQuery) -> JudgesView:
    versions = page_context.store.judged.list_judge_versions()
    return JudgesView(
        judges=tuple(_judge_line(page_context, version) for version in versions[:MAX_JUDGES]),
        more=max(0, len(versions) - MAX_JUDGES),
    )


def _judge_line(page_context: PageContext, judge: JudgeVersion) -> JudgeLine:
    return JudgeLine(judge=judge, calibration=page_context.store.judged.load_calibration(judge.id))


def trust(page_context: PageContext, query: NoQuery) -> TrustView:
    coverage = page_context.metric_cache.compute_from_work("coverage", count_coverage)
    summaries = load_score_summaries(page_context)
    lines = _list_rules(page_context)
    lines.sort(key=lambda line: (line.own is None, -line.found, str(line.rule.name)))
    given_summaries = [
        summary for summary in summaries.value or () if summary.last and summary.source in GIVERS
    ]
    return TrustView(
        rules=tuple(lines),
        judged=sum(line.own is not None for line in lines),
        reading_lines=tuple(describe_readings(load_measured_quality().reading_summary)),
        judges=judges(page_context, query).judges,
        coverage=coverage.value or (),
        given=tuple(
            summary
            for summary in given_summaries
            if not summary.definition.name.startswith("right-")
        ),
        held_out=report_held_out(page_context.store),
        looks=tuple(page_context.store.held_out.list_unsealings()[:MAX_LOOKS]),
        enough=MIN_OWN_ATTEMPTS,
        fresh=coverage.fresh and summaries.fresh,
    )


def count_coverage(work: AttemptTable) -> tuple[CoverageLine, ...]:
    """Count for each fact the attempts and sessions that could have it and those that do."""
    import numpy as np

    columns = work.columns
    at_task, total = columns["task_digest"].known(), len(work)
    checked = at_task & ~columns["unchecked"]
    scored = columns["outcome"].are(("pass", "fail"))
    delivered = is_expected(columns) & ~at_task
    recorded = ~np.isnan(columns["events"])
    rows = (
        ("Work with a recorded trace", recorded, np.ones(total, np.bool_)),
        ("Traces that the rules examined", ~np.isnan(columns["findings"]), recorded),
        ("Attempts at tasks with a check that were graded", scored, checked),
        ("Sessions with a known review or merge decision",
         ~np.isnan(columns["merged"]), delivered),
        ("Work with a known cost", ~np.isnan(columns["cost"]), np.ones(total, np.bool_)),
    )  # fmt: skip
    return tuple(
        CoverageLine(
            name=name, known=int((known_mask & expected_mask).sum()), of=int(expected_mask.sum())
        )
        for name, known_mask, expected_mask in rows
        if expected_mask.any()
    )


PAGES = (
    Page(
        path="/trust",
        show=trust,
        template="trust.html",
        about="Precision of rules and judges on this team's work, and coverage.",
        section="Trust",
        key="z",
    ),
    Page(
        path="/rules",
        show=rules,
        template="rules.html",
        about="Rules for traces and changes, with their precision.",
        section="Rules",
        key="l",
    ),
    Page(
        path="/judges",
        show=judges,
        template="judges.html",
        about="Each judge's agreement with people, and whether it may block.",
        section="Judges",
        key="k",
    ),
)
