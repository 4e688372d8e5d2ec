"""Agents of our own runs are told what reviewers taught, and it is known what each was told."""

from __future__ import annotations

from pathlib import Path

import pytest
from team import REPO, day, pull_request

import small_project
from closeloop.agents.builtin import SYSTEM_PROMPT
from closeloop.cli import main
from closeloop.metrics.attempt_groups import UNKNOWN_LABEL, group_attempts
from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.records.settings import Settings
from closeloop.records.team_rules import ContextRecord
from closeloop.reviews.agent_context import CONTEXT_TITLE
from closeloop.reviews.agent_prompts import list_prompt_uses
from closeloop.reviews.rule_editing import add_rule
from closeloop.store import Store, open_store

RULE = "Keep `calculator.py` free of classes."
SCRIPT = """name: closer
dialogues:
  - turns:
      - do: {edit: {path: calculator.py, old: return a - b, new: return a + b}}
      - do: {finish: It adds now.}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = small_project.build(tmp_path, sandbox="none")
    (made / "tasks/fix.md").write_text(small_project.QUICK_FIX)
    (made / "closer.yaml").write_text(SCRIPT)
    small_project.git(made, "remote", "add", "origin", "git@example.org:ann/calculator.git")
    monkeypatch.chdir(made)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    return made


def run(project: Path, memory: str = "") -> None:
    file = project / "closeloop.toml"
    settings = file.read_text().partition("[memory]")[0]
    file.write_text(f'{settings}[memory]\nencoder = "ngrams"\n{memory}\n')
    with pytest.raises(SystemExit) as left:
        main(["run", "fix", "--variant", "closer", "--json"])
    assert not left.value.code


def stored(project: Path) -> Store:
    return open_store(str(project / ".closeloop/closeloop.db"))


def asked(store: Store, attempt: str) -> str:
    return b"".join(one.request for one in store.load_exchanges(attempt)).decode()


def test_agents_are_told_only_where_that_is_set_and_it_makes_another_variant(project):
    with stored(project) as store:
        rule = add_rule(store, RULE, "ann/calculator", "ann", day(0))
    run(project)
    with stored(project) as store:
        (plain,) = store.list_attempts()
        assert CONTEXT_TITLE not in asked(store, plain.id)
        assert store.memory.list_context_records() == []
    run(project, "hydrate = true")
    with stored(project) as store:
        (told,) = (row for row in store.list_attempts() if row.id != plain.id)
        assert told.variant != plain.variant
        assert "free of classes" in asked(store, told.id)
        (offer,) = store.memory.list_context_records("ann/calculator", [told.id])
        assert (offer.rules, offer.arm) == ((rule.id,), "memory")
        prompt = store.load_prompt(offer.prompt)
        assert prompt.text.startswith(SYSTEM_PROMPT.rstrip())
        assert RULE in prompt.text
        (use,) = (use for use in list_prompt_uses(store) if use.id == offer.prompt)
        assert use.attempts == 1


def test_the_control_arm_is_told_nothing_and_that_is_remembered(project):
    with stored(project) as store:
        add_rule(store, RULE, "ann/calculator", "ann", day(0))
    run(project, "hydrate = true\ncontrol = 1.0")
    with stored(project) as store:
        (row,) = store.list_attempts()
        assert CONTEXT_TITLE not in asked(store, row.id)
        (offer,) = store.memory.list_context_records()
        assert (offer.key, offer.arm, offer.rules) == (row.id, "control", ())


def test_the_same_run_again_makes_nothing_new(project):
    run(project, "hydrate = true")
    with stored(project) as store:
        add_rule(store, RULE, "ann/calculator", "ann", day(0))
    run(project, "hydrate = true")
    with stored(project) as store:
        assert len(store.list_attempts()) == 1, "a rule that comes later undoes no attempt"


def test_numbers_tell_the_arms_apart():
    with open_store(":memory:") as store:
        made = {number: pull_request(store, number, day(number)) for number in (1, 2, 3)}
        for number, arm in ((1, "memory"), (2, "control")):
            store.memory.save_context_record(
                ContextRecord(key=f"agent/{number}", repo=REPO, arm=arm, at=day(0))
            )
        work = load_attempt_table(store, project_rulebook(Settings()))
        arms = dict(zip(work.attempts, work.columns["arm"].tolist(), strict=True))
        known = [arms[made[number].attempt] for number in (1, 2, 3)]
        assert known == [("memory",), ("control",), None]
        names, _, _ = group_attempts(work, ["arm"])
        assert {*names} == {("memory",), ("control",), (UNKNOWN_LABEL,)}
