"""Prompts: every version, what differs between two, and what came of each."""

from __future__ import annotations

from closeloop.measuring.metrics import metrics_of
from closeloop.measuring.work import Work
from closeloop.model.prompts import PromptUse, Proposal
from closeloop.model.record import Record
from closeloop.model.variant import PromptVersion
from closeloop.reviewing.prompting import find, log
from closeloop.reviews.prompts import differences, proposal
from closeloop.web.counting import Counted
from closeloop.web.desk import Desk
from closeloop.web.page import Nothing, Page, found
from closeloop.web.views.figures import FigureTable, figure_table

OUTCOMES = (
    "pass rate", "task completion rate", "first-review merge rate", "without findings", "cost",
)  # fmt: skip
MOST_PROMPTS = 100
MOST_LINES = 3000
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
    proposal: Proposal | None


def prompts(desk: Desk, asked: Nothing) -> PromptsView:
    used = _uses(desk)
    counted = desk.counting.of_work("prompts of work", _outcomes)
    return PromptsView(
        prompts=tuple((used.value or [])[:MOST_PROMPTS]),
        outcomes=counted.value,
        fresh=used.fresh and counted.fresh,
    )


def _outcomes(work: Work) -> FigureTable:
    return figure_table(metrics_of(work, ("prompt",), OUTCOMES), MOST_PROMPTS)


def _uses(desk: Desk) -> Counted[list[PromptUse]]:
    return desk.counting.of_store("prompts", desk.mark(), lambda: log(desk.store))


def prompt(desk: Desk, asked: PromptAsked) -> PromptView:
    version = found(find, desk.store, asked.prompt)
    counted = _uses(desk)
    uses = {use.id: use for use in counted.value or ()}
    ids = [*uses]
    before = ids[ids.index(version.id) + 1 :][:1] if version.id in uses else []
    wanted = asked.against or next(iter(before), None)
    other = found(find, desk.store, wanted) if wanted else None
    use, old = uses.get(version.id), uses.get(other.id) if other else None
    return PromptView(
        prompt=version,
        use=use,
        fresh=counted.fresh,
        others=tuple(name for name in ids if name != version.id)[:MOST_PROMPTS],
        against=old,
        lines=tuple(differences(_cut(other), _cut(version))) if other else (),
        proposal=proposal(old, use) if old and use else None,
    )


def _cut(version: PromptVersion) -> PromptVersion:
    """Comparing takes longer than the texts are long, so they are not compared without end."""
    parts = {
        name: "\n".join(getattr(version, name).splitlines()[:MOST_LINES])
        for name in ("text", "tools", "settings")
    }
    return PromptVersion(id=version.id, **parts)


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
