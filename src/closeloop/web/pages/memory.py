"""What reviewers taught, what agents lacked, and the prompts that they ran under."""

from __future__ import annotations

from collections import Counter

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import MEMORY_METRICS
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.attempt import Insight
from closeloop.records.errors import Fault
from closeloop.records.record import Record
from closeloop.records.task import PromptVersion
from closeloop.records.team_rules import (
    InsightTheme,
    PromptProposal,
    PromptUse,
    RepeatedRemark,
    RuleState,
    TeamRule,
)
from closeloop.reviews.agent_context import hidden_attempts, list_themes
from closeloop.reviews.agent_prompts import (
    diff_prompts,
    find_prompt,
    list_prompt_uses,
    propose_prompt_runs,
)
from closeloop.reviews.rule_editing import list_unconfirmed
from closeloop.reviews.rule_vectors import open_encoder
from closeloop.web.event_views import FigureTable, build_figure_table
from closeloop.web.page import NoQuery, Page, find_or_404
from closeloop.web.page_context import CachedValue, PageContext

MAX_RULES = 200
MAX_REPEATS = 100
MAX_WEEKS = 26
MAX_INSIGHTS = 100
STATE_ORDER: tuple[RuleState, ...] = ("proposed", "active", "retired")


class MemoryAsked(Record):
    repo: str | None = None
    state: RuleState | None = None


class RuleLine(Record):
    """A rule, and how often it had to be said again."""

    rule: TeamRule
    confirmed: int
    candidates: int


class MemoryView(Record):
    asked: MemoryAsked
    rules: tuple[RuleLine, ...]
    """Those that wait for a person first."""
    more: int
    repos: tuple[str, ...]
    repeats: tuple[RepeatedRemark, ...]
    """Remarks that restate what was said before or may do so: first those that nobody confirmed,
    each the latest first."""
    waiting: int
    """Remarks that nobody confirmed yet."""
    compared: int
    """Pull requests whose remarks were compared with what was said before."""
    texts: dict[str, str]
    """What the rules say that those repeat."""
    weeks: FigureTable | None
    fresh: bool


class InsightsView(Record):
    themes: tuple[InsightTheme, ...]
    """The commonest first."""
    trouble: str | None
    """Why they could not be grouped."""
    latest: tuple[Insight, ...]
    fresh: bool


def memory(desk: PageContext, asked: MemoryAsked) -> MemoryView:
    memory_store = desk.store.memory
    rules = memory_store.list_rules(repo=asked.repo, state=asked.state)
    repeats = [one for one in memory_store.list_repeats(repo=asked.repo) if one.state != "denied"]
    repeat_counts = Counter((one.rule, one.state) for one in repeats)
    lines = [
        RuleLine(
            rule=rule,
            confirmed=repeat_counts[rule.id, "confirmed"],
            candidates=repeat_counts[rule.id, "candidate"],
        )
        for rule in rules
    ]
    lines.sort(
        key=lambda line: (STATE_ORDER.index(line.rule.state), -line.confirmed, line.rule.text)
    )
    cached_weeks = desk.metric_cache.compute_from_work("memory", _weekly_memory_table)
    likely = list_unconfirmed(desk.store, asked.repo)
    repeats = [one for one in repeats if one.state != "candidate"]
    repeats.sort(key=lambda one: one.at, reverse=True)
    repeats = [*likely, *repeats]
    repeated_rules = {one.rule for one in repeats[:MAX_REPEATS]}
    return MemoryView(
        asked=asked,
        rules=tuple(lines[:MAX_RULES]),
        more=max(0, len(lines) - MAX_RULES),
        repos=tuple(sorted({rule.repo for rule in rules if rule.repo})),
        repeats=tuple(repeats[:MAX_REPEATS]),
        waiting=len(likely),
        compared=memory_store.count_compared(asked.repo),
        texts={rule.id: rule.text for rule in rules if rule.id in repeated_rules},
        weeks=cached_weeks.value,
        fresh=cached_weeks.fresh,
    )


def _weekly_memory_table(work: AttemptTable) -> FigureTable:
    memory_metrics = compute_metrics(work, ("week",), [name for name, *_ in MEMORY_METRICS])
    weeks = sorted({one.group["week"] for one in memory_metrics.figures}, reverse=True)
    return build_figure_table(memory_metrics, MAX_WEEKS, weeks)


def insights(desk: PageContext, asked: NoQuery) -> InsightsView:
    def group_themes() -> tuple[tuple[InsightTheme, ...], str | None]:
        try:
            # Without the environment's keys: a page asks no provider.
            encoder = open_encoder(desk.settings, desk.root, {})
            return tuple(list_themes(desk.store, encoder)), None
        except Fault as fault:
            return (), str(fault)

    cached_themes = desk.metric_cache.compute_from_store(
        "insights", desk.store_mark(), group_themes
    )
    themes, trouble = cached_themes.value or ((), None)
    hidden = hidden_attempts(desk.store)
    visible_insights = [
        one for one in desk.store.course.list_insights() if one.attempt not in hidden
    ]
    return InsightsView(
        themes=tuple(theme for theme in themes if not hidden.issuperset(theme.attempts)),
        trouble=trouble,
        latest=tuple(visible_insights[:MAX_INSIGHTS]),
        fresh=cached_themes.fresh,
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


# Prompts: every version, what differs between two, and what came of each.

OUTCOME_METRICS = (
    "pass rate", "task completion rate", "first-review merge rate", "without findings", "cost",
)  # fmt: skip
MAX_PROMPTS = 100
MAX_COMPARED_LINES = 3000
"""Of a prompt, that are compared."""


class PromptsView(Record):
    prompts: tuple[PromptUse, ...]
    """The newest first."""
    outcomes: FigureTable | None
    fresh: bool


class PromptAsked(Record):
    prompt: str
    """The id, or the beginning of it."""
    against: str | None = None
    """The version it is held against; the one before it when not given."""


class PromptView(Record):
    prompt: PromptVersion
    use: PromptUse | None
    """None until it is known what ran under it."""
    fresh: bool
    others: tuple[str, ...]
    against: PromptUse | None
    lines: tuple[str, ...]
    """What differs, as a unified diff."""
    proposal: PromptProposal | None


def prompts(desk: PageContext, asked: NoQuery) -> PromptsView:
    cached_uses = _load_prompt_uses(desk)
    cached_outcomes = desk.metric_cache.compute_from_work("prompts of work", _prompt_outcomes)
    return PromptsView(
        prompts=tuple((cached_uses.value or [])[:MAX_PROMPTS]),
        outcomes=cached_outcomes.value,
        fresh=cached_uses.fresh and cached_outcomes.fresh,
    )


def _prompt_outcomes(work: AttemptTable) -> FigureTable:
    return build_figure_table(compute_metrics(work, ("prompt",), OUTCOME_METRICS), MAX_PROMPTS)


def _load_prompt_uses(desk: PageContext) -> CachedValue[list[PromptUse]]:
    return desk.metric_cache.compute_from_store(
        "prompts", desk.store_mark(), lambda: list_prompt_uses(desk.store)
    )


def prompt(desk: PageContext, asked: PromptAsked) -> PromptView:
    version = find_or_404(find_prompt, desk.store, asked.prompt)
    cached_uses = _load_prompt_uses(desk)
    uses = {use.id: use for use in cached_uses.value or ()}
    ids = [*uses]
    previous_ids = ids[ids.index(version.id) + 1 :][:1] if version.id in uses else []
    other_id = asked.against or next(iter(previous_ids), None)
    other = find_or_404(find_prompt, desk.store, other_id) if other_id else None
    use, other_use = uses.get(version.id), uses.get(other.id) if other else None
    return PromptView(
        prompt=version,
        use=use,
        fresh=cached_uses.fresh,
        others=tuple(name for name in ids if name != version.id)[:MAX_PROMPTS],
        against=other_use,
        lines=tuple(diff_prompts(_truncate_prompt(other), _truncate_prompt(version)))
        if other
        else (),
        proposal=propose_prompt_runs(other_use, use) if other_use and use else None,
    )


def _truncate_prompt(version: PromptVersion) -> PromptVersion:
    """Comparing takes longer than the texts are long, so they are not compared without end."""
    parts = {
        name: "\n".join(getattr(version, name).splitlines()[:MAX_COMPARED_LINES])
        for name in ("text", "tools", "settings")
    }
    return PromptVersion(id=version.id, **parts)


PROMPT_PAGES = (
    Page(
        path="/prompts",
        show=prompts,
        template="prompts.html",
        about="Every version of every prompt, and what came of each.",
        section="Prompts",
        key="y",
    ),
    Page(
        path="/prompts/{prompt}",
        show=prompt,
        template="prompt.html",
        about="One version of a prompt, and what differs from another.",
        section="Prompts",
    ),
)
