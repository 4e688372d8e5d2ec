"""Every page of the dashboard, in the order of its navigation."""

from __future__ import annotations

from contextlib import suppress

from closeloop.web.assets import assets
from closeloop.web.desk import Desk
from closeloop.web.page import Nothing, Page
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
from closeloop.web.render import environment

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


def prepare(desk: Desk) -> None:
    """Before anybody comes: templates, what they load, and the numbers that take longest."""
    for name in environment().list_templates():
        environment().get_template(name)
    assets()
    # No more than a head start: whoever asks is told what is wrong.
    with suppress(Exception):
        overview.overview(desk, Nothing())
