"""The level joins likelihood and impact by the table, and gives its reasons."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some
from risk_repository import DAY, START, Files, changed, commit, git

from closeloop.changes.risk import assess_risk
from closeloop.changes.risk.change_history import read_history
from closeloop.changes.risk.risk_model import (
    BANDS,
    IMPACTS,
    LEVELS,
    RiskModel,
    determine_risk_level,
    fit_risk_model,
    likelihood_band,
)
from closeloop.records.change import (
    Risk,
    RiskFactor,
    RiskLevel,
)
from closeloop.records.inspection import (
    Inspection,
)

ORDER = ("low", "medium", "high", "critical")
PAGE = Path(__file__).parents[2] / "docs" / "risk.md"
PROJECT = {
    "pyproject.toml": '[project]\nname = "tally"\n',
    "tally/__init__.py": "",
    "tally/days.py": "def parse(text):\n    return text\n\n\ndef show(day):\n    return str(day)\n",
    "schema.sql": "CREATE TABLE a (x INT);\n",
    ".github/workflows/ci.yml": "on: push\n",
}


def risk(folder: Path, after: Files) -> Risk:
    with changed(folder, PROJECT, after) as inspection:
        return assess_risk(inspection, history=None, model=RiskModel())


@pytest.mark.parametrize(
    ("after", "level", "reason"),
    [
        (
            {
                "tally/days.py": PROJECT["tally/days.py"].replace(
                    "return text", "return text.strip()"
                )
            },
            "low",
            "adds 1 line",
        ),
        ({"README.md": "Hello\n"}, "low", "touches no sources"),
        ({"tally/new.py": "x = 1\n" * 30}, "medium", "adds 30 lines"),
        ({"tally/new.py": "x = 1\n" * 90}, "high", "adds 90 lines"),
        (
            {"tally/days.py": "def parse(text):\n    return text\n"},
            "critical",
            "removes `tally.days.show`",
        ),
        (
            {"tally/days.py": PROJECT["tally/days.py"].replace("(day)", "(day, sep)")},
            "critical",
            "now requires `sep`",
        ),
        ({"schema.sql": "CREATE TABLE a (x TEXT);\n"}, "critical", "changes a schema: schema.sql"),
        ({"db/migrations/0002_more.py": "x = 1\n"}, "critical", "migration"),
        ({".github/workflows/ci.yml": "on: pull_request\n"}, "critical", "changes CI/CD"),
        (
            {"pyproject.toml": '[project]\nname = "tally"\ndependencies = ["rich>=13"]\n'},
            "high",
            "adds the dependency `rich`",
        ),
        ({"config/production.yaml": "debug: false\n"}, "high", "changes configuration"),
        ({".editorconfig": "root = true\n"}, "low", "setup of tools"),
    ],
)
def test_a_change_gets_the_level_that_is_stated(
    tmp_path: Path, after: Files, level: RiskLevel, reason: str
) -> None:
    told = risk(tmp_path / "r", after)

    assert told.level == level
    assert any(reason in text for text in told.reasons), told.reasons


def test_a_break_of_what_is_not_published_is_less_than_critical(tmp_path: Path) -> None:
    after: Files = {"tally/days.py": "def parse(text):\n    return text\n"}
    before = {name: text for name, text in PROJECT.items() if name != "pyproject.toml"}

    with changed(tmp_path / "r", before, after) as inspection:
        told = assess_risk(inspection, history=None, model=RiskModel())

    assert told.level == "high"


def test_reasons_come_in_order_of_weight(tmp_path: Path) -> None:
    after: Files = {
        ".github/workflows/ci.yml": "on: pull_request\n",
        "tally/new.py": "x = 1\n" * 30,
        "schema.sql": "CREATE TABLE a (x TEXT);\n",
    }

    told = risk(tmp_path / "r", after)

    assert [factor.weight for factor in told.factors] == sorted(
        (factor.weight for factor in told.factors), reverse=True
    )
    assert [text.split(":")[0] for text in told.reasons[:2]] == [
        "changes a schema",
        "changes CI/CD",
    ]


def test_what_could_not_be_looked_at_is_said(tmp_path: Path) -> None:
    told = risk(tmp_path / "r", {"tally/days.py": "x = 1\n"})

    assert {one.rule for one in told.unmeasured} == {"coverage", "history"}
    told = risk(tmp_path / "s", {"README.md": "Hello\n"})
    assert {one.rule for one in told.unmeasured} == {"history"}


def test_one_broken_dimension_does_not_hide_the_others(tmp_path: Path) -> None:
    with changed(tmp_path / "r", PROJECT, {"tally/days.py": "x = 1\n"}) as whole:
        broken = Inspection(
            change=whole.change,
            sides=whole.sides,
            index=SimpleNamespace(),
            files=whole.files,
            added=whole.added,
            removed=whole.removed,
            modules=whole.modules,
        )
        told = assess_risk(broken, history=None, model=RiskModel())

    assert told.level == "critical"
    assert "dependents" in {one.rule for one in told.unmeasured}


def test_the_rank_is_that_among_the_repository_s_own_changes(tmp_path: Path) -> None:
    root = tmp_path / "r"
    for number in range(60):
        commit(root, {f"big{number}.py": "x = 1\n" * 200}, at=START + number * DAY)
    head = git(root, "rev-parse", "HEAD")
    history = read_history(root, head, tmp_path / "cache")
    model = fit_risk_model(history).model

    with changed(root, {}, {"new.py": "x = 1\n" * 90, "big0.py": "x = 1\n" * 201}) as inspection:
        told = assess_risk(inspection, history=history, model=model)

    assert told.likelihood == 0
    assert told.level == "low"
    assert any("big0.py has had 0 fixes among 1 past change" in one.text for one in told.factors)


@given(some.floats(0, 1), some.floats(0, 1), some.lists(some.floats(0, 3.99), max_size=4))
def test_more_of_either_axis_never_lowers_the_level(
    rank: float, other: float, weights: list[float]
) -> None:
    factors = [RiskFactor(name="x", axis="impact", text="x", weight=weight) for weight in weights]
    fewer, more = sorted((rank, other))

    assert ORDER.index(determine_risk_level(fewer, factors)) <= ORDER.index(
        determine_risk_level(more, factors)
    )
    assert ORDER.index(determine_risk_level(rank, factors[:-1])) <= ORDER.index(
        determine_risk_level(rank, factors)
    )


def test_every_rank_has_a_band() -> None:
    assert [likelihood_band(rank) for rank in (0, 0.59, 0.6, 0.85, 0.97, 1)] == [
        "small",
        "small",
        "moderate",
        "large",
        "huge",
        "huge",
    ]


def test_the_page_states_the_table_that_is_used() -> None:
    rows = re.findall(r"^\| \*\*(\w+)\*\* .*?\| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    stated = {band: dict(zip(IMPACTS, cells.split(" | "), strict=True)) for band, cells in rows}

    assert stated == LEVELS
    for _, up_to in BANDS[:-1]:
        assert f"{up_to:.0%}".replace("%", " %") in PAGE.read_text()
