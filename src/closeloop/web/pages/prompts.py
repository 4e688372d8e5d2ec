"""Prompts: every version, what differs between two, and what came of each."""

from __future__ import annotations

from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.variant_trials import measure_prompt_effect
from closeloop.records.experiment_plan import PromptEffect
from closeloop.records.record import Record
from closeloop.records.task import PromptVersion
from closeloop.records.team_rules import PromptProposal, PromptUse
from closeloop.reviews.agent_prompts import (
    diff_prompts,
    find_prompt,
    list_prompt_uses,
    propose_prompt_runs,
)
from closeloop.web.event_views import FigureTable, build_figure_table
from closeloop.web.page import NoQuery, Page, find_or_404
from closeloop.web.page_context import CachedValue, PageContext

OUTCOME_METRICS = (
    "pass rate", "task completion rate", "merge rate", "first-review merge rate",
    "without findings", "cost",
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
    effect: PromptEffect | None
    """Whether merge rates got better after it; None where nothing is compared."""


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
    cached_effect = (
        desk.metric_cache.compute_from_work(
            f"prompt effect {other.id} {version.id}",
            lambda work: measure_prompt_effect(work, other.id, version.id),
        )
        if other
        else None
    )
    return PromptView(
        prompt=version,
        use=use,
        fresh=cached_uses.fresh and (cached_effect is None or cached_effect.fresh),
        others=tuple(name for name in ids if name != version.id)[:MAX_PROMPTS],
        against=other_use,
        lines=tuple(diff_prompts(_truncate_prompt(other), _truncate_prompt(version)))
        if other
        else (),
        proposal=propose_prompt_runs(other_use, use) if other_use and use else None,
        effect=cached_effect.value if cached_effect else None,
    )


def _truncate_prompt(version: PromptVersion) -> PromptVersion:
    """Comparing takes longer than the texts are long, so they are not compared without end."""
    parts = {
        name: "\n".join(getattr(version, name).splitlines()[:MAX_COMPARED_LINES])
        for name in ("text", "tools", "settings")
    }
    return replace(version, **parts)


PAGES = (
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
