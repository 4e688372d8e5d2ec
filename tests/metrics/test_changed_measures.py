"""A changed measure reaches what is stored, by whichever command; facts stay as they are."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import closeloop

FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"
FACTS = ("attempts", "sessions", "grades", "imports")


class Installation:
    """A copy of the package that a test may change, and a project with recorded sessions."""

    def __init__(self, folder: Path) -> None:
        self.package = folder / "installed" / "closeloop"
        self.project = folder / "project"
        shutil.copytree(
            Path(closeloop.__file__).parent, self.package, ignore=shutil.ignore_patterns("static")
        )
        self.project.mkdir()
        self.run("import", str(FIXTURES / "claude_code"))

    def run(self, *arguments: str) -> str:
        run = subprocess.run(
            [sys.executable, "-m", "closeloop", *arguments],
            cwd=self.project,
            env=os.environ | {"PYTHONPATH": str(self.package.parent)},
            check=False,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    def change(self, module: str, before: str, after: str) -> None:
        path = self.package / module
        text = path.read_text()
        assert text.count(before) == 1
        path.write_text(text.replace(before, after))

    def read_feedback(self) -> float | None:
        """The metric, of what is stored."""
        metrics = json.loads(self.run("metrics", "--score", "feedback", "--json"))
        value: float | None = metrics["figures"][0]["value"]
        return value

    def rows(self, *tables: str) -> list[list[tuple[Any, ...]]]:
        (path,) = (self.project / ".closeloop").glob("*.db")
        with sqlite3.connect(path) as store:
            return [store.execute(f"SELECT * FROM {table}").fetchall() for table in tables]


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_a_changed_measure_reaches_stored_attempts_and_no_facts(installation: Installation) -> None:
    assert installation.read_feedback() is not None
    facts, measured = installation.rows(*FACTS), installation.rows("measurements")

    installation.change("process/trace_measurement.py", "the four rates", "four numbers")
    assert installation.read_feedback() is not None
    assert installation.rows("measurements") == measured

    installation.change("process/trace_measurement.py", "feedback=measures.feedback,", "")
    assert installation.read_feedback() is None
    assert len(installation.rows("measurements")[0]) == 2 * len(measured[0])
    assert installation.rows(*FACTS) == facts


def test_a_column_that_is_added_is_filled_for_what_was_measured_before(
    installation: Installation,
) -> None:
    installation.read_feedback()
    (before,) = installation.rows("measurements")
    installation.change(
        "store/migrations.py",
        "def newest_schema() -> int:",
        'MIGRATIONS += (Migration(statements=("ALTER TABLE measurements ADD COLUMN checked BIGINT",'
        ")),)\n\n\ndef newest_schema() -> int:",
    )
    columns = 'Column("converged_after", BigInteger),'
    installation.change("store/schema.py", columns, f'{columns} Column("checked", BigInteger),')
    row = '"iterations": measurement.whole.iterations,'
    installation.change("store/fact_rows.py", row, f'{row} "checked": measurement.whole.checks,')
    installation.read_feedback()
    (measured,) = installation.rows("measurements")
    assert len(measured) == 2 * len(before) > 0
    assert None not in {row[-1] for row in measured[len(before) :]}


PLUG_IN = """
from closeloop.records.finding import Rule
from own_rules.limits import MOST

rule = Rule(name="own", version=1, severity="info", about="It is so.")

class Own:
    rule = rule
    def detect(self, reading, limits):
        return []

def detect(reading, limits):
    return []

own = Own()
"""
IDENTITY = """
import sys, own_rules.plain
from closeloop.process.rulebook import build_rulebook
rule = own_rules.plain if sys.argv[1] == "module" else own_rules.plain.own
print(build_rulebook([rule], {}).identity)
"""


@pytest.mark.parametrize("kind", ["module", "object"])
def test_a_changed_plug_in_is_another_rulebook(tmp_path: Path, kind: str) -> None:
    package = tmp_path / "own_rules"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plain.py").write_text(PLUG_IN)

    def identity(limit: str) -> str:
        (package / "limits.py").write_text(f"MOST = {limit}\n")
        return subprocess.run(
            [sys.executable, "-B", "-c", IDENTITY, kind],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert identity("3") == identity("3  # rounds") != identity("4")
