"""How much money and time a plan may take before nothing more of it is begun."""

from __future__ import annotations

import time

from closeloop.records.attempt import Usage
from closeloop.records.settings import OrchestrateSettings


class PlanBudget:
    """Counts what is spent; time runs from when it is made."""

    def __init__(self, terms: OrchestrateSettings, plan: str) -> None:
        self._terms = terms
        self._plan = plan
        self._spent = 0.0
        self._began = time.monotonic()
        self.reached: str | None = None
        """Why something was not begun, if anything was not."""

    def add_usage(self, usage: Usage) -> None:
        self._spent += usage.cost or 0.0

    def find_block_reason(self) -> str | None:
        """Why nothing more may be begun; None while it may."""
        budget, seconds = self._terms.budget, self._terms.seconds
        why = None
        if budget is not None and self._spent >= budget:
            why = f"${self._spent:.2f} of the budget of ${budget:.2f} are spent"
        elif seconds is not None and time.monotonic() - self._began >= seconds:
            why = f"the plan's {seconds:g} seconds are over"
        if why is not None:
            self.reached = f"{why}: allow more and `closeloop orchestrate --resume {self._plan}`"
        return self.reached
