"""Run pytest; run what failed once more, each test alone, and print what then passes as flaky.

    python tests/rerun.py [arguments of pytest]

The run succeeds when nothing failed, or when at most five tests failed and each passed the second
time. Files that cannot be collected and tests that end their process are never run again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = Path(sys.prefix, "plugins")
"""Where plug-ins are that no pytest which a test starts shall load."""
MAX_RERUNS = 5
PHASES = ("setup", "call", "teardown")
ALONE = ("-q", "--no-header", "-p", "no:cacheprovider")


class Results:
    """What became of the tests, as pytest reports it."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.failed: dict[str, str] = {}
        """Tests that failed, and the first line of why."""
        self.unrepeatable = False
        """Something happened that no test can make good by passing."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, first_line(report))
            # A worker process that died reports no phase of the test that it was running.
            self.unrepeatable |= report.when not in PHASES
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.unrepeatable |= report.failed

    def pytest_internalerror(self) -> None:
        self.unrepeatable = True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # Stopped before its end, as by `-x`: others were not run at all.
        self.unrepeatable |= bool(session.shouldfail or session.shouldstop)


def first_line(report: pytest.TestReport) -> str:
    """The message of a failure, in a line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else report.longreprtext).strip().splitlines()
    return lines[0] if lines else "no message"


def run_again(names: list[str]) -> list[str]:
    """Those that pass, each in a process of its own."""
    flaky = []
    for name in names:
        print(f"\n{name} failed: once more, alone", flush=True)
        again = subprocess.run([sys.executable, "-m", "pytest", *ALONE, name], check=False)
        flaky += [name] if again.returncode == 0 else []
    return flaky


def main(arguments: list[str]) -> int:
    sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it
    sys.path.append(str(PLUGINS))
    results = Results()
    code = int(pytest.main(arguments, plugins=[results]))
    failed = list(results.failed)
    few = 0 < len(failed) <= MAX_RERUNS
    if code != pytest.ExitCode.TESTS_FAILED or results.unrepeatable or not few:
        return code
    flaky = run_again(failed)
    print()
    for name in flaky:
        print(f"FLAKY: {name}: {results.failed[name]}")
    left = len(failed) - len(flaky)
    passed = len(results.passed - results.failed.keys()) + len(flaky)
    print(f"{passed} passed, {left} failed", flush=True)
    return 0 if left == 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
