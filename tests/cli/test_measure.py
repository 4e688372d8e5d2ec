"""`closeloop measure`, `rules` and `gate`, as they are typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import small_project
from closeloop.cli import main

pytestmark = pytest.mark.usefixtures("warm_path")

FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"


def typed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    return left.value.code or 0, shown.out, shown.err  # type: ignore[return-value]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = small_project.build(tmp_path, sandbox="none")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def tried(tried_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tried_project)
    return tried_project


def test_an_experiment_is_measured_once_and_shown(
    tried: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = typed(capsys, "measure")
    assert code == 0
    assert "Process measures by attempt" in out
    assert "Process score" in out
    code, out, _ = typed(capsys, "measure", "--json")
    (first, *_) = json.loads(out)["items"]
    assert {"row", "measurement"} == first.keys()
    assert first["measurement"]["ending"]["category"]


def test_recorded_sessions_are_measured_without_being_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = typed(capsys, "measure", str(FIXTURES / "claude_code"))
    assert code == 0
    assert {"task or repository", "variant or agent"} <= {*re.split(r"  +", out.split("\n")[1])}
    code, out, _ = typed(capsys, "measure", str(FIXTURES / "claude_code"), "--json")
    assert code == 0
    assert json.loads(out)["items"]
    assert not (tmp_path / ".closeloop").exists()


def test_one_attempt_can_be_named(tried: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = json.loads(typed(capsys, "measure", "--all", "--json")[1])["items"]
    name = every[0]["row"]["id"]
    (one,) = json.loads(typed(capsys, "measure", name[:8], "--json")[1])["items"]
    assert one["row"]["id"] == name


def test_sarif_has_every_rule_and_what_it_found(
    tried: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = json.loads(typed(capsys, "measure", "--sarif")[1])
    (run,) = made["runs"]
    names = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert made["version"] == "2.1.0"
    assert "spiral" in names
    assert {result["ruleId"] for result in run["results"]} <= names


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["measure", "--all", "--experiment", "x"], "only one of"),
        (["measure", "nothing-like-it"], "nothing-like-it"),
        (["measure", "--experiment", "zzz"], "There is no store at "),
        (["gate"], "There is no store at "),
    ],
)
def test_bad_input_is_told_in_a_sentence(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    code, _, err = typed(capsys, *arguments)
    assert code == 2
    assert told in err


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("[rules.spirall]\niterations = 3\n", "Did you mean 'spiral'?"),
        ("[rules.spiral]\niteration = 3\n", "Did you mean 'iterations'?"),
        ("[rules.spiral]\niterations = -1\n", "a number of 0 or more"),
        ("[rules.spiral]\nenabled = 1\n", "true or false"),
        ("[[silence]]\nrule = 'spirall'\nreason = 'x'\n", "Did you mean 'spiral'?"),
        ("[[silence]]\nrule = 'spiral'\nreason = ' '\n", "reason"),
    ],
)
def test_a_mistake_in_the_settings_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: str,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "closeloop.toml").write_text(settings)
    code, _, err = typed(capsys, "measure", "--rules")
    assert code == 2
    assert told in err


def test_the_catalogue_shows_thresholds_as_they_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "closeloop.toml").write_text(
        "[rules.spiral]\niterations = 7\n[rules.drift]\nenabled = false\n"
    )
    listed = {
        one["rule"]["name"]: one
        for one in json.loads(typed(capsys, "measure", "--rules", "--json")[1])["items"]
    }
    assert listed["spiral"]["thresholds"] == {"iterations": 7.0}
    lines = typed(capsys, "measure", "--rules")[1].splitlines()
    starts = [re.split(r"  +", line.strip())[:3] for line in lines]
    assert ["spiral", "error", "real sessions"] in starts
    assert ["spiral", "error", "examples"] in starts
    assert listed["drift"]["enabled"] is False
    assert "spiral" in typed(capsys, "measure", "--rules")[1]


def test_a_gate_without_a_baseline_says_how_to_keep_one(
    tried: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = typed(capsys, "gate")
    assert code == 2
    assert "closeloop gate --save" in err
    code, _, err = typed(capsys, "measure", "no/such.jsonl")
    assert code == 2
    assert "no/such.jsonl is not a file, a folder or the id of an attempt." in err
    assert typed(capsys, "gate", "--save")[0] == 0
    code, out, _ = typed(capsys, "gate")
    assert code == 0
    assert "This experiment is the baseline itself" in out
    assert "Not shown to be worse than the baseline 'main'" in out
    code, out, _ = typed(capsys, "gate", "--threshold", "passed=1.0")
    assert code == 1
    assert "The gate fails, compared with the baseline 'main'" in out
    assert "Worse than" not in out, "it is equal to the baseline"


def test_an_empty_folder_is_not_said_to_be_imported(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "empty").mkdir()
    code, _, err = typed(capsys, "measure", "empty")
    assert code == 2
    assert "Nothing could be read: no files found" in err
