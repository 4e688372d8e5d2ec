"""The ledger of scores: what people, judges and code say of attempts reaches every number."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from scripted_work import BOOK, START, add_attempt, add_task, add_variant, fill

from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.metric_trends import compute_trends
from closeloop.metrics.score_columns import (
    ScoreCatalogue,
    attach_scores,
    build_catalogue,
    derived_definitions,
    parse_score,
    summarise_scores,
)
from closeloop.metrics.variant_comparison import compare_by_name
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import (
    CriterionScore,
    Evaluation,
    Evaluations,
    JudgeVersion,
    RubricAnswer,
)
from closeloop.records.protocols import ScoredAttempt
from closeloop.records.score import Score, ScoreDefinition, ScoreSettings
from closeloop.records.task import Acceptance
from closeloop.records.team_rules import HumanReview
from closeloop.store import Store, open_store
from command_line import typed

DECLARED = {
    "readability": ScoreSettings(kind="ordinal", low=1, high=5, better="more"),
    "review-minutes": ScoreSettings(kind="amount", unit="min", better="less"),
    "verdict": ScoreSettings(kind="label", labels=("ship", "fix", "drop")),
}
CATALOGUE = build_catalogue(DECLARED)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def give(store: Store, attempt: str, **values: float | str) -> None:
    """As somebody types them, an hour after the attempt."""
    store.scores.add_scores(
        [make_score(attempt, name.replace("_", "-"), value) for name, value in values.items()]
    )


def make_score(attempt: str, name: str, value: float | str, by: str = "ann") -> Score:
    number, label = parse_score(CATALOGUE.definitions[name], value)
    return Score(
        attempt=attempt,
        name=name,
        value=number,
        label=label,
        source="person",
        by=by,
        at=START + timedelta(hours=1),
    )


def attached(store: Store, *names: str, catalogue: ScoreCatalogue = CATALOGUE) -> AttemptTable:
    return attach_scores(load_attempt_table(store, BOOK), store, catalogue, names or None)


def scored_task(store: Store, variant: str, task: str, **values: float | str) -> str:
    """One attempt at a task without a check, and what was said of it."""
    made = add_attempt(
        store, add_task(store, task, acceptance=Acceptance()), add_variant(store, variant), None
    )
    give(store, made.id, **values)
    return made.id


# What is kept


def test_a_later_score_of_the_same_person_replaces_the_earlier_and_facts_stay(store: Store) -> None:
    attempt = scored_task(store, "a", "t", would_merge=1)
    store.scores.add_scores([make_score(attempt, "would-merge", 0)])
    assert [one.value for one in store.scores.list_scores(attempt)] == [0]
    store.scores.add_scores([make_score(attempt, "would-merge", 1, by="bob")])
    (figure,) = compute_metrics(attached(store, "would-merge"), (), ["would-merge"]).figures
    assert (figure.value, figure.attempts, figure.coverage) == (0.5, 1, 1.0)
    assert store.scores.add_scores([make_score(attempt, "would-merge", 1, by="bob")]) == 0


def test_scores_of_attempts_that_do_not_exist_change_nothing(store: Store) -> None:
    attempt = scored_task(store, "a", "t")
    with pytest.raises(BadInput, match=r"No attempt 'gone'.*Nothing was saved"):
        store.scores.add_scores(
            [make_score(attempt, "quality", 1), make_score("gone", "quality", 1)]
        )
    assert store.scores.list_scores(attempt) == []


def test_a_review_and_an_evaluation_become_scores(store: Store) -> None:
    attempt = scored_task(store, "a", "t")
    review = HumanReview(
        item=attempt,
        reviewer="ann",
        at=START,
        merge=True,
        contained=False,
        outside="none",
        dimensions={"quality": "partly"},
        tags=("scope creep",),
    )
    store.reviews.save_review(review)
    judge = JudgeVersion(
        id="j1", judge="c", rubric="r", rubric_digest="d", prompt="p", model="m", temperature=0.1
    )
    evaluation = Evaluation(
        id="e1",
        task="t",
        attempt=attempt,
        judge="j1",
        answers=(
            RubricAnswer(check="a", criterion="quality", verdict="yes", mode="context blindness"),
            RubricAnswer(check="b", criterion="quality", verdict="yes", mode="scope creep"),
            RubricAnswer(check="c", criterion="quality", verdict="partly", mode="scope creep"),
            RubricAnswer(check="d", criterion="quality", verdict=None, mode="hallucinated API"),
        ),
        criteria=(CriterionScore(name="quality", score=0.25),),
        score=0.25,
        passed=False,
        at=START,
    )
    store.judged.save_evaluations(
        Evaluations(judges=(judge,), evaluations=(evaluation,), passed=False, summary="")
    )
    said = {(one.name, one.source): one.value for one in store.scores.list_scores(attempt)}
    assert said == {
        ("would-merge", "person"): 1,
        ("scope-contained", "person"): 0,
        ("quality", "person"): 0.5,
        ("scope-creep", "person"): 1,
        ("context-blindness", "person"): 0,
        ("instruction-drift", "person"): 0,
        ("silent-regression", "person"): 0,
        ("hallucinated-api", "person"): 0,
        ("would-merge", "judge"): 0,
        ("judge-score", "judge"): 0.25,
        ("quality", "judge"): 0.25,
        ("context-blindness", "judge"): 0,
        ("scope-creep", "judge"): 0.5,
    }


def test_a_review_that_was_not_asked_for_failure_modes_has_examined_none(store: Store) -> None:
    attempt = scored_task(store, "a", "t")
    store.reviews.save_review(HumanReview(item=attempt, reviewer="ann", at=START, merge=True))
    assert [one.name for one in store.scores.list_scores(attempt)] == ["would-merge"]


def test_a_draft_of_a_review_is_no_score(store: Store) -> None:
    attempt = scored_task(store, "a", "t")
    store.reviews.save_review(
        HumanReview(item=attempt, reviewer="ann", at=START, merge=True, state="draft")
    )
    assert store.scores.list_scores(attempt) == []


def test_judges_of_different_versions_are_never_averaged(store: Store) -> None:
    attempts = [scored_task(store, "a", f"t{n}") for n in range(3)]
    for version, value, attempt in (("old", 0.0, 0), ("old", 0.0, 1), ("new", 1.0, 2)):
        one = make_score(attempts[attempt], "quality", value)
        judged = Score(**{**_fields(one), "source": "judge", "version": version, "by": version})
        store.scores.add_scores([judged])
    work = attached(store, "judge:quality")
    (figure,) = compute_metrics(work, (), ["judge:quality"]).figures
    assert (figure.value, figure.attempts) == (1.0, 1)
    assert "2 scores of quality by other versions of the judge were excluded." in work.notes


def _fields(score: Score) -> dict[str, object]:
    return {name: getattr(score, name) for name in Score.__struct_fields__}


# What may be given


@pytest.mark.parametrize(
    ("name", "written", "kept"),
    [
        ("would-merge", "yes", (1.0, None)),
        ("would-merge", "0.5", (0.5, None)),
        ("readability", 4, (4.0, None)),
        ("review-minutes", "12.5", (12.5, None)),
        ("verdict", "ship", (None, "ship")),
    ],
)
def test_what_is_in_range_is_kept(name: str, written: object, kept: tuple[object, object]) -> None:
    assert parse_score(CATALOGUE.definitions[name], written) == kept


@pytest.mark.parametrize(
    ("name", "written", "says"),
    [
        ("would-merge", "1.5", "out of range: give a number from 0 to 1"),
        ("would-merge", "nan", "out of range"),
        ("readability", 0, "from 1 to 5"),
        ("review-minutes", -1, "of 0 or more"),
        ("review-minutes", "long", "is not a number"),
        ("verdict", "shipped", "one of ship, fix, drop"),
    ],
)
def test_what_is_out_of_range_is_refused(name: str, written: object, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_score(CATALOGUE.definitions[name], written)


@pytest.mark.parametrize(
    "declared",
    [
        {"resolved": ScoreSettings()},
        {"would-merge": ScoreSettings()},
        {"two words": ScoreSettings()},
        {"scale": ScoreSettings(kind="ordinal")},
        {"scale": ScoreSettings(kind="ordinal", low=5, high=1)},
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(declared: dict[str, ScoreSettings]) -> None:
    with pytest.raises(BadInput):
        build_catalogue(declared)


def test_every_metric_is_the_aggregate_of_a_score_that_can_be_asked_for(store: Store) -> None:
    fill(store, {"a": {"t": [1, 0]}})
    work = load_attempt_table(store, BOOK)
    for name in derived_definitions():
        assert compute_metrics(work, (), [name]).definitions
    assert [one.name for one in compute_metrics(work, (), ["resolved"]).definitions] == [
        "pass rate",
        "pass@k",
        "pass^k",
        "best-of-n rate",
    ]


# What reads it


def test_tasks_without_a_check_are_compared_by_what_people_would_merge(store: Store) -> None:
    """8 tasks, the second merged 7 times and the first once, on another task: +0.75."""
    for number in range(8):
        scored_task(store, "a", f"t{number}", would_merge=int(number == 0))
        scored_task(store, "b", f"t{number}", would_merge=int(number != 0))
    (pair,) = compare_by_name(store, BOOK, ["a", "b"]).pairs
    comparison = pair.comparison
    assert (pair.primary, comparison.first, comparison.second) == ("would-merge", 1 / 8, 7 / 8)
    assert comparison.test is not None
    assert comparison.test.method == "exact McNemar"
    # Eight tasks changed sides, one of them to the first: 2 × (1 + 8) ÷ 2⁸.
    assert comparison.test.p == pytest.approx(2 * (1 + 8) / 2**8)
    assert comparison.here_word == "better"


def test_of_a_score_of_which_less_is_better_less_is_better(store: Store) -> None:
    """Minutes of review: 10 and 11 against 4 and 5 on each of seven tasks: 6 less, better."""
    for number in range(7):
        for name, base in (("a", 10.0), ("b", 4.0)):
            variant = add_variant(store, name)
            task = add_task(store, f"t{number}", acceptance=Acceptance())
            for repeat in (1, 2):
                made = add_attempt(store, task, variant, None, number=repeat)
                give(store, made.id, review_minutes=base + repeat - 1)
    report = compare_by_name(
        store, BOOK, ["a", "b"], scores=["review-minutes"], catalogue=CATALOGUE
    )
    (pair,) = report.pairs
    comparison = pair.comparison
    assert (comparison.first, comparison.second) == (10.5, 4.5)
    assert comparison.here is not None
    assert comparison.here.value == -6
    assert (comparison.here_word, comparison.alike_word) == ("better", "better")
    assert pair.table is None
    assert "is better than 'a': review-minutes −6 (" in pair.words[0]
    assert pair.words[0].endswith(") min.")


def test_further_scores_are_explored_and_adjusted(store: Store) -> None:
    for number in range(7):
        scored_task(store, "a", f"t{number}", would_merge=1, readability=2)
        scored_task(store, "b", f"t{number}", would_merge=1, readability=3 + number % 2)
    report = compare_by_name(
        store, BOOK, ["a", "b"], scores=["would-merge", "readability"], catalogue=CATALOGUE
    )
    (readability,) = [one for one in report.pairs[0].secondary if one.metric == "readability"]
    assert (readability.first, readability.word) == (2.0, "better")
    assert readability.adjusted is not None


def test_a_score_without_a_direction_cannot_decide(store: Store) -> None:
    scored_task(store, "a", "t", verdict="ship")
    scored_task(store, "b", "t", verdict="drop")
    with pytest.raises(BadInput, match="higher or lower values of 'verdict=ship' are better"):
        compare_by_name(store, BOOK, ["a", "b"], scores=["verdict=ship"], catalogue=CATALOGUE)


def test_labels_are_shares_of_each_word(store: Store) -> None:
    for number, word in enumerate(("ship", "ship", "fix")):
        scored_task(store, "a", f"t{number}", verdict=word)
    figures = compute_metrics(attached(store, "verdict"), (), ["verdict"]).figures
    shares = {one.metric: one.value for one in figures}
    assert shares == {"verdict=fix": pytest.approx(1 / 3), "verdict=ship": pytest.approx(2 / 3)}


def test_metrics_and_trends_take_a_score_and_say_how_much_it_covers(store: Store) -> None:
    for number in range(4):
        scored_task(store, "a", f"t{number}", **({"readability": 4.0} if number else {}))
    work = attached(store)
    (figure,) = compute_metrics(work, (), ["readability"]).figures
    assert (figure.value, figure.n, figure.coverage) == (4.0, 3, 0.75)
    (course,) = compute_trends(work, (), ["readability"]).courses
    assert course.stretches[-1].estimate.value == 4.0
    with pytest.raises(BadInput, match="score"):
        attached(store, "luck")


def test_a_name_that_two_sources_score_is_that_of_people(store: Store) -> None:
    attempt = scored_task(store, "a", "t", quality=1)
    judged = Score(**{**_fields(make_score(attempt, "quality", 0)), "source": "judge", "by": "j"})
    store.scores.add_scores([judged])
    work = attached(store, "quality", "judge:quality")
    values = {one.metric: one.value for one in compute_metrics(work, (), [*work.metrics]).figures}
    assert values == {"quality": 1.0, "judge:quality": 0.0}
    assert "quality is from person; `--score judge:quality` shows the other source." in work.notes


# A team's own scorer


class LengthScorer:
    """Scores by the number of the repeat; fails on the third."""

    name = "length"
    scores = (ScoreDefinition(name="length", kind="count", better="less"),)
    asked: list[str]

    def __init__(self) -> None:
        self.asked = []

    def score_attempt(self, shown: ScoredAttempt) -> Mapping[str, float | str | None]:
        self.asked.append(shown.attempt.id)
        if shown.attempt.number == 3:
            raise RuntimeError("no luck")
        return {"length": shown.attempt.number if shown.task else None}


def test_a_scorer_is_asked_once_of_each_attempt_and_its_failures_are_told(store: Store) -> None:
    fill(store, {"a": {"t": [1, 0, 1]}})
    scorer = LengthScorer()
    catalogue = build_catalogue({}, [scorer])
    work = attached(store, "length", catalogue=catalogue)
    (figure,) = compute_metrics(work, (), ["length"]).figures
    assert (figure.value, figure.attempts) == (1.5, 2)
    assert any("'length' failed on 1 attempt" in note and "no luck" in note for note in work.notes)
    attached(store, "length", catalogue=catalogue)
    assert len(scorer.asked) == 4, "only what failed is asked again"
    summary = {one.definition.name: one for one in summarise_scores(work, store, catalogue)}[
        "length"
    ]
    assert (summary.source, summary.attempts, summary.coverage) == ("code", 2, 2 / 3)


# On the command line


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "closeloop.toml").write_text(
        '[scores.readability]\nkind = "ordinal"\nlow = 1\nhigh = 5\nbetter = "more"\n'
    )
    (tmp_path / ".closeloop").mkdir()
    with open_store(str(tmp_path / ".closeloop/closeloop.db")) as store:
        for number in range(3):
            for variant in ("a", "b"):
                scored_task(store, variant, f"t{number}")
    return tmp_path


def ids(project: Path) -> list[str]:
    with open_store(str(project / ".closeloop/closeloop.db")) as store:
        return [row.id for row in store.list_attempts()]


def test_scores_are_typed_listed_and_compared(project: Path) -> None:
    for place, attempt in enumerate(ids(project)):
        done = typed(
            project, "score", attempt, f"would-merge={place % 2}", "readability=4", "--note", "ok"
        )
        assert (done.returncode, done.stdout) == (0, "2 scores saved.\n")
    listed = json.loads(typed(project, "score", "list", "--json").stdout)["items"]
    given = {one["definition"]["name"]: one["attempts"] for one in listed if one["last"]}
    assert given == {"would-merge": 6, "readability": 6}
    compared = json.loads(typed(project, "compare", "a", "b", "--json").stdout)
    assert compared["pairs"][0]["primary"] == "would-merge"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("score", "ID", "luck=1"), "luck"),
        (("score", "ID", "would-merge=7"), "out of range"),
        (("score", "ID", "would-merge"), "is not a score"),
        (("score", "ID"), "No score was given"),
        (("score", "ID", "resolved=1"), "is computed"),
        (("score", "zzzz", "would-merge=1"), "No attempt begins with"),
        (("score",), "Give an attempt"),
    ],
)
def test_a_score_that_is_none_is_refused_with_one_sentence(
    project: Path, arguments: tuple[str, ...], says: str
) -> None:
    known = ids(project)[0]
    done = typed(project, *(known if one == "ID" else one for one in arguments))
    assert done.returncode == 2
    assert says in done.stderr


def test_many_scores_come_from_a_file_all_or_none(project: Path) -> None:
    first, second, *_ = ids(project)
    rows = project / "rows.csv"
    rows.write_text(f"attempt,name,value,by\n{first},would-merge,yes,ann\n{second},luck,1,ann\n")
    refused = typed(project, "score", "--file", str(rows))
    assert refused.returncode == 2
    rows.write_text(f"attempt,name,value,by\n{first},would-merge,yes,ann\n{second},quality,1,\n")
    assert typed(project, "score", "--file", str(rows)).stdout == "2 scores saved.\n"
    again = project / "rows.jsonl"
    again.write_text(
        json.dumps({"attempt": first, "name": "would-merge", "value": True, "by": "ann"})
    )
    done = typed(project, "score", "--file", str(again))
    assert done.stdout == "0 scores saved; 1 already stored.\n"


def test_scores_come_from_standard_input_too(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = json.dumps({"attempt": ids(project)[0], "name": "quality", "value": 0.5})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(row.encode())))
    done = typed(project, "score", "--file", "-", "--source", "code")
    assert done.stdout == "1 score saved.\n", done.stderr


def test_a_file_without_scores_is_told_what_belongs_in_it(project: Path) -> None:
    (project / "empty.csv").write_text("attempt,name,value\n")
    refused = typed(project, "score", "--file", "empty.csv")
    assert refused.returncode == 2
    assert "empty.csv has no scores: give each line an attempt, a name" in refused.stderr


def test_every_score_is_exported_a_line_each(project: Path) -> None:
    first = ids(project)[0]
    typed(project, "score", first, "readability=5", "--note", "clear", "--reviewer", "ann")
    done = typed(project, "export", first, "--table", "scores")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    (given,) = [row for row in rows if row["source"] == "person"]
    assert {name: given[name] for name in ("attempt", "name", "value", "by", "note")} == {
        "attempt": first,
        "name": "readability",
        "value": 5.0,
        "by": "ann",
        "note": "clear",
    }
    assert "seconds" in {row["name"] for row in rows}


def test_a_gate_holds_a_score_to_its_direction(tried_project: Path) -> None:
    """Of what should be little, a threshold is the most."""
    done = typed(tried_project, "gate", "--threshold", "turns=0", "--json")
    (turns, *_) = json.loads(done.stdout)["thresholds"]
    assert done.returncode == 1
    assert (turns["holds"], turns["better"]) == (False, "less")
    assert "turns must be 0 or less" in json.loads(done.stdout)["reasons"][0]
    passed = typed(tried_project, "gate", "--threshold", "turns=1000")
    assert passed.returncode == 0
    assert "baseline" not in passed.stdout.partition("findings that count")[0]


def test_show_lists_what_was_given(project: Path) -> None:
    first = ids(project)[0]
    typed(project, "score", first, "would-merge=yes", "--note", "fine", "--reviewer", "ann")
    shown = typed(project, "show", first).stdout
    assert "would-merge 1  person ann" in shown
    assert "fine" in shown
