"""Run a test command in a cage and read what became of each test."""

from closeloop.grading.testing.suite_run import SuiteVerdict, judge_suite, run_tests

__all__ = ["SuiteVerdict", "judge_suite", "run_tests"]
