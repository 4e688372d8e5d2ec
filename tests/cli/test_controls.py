"""The controls noop and reference: the floor and the ceiling of a task set, without a key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import small_project
from closeloop.cli import main
from closeloop.cli.compare import list_controls
from closeloop.cli.config import load_project
from closeloop.store.store import open_existing_store
from closeloop.web.page import NoQuery, PageContext
from closeloop.web.pages.compare import CompareQuery, compare
from closeloop.web.pages.experiments import experiments

pytestmark = pytest.mark.usefixtures("warm_path")


def closeloop(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert left.value.code == code, printed.out + printed.err
    return printed.out if code in (0, 1) else printed.err


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = small_project.build(tmp_path, sandbox="none")
    monkeypatch.chdir(folder)
    for name in ("CLOSELOOP_STORE", "CLOSELOOP_CACHE", "RAY_ADDRESS", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return folder


CONTROLS = ("--agent", "noop", "--agent", "reference")


def test_controls_fail_and_pass_at_no_cost_and_say_that_they_are_controls(project, capsys):
    results = json.loads(closeloop(capsys, "run", "fix", *CONTROLS, "--repeats", "3", "--json"))
    outcomes = {(row["agent"], row["outcome"], row["cost"]) for row in results["attempts"]}
    assert outcomes == {("noop", "fail", 0.0), ("reference", "pass", 0.0)}
    reference = next(row["id"] for row in results["attempts"] if row["agent"] == "reference")
    assert "a control, not an agent" in closeloop(capsys, "show", reference)
    details = json.loads(closeloop(capsys, "show", reference, "--json"))
    assert details["is_control"]
    assert [event["about"] for event in details["trace"]["events"]] == ["control"]
    assert details["measurement"]["ending"] is None
    assert "(a control)" in closeloop(capsys, "list", "attempts")
    report = closeloop(capsys, "compare")
    assert "'reference' is better than 'noop': pass rate +100 points" in report


def test_controls_are_no_part_of_metrics_and_of_the_record_of_a_task(project, capsys):
    closeloop(capsys, "run", "fix", *CONTROLS)
    report = json.loads(closeloop(capsys, "metrics", "--json"))
    assert report["attempts"] == 0
    assert report["notes"] == [
        "2 attempts of controls were excluded: noop and reference are not agents."
    ]
    assert "2 attempts of controls were excluded" in closeloop(capsys, "metrics")
    with open_existing_store(load_project(project).settings, project) as store:
        left_out = list_controls(store.list_attempts())
    assert left_out == ["variant 'noop' is a control", "variant 'reference' is a control"]


def test_pages_that_compare_show_the_controls(project, capsys):
    results = json.loads(closeloop(capsys, "run", "fix", *CONTROLS, "--repeats", "3", "--json"))
    configuration = load_project(project)
    with open_existing_store(configuration.settings, project) as store:
        page_context = PageContext(store, configuration.settings, project)
        page_context.metric_cache.patience = None
        view = experiments(page_context, NoQuery())
        asked = CompareQuery(variants=("noop", "reference"))
        comparison = compare(page_context, asked)
    assert view.verdicts[results["experiment"]].comparison.here_word == "better"
    assert comparison.report is not None
    assert [side.attempts for side in comparison.report.sides] == [3, 3]


def test_reference_makes_no_attempt_at_a_task_without_a_reference(project, capsys):
    closeloop(capsys, "run", "fix", "question", *CONTROLS)
    [status] = json.loads(closeloop(capsys, "list", "experiments", "--json"))["items"]
    assert (status["done"], status["total"], status["not_run"]) == (3, 3, 0)
    assert "no reference change" in closeloop(capsys, "run", "fix", "question", *CONTROLS)


def test_a_control_takes_no_model(project, capsys):
    results = json.loads(
        closeloop(capsys, "run", "question", "--agent", "noop", "--model", "openai/x", "--json")
    )
    assert [(variant["name"], variant["model"]) for variant in results["variants"]] == [
        ("noop", None)
    ]


def test_where_a_key_is_missing_the_controls_are_named(project, capsys):
    message = closeloop(capsys, "run", "fix", "--model", "openai/x", code=2)
    assert "No key for the model 'openai/x': set OPENAI_API_KEY" in message
    assert "`closeloop run --agent noop --agent reference` runs the controls" in message


def test_controls_are_variants_of_the_settings_too(project, capsys):
    settings = project / "closeloop.toml"
    settings.write_text(settings.read_text() + '\n[variants.ceiling]\nagent = "reference"\n')
    results = json.loads(closeloop(capsys, "run", "fix", "--variant", "ceiling", "--json"))
    assert [row["outcome"] for row in results["attempts"]] == ["pass"]
