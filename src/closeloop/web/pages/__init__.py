"""Every page of the dashboard, in the order of its navigation."""

from __future__ import annotations

from contextlib import suppress

from closeloop.web.assets import load_assets
from closeloop.web.page import NoQuery, Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages import (
    after,
    attempt,
    attempts,
    changes,
    compare,
    experiments,
    handoffs,
    health,
    iterations,
    memory,
    outcome,
    overview,
    plans,
    prompts,
    pulls,
    reports,
    review,
    rules,
    tasks,
)
from closeloop.web.render import template_environment

PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *attempts.PAGES,
    *attempt.PAGES,
    *iterations.PAGES,
    *handoffs.PAGES,
    *outcome.PAGES,
    *after.PAGES,
    *compare.PAGES,
    *experiments.PAGES,
    *review.PAGES,
    *changes.PAGES,
    *reports.PAGES,
    *pulls.PAGES,
    *plans.PAGES,
    *memory.PAGES,
    *prompts.PAGES,
    *tasks.PAGES,
    *rules.PAGES,
    *health.PAGES,
)


def warm_up_pages(desk: PageContext) -> None:
    """Before anybody comes: templates, what they load, and the numbers that take longest."""
    for name in template_environment().list_templates():
        template_environment().get_template(name)
    load_assets()
    # No more than a head start: whoever asks is told what is wrong.
    with suppress(Exception):
        overview.overview(desk, NoQuery())
