"""The catalogue of rules: what is looked for, and how often each is right."""

from __future__ import annotations

from closeloop import plugins
from closeloop.model.finding import Rule
from closeloop.model.record import Record
from closeloop.process.quality import Quality, measured, quality
from closeloop.web.desk import Desk
from closeloop.web.page import Nothing, Page


class RuleLine(Record):
    """One rule as it is set here."""

    rule: Rule
    enabled: bool
    thresholds: dict[str, float]
    quality: Quality | None
    """None where it was never held against labels."""


class RulesView(Record):
    """All rules, and where the numbers of their quality come from."""

    rules: tuple[RuleLine, ...]
    checks: tuple[Rule, ...]
    """What is looked for in changes."""
    date: str
    method: str


def rules(desk: Desk, asked: Nothing) -> RulesView:
    limits = {one.detector.rule.name: one.limits for one in desk.book.chosen}
    known, source = quality(), measured()
    return RulesView(
        rules=tuple(
            RuleLine(
                rule=one.rule,
                enabled=one.rule.name in limits,
                thresholds=dict(limits.get(one.rule.name, {})),
                quality=known.get(one.rule.name),
            )
            for one in sorted(plugins.every("detectors"), key=lambda one: str(one.rule.name))
        ),
        checks=tuple(
            sorted(
                (rule for check in plugins.every("checks") for rule in check.rules),
                key=lambda rule: str(rule.name),
            )
        ),
        date=source.date,
        method=source.method,
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
