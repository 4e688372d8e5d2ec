"""The catalogue of rules: what is looked for, and how often each is right."""

from __future__ import annotations

from closeloop import plugins
from closeloop.process.rule_quality import RuleQuality, load_measured_quality, quality_by_rule
from closeloop.records.finding import Rule
from closeloop.records.record import Record
from closeloop.web.page import NoQuery, Page
from closeloop.web.page_context import PageContext


class RuleLine(Record):
    """One rule as it is set here."""

    rule: Rule
    enabled: bool
    thresholds: dict[str, float]
    quality: RuleQuality | None
    """None where it was never held against labels."""


class RulesView(Record):
    """All rules, and where the numbers of their quality come from."""

    rules: tuple[RuleLine, ...]
    checks: tuple[Rule, ...]
    """What is looked for in changes."""
    date: str
    method: str


def rules(desk: PageContext, asked: NoQuery) -> RulesView:
    limits = {one.detector.rule.name: one.limits for one in desk.rulebook.chosen}
    rule_quality, quality_source = quality_by_rule(), load_measured_quality()
    return RulesView(
        rules=tuple(
            RuleLine(
                rule=one.rule,
                enabled=one.rule.name in limits,
                thresholds=dict(limits.get(one.rule.name, {})),
                quality=rule_quality.get(one.rule.name),
            )
            for one in sorted(plugins.load_plugins("detectors"), key=lambda one: str(one.rule.name))
        ),
        checks=tuple(
            sorted(
                (rule for check in plugins.load_plugins("checks") for rule in check.rules),
                key=lambda rule: str(rule.name),
            )
        ),
        date=quality_source.date,
        method=quality_source.method,
    )


PAGES = (
    Page(
        path="/rules",
        show=rules,
        template="rules.html",
        about="What is looked for in traces and changes, and how often each rule is right.",
        section="Rules",
        key="l",
    ),
)
