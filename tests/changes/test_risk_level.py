"""The level joins likelihood and impact by the table, and gives its reasons."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace
from risk_repository import DAY, START, Files, changed, commit, git

from closeloop.changes.affected_tests import Coverage, LineCoverage
from closeloop.changes.risk import assess_risk
from closeloop.changes.risk.change_history import read_history
from closeloop.changes.risk.risk_model import (
    BANDS,
    LEVELS,
    LevelRate,
    RiskModel,
    describe_size_effect,
    determine_risk_level,
    explain_level,
    fit_risk_model,
    likelihood_band,
    list_disordered_levels,
)
from closeloop.records.change import Inspection, RevertChance, Risk, RiskFactor, RiskLevel
from closeloop.records.estimate import wilson_rate
from closeloop.records.settings import CheckSettings

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
        ({"README.md": "Hello\n"}, "low", "touches no source files"),
        (
            {"tally/days.py": f"# Days.\n{PROJECT['tally/days.py']}", "README.md": "Hello\n"},
            "low",
            "changes only comments, docstrings, layout or generated files beside 1 other file that "
            "is no source",
        ),
        ({"tally/new.py": "x = 1\n" * 30}, "low", "adds 30 lines"),
        ({"tally/new.py": "x = 1\n" * 90}, "medium", "adds 90 lines"),
        ({"tally/new.py": "x = 1\n" * 900}, "high", "adds 900 lines"),
        (
            {"tally/new.py": "x = 1\n" * 30, "config/production.yaml": "debug: false\n"},
            "medium",
            "changes configuration",
        ),
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
            "low",
            "adds the dependency `rich`",
        ),
        ({"config/production.yaml": "debug: false\n"}, "low", "changes configuration"),
        ({".editorconfig": "root = true\n"}, "low", "configuration of tools"),
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

    assert told.level == "low"
    assert "nothing here is published" in told.reasons[-1] + told.reasons[0]


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
    assert "history" not in [one.name for one in told.factors], "one change says nothing"


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
        "medium",
        "large",
        "huge",
        "huge",
    ]


def test_the_page_states_the_table_that_is_used() -> None:
    rows = re.findall(r"^\| \*\*(\w+)\*\*.*?\| (.+?) \|$", PAGE.read_text(), re.MULTILINE)

    assert {row: tuple(cells.split(" | ")) for row, cells in rows} == LEVELS
    for _, up_to in BANDS[:-1]:
        assert f"{up_to:.0%}".replace("%", " %") in PAGE.read_text()


WORKFLOW = """\
on: push
jobs:
  test:
    strategy:
      matrix: {python: ["3.9", "3.10"]}
    runs-on: ubuntu-22.04
    steps:
      - uses: actions/checkout@v3  # the code
      - run: pytest
"""


@pytest.mark.parametrize(
    ("old", "new", "level"),
    [
        ("checkout@v3", "checkout@v4", "low"),
        ("checkout@v3  # the code", f"checkout@{'a1' * 20} # v4.1.2", "low"),
        ('"3.10"]', '"3.10", "3.11", "3.13"]', "low"),
        ("ubuntu-22.04", "ubuntu-24.04", "low"),
        ("# the code", "# what is tested", "low"),
        ("run: pytest", "run: pytest || true", "critical"),
        ("actions/checkout@v3", "somebody/checkout@v3", "critical"),
        ("on: push", "on: push\npermissions: write-all", "critical"),
    ],
)
def test_another_version_in_ci_is_not_critical_and_another_step_is(
    tmp_path: Path, old: str, new: str, level: RiskLevel
) -> None:
    path = ".github/workflows/ci.yml"
    before = {**PROJECT, path: WORKFLOW}
    with changed(tmp_path / "r", before, {path: WORKFLOW.replace(old, new)}) as inspection:
        told = assess_risk(inspection, history=None, model=RiskModel())

    assert told.level == level


DOCUMENTED = '"""Days."""\n\n\ndef show(day):\n    """Shwo it."""\n    return str(day)  # a wrod\n'


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("tally/days.py", DOCUMENTED, DOCUMENTED.replace("Shwo", "Show").replace("wrod", "word")),
        ("tally/days.py", DOCUMENTED, DOCUMENTED.replace("Days.", "Days.\n" + "More.\n" * 900)),
        ("tally/days.py", DOCUMENTED, DOCUMENTED.replace("str(day)", "str(\n        day\n    )")),
        ("web/days.js", "// a wrod\nexport const x = 1;\n", "// a word\nexport const x = 1;\n"),
        ("lib/days.go", "package lib\n\n// wrod\nfunc A() {}\n", "package lib\n\nfunc A() {}\n"),
        (".github/workflows/ci.yml", "on: push\n", "# When.\non: push\n"),
        ("config/production.yaml", "debug: no # wrod\n", "debug: no # word\n"),
    ],
)
def test_a_change_of_comments_docstrings_or_layout_has_no_impact(
    tmp_path: Path, path: str, before: str, after: str
) -> None:
    users = {f"tally/user{number}.py": "from tally.days import show\n" for number in range(20)}

    with changed(tmp_path / "r", {**PROJECT, **users, path: before}, {path: after}) as inspection:
        told = assess_risk(inspection, history=None, model=RiskModel())

    assert told.level == "low"
    assert told.reasons[0].startswith("changes only comments")


def test_a_string_that_the_program_uses_is_no_comment(tmp_path: Path) -> None:
    users = {f"tally/user{number}.py": "from tally.days import show\n" for number in range(20)}
    before = {**PROJECT, **users, "tally/days.py": "def show(day):\n    return 'a wrod'\n"}

    with changed(
        tmp_path / "r", before, {"tally/days.py": "def show(day):\n    return 'a word'\n"}
    ) as inspection:
        told = assess_risk(inspection, history=None, model=RiskModel())

    assert any("changes shared code" in reason for reason in told.reasons)


def test_lines_that_no_test_reaches_raise_the_level_by_one_up_to_high(tmp_path: Path) -> None:
    def level(folder: str, count: int) -> RiskLevel:
        with changed(tmp_path / folder, PROJECT, {"tally/new.py": "x = 1\n" * count}) as inspection:
            missed = Coverage(
                files={"tally/new.py": LineCoverage(covered=frozenset({1}), missed=frozenset({2}))},
                source="coverage.xml",
            )
            return assess_risk(inspection, history=None, model=RiskModel(), coverage=missed).level

    assert [level("a", 3), level("b", 90), level("c", 900)] == ["medium", "high", "high"]


def test_a_repository_may_change_rows_of_the_matrix() -> None:
    ci = [RiskFactor(name="ci", axis="impact", text="changes CI/CD", weight=3.4)]
    config = [RiskFactor(name="config", axis="impact", text="changes it", weight=2.1)]
    strict = CheckSettings(risk_levels={"shared": ("high", "high", "critical", "critical")})

    assert determine_risk_level(0.1, ci) == "critical"
    assert determine_risk_level(0.1, ci, CheckSettings(risk_rows={"ci": "shared"})) == "low"
    assert determine_risk_level(0.1, config, strict) == "high"
    assert determine_risk_level(0.1, config, CheckSettings(risk_rows={"config": "none"})) == "low"


def held(*rates: tuple[RiskLevel, int, int]) -> list[LevelRate]:
    counted = [(level, wilson_rate(wrong, of)) for level, wrong, of in rates]
    return [LevelRate(level=level, wrong=rate) for level, rate in counted if rate]


def test_a_level_that_goes_wrong_less_often_than_a_lower_one_speaks_of_impact_only() -> None:
    """As critical does in the past of three projects: 1 of 16, and 23 of 105 that were high."""
    past = held(("low", 9, 449), ("medium", 10, 183), ("high", 23, 105), ("critical", 1, 16))

    assert list(list_disordered_levels(past)) == ["critical"]
    assert explain_level("critical", "breaking", past, None) == (
        "critical refers to impact only: here 6 % of 16 such changes went wrong, and 22 % of 105"
        " high ones"
    )
    swapped = held(("low", 9, 449), ("medium", 24, 146), ("high", 9, 65))
    assert explain_level("high", "none", swapped, None) == (
        "high refers to size only: here 14 % of 65 such changes went wrong, and 16 % of 146"
        " medium ones"
    )
    assert explain_level("high", "none", past, None) is None
    assert explain_level("low", "none", past, None) is None


def test_a_high_level_beside_a_low_chance_says_that_it_speaks_of_impact() -> None:
    chance = RevertChance(value=0.004, low=0.0, high=0.01, of=900, method="size", usual=0.03)

    note = explain_level("high", "shared", held(("low", 1, 100), ("high", 9, 100)), chance)

    assert note == "high refers to impact only: by its size the change is an ordinary one"
    by_size = explain_level("high", "none", held(("low", 1, 100), ("high", 9, 100)), chance)
    assert by_size == "high refers to size only: larger changes did not go wrong more often here"
    uncovered = explain_level("medium", "none", (), chance, uncovered=True)
    assert uncovered == "medium refers to impact only: by its size the change is an ordinary one"


@pytest.mark.parametrize(
    ("rates", "slope", "small", "large"),
    [
        (
            (("low", 1, 100), ("medium", 9, 100)),
            0.5,
            "smaller changes go wrong less often here",
            "larger changes go wrong more often here",
        ),
        ((("low", 7, 100), ("medium", 2, 100)), 0.5, None, None),
        ((("low", 1, 100), ("medium", 9, 100)), -0.1, None, None),
        (
            (("low", 1, 100), ("critical", 0, 100)),
            0.5,
            "smaller changes go wrong less often here",
            "larger changes go wrong more often here",
        ),
    ],
)
def test_no_reason_claims_what_the_history_here_contradicts(rates, slope, small, large) -> None:
    model = RiskModel(of=400, past=400, weights=(-3.0, slope), held=tuple(held(*rates)))
    assert describe_size_effect(model, is_small=True) == small
    assert describe_size_effect(model, is_small=False) == large
    unlearned = replace(model, of=0)
    expected = small if slope > 0 else "smaller changes go wrong less often here"
    assert describe_size_effect(unlearned, is_small=True) == (
        expected and expected.replace("here", "in most projects")
    )


def test_a_larger_change_that_adds_to_the_api_is_above_one_that_does_not(tmp_path: Path) -> None:
    body = "".join(f"    x = {number}\n" for number in range(30))
    private = {"tally/new.py": f"def _weeks(day):\n{body}    return x, day\n"}
    public = {"tally/new.py": f"def weeks(day):\n{body}    return x, day\n"}

    assert risk(tmp_path / "a", private).level == "low"
    told = risk(tmp_path / "b", public)
    assert told.level == "medium"
    assert "adds `weeks` to the API, on which others may come to rely" in told.reasons
