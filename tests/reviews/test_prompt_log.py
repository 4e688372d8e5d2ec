"""Prompts are kept by their hash, and it is known what ran under each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from team import AGENTS, REPO, day

from closeloop.cli import main
from closeloop.grading.variants import prompt_version
from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.pull_request import Fact, PullCommit, PullDescription
from closeloop.records.task import PromptVersion, Variant
from closeloop.reviews.agent_prompts import diff_prompts, find_prompt, list_prompt_uses
from closeloop.reviews.pull_lifecycle import save_facts
from closeloop.store import Store, open_store

OLD = PromptVersion(id="a" * 64, text="Work carefully.\nUse the tests.\n")
NEW = PromptVersion(id="b" * 64, text="Work carefully.\nRun the tests twice.\n", tools="shell")


class Spoken:
    def prompt(self, system: str | None) -> tuple[str, str]:
        return system or "", "shell"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(str(tmp_path / ".closeloop" / "closeloop.db"))
    for prompt, variant, tasks in ((OLD, "careful", ("t1", "t2")), (NEW, "twice", ("t1",))):
        store.save_prompt(prompt)
        digest = f"digest-{variant}"
        store.save_variant(Variant(name=variant, agent="x", prompt=prompt.id, digest=digest))
        for at, task in enumerate(tasks):
            store.save_attempt(
                AttemptResult(
                    attempt=Attempt(
                        id=f"{variant}-{task}",
                        origin="experiment",
                        task=task,
                        variant=digest,
                        exit="finished",
                        started=day(at),
                    )
                )
            )
    return store


@pytest.fixture
def project(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    return tmp_path


def closeloop(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code


def test_any_byte_of_a_prompt_changes_its_id():
    ids = {
        prompt_version(Spoken(), text, settings).id
        for text in ("Work.", "Work. ", "Work.\n")
        for settings in ({}, {"effort": 1}, {"effort": 2})
    }
    assert len(ids) == 9


def test_the_log_tells_which_attempts_ran_under_which_prompt(store):
    newest, oldest = list_prompt_uses(store)
    assert (newest.id, newest.attempts, newest.tasks) == (NEW.id, 1, ("t1",))
    assert (oldest.variants, oldest.attempts) == (("careful",), 2)
    assert (oldest.first, oldest.last) == (day(0), day(1))
    assert oldest.opening == "Work carefully."


def test_pull_requests_are_found_by_the_trailer_of_their_commits(store):
    message = f"Do it\n\nPrompt-Version: {OLD.id[:16]}"
    told = (
        PullDescription(title="T", author="robot", branch="agent/1", opened=day(1)),
        PullCommit(sha="c" * 40, message=message, author="robot", at=day(1)),
    )
    facts = [
        Fact(source="github", repo=REPO, pull=1, at=day(1), key=f"k{at}", what=what)
        for at, what in enumerate(told)
    ]
    save_facts(facts, store, AGENTS)
    assert list_prompt_uses(store)[1].pulls == (f"{REPO}#1",)


def test_a_difference_tells_text_and_tools():
    lines = list(diff_prompts(OLD, NEW))
    assert "-Use the tests." in lines
    assert "+Run the tests twice." in lines
    assert "+shell" in lines
    assert list(diff_prompts(OLD, OLD)) == []


def test_a_change_proposes_the_runs_that_would_test_it(store, project, capsys):
    assert closeloop("prompt", "diff", "aaaa", "bbbb") == 1
    said = capsys.readouterr().out
    assert "closeloop run t2 --variant twice --repeats 3" in said
    assert f"closeloop compare prompt:{'a' * 12} prompt:{'b' * 12}" in said
    assert closeloop("prompt", "diff", "aaaa", "aaaa", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"diff": [], "proposal": None}


def test_a_prompt_is_shown_and_restored_byte_by_byte(store, project, capsys):
    assert closeloop("prompt", "show", "aaa") == 0
    assert capsys.readouterr().out == OLD.text
    (project / "prompt.md").write_text("Something else.\n")
    assert closeloop("prompt", "restore", "aaa", "--out", "prompt.md") == 0
    assert "-Something else." in capsys.readouterr().out
    assert (project / "prompt.md").read_bytes() == OLD.text.encode()
    assert closeloop("prompt", "log", "--json") == 0
    assert closeloop("prompt", "log") == 0
    store.save_prompt(PromptVersion(id="b" * 64, text=""))  # of an agent without a prompt
    capsys.readouterr()
    assert closeloop("prompt", "show", "nope") == 2
    assert "bbb" not in capsys.readouterr().err
    assert closeloop("prompt", "restore", "aaa", "--out", "no/where.md") == 2


def test_a_beginning_of_two_ids_is_not_enough(store):
    store.save_prompt(PromptVersion(id="a" * 63 + "b", text=""))
    with pytest.raises(Exception, match="give more"):
        find_prompt(store, "aaa")
