"""What judges and people said is kept as it was, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from closeloop.records.attempt import Attempt, Usage
from closeloop.records.evaluation import (
    Calibration,
    CriterionScore,
    Evaluation,
    EvaluationIssue,
    Evaluations,
    HumanLabel,
    JudgeVersion,
)
from closeloop.records.experiment_plan import AttemptResult
from closeloop.store import Store, open_store

JUDGE = JudgeVersion(
    id="j1",
    judge="checks 1",
    rubric="code-change",
    rubric_digest="r",
    prompt="p",
    model="m",
    temperature=0.1,
)
NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        opened.save_attempt(
            AttemptResult(attempt=Attempt(id="abc123", origin="production", exit="finished"))
        )
        yield opened


def evaluation(name: str, **fields: object) -> Evaluation:
    known = {
        "task": "t\0\ud800",
        "judge": "j1",
        "criteria": (CriterionScore(name="quality", score=0.5),),
        "score": 0.75,
        "passed": True,
        "issues": (EvaluationIssue(check="c", criterion="quality", text="x"),),
        "usage": Usage(input_tokens=3, cost=0.1, cost_from="reported"),
        "at": NOW,
    }
    return Evaluation(id=name, **{**known, **fields})  # type: ignore[arg-type]


def made(*each: Evaluation) -> Evaluations:
    return Evaluations(judges=(JUDGE,), evaluations=each, passed=True, summary="")


def test_evaluations_come_back_newest_first_and_saving_twice_does_nothing(store: Store) -> None:
    first = evaluation("e1", attempt="abc123", task="t")
    second = evaluation("e2", attempt="abc123", task="t", passed=None, score=None)
    for _ in range(2):
        store.judged.save_evaluations(made(first, second))
    assert store.judged.list_evaluations(attempt="abc") == [second, first]
    assert store.judged.list_evaluations(judge="j1") == [second, first]
    assert store.judged.list_evaluations(judge="other") == []
    assert store.judged.newest_verdicts("j1") == [("abc123", second)]
    assert store.judged.list_judge_versions() == [JUDGE]


def test_odd_text_does_no_harm(store: Store) -> None:
    store.judged.save_evaluations(made(evaluation("e1")))
    (kept,) = store.judged.list_evaluations()
    assert kept.score == 0.75
    store.judged.save_labels([HumanLabel(item="a\0b", rubric="r", label="pass")])
    assert [label.item for label in store.judged.list_labels("r")] == ["a�b"]


def test_two_hundred_evaluations_are_one_transaction(store: Store) -> None:
    store.judged.save_evaluations(
        made(*(evaluation(f"e{number}", task="t") for number in range(200)))
    )
    assert len(store.judged.list_evaluations()) == 200


def test_of_one_person_and_item_the_newest_label_counts(store: Store) -> None:
    first = HumanLabel(item="i", rubric="r", label="pass", person="ann", at=NOW)
    again = HumanLabel(item="i", rubric="r", label="fail", person="ann", at=NOW)
    other = HumanLabel(item="i", rubric="r", label="pass", person="bob")
    golden = HumanLabel(item="i", rubric="r", label="pass", person="ann", golden=True)
    store.judged.save_labels([first, other, golden])
    store.judged.save_labels([again])
    assert store.judged.list_labels("r") == [other, golden, again]
    assert store.judged.list_labels("another") == []


def test_the_newest_calibration_counts(store: Store) -> None:
    assert store.judged.load_calibration("j1") is None
    for items in (30, 40):
        store.judged.save_calibration(Calibration(judge=JUDGE, at=NOW, items=items, doubled=0.2))
    assert store.judged.load_calibration("j1").items == 40  # type: ignore[union-attr]
