"""Run a test command in a cage and read what became of each test."""

from closeloop.runs.testing.run import run_tests
from closeloop.runs.testing.verdict import Verdict, judge

__all__ = ["Verdict", "judge", "run_tests"]
