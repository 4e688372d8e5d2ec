"""What an evaluation may use holds for all that is asked for it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from judge_scripts import judge_script

from closeloop.gateway import Gateway
from closeloop.judges.evaluator import cases_from_plan, judge_case
from closeloop.judges.judge_panel import open_judge_panel
from closeloop.records.evaluation import Evaluation, Subtask, TaskOutput
from closeloop.records.settings import JudgeSettings, ModelSettings, Settings
from closeloop.records.task import Limits

DEAR = ModelSettings(
    provider="scripted", model="judge.yaml", input_price=1_000_000, output_price=1_000_000
)
TASK = Subtask(id="add", prompt="The sum of two.")
OUTPUT = TaskOutput(task="add", text="return a + b")
ALL = Limits()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge.yaml").write_bytes(judge_script(("a [+] b", "yes", "return a + b")))
    return tmp_path


def judged(folder: Path, *models: str, samples: int = 1, limits: Limits = ALL) -> Evaluation:
    settings = Settings(
        judge=JudgeSettings(models=models, samples=samples),
        models=dict.fromkeys(models, DEAR),
        limits=limits,
    )
    (case,) = cases_from_plan("Sums.", [TASK], {"add": OUTPUT}, {})

    async def go() -> Evaluation:
        async with Gateway({}, folder) as gateway:
            return (await judge_case(open_judge_panel(settings, gateway, folder), case))[0]

    return anyio.run(go)


def test_samples_share_what_one_evaluation_may_spend(folder: Path) -> None:
    once = judged(folder, "dear").usage.cost
    assert once
    free = judged(folder, "dear", samples=5)
    assert free.usage.cost == pytest.approx(5 * once)
    held = judged(folder, "dear", samples=5, limits=Limits(money=1.5 * once))
    assert held.usage.cost == pytest.approx(2 * once)
    assert held.score is None, "too few of the samples could be had"


def test_the_members_of_a_panel_share_it_too(folder: Path) -> None:
    once = judged(folder, "dear").usage
    tokens = (once.input_tokens or 0) + (once.output_tokens or 0)
    held = judged(folder, "dear", "dearer", "dearest", limits=Limits(tokens=tokens))
    assert held.usage.input_tokens == once.input_tokens
