"""Every page of the dashboard, in the order of its navigation."""

from __future__ import annotations

from contextlib import suppress

from closeloop.records.attempt import TimeRange
from closeloop.web.page import NoQuery, Page, PageContext
from closeloop.web.pages import (
    attempt,
    attempts,
    compare,
    experiments,
    iterations,
    memory,
    metrics,
    outcome,
    overview,
    plans,
    pulls,
    review,
    tasks,
    trust,
)
from closeloop.web.render import load_assets, template_environment

PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *overview.COST_PAGES,
    *attempts.PAGES,
    *attempt.PAGES,
    *iterations.PAGES,
    *iterations.HANDOFF_PAGES,
    *outcome.PAGES,
    *metrics.ATTEMPT_PAGES,
    *attempt.RECORD_PAGES,
    *metrics.TRIAGE_PAGES,
    *compare.PAGES,
    *metrics.SCORE_PAGES,
    *metrics.PAGES,
    *experiments.PAGES,
    *review.PAGES,
    *pulls.PAGES,
    *pulls.REPORT_PAGES,
    *plans.PAGES,
    *memory.PAGES,
    *memory.PROMPT_PAGES,
    *experiments.TRIAL_PAGES,
    *tasks.PAGES,
    *trust.PAGES,
    *overview.HEALTH_PAGES,
)


def warm_up_pages(page_context: PageContext) -> None:
    """Load templates and compute the slowest metrics before the first request."""
    for name in template_environment().list_templates():
        template_environment().get_template(name)
    load_assets()
    # Only a head start: a request reports any error itself.
    with suppress(Exception):
        # The filters of lists first: others wait for them only a moment.
        attempts.attempts(page_context, attempts.AttemptsQuery(limit=1, score=("would-merge",)))
        overview.overview(page_context, TimeRange())
        overview.health(page_context, NoQuery())
        if not page_context.store.is_read_only:
            page_context.store.search.index_missing()
