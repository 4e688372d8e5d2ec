"""Comparisons: the worse is called worse, the equal seldom anything, and the open question open."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_work import BOOK, START, Repeats, add_attempt, add_task, add_variant, fill

from closeloop.cli.compare import compared_sides_table, format_ratio_cells
from closeloop.metrics.attempt_groups import AttemptSelection, select_attempts
from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.metric_definitions import MODE_COLUMNS
from closeloop.metrics.variant_comparison import compare_by_name, compare_variants
from closeloop.metrics.variant_pairs import describe_detectable, describe_missing_tasks
from closeloop.records.errors import BadInput
from closeloop.records.estimate import CompareReport, PairTable
from closeloop.records.pull_request import Delivery
from closeloop.records.task import Experiment, Variant
from closeloop.statistics.mean_comparison import estimate_independent_ratio
from closeloop.statistics.rate_comparison import compare_rates as decided
from closeloop.statistics.rate_comparison import detectable_on_these_tasks
from closeloop.store import Store, open_store
from closeloop.store.packed_columns import PackedColumns, make_text_column

Outcomes = dict[str, dict[str, Repeats]]


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def compared(store: Store, outcomes: Outcomes) -> CompareReport:
    fill(store, outcomes)
    return compare_by_name(store, BOOK, list(outcomes))


def test_the_worse_variant_of_the_demo_is_called_worse_at_ten_repeats(store: Store) -> None:
    """As the demo's two agents do: nine tasks, of which one passes all and the other some."""
    closer: dict[str, Repeats] = {f"t{n}": [1] * 10 for n in range(9)}
    spiraller: dict[str, Repeats] = {f"t{n}": [int(n < 2)] * 10 for n in range(9)}
    report = compared(store, {"closer": closer, "spiraller": spiraller})
    (pair,) = report.pairs
    assert pair.comparison.here_word == pair.comparison.alike_word == "worse"
    assert pair.words[0].startswith("On exactly these 9 tasks, 'spiraller' is worse than 'closer'")
    assert "Exact sign-flip: p = 0.016" in pair.words[1]
    assert pair.table == PairTable(both=2, only_first=7, only_second=0, neither=0)
    assert pair.tasks[0].first == (1,) * 10
    assert pair.tasks[0].second == (0,) * 10


def test_equal_variants_are_called_different_in_one_of_twenty_at_most() -> None:
    """As many tasks as the demo's; in 200 pairs, ten times in a row."""
    chance = random.Random(10)
    called = [0, 0]
    for _ in range(2000):
        ease = [chance.betavariate(2, 1) for _ in range(9)]
        first, second = (
            {
                str(task): [float(chance.random() < p) for _ in range(5)]
                for task, p in enumerate(ease)
            }
            for _ in "ab"
        )
        held = decided(first, second)
        for place, word in enumerate((held.here_word, held.alike_word)):
            called[place] += word in ("better", "worse")
    assert max(called) <= 100


def test_five_tasks_get_the_sentence_that_five_tasks_cannot_decide(store: Store) -> None:
    good: dict[str, Repeats] = {f"t{n}": [1, 1, 1] for n in range(5)}
    bad: dict[str, Repeats] = {f"t{n}": [0, 0, 0] for n in range(5)}
    (pair,) = compared(store, {"a": good, "b": bad}).pairs
    assert pair.comparison.alike_word == "not enough data"
    assert pair.comparison.test is None
    assert any(line.startswith("5 tasks cannot decide") for line in pair.words)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (
            0,
            (
                "Both failed all 5 tasks: no difference can be seen.",
                "Easier tasks would tell more.",
            ),
        ),
        (
            1,
            (
                "Both passed all 5 tasks: no difference can be seen.",
                "Harder tasks would tell more.",
            ),
        ),
    ],
)
def test_two_with_the_same_result_on_all_tasks_get_one_answer(
    store: Store, outcome: int, words: tuple[str, ...]
) -> None:
    alike: dict[str, Repeats] = {f"t{n}": [outcome] for n in range(5)}
    (pair,) = compared(store, {"a": alike, "b": alike}).pairs
    assert pair.words == words


def test_what_is_open_says_what_would_settle_it(store: Store) -> None:
    a: dict[str, Repeats] = {f"t{n}": [1, n % 2, 1] for n in range(8)}
    b: dict[str, Repeats] = {f"t{n}": [1, n % 2, n > 1] for n in range(8)}
    (pair,) = compared(store, {"a": a, "b": b}).pairs
    assert pair.comparison.alike_word == "not enough data"
    assert "on similar tasks with 80 % power" in pair.words[-2]
    assert "tasks with the same repeats" in pair.words[-2]
    assert pair.words[-1] == (
        "With 8 tasks and 3 repeats, a difference of 38 points or more can be shown on exactly "
        "these tasks, and of 42 points or more on similar tasks (80 % power)."
    )


@pytest.mark.parametrize(
    ("tasks", "repeats", "sentence"),
    [
        (1, 1, "With 1 task and 1 repeat, no difference can be shown on exactly this task."),
        (1, 3, "With 1 task and 3 repeats, a difference of 93 points or more can be shown on"),
    ],
)
def test_a_run_promises_on_exactly_these_tasks_what_compare_can_decide(
    tasks: int, repeats: int, sentence: str
) -> None:
    here = detectable_on_these_tasks(tasks, repeats)
    assert sentence in describe_detectable(tasks, repeats, here, None)
    assert "at least 6 are needed" in describe_missing_tasks(tasks)
    assert not describe_missing_tasks(6)


def test_too_little_coverage_gets_no_verdict(store: Store) -> None:
    report = compared(store, {"a": {"t": [1] * 10}, "b": {"t": [1] * 8 + [None] * 2}})
    assert report.pairs == ()
    assert report.refusal is not None
    assert "Only 80 % of the attempts of 'b' could be scored; below 90 %" in report.refusal


def test_all_unscored_gets_no_verdict(store: Store) -> None:
    report = compared(store, {"a": {"t": [None, None]}, "b": {"t": [1, 1]}})
    assert report.refusal is not None
    assert "Only 0 %" in report.refusal


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a"], "needs two or more different names"),
        (["a", "a"], "needs two or more different names"),
        (["a", "agent:builtin"], "attempt in common"),
        (["a", "agent:nobody"], "No agent named 'nobody'. Known: builtin"),
        (["a", "repo:"], "has no name"),
        (["a", "nobody"], "No variant named 'nobody'. Known: a, b, c"),
        (["a", "model:gpt"], "No model named 'gpt'"),
        (["a", "2026-11-31..2026-12-01"], "A time is 24h"),
        (["a", "2026-11-02..2026-11-01"], "is not a period"),
        (["a", ".."], "is not a period"),
        (["a", "2031-01-01.."], "matches no attempt and no session"),
        (["a", "v-"], "is a prefix of the digests of 3 variants"),
        (["a", ""], "No variant named ''"),
    ],
)
def test_names_that_cannot_be_compared_are_refused(
    store: Store, names: list[str], said: str
) -> None:
    fill(store, {"a": {"t": [1]}, "b": {"t": [0]}, "c": {"other": [1]}})
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        compare_by_name(store, BOOK, names)


def test_tasks_that_ask_for_something_else_are_named(store: Store) -> None:
    a, b = add_variant(store, "a"), add_variant(store, "b")
    old, new = add_task(store, "t", digest="1"), add_task(store, "t", digest="2")
    add_attempt(store, old, a, True)
    add_attempt(store, new, b, True)
    apart = compare_by_name(store, BOOK, ["a", "b"])
    assert apart.left_out == ("task 't' had another request",)
    assert apart.pairs[0].observational
    both = add_task(store, "u")
    for variant in (a, b):
        add_attempt(store, both, variant, True)
    report = compare_by_name(store, BOOK, ["a", "b"])
    assert report.left_out == ("task 't' had another request",)
    assert report.pairs[0].comparison.tasks == 1


def test_a_task_that_was_graded_in_two_ways_is_left_out(store: Store) -> None:
    fill(store, {"a": {"t": [1], "u": [1]}, "b": {"u": [1]}})
    regraded = add_task(store, "t", grading="stricter")
    add_attempt(store, regraded, add_variant(store, "b"), False)
    report = compare_by_name(store, BOOK, ["a", "b"])
    assert "was graded by two versions of the grader" in report.left_out[0]
    assert report.pairs[0].comparison.tasks == 1


def test_agents_models_prompts_and_times_can_be_compared(store: Store) -> None:
    task = add_task(store, "t")
    for name, day in (("x", 0), ("y", 7)):
        variant = add_variant(store, name, agent=f"agent-{name}", model=f"m-{name}", prompt=name)
        add_attempt(store, task, variant, True, started=START + timedelta(days=day))
    for names in (
        ["agent:agent-x", "agent:agent-y"],
        ["model:m-x", "model:m-y"],
        ["prompt:x", "prompt:y"],
        ["v-x", "y"],
    ):
        report = compare_by_name(store, BOOK, names)
        assert [side.attempts for side in report.sides] == [1, 1], names
        assert report.notes == ()
    report = compare_by_name(store, BOOK, ["..2026-11-05", "2026-11-05.."])
    assert [side.variants for side in report.sides] == [("v-x",), ("v-y",)]
    assert "Observational" in report.notes[0]


def test_repositories_experiments_and_conditions_joined_can_be_compared(store: Store) -> None:
    """Four sessions in two weeks, and two tasks of two repositories."""
    for name in "xy":
        variant = add_variant(store, name, agent=f"agent-{name}")
        for day in (0, 7):
            add_attempt(store, None, variant, None, started=START + timedelta(days=day), cost=1)
    day = f"{START + timedelta(days=5):%Y-%m-%d}"
    names = [f"agent:agent-x,{day}..", f"agent:agent-y,..{day}"]
    report = compare_by_name(store, BOOK, names, scores=["cost"])
    assert [side.attempts for side in report.sides] == [1, 1]
    for name in "ab":
        task = add_task(store, name, repo=f"https://host/team/{name}.git")
        add_attempt(store, task, add_variant(store, name), True)
        experiment = Experiment(id=f"e-{name}", tasks=(task.digest,), variants=(f"v-{name}",))
        store.save_experiment(experiment)
    for names in (["repo:team/a", "repo:team/b"], ["experiment:e-a", "experiment:e-b"]):
        report = compare_by_name(store, BOOK, names)
        assert [side.variants for side in report.sides] == [("v-a",), ("v-b",)]


def test_sessions_are_compared_by_what_is_known_of_them(store: Store) -> None:
    """Nothing is graded: what people did with the work decides."""
    for name, merges in (("x", (True, True)), ("y", (True, False))):
        variant = add_variant(store, name)
        for merged in merges:
            made = add_attempt(store, None, variant, None)
            told = Delivery(
                attempt=made.id,
                at=START,
                merged=merged,
                passed=True,
                corrected=False,
                reviewed=True,
                cycles=0,
            )
            store.pulls.save_delivery(told)
    (pair,) = compare_by_name(store, BOOK, ["x", "y"]).pairs
    assert (pair.primary, pair.observational) == ("task completion rate", True)
    assert "they share no task" in pair.words[1]
    report = compare_by_name(store, BOOK, ["x", "y"])
    columns = [str(column.header) for column in compared_sides_table(report).columns]
    assert columns == ["", "attempts", "known", "task completion rate"]


def test_bounds_too_wide_to_say_anything_are_words() -> None:
    wide = estimate_independent_ratio([1.0, 10_000.0], [5.0, 40_000.0])
    assert format_ratio_cells("time", wide) == ("4.47 ×", "–", "too few to say")
    close = estimate_independent_ratio([1.0, 1.1, 0.9, 1.0], [2.0, 2.1, 2.2, 2.0])
    assert format_ratio_cells("time", close)[2].startswith("1.")


def test_of_variants_with_one_name_the_newest_is_meant() -> None:
    kinds = {key: Variant(name="a", agent="x", digest=key) for key in ("1", "2")}
    chosen = select_attempts("a", kinds)
    assert chosen.variants == ("2",)
    assert chosen.note == "1 older version of 'a' excluded: add 1 to compare with it."


def test_several_against_the_first_need_more_to_be_called(store: Store) -> None:
    """Six of six tasks gained: p is 0.03 alone, and 0.09 after Holm beside two others."""
    base: Outcomes = {"a": {f"t{n}": [0] for n in range(6)}}
    best: dict[str, Repeats] = {f"t{n}": [1] for n in range(6)}
    alone = compared(store, base | {"b": best}).pairs[0]
    assert alone.comparison.alike_word == "better"
    assert alone.adjusted is None
    report = compared(store, {"c": dict(base["a"]), "d": dict(base["a"])})
    report = compare_by_name(store, BOOK, ["a", "b", "c", "d"])
    first = report.pairs[0]
    assert first.comparison.test is not None
    assert first.comparison.test.p == pytest.approx(2 / 64)
    assert [pair.second for pair in report.pairs] == ["b", "c", "d"]
    assert first.adjusted == pytest.approx(2 / 64)  # c and d differ nowhere: one test was made
    assert first.comparison.here is not None
    assert alone.comparison.here is not None
    assert first.comparison.here.low < alone.comparison.here.low


def test_money_and_time_are_ratios_and_what_is_not_known_is_said(store: Store) -> None:
    tasks = [add_task(store, f"t{n}") for n in range(6)]
    for name, factor in (("a", 1.0), ("b", 2.0)):
        variant = add_variant(store, name)
        for task in tasks:
            for number in (1, 2):
                cost = factor * (0.9 if number == 1 else 1.1)
                add_attempt(store, task, variant, True, number=number, cost=cost)
    (pair,) = compare_by_name(store, BOOK, ["a", "b"]).pairs
    money = pair.ratios["cost"].here
    assert money is not None
    assert money.value == pytest.approx(2)
    assert money.low < 2 < money.high
    assert pair.ratios["tokens in"].here is None


@pytest.mark.parametrize(
    ("costs", "cell"),
    [((0.0, 0.0), "both $0.00"), ((0.0, 1.0), "unknown"), ((None, None), "unknown")],
)
def test_two_sides_that_cost_nothing_have_a_known_cost(
    store: Store, costs: tuple[float | None, float | None], cell: str
) -> None:
    tasks = [add_task(store, f"t{n}") for n in range(3)]
    for name, cost in zip("ab", costs, strict=True):
        variant = add_variant(store, name)
        for task in tasks:
            for number in (1, 2):
                add_attempt(store, task, variant, True, number=number, cost=cost)
    (pair,) = compare_by_name(store, BOOK, ["a", "b"]).pairs
    assert format_ratio_cells("cost", pair.ratios["cost"]) == (cell, "–", "–")


def test_very_unequal_sides_are_compared_on_what_they_share() -> None:
    many = [[True] * 1000 for _ in range(100)]
    few = [[False], [False], [True]]
    (pair,) = compare_variants(work([many, few]), [only("a"), only("b")]).pairs
    assert pair.comparison.tasks == 3
    assert pair.comparison.test is None


def test_secondary_rates_are_adjusted_for_their_number(store: Store) -> None:
    fill(store, {"a": {f"t{n}": [1] for n in range(12)}, "b": {f"t{n}": [1] for n in range(12)}})
    held = load_attempt_table(store, BOOK)
    is_b = held.columns["variant"].are(["v-b"])
    held.columns["findings"] = np.array(
        [float(place % 12 in (0, 1) or bool(other)) for place, other in enumerate(is_b)]
    )
    held.columns["modes"] = make_text_column(
        ["scope creep (rule)" if place % 2 else "" for place in range(24)]
    )
    held.columns["examined"] = make_text_column(["scope creep (rule)"] * 24)
    (pair,) = compare_variants(held, [only("a"), only("b")]).pairs
    rates = {one.metric: one for one in pair.secondary}
    clean, mode = rates["without findings"], rates["scope creep"]
    assert clean.word == "worse"
    assert clean.p is not None
    assert clean.adjusted == pytest.approx(clean.p)
    assert (mode.first, mode.second, mode.p) == (0.5, 0.5, None)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.sampled_from([True, False, None]), max_size=3), max_size=4),
        min_size=2,
        max_size=3,
    )
)
def test_whatever_was_scored_there_are_words_and_no_nan(
    values: list[list[list[bool | None]]],
) -> None:
    names = "abc"[: len(values)]
    try:
        report = compare_variants(work(values), [only(name) for name in names])
    except BadInput:
        return
    assert bool(report.pairs) != bool(report.refusal)
    for pair in report.pairs:
        assert len(pair.words) >= 2
        assert not any("nan" in line for line in pair.words)


def test_a_task_graded_in_two_ways_alone_is_nothing_to_compare(store: Store) -> None:
    first, second = add_variant(store, "a"), add_variant(store, "b")
    add_attempt(store, add_task(store, "t"), first, True)
    add_attempt(store, add_task(store, "t", grading="other"), second, True)
    with pytest.raises(BadInput, match="task 't' was graded by two versions of the grader"):
        compare_by_name(store, BOOK, ["a", "b"])


def test_one_task_is_spoken_of_as_one(store: Store) -> None:
    (pair,) = compared(store, {"a": {"t": [1, 0, 1]}, "b": {"t": [0, 0, 1]}}).pairs
    assert pair.words[0].startswith("On exactly this task, there is not enough data")
    assert "nan" not in " ".join(pair.words)


def test_before_anything_ran_there_is_the_command_that_makes_some(store: Store) -> None:
    with pytest.raises(BadInput, match="closeloop run"):
        compare_by_name(store, BOOK, ["a", "b"])


def only(name: str) -> AttemptSelection:
    return AttemptSelection(name=name, variants=(f"v-{name}",))


def work(values: Sequence[Sequence[Sequence[bool | None]]]) -> AttemptTable:
    """Side → task → repeats, without a store."""
    from closeloop.store.metrics_section import (
        ATTEMPT_FIELDS,
        DELIVERY_FIELDS,
        GRADE_FIELDS,
        MEASUREMENT_FIELDS,
        RATE_NAMES,
    )

    rows = [
        (f"v-{'abc'[side]}", f"t{task}", number, outcome)
        for side, tasks in enumerate(values)
        for task, repeats in enumerate(tasks)
        for number, outcome in enumerate(repeats, 1)
    ]
    names = (*ATTEMPT_FIELDS, *GRADE_FIELDS, *MEASUREMENT_FIELDS, *RATE_NAMES, *DELIVERY_FIELDS)
    blank = make_text_column([None] * len(rows))
    columns: dict[str, Any] = {name: np.full(len(rows), np.nan) for name in names}
    texts = (
        "origin",
        "grading",
        "evidence",
        "category",
        "risk",
        *chain.from_iterable(MODE_COLUMNS),
    )
    columns |= dict.fromkeys(texts, blank)
    people = ("would_merge", "reviewer_seconds", "own_modules", "plan_passed", "plan_retries")
    columns |= dict.fromkeys(people, np.full(len(rows), np.nan))
    columns["unreviewed_completes"] = np.zeros(len(rows), bool)
    columns["variant"] = make_text_column([row[0] for row in rows])
    columns["task"] = columns["task_digest"] = make_text_column([row[1] for row in rows])
    columns["number"] = np.array([row[2] for row in rows], float)
    columns["unchecked"] = np.zeros(len(rows), bool)
    words = {True: "pass", False: "fail", None: "unscored"}
    columns["outcome"] = make_text_column([words[row[3]] for row in rows])
    return AttemptTable(
        attempts=[f"{n}" for n in range(len(rows))],
        columns=PackedColumns(columns),
        tasks={},
        variants={},
    )
