"""What failing checks complained of: whether a file was named before it was changed."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable

from closeloop.model.steps import Failures, Reading, Step
from closeloop.process.measures.verification import checks_of

LOOKED_BACK = 50
"""So many failing checks before an edit are asked."""
_PLACE = re.compile(r"[^\s:]+\.\w+: ")


class Complaints:
    """All failing checks of a trace, with the words of each."""

    def __init__(self, reading: Reading, *, of_tests: bool = False) -> None:
        """`of_tests`: only where a test ran and failed, not where code could not be built."""
        self.of_tests = of_tests
        self.checks = [
            step
            for step in checks_of(reading)
            if step.check is not None and step.check.failures is not None
        ]
        self.numbers = [step.event.number for step in self.checks]
        self.words: dict[int, str] = {}

    def before(self, number: int, names: Iterable[str]) -> Step | None:
        """The last failing check before that event that named one of them."""
        wanted = tuple(names)
        end = bisect_left(self.numbers, number)
        for step in reversed(self.checks[max(0, end - LOOKED_BACK) : end]):
            words = self._words(step)
            if any(name in words for name in wanted):
                return step
        return None

    def _words(self, step: Step) -> str:
        known = self.words.get(step.number)
        if known is None:
            failures = step.check.failures if step.check else None
            assert failures is not None, "only failing checks are kept"
            told = [*list(failures.errors)[:200], *failures.paths[:100]]
            counts = not self.of_tests or _names_tests(failures)
            known = self.words[step.number] = "\n".join(told) if counts else ""
        return known


def _names_tests(failures: Failures) -> bool:
    return failures.parser != "tail" and any(not _PLACE.match(key) for key in failures.errors)
