"""Experiments that are held back, paid for, run again in part, and left unfinished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

import small_project
from closeloop import flow
from closeloop.agents.builtin import BuiltinAgent
from closeloop.attempts.attempt_saving import branch_stored_attempt
from closeloop.attempts.experiment_run import open_run_context, plan_experiment
from closeloop.attempts.run_resources import (
    is_paid_model,
    list_experiment_statuses,
    open_workspaces,
    read_experiment_status,
)
from closeloop.cli.config import load_project
from closeloop.metrics.attempt_measuring import load_story, project_rulebook
from closeloop.providers.scripted_model import ScriptedModel
from closeloop.records.attempt import Outcome
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.experiment_plan import (
    ExperimentForecast,
    ExperimentPlan,
    ExperimentResults,
    RunMode,
    RunProgress,
)
from closeloop.records.protocols import Assignment, Recording, Work
from closeloop.records.settings import ExperimentSettings, ModelSettings, Settings
from closeloop.records.trace import ModelReply, Trace
from closeloop.store import Store
from closeloop.store.store import open_project_store
from closeloop.tasks.task_files import select_tasks

pytestmark = pytest.mark.usefixtures("warm_path")

PRICED = """
[models.dear]
provider = "scripted"
model = "closer.yaml"
input_price = 1_000_000
output_price = 1_000_000
[variants.dear]
model = "dear"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return small_project.build(tmp_path, sandbox="none")


class Ran(msgspec.Struct):
    results: ExperimentResults
    told: list[RunProgress]
    ahead: ExperimentForecast

    @property
    def started(self) -> list[tuple[str, str | None, int | None]]:
        return [(one.task, one.variant, one.number) for one in self.told if one.stage == "started"]


def run(
    project: Path,
    *tasks: str,
    variants: tuple[str, ...] = ("closer", "spiraller"),
    mode: RunMode = "fill",
    jobs: int = 1,
    listen: Callable[[RunProgress, Store], None] = lambda told, store: None,
    **wanted: object,
) -> Ran:
    settings = load_project(project, environ={}).settings
    told: list[RunProgress] = []

    ahead: list[ExperimentForecast] = []

    @contextmanager
    def start(
        plan: ExperimentPlan, forecast: ExperimentForecast, store: Store
    ) -> Iterator[Callable[[RunProgress], None]]:
        def tell(progress: RunProgress) -> None:
            told.append(progress)
            listen(progress, store)

        ahead.append(forecast)
        yield tell

    request = flow.ExperimentRequest(
        settings=settings,
        root=project,
        environ={},
        tasks=tuple(select_tasks(settings, project, tasks or ["question"])),
        variants=variants,
        wanted=ExperimentSettings(jobs=jobs, **wanted),
        mode=mode,
    )
    return Ran(anyio.run(flow.run_experiment, request, start), told, ahead[0])


def opened(project: Path) -> tuple[Settings, Store]:
    settings = load_project(project, environ={}).settings
    return settings, open_project_store(settings, project)


def held(ran: Ran) -> list[str]:
    return [one.why or "" for one in ran.told if one.stage == "held"]


def test_a_paused_experiment_begins_nothing_until_it_is_resumed(project):
    def pause(told: RunProgress, store: Store) -> None:
        if told.stage == "prepared":
            store.experiments.set_paused(store.list_experiments()[0].id, paused=True)

    ran = run(project, repeats=3, listen=pause)
    assert ran.started == []
    assert len(held(ran)) == 6
    assert f"closeloop admin resume {ran.results.experiment}" in held(ran)[0]
    _, store = opened(project)
    with store:
        assert [course.state for course in list_experiment_statuses(store)] == ["paused"]
        store.experiments.set_paused(ran.results.experiment, paused=False)
    assert len(run(project, repeats=3).started) == 6


@pytest.mark.parametrize("other", ["memory:learning", "plan/000000000003/0/0", "", "a/b/c/d/e"])
def test_other_work_in_hand_is_no_attempt_of_an_experiment(project, other):
    run(project)
    _, store = opened(project)
    with store:
        assert store.claim_job(other, "somebody", 60, lambda owner: False)
        assert [course.running for course in list_experiment_statuses(store)] == [0]


def test_a_budget_that_is_spent_stops_new_attempts_and_a_larger_one_goes_on(project):
    file = project / "closeloop.toml"
    file.write_text(file.read_text() + PRICED)
    first = run(project, variants=("dear",), repeats=4, budget=1.0)
    assert len(first.started) == 1
    assert len(held(first)) == 3
    assert "of the budget of $1.00 are spent" in held(first)[0]
    _, store = opened(project)
    with store:
        course = list_experiment_statuses(store)[0]
    assert (course.state, course.done, course.total) == ("spent", 1, 4)
    assert course.cost == first.results.attempts[0].cost
    second = run(project, variants=("dear",), repeats=4, budget=1e9)
    assert len(second.started) == 3
    assert len(second.results.attempts) == 4


def test_an_experiment_costs_what_was_made_for_it_and_not_what_it_shares(project):
    file = project / "closeloop.toml"
    file.write_text(file.read_text() + PRICED)
    (shared,) = run(project, variants=("dear",), repeats=1).results.attempts
    made = run(project, variants=("dear",), repeats=2).results.attempts
    assert shared.id in {one.id for one in made}
    _, store = opened(project)
    with store:
        larger, smaller = list_experiment_statuses(store)
        later = read_experiment_status(store, replace(larger.experiment, id="later"), ())
    (own,) = (one.cost for one in made if one.id != shared.id)
    assert (smaller.cost, smaller.shared_cost) == (shared.cost, None)
    assert (larger.cost, larger.shared_cost) == (own, shared.cost)
    assert (later.cost, later.shared_cost) == (0, own + shared.cost)


def test_a_budget_needs_prices(project):
    file = project / "closeloop.toml"
    file.write_text(file.read_text() + '[variants.far]\nmodel = "openai/unheard-of"\n')
    settings = load_project(project, environ={}).settings

    async def go() -> None:
        environ = {"OPENAI_API_KEY": "x"}
        async with open_run_context(settings, project, ["far"], environ) as workshop:
            plan_experiment(
                workshop, select_tasks(settings, project, ()), ExperimentSettings(budget=1)
            )

    with pytest.raises(BadInput, match="The budget needs the price of 'openai/unheard-of'"):
        anyio.run(go)


def test_only_what_could_not_be_scored_is_made_again(project, monkeypatch):
    async def gone(self: ScriptedModel, *asked: object) -> None:
        raise MachineFailed("The server is gone.")

    run(project, variants=("closer",))
    with monkeypatch.context() as patched:
        patched.setattr(ScriptedModel, "reply", gone)
        lost = run(project, variants=("spiraller",))
    assert [row.outcome for row in lost.results.attempts] == ["unscored"]
    again = run(project, repeats=2, mode="unscored")
    assert {(task, variant) for task, variant, _ in again.started} == {("question", "spiraller")}
    assert len(again.started) == 1
    outcomes = {row.variant_name: row.outcome for row in again.results.attempts}
    assert outcomes == {"closer": "pass", "spiraller": "fail"}


def test_a_key_that_is_refused_holds_its_variant_back_and_the_others_go_on(project, monkeypatch):
    honest = ScriptedModel.reply

    async def refused(self: ScriptedModel, *asked: Any) -> ModelReply:
        if self.name == "closer":
            raise BadInput("The key in X was refused: check it.")
        return await honest(self, *asked)

    with monkeypatch.context() as patched:
        patched.setattr(ScriptedModel, "reply", refused)
        ran = run(project, repeats=3)
    told = Counter((row.variant_name, row.exit) for row in ran.results.attempts)
    assert told == {("closer", "machine"): 1, ("spiraller", "finished"): 3}
    assert len(ran.started) == 4
    assert held(ran) == ["they would fail like another one: The key in X was refused: check it"] * 2
    assert {row.exit for row in run(project, repeats=3).results.attempts} == {"finished"}


def test_regrading_runs_nothing_and_grades_everything(project):
    first = run(project).results.attempts
    _, store = opened(project)
    with store:
        for row in first:
            grade = store.load_grade(row.id)
            assert grade is not None
            wrong = Outcome(result="fail", reasons=("the grader was mistaken",))
            store.save_grade(msgspec.structs.replace(grade, outcome=wrong))
    assert {row.outcome for row in run(project).results.attempts} == {"fail"}
    ran = run(project, repeats=2, mode="grades")
    assert ran.started == []
    assert len(ran.results.attempts) == 2
    outcomes = {row.variant_name: row.outcome for row in ran.results.attempts}
    assert outcomes == {"closer": "pass", "spiraller": "fail"}
    assert {row.id for row in ran.results.attempts} == {row.id for row in first}


def test_attempts_are_begun_in_the_order_that_the_seed_gives(project):
    orders = []
    for seed in (1, 1, 2):
        orders.append(run(project, seed=seed, repeats=4).started)
        (project / ".closeloop" / "closeloop.db").unlink()
    assert orders[0] == orders[1] != orders[2]
    assert [number for _, _, number in orders[0]] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_what_is_to_come_is_told_from_what_was(project):
    first = run(project, repeats=3).ahead
    assert (first.attempts, first.missing, first.seconds, first.paid) == (6, 6, None, ())
    assert first.effect is None
    second = run(project, "question", "fix", "triple", repeats=6, mode="grades").ahead
    assert (second.attempts, second.missing) == (36, 0)
    third = run(project, repeats=4).ahead
    assert (third.attempts, third.missing) == (8, 2)
    assert third.seconds is not None
    assert 0 < third.seconds < 60
    assert second.effect == pytest.approx(0.80, abs=0.01)


@pytest.mark.parametrize(
    ("model", "paid"),
    [
        (ModelSettings(provider="openai", model="gpt-5"), True),
        (ModelSettings(provider="anthropic", model="unheard-of"), True),
        (ModelSettings(provider="gemini", model="gemini-3-pro"), True),
        (ModelSettings(provider="recorded", model="a1"), False),
        (ModelSettings(provider="openai", model="x", base_url="http://localhost:1/v1"), False),
        (ModelSettings(provider="openai", model="gpt-5", base_url="http://127.0.0.1/v1"), False),
        (ModelSettings(provider="openai", model="x", base_url="https://llm.corp/v1"), False),
        (
            ModelSettings(
                provider="openai",
                model="x",
                base_url="https://llm.corp",
                input_price=1,
                output_price=2,
            ),
            True,
        ),
        (ModelSettings(provider="scripted", model="x.yaml", input_price=1, output_price=1), False),
    ],
)
def test_money_is_involved_where_somebody_sends_a_bill(model, paid):
    assert is_paid_model(model) is paid


@pytest.mark.parametrize(
    ("shown", "what"),
    [
        (".", "the tasks"),
        (".closeloop", "other attempts"),
        (".closeloop/attempts", "unsaved attempts"),
        ("tasks", "the tasks"),
    ],
)
def test_agents_cannot_be_shown_what_they_are_graded_by(project, shown, what):
    (project / ".closeloop").mkdir(exist_ok=True)
    settings = load_project(project, environ={}).settings
    sandbox = msgspec.structs.replace(settings.sandbox, read=(str(project / shown),))
    with pytest.raises(BadInput, match=f"where agents would find {what}"):
        open_workspaces(msgspec.structs.replace(settings, sandbox=sandbox), project)


def test_unfinished_work_is_kept_on_a_branch(project, monkeypatch):
    async def half(self: BuiltinAgent, assignment: Assignment) -> Work:
        await assignment.sandbox.write("calculator.py", b"half\n")
        return Work(exit="out_of_time", trace=Trace(reader="x", reader_version=1))

    monkeypatch.setattr(BuiltinAgent, "work", half)
    ran = run(project, "fix", variants=("closer",))
    row = ran.results.attempts[0]
    _, store = opened(project)
    with store:
        assert store.load_attempt(row.id).branch == f"closeloop/fix/{row.id}"
    assert small_project.git(project, "show", f"closeloop/fix/{row.id}:calculator.py") == "half\n"
    assert small_project.git(project, "status", "-s", "-uno") == ""


def test_a_branch_can_be_had_of_any_attempt_that_changed_something(project):
    ran = run(project, "fix", "question", variants=("closer",))
    by_task = {row.task: row.id for row in ran.results.attempts}
    assert "closeloop/" not in small_project.git(project, "branch")
    _, store = opened(project)
    with store:
        made = branch_stored_attempt(store, by_task["fix"][:8])
        with pytest.raises(BadInput, match="has no change"):
            branch_stored_attempt(store, by_task["question"] or "")
    assert "a + b" in small_project.git(project, "show", f"{made.name}:calculator.py")


def test_what_the_agent_lacked_is_kept_and_shown(project):
    script = project / "closer.yaml"
    script.write_text(
        script.read_text().replace(
            "[{say: It is 42.}]", "[{say: It is 42.}, {say: 'A key sk-ant-api03-' }]"
        )
    )
    ran = run(project, variants=("closer",), feedback=True)
    settings, store = opened(project)
    with store:
        told = load_story(store, ran.results.attempts[0].id, project_rulebook(settings))
        assert store.experiments.list_insights(repo=None) == list(told.insights)
    assert ran.results.insights == told.insights
    assert [(one.type, one.text) for one in told.insights] == [
        ("agent_self_feedback", "A key sk-ant-api03-")
    ]
    assert told.attempt.summary == "It is 42."


RECORDED = (
    b'{"type":"system","subtype":"init","session_id":"s","cwd":"/w","tools":[],"model":"m"}\n'
    b'{"type":"assistant","session_id":"s","message":{"id":"1","role":"assistant","model":"m",'
    b'"content":[{"type":"text","text":"Recorded."}],"usage":{"input_tokens":1,"output_tokens":1}}}\n'
    b'{"type":"result","subtype":"success","session_id":"s","is_error":false,"result":"Recorded.",'
    b'"num_turns":1,"duration_ms":5,"total_cost_usd":0.1}\n'
)


@pytest.mark.parametrize(
    ("recordings", "said"),
    [
        ((Recording(path="out.jsonl", content=RECORDED),), "Recorded."),
        ((Recording(path="../../evil.jsonl", content=RECORDED),), "Asked."),
        ((Recording(path="x", content=b"\0garbage{[" * 1000),), "Asked."),
        ((), "Asked."),
    ],
)
def test_a_trace_is_read_from_the_agents_files_or_else_from_its_requests(
    project, monkeypatch, recordings, said
):
    from closeloop.records.trace import ChatMessage, ModelRequest

    async def silent(self: BuiltinAgent, assignment: Assignment) -> Work:
        assert assignment.model is not None
        messages = (ChatMessage(role="user", text="answer"),)
        await assignment.model.reply(ModelRequest(messages=messages))
        empty = Trace(reader="x", reader_version=1)
        return Work(exit="finished", trace=empty, recordings=recordings)

    script = project / "closer.yaml"
    script.write_text(script.read_text().replace("It is 42.", "Asked."))
    monkeypatch.setattr(BuiltinAgent, "work", silent)
    ran = run(project, variants=("closer",))
    row = ran.results.attempts[0]
    _, store = opened(project)
    with store:
        trace = store.load_trace(row.id)
        assert len(list(store.load_exchanges(row.id))) == 1
    assert trace is not None
    assert said in [getattr(event, "text", None) for event in trace.events]
    assert row.input_tokens is not None
