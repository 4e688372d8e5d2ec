"""A judge is trusted as far as people's labels show, and no further."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_scripts import judge_script
from msgspec.structs import replace

from closeloop.cli import main
from closeloop.judges.judge_calibration import (
    Verdicts,
    calibrate_judge,
    doubled_share,
    find_consensus,
    golden_label_rates,
    list_blocking_reasons,
    measure_drift,
    read_label_sheet,
    retest_spread,
    verdicts_from_evaluations,
)
from closeloop.records.attempt import Attempt
from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import (
    Calibration,
    CriterionScore,
    Evaluation,
    Evaluations,
    HumanLabel,
    JudgeSample,
    JudgeVersion,
)
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.task import Task
from closeloop.store import open_store

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JUDGE = JudgeVersion(
    id="a",
    judge="checks 1",
    rubric="code-change",
    rubric_digest="r",
    prompt="p",
    model="m",
    temperature=0.1,
)


def label(item: str, word: Any, person: str = "ann", **more: Any) -> HumanLabel:
    return HumanLabel(item=item, rubric="code-change", label=word, person=person, **more)


def made(cells: dict[tuple[str, str], int]) -> Calibration:
    """From counts of (judge, person)."""
    labels, verdicts = [], {}
    for (judge, person), count in cells.items():
        for number in range(count):
            item = f"{judge}-{person}-{number}"
            labels += [label(item, person), label(item, person, "bob")]
            verdicts[item, "overall"] = judge
    return calibrate_judge(JUDGE, labels, verdicts, NOW)  # type: ignore[arg-type]


def cells(both: int, judge_only: int, person_only: int, neither: int) -> dict[Any, int]:
    return {
        ("pass", "pass"): both,
        ("pass", "fail"): judge_only,
        ("fail", "pass"): person_only,
        ("fail", "fail"): neither,
    }


def test_kappa_alone_misleads_where_nearly_all_pass() -> None:
    (trust,) = made(cells(91, 4, 4, 1)).trust
    assert trust.agreement.agreeing.value == 0.92
    assert trust.agreement.kappa is not None
    assert round(trust.agreement.kappa.value, 2) == 0.16
    assert round(trust.agreement.ac1.value, 2) == 0.91
    assert not trust.may_block
    assert "specificity" in (trust.why_not or "")


def test_a_judge_that_agrees_on_both_classes_may_block() -> None:
    (trust,) = made(cells(45, 3, 3, 29)).trust
    assert trust.may_block
    assert trust.why_not is None


def test_too_few_labels_or_too_little_agreement_only_advise() -> None:
    assert "at least 30 are needed" in (made(cells(10, 0, 0, 10)).trust[0].why_not or "")
    assert "AC1" in (made(cells(25, 15, 15, 25)).trust[0].why_not or "")
    one_class = made(cells(60, 0, 0, 0)).trust[0]
    assert "specificity" in (one_class.why_not or "")


def test_the_rate_is_corrected_by_what_people_say_and_refused_for_a_coin() -> None:
    good = made(cells(45, 5, 5, 45)).trust[0]
    assert (good.passed, good.judged) == (50, 100)
    assert good.corrected.estimate is not None
    assert good.corrected.estimate.value == pytest.approx(0.5)
    assert good.powered is None  # nothing was judged that nobody labelled
    coin = made(cells(25, 25, 25, 25)).trust[0]
    assert coin.corrected.estimate is None
    assert "improve the judge" in (coin.corrected.refusal or "")


def test_two_methods_correct_the_rate_where_more_is_judged_than_labelled() -> None:
    labels = [label(f"i{number}", "pass" if number < 50 else "fail") for number in range(100)]
    verdicts: Verdicts = {}
    for number in range(1100):
        # Of the labelled items it is wrong on every tenth; it passes 60 % of the rest.
        says = (number < 50) != (number % 10 == 0) if number < 100 else number % 5 < 3
        verdicts[f"i{number}", "overall"] = "pass" if says else "fail"
    (trust,) = calibrate_judge(JUDGE, labels, verdicts, NOW).trust
    assert trust.corrected.estimate is not None
    assert trust.powered is not None
    assert trust.powered.estimate is not None
    assert trust.corrected.estimate.value == pytest.approx((650 / 1100 + 0.9 - 1) / 0.8)
    assert trust.powered.estimate.value == pytest.approx(0.6, abs=0.03)
    assert trust.powered.estimate.low < 0.6 < trust.powered.estimate.high


def test_criteria_are_held_against_labels_of_their_own() -> None:
    labels = [label("i", "pass"), label("i", "fail", asked="quality")]
    verdicts: Any = {("i", "overall"): "pass", ("i", "quality"): "pass"}
    found = calibrate_judge(JUDGE, labels, verdicts, NOW)
    assert {one.asked: one.agreement.agreeing.value for one in found.trust} == {
        "overall": 1.0,
        "quality": 0.0,
    }


def test_what_is_known_wins_over_what_people_say_and_ties_say_nothing() -> None:
    labels = [
        *(label("gold", "fail", name) for name in ("ann", "bob", "eve")),
        label("gold", "pass", "x", golden=True),
        label("tie", "pass", "ann"),
        label("tie", "fail", "bob"),
    ]
    assert find_consensus(labels) == {("gold", "overall"): "pass"}


def test_golden_items_measure_the_people() -> None:
    labels = [label(str(n), "pass", "key", golden=True) for n in range(4)]
    labels += [label(str(n), "pass" if n else "fail", "ann") for n in range(4)]
    assert {name: one.hits for name, one in golden_label_rates(labels).items()} == {"ann": 3}


def test_what_is_wanting_is_said() -> None:
    labels = [label("a", "pass"), label("b", "pass"), label("t", "pass"), label("t", "fail", "bob")]
    found = calibrate_judge(JUDGE, labels, {("a", "overall"): "pass"}, NOW)
    assert found.doubled == doubled_share(labels) == pytest.approx(1 / 3)
    assert any("Only 2 items" in note for note in found.notes)
    assert any("disagree evenly" in note for note in found.notes)
    assert any("1 label is for items without a verdict" in note for note in found.notes)


def test_labels_of_nothing_that_was_judged_are_refused() -> None:
    with pytest.raises(BadInput, match="run `closeloop judge`"):
        calibrate_judge(JUDGE, [label("a", "pass")], {}, NOW)


def evaluation(**fields: Any) -> Evaluation:
    return Evaluation(**{"id": "e", "task": "t", "judge": "a", **fields})


def test_verdicts_come_from_whether_it_passes_and_from_the_floor() -> None:
    parts = (
        CriterionScore(name="quality", score=0.4),
        CriterionScore(name="relevance", score=None),
    )
    found = verdicts_from_evaluations([("i", evaluation(passed=None, criteria=parts))], JUDGE)
    assert found == {("i", "quality"): "fail"}


def test_the_spread_of_what_is_asked_again_is_pooled() -> None:
    samples = tuple(JudgeSample(judge="a", score=score, passed=True) for score in (0.8, 1.0))
    again = [evaluation(attempt="x", score=score) for score in (0.5, 0.5)]
    found = retest_spread([evaluation(samples=samples), *again])
    assert found is not None
    assert found.value == pytest.approx(0.1)
    assert found.n == 2
    assert retest_spread([evaluation(score=0.5)]) is None


def test_another_model_or_rubric_is_held_against_the_one_before() -> None:
    other = JudgeVersion(
        id="b",
        judge="checks 1",
        rubric="code-change",
        rubric_digest="r2",
        prompt="p",
        model="m2",
        temperature=0.1,
    )
    then: Any = {("i", "overall"): "pass", ("j", "overall"): "pass", ("k", "overall"): "fail"}
    now: Any = {("i", "overall"): "pass", ("j", "overall"): "fail"}
    found = measure_drift(other, then, JUDGE, now)
    assert found is not None
    assert (found.same.hits, found.same.of) == (1, 2)  # type: ignore[union-attr]
    assert found.changed == ("j: pass → fail",)
    assert found.changes == ("model", "rubric")
    assert measure_drift(other, {}, JUDGE, now) is None


# Files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "item and label"),
        (b"item\na", "item and label"),
        (b"item,label,colour\na,pass,red", "'colour'"),
        (b"item,label\na,good", ":2: 'good' is not a label: use one of pass, fail"),
        (b"item,label\n,pass", ":2: the item has no name"),
        (b"item,label\na,pass,x", "numbers of cells"),
        (b"item,label,asked\na,pass,beauty", "beauty"),
        (b"item,label,golden\na,pass,perhaps", "golden must be yes or no"),
        (b"item,label,judge\na,pass,7", "'7' is not a label"),
        (b"\xff\xfe", "UTF-8"),
        (b'item,label\n"a,pass', "not CSV"),
    ],
)
def test_a_sheet_that_makes_no_sense_is_refused_with_its_line(content: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_label_sheet(content, "labels.csv", "r")


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode()))
def test_any_file_is_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(BadInput):
        read_label_sheet(b"item,label\n" + content, "labels.csv", "r")


# The command


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    script = judge_script(
        ("return a [+] b", "yes", "return a + b"), ("BEGIN task", "no", "the sum of two")
    )
    (tmp_path / "judge.yaml").write_bytes(script)
    (tmp_path / "closeloop.toml").write_text('[judge]\nmodels = ["scripted:judge.yaml"]\n')
    task = Task(id="add", prompt="Write the sum of two numbers.", digest="d", grading="g")
    with open_store(str(tmp_path / ".closeloop/closeloop.db")) as store:
        store.save_task(task)
        for number in range(40):
            body = "return a + b" if number % 2 else "return None"
            attempt = Attempt(
                id=f"a{number:02d}",
                origin="experiment",
                task="add",
                task_digest="d",
                exit="finished",
            )
            store.save_attempt(
                AttemptResult(attempt=attempt, change=Change(patch=f"+{body}  # {number}\n"))
            )
    rows = [f"a{n:02d},{'pass' if n % 2 else 'fail'}" for n in range(40)]
    (tmp_path / "labels.csv").write_text("\n".join(["item,label", *rows]))
    return tmp_path


def typed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["judge", *arguments])
    return int(left.value.code or 0)


def test_a_judge_that_people_agree_with_begins_to_block(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"a{n:02d}" for n in range(40)]
    assert typed(*names) == 0
    assert typed("calibrate", "labels.csv", "--canaries", "--json") == 0
    out = capsys.readouterr().out
    found = json.loads(out[out.rindex('\n{\n  "judge"') :])
    assert found["trust"][0]["may_block"] is True
    assert found["canaries"]["attacked"] >= 40
    assert found["canaries"]["by"] == []
    assert typed("a00") == 1
    assert "blocks: add: it fails" in capsys.readouterr().out
    assert typed("a01") == 0


def test_a_criterion_without_a_score_does_not_block(tmp_path: Path) -> None:
    known = made(cells(20, 0, 0, 20))
    known = replace(known, trust=(replace(known.trust[0], asked="quality"),))
    unscored = CriterionScore(name="quality", score=None)
    failed = evaluation(judge=JUDGE.id, passed=False, criteria=(unscored,))
    all_of = Evaluations(judges=(JUDGE,), evaluations=(failed,), passed=False, summary="")
    with open_store(str(tmp_path / "store.db")) as store:
        store.judged.save_calibration(known)
        assert list_blocking_reasons(all_of, store) == []
        low = replace(failed, criteria=(replace(unscored, score=0.4),))
        told = ["t: its quality fails, and this judge may block"]
        assert list_blocking_reasons(replace(all_of, evaluations=(low,)), store) == told


def test_labels_of_reviews_count_for_a_rubric_that_is_a_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built_in = files("closeloop.judges").joinpath("rubrics", "code-change.toml").read_text()
    (project / "ours.toml").write_text(built_in.replace('name = "code-change"', 'name = "ours"'))
    (project / "closeloop.toml").write_text(
        '[judge]\nmodels = ["scripted:judge.yaml"]\nrubric = "ours.toml"\n'
    )
    assert typed("a00", "a01") == 0
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        store.judged.save_labels(
            [HumanLabel(item="a00", rubric="ours.toml", label="fail", person="ann")]
        )
    capsys.readouterr()
    assert typed("calibrate", "--json") == 0
    assert json.loads(capsys.readouterr().out)["items"] == 1


def test_a_sheet_with_the_judges_own_verdicts_needs_no_judge(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "closeloop.toml").write_text("")
    rows = [f"i{n},pass,pass" for n in range(40)] + [f"j{n},fail,fail" for n in range(20)]
    (project / "both.csv").write_text("\n".join(["item,label,judge", *rows]))
    assert typed("calibrate", "both.csv") == 0
    out = capsys.readouterr().out
    assert "given in both.csv" in out
    assert "block" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.csv",), "cannot be read"),
        ((), "No labels"),
        (("labels.csv",), "This judge has no verdict on any labelled item"),
    ],
)
def test_what_cannot_be_calibrated_is_said(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert typed("calibrate", *arguments) == 2
    assert message in capsys.readouterr().err


def test_attacks_are_not_planted_in_work_on_sealed_tasks(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed = Task(id="add", prompt="Sum.", digest="d", grading="g", split="held-out")
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        store.save_task(sealed)
    assert typed("calibrate", "labels.csv", "--canaries") == 2
    assert "--canaries needs failing attempts" in capsys.readouterr().err
