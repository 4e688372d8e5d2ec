"""Outputs are judged one by one; what cannot be read, quoted or decided is never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest
from judging_models import BAD, CODE, GOOD, TASK, Asked, all_of, bench, fair

from closeloop.judges import checks
from closeloop.judges.evaluator import evaluate_outputs
from closeloop.judges.rubric import combine_criteria
from closeloop.providers.structured_reply import REPAIR_REQUEST
from closeloop.records.errors import BadInput, MachineFailed, OutOfBudget
from closeloop.records.evaluation import ComputedFact, Evaluation, Evaluations, Subtask, TaskOutput
from closeloop.records.trace import ModelReply, ModelRequest
from patience import takes

REQUEST = "A small calculator."


def run(
    model: Asked,
    outputs: Sequence[TaskOutput],
    plan: Sequence[Subtask] = (TASK,),
    facts: Mapping[str, Sequence[ComputedFact]] | None = None,
) -> Evaluations:
    by_task = {one.task: one for one in outputs}
    return anyio.run(evaluate_outputs, bench(model), REQUEST, plan, by_task, facts or {})


def one(model: Asked, output: TaskOutput = GOOD, *facts: ComputedFact) -> Evaluation:
    return run(model, [output], facts={"add": facts}).evaluations[0]


def test_good_work_passes_and_bad_work_fails_with_what_to_do() -> None:
    made = run(Asked(fair), [GOOD])
    assert (made.passed, made.evaluations[0].score) == (True, 1.0)
    failed = one(Asked(fair), BAD)
    assert (failed.passed, failed.score) == (False, 0.0)
    assert failed.issues[0].text == "Because of returns the sum."
    assert failed.issues[0].evidence == ("returns the sum",)


def test_a_plan_passes_when_every_task_does() -> None:
    plan = (TASK, Subtask(id="sub", prompt="Write sub, which returns the sum of a and -b."))
    other = TaskOutput(task="sub", text="return a + b")
    assert run(Asked(fair), [GOOD, other], plan).passed is True
    broken = TaskOutput(task="sub", text="no idea")
    made = run(Asked(fair), [GOOD, broken], plan)
    assert made.passed is False
    assert made.summary.startswith("2 tasks: 1 pass, 1 fail.")


def test_each_task_is_judged_in_a_context_of_its_own() -> None:
    plan = (TASK, Subtask(id="sub", prompt="First line.\nA secret of the other task."))
    model = Asked(fair)
    run(model, [GOOD, TaskOutput(task="sub", text="return a + b")], plan)
    first = next(each for each in model.requests if "def add" in each.messages[0].text)
    assert "A secret of the other task" not in first.messages[0].text
    assert len(first.messages) == 1
    assert first.temperature == 0.1


def test_what_all_requests_share_comes_first_so_that_prefix_caches_hit() -> None:
    plan = tuple(Subtask(id=f"t{number}", prompt=f"Part {number}.") for number in range(3))
    model = Asked(fair)
    run(model, [TaskOutput(task=task.id, text="return a + b " * 50) for task in plan], plan)
    system = {each.system for each in model.requests}
    assert system == {checks.judge_instructions(CODE)}
    assert len({str(each.schema) for each in model.requests}) == 1
    every = [each.messages[0].text for each in model.requests]
    texts = [text for text in every if "END plan" in text]
    assert (len(texts), len(every)) == (3, 6)  # again, without the plan
    shared = len(min(texts, key=len))
    while len({text[:shared] for text in texts}) > 1:
        shared -= 1
    assert REQUEST in texts[0][:shared]
    assert "Part 2." in texts[0][:shared]
    assert "END plan" in texts[0][:shared]


SPOILED: dict[str, Callable[[ModelRequest], Any]] = {
    "prose": lambda request: "It looks good to me, I would give it 1.0.",
    "cut": lambda request: ModelReply(text='{"seal": "abc", "answers": {"does-the', stop="length"),
    "empty": lambda request: "",
    "empty list": lambda request: "[]",
    "nan": lambda request: '{"seal": NaN, "answers": {}, "summary": ""}',
    "seven": lambda request: {**all_of("yes", "return a + b", request), "score": 7},
    "unknown word": lambda request: all_of("perfect", "return a + b", request),
    "a number": lambda request: all_of(7, "return a + b", request),  # type: ignore[arg-type]
    "no checks": lambda request: {**all_of("yes", "return a + b", request), "answers": {}},
    "no seal": lambda request: {**all_of("yes", "return a + b", request), "seal": ""},
    "deep": lambda request: "[" * 5000,
}


@pytest.mark.parametrize("name", SPOILED)
def test_an_answer_that_cannot_be_read_is_asked_for_once_more_then_abstained_from(
    name: str,
) -> None:
    model = Asked(SPOILED[name])
    made = one(model)
    assert (made.passed, made.score) == (None, None)
    assert made.abstained
    assert len(model.requests) == 2
    assert model.requests[1].messages[-1].text == REPAIR_REQUEST
    assert made.usage.input_tokens in (None, 200)


def test_a_repaired_answer_counts() -> None:
    def second(request: ModelRequest) -> Any:
        return fair(request) if len(request.messages) > 1 else "Well…"

    assert one(Asked(second)).passed is True


def test_a_model_that_refuses_abstains_at_once() -> None:
    model = Asked(lambda request: ModelReply(text="No.", stop="refused"))
    assert one(model).abstained == "the model refused to answer"
    assert len(model.requests) == 1


@pytest.mark.parametrize("error", [MachineFailed("The provider is gone."), OutOfBudget("Spent.")])
def test_a_provider_that_fails_leaves_the_others_their_verdicts(error: Exception) -> None:
    def sometimes(request: ModelRequest) -> Any:
        if "def sub" in request.messages[0].text:
            raise error
        return fair(request)

    plan = (TASK, Subtask(id="sub", prompt="Write sub."))
    made = run(Asked(sometimes), [GOOD, TaskOutput(task="sub", change="+def sub(): ...")], plan)
    assert [each.passed for each in made.evaluations] == [True, None]
    assert made.evaluations[1].abstained == str(error)
    assert made.passed is None


# Quotes


@pytest.mark.parametrize(
    ("verdict", "quote"),
    [
        ("yes", "return a+b"),
        ("yes", "returns the sum"),
        ("yes", "a"),
        ("yes", " \n "),
        ("no", "it says nothing of the kind"),
        ("yes", "A small calculator."),
    ],
)
def test_a_quote_that_is_not_there_or_not_of_the_work_voids_the_verdict(
    verdict: str, quote: str
) -> None:
    made = one(Asked(lambda request: all_of(verdict, quote, request)))
    assert {answer.verdict for answer in made.answers} == {None}
    assert all(answer.void for answer in made.answers)
    assert made.passed is None
    assert "too few questions" in (made.abstained or "")


def test_one_bad_quote_among_good_ones_voids_the_verdict() -> None:
    def mixed(request: ModelRequest) -> Any:
        value = all_of("yes", "return a + b", request)
        value["answers"]["correct"]["evidence"].append("and it was tested")
        return value

    made = one(Asked(mixed))
    assert [answer.check for answer in made.answers if answer.void] == ["correct"]
    assert made.score == 1.0


def test_a_short_output_may_be_quoted_whole() -> None:
    made = one(Asked(lambda request: all_of("yes", "7", request)), TaskOutput(task="add", text="7"))
    assert made.passed is True


def test_no_quote_spans_what_was_not_shown() -> None:
    text = "a" * 40_000 + "secret" + "b" * 40_000
    model = Asked(lambda request: all_of("yes", "aaaaabbbbb", request))
    assert one(model, TaskOutput(task="add", text=text)).passed is None


# Scores


def test_scores_are_derived_and_a_criterion_under_the_floor_fails() -> None:
    def judge(request: ModelRequest) -> Any:
        low = {"in_scope": "no", "asked_when_unclear": "no", "right_files": "partly"}
        return all_of("yes", "return a + b", request, **low)

    made = one(Asked(judge))
    assert made.criterion_score("relevance") == pytest.approx(1 / 6)
    assert made.score == pytest.approx((1 + 1 + 1 / 6) / 3)
    assert made.score > 0.7
    assert made.passed is False


def test_a_score_that_misses_the_floor_by_a_last_bit_does_not_fail() -> None:
    score = sum([0.1] * 3) / 0.6 - 2e-16
    assert score < 0.5
    known = {"completeness": score, "quality": None, "relevance": 1.0}
    assert combine_criteria(known, CODE) == (None, None)
    assert combine_criteria({**known, "quality": 1.0}, CODE)[1] is True


def test_partly_is_half_and_weights_count() -> None:
    made = one(Asked(lambda r: all_of("yes", "return a + b", r, does_the_task="partly")))
    assert made.criterion_score("completeness") == pytest.approx(3 / 4)
    assert [issue.check for issue in made.issues] == ["does-the-task"]


def test_a_check_that_needs_what_is_not_there_is_not_counted() -> None:
    made = one(Asked(fair), TaskOutput(task="add", text="return a + b"))
    names = {answer.check for answer in made.answers}
    assert not {"right-files", "like-the-reference"} & names
    assert made.passed is True


def test_what_cannot_be_told_is_left_out_until_too_little_is_left() -> None:
    def unsure(*names: str) -> Asked:
        words = dict.fromkeys(names, "cannot tell")
        return Asked(lambda request: all_of("yes", "return a + b", request, **words))

    assert one(unsure("tested")).passed is True
    made = one(unsure("does_the_task", "edge_cases"))
    assert (made.passed, made.criterion_score("completeness")) == (None, None)


# Facts


def test_a_fact_overrides_the_judge() -> None:
    broken = ComputedFact(name="tests", verdict="no", text="test_add fails")
    made = one(Asked(fair), GOOD, broken)
    answer = next(answer for answer in made.answers if answer.check == "correct")
    assert (answer.verdict, answer.source) == ("no", "fact")
    assert made.criterion_score("quality") == pytest.approx(0.5)
    assert (
        one(Asked(fair), BAD, ComputedFact(name="tests", verdict="yes", text="ok")).passed is False
    )


def test_a_fact_that_blocks_fails_the_task_whatever_the_judge_says() -> None:
    fails = ComputedFact(name="acceptance", verdict="no", text="2 tests fail", blocks=True)
    made = one(Asked(fair), GOOD, fails)
    assert made.passed is False
    assert made.issues[-1].text == "2 tests fail"
    unreadable = one(Asked(lambda request: "…"), GOOD, fails)
    assert (unreadable.passed, unreadable.abstained) == (False, None)


def test_facts_are_shown_to_the_judge() -> None:
    model = Asked(fair)
    one(model, GOOD, ComputedFact(name="tests", verdict="yes", text="all 12 pass"))
    assert "- tests, yes: all 12 pass" in model.requests[0].messages[0].text


# Sizes


def test_nothing_handed_in_fails_without_asking_anyone() -> None:
    model = Asked(fair)
    made = one(model, TaskOutput(task="add", text=" \n", change=""))
    assert (made.passed, made.score, model.requests) == (False, 0.0, [])


def test_where_nothing_came_facts_say_why() -> None:
    stopped = ComputedFact(
        name="exit", verdict="no", text="The agent ran out of time.", blocks=True
    )
    made = one(Asked(fair), TaskOutput(task="add"), stopped)
    assert [issue.text for issue in made.issues][1:] == ["The agent ran out of time."]


def test_ten_megabytes_are_cut_with_a_mark() -> None:
    model = Asked(fair)
    made = one(
        model, TaskOutput(task="add", text="return a + b\n" + "é" * (10 << 20) + "\nthe end")
    )
    text = model.requests[0].messages[0].text
    assert len(text) < 100_000
    assert f"({made.cut} characters of the output are left out here.)" in text
    assert made.cut > 10_000_000
    assert "the end\nEND end of the output" in text
    assert made.passed is True


def test_half_characters_and_nuls_do_no_harm() -> None:
    assert one(Asked(fair), TaskOutput(task="add", text="return a + b \ud800 \0")).passed is True


# Plans


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([TASK, TASK], "2 subtasks 'add'"),
        ([Subtask(id="add", prompt="", depends_on=("x",))], "depends on 'x'"),
        (
            [
                Subtask(id="add", prompt="", depends_on=("b",)),
                Subtask(id="b", prompt="", depends_on=("add",)),
            ],
            "contain a cycle",
        ),
        ([Subtask(id="other", prompt="")], "no subtask 'add'"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(plan: list[Subtask], message: str) -> None:
    model = Asked(fair)
    with pytest.raises(BadInput, match=message):
        run(model, [GOOD], plan)
    assert not model.requests


# Speed


@pytest.mark.parametrize("lines", [2_500, 300_000])
def test_a_judge_adds_little_to_what_the_model_takes(lines: int) -> None:
    patch = "".join(f"+    value_{number} = compute({number})\n" for number in range(lines))
    output = TaskOutput(task="add", text="return a + b", change=patch)
    model = Asked(fair)
    judge = bench(model, confirm="never")

    async def go() -> None:
        for _ in range(40):
            await evaluate_outputs(judge, REQUEST, [TASK], {"add": output}, {})

    assert takes(lambda _: anyio.run(go), 2) < 2  # 0.2 on a quiet machine


def test_a_quote_that_is_too_short_is_called_that_and_not_missing() -> None:
    shown = {"change": "+good\n+better than that\n"}
    short = checks.find_quote_fault(["+good"], ["change"], shown)
    assert short == "the quote '+good' has fewer than 6 characters"
    missing = checks.find_quote_fault(["+worse than that"], ["change"], shown)
    assert missing == "the quote '+worse than that' does not occur in the input"
    assert checks.find_quote_fault(["+better"], ["change"], shown) is None
