"""Whose work each attempt is: the agent, the person who asked, the prompt, the arm of a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isnan
from typing import TYPE_CHECKING, Any

from closeloop.records.experiment_plan import TrialAssignment
from closeloop.records.pull_request import PullRow
from closeloop.records.task import Variant
from closeloop.reviews.agent_prompts import PromptIndex
from closeloop.reviews.pull_board import load_pull_costs
from closeloop.store import Store
from closeloop.store.fact_rows import MAX_QUERY_VALUES
from closeloop.store.metrics_section import AttemptColumns, TextColumn, make_text_column
from closeloop.text.wording import repository_name

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def load_origin_columns(
    store: Store, known: AttemptColumns, variants: Mapping[str, Variant]
) -> dict[str, TextColumn]:
    """The agent, the person who asked and the prompt of each attempt.

    What a pull request says counts where nothing was recorded, or what was does not say it.
    """
    pulls = {row.attempt: row for row in _list_pulls_of(store, known.attempts) if row.attempt}
    index, held = PromptIndex(store), known.held
    agents, users = held["agent"].tolist(), held["user"].tolist()
    if not pulls and not index.tells_of_attempts:
        ids = {key: index.find_prompt_id("", variant=one.prompt) for key, one in variants.items()}
        return {"prompt": held["variant"].translated(ids.get)}
    prompts = []
    names = ("variant", "repo", "started", "events")
    rows = zip(known.attempts, *(held[name].tolist() for name in names), strict=True)
    for place, (name, digest, repo, started, events) in enumerate(rows):
        pull, variant = pulls.get(name), variants.get(digest)
        if pull is not None:
            agents[place], users[place] = _pull_origin(
                pull, agents[place], users[place], is_recorded=not isnan(events)
            )
        prompt = index.find_prompt_id(
            name,
            variant=variant.prompt if variant else None,
            named=pull.prompt if pull else None,
            agent=variant.agent if variant else agents[place],
            repo=pull.repo if pull else repo and repository_name(repo),
            started=None if isnan(started) else _EPOCH + timedelta(microseconds=started),
        )
        prompts.append(prompt)
    return {
        "agent": make_text_column(agents),
        "user": make_text_column(users),
        "prompt": make_text_column(prompts),
    }


def _list_pulls_of(store: Store, attempts: Sequence[str]) -> list[PullRow]:
    """The pull requests of agents that came of some attempts; of many, all there are."""
    few = attempts if len(attempts) <= MAX_QUERY_VALUES else None
    return store.pulls.list_pulls(agent=True, attempts=few)


def _pull_origin(
    pull: PullRow, agent: str | None, user: str | None, *, is_recorded: bool
) -> tuple[str | None, str | None]:
    """Agent and person; of work that only stands for a pull request, as that says now."""
    if not is_recorded:
        return pull.agent, pull.asked_by
    return agent or pull.agent, user or pull.asked_by


def load_pull_cost_column(store: Store, places: Mapping[str, int]) -> Array:
    """By attempt that a pull request came of: what all recorded work behind that cost."""
    import numpy as np

    column = np.full(len(places), np.nan)
    rows = {row.attempt: row for row in _list_pulls_of(store, [*places]) if row.attempt in places}
    if not rows:
        return column
    costs = load_pull_costs(store, [*rows.values()], store.pulls.list_pulls(agent=True))
    for attempt, row in rows.items():
        cost = costs[row.repo, row.pull].cost
        column[places[attempt or ""]] = np.nan if cost is None else cost
    return column


def load_arm_column(store: Store, known: AttemptColumns) -> TextColumn:
    """The arms of each attempt: of memory (`memory`, `control`), and of trials (`TRIAL: VARIANT`).

    An attempt is found by its own name, its branch or its task.
    """
    arms: dict[str | tuple[str | None, str | None], dict[str, None]] = {}
    for offer in store.memory.list_offers():
        for key in (offer.key, (offer.repo, offer.key)):
            arms.setdefault(key, {})[offer.arm] = None
    assigned: dict[str, list[TrialAssignment]] = {}
    for trial in store.trials.list_trial_names():
        for one in store.trials.list_assignments(trial):
            assigned.setdefault(one.key, []).append(one)
    if not arms and not assigned:
        return make_text_column([None] * len(known.attempts))
    held = known.held
    repos = held["repo"].translated(lambda repo: repo and repository_name(repo))
    labels: list[tuple[str, ...] | None] = []
    columns = (repos, held["branch"], held["task"], held["started"])
    for name, repo, branch, task, started in zip(
        known.attempts, *(column.tolist() for column in columns), strict=True
    ):
        own = [*(arms.get(name) or arms.get((repo, branch)) or ())]
        own += [
            f"{one.trial}: {one.variant}"
            for key in dict.fromkeys((name, branch, task))
            for one in assigned.get(key or "", ())
            if started >= one.at.timestamp() * 1e6
        ]
        labels.append(tuple(own) or None)
    return make_text_column(labels)
