"""Team rules from reviews, and what agents lacked."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import MEMORY_METRICS
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.variant_trials import measure_prompt_effect
from closeloop.records.attempt import AttemptFilter, Insight
from closeloop.records.errors import Fault
from closeloop.records.experiment_plan import PromptEffect
from closeloop.records.record import Record
from closeloop.records.task import PromptVersion
from closeloop.records.team_rules import (
    ContextPreview,
    InsightTheme,
    PromptProposal,
    PromptUse,
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
from closeloop.reviews.agent_prompts import (
    clone_repository_name,
    diff_prompts,
    find_prompt,
    list_prompt_uses,
    propose_prompt_runs,
)
from closeloop.reviews.rule_editing import keep_likest, leave_out_settled
from closeloop.reviews.rule_index import RuleIndex, open_encoder
from closeloop.store import Store
from closeloop.web.event_views import FigureTable, build_figure_table
from closeloop.web.page import CachedValue, NoQuery, Page, PageContext, find_or_404

MAX_RULES = 30
"""Rules on one page."""
MAX_REPEATS = 100
MAX_WEEKS = 26
MAX_INSIGHTS = 100
MAX_THEME_ATTEMPTS = 4
MAX_NAMED = 150
"""Attempts whose titles are looked up."""
INSTRUCTION_RULES = ("repeated-correction", "lost-constraint")
"""Rules whose findings quote a request of a user that was not fulfilled."""
MAX_LESSON_SESSIONS = 10
MAX_LESSONS = 12
STATE_ORDER: tuple[RuleState, ...] = ("proposed", "active", "retired")


class MemoryQuery(Record):
    repo: str | None = None
    state: RuleState | None = None
    q: Annotated[str, Meta(max_length=200)] = ""
    """Show only rules whose text, files or examples contain this."""
    page: Annotated[int, Meta(ge=1, le=100_000)] = 1


class RuleLine(Record):
    """A rule, and how often reviewers had to repeat it."""

    rule: TeamRule
    confirmed: int
    candidates: int


class SessionLesson(Record):
    """An instruction that an agent did not follow in a session: a candidate for a team rule."""

    attempt: str
    title: str | None
    rule: str
    event: int | None
    message: str


class MemoryView(Record):
    asked: MemoryQuery
    rules: tuple[RuleLine, ...]
    """Rules that wait for a person's decision first."""
    found: int
    """Number of matching rules, on all pages."""
    pages: int
    repos: tuple[str, ...]
    repeats: tuple[RepeatedRemark, ...]
    """Remarks that repeat an earlier one, or may do so: unconfirmed ones first, each group latest
    first."""
    waiting: int
    """Number of unconfirmed remarks."""
    compared: int
    """Pull requests whose remarks were compared with earlier ones."""
    texts: dict[str, str]
    """Texts of the rules that the remarks repeat."""
    proposed: tuple[str, ...]
    """Of these rules, those that wait to be accepted."""
    weeks: FigureTable | None
    fresh: bool
    lessons: tuple[SessionLesson, ...] = ()


class InsightsView(Record):
    themes: tuple[InsightTheme, ...]
    """Most common first."""
    trouble: str | None
    """Why remarks could not be grouped."""
    latest: tuple[Insight, ...]
    titles: dict[str, str] = {}
    """Titles by attempt, for the attempts that are named."""
    lessons: tuple[SessionLesson, ...] = ()
    """Instructions that users had to repeat; also from sessions whose agents gave no feedback."""
    fresh: bool


def memory(page_context: PageContext, query: MemoryQuery) -> MemoryView:
    memory_store = page_context.store.memory
    rules = memory_store.list_rules(repo=query.repo, state=query.state)
    repeats = leave_out_settled(memory_store.list_repeats(repo=query.repo))
    repeats = [repeat for repeat in repeats if repeat.state != "denied"]
    repeat_counts = Counter((repeat.rule, repeat.state) for repeat in repeats)
    lines = [
        RuleLine(
            rule=rule,
            confirmed=repeat_counts[rule.id, "confirmed"],
            candidates=repeat_counts[rule.id, "candidate"],
        )
        for rule in rules
        if _holds_text(rule, query.q)
    ]
    lines.sort(
        key=lambda line: (STATE_ORDER.index(line.rule.state), -line.confirmed, line.rule.text)
    )
    cached_weeks = page_context.metric_cache.compute_from_work("memory", _weekly_memory_table)
    lessons = load_session_lessons(page_context)
    likely_repeats = keep_likest(repeats)
    repeats = [repeat for repeat in repeats if repeat.state != "candidate"]
    repeats.sort(key=lambda repeat: repeat.at, reverse=True)
    repeats = [*likely_repeats, *repeats]
    repeated_rules = {repeat.rule for repeat in repeats[:MAX_REPEATS]}
    return MemoryView(
        asked=query,
        rules=tuple(lines[(query.page - 1) * MAX_RULES : query.page * MAX_RULES]),
        found=len(lines),
        pages=-(-len(lines) // MAX_RULES),
        repos=tuple(sorted({rule.repo for rule in rules if rule.repo})),
        repeats=tuple(repeats[:MAX_REPEATS]),
        waiting=len(likely_repeats),
        compared=memory_store.count_compared(query.repo),
        texts={rule.id: rule.text for rule in rules if rule.id in repeated_rules},
        proposed=tuple(
            rule.id for rule in rules if rule.id in repeated_rules and rule.state == "proposed"
        ),
        weeks=cached_weeks.value,
        fresh=cached_weeks.fresh and lessons.fresh,
        lessons=lessons.value or (),
    )


def load_session_lessons(page_context: PageContext) -> CachedValue[tuple[SessionLesson, ...]]:
    return page_context.metric_cache.compute_from_store(
        "session lessons", page_context.store_mark(), lambda: list_session_lessons(page_context)
    )


def list_session_lessons(page_context: PageContext) -> tuple[SessionLesson, ...]:
    """List instructions that users repeated and agents ignored, in the latest sessions of each
    rule."""
    sealed = page_context.store.held_out.list_sealed_digests()
    lessons: dict[tuple[str, str], SessionLesson] = {}
    for rule in INSTRUCTION_RULES:
        rows = page_context.store.listing.list_page(
            AttemptFilter(rule=rule), MAX_LESSON_SESSIONS, without=sealed
        )
        for row in rows:
            measurement = page_context.load_measurement(row, make=False)
            for finding in measurement.findings if measurement else ():
                if finding.rule == rule and finding.silenced is None:
                    event = finding.events[0] if finding.events else None
                    lessons.setdefault(
                        (row.id, finding.message),
                        SessionLesson(
                            attempt=row.id,
                            title=row.title,
                            rule=rule,
                            event=event,
                            message=finding.message,
                        ),
                    )
    return tuple(lessons.values())[:MAX_LESSONS]


def _holds_text(rule: TeamRule, searched_text: str) -> bool:
    texts = (rule.text, *rule.paths, *(example.text for example in rule.examples))
    return not searched_text.strip() or any(
        searched_text.strip().lower() in text.lower() for text in texts
    )


class ContextPreviewQuery(Record):
    repo: str | None = None
    """As owner/name; by default the origin of this clone."""
    file: Literal["AGENTS.md", "CLAUDE.md"] = "AGENTS.md"


class PreviewView(Record):
    """The agent context before it is written, each line with its origin and cost."""

    asked: ContextPreviewQuery
    repo: str
    repos: tuple[str, ...]
    preview: ContextPreview | None
    """None while it is computed."""
    budget: int
    """Maximum number of tokens of the context."""
    proposed: int
    """Number of rules that wait to be accepted; agents do not get them."""
    command: str
    trouble: str | None
    fresh: bool
    lessons: tuple[SessionLesson, ...] = ()


def context_preview(page_context: PageContext, query: ContextPreviewQuery) -> PreviewView:
    rules = page_context.store.memory.list_rules()
    repos = tuple(sorted({rule.repo for rule in rules if rule.repo}))

    def build_preview() -> tuple[str, ContextPreview | None, str | None]:
        repo = query.repo or clone_repository_name(str(page_context.root))
        if query.repo is None and repo not in repos and repos:
            repo = repos[0]
        try:
            # Without the environment's keys: a page calls no provider.
            index = RuleIndex(
                page_context.store, open_encoder(page_context.settings, page_context.root, {})
            )
            work = UpcomingWork(repo=repo, names=(str(page_context.root),))
            context, _ = prepare_context(
                index, work, page_context.settings.memory, datetime.now(UTC)
            )
            file = page_context.root / query.file
            content = file.read_text(encoding="utf-8") if file.is_file() else ""
            return repo, preview_context(query.file, content, context)[1], None
        except (Fault, OSError, UnicodeDecodeError) as fault:
            return repo, None, str(fault)

    newest = max((rule.since for rule in rules), default=None)
    mark = f"{page_context.store_mark()} {len(rules)} {newest}"
    states = ",".join(sorted(f"{rule.id}{rule.state}" for rule in rules))
    cached = page_context.metric_cache.compute_from_store(
        f"preview {query.repo} {query.file}", f"{mark} {states}", build_preview
    )
    repo, preview, problem = cached.value or (query.repo or "", None, None)
    lessons = load_session_lessons(page_context)
    return PreviewView(
        asked=query,
        repo=repo,
        repos=repos,
        preview=preview,
        budget=page_context.settings.memory.tokens,
        proposed=sum(rule.state == "proposed" for rule in rules),
        command=shlex.join(
            ["closeloop", "learn", "context", "--repo", repo, "--into", query.file, "--write"]
        ),
        trouble=problem,
        fresh=cached.fresh and lessons.fresh,
        lessons=lessons.value or (),
    )


def _weekly_memory_table(work: AttemptTable) -> FigureTable:
    memory_metrics = compute_metrics(work, ("week",), [name for name, *_ in MEMORY_METRICS])
    weeks = sorted({figure.group["week"] for figure in memory_metrics.figures}, reverse=True)
    return build_figure_table(memory_metrics, MAX_WEEKS, weeks)


def insights(page_context: PageContext, query: NoQuery) -> InsightsView:
    def group_themes() -> tuple[tuple[InsightTheme, ...], str | None]:
        try:
            # Without the environment's keys: a page calls no provider.
            encoder = open_encoder(page_context.settings, page_context.root, {})
            return tuple(list_themes(page_context.store, encoder)), None
        except Fault as fault:
            return (), str(fault)

    cached_themes = page_context.metric_cache.compute_from_store(
        "insights", page_context.store_mark(), group_themes
    )
    themes, problem = cached_themes.value or ((), None)
    lessons = load_session_lessons(page_context)
    hidden = hidden_attempts(page_context.store)
    visible_insights = [
        insight
        for insight in page_context.store.experiments.list_insights()
        if insight.attempt not in hidden
    ]
    latest = visible_insights[:MAX_INSIGHTS]
    themes = tuple(theme for theme in themes if not hidden.issuperset(theme.attempts))
    attempt_ids = [insight.attempt for insight in latest]
    attempt_ids += [name for theme in themes for name in theme.attempts[:MAX_THEME_ATTEMPTS]]
    rows = [
        page_context.store.listing.load_row(name) for name in dict.fromkeys(attempt_ids[:MAX_NAMED])
    ]
    return InsightsView(
        themes=themes,
        trouble=problem,
        latest=tuple(latest),
        titles={row.id: row.title or row.task or "" for row in rows if row is not None},
        lessons=lessons.value or (),
        fresh=cached_themes.fresh and lessons.fresh,
    )


PAGES = (
    Page(
        path="/memory",
        show=memory,
        template="memory.html",
        about="Team rules and repeated mistakes.",
        section="Team rules",
        key="m",
    ),
    Page(
        path="/memory/preview",
        show=context_preview,
        template="context_preview.html",
        about="A preview of AGENTS.md: each line with its source and tokens.",
        section="Team rules",
    ),
    Page(
        path="/insights",
        show=insights,
        template="insights.html",
        about="Information that agents lacked, by theme.",
        section="Insights",
        key="i",
    ),
)


# Prompts: every version, the diff of two, and the results of each.


OUTCOME_METRICS = (
    "pass rate", "task completion rate", "merge rate", "first-review merge rate",
    "without findings", "cost",
)  # fmt: skip
EFFECT_METRICS = ("merge rate", "pass rate")
MAX_PROMPTS = 100
MAX_CHANGES = 40
"""Newest prompts whose change is computed for the list."""
MAX_COMPARED_LINES = 3000
"""Lines of a prompt that are compared."""
MIN_COMPARED_LINES = 5
"""Of prompts with fewer lines, words are compared."""
MAX_COMPARED_WORDS = 500
MIN_SHARED_WORDS = 0.4
"""Share of the words that two versions of a short prompt have in common, in the same order."""
MIN_SHARED_LINES = 0.2
"""Share of the shorter text's lines that another version of it has."""
MAX_UNLIKE = 8
"""Prompts of the same agent for other purposes that are passed over."""


class PromptChange(Record):
    """What a version changed, and whether results improved after it."""

    previous: str
    """Id of the version before."""
    added: int
    removed: int
    """Numbers of lines."""
    effect: PromptEffect


class PromptsView(Record):
    prompts: tuple[PromptUse, ...]
    """Latest use first; of equals, the newest."""
    outcomes: FigureTable | None
    changes: dict[str, PromptChange]
    """By prompt, its change from the previous version; only for the newest prompts."""
    fresh: bool


class PromptQuery(Record):
    prompt: str
    """Id or a prefix of it."""
    against: str | None = None
    """Version to compare with; by default the previous one."""


class PromptView(Record):
    prompt: PromptVersion
    use: PromptUse | None
    """None until its attempts are known."""
    fresh: bool
    others: tuple[str, ...]
    titles: dict[str, str]
    """By id, the name or first line of each of the others."""
    against: PromptUse | None
    lines: tuple[str, ...]
    """The differences as a unified diff."""
    proposal: PromptProposal | None
    effect: PromptEffect | None
    """Whether merge or pass rates improved after it; None if nothing is compared."""
    outcomes: FigureTable | None
    """Results of each prompt."""


def prompts(page_context: PageContext, query: NoQuery) -> PromptsView:
    cached_uses = _load_prompt_uses(page_context)
    cached_outcomes = page_context.metric_cache.compute_from_work(
        "prompts of work", _prompt_outcomes
    )
    uses = {use.id: use for use in cached_uses.value or ()}
    cached_changes = page_context.metric_cache.compute_from_work(
        f"prompt changes {[*uses][:MAX_CHANGES]}",
        lambda work: _list_prompt_changes(page_context, work, uses),
    )
    return PromptsView(
        prompts=tuple(sorted(cached_uses.value or (), key=_last_use, reverse=True)[:MAX_PROMPTS]),
        outcomes=cached_outcomes.value,
        changes=cached_changes.value or {},
        fresh=cached_uses.fresh and cached_outcomes.fresh and cached_changes.fresh,
    )


def _list_prompt_changes(
    page_context: PageContext, work: AttemptTable, uses: Mapping[str, PromptUse]
) -> dict[str, PromptChange]:
    changes = {}
    for name in [*uses][:MAX_CHANGES]:
        previous = _find_earlier_version(page_context.store, uses, name)
        if previous is None:
            continue
        old, new = (
            _truncate_prompt(find_prompt(page_context.store, key)) for key in (previous, name)
        )
        lines = [line for line in diff_prompts(old, new) if line[:4] not in ("+++ ", "--- ")]
        changes[name] = PromptChange(
            previous=previous,
            added=sum(line.startswith("+") for line in lines),
            removed=sum(line.startswith("-") for line in lines),
            effect=_measure_effect(work, previous, name),
        )
    return changes


def _measure_effect(work: AttemptTable, old: str, new: str) -> PromptEffect:
    """Return the effect on the first rate that is known for both versions."""
    effects = [measure_prompt_effect(work, old, new, metric) for metric in EFFECT_METRICS]
    return next((effect for effect in effects if effect.comparison.difference), effects[0])


def _last_use(use: PromptUse) -> float:
    return use.last.timestamp() if use.last else 0.0


def _prompt_outcomes(work: AttemptTable) -> FigureTable:
    return build_figure_table(compute_metrics(work, ("prompt",), OUTCOME_METRICS), MAX_PROMPTS)


def _load_prompt_uses(page_context: PageContext) -> CachedValue[list[PromptUse]]:
    return page_context.metric_cache.compute_from_store(
        "prompts", page_context.store_mark(), lambda: list_prompt_uses(page_context.store)
    )


def prompt(page_context: PageContext, query: PromptQuery) -> PromptView:
    version = find_or_404(find_prompt, page_context.store, query.prompt)
    cached_uses = _load_prompt_uses(page_context)
    cached_outcomes = page_context.metric_cache.compute_from_work(
        "prompts of work", _prompt_outcomes
    )
    uses = {use.id: use for use in cached_uses.value or ()}
    other_id = query.against or _find_previous_prompt(page_context.store, uses, version.id)
    other_version = find_or_404(find_prompt, page_context.store, other_id) if other_id else None
    use, other_use = uses.get(version.id), uses.get(other_version.id) if other_version else None
    cached_effect = (
        page_context.metric_cache.compute_from_work(
            f"prompt effect {other_version.id} {version.id}",
            lambda work: _measure_effect(work, other_version.id, version.id),
        )
        if other_version
        else None
    )
    return PromptView(
        prompt=version,
        use=use,
        fresh=cached_uses.fresh
        and cached_outcomes.fresh
        and (cached_effect is None or cached_effect.fresh),
        others=tuple(key for key in uses if key != version.id)[:MAX_PROMPTS],
        titles={key: other.name or other.opening.lstrip("# ") for key, other in uses.items()},
        against=other_use,
        lines=tuple(diff_prompts(_truncate_prompt(other_version), _truncate_prompt(version)))
        if other_version
        else (),
        proposal=propose_prompt_runs(other_use, use) if other_use and use else None,
        effect=cached_effect.value if cached_effect else None,
        outcomes=cached_outcomes.value,
    )


def _find_previous_prompt(store: Store, uses: Mapping[str, PromptUse], name: str) -> str | None:
    """Return the previous version of a prompt, else the previous prompt of all."""
    return _find_earlier_version(store, uses, name) or next(iter(_list_earlier(uses, name)), None)


def _find_earlier_version(store: Store, uses: Mapping[str, PromptUse], name: str) -> str | None:
    """Return the previous prompt with the same first line, or of the same variant or agent.

    An agent has prompts for different purposes: one that shares hardly any line is no version.
    """
    use, unlike = uses.get(name), 0
    for key in _list_earlier(uses, name):
        earlier = uses[key]
        if use is None or unlike == MAX_UNLIKE:
            return None
        if use.opening == earlier.opening != "":
            return key
        if set(earlier.variants) & set(use.variants):
            if _shares_lines(find_prompt(store, key).text, find_prompt(store, name).text):
                return key
            unlike += 1
    return None


def _shares_lines(earlier: str, later: str) -> bool:
    """Whether two texts share lines as versions of one prompt do; short ones share words."""
    first, second = (
        {line.strip() for line in text.splitlines()[:MAX_COMPARED_LINES]} - {""}
        for text in (earlier, later)
    )
    shorter = min(len(first), len(second))
    if shorter >= MIN_COMPARED_LINES:
        return len(first & second) >= MIN_SHARED_LINES * shorter
    old_words, new_words = (text.lower().split()[:MAX_COMPARED_WORDS] for text in (earlier, later))
    matcher = SequenceMatcher(a=old_words, b=new_words, autojunk=False)
    return matcher.ratio() >= MIN_SHARED_WORDS


def _list_earlier(uses: Mapping[str, PromptUse], name: str) -> list[str]:
    """Return the prompts used before another, the latest first; then older ones never used."""
    if name not in uses:
        return []
    use, later = uses[name], [*uses][[*uses].index(name) + 1 :]
    if use.first is None:
        # Of work at an unknown time nobody knows what came before it.
        return [] if use.attempts else later
    first_uses = {
        key: other.first
        for key, other in uses.items()
        if other.first and (other.first < use.first or (other.first == use.first and key in later))
    }
    return [
        *sorted(first_uses, key=first_uses.__getitem__, reverse=True),
        *(key for key in later if uses[key].first is None and not uses[key].attempts),
    ]


def _truncate_prompt(version: PromptVersion) -> PromptVersion:
    """Truncate a prompt for the comparison, whose time grows faster than the length of the
    texts."""
    parts = {
        name: "\n".join(getattr(version, name).splitlines()[:MAX_COMPARED_LINES])
        for name in ("text", "tools", "settings")
    }
    return replace(version, **parts)


PROMPT_PAGES = (
    Page(
        path="/prompts",
        show=prompts,
        template="prompts.html",
        about="Versions of prompts and their results.",
        section="Prompts",
        key="y",
    ),
    Page(
        path="/prompts/{prompt}",
        show=prompt,
        template="prompt.html",
        about="One version of a prompt, and the differences from another.",
        section="Prompts",
    ),
)
