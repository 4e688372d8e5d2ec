"""`closeloop show --task`: the first evaluation of an agent's loop, and the same on the page."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import small_project
from closeloop.cli import main
from closeloop.store import open_store
from closeloop.web.page import PageContext
from closeloop.web.pages.experiments import ExperimentQuery, experiment

pytestmark = pytest.mark.usefixtures("warm_path")


def closeloop(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert left.value.code == code, printed.out + printed.err
    return printed.out + (printed.err if code else "")


def test_a_task_is_shown_over_its_repeats(tmp_path, monkeypatch, capsys):
    folder: Path = small_project.build(tmp_path, sandbox="none")
    monkeypatch.chdir(folder)
    for name in ("CLOSELOOP_STORE", "CLOSELOOP_CACHE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    closeloop(capsys, "run", "fix", "--repeats", "2")
    found = json.loads(closeloop(capsys, "show", "--task", "fix", "--json"))
    by_variant = {one["variant"]: one for one in found["variants"]}
    assert by_variant["closer"]["fixed"]["hits"] == by_variant["closer"]["repeats"] == 2
    assert by_variant["spiraller"]["fixed"]["hits"] == 0
    assert by_variant["closer"]["iterations"] == 1
    assert [one["converged_after"] for one in found["repeats"]] == [1, 1, None, None]
    assert {one["fixed"] for one in found["repeats"]} == {True, False}
    said = closeloop(capsys, "show", "--task", "fix")
    assert "original failure fixed 2 of 2 (" in said
    assert "output used" in said
    with open_store(str(folder / ".closeloop/closeloop.db")) as store:
        desk = PageContext(store)
        desk.metric_cache.patience = None
        view = experiment(desk, ExperimentQuery(experiment=store.list_experiments()[0].id))
    assert view.now is not None
    assert json.loads(msgspec.json.encode(view.now.tasks[0].variants[0].fixed))["hits"] == 2
    figures = json.loads(
        closeloop(
            capsys,
            "metrics",
            "--group-by",
            "variant",
            "--score",
            "original-failure-fixed",
            "--json",
        )
    )["figures"]
    assert {one["group"]["variant"]: one["value"] for one in figures} == {
        "closer": 1,
        "spiraller": 0,
    }
    assert "No task named 'fox'" in closeloop(capsys, "show", "--task", "fox", code=2)
    unknown = closeloop(capsys, "list", "attempts", "--task", "fox", code=2)
    assert "No tried task named 'fox'. Did you mean 'fix'?" in unknown
    unknown = closeloop(capsys, "list", "attempts", "--variant", "close", "--json", code=2)
    assert "No tried variant named 'close'. Did you mean 'closer'?" in unknown
    nothing = closeloop(capsys, "list", "attempts", "--variant", "closer", "--outcome", "unscored")
    assert "No attempts match" in nothing


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give either the id of an attempt, or a task"),
        (("abc", "--task", "fix"), "Give either the id of an attempt, or a task"),
    ],
)
def test_an_attempt_or_a_task_is_named(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(small_project.build(tmp_path, sandbox="none"))
    said = closeloop(capsys, "show", *arguments, code=2)
    assert words in said
    assert len(said.splitlines()) == 1
