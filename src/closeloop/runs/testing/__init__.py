"""Run a test command in a cage and read what became of each test."""

from closeloop.runs.testing.suite_run import run_tests
from closeloop.runs.testing.suite_verdict import SuiteVerdict, judge_suite

__all__ = ["SuiteVerdict", "judge_suite", "run_tests"]
