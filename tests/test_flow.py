"""Tasks, variants and repeats through the whole system, on a small real project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

import small_project
from closeloop import flow
from closeloop.agents.builtin import BuiltinAgent
from closeloop.attempts import attempt_execution
from closeloop.cli.config import load_project
from closeloop.grading import task_proof
from closeloop.metrics.attempt_measuring import load_story as story_of
from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.providers.scripted_model import ScriptedModel
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.experiment_plan import (
    ExperimentForecast,
    ExperimentPlan,
    ExperimentResults,
    RunProgress,
)
from closeloop.records.protocols import Work
from closeloop.records.settings import ExperimentSettings
from closeloop.records.trace import Trace
from closeloop.store import Store
from closeloop.store.store import open_project_store
from closeloop.tasks.task_files import select_tasks

pytestmark = pytest.mark.usefixtures("warm_path")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return small_project.build(tmp_path, sandbox="none")


def run(project: Path, *tasks: str, repeats: int = 1, **changes: object) -> ExperimentResults:
    """What `closeloop run` does, with what it tells kept aside."""
    found = load_project(project, environ={})
    settings = msgspec.structs.replace(found.settings, **changes)
    told.clear()

    @contextmanager
    def start(
        plan: ExperimentPlan, forecast: ExperimentForecast, store: Store
    ) -> Iterator[Callable[[RunProgress], None]]:
        yield told.append

    request = flow.ExperimentRequest(
        settings=settings,
        root=project,
        environ={},
        tasks=tuple(select_tasks(settings, project, tasks)),
        variants=tuple(settings.variants),
        wanted=ExperimentSettings(repeats=repeats, jobs=2),
    )
    return anyio.run(flow.run_experiment, request, start)


told: list[RunProgress] = []


def outcomes(results: ExperimentResults) -> dict[tuple[str | None, str | None], str | None]:
    return {(row.task, row.variant_name): row.outcome for row in results.attempts}


def started() -> int:
    return sum(progress.stage == "started" for progress in told)


def test_every_variant_tries_every_task_once_and_is_graded(project):
    results = run(project)
    assert started() == 6
    assert outcomes(results) == {
        ("fix", "closer"): "pass",
        ("fix", "spiraller"): "fail",
        ("triple", "closer"): "pass",
        ("triple", "spiraller"): "fail",
        ("question", "closer"): "pass",
        ("question", "spiraller"): "fail",
    }
    broke = next(row for row in results.attempts if (row.task, row.outcome) == ("fix", "fail"))
    assert broke.broken == 1
    assert broke.reason == "test_calculator.py::test_add fails: assert -1 == 5"
    again = run(project)
    assert started() == 0, "what is done is not done again"
    assert again == results


def test_more_repeats_add_to_what_is_there(project):
    run(project, "question")
    assert started() == 2
    results = run(project, "question", repeats=3)
    assert started() == 4
    assert [row.number for row in results.attempts if row.variant_name == "closer"] == [1, 2, 3]


def test_fewer_repeats_show_fewer_attempts(project):
    run(project, "question", repeats=3)
    assert len(run(project, "question").attempts) == 2


def test_a_changed_acceptance_is_graded_anew_without_running_the_agent(project):
    run(project, "question")
    task = project / "tasks" / "question.md"
    task.write_text(task.read_text().replace("42", "7"))
    results = run(project, "question")
    assert started() == 0
    assert outcomes(results) == {("question", "closer"): "fail", ("question", "spiraller"): "pass"}


def test_a_changed_prompt_is_run_anew(project):
    run(project, "question")
    task = project / "tasks" / "question.md"
    task.write_text(task.read_text() + "Please: the answer.\n")
    run(project, "question")
    assert started() == 2


def test_a_changed_script_is_another_variant(project):
    run(project, "question")
    script = project / "closer.yaml"
    script.write_text(script.read_text().replace("It is 42.", "Surely 42."))
    run(project, "question")
    assert started() == 1


def test_a_renamed_variant_is_the_same(project):
    run(project, "question")
    file = project / "closeloop.toml"
    file.write_text(file.read_text().replace("[variants.closer]", "[variants.first]"))
    results = run(project, "question")
    assert started() == 0
    assert ("question", "first") in outcomes(results)


def test_a_task_that_passes_untouched_is_not_run(project):
    small_project.git(project, "apply", "tasks/fix.patch")
    small_project.git(project, "commit", "-qam", "Fix add")
    results = run(project, "fix", "question")
    assert results.skipped == {"fix": "an empty change passes"}
    assert {row.task for row in results.attempts} == {"question"}


def test_a_task_that_was_not_run_is_looked_at_again(project):
    """What was wrong may be mended outside the task: a tool installed, a service started."""
    runner = project / "runner.sh"
    runner.write_text("echo nothing to run\n")
    task = project / "tasks" / "fix.md"
    task.write_text(task.read_text().replace("python -m pytest", f"sh {runner}"))
    assert "ran no test" in run(project, "fix").skipped["fix"]
    runner.write_text('python -m pytest "$@"\n')
    results = run(project, "fix")
    assert results.skipped == {}
    assert outcomes(results) == {("fix", "closer"): "pass", ("fix", "spiraller"): "fail"}


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("setup: [no-such-tool]\n", "no-such-tool"),
        (f"base: {'0' * 40}\n", "fetch it yourself, or remove the task"),
    ],
    ids=["its environment rots", "its base is gone"],
)
def test_a_task_that_can_no_longer_be_prepared_spoils_no_other(project, broken, why):
    task = project / "tasks" / "fix.md"
    lines = [line for line in task.read_text().splitlines(True) if not line.startswith("base:")]
    task.write_text("".join(lines).replace("---\n", f"---\n{broken}", 1))
    results = run(project, "fix", "question")
    assert why in results.skipped["fix"]
    assert {row.task for row in results.attempts} == {"question"}


def test_a_new_grader_looks_at_the_base_and_at_every_attempt_again(tried_project, monkeypatch):
    monkeypatch.setattr(task_proof, "GRADER_VERSION", 99)
    results = run(tried_project, "fix")
    assert started() == 0
    assert {row.version for row in results.attempts} == {99}
    found = load_project(tried_project, environ={})
    with open_project_store(found.settings, tried_project) as store:
        proof = store.load_proof(results.tasks[0].grading)
    assert proof is not None
    assert proof.version == 99


def test_what_the_machine_failed_is_begun_again_as_a_new_attempt(project):
    """A model that is gone for a while: its attempts are unscored, then tried again."""
    (project / "closer.yaml").write_text("dialogues: [{prompt: never, turns: [{say: nothing}]}]\n")
    results = run(project, "question")
    rows = [row for row in results.attempts if row.variant_name == "closer"]
    assert [(row.retry, row.exit, row.outcome) for row in rows] == [(2, "machine", "unscored")]
    assert "no dialogue matches" in (rows[0].outcome_cause or "")
    assert rows[0].parent is not None


def test_a_slot_the_machine_left_empty_is_filled_by_the_next_run(project, monkeypatch):
    async def gone(self: ScriptedModel, *asked: object) -> None:
        raise MachineFailed("The server is gone.")

    with monkeypatch.context() as patched:
        patched.setattr(ScriptedModel, "reply", gone)
        results = run(project, "question")
        assert set(outcomes(results).values()) == {"unscored"}
        assert started() == 6
    results = run(project, "question")
    assert started() == 2
    assert outcomes(results) == {("question", "closer"): "pass", ("question", "spiraller"): "fail"}
    assert {row.retry for row in results.attempts} == {3}


def test_an_agent_that_raises_fails_only_its_own_attempt(project, monkeypatch):
    async def broken(self: BuiltinAgent, assignment: object) -> Work:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(BuiltinAgent, "work", broken)
    results = run(project, "question", retries=0)
    assert {row.outcome for row in results.attempts} == {"unscored"}
    assert results.attempts[0].cause == ("the agent 'builtin' raised RuntimeError: no such luck")


def test_an_agent_that_never_stops_is_stopped(project, monkeypatch):
    async def endless(self: BuiltinAgent, assignment: object) -> Work:
        await anyio.sleep_forever()
        return Work(exit="finished", trace=Trace(reader="x", reader_version=1))

    monkeypatch.setattr(BuiltinAgent, "work", endless)
    monkeypatch.setattr(attempt_execution, "GRACE_SECONDS", 0.2)
    found = load_project(project, environ={}).settings
    limits = msgspec.structs.replace(found.limits, seconds=0.1)
    results = run(project, "question", limits=limits)
    assert {row.exit for row in results.attempts} == {"out_of_time"}
    assert {row.outcome for row in results.attempts} == {"fail"}


def test_two_variants_that_are_the_same_are_told_apart_from_none(project):
    file = project / "closeloop.toml"
    file.write_text(file.read_text().replace("spiraller.yaml", "closer.yaml"))
    with pytest.raises(BadInput, match="'closer' and 'spiraller' differ only in their names"):
        run(project)


def test_a_story_holds_all_of_an_attempt(tried_project):
    results = run(tried_project, "fix")
    found = load_project(tried_project, environ={})
    with open_project_store(found.settings, tried_project) as store:
        story = story_of(store, results.attempts[0].id[:6], project_rulebook(found.settings))
    assert story.task is not None
    assert story.task.id == "fix"
    assert story.variant is not None
    assert story.variant.name == "closer"
    assert story.change is not None
    assert [file.path for file in story.change.files] == ["calculator.py"]
    assert story.grade is not None
    assert story.grade.fail_to_pass == (1, 1)
    assert story.trace is not None
    assert [type(event).__name__ for event in story.trace.events] == [
        "Message", "Command", "Edit", "Command", "Message",
    ]  # fmt: skip
