"""Several askings, several judges, and which judge it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest
from judging_models import CODE, GOOD, TASK, Asked, all_of, bench, fair
from msgspec.structs import replace

from closeloop.judges.evaluator import evaluate_outputs
from closeloop.judges.judge_panel import build_judge_version
from closeloop.records.evaluation import Evaluation, Evaluations, TaskOutput
from closeloop.records.trace import ModelRequest

REQUEST = "A small calculator."


def run(
    model: Asked | Sequence[Asked], outputs: Sequence[TaskOutput], samples: int = 1
) -> Evaluations:
    models = [model] if isinstance(model, Asked) else model
    by_task: Mapping[str, TaskOutput] = {one.task: one for one in outputs}
    return anyio.run(
        evaluate_outputs, bench(*models, samples=samples), REQUEST, [TASK], by_task, {}
    )


def one(model: Asked, output: TaskOutput) -> Evaluation:
    return run(model, [output]).evaluations[0]


def wavering() -> Asked:
    count = 0

    def judge(request: ModelRequest) -> Any:
        nonlocal count
        count += 1
        word = "partly" if count % 2 else "yes"
        return all_of("yes", "return a + b", request, correct=word)

    return Asked(judge)


def test_samples_give_a_mean_and_a_spread() -> None:
    made = run(wavering(), [GOOD], samples=4).evaluations[0]
    scores = [sample.score for sample in made.samples]
    assert scores[0] == scores[2] == pytest.approx(11 / 12)
    assert made.score == pytest.approx(23 / 24)
    assert made.spread == pytest.approx(0.0481, abs=1e-4)
    assert made.usage.input_tokens == 800  # as often again without the agent's words


def test_samples_that_mostly_cannot_be_read_abstain() -> None:
    answers = iter(["…", "…", None, "…", "…"])

    def judge(request: ModelRequest) -> Any:
        return next(answers) or fair(request)

    made = run(Asked(judge), [GOOD], samples=3).evaluations[0]
    assert (made.passed, made.score) == (None, None)
    assert made.abstained == "no majority: 1 pass, 2 abstain"


def harsh(request: ModelRequest) -> Any:
    return all_of("no", "return a + b", request)


def test_a_panel_votes_and_its_scores_are_not_averaged() -> None:
    panel = [Asked(fair, "one"), Asked(harsh, "two"), Asked(fair, "three")]
    made = run(panel, [GOOD])
    (voted,) = made.evaluations
    assert (voted.passed, voted.score) == (True, None)
    assert [vote.passed for vote in voted.samples] == [True, False, True]
    assert len({vote.judge for vote in voted.samples}) == 3
    assert made.judges[0].judge == "panel of 3"
    assert set(made.judges[0].members) == {vote.judge for vote in voted.samples}


def test_a_panel_without_a_majority_abstains() -> None:
    made = run([Asked(fair, "one"), Asked(harsh, "two")], [GOOD]).evaluations[0]
    assert made.abstained == "no majority: 1 pass, 1 fail"


# Versions


def test_a_version_changes_with_rubric_model_and_parameters_alone() -> None:
    opened = bench(Asked(fair)).judges[0]
    first = build_judge_version(opened, CODE)
    assert first == build_judge_version(bench(Asked(fair)).judges[0], CODE)
    others = [
        build_judge_version(opened, replace(CODE, pass_at=0.8)),
        build_judge_version(replace(opened, temperature=0.2), CODE),
        build_judge_version(replace(opened, model="other"), CODE),
        build_judge_version(replace(opened, model_digest="other"), CODE),
    ]
    assert len({first.id, *(one.id for one in others)}) == 5


@pytest.mark.parametrize(
    ("judge", "author", "same"),
    [
        ("anthropic/claude-opus-5", "claude-haiku-4-5", True),
        ("openai/gpt-5", "openai/o3", True),
        ("gemini/gemini-3-pro", "claude-sonnet-5", False),
        ("mine", "claude-sonnet-5", None),
        ("mine", "mine", True),
        ("gpt-5", None, None),
    ],
)
def test_a_judge_of_the_family_that_made_the_work_is_marked(
    judge: str, author: str | None, same: bool | None
) -> None:
    output = TaskOutput(task="add", text="return a + b", author=author)
    assert one(Asked(fair, judge), output).same_family is same
