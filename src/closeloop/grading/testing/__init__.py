"""Run a test command in a cage and read what became of each test."""

from closeloop.grading.testing.suite_run import run_tests
from closeloop.grading.testing.suite_verdict import SuiteVerdict, judge_suite

__all__ = ["SuiteVerdict", "judge_suite", "run_tests"]
