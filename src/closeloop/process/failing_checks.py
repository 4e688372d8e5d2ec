"""What failing checks complained of: whether a file was named before it was changed."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable

from closeloop.process.measures.verification import list_trace_checks
from closeloop.records.trace_steps import CheckFailures, TraceReading, TraceStep

MAX_CHECKS_BACK = 50
"""So many failing checks before an edit are asked."""
_SOURCE_PLACE = re.compile(r"[^\s:]+\.\w+: ")


class FailingChecks:
    """All failing checks of a trace, with the words of each."""

    def __init__(self, reading: TraceReading, *, of_tests: bool = False) -> None:
        """`of_tests`: only where a test ran and failed, not where code could not be built."""
        self.of_tests = of_tests
        self.checks = [
            step
            for step in list_trace_checks(reading)
            if step.check is not None and step.check.failures is not None
        ]
        self.numbers = [step.event.number for step in self.checks]
        self.words: dict[int, str] = {}

    def last_check_naming(self, number: int, names: Iterable[str]) -> TraceStep | None:
        """The last failing check before that event that named one of them."""
        wanted = tuple(names)
        end = bisect_left(self.numbers, number)
        for step in reversed(self.checks[max(0, end - MAX_CHECKS_BACK) : end]):
            words = self._failure_text(step)
            if any(name in words for name in wanted):
                return step
        return None

    def _failure_text(self, step: TraceStep) -> str:
        text = self.words.get(step.number)
        if text is None:
            failures = step.check.failures if step.check else None
            assert failures is not None, "only failing checks are kept"
            failure_names = [*list(failures.errors)[:200], *failures.paths[:100]]
            counts = not self.of_tests or _names_tests(failures)
            text = self.words[step.number] = "\n".join(failure_names) if counts else ""
        return text


def _names_tests(failures: CheckFailures) -> bool:
    return failures.parser != "tail" and any(
        not _SOURCE_PLACE.match(key) for key in failures.errors
    )
