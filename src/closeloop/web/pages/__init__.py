"""Every page of the dashboard, in the order of its navigation."""

from __future__ import annotations

from contextlib import suppress

from closeloop.web.page import NoQuery, Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages import (
    attempt,
    attempts,
    changes,
    compare,
    experiments,
    iterations,
    memory,
    metrics,
    outcome,
    overview,
    plans,
    prompts,
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
    *changes.PAGES,
    *changes.REPORT_PAGES,
    *changes.PULL_PAGES,
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
        overview.overview(desk, NoQuery())
        attempts.attempts(desk, attempts.AttemptsAsked(limit=1, score=("would-merge",)))
