"""Whether another attempt of an experiment may begin."""

from __future__ import annotations

import time

from closeloop.records.variant import Experiment
from closeloop.store import Store

PAUSE_CHECK_SECONDS = 1.0
"""A pause is noticed this late at the most."""


class AttemptPacer:
    """Asks the store, which all processes of an experiment share."""

    def __init__(self, experiment: Experiment, store: Store) -> None:
        self._experiment = experiment
        self._course = store.course
        self._looked = -PAUSE_CHECK_SECONDS
        self._paused = False
        self._broken: dict[str, str] = {}

    def mark_broken(self, variant: str, why: str) -> None:
        """Nothing of this variant can go well before the user has mended something."""
        self._broken[variant] = f"they would fail as another one did: {why.rstrip('.')}"

    def block_reason(self, variant: str) -> str | None:
        """Why no attempt of a variant may begin now; None when one may."""
        experiment, now = self._experiment, time.monotonic()
        if variant in self._broken:
            return self._broken[variant]
        if now - self._looked >= PAUSE_CHECK_SECONDS:
            self._looked, self._paused = now, self._course.is_paused(experiment.id)
        if self._paused:
            return (
                f"the experiment is paused: `closeloop experiments resume {experiment.id}`, "
                "then run it again"
            )
        if experiment.budget is not None:
            spent = self._course.total_cost(experiment) or 0.0
            if spent >= experiment.budget:
                return (
                    f"${spent:.2f} of the budget of ${experiment.budget:.2f} are spent: "
                    "run it again with a larger --budget to go on"
                )
        return None
