"""What reviewers taught, and what agents lacked."""

from __future__ import annotations

import shlex
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import MEMORY_METRICS
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.attempt import Insight
from closeloop.records.errors import Fault
from closeloop.records.record import Record
from closeloop.records.team_rules import (
    ContextPreview,
    InsightTheme,
    RepeatedRemark,
    RuleState,
    TeamRule,
)
from closeloop.reviews.agent_context import (
    UpcomingWork,
    hidden_attempts,
    list_themes,
    prepare_context,
    preview_context,
)
from closeloop.reviews.agent_prompts import clone_repository_name
from closeloop.reviews.rule_editing import keep_likest, leave_out_settled
from closeloop.reviews.rule_index import RuleIndex
from closeloop.reviews.rule_vectors import open_encoder
from closeloop.web.event_views import FigureTable, build_figure_table
from closeloop.web.page import NoQuery, Page
from closeloop.web.page_context import PageContext

MAX_RULES = 30
"""On one page."""
MAX_REPEATS = 100
MAX_WEEKS = 26
MAX_INSIGHTS = 100
STATE_ORDER: tuple[RuleState, ...] = ("proposed", "active", "retired")


class MemoryAsked(Record):
    repo: str | None = None
    state: RuleState | None = None
    q: Annotated[str, Meta(max_length=200)] = ""
    """Only rules whose text, files or examples hold this."""
    page: Annotated[int, Meta(ge=1, le=100_000)] = 1


class RuleLine(Record):
    """A rule, and how often it had to be said again."""

    rule: TeamRule
    confirmed: int
    candidates: int


class MemoryView(Record):
    asked: MemoryAsked
    rules: tuple[RuleLine, ...]
    """Those that wait for a person first."""
    found: int
    """Rules that are like what was asked for, on all pages."""
    pages: int
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
    repeats = leave_out_settled(memory_store.list_repeats(repo=asked.repo))
    repeats = [one for one in repeats if one.state != "denied"]
    repeat_counts = Counter((one.rule, one.state) for one in repeats)
    lines = [
        RuleLine(
            rule=rule,
            confirmed=repeat_counts[rule.id, "confirmed"],
            candidates=repeat_counts[rule.id, "candidate"],
        )
        for rule in rules
        if _holds_text(rule, asked.q)
    ]
    lines.sort(
        key=lambda line: (STATE_ORDER.index(line.rule.state), -line.confirmed, line.rule.text)
    )
    cached_weeks = desk.metric_cache.compute_from_work("memory", _weekly_memory_table)
    likely = keep_likest(repeats)
    repeats = [one for one in repeats if one.state != "candidate"]
    repeats.sort(key=lambda one: one.at, reverse=True)
    repeats = [*likely, *repeats]
    repeated_rules = {one.rule for one in repeats[:MAX_REPEATS]}
    return MemoryView(
        asked=asked,
        rules=tuple(lines[(asked.page - 1) * MAX_RULES : asked.page * MAX_RULES]),
        found=len(lines),
        pages=-(-len(lines) // MAX_RULES),
        repos=tuple(sorted({rule.repo for rule in rules if rule.repo})),
        repeats=tuple(repeats[:MAX_REPEATS]),
        waiting=len(likely),
        compared=memory_store.count_compared(asked.repo),
        texts={rule.id: rule.text for rule in rules if rule.id in repeated_rules},
        weeks=cached_weeks.value,
        fresh=cached_weeks.fresh,
    )


def _holds_text(rule: TeamRule, wanted: str) -> bool:
    texts = (rule.text, *rule.paths, *(one.text for one in rule.examples))
    return not wanted.strip() or any(wanted.strip().lower() in text.lower() for text in texts)


class ContextPreviewAsked(Record):
    repo: str | None = None
    """As owner/name; the one that this clone came from when not given."""
    file: Literal["AGENTS.md", "CLAUDE.md"] = "AGENTS.md"


class PreviewView(Record):
    """What agents will be told, line by line with its origin and cost, before it is written."""

    asked: ContextPreviewAsked
    repo: str
    repos: tuple[str, ...]
    preview: ContextPreview | None
    """None while it is put together."""
    budget: int
    """Tokens that may be told at most."""
    proposed: int
    """Rules that wait to be accepted, which nobody is told of."""
    command: str
    trouble: str | None
    fresh: bool


def context_preview(desk: PageContext, asked: ContextPreviewAsked) -> PreviewView:
    rules = desk.store.memory.list_rules()
    repos = tuple(sorted({rule.repo for rule in rules if rule.repo}))

    def build_preview() -> tuple[str, ContextPreview | None, str | None]:
        repo = asked.repo or clone_repository_name(str(desk.root))
        if asked.repo is None and repo not in repos and repos:
            repo = repos[0]
        try:
            # Without the environment's keys: a page asks no provider.
            index = RuleIndex(desk.store, open_encoder(desk.settings, desk.root, {}))
            work = UpcomingWork(repo=repo, names=(str(desk.root),))
            context, _ = prepare_context(index, work, desk.settings.memory, datetime.now(UTC))
            file = desk.root / asked.file
            content = file.read_text(encoding="utf-8") if file.is_file() else ""
            return repo, preview_context(asked.file, content, context)[1], None
        except (Fault, OSError, UnicodeDecodeError) as fault:
            return repo, None, str(fault)

    mark = f"{desk.store_mark()} {len(rules)} {max((one.since for one in rules), default=None)}"
    states = ",".join(sorted(f"{rule.id}{rule.state}" for rule in rules))
    cached = desk.metric_cache.compute_from_store(
        f"preview {asked.repo} {asked.file}", f"{mark} {states}", build_preview
    )
    repo, preview, trouble = cached.value or (asked.repo or "", None, None)
    return PreviewView(
        asked=asked,
        repo=repo,
        repos=repos,
        preview=preview,
        budget=desk.settings.memory.tokens,
        proposed=sum(rule.state == "proposed" for rule in rules),
        command=shlex.join(
            ["closeloop", "context", "--repo", repo, "--into", asked.file, "--write"]
        ),
        trouble=trouble,
        fresh=cached.fresh,
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
        section="Team rules",
        key="m",
    ),
    Page(
        path="/memory/preview",
        show=context_preview,
        template="context_preview.html",
        about="What will be written to AGENTS.md: each line with its origin and cost in tokens.",
        section="Team rules",
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
