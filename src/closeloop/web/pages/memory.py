"""What reviewers taught: rules, and the mistakes that came again; what agents said they lacked."""

from __future__ import annotations

from collections import Counter

from closeloop.measuring.definitions import MEMORY
from closeloop.measuring.metrics import metrics_of
from closeloop.measuring.work import Work
from closeloop.model.errors import Fault
from closeloop.model.insight import Insight
from closeloop.model.memory import LearnedRule, Repeat, RuleState, Theme
from closeloop.model.record import Record
from closeloop.reviewing.encoding import open_encoder
from closeloop.reviewing.hydrating import hidden_attempts, themes_of
from closeloop.web.desk import Desk
from closeloop.web.page import Nothing, Page
from closeloop.web.views.figures import FigureTable, figure_table

MOST_RULES = 200
MOST_REPEATS = 100
MOST_WEEKS = 26
MOST_INSIGHTS = 100
ORDER: tuple[RuleState, ...] = ("proposed", "active", "retired")


class MemoryAsked(Record):
    repo: str | None = None
    state: RuleState | None = None


class RuleLine(Record):
    """A rule, and how often it had to be said again."""

    rule: LearnedRule
    confirmed: int
    candidates: int


class MemoryView(Record):
    asked: MemoryAsked
    rules: tuple[RuleLine, ...]
    """Those that wait for a person first."""
    more: int
    repos: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    """Remarks that restate a rule or may do so, the latest first."""
    texts: dict[str, str]
    """What the rules say that those repeat."""
    weeks: FigureTable | None
    fresh: bool


class InsightsView(Record):
    themes: tuple[Theme, ...]
    """The commonest first."""
    trouble: str | None
    """Why they could not be grouped."""
    latest: tuple[Insight, ...]
    fresh: bool


def memory(desk: Desk, asked: MemoryAsked) -> MemoryView:
    kept = desk.store.memory
    rules = kept.rules(repo=asked.repo, state=asked.state)
    repeats = [one for one in kept.repeats(repo=asked.repo) if one.state != "denied"]
    said = Counter((one.rule, one.state) for one in repeats)
    lines = [
        RuleLine(
            rule=rule, confirmed=said[rule.id, "confirmed"], candidates=said[rule.id, "candidate"]
        )
        for rule in rules
    ]
    lines.sort(key=lambda line: (ORDER.index(line.rule.state), -line.confirmed, line.rule.text))
    counted = desk.counting.of_work("memory", _weeks)
    repeats.sort(key=lambda one: one.at, reverse=True)
    named = {one.rule for one in repeats[:MOST_REPEATS]}
    return MemoryView(
        asked=asked,
        rules=tuple(lines[:MOST_RULES]),
        more=max(0, len(lines) - MOST_RULES),
        repos=tuple(sorted({rule.repo for rule in rules if rule.repo})),
        repeats=tuple(repeats[:MOST_REPEATS]),
        texts={rule.id: rule.text for rule in rules if rule.id in named},
        weeks=counted.value,
        fresh=counted.fresh,
    )


def _weeks(work: Work) -> FigureTable:
    found = metrics_of(work, ("week",), [name for name, *_ in MEMORY])
    weeks = sorted({one.group["week"] for one in found.figures}, reverse=True)
    return figure_table(found, MOST_WEEKS, weeks)


def insights(desk: Desk, asked: Nothing) -> InsightsView:
    def made() -> tuple[tuple[Theme, ...], str | None]:
        try:
            # Without the environment's keys: a page asks no provider.
            encoder = open_encoder(desk.settings, desk.root, {})
            return tuple(themes_of(desk.store, encoder)), None
        except Fault as fault:
            return (), str(fault)

    counted = desk.counting.of_store("insights", desk.mark(), made)
    themes, trouble = counted.value or ((), None)
    hidden = hidden_attempts(desk.store)
    known = [one for one in desk.store.course.insights() if one.attempt not in hidden]
    return InsightsView(
        themes=tuple(theme for theme in themes if not hidden.issuperset(theme.attempts)),
        trouble=trouble,
        latest=tuple(known[:MOST_INSIGHTS]),
        fresh=counted.fresh,
    )


PAGES = (
    Page(
        path="/memory",
        show=memory,
        template="memory.html",
        about="What reviewers taught, and the mistakes that came again.",
        section="Memory",
        key="m",
    ),
    Page(
        path="/insights",
        show=insights,
        template="insights.html",
        about="What agents said they lacked, by theme.",
        section="Insights",
        key="i",
    ),
)
