"""Every page of the dashboard, in the order of its navigation."""

from __future__ import annotations

from contextlib import suppress

from closeloop.records.attempt import TimeRange
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages import (
    attempt,
    attempts,
    compare,
    cost,
    experiments,
    iterations,
    memory,
    metrics,
    outcome,
    overview,
    plans,
    prompts,
    pulls,
    review,
    scores,
    tasks,
    triage,
    trials,
    trust,
)
from closeloop.web.render import load_assets, template_environment

PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *cost.PAGES,
    *attempts.PAGES,
    *attempt.PAGES,
    *iterations.PAGES,
    *iterations.HANDOFF_PAGES,
    *outcome.PAGES,
    *scores.ATTEMPT_PAGES,
    *attempt.RECORD_PAGES,
    *triage.PAGES,
    *compare.PAGES,
    *scores.PAGES,
    *metrics.PAGES,
    *experiments.PAGES,
    *review.PAGES,
    *pulls.PAGES,
    *pulls.REPORT_PAGES,
    *plans.PAGES,
    *memory.PAGES,
    *prompts.PAGES,
    *trials.PAGES,
    *tasks.PAGES,
    *trust.PAGES,
    *overview.HEALTH_PAGES,
)


def warm_up_pages(desk: PageContext) -> None:
    """Before anybody comes: templates, what they load, and the numbers that take longest."""
    for name in template_environment().list_templates():
        template_environment().get_template(name)
    load_assets()
    # No more than a head start: whoever asks is told what is wrong.
    with suppress(Exception):
        # First what lists can be narrowed to: others wait behind it only a moment.
        attempts.attempts(desk, attempts.AttemptsAsked(limit=1, score=("would-merge",)))
        overview.overview(desk, TimeRange())
        if not desk.store.is_read_only:
            desk.store.search.index_missing()
