"""`closeloop triage`, as it is typed."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from closeloop.cli.measure import render_reasons, render_triage
from closeloop.records.errors import BadInput
from closeloop.records.score import SessionTriage, TriageReason, TriageReport
from closeloop.text.wording import parse_moment
from command_line import typed

FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    assert typed(tmp_path, "import", str(FIXTURES / "claude_code")).returncode == 0
    return tmp_path


def test_recorded_sessions_are_ordered_with_reasons(imported: Path) -> None:
    ran = typed(imported, "triage", "--since", "all")
    assert ran.returncode == 0
    assert "Sessions, most likely failures first" in ran.stdout
    assert re.search(r"[−+] \w", ran.stdout)
    assert "The ranking model is trained on public runs (AUC 0." in ran.stdout
    ran = typed(imported, "triage", "--since", "all", "--limit", "1", "--json")
    report = json.loads(ran.stdout)
    assert {"sessions", "total", "agents", "quality", "prior", "notes"} == report.keys()
    (first,) = report["sessions"]
    assert (first["place"], first["chance"], first["agent"]) == (1, None, "claude-code")
    assert report["total"] == 1
    assert first["reasons"]


def test_a_session_without_reasons_for_failure_says_so() -> None:
    against = TriageReason(feature="x", value=1, usual=0, effect=0.5, text="a check ran")
    session = SessionTriage(
        attempt="a",
        title=None,
        agent=None,
        model=None,
        started=None,
        place=1,
        score=1.0,
        chance=None,
        reasons=(against,),
    )
    assert str(render_reasons(session)) == "no sign of failure\n+ a check ran"
    bare = msgspec.structs.replace(session, reasons=())
    assert str(render_reasons(bare)) == "no sign of failure"


def test_nothing_to_look_at_is_one_sentence(imported: Path) -> None:
    ran = typed(imported, "triage", "--since", "1h", "--agent", "claude-code")
    assert ran.returncode == 0
    assert ran.stdout.startswith("No sessions to triage: ")
    assert "`--since all` includes older ones" in " ".join(ran.stdout.split())
    empty = TriageReport(sessions=(), total=0, agents=(), quality=None, prior={})
    assert not any("--since" in str(line) for line in render_triage(empty, None))


@pytest.mark.parametrize(
    "flags", [("--since", "3x"), ("-n", "0"), ("--agent", "claude"), ("--model", "none-such")]
)
def test_bad_input_is_refused(imported: Path, flags: tuple[str, str]) -> None:
    ran = typed(imported, "triage", *flags)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("closeloop: ")


def test_a_period_is_hours_days_weeks_a_date_or_all() -> None:
    assert parse_moment("24h", NOW) == NOW - timedelta(hours=24)
    assert parse_moment("7d", NOW) == NOW - timedelta(days=7)
    assert parse_moment("2w", NOW) == NOW - timedelta(days=14)
    assert parse_moment("all", NOW) is None
    date = parse_moment("2026-11-01", NOW)
    assert date is not None
    assert date.date().isoformat() == "2026-11-01"
    assert parse_moment("2026-11-01", NOW, is_end=True) == date + timedelta(days=1)
    with pytest.raises(BadInput, match="A time is 24h"):
        parse_moment("d7", NOW)
