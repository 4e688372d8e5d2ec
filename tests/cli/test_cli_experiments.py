"""Experiments as a user types them: written down or by flags, listed, paused, paid for."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

import small_project
from closeloop.attempts.run_resources import count_working_seconds, estimate_seconds_left
from closeloop.cli import main
from closeloop.cli.run import (
    DEMO_FOLDER,
    RunProgressBar,
    attempts_to_look_at,
    confirm_cost,
    describe_duration,
    find_demo_folder,
    make_progress,
    print_forecast,
    run_variants_table,
)
from closeloop.cli.show import list_log_lines
from closeloop.demo import MARK
from closeloop.records.attempt import AttemptRow
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import (
    ExperimentForecast,
    ExperimentPlan,
    ExperimentResults,
    RunProgress,
    RunStage,
    TaskLog,
)
from closeloop.records.finding import Finding, Measurement
from closeloop.records.task import Experiment, Task, Variant

EXPERIMENT = """
[experiments.both]
tasks = ["question"]
variants = ["spiraller", "closer"]
repeats = 2
seed = 5
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = small_project.build(tmp_path, sandbox="none")
    monkeypatch.chdir(folder)
    for name in ("CLOSELOOP_STORE", "CLOSELOOP_CACHE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return folder


def closeloop(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What it prints; with another code than 0, what it says."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert left.value.code == code, printed.err
    return printed.err if code in (2, 3) else printed.out


def test_an_experiment_that_is_written_down_is_run_and_listed(project, capsys):
    file = project / "closeloop.toml"
    file.write_text(file.read_text() + EXPERIMENT)
    made = json.loads(closeloop(capsys, "run", "--experiment", "both", "--json"))
    assert [variant["name"] for variant in made["variants"]] == ["spiraller", "closer"]
    assert len(made["attempts"]) == 4
    listed = json.loads(closeloop(capsys, "list", "experiments", "--json"))["items"]
    assert [(one["experiment"]["name"], one["done"], one["total"]) for one in listed] == [
        ("both", 4, 4)
    ]
    assert listed[0]["experiment"]["seed"] == 5
    assert listed[0]["state"] == "done"
    assert "both" in closeloop(capsys, "list", "experiments")
    more = json.loads(closeloop(capsys, "run", "--experiment", "both", "--repeats", "3", "--json"))
    assert len(more["attempts"]) == 6


def test_agents_models_and_prompts_make_the_product(project, capsys):
    for name in ("short.md", "long.md"):
        (project / name).write_text(f"You are {name}.\n")
    flags = ["--agent", "builtin", "--model", "scripted:closer.yaml"]
    flags += ["--model", "scripted:spiraller.yaml", "--prompt", "short.md", "--prompt", "long.md"]
    made = json.loads(closeloop(capsys, "run", "question", *flags, "--json"))
    assert len({variant["digest"] for variant in made["variants"]}) == 4
    assert {variant["name"] for variant in made["variants"]} == {
        f"builtin:scripted:{model}.yaml {prompt}.md"
        for model in ("closer", "spiraller")
        for prompt in ("short", "long")
    }


def test_a_run_that_is_held_back_ends_with_1_and_goes_on_when_it_may(project, capsys):
    file = project / "closeloop.toml"
    prices = "input_price = 1_000_000\noutput_price = 1_000_000\n"
    model = f'[models.dear]\nprovider = "scripted"\nmodel = "closer.yaml"\n{prices}'
    file.write_text(file.read_text() + model)
    dear = ["run", "question", "--model", "dear", "--repeats", "3", "--set", "run.jobs=1", "--json"]
    held = json.loads(closeloop(capsys, *dear, "--set", "run.budget=0.5", code=1))
    assert len(held["attempts"]) == 1
    name = held["experiment"]
    assert "spent" in closeloop(capsys, "list", "experiments")
    closeloop(capsys, "admin", "pause", name)
    assert "paused" in closeloop(capsys, "list", "experiments")
    assert len(json.loads(closeloop(capsys, *dear, code=1))["attempts"]) == 1
    closeloop(capsys, "admin", "resume", name)
    assert len(json.loads(closeloop(capsys, *dear))["attempts"]) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--experiment", "bth"], "No experiment named 'bth'. Did you mean 'both'?"),
        (["run", "--set", "run.jobs"], "--set needs KEY=VALUE"),
        (["run", "--set", "run.budget=0"], "'run.budget' must be more than 0"),
        (["run", "--set", "run.job=2"], "job"),
        (["run", "--prompt", "none.md"], "none.md cannot be read"),
        (["admin", "pause"], "EXPERIMENT is missing"),
        (["admin", "resume", "abc"], "There is no store at "),
        (["show", "abc", "--branch"], "There is no store at "),
    ],
)
def test_what_makes_no_sense_is_told(project, capsys, arguments, sentence):
    file = project / "closeloop.toml"
    file.write_text(file.read_text() + EXPERIMENT)
    assert sentence in closeloop(capsys, *arguments, code=2)


def test_a_model_that_costs_money_is_not_asked_unasked(project, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    said = closeloop(capsys, "run", "question", "--model", "openai/gpt-5", code=2)
    assert "This calls openai/gpt-5, which costs money: add --yes to confirm." in said
    assert json.loads(closeloop(capsys, "list", "attempts", "--json")) == {"items": [], "total": 0}


AHEAD = ExperimentForecast(
    attempts=2,
    missing=2,
    tasks=1,
    repeats=1,
    effect=None,
    effect_here=None,
    seconds=None,
    cost=None,
    paid=("m",),
)


@pytest.mark.parametrize(
    ("attempts", "seconds", "said"),
    [
        (1, None, "1 of 1 attempt to run"),
        (2, 0.2, "2 of 2 attempts to run"),
        (2, 40.0, "2 of 2 attempts to run · time about 40 s"),
    ],
)
def test_a_forecast_leaves_out_a_time_that_is_unknown_or_short(capsys, attempts, seconds, said):
    forecast = replace(AHEAD, attempts=attempts, missing=attempts, seconds=seconds, cost=0.0)
    print_forecast(forecast, is_comparison=False)
    assert capsys.readouterr().err == f"closeloop: {said}\n"


def test_totals_count_claims_without_a_check_and_the_list_says_how_many_more():
    rows = tuple(
        AttemptRow(
            id=f"a{n}", origin="experiment", task=f"t{n}", variant="v", exit="finished",
            outcome="fail",
        )
        for n in range(8)
    )  # fmt: skip
    claim = Finding(rule="unverified-claim", version=1, severity="warning", message="…")
    results = ExperimentResults(
        experiment="e",
        tasks=(),
        variants=(Variant(name="v", agent="x", digest="v"),),
        attempts=rows,
        measurements={"a0": Measurement(rules="", findings=(claim,))},
        insights=(),
        skipped={},
        sandbox="none",
    )
    names, counts = (list(column.cells) for column in run_variants_table(results).columns)
    totals = dict(zip(names, counts, strict=True))
    assert totals["claimed success without a check"] == "1"
    assert totals["made a false claim"] == "0"
    lines = [str(line) for line in attempts_to_look_at(results)]
    assert len(lines) == 7
    assert lines[-1].startswith("… and 2 more")


def test_the_demo_is_not_built_inside_the_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_demo_folder(DEMO_FOLDER) == tmp_path / DEMO_FOLDER
    (tmp_path / "closeloop-demo/project").mkdir(parents=True)
    (tmp_path / "closeloop-demo" / MARK).touch()
    for inside in ("closeloop-demo", "closeloop-demo/project"):
        monkeypatch.chdir(tmp_path / inside)
        assert find_demo_folder(DEMO_FOLDER) == tmp_path / "closeloop-demo"
        assert find_demo_folder(Path("new")) == tmp_path / inside / "new"


def test_a_long_request_is_cut_at_a_word_with_an_ellipsis():
    log = TaskLog(attempt="a", origin="production", task=None, description="word " * 80)
    lines = dict(list_log_lines(log, full=False))
    assert lines["request"].endswith("word…")
    assert len(lines["request"]) <= 200
    assert dict(list_log_lines(log, full=True))["request"] == ("word " * 80).strip()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "goes"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False)]
)
def test_a_person_is_asked_before_money_is_spent(monkeypatch, typed, goes):
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr", Terminal())
    if goes:
        confirm_cost(AHEAD, yes=False)
    else:
        with pytest.raises(BadInput, match="Nothing was run"):
            confirm_cost(AHEAD, yes=False)


def test_nobody_is_asked_about_nothing(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    confirm_cost(AHEAD, yes=True)


def test_durations_are_told_as_people_say_them():
    assert [describe_duration(s) for s in (4, 99, 720, 12600)] == ["4 s", "99 s", "12 min", "3.5 h"]


def test_the_time_left_follows_the_wall_time_of_finished_attempts():
    """Two at once, each pair for 30 s: ten attempts take 150 s."""
    variant = Variant(name="careful", digest="v", agent="builtin")
    task = Task(id="t", digest="d", prompt="Do it.")
    experiment = Experiment(id="e", tasks=("d",), variants=("v",), repeats=10)
    now = 0.0
    bar = RunProgressBar(
        ExperimentPlan(experiment=experiment, tasks=(task,), variants=(variant,)), None, lambda: now
    )

    def record(stage: RunStage, number: int) -> None:
        row = AttemptRow(id=f"a{number}", origin="experiment", exit="finished", seconds=0.01)
        bar.record_step(
            RunProgress(stage=stage, task="t", variant="careful", number=number, row=row)
        )

    shown = [bar.describe_time_left()]
    for first in range(1, 11, 2):
        record("started", first)
        record("started", first + 1)
        now += 30
        record("settled", first)
        shown.append(bar.describe_time_left())
        record("settled", first + 1)
        shown.append(bar.describe_time_left())
    assert shown[:3] == ["", "", "about 2 min left"]
    assert shown[4] == "about 90 s left"
    assert shown[8] == "about 30 s left"
    assert shown[10] == ""


def test_in_a_log_progress_is_a_line_every_few_seconds_and_one_for_each_wait():
    variant = Variant(name="careful", digest="v", agent="builtin")
    task = Task(id="t", digest="d", prompt="Do it.")
    experiment = Experiment(id="e", tasks=("d",), variants=("v",), repeats=3)
    now, lines = 0.0, list[str]()
    bar = RunProgressBar(
        ExperimentPlan(experiment=experiment, tasks=(task,), variants=(variant,)),
        None,
        lambda: now,
        lines.append,
    )
    bar.record_step(RunProgress(stage="prepared", task="t"))
    now += 60
    bar.record_step(RunProgress(stage="started", task="t", variant="careful", number=1))
    bar.record_step(RunProgress(stage="started", task="t", variant="careful", number=2))
    for suite_count in (2, 1, 0, 3, 0):  # the second wait of a minute is not printed
        bar.note_waiting(suite_count)
    now += 60
    row = AttemptRow(id="a1", origin="experiment", exit="finished", seconds=60.0, outcome="pass")
    bar.record_step(RunProgress(stage="settled", task="t", variant="careful", number=1, row=row))
    assert lines == [
        "running, 0 of 3 attempts finished · 1 running",
        "waiting for a processor: 2 other test suites run on this machine",
        "a processor is free: the tests start",
        "running, 1 of 3 attempts finished · 1 running · 1 passed · longest: t by careful, 60 s",
    ]


@pytest.mark.parametrize("width", [80, 110])
def test_a_narrow_terminal_truncates_only_the_counts(width):
    variant = Variant(name="careful", digest="v", agent="builtin")
    task = Task(id="late-fee", digest="d", prompt="Do it.")
    experiment = Experiment(id="e", tasks=("d",), variants=("v",), repeats=3)
    plan = ExperimentPlan(experiment=experiment, tasks=(task,), variants=(variant,))
    now = 0.0
    output = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    line = make_progress(output)
    bar = RunProgressBar(plan, line, lambda: now)
    bar.record_step(RunProgress(stage="prepared", task="late-fee"))
    bar.record_step(RunProgress(stage="started", task="late-fee", variant="careful", number=1))
    bar.note_waiting(1)
    assert "longest" not in bar.describe_counts()
    now += 180
    assert "longest: late-fee by careful, 3 min" in bar.describe_counts()
    with output.capture() as printed:
        output.print(line.get_renderable())
    (shown,) = printed.get().splitlines()
    assert re.match(r"running .*0/3 1 running · longest: late-fee.*… .*0:00:00", shown)


def test_a_pause_does_not_count_in_the_pace():
    """Two at once for 30 s, again 60 s later while they were graded, and once more the next day."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [
        AttemptRow(
            id=f"a{place}",
            origin="experiment",
            exit="finished",
            seconds=30.0,
            started=start + timedelta(seconds=seconds),
        )
        for place, seconds in enumerate((0, 0, 90, 90, 86400))
    ]
    assert count_working_seconds(rows) == 120 + 30
    assert count_working_seconds([]) == 0
    assert estimate_seconds_left(150, 5, 10) == 300
    assert estimate_seconds_left(150, 5, 21) is None
    assert estimate_seconds_left(30, 1, 1) is None
